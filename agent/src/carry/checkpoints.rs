//! Writes a checkpoint of each scan to the ledger, and publishes the batches of the scan once they are there.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use flows::replica::Replica;
use hub::{DEFAULT_QUEUE_BATCHES, Hub};
use kernel::{account::Layout, carry::Keep, load::Kernel};
use prost::Message as _;
use proto::{
    Interface,
    batch::{Batch, Identity},
};
use sys::log_limit::LogLimit;
use tokio::{runtime::Handle, time::sleep};

use super::{
    LastScan, State,
    heritage::Heritage,
    layout, layout_of_accounts,
    ledger::{Ledger, Stored},
    to_pairs,
};

/// The batches of earlier commits that a commit repeats at most.
pub const MOST_UNDELIVERED_BYTES: usize = 64 << 20;
/// Half of a consumer's default queue: the next process publishes all of them at once.
const MOST_UNDELIVERED_BATCHES: usize = DEFAULT_QUEUE_BATCHES / 2;
/// How often to ask whether all consumers have the batches of a commit.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// The content of a scan's commit, besides its batches.
#[derive(Default)]
pub struct Checkpoint<'a> {
    pub pages: &'a [u32],
    pub is_inexact: bool,
    pub are_tags_unknown: bool,
    pub window_end_unix_ns: u64,
    pub sample_rate: u32,
    pub interfaces: &'a [Interface],
    pub lease_jiffies: u64,
    pub last_scan: LastScan,
    /// Has the flows that wait for a report. If `None`, no flow waits.
    pub replica: Option<&'a Replica>,
}

/// Keeps a ledger for a successor, and batches until they are committed.
pub struct Checkpoints {
    keep: Keep,
    ledger: Arc<Mutex<Ledger>>,
    identity: Vec<u8>,
    outbox: Vec<Batch>,
    /// The batches that consumers did not have yet at the last commit, as the ledger has them.
    undelivered: VecDeque<(Stored, Bytes)>,
    drained: Vec<String>,
    failures: LogLimit,
    forgets: LogLimit,
}

impl Checkpoints {
    /// Stores the maps of this process and a ledger. Call it before any program counts. `None` if nothing is to be
    /// stored, or if the service manager has no room for all of it, which the log says.
    pub(super) fn start(
        keep: &Keep,
        kernel: &mut Kernel,
        identity: &Identity,
        sample_rate: u32,
        now_unix_ns: u64,
    ) -> Option<Self> {
        if !keep.is_there() {
            return None;
        }
        match Self::store_all(keep, kernel, identity, sample_rate, now_unix_ns) {
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
        identity: &Identity,
        sample_rate: u32,
        now_unix_ns: u64,
    ) -> Result<Self> {
        let ledger = Ledger::create()?;
        let checkpoints = Self {
            keep: keep.clone(),
            ledger: Arc::new(Mutex::new(ledger)),
            identity: identity.encode_to_vec(),
            outbox: Vec::new(),
            undelivered: VecDeque::new(),
            drained: Vec::new(),
            failures: LogLimit::default(),
            forgets: LogLimit::default(),
        };
        let nothing = Checkpoint {
            window_end_unix_ns: now_unix_ns,
            sample_rate,
            lease_jiffies: kernel.pages.lease_jiffies(),
            ..Checkpoint::default()
        };
        checkpoints.try_commit(kernel, &nothing)?;
        for (name, file) in checkpoints.ledger().files() {
            keep.put_file(name, file).context("store the ledger")?;
        }
        kernel.accounts.keep(keep).context("store the accounts")?;
        kernel
            .pages
            .keep(keep.clone())
            .context("store the flow table")?;
        keep.settle()
            .context("wait until the service manager has stored the flow table")?;
        Ok(checkpoints)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a batch back until it is committed.
    pub fn hold(&mut self, batch: &Batch) {
        self.outbox.push(batch.clone());
    }

    /// Commits the batches of a scan and what its page held, and then publishes the batches.
    pub fn commit(&mut self, kernel: &mut Kernel, checkpoint: &Checkpoint<'_>, hub: &Hub) {
        let batches = mem::take(&mut self.outbox);
        if self.ledger().is_delivered() {
            self.undelivered.clear();
        }
        let stored = batches.iter().map(Stored::of);
        self.undelivered.extend(stored);
        self.bound(batches.len());
        if let Err(error) = self.try_commit(kernel, checkpoint) {
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
        let len = |(_, body): &(Stored, Bytes)| body.len();
        let mut bytes: usize = self.undelivered.iter().map(len).sum();
        let mut forgotten = 0_u64;
        let is_too_much =
            |bytes, batches| bytes > MOST_UNDELIVERED_BYTES || batches > MOST_UNDELIVERED_BATCHES;
        while self.undelivered.len() > fresh && is_too_much(bytes, self.undelivered.len()) {
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

    fn try_commit(&self, kernel: &mut Kernel, checkpoint: &Checkpoint<'_>) -> Result<()> {
        let Layout { per_page, cpus } = kernel.accounts.layout();
        let account = |page| to_pairs(&kernel.accounts.taken(page));
        let mut ledger = self.ledger();
        let waiting = checkpoint.replica.map_or(0, Replica::waiting_flows);
        let unreported = ledger.begin(waiting, |places, written| {
            if let Some(replica) = checkpoint.replica {
                replica.write_unreported(places, written);
            }
        })?;
        let state = State {
            layout: layout(),
            layout_of_accounts: layout_of_accounts(),
            senders: kernel.pages.kinds().0,
            accounts_per_page: per_page,
            cpus,
            pages: checkpoint.pages.to_vec(),
            is_inexact: checkpoint.is_inexact,
            are_tags_unknown: checkpoint.are_tags_unknown,
            accounts: [account(0), account(1)],
            window_end_unix_ns: checkpoint.window_end_unix_ns,
            sample_rate: checkpoint.sample_rate,
            interfaces: checkpoint
                .interfaces
                .iter()
                .map(Interface::encode_to_vec)
                .collect(),
            batches: self
                .undelivered
                .iter()
                .map(|(stored, _)| stored.clone())
                .collect(),
            drained: self.drained.clone(),
            identity: self.identity.clone(),
            lease_jiffies: checkpoint.lease_jiffies,
            last_scan: checkpoint.last_scan.clone(),
            unreported,
            page: None,
            waiting_packets: 0,
            waiting_bytes: 0,
        };
        let batches = self.undelivered.iter().map(|(_, body)| &**body);
        ledger.commit(&state, batches)
    }

    /// Notes that the page of the last commit is empty.
    pub fn cleared(&self) -> Result<()> {
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
                // The next commit has it for as long as it takes to write all flows.
                if let Ok(mut ledger) = ledger.try_lock() {
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
        self.drained.extend_from_slice(predecessor.drained());
    }

    /// Waits until all consumers have the batches of the last commit, so that the successor does not repeat them.
    pub fn wait_for_delivery(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while !self.ledger().is_delivered() && Instant::now() < end {
            thread::sleep(ASK_EVERY);
        }
    }

    /// Ends with nothing left to take over.
    pub fn end(self) {
        self.keep.remove_files();
    }
}
