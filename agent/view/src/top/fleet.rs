//! The hosts whose flows a stream has: one for an agent's stream, and many for a collector's.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use formats::harmless::harmless;
use prost::Message as _;
use proto::FlowBatch;

use super::picture::Picture;

/// The most hosts of a collector. Beyond it, the sender with the most of them loses the one that was silent longest.
pub const MOST_HOSTS: usize = 2_000;
/// Bytes of batches that wait for the rest of their scan, of all hosts together. Beyond it they are shown without the rest.
const MOST_WAITING: usize = 64 << 20;
/// A host is silent if it sends nothing for this many of its windows, and for `GRACE` on top.
const MISSED_WINDOWS: u32 = 3;
const GRACE: Duration = Duration::from_secs(10);
/// A host that was silent this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// Who sends flows: a process, under the identity that a collector has checked. Empty for the agent of a stream of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender {
    identity: String,
    agent_id: String,
    instance_id: String,
}

impl Sender {
    /// Whether both are of one machine, as an agent and the one that was started after it.
    fn shares_machine(&self, other: &Self) -> bool {
        (&self.identity, &self.agent_id) == (&other.identity, &other.agent_id)
    }
}

/// A host with the flows of its agent.
#[derive(Clone)]
pub struct Host {
    pub sender: Arc<Sender>,
    /// Its name, harmless to print, with its identity if that is another one.
    pub label: String,
    pub picture: Picture,
    /// When its last batch came.
    heard: Instant,
    /// The batches of a scan that is not complete.
    waiting: Vec<FlowBatch>,
    /// Their length on the wire.
    waiting_bytes: usize,
    /// The stream of its last batch.
    stream_id: u64,
}

/// What is missing on the stream itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub lost_records: u64,
    pub gaps: u64,
    pub missed_scans: u64,
    /// How often the sums started again: restarts of the agent, or connections to the collector.
    pub restarts: u64,
    /// Hosts beyond [`MOST_HOSTS`].
    pub forgotten_hosts: u64,
}

#[derive(Clone)]
pub struct Fleet {
    hosts: BTreeMap<Arc<Sender>, Host>,
    is_collector: bool,
    every: Duration,
    /// When it was last told the time.
    now: Instant,
    pub missing: Missing,
}

impl Fleet {
    /// For scans that are asked for this often.
    pub fn new(every: Duration, now: Instant) -> Self {
        Self {
            hosts: BTreeMap::new(),
            is_collector: false,
            every,
            now,
            missing: Missing::default(),
        }
    }

    /// Adds a batch. Returns whether there is something new to show.
    pub fn take(&mut self, batch: FlowBatch, now: Instant) -> bool {
        self.now = now;
        self.missing.lost_records = batch.lost_records;
        if batch.scan_id == 0 && !batch.snapshot {
            // Such a batch only reports losses at the end of a stream.
            return true;
        }
        if batch.stream_id == 0 {
            let every = self.every;
            let host = self.hosts.entry(Arc::default());
            let host = host.or_insert_with_key(|sender| Host::new(sender, every, now));
            host.describe(&batch, now);
            return host.picture.take(&batch);
        }
        self.is_collector = true;
        self.take_from_collector(batch, now)
    }

    /// Scans of many hosts come at the same time, so each waits until it is complete.
    fn take_from_collector(&mut self, batch: FlowBatch, now: Instant) -> bool {
        let Some(agent) = &batch.agent else {
            return false;
        };
        let sender = Arc::new(Sender {
            identity: agent.identity.clone(),
            agent_id: agent.agent_id.clone(),
            instance_id: agent.instance_id.clone(),
        });
        let every = self.every;
        let host = self.hosts.entry(Arc::clone(&sender));
        let host = host.or_insert_with_key(|sender| Host::new(sender, every, now));
        host.describe(&batch, now);
        if host.has(&batch) {
            return false;
        }
        host.stream_id = batch.stream_id;
        let is_other = |waiting: &FlowBatch| waiting.scan_id != batch.scan_id;
        if host.waiting.last().is_some_and(is_other) {
            // The rest of that scan was lost.
            host.show();
        }
        let is_complete = batch.last_of_scan;
        host.waiting_bytes += batch.encoded_len();
        host.waiting.push(batch);
        if is_complete {
            host.show();
        } else if self.waiting_bytes() > MOST_WAITING {
            self.hosts.values_mut().for_each(Host::show);
        }
        self.forget_hosts();
        let number = self.hosts.len();
        for host in self.hosts.values_mut() {
            host.picture.shared_by = number;
        }
        is_complete
    }

    fn waiting_bytes(&self) -> usize {
        self.hosts.values().map(|host| host.waiting_bytes).sum()
    }

    fn forget_hosts(&mut self) {
        let now = self.now;
        let (silent, heard): (Vec<&Host>, Vec<&Host>) =
            self.hosts().partition(|host| self.is_silent(host));
        let is_over = |host: &&&Host| {
            let is_later = |other: &&Host| other.sender.shares_machine(&host.sender);
            host.silence(now) >= FORGOTTEN_AFTER || heard.iter().any(is_later)
        };
        let over = silent.iter().filter(is_over);
        let over: Vec<_> = over.map(|host| Arc::clone(&host.sender)).collect();
        for sender in over {
            self.hosts.remove(&sender);
        }
        while self.hosts.len() > MOST_HOSTS {
            let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
            for sender in self.hosts.keys() {
                *numbers.entry(&sender.identity).or_default() += 1;
            }
            let most = numbers.into_iter().max_by_key(|(_, number)| *number);
            let (identity, _) = most.expect("there are hosts");
            let its = self
                .hosts
                .values()
                .filter(|host| host.sender.identity == identity);
            let silent_longest = its.min_by_key(|host| host.heard);
            let sender = Arc::clone(&silent_longest.expect("it has the most").sender);
            self.hosts.remove(&sender);
            self.missing.forgotten_hosts += 1;
        }
    }

    /// Tells the time. Returns whether another host is silent than before.
    pub fn tick(&mut self, now: Instant) -> bool {
        let before = self.silent();
        self.now = now;
        self.silent() != before
    }

    /// The number of hosts whose flows are not shown, because nothing has come from them for too long.
    pub fn silent(&self) -> usize {
        self.hosts().filter(|host| self.is_silent(host)).count()
    }

    /// Whether a host's last figures are too old to be shown.
    pub fn is_silent(&self, host: &Host) -> bool {
        self.is_collector && host.is_silent(self.now)
    }

    /// How long ago a host's last batch came.
    pub fn silence(&self, host: &Host) -> Duration {
        host.silence(self.now)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> + Clone {
        self.hosts.values()
    }

    /// Those whose flows are shown.
    pub fn shown(&self) -> impl Iterator<Item = &Host> + Clone {
        self.hosts().filter(|host| !self.is_silent(host))
    }

    pub fn host(&self, sender: &Sender) -> Option<&Host> {
        self.hosts.get(sender)
    }

    pub fn is_collector(&self) -> bool {
        self.is_collector
    }

    /// The only host of an agent's own stream. `None` before its first batch.
    pub fn agent(&self) -> Option<&Host> {
        self.hosts().next().filter(|_| !self.is_collector)
    }

    /// Flows that the agents of these hosts track. `None` if one does not say.
    pub fn tracked_flows(&self) -> Option<u64> {
        let mut hosts = self.shown().peekable();
        hosts.peek()?;
        hosts.map(|host| host.picture.tracked_flows).sum()
    }

    /// Whether the sums of an agent's window are still incomplete. Those of a collector's hosts are shown once they are complete.
    pub fn is_partial(&self) -> bool {
        self.agent().is_some_and(|host| host.picture.is_partial())
    }

    /// Stops waiting for the rest of the scan, because it takes too long: shows the sums so far.
    pub fn take_as_whole(&mut self) {
        for host in self.hosts.values_mut() {
            host.picture.take_as_whole();
        }
    }

    /// The most windows of a host that are long enough for rates.
    pub fn windows(&self) -> u64 {
        let windows = self.hosts().map(|host| host.picture.windows());
        windows.max().unwrap_or_default()
    }

    /// The longest time that the rates of a host cover.
    pub fn longest_window(&self) -> Option<Duration> {
        self.hosts().filter_map(|host| host.picture.length()).max()
    }

    /// Resets the sums: the stream has started again.
    pub fn restart(&mut self) {
        self.hosts.clear();
    }

    /// An empty one with windows of the same kind.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self {
            is_collector: self.is_collector,
            ..Self::new(self.every, self.now)
        }
    }
}

impl Host {
    fn new(sender: &Arc<Sender>, every: Duration, now: Instant) -> Self {
        Self {
            sender: Arc::clone(sender),
            label: String::new(),
            picture: Picture::of(every),
            heard: now,
            waiting: Vec::new(),
            waiting_bytes: 0,
            stream_id: 0,
        }
    }

    fn describe(&mut self, batch: &FlowBatch, now: Instant) {
        self.heard = now;
        let Some(agent) = &batch.agent else { return };
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let identity = &agent.identity;
        let is_known = identity.is_empty()
            || identity.starts_with("uid:")
            || short(identity) == short(&agent.hostname);
        self.label = if is_known {
            harmless(&agent.hostname).into_owned()
        } else {
            harmless(&format!("{} ({identity})", agent.hostname)).into_owned()
        };
    }

    /// Whether the batch came before: again, because nobody had acknowledged it, or on another stream of the same agent.
    fn has(&self, batch: &FlowBatch) -> bool {
        let waits = self.waiting.last().is_some_and(|waiting| {
            waiting.scan_id == batch.scan_id
                && (self.stream_id != batch.stream_id || waiting.batch_index >= batch.batch_index)
        });
        waits || self.picture.scan_id() >= batch.scan_id
    }

    /// Adds the batches that waited.
    fn show(&mut self) {
        for batch in self.waiting.drain(..) {
            self.picture.take(&batch);
        }
        self.waiting_bytes = 0;
        self.picture.take_as_whole();
    }

    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }

    fn is_silent(&self, now: Instant) -> bool {
        let window = self.picture.length().unwrap_or_default();
        self.silence(now) > window.saturating_mul(MISSED_WINDOWS) + GRACE
    }
}
