//! The sums of a stream's flows: the total, and by peer, process, unit and interface.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::Duration,
};

use agent_common::Pair;
use bytes::Bytes;
use formats::{flow_key::FlowKey, human, names::Names};
use proto::{Account, Direction, FlowBatch, FlowRecord};

use super::{
    View,
    windows::{HISTORY, Windows},
};

/// The most flows kept after a scan: those with the most bytes in its window, then those with the most bytes overall.
/// Each takes a kilobyte.
pub const MOST_FLOWS: usize = 20_000;
/// The most rows of all other views together.
pub const MOST_GROUPS: usize = 20_000;

/// Two directions: `[0]` is from the initiator, from the group, or egress; `[1]` is the other direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
}

impl Traffic {
    /// Since the flow's last record.
    fn delta(record: &FlowRecord) -> Self {
        Self {
            packets: [record.src().delta_packets, record.dst().delta_packets],
            bytes: [record.src().delta_bytes, record.dst().delta_bytes],
        }
    }

    /// Since the flow's first packet.
    fn total(record: &FlowRecord) -> Self {
        Self {
            packets: [record.src().total_packets, record.dst().total_packets],
            bytes: [record.src().total_bytes, record.dst().total_bytes],
        }
    }

    fn reversed(mut self) -> Self {
        self.packets.reverse();
        self.bytes.reverse();
        self
    }

    pub fn add(&mut self, other: Self) {
        // An agent that sends nonsense shows nonsense.
        for direction in [0, 1] {
            self.packets[direction] =
                self.packets[direction].saturating_add(other.packets[direction]);
            self.bytes[direction] = self.bytes[direction].saturating_add(other.bytes[direction]);
        }
    }

    pub fn all_packets(self) -> u64 {
        self.packets[0].saturating_add(self.packets[1])
    }

    pub fn all_bytes(self) -> u64 {
        self.bytes[0].saturating_add(self.bytes[1])
    }
}

/// The traffic of a row in one window.
#[derive(Clone, Copy, Debug, Default)]
struct InWindow {
    traffic: Traffic,
    /// Flows that had packets in it.
    flows: u64,
    /// The ones that also had packets in the window before.
    flows_again: u64,
}

/// The figures of a row.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub total: Traffic,
    /// In the window with the number `window`, and in the one before it.
    last: InWindow,
    before: InWindow,
    window: u64,
    /// The last name seen for a peer.
    pub host: Option<String>,
    /// Bytes per window in both directions, up to that window.
    history: VecDeque<u64>,
}

impl Figures {
    fn begin(&mut self, window: u64) {
        if self.window == window {
            return;
        }
        let missed = usize::try_from(window - self.window).unwrap_or(usize::MAX);
        for _ in 0..missed.min(HISTORY) {
            self.history.push_back(0);
        }
        self.history
            .drain(..self.history.len().saturating_sub(HISTORY));
        [self.last, self.before] = self.at(window);
        self.window = window;
    }

    /// Adds traffic of this window.
    fn add(&mut self, traffic: Traffic, window: u64) {
        self.begin(window);
        self.last.traffic.add(traffic);
        if let Some(last) = self.history.back_mut() {
            *last = last.saturating_add(traffic.all_bytes());
        }
    }

    /// In this window, which is not before the row's, and in the one before it.
    fn at(&self, window: u64) -> [InWindow; 2] {
        match window - self.window {
            0 => [self.last, self.before],
            1 => [InWindow::default(), self.last],
            _ => Default::default(),
        }
    }

    /// The traffic to show, and the number of flows that had packets in it.
    fn recent(&self, windows: &Windows) -> (Traffic, u64) {
        let [last, before] = self.at(windows.last());
        if !windows.are_joined() {
            return (last.traffic, last.flows);
        }
        let mut traffic = before.traffic;
        traffic.add(last.traffic);
        (traffic, before.flows + last.flows - last.flows_again)
    }
}

/// A flow, with its latest record.
#[derive(Clone, Debug)]
pub struct Flow {
    pub record: FlowRecord,
    pub figures: Figures,
    pub interface: Option<String>,
    pub units: [Option<String>; 2],
    pub processes: [Option<String>; 2],
    pub hosts: [Option<String>; 2],
}

impl Flow {
    /// The endpoints, with names instead of addresses where known.
    pub fn endpoints(&self) -> [String; 2] {
        let [src, dst] = self.record.ends();
        let [source, destination] = self.hosts.each_ref().map(Option::as_deref);
        [human::end(source, src), human::end(destination, dst)]
    }
}

/// `443/tcp`, or the protocol alone if it has no ports.
fn service(record: &FlowRecord) -> String {
    let protocol = human::protocol(record);
    match record.dst().port {
        Some(port) => format!("{port}/{protocol}"),
        None => protocol,
    }
}

/// Reasons why the figures may be wrong or incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub forgotten_rows: u64,
    pub refused_in_window: bool,
    /// One flow in this many is counted; 0 is every flow.
    pub sample_rate: u32,
    /// How much later than the scan that counted them packets may be reported.
    pub report_interval: Duration,
}

#[derive(Clone, Default)]
pub struct Picture {
    flows: HashMap<FlowKey, Flow>,
    groups: HashMap<(View, String), Figures>,
    /// Index 0 is egress, index 1 is ingress.
    all: Figures,
    names: Names,
    /// Before the first, only totals are known.
    windows: Windows,
    /// Whether the table refused packets in the last window, and in the one before it.
    refused: [bool; 2],
    /// The scan's number, and whether this is a snapshot after it.
    scan: (u64, bool),
    /// More batches of the scan will follow.
    is_partial: bool,
    /// The most flows and the most other rows to keep, if many pictures share the room for them.
    pub room: Option<usize>,
    pub hostname: String,
    pub end_unix_ns: u64,
    pub tracked_flows: Option<u64>,
    pub account: Option<Account>,
    pub missing: Missing,
}

impl Picture {
    /// For scans that are asked for this often.
    pub fn of(every: Duration) -> Self {
        Self {
            windows: Windows::of(every),
            ..Self::default()
        }
    }

    /// Adds a batch. Returns whether it is the last one of its scan.
    pub fn add_batch(&mut self, batch: &FlowBatch) -> bool {
        if batch.scan_id == 0 && !batch.snapshot {
            // Such a batch only reports losses at the end of a stream.
            return true;
        }
        // The first batch of a scan may be lost.
        let scan = (batch.scan_id, batch.snapshot);
        if batch.batch_index == 0 || scan != self.scan {
            self.scan = scan;
            self.begin(batch);
        }
        self.names.note(batch);
        for record in &batch.records {
            self.take_record(record, batch.snapshot);
        }
        self.missing.sample_rate = batch.sample_rate;
        self.missing.report_interval = Duration::from_nanos(batch.report_interval_ns);
        if self.flows.len() > 2 * self.share_of(MOST_FLOWS) {
            self.forget_flows();
        }
        if self.groups.len() > 2 * self.share_of(MOST_GROUPS) {
            self.forget_groups();
        }
        self.is_partial = !batch.last_of_scan;
        if self.is_partial {
            return false;
        }
        self.tracked_flows = batch.tracked_flows;
        self.refused[0] |= batch.refused_in_window;
        let shown = 1 + usize::from(self.windows.are_joined());
        self.missing.refused_in_window = self.refused[..shown].contains(&true);
        self.account.clone_from(&batch.account);
        self.forget_flows();
        self.forget_groups();
        true
    }

    fn begin(&mut self, batch: &FlowBatch) {
        if self.room.is_some() {
            // Many pictures together would remember too much.
            self.names = Names::default();
        }
        self.names.forget_senders();
        self.missing.forgotten_rows = 0;
        self.end_unix_ns = batch.window_end_unix_ns;
        if let Some(agent) = &batch.agent {
            self.hostname.clone_from(&agent.hostname);
        }
        if batch.snapshot {
            return;
        }
        let length = batch
            .window_end_unix_ns
            .saturating_sub(batch.window_start_unix_ns);
        let before = self.windows.last();
        self.windows.add(Duration::from_nanos(length));
        if self.windows.last() != before {
            self.refused = [false, self.refused[0]];
        }
        self.all.begin(self.windows.last());
        // Flows that ended stay as long as the traffic that is shown has theirs.
        let shown = self.windows.last() - u64::from(self.windows.are_joined());
        self.flows
            .retain(|_, flow| flow.record.end_reason.is_none() || flow.figures.window >= shown);
    }

    fn take_record(&mut self, record: &FlowRecord, is_snapshot: bool) {
        let delta = Traffic::delta(record);
        // A snapshot's traffic was counted before the windows shown.
        let window = (!is_snapshot).then_some(self.windows.last());
        let count = |figures: &mut Figures, traffic: Traffic| {
            figures.total.add(traffic);
            if let Some(window) = window {
                figures.add(traffic, window);
            }
        };
        let [forward, reverse] = record.directions();
        let is_out = |side: Direction| side == Direction::Egress;
        // As ingress and egress of the interface.
        let mut at_interface = Traffic::default();
        for (direction, side) in [forward, reverse].into_iter().enumerate() {
            let to = usize::from(!is_out(side));
            let mut one = Traffic::default();
            one.packets[to] = delta.packets[direction];
            one.bytes[to] = delta.bytes[direction];
            at_interface.add(one);
        }
        count(&mut self.all, at_interface);

        let [units, processes] = [self.names.units(record), self.names.processes(record)]
            .map(|ends| ends.map(|end| end.map(str::to_owned)));
        let hosts = self.names.hosts(record);
        let interface = self.names.interface(record).cloned();
        let place = interface.clone().unwrap_or_default();
        let (peer, host, with_peer) = if is_out(forward) {
            (&record.dst().addr, &hosts[1], delta)
        } else {
            (&record.src().addr, &hosts[0], delta.reversed())
        };
        let peer = human::endpoint(peer, None);
        // A peer is identified by its address. If flows use several names for it, the last one is shown.
        if let Some(host) = host {
            let peer = self.groups.entry((View::Peers, peer.clone()));
            peer.or_default().host = Some(host.clone());
        }
        let name = host.clone().unwrap_or_default();
        let mut groups = vec![
            (View::Interfaces, place, at_interface),
            (View::Names, name, with_peer),
            (View::Services, service(record), at_interface),
            (View::Peers, peer, with_peer),
        ];
        for (view, ends) in [(View::Units, &units), (View::Processes, &processes)] {
            match ends {
                [None, None] => groups.push((view, String::new(), at_interface)),
                [Some(source), Some(destination)] if source == destination => {
                    let mut all = delta;
                    all.add(delta.reversed());
                    groups.push((view, source.clone(), all));
                }
                [source, destination] => {
                    let ends = [(source, delta), (destination, delta.reversed())];
                    let named = ends.into_iter().filter_map(|(name, traffic)| {
                        Some((view, name.as_ref()?.clone(), traffic))
                    });
                    groups.extend(named);
                }
            }
        }
        let record = detached(record);
        let flow = self
            .flows
            .entry(FlowKey::of(&record))
            .or_insert_with(|| Flow {
                record: FlowRecord::default(),
                figures: Figures::default(),
                interface: None,
                units: [None, None],
                processes: [None, None],
                hosts: [None, None],
            });
        let [is_counted, is_again] = flow
            .figures
            .at(self.windows.last())
            .map(|one| one.traffic.all_packets() > 0);
        let is_first = window.is_some() && !is_counted;
        if is_first && delta.all_packets() > 0 {
            self.all.last.flows += 1;
            self.all.last.flows_again += u64::from(is_again);
        }
        for (view, name, traffic) in groups {
            let figures = self.groups.entry((view, name)).or_default();
            count(figures, traffic);
            // A flow that was left out counts with each scan.
            if is_first && traffic.all_packets() > 0 {
                figures.last.flows += 1;
                // Its unit, process or name may be known only now.
                let was_here = figures.before.flows > 0;
                figures.last.flows_again += u64::from(is_again && was_here);
            }
        }

        if let Some(window) = window {
            flow.figures.add(delta, window);
        }
        flow.figures.total = Traffic::total(&record);
        flow.record = record;
        (flow.interface, flow.units, flow.processes) = (interface, units, processes);
        flow.hosts = hosts;
    }

    /// Keeps the flows with the most bytes in this window, then those with the most bytes overall.
    fn forget_flows(&mut self) {
        let rank = |flow: &Flow| rank(&flow.figures, &self.windows);
        let most = self.share_of(MOST_FLOWS);
        self.missing.forgotten_rows += keep_most(&mut self.flows, most, rank);
    }

    fn forget_groups(&mut self) {
        let rank = |figures: &Figures| rank(figures, &self.windows);
        let most = self.share_of(MOST_GROUPS);
        self.missing.forgotten_rows += keep_most(&mut self.groups, most, rank);
    }

    /// The most rows that this picture keeps, where one alone would keep `most`.
    fn share_of(&self, most: usize) -> usize {
        self.room.map_or(most, |room| room.min(most))
    }

    /// Flows, or rows of all other views, whichever are more.
    pub fn rows(&self) -> usize {
        self.flows.len().max(self.groups.len())
    }

    pub fn flows(&self) -> impl Iterator<Item = (&FlowKey, &Flow)> {
        self.flows.iter()
    }

    /// The groups of a view, by name.
    pub fn groups(&self, view: View) -> impl Iterator<Item = (&str, &Figures)> {
        let groups = self.groups.iter().filter(move |((of, _), _)| *of == view);
        groups.map(|((_, name), figures)| (name.as_str(), figures))
    }

    pub fn flow(&self, key: &FlowKey) -> Option<&Flow> {
        self.flows.get(key)
    }

    pub fn all(&self) -> &Figures {
        &self.all
    }

    /// The traffic of the last window, and the number of flows that had packets in it.
    pub fn recent(&self, figures: &Figures) -> (Traffic, u64) {
        figures.recent(&self.windows)
    }

    /// Whether the window's sums are still incomplete.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Stops waiting for the rest of the scan, because it takes too long: shows the sums so far.
    pub fn take_as_whole(&mut self) {
        self.is_partial = false;
    }

    pub fn scan_id(&self) -> u64 {
        self.scan.0
    }

    /// The windows that are long enough for rates.
    pub fn windows(&self) -> u64 {
        self.windows.last() - u64::from(self.windows.is_short())
    }

    /// The time that rates cover. `None` before the first window.
    pub fn length(&self) -> Option<Duration> {
        self.windows.length()
    }

    /// The longest of the last windows.
    pub fn longest_window(&self) -> Duration {
        self.windows.lengths().max().unwrap_or_default()
    }

    /// A count of the last window, per second.
    pub fn per_second(&self, count: u64) -> f64 {
        by_second(count, self.length().unwrap_or_default())
    }

    /// Bits per second in the last windows, the latest last.
    pub fn history(&self, figures: &Figures) -> Vec<u64> {
        let idle = usize::try_from(self.windows.last() - figures.window).unwrap_or(usize::MAX);
        let idle = std::iter::repeat_n(0, idle.min(HISTORY));
        let bytes = idle.chain(figures.history.iter().rev().copied());
        let skipped = usize::from(self.windows.are_joined());
        let newest_first = bytes.skip(skipped).zip(self.windows.lengths());
        let mut rates: Vec<_> = newest_first
            .map(|(bytes, length)| rounded(by_second(bytes.saturating_mul(8), length)))
            .collect();
        rates.reverse();
        rates
    }

    /// An empty one with windows of the same kind.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self {
            windows: self.windows.renewed(),
            room: self.room,
            ..Self::default()
        }
    }
}

/// A copy that does not keep the memory of the message in which it came.
fn detached(record: &FlowRecord) -> FlowRecord {
    let mut record = record.clone();
    let detach = |bytes: &mut Bytes| *bytes = Bytes::copy_from_slice(bytes);
    detach(&mut record.community_id);
    detach(&mut record.nat_community_id);
    for end in [&mut record.src, &mut record.dst].into_iter().flatten() {
        detach(&mut end.addr);
        detach(&mut end.outer_addr);
        detach(&mut end.nat_addr);
    }
    record
}

fn by_second(count: u64, length: Duration) -> f64 {
    let seconds = length.as_secs_f64();
    if seconds == 0.0 {
        return 0.0;
    }
    count as f64 / seconds
}

/// The next whole number of a rate.
pub fn rounded(rate: f64) -> u64 {
    // A float out of range is clamped.
    #[expect(clippy::cast_sign_loss, reason = "no count is negative")]
    let rounded = rate.round() as u64;
    rounded
}

fn rank(figures: &Figures, windows: &Windows) -> (u64, u64) {
    let (recent, _) = figures.recent(windows);
    (recent.all_bytes(), figures.total.all_bytes())
}

/// Returns how many entries were removed.
fn keep_most<K: Clone + Eq + Hash, V, R: Ord + Copy>(
    all: &mut HashMap<K, V>,
    most: usize,
    rank: impl Fn(&V) -> R,
) -> u64 {
    let Some(surplus) = all.len().checked_sub(most).filter(|&surplus| surplus > 0) else {
        return 0;
    };
    let mut ranks: Vec<_> = all
        .iter()
        .map(|(key, value)| (rank(value), key.clone()))
        .collect();
    ranks.select_nth_unstable_by_key(surplus, |(rank, _)| *rank);
    for (_, key) in &ranks[..surplus] {
        all.remove(key);
    }
    surplus as u64
}

/// Whether the account has every packet that was seen.
pub fn closes(account: &Account) -> bool {
    account.missing() == Pair::default()
}
