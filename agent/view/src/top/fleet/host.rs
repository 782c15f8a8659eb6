//! One host of a collector, or the host of an agent's own stream.

use std::{
    mem::size_of,
    sync::Arc,
    time::{Duration, Instant},
};

use formats::{harmless::harmless, human};
use prost::Message as _;
use proto::{Cgroup, FlowBatch, FlowRecord, HostName, Interface, Process};

use super::super::picture::Picture;

/// A host is silent if it sends nothing for this many of its windows, and for `GRACE` on top.
const MISSED_WINDOWS: u32 = 3;
const GRACE: Duration = Duration::from_secs(10);
/// The shortest and the longest time before a host counts as silent. The shortest applies while few of its windows are
/// known.
const LEAST_SILENCE: Duration = Duration::from_mins(1);
const MOST_SILENCE: Duration = Duration::from_hours(1);
/// Characters of a label.
const LABEL: usize = 64;

/// The sender of flows: a process, under the identity that a collector has checked. Empty for an agent's own stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender {
    pub identity: String,
    pub agent_id: String,
    pub instance_id: String,
}

impl Sender {
    /// The machine, which an agent shares with its successor.
    pub(super) fn machine(&self) -> (&str, &str) {
        (&self.identity, &self.agent_id)
    }
}

/// The missing parts of a host's scans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Scans that are missing entirely.
    pub scans: u64,
    /// Scans that are missing in part.
    pub parts: u64,
}

/// A host with the flows of its agent.
#[derive(Clone)]
pub struct Host {
    pub sender: Arc<Sender>,
    /// Its name, safe to print, extended if the name alone is ambiguous.
    pub label: String,
    pub picture: Picture,
    pub missing: Missing,
    /// Whether it has completed a scan.
    pub has_scan: bool,
    /// Whether its agent has said that this was the last scan.
    pub has_ended: bool,
    /// When it appeared, and when its last batch came.
    pub since: Instant,
    pub heard: Instant,
    /// The scan in progress, and the number of its next batch. `None` before the first complete scan.
    next: Option<(u64, u32)>,
    /// Whether a part of that scan is missing.
    is_cut: bool,
    /// The stream of its last batch.
    stream_id: u64,
    /// The batches of a scan that is not complete.
    waiting: Vec<FlowBatch>,
    waiting_bytes: usize,
}

impl Host {
    pub(super) fn new(sender: &Arc<Sender>, every: Duration, now: Instant) -> Self {
        Self {
            sender: Arc::clone(sender),
            label: String::new(),
            picture: Picture::of(every),
            missing: Missing::default(),
            has_scan: false,
            has_ended: false,
            since: now,
            heard: now,
            next: None,
            is_cut: false,
            stream_id: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    /// Adds a batch of an agent's own stream.
    pub(super) fn add_batch(&mut self, batch: &FlowBatch, now: Instant) -> bool {
        (self.heard, self.has_scan) = (now, true);
        let is_whole = self.picture.add_batch(batch);
        self.label = harmless(&self.picture.hostname).into_owned();
        is_whole
    }

    /// Adds a batch from a collector. Returns whether it completes a scan.
    pub(super) fn accept(&mut self, batch: FlowBatch, now: Instant) -> bool {
        let (scan, index) = (batch.scan_id, batch.batch_index);
        let Some(mut expected) = self.next.or((index == 0).then_some((scan, 0))) else {
            // This scan began before we listened.
            return false;
        };
        let is_rest = index > 0 && scan == expected.0;
        if (scan, index) < expected || is_rest && batch.stream_id != self.stream_id {
            // A repetition, or a batch of the same agent's second stream.
            return false;
        }
        if scan > expected.0 {
            let is_begun = expected.1 > 0;
            self.missing.parts += u64::from(is_begun);
            let skipped = scan - expected.0 - u64::from(is_begun);
            self.missing.scans = self.missing.scans.saturating_add(skipped);
            self.show();
            (expected, self.is_cut) = ((scan, 0), false);
        }
        self.is_cut |= index > expected.1;
        let is_complete = batch.last_of_scan;
        self.next = Some(if is_complete {
            (scan.saturating_add(1), 0)
        } else {
            (scan, index.saturating_add(1))
        });
        (self.heard, self.stream_id) = (now, batch.stream_id);
        let account = batch.account.as_ref();
        let is_last = is_complete && account.is_some_and(|account| account.r#final);
        self.waiting_bytes += held_bytes(&batch);
        self.waiting.push(batch);
        if is_complete {
            self.missing.parts += u64::from(std::mem::take(&mut self.is_cut));
            self.show();
            self.has_scan = true;
            self.has_ended |= is_last;
        }
        is_complete
    }

    /// Adds the batches that waited.
    pub(super) fn show(&mut self) {
        for batch in self.waiting.drain(..) {
            self.picture.add_batch(&batch);
        }
        self.waiting_bytes = 0;
        self.picture.take_as_whole();
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// The number of rows that it could use.
    pub(super) fn wanted_rows(&self) -> usize {
        if self.picture.missing.forgotten_rows > 0 {
            usize::MAX
        } else {
            2 * self.picture.rows() + 100
        }
    }

    /// Its name. `is_unique` if no other host has it.
    pub(super) fn describe(&mut self, is_unique: bool) {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let Sender {
            identity,
            instance_id,
            ..
        } = self.sender.as_ref();
        let name = &self.picture.hostname;
        let is_its_own = identity.starts_with("uid:") || short(identity) == short(name);
        let label = if !is_unique {
            let instance: String = instance_id.chars().take(8).collect();
            format!("{name} ({identity} {instance})")
        } else if is_its_own {
            name.clone()
        } else {
            format!("{name} ({identity})")
        };
        self.label = human::shortened(&harmless(&label), LABEL).to_string();
    }

    pub fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }

    /// How long nothing may come before it counts as silent.
    pub(super) fn longest_silence(&self) -> Duration {
        let windows = self.picture.longest_window() * MISSED_WINDOWS + GRACE;
        if self.picture.windows() < 2 {
            return windows.clamp(LEAST_SILENCE, MOST_SILENCE);
        }
        windows.min(MOST_SILENCE)
    }
}

/// The memory that a batch takes, about.
fn held_bytes(batch: &FlowBatch) -> usize {
    let tables = [
        (batch.records.len(), size_of::<FlowRecord>()),
        (batch.interfaces.len(), size_of::<Interface>()),
        (batch.cgroups.len(), size_of::<Cgroup>()),
        (batch.processes.len(), size_of::<Process>()),
        (batch.hosts.len(), size_of::<HostName>()),
    ];
    let entries: usize = tables.iter().map(|(number, size)| number * size).sum();
    entries + batch.encoded_len()
}
