//! Carries counting over a restart or a crash. This process leaves [`Checkpoints`] for the next one, and takes over the
//! [`Heritage`] of earlier ones. [`kernel::carry`] stores links and maps with the service manager.

use std::mem::offset_of;

use agent_common::{FlowCounters, FlowKey, HookAccount, Pair, Reason, Senders, account, slots};
use anyhow::Result;
use flows::encoder::ReportInterval;
use kernel::{
    attach,
    carry::{Inheritance, Keep, Predecessor},
    load::Kernel,
    pages::Pages,
};
use proto::batch::Identity;
use serde::{Deserialize, Serialize};
use server::Stored as StoredFile;
use sys::{clock, fd_store::FdStore};

use crate::service_manager;

mod checkpoints;
mod heritage;
mod ledger;

pub use checkpoints::{Checkpoint, Checkpoints, MOST_UNDELIVERED_BYTES};
pub use heritage::Heritage;
pub use ledger::MOST_UNREPORTED_FLOWS;

/// The part that ends once everything of the predecessors is taken over.
pub struct Carrying {
    keep: Keep,
    inheritance: Inheritance,
}

impl Carrying {
    /// Sorts the descriptors from the service manager. `wants` is the setting.
    pub async fn begin(wants: bool, stored: Vec<StoredFile>, instance: &str) -> Self {
        let (keep, inheritance) = inherit(wants, stored, instance).await;
        Self { keep, inheritance }
    }

    /// Stores everything that a successor of this process needs.
    pub fn start(
        &self,
        kernel: &mut Kernel,
        identity: &Identity,
        sample_rate: u32,
    ) -> Result<Option<Checkpoints>> {
        let now_unix_ns = clock::unix_ns(clock::at(kernel.clocks()?, 0));
        Ok(Checkpoints::start(
            &self.keep,
            kernel,
            identity,
            sample_rate,
            now_unix_ns,
        ))
    }

    /// Opens links and tables of earlier processes.
    pub fn open(self) -> (attach::Carry, Earlier) {
        let Self { keep, inheritance } = self;
        let heritages = open_all(inheritance.predecessors, &keep);
        let links = attach::Carry {
            inherited: inheritance.links,
            has_maps: heritages.iter().any(Heritage::is_readable),
            keep: keep.clone(),
        };
        (links, Earlier { keep, heritages })
    }
}

/// The tables of earlier processes.
pub struct Earlier {
    /// The store. Files that are taken over are removed from it.
    pub keep: Keep,
    /// The oldest first.
    pub heritages: Vec<Heritage>,
}

/// The store for a successor, and the inheritance of predecessors. If counting is not to be carried over,
/// everything of theirs is removed, which detaches their programs.
async fn inherit(wants: bool, stored: Vec<StoredFile>, instance: &str) -> (Keep, Inheritance) {
    if !wants && stored.is_empty() {
        return <_>::default();
    }
    let store = match FdStore::from_environment() {
        Ok(store) => store,
        Err(error) => {
            tracing::warn!(
                "--carry-over does nothing: {error:#}; what is counted between this process and the next one is lost"
            );
            return <_>::default();
        }
    };
    if !wants {
        for (name, _) in &stored {
            if let Err(error) = store.remove(name) {
                tracing::warn!(%error, name, "what an earlier process has left cannot be removed");
            }
        }
        return <_>::default();
    }
    store.expect(
        service_manager::most_stored().await,
        stored.iter().map(|(name, _)| &**name),
    );
    let inheritance = Inheritance::of(stored);
    let programs = inheritance.links.count();
    if programs > 0 && inheritance.predecessors.is_empty() {
        tracing::warn!(
            programs,
            "the service manager has stored programs of an earlier process without their tables: what they have counted \
             since its last scan is lost"
        );
    }
    for name in &inheritance.unknown {
        tracing::warn!(
            name,
            "the service manager has stored something that this version does not know"
        );
        if let Err(error) = store.remove(name) {
            tracing::debug!(%error, name, "it stays in the store");
        }
    }
    (Keep::new(store, instance), inheritance)
}

/// Opens what predecessors have left, the oldest first. What cannot be read is forgotten, and the log says so.
fn open_all(predecessors: Vec<Predecessor>, keep: &Keep) -> Vec<Heritage> {
    let mut opened = Vec::new();
    for predecessor in predecessors {
        let instance = predecessor.instance.clone();
        let files: Vec<_> = predecessor.files.keys().cloned().collect();
        match Heritage::open(predecessor) {
            Ok(heritage) => opened.push(heritage),
            Err(error) => {
                tracing::warn!(
                    instance,
                    "what an earlier process has counted since its last scan cannot be taken over: {error:#}"
                );
                keep.forget(&instance, &files);
            }
        }
    }
    // A process that was killed before it could forget another one's maps has drained them all the same.
    let drained: Vec<_> = opened
        .iter()
        .flat_map(|heritage| heritage.drained().to_vec())
        .collect();
    opened.retain(|heritage| {
        let is_left = !drained.contains(&heritage.instance);
        if !is_left {
            keep.forget(&heritage.instance, &heritage.files);
        }
        is_left
    });
    opened.sort_by_key(Heritage::window_end_unix_ns);
    opened
}

/// The facts that a successor needs besides maps and batches. Give a new field a default: the successor may be of another
/// version.
#[derive(Deserialize, Serialize)]
struct State {
    /// See [`layout`].
    layout: String,
    #[serde(default)]
    layout_of_accounts: String,
    senders: u32,
    accounts_per_page: u32,
    cpus: u32,
    /// The pages that were read for this commit, and that are empty once the commit is marked as cleared.
    #[serde(default)]
    pages: Vec<u32>,
    /// Some hook counted inexactly, or without VLAN tags.
    #[serde(default)]
    is_inexact: bool,
    #[serde(default)]
    are_tags_unknown: bool,
    /// What all accounts of each page had when it was read last: packets and bytes by reason.
    accounts: [Vec<[u64; 2]>; 2],
    window_end_unix_ns: u64,
    /// Of the flows in the maps.
    sample_rate: u32,
    /// Encoded messages.
    interfaces: Vec<Vec<u8>>,
    batches: Vec<ledger::Stored>,
    /// The predecessors whose maps have been drained by this process.
    drained: Vec<String>,
    /// An encoded message.
    #[serde(default)]
    identity: Vec<u8>,
    /// When its programs stop counting, by the kernel's tick counter.
    #[serde(default = "no_lease")]
    lease_jiffies: u64,
    #[serde(default)]
    last_scan: LastScan,
    #[serde(default)]
    unreported: ledger::Unreported,

    // Only the first versions wrote these.
    #[serde(default, skip_serializing)]
    page: Option<u32>,
    /// What waited for a report, and was not stored.
    #[serde(default, skip_serializing)]
    waiting_packets: u64,
    #[serde(default, skip_serializing)]
    waiting_bytes: u64,
}

fn no_lease() -> u64 {
    Pages::NO_LEASE
}

/// A scan, after which a successor can report the flows that still wait for a report as the next one.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct LastScan {
    pub id: u64,
    pub table_capacity: u64,
    pub report_interval: ReportInterval,
    /// See [`ScanClock`](sys::clock::ScanClock).
    pub boot_to_unix_ns: i64,
    /// Packets and bytes that wait.
    waiting: [u64; 2],
    /// The sum of all hooks: packets and bytes by reason.
    account: Vec<[u64; 2]>,
}

impl LastScan {
    /// `waiting` are the packets that wait for a report.
    pub fn new(
        id: u64,
        table_capacity: u64,
        report_interval: ReportInterval,
        boot_to_unix_ns: i64,
        waiting: Pair,
        account: &HookAccount,
    ) -> Self {
        Self {
            id,
            table_capacity,
            report_interval,
            boot_to_unix_ns,
            waiting: [waiting.packets, waiting.bytes],
            account: to_pairs(account),
        }
    }

    pub fn waiting(&self) -> Pair {
        let [packets, bytes] = self.waiting;
        Pair { packets, bytes }
    }

    pub fn account(&self) -> HookAccount {
        from_pairs(&self.account)
    }
}

/// Packets and bytes by reason.
fn to_pairs(account: &HookAccount) -> Vec<[u64; 2]> {
    let pairs = account.counters.iter();
    pairs.map(|pair| [pair.packets, pair.bytes]).collect()
}

fn from_pairs(pairs: &[[u64; 2]]) -> HookAccount {
    let mut account = HookAccount::default();
    for (pair, &[packets, bytes]) in account.counters.iter_mut().zip(pairs) {
        *pair = Pair { packets, bytes };
    }
    account
}

/// Describes everything that this process reads of maps that another process made. Maps of another layout are not read.
fn layout() -> String {
    /// Change it with the meaning of any field that keeps its size and place.
    const VERSION: u32 = 1;
    let [common, rare, pending] = sizes_of_accounts();
    let sizes = [
        size_of::<FlowKey>(),
        size_of::<FlowCounters>(),
        size_of::<slots::Window>(),
        size_of::<Senders>(),
        common,
        rare,
        pending,
        offset_of!(FlowKey, encapsulation),
        offset_of!(FlowCounters, first_seen_ns),
        offset_of!(FlowCounters, state),
    ];
    described(VERSION, &sizes)
}

/// The same for the accounts alone.
fn layout_of_accounts() -> String {
    const VERSION: u32 = 1;
    described(VERSION, &sizes_of_accounts())
}

fn sizes_of_accounts() -> [usize; 3] {
    [
        size_of::<account::Common>(),
        size_of::<account::Rare>(),
        size_of::<account::AllPending>(),
    ]
}

fn described(version: u32, sizes: &[usize]) -> String {
    let reasons = Reason::ALL.iter().map(|reason| reason.name().to_owned());
    let words = sizes.iter().map(usize::to_string).chain(reasons);
    let words: Vec<_> = [version.to_string()].into_iter().chain(words).collect();
    words.join(" ")
}
