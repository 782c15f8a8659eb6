//! The hosts whose flows a stream has: one for an agent's stream, many for a collector's. Any of them may be hostile to
//! the others.

mod host;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use proto::FlowBatch;

use super::picture::{MOST_FLOWS, Picture};
pub use host::{Host, Sender};

/// The most hosts of a collector. Beyond it, the oldest silent host is dropped, or else one of the identity with the most hosts.
pub const MOST_HOSTS: usize = 2_000;
/// The most agents of one machine at a time.
const MOST_OF_MACHINE: usize = 4;
/// Flows that the hosts of a collector keep together, and rows of all other views.
const ROOM: usize = 5 * MOST_FLOWS;
/// Memory for batches of incomplete scans, of one identity and of all. Beyond it, the identity with the most shows its scans as
/// they are.
const MOST_WAITING_OF_ONE: usize = 32 << 20;
const MOST_WAITING: usize = 256 << 20;
/// A host that has been silent this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);
/// The least time that the last scan of an agent is shown.
const LAST_SHOWN: Duration = Duration::from_secs(2);
/// How often to forget hosts and divide the room for rows.
const SWEEP: Duration = Duration::from_secs(1);
/// Flows of a host that are older than this, by its clock, are not live.
const MOST_BEHIND_NS: u64 = 600_000_000_000;
/// The most left-out hosts to remember.
const MOST_REMEMBERED: usize = 10_000;

/// What is missing on the stream itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub lost_records: u64,
    pub gaps: u64,
    pub missed_scans: u64,
    /// How often the sums started over, because another agent answered or the collector restarted the stream.
    pub restarts: u64,
    /// A collector's agents that have ended. Their sums are left out.
    pub ended: u64,
}

#[derive(Clone)]
pub struct Fleet {
    hosts: BTreeMap<Arc<Sender>, Host>,
    is_collector: bool,
    every: Duration,
    /// The time of the last tick, and of the last sweep.
    now: Instant,
    swept: Instant,
    /// The time of day.
    now_unix_ns: Option<u64>,
    pub missing: Missing,
    /// Hosts beyond [`MOST_HOSTS`] or [`MOST_OF_MACHINE`].
    left_out: BTreeSet<Arc<Sender>>,
}

impl Fleet {
    /// For scans that are asked for this often.
    pub fn new(every: Duration, is_collector: bool, now: Instant) -> Self {
        Self {
            hosts: BTreeMap::new(),
            is_collector,
            every,
            now,
            swept: now,
            now_unix_ns: None,
            missing: Missing::default(),
            left_out: BTreeSet::new(),
        }
    }

    /// Adds a batch. Returns whether there is something new to show.
    pub fn add_batch(&mut self, batch: FlowBatch, now: Instant) -> bool {
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
            return host.add_batch(&batch, now);
        }
        self.is_collector = true;
        self.take_from_collector(batch)
    }

    /// Scans of many hosts come at the same time, so each waits until it is complete.
    fn take_from_collector(&mut self, batch: FlowBatch) -> bool {
        let Some(agent) = &batch.agent else {
            return false;
        };
        let sender = Arc::new(Sender {
            identity: agent.identity.clone(),
            agent_id: agent.agent_id.clone(),
            instance_id: agent.instance_id.clone(),
        });
        let now = self.now;
        let is_new = !self.hosts.contains_key(&sender);
        if is_new {
            let host = Host::new(&sender, self.every, now);
            self.hosts.insert(Arc::clone(&sender), host);
            self.forget_surplus(&sender);
            self.share_room();
        }
        let Some(host) = self.hosts.get_mut(&sender) else {
            return false;
        };
        let had_scan = host.has_scan;
        let is_complete = host.accept(batch, now);
        if is_complete && !had_scan {
            // The next tick looks for other hosts of this name.
            host.describe(true);
        }
        if host.waiting_bytes() > 0 {
            self.limit_waiting(&sender.identity);
        }
        if now.saturating_duration_since(self.swept) >= SWEEP {
            self.sweep();
        }
        is_complete
    }

    /// Shows the incomplete scans of an identity that holds too much memory for them.
    fn limit_waiting(&mut self, identity: &str) {
        let mut waiting: HashMap<&str, usize> = HashMap::new();
        for host in self.hosts.values() {
            *waiting.entry(&host.sender.identity).or_default() += host.waiting_bytes();
        }
        let total: usize = waiting.values().sum();
        let too_much = if waiting.get(identity).copied() > Some(MOST_WAITING_OF_ONE) {
            Some(identity.to_owned())
        } else if total > MOST_WAITING {
            let most = waiting.into_iter().max_by_key(|(_, bytes)| *bytes);
            most.map(|(identity, _)| identity.to_owned())
        } else {
            None
        };
        for host in self.hosts.values_mut() {
            if Some(&host.sender.identity) == too_much.as_ref() {
                host.show();
            }
        }
    }

    /// Leaves out a host if there are too many, or too many of this one's machine.
    fn forget_surplus(&mut self, newest: &Arc<Sender>) {
        let now = self.now;
        let of_machine = self.hosts.values();
        let of_machine = of_machine.filter(|host| host.sender.machine() == newest.machine());
        let of_machine: Vec<_> = of_machine.collect();
        let others = || {
            let others = of_machine.iter().copied();
            others.filter(|host| host.sender != *newest)
        };
        let least_heard = |host: &&Host| Reverse(host.silence(now));
        let victim = if of_machine.len() > MOST_OF_MACHINE {
            others().min_by_key(least_heard)
        } else if self.hosts.len() > MOST_HOSTS {
            let silent = self.hosts().filter(|host| self.is_silent(host));
            silent.min_by_key(least_heard).or_else(|| {
                let mut numbers: HashMap<&str, usize> = HashMap::new();
                for host in self.hosts() {
                    *numbers.entry(&host.sender.identity).or_default() += 1;
                }
                let crowd = |host: &&Host| {
                    Reverse((numbers[host.sender.identity.as_str()], host.silence(now)))
                };
                self.hosts().min_by_key(crowd)
            })
        } else {
            None
        };
        if let Some(sender) = victim.map(|host| Arc::clone(&host.sender)) {
            self.hosts.remove(&sender);
            if self.left_out.len() < MOST_REMEMBERED {
                self.left_out.insert(sender);
            }
        }
    }

    /// Forgets hosts that are silent for long, have ended, or were started again.
    fn sweep(&mut self) {
        let now = self.now;
        self.swept = now;
        // For each machine, when its latest agent with a complete scan appeared.
        let mut latest: HashMap<(&str, &str), Instant> = HashMap::new();
        for host in self.hosts.values().filter(|host| host.has_scan) {
            let since = latest.entry(host.sender.machine()).or_insert(host.since);
            *since = host.since.max(*since);
        }
        let has_ended = |host: &Host| {
            let window = host.picture.length().unwrap_or_default();
            let later = latest.get(&host.sender.machine());
            let later = later.filter(|_| !host.sender.agent_id.is_empty());
            let is_missed = host.silence(now) > window * 3 / 2 + LAST_SHOWN;
            host.has_ended && host.silence(now) > window.max(LAST_SHOWN)
                || is_missed && later.is_some_and(|since| *since > host.heard)
        };
        let is_forgotten =
            |host: &Host| host.silence(now) > host.longest_silence() + FORGOTTEN_AFTER;
        let (ended, forgotten): (Vec<_>, Vec<_>) = self
            .hosts
            .values()
            .filter(|host| has_ended(host) || is_forgotten(host))
            .map(|host| (Arc::clone(&host.sender), has_ended(host)))
            .partition(|(_, has_ended)| *has_ended);
        self.missing.ended += ended.len() as u64;
        for (sender, _) in ended.into_iter().chain(forgotten) {
            self.hosts.remove(&sender);
        }
        self.share_room();
    }

    /// Divides half of the room equally among identities, and each identity's part among its hosts. Divides the other
    /// half in the same way among those that could use more.
    fn share_room(&mut self) {
        let mut wanted: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for host in self.hosts.values() {
            let identity = wanted.entry(&host.sender.identity).or_default();
            identity.push(host.wanted_rows());
        }
        let least = ROOM / 2 / wanted.len().max(1);
        let sums: Vec<usize> = wanted
            .values()
            .map(|hosts| {
                hosts
                    .iter()
                    .fold(0_usize, |sum, one| sum.saturating_add(*one))
            })
            .map(|sum| sum.saturating_sub(least))
            .collect();
        let shares = shared(ROOM / 2, &sums);
        let rooms: Vec<usize> = wanted
            .values()
            .zip(shares)
            .flat_map(|(hosts, share)| {
                let each = least / hosts.len();
                let more: Vec<usize> = hosts.iter().map(|one| one.saturating_sub(each)).collect();
                let more = shared(share, &more);
                more.into_iter().map(move |more| each + more)
            })
            .collect();
        // Hosts are sorted by identity.
        for (host, room) in self.hosts.values_mut().zip(rooms) {
            host.picture.room = Some(room.clamp(1, MOST_FLOWS));
        }
    }

    /// Gives each host a label of its own.
    fn describe(&mut self) {
        let mut names: HashMap<String, usize> = HashMap::new();
        for host in self.hosts.values() {
            *names.entry(host.picture.hostname.clone()).or_default() += 1;
        }
        for host in self.hosts.values_mut() {
            let is_unique = names[&host.picture.hostname] == 1;
            host.describe(is_unique);
        }
    }

    /// Advances the time. Returns whether that changes the screen.
    pub fn tick(&mut self, now: Instant, now_unix_ns: u64) -> bool {
        (self.now, self.now_unix_ns) = (now, Some(now_unix_ns));
        if !self.is_collector {
            return false;
        }
        let before = (self.hosts.len(), self.silent());
        if now.saturating_duration_since(self.swept) >= SWEEP {
            self.sweep();
        }
        self.describe();
        let after = (self.hosts.len(), self.silent());
        // The screen shows how long a host has been silent.
        after != before || after.1 > 0
    }

    /// The number of hosts whose flows are not shown, because nothing has come from them for too long.
    pub fn silent(&self) -> usize {
        self.hosts().filter(|host| self.is_silent(host)).count()
    }

    /// The number of hosts without a complete scan.
    pub fn beginning(&self) -> usize {
        let beginning = self.hosts().filter(|host| !host.has_scan);
        beginning.filter(|host| !self.is_silent(host)).count()
    }

    /// The number of hosts that are left out because there are too many.
    pub fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// Whether a host's last figures are too old to be shown.
    pub fn is_silent(&self, host: &Host) -> bool {
        self.is_collector && host.silence(self.now) > host.longest_silence()
    }

    /// How long ago a host's last batch came.
    pub fn silence(&self, host: &Host) -> Duration {
        host.silence(self.now)
    }

    /// How old the last figures of a host are, if they are too old for live ones: its agent sends what it had kept.
    pub fn is_behind(&self, host: &Host) -> Option<Duration> {
        let age = self.now_unix_ns?.saturating_sub(host.picture.end_unix_ns);
        let is_old = self.is_collector && age > MOST_BEHIND_NS;
        is_old.then_some(Duration::from_nanos(age))
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> + Clone {
        self.hosts.values()
    }

    /// Those whose flows are shown.
    pub fn shown(&self) -> impl Iterator<Item = &Host> + Clone {
        self.hosts()
            .filter(|host| host.has_scan && !self.is_silent(host))
    }

    pub fn is_collector(&self) -> bool {
        self.is_collector
    }

    /// The only host of an agent's own stream. `None` before its first batch.
    pub fn agent(&self) -> Option<&Host> {
        self.hosts().next().filter(|_| !self.is_collector)
    }

    /// Flows that agents track, and the number of agents that do not say.
    pub fn tracked_flows(&self) -> (u64, usize) {
        let flows = || self.shown().map(|host| host.picture.tracked_flows);
        let sum = flows().flatten().fold(0_u64, u64::saturating_add);
        (sum, flows().filter(Option::is_none).count())
    }

    /// Whether the sums of an agent's window are still incomplete. Those of a collector's hosts are shown once they are complete.
    pub fn is_partial(&self) -> bool {
        self.agent().is_some_and(|host| host.picture.is_partial())
    }

    /// Stops waiting for the rest of the scan, because it takes too long: shows the sums so far.
    pub fn take_as_whole(&mut self) {
        if !self.is_collector {
            let pictures = self.hosts.values_mut().map(|host| &mut host.picture);
            pictures.for_each(Picture::take_as_whole);
        }
    }

    /// The windows of an agent that are long enough for rates.
    pub fn windows(&self) -> u64 {
        self.agent().map_or(0, |host| host.picture.windows())
    }

    /// The longest time that the rates of a host cover.
    pub fn longest_window(&self) -> Option<Duration> {
        self.shown().filter_map(|host| host.picture.length()).max()
    }

    /// Resets the sums: the stream has started again.
    pub fn restart(&mut self, is_collector: bool) {
        self.hosts.clear();
        self.is_collector = is_collector;
    }

    /// An empty one with windows of the same kind.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self::new(self.every, self.is_collector, self.now)
    }
}

/// Divides the room equally. Those that want less leave the rest to the others.
fn shared(mut room: usize, wanted: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&at| wanted[at]);
    let mut shares = vec![0; wanted.len()];
    for (at, left) in order.into_iter().zip((1..=wanted.len()).rev()) {
        shares[at] = wanted[at].min(room / left);
        room -= shares[at];
    }
    shares
}
