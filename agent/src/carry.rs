//! Carries counting over a restart or a crash. This process leaves [`Checkpoints`] for the next one, and takes over the
//! [`Heritage`] of earlier ones. [`kernel::carry`] stores links and maps with the service manager.

use std::mem::offset_of;

use agent_common::{FlowCounters, FlowKey, Reason, Senders, account, slots};
use anyhow::Result;
use kernel::{
    attach,
    carry::{Inheritance, Keep, Predecessor},
    load::Kernel,
};
use serde::{Deserialize, Serialize};
use server::Stored as StoredFile;
use sys::{clock, fd_store::FdStore};

use crate::service_manager;

mod checkpoints;
mod heritage;
mod ledger;

pub use checkpoints::{Checkpoint, Checkpoints, MOST_UNDELIVERED_BYTES};
pub use heritage::Heritage;

/// The part that ends once everything of the predecessors is taken over.
pub struct Carrying {
    keep: Keep,
    inheritance: Inheritance,
}

impl Carrying {
    /// Sorts what the service manager has passed. `wants` is the setting.
    pub async fn begin(wants: bool, stored: Vec<StoredFile>, instance: &str) -> Self {
        let (keep, inheritance) = inherit(wants, stored, instance).await;
        Self { keep, inheritance }
    }

    /// Stores what a successor of this process needs.
    pub fn start(&self, kernel: &mut Kernel, sample_rate: u32) -> Result<Option<Checkpoints>> {
        let now_unix_ns = clock::unix_ns(clock::at(kernel.clocks()?, 0));
        Ok(Checkpoints::start(
            &self.keep,
            kernel,
            sample_rate,
            now_unix_ns,
        ))
    }

    /// Opens what is to be taken over: links, and tables of processes.
    pub fn open(self) -> (attach::Carry, Keep, Vec<Heritage>) {
        let Self { keep, inheritance } = self;
        let heritages = heritages(inheritance.predecessors, &keep);
        let of_links = attach::Carry {
            inherited: inheritance.links,
            has_maps: !heritages.is_empty(),
            keep: keep.clone(),
        };
        (of_links, keep, heritages)
    }
}

/// Where to store what a successor needs, and what predecessors have stored. If counting is not to be carried over,
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
fn heritages(predecessors: Vec<Predecessor>, keep: &Keep) -> Vec<Heritage> {
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

/// What a successor needs besides maps and batches.
#[derive(Deserialize, Serialize)]
struct State {
    /// See [`layout`].
    layout: String,
    senders: u32,
    accounts_per_page: u32,
    cpus: u32,
    /// The pages that were read for this commit, and that are empty once the commit is marked as cleared.
    pages: Vec<u32>,
    /// Some hook counted inexactly, or without VLAN tags.
    is_inexact: bool,
    are_tags_unknown: bool,
    /// What all accounts of each page had when it was read last: packets and bytes by reason.
    accounts: [Vec<[u64; 2]>; 2],
    window_end_unix_ns: u64,
    /// Of what the maps hold.
    sample_rate: u32,
    /// Encoded messages.
    interfaces: Vec<Vec<u8>>,
    batches: Vec<ledger::Stored>,
    /// The predecessors whose maps have been drained by this process.
    drained: Vec<String>,
    /// What waits for its report interval, and is in no batch yet.
    waiting_packets: u64,
    waiting_bytes: u64,
}

/// Describes everything that this process reads of maps that another process made. Maps of another layout are not read.
fn layout() -> String {
    /// Change it with the meaning of any field that keeps its size and place.
    const VERSION: u32 = 1;
    let sizes = [
        size_of::<FlowKey>(),
        size_of::<FlowCounters>(),
        size_of::<slots::Window>(),
        size_of::<Senders>(),
        size_of::<account::Common>(),
        size_of::<account::Rare>(),
        size_of::<account::AllPending>(),
        offset_of!(FlowKey, encapsulation),
        offset_of!(FlowCounters, first_seen_ns),
        offset_of!(FlowCounters, state),
    ];
    let reasons = Reason::ALL.iter().map(|reason| reason.name());
    let sizes = sizes.map(|size| size.to_string());
    let reasons: Vec<_> = reasons.collect();
    format!("{VERSION} {} {}", sizes.join(" "), reasons.join(" "))
}
