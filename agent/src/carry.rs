//! Carries counting over a restart or a crash: what this process leaves for the next one, and what its predecessors have
//! left for it. [`kernel::carry`] has what is stored with the service manager.

use std::{
    collections::VecDeque,
    mem::{self, offset_of},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use agent_common::{
    FlowCounters, FlowKey, HookAccount, Pair, Reason, Senders, account, senders::Kinds, slots,
};
use anyhow::{Context as _, Result, ensure};
use hub::Hub;
use kernel::{
    account::{Accounts, Layout},
    attach,
    carry::{Inheritance, Keep, Predecessor},
    load::Kernel,
    pages::OldPages,
};
use prost::Message as _;
use proto::{Interface, batch::Batch};
use serde::{Deserialize, Serialize};
use server::Stored as StoredFile;
use sys::{clock, fd_store::FdStore, log_limit::LogLimit};
use tokio::{runtime::Handle, time::sleep};

use crate::service_manager;

mod ledger;

use ledger::{Commit, Ledger, Stored};

/// The batches of earlier commits that a commit repeats at most.
const MOST_UNDELIVERED_BYTES: usize = 64 << 20;
/// How often to ask whether all consumers have the batches of a commit.
const ASK_EVERY: Duration = Duration::from_millis(20);

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
    scan_id: u64,
    /// Encoded messages.
    interfaces: Vec<Vec<u8>>,
    batches: Vec<Stored>,
    /// The predecessors whose maps have been drained by this process.
    drained: Vec<String>,
    /// What waits for its report interval, and is in no batch yet.
    waiting_packets: u64,
    waiting_bytes: u64,
}

/// What a scan has to commit.
pub struct Scanned<'a> {
    pub pages: &'a [u32],
    pub is_inexact: bool,
    pub are_tags_unknown: bool,
    pub window_end_unix_ns: u64,
    pub sample_rate: u32,
    pub scan_id: u64,
    pub interfaces: &'a [Interface],
    /// Counts that wait for their report interval.
    pub waiting: Pair,
}

/// Keeps a ledger for a successor, and batches until they are committed.
pub struct Carry {
    keep: Keep,
    ledger: Arc<Mutex<Ledger>>,
    outbox: Vec<Batch>,
    /// The batches of earlier commits that consumers did not have yet.
    undelivered: VecDeque<Batch>,
    drained: Vec<String>,
    is_valid: bool,
    failures: LogLimit,
    forgets: LogLimit,
}

impl Carry {
    /// Stores the maps of this process and a ledger. Call it before any program counts. `None` if nothing is to be
    /// stored, or if the service manager has no room for all of it, which the log says.
    fn start(keep: &Keep, kernel: &mut Kernel, sample_rate: u32, now_unix_ns: u64) -> Option<Self> {
        if !keep.is_there() {
            return None;
        }
        match Self::store_all(keep, kernel, sample_rate, now_unix_ns) {
            Ok(started) => Some(started),
            Err(error) => {
                tracing::warn!(
                    "nothing is carried over to the next process: {error:#}; what is counted after the last scan of \
                     this process and before the next one counts is lost"
                );
                keep.give_up();
                None
            }
        }
    }

    fn store_all(
        keep: &Keep,
        kernel: &mut Kernel,
        sample_rate: u32,
        now_unix_ns: u64,
    ) -> Result<Self> {
        let ledger = Ledger::create()?;
        let carry = Self {
            keep: keep.clone(),
            ledger: Arc::new(Mutex::new(ledger)),
            outbox: Vec::new(),
            undelivered: VecDeque::new(),
            drained: Vec::new(),
            is_valid: true,
            failures: LogLimit::default(),
            forgets: LogLimit::default(),
        };
        let nothing = Scanned {
            pages: &[],
            is_inexact: false,
            are_tags_unknown: false,
            window_end_unix_ns: now_unix_ns,
            sample_rate,
            scan_id: 0,
            interfaces: &[],
            waiting: Pair::default(),
        };
        carry.try_commit(kernel, &nothing)?;
        for (name, file) in carry.ledger().files() {
            keep.put_file(name, file).context("store the ledger")?;
        }
        kernel.accounts.keep(keep).context("store the accounts")?;
        kernel
            .pages
            .keep(keep.clone())
            .context("store the flow table")?;
        keep.settle()
            .context("wait until the service manager has stored the flow table")?;
        Ok(carry)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a batch back until it is committed.
    pub fn hold(&mut self, batch: &Batch) {
        self.outbox.push(batch.clone());
    }

    /// Commits the batches of a scan and what its page held, and then publishes the batches.
    pub fn commit(&mut self, kernel: &mut Kernel, scanned: &Scanned<'_>, hub: &Hub) {
        let batches = mem::take(&mut self.outbox);
        if self.ledger().is_delivered() {
            self.undelivered.clear();
        }
        self.undelivered.extend(batches.iter().cloned());
        self.bound(batches.len());
        let committed = self.try_commit(kernel, scanned);
        self.is_valid = committed.is_ok();
        if let Err(error) = committed {
            let invalid = self.ledger().invalidate();
            if let Some(scans) = self.failures.event() {
                tracing::warn!(
                    scans,
                    invalid = ?invalid.err(),
                    "the ledger cannot be written: {error:#}; if the agent were killed now, the next one would not know \
                     what to take over"
                );
            }
        }
        for batch in batches {
            hub.publish(&batch);
        }
        self.watch_delivery(hub.clone());
    }

    /// Forgets the oldest batches beyond the bound, but none of the `fresh` last ones.
    fn bound(&mut self, fresh: usize) {
        let len = |batch: &Batch| batch.body.len();
        let mut bytes: usize = self.undelivered.iter().map(len).sum();
        let mut forgotten = 0_u64;
        while bytes > MOST_UNDELIVERED_BYTES && self.undelivered.len() > fresh {
            bytes -= self.undelivered.pop_front().as_ref().map_or(0, len);
            forgotten += 1;
        }
        if forgotten != 0
            && let Some(scans) = self.forgets.event()
        {
            tracing::warn!(
                scans,
                batches = forgotten,
                "consumers are late: if the agent were killed now, what waits for them in memory would be lost (an output \
                 with a spool loses nothing)"
            );
        }
    }

    fn try_commit(&self, kernel: &mut Kernel, scanned: &Scanned<'_>) -> Result<()> {
        let Layout { per_page, cpus } = kernel.accounts.layout();
        let account = |page| {
            let taken = kernel.accounts.taken(page);
            let pairs = taken.counters.iter();
            pairs.map(|pair| [pair.packets, pair.bytes]).collect()
        };
        let state = State {
            layout: layout(),
            senders: kernel.pages.kinds().0,
            accounts_per_page: per_page,
            cpus,
            pages: scanned.pages.to_vec(),
            is_inexact: scanned.is_inexact,
            are_tags_unknown: scanned.are_tags_unknown,
            accounts: [account(0), account(1)],
            window_end_unix_ns: scanned.window_end_unix_ns,
            sample_rate: scanned.sample_rate,
            scan_id: scanned.scan_id,
            interfaces: scanned
                .interfaces
                .iter()
                .map(Interface::encode_to_vec)
                .collect(),
            batches: self.undelivered.iter().map(stored).collect(),
            drained: self.drained.clone(),
            waiting_packets: scanned.waiting.packets,
            waiting_bytes: scanned.waiting.bytes,
        };
        let batches = self.undelivered.iter().map(|batch| &*batch.body);
        self.ledger().commit(&state, batches)
    }

    /// Notes that the page of the last commit is empty.
    pub fn cleared(&mut self) -> Result<()> {
        if !self.is_valid {
            return Ok(());
        }
        self.ledger().cleared().context("mark a page as empty")
    }

    /// Notes in the ledger when all consumers have the batches, so that a successor does not repeat them.
    fn watch_delivery(&self, hub: Hub) {
        let ledger = Arc::clone(&self.ledger);
        let seq = self.ledger().seq();
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            loop {
                {
                    let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
                    if ledger.seq() != seq {
                        return;
                    }
                    if hub.held_bytes() == 0 {
                        if let Err(error) = ledger.delivered(seq) {
                            tracing::debug!(%error, "a successor would repeat batches that all consumers have");
                        }
                        return;
                    }
                }
                sleep(ASK_EVERY).await;
            }
        });
    }

    /// Notes that a predecessor's maps are drained with the next commit.
    pub fn drained(&mut self, predecessor: &Heritage) {
        self.drained.push(predecessor.instance.clone());
        // Its own predecessors may still be in the store.
        let before = &predecessor.commit.state.drained;
        self.drained.extend(before.iter().cloned());
    }

    /// Waits until all consumers have the batches of the last commit, so that the successor does not repeat them.
    pub fn wait_for_delivery(&self, hub: &Hub, patience: Duration) {
        let end = Instant::now() + patience;
        while hub.held_bytes() != 0 {
            if Instant::now() >= end {
                return;
            }
            std::thread::sleep(ASK_EVERY);
        }
        let mut ledger = self.ledger();
        let seq = ledger.seq();
        if let Err(error) = ledger.delivered(seq) {
            tracing::debug!(%error, "the successor repeats batches that all consumers have");
        }
    }

    /// Ends with nothing left to take over.
    pub fn end(self) {
        self.keep.remove_files();
    }
}

fn stored(batch: &Batch) -> Stored {
    Stored {
        len_bytes: batch.body.len() as u64,
        crc: crc32fast::hash(&batch.body),
        records: batch.records,
        packets: batch.delta.packets,
        bytes: batch.delta.bytes,
        scan_id: batch.scan_id,
        index: batch.index,
        last_of_scan: batch.last_of_scan,
    }
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

/// The batches of a commit, each as it was stored. None if all consumers have them.
fn batches(commit: &mut Commit<State>) -> Result<Vec<Batch>> {
    let bytes = mem::take(&mut commit.batches);
    if commit.is_delivered {
        return Ok(Vec::new());
    }
    let cut = ledger::cut(bytes.into(), &commit.state.batches)?;
    let batches = cut.into_iter().map(|(stored, body)| Batch {
        body,
        records: stored.records,
        delta: Pair {
            packets: stored.packets,
            bytes: stored.bytes,
        },
        scan_id: stored.scan_id,
        index: stored.index,
        last_of_scan: stored.last_of_scan,
    });
    Ok(batches.collect())
}

/// What an earlier process has counted and nobody has drained.
pub struct Heritage {
    pub instance: String,
    /// The names of its files in the store.
    pub files: Vec<String>,
    commit: Commit<State>,
    batches: Vec<Batch>,
    pages: OldPages,
    accounts: Accounts,
}

impl Heritage {
    /// Opens what a process has left. Fails if it is incomplete, or if its layout is not ours.
    fn open(predecessor: Predecessor) -> Result<Self> {
        let Predecessor {
            instance,
            mut files,
        } = predecessor;
        let names = files.keys().cloned().collect();
        let ledger = ledger::NAMES.map(|name| files.remove(name));
        let mut commit: Commit<State> = ledger::read(ledger.into_iter().flatten())?;
        let batches = batches(&mut commit)?;
        let state = &commit.state;
        ensure!(
            state.layout == layout(),
            "its maps have another layout than this version's"
        );
        let kinds = Kinds(state.senders & Kinds::ALL.0);
        let layout = Layout {
            per_page: state.accounts_per_page,
            cpus: state.cpus,
        };
        Ok(Self {
            pages: OldPages::open(&mut files, kinds)?,
            accounts: Accounts::open(&mut files, layout)?,
            instance,
            files: names,
            commit,
            batches,
        })
    }

    /// The pages whose flows are in no batch.
    pub fn undrained(&self) -> Vec<u32> {
        let Commit {
            state, is_cleared, ..
        } = &self.commit;
        let is_left = |page: &u32| *is_cleared || !state.pages.contains(page);
        (0..2).filter(is_left).collect()
    }

    /// Whether some of its packets may have been counted inexactly.
    pub fn is_inexact(&self) -> bool {
        self.commit.state.is_inexact
    }

    pub fn are_tags_unknown(&self) -> bool {
        self.commit.state.are_tags_unknown
    }

    /// Passes every flow of a page to `sink`.
    pub fn read(
        &mut self,
        page: u32,
        sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> Result<u64> {
        let read = self.pages.read(page, sink);
        read.context("read the predecessor's flow table")
    }

    /// What all hooks counted on a page after it was read last.
    pub fn account(&self, page: u32) -> HookAccount {
        let mut before = HookAccount::default();
        let pairs = &self.commit.state.accounts[page as usize];
        for (pair, &[packets, bytes]) in before.counters.iter_mut().zip(pairs) {
            *pair = Pair { packets, bytes };
        }
        self.accounts.sum_of_idle(page).since(&before)
    }

    /// Takes the batches of its last scan, unless all consumers have them.
    pub fn take_batches(&mut self) -> Vec<Batch> {
        mem::take(&mut self.batches)
    }

    pub fn window_end_unix_ns(&self) -> u64 {
        self.commit.state.window_end_unix_ns
    }

    pub fn sample_rate(&self) -> u32 {
        self.commit.state.sample_rate
    }

    /// Packets and bytes that waited for their report interval: they are in no record.
    pub fn waiting(&self) -> Pair {
        let State {
            waiting_packets,
            waiting_bytes,
            ..
        } = self.commit.state;
        Pair {
            packets: waiting_packets,
            bytes: waiting_bytes,
        }
    }

    /// The interfaces that its flows name.
    pub fn interfaces(&self) -> Vec<Interface> {
        let encoded = self.commit.state.interfaces.iter();
        encoded
            .filter_map(|one| Interface::decode(&one[..]).ok())
            .collect()
    }
}

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
    pub fn start(&self, kernel: &mut Kernel, sample_rate: u32) -> Result<Option<Carry>> {
        let now_unix_ns = clock::unix_ns(clock::at(kernel.clocks()?, 0));
        Ok(Carry::start(&self.keep, kernel, sample_rate, now_unix_ns))
    }

    /// Opens what is to be taken over: links, and tables of processes.
    pub fn open(self) -> (attach::Carry, Keep, Vec<Heritage>) {
        let Self { keep, inheritance } = self;
        let heritages = heritages(inheritance.predecessors, &keep);
        let of_links = attach::Carry {
            inherited: inheritance.links,
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
        .flat_map(|heritage| heritage.commit.state.drained.clone())
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
