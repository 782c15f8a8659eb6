//! Sorts the rows of a view and formats their cells.

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use formats::{
    cells::{
        age, both, direction, ends, place, protocol, round_trip, round_trips, short_unit, state,
    },
    columns::Columns,
    flow_key::FlowKey,
    human,
};
use proto::FlowRecord;

use super::{
    Sort, View,
    fleet::{Fleet, Host, Sender},
    picture::{Figures, Flow, Traffic, rounded},
};

/// What a row shows.
#[derive(Clone, Copy)]
pub enum Of<'a> {
    Flow(&'a FlowKey, &'a Flow),
    /// The name is empty for the group of flows without one.
    Group(&'a str),
}

/// Identifies a row across redraws.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Id {
    Flow(Arc<Sender>, Box<FlowKey>),
    /// The group's name, and whose it is unless it is of all hosts. The name is empty for the group of flows without one.
    Group(View, Option<Arc<Sender>>, String),
}

pub struct Row<'a> {
    pub of: Of<'a>,
    /// The host, if the row is of one alone.
    pub host: Option<&'a Host>,
    /// Traffic of the last window of each host, and the number of flows that had packets in it.
    pub recent: Traffic,
    pub flows: u64,
    pub total: Traffic,
    /// Bits and packets per second, the sums of all hosts. Many small ones are rounded together.
    bits: [f64; 2],
    packets: [f64; 2],
    /// The last name seen for a peer, at the host with the most bytes to and from it.
    pub called: Option<&'a str>,
    most_bytes: u64,
    /// Whether nothing has come from its host for too long, so that it has no rates.
    pub is_silent: bool,
    /// The figures at each host: at least one.
    parts: Vec<(&'a Host, &'a Figures)>,
}

impl<'a> Row<'a> {
    fn new(of: Of<'a>, host: &'a Host, figures: &'a Figures) -> Self {
        let mut row = Self {
            of,
            host: Some(host),
            recent: Traffic::default(),
            flows: 0,
            total: Traffic::default(),
            bits: [0.0; 2],
            packets: [0.0; 2],
            called: None,
            most_bytes: 0,
            is_silent: false,
            parts: Vec::with_capacity(1),
        };
        row.add(host, figures);
        row
    }

    fn add(&mut self, host: &'a Host, figures: &'a Figures) {
        let picture = &host.picture;
        let (recent, flows) = picture.recent(figures);
        for direction in [0, 1] {
            let bits = recent.bytes[direction].saturating_mul(8);
            self.bits[direction] += picture.per_second(bits);
            self.packets[direction] += picture.per_second(recent.packets[direction]);
        }
        self.recent.add(recent);
        self.total.add(figures.total);
        self.flows = self.flows.saturating_add(flows);
        let bytes = figures.total.all_bytes();
        if figures.host.is_some() && (self.called.is_none() || bytes > self.most_bytes) {
            (self.called, self.most_bytes) = (figures.host.as_deref(), bytes);
        }
        self.parts.push((host, figures));
    }

    /// The same of a host whose last window was too long ago to be shown.
    fn silenced(self) -> Self {
        Self {
            is_silent: true,
            recent: Traffic::default(),
            flows: 0,
            bits: [0.0; 2],
            packets: [0.0; 2],
            ..self
        }
    }

    /// The sums of all hosts that are shown. `None` without any.
    pub fn of_all(fleet: &'a Fleet) -> Option<Self> {
        let mut hosts = fleet.shown();
        let first = hosts.next()?;
        let mut row = Self::new(Of::Group(""), first, first.picture.all());
        for host in hosts {
            row.add(host, host.picture.all());
            row.host = None;
        }
        Some(row)
    }

    /// Bits per second in both directions.
    pub fn bits(&self) -> [u64; 2] {
        self.bits.map(rounded)
    }

    /// Packets per second in both directions.
    pub fn packets(&self) -> [u64; 2] {
        self.packets.map(rounded)
    }

    pub fn id(&self, view: View) -> Id {
        let sender = self.host.map(|host| Arc::clone(&host.sender));
        match self.of {
            Of::Flow(key, _) => Id::Flow(sender.unwrap_or_default(), Box::new(key.clone())),
            // Another host may have it, too, in the next window.
            Of::Group(name) if view.is_of_all_hosts() => Id::Group(view, None, name.to_owned()),
            Of::Group(name) => Id::Group(view, sender, name.to_owned()),
        }
    }

    pub fn has_ended(&self) -> bool {
        match self.of {
            Of::Flow(_, flow) => flow.record.end_reason.is_some(),
            Of::Group(_) => false,
        }
    }

    /// Whether it is a flow that only ended within the shown traffic, without packets.
    pub fn is_only_an_end(&self) -> bool {
        self.has_ended() && self.recent.all_packets() == 0
    }

    /// Bits per second in the last windows, the latest last. Windows of several hosts are added up from the latest one on, if
    /// they are about as long as each other; else there is no history.
    pub fn history(&self) -> Vec<u64> {
        let lengths = || {
            self.parts
                .iter()
                .filter_map(|(host, _)| host.picture.length())
        };
        let (shortest, longest) = (lengths().min(), lengths().max());
        if shortest.map(|shortest| shortest * 5 / 4) < longest {
            return Vec::new();
        }
        let mut sums = Vec::new();
        for (host, figures) in &self.parts {
            let history = host.picture.history(figures);
            if sums.len() < history.len() {
                sums.resize(history.len(), 0_u64);
            }
            for (sum, bits) in sums.iter_mut().zip(history.into_iter().rev()) {
                *sum = sum.saturating_add(bits);
            }
        }
        sums.reverse();
        sums
    }

    /// The time that `recent` covers. `None` before the first window, and if it differs between hosts.
    pub fn window(&self) -> Option<Duration> {
        let mut lengths = self.parts.iter().map(|(host, _)| host.picture.length());
        let first = lengths.next()?;
        first.filter(|_| lengths.all(|length| length == first))
    }

    /// The names of its hosts.
    pub fn hosts(&self) -> Vec<&'a str> {
        self.parts
            .iter()
            .map(|(host, _)| host.label.as_str())
            .collect()
    }

    /// The host of the row, or how many it has.
    fn at(&self) -> String {
        match self.host {
            Some(host) => host.label.clone(),
            None => format!("{} hosts", self.parts.len()),
        }
    }

    fn name(&self) -> (&str, String) {
        let label = self.host.map_or("", |host| host.label.as_str());
        match self.of {
            Of::Flow(_, flow) => (label, flow.endpoints()[0].clone()),
            Of::Group(name) => (label, name.to_owned()),
        }
    }

    /// The sort key. Larger keys come first.
    fn rank(&self, sort: Sort) -> [u64; 2] {
        let of_flow = |rank: fn(&Flow) -> Option<u64>| match self.of {
            Of::Flow(_, flow) => rank(flow).map_or(0, |rank| rank.saturating_add(1)),
            Of::Group(_) => 0,
        };
        let sum = |[one, other]: [f64; 2]| rounded(one + other);
        match sort {
            Sort::Rate => [sum(self.bits), self.recent.all_bytes()],
            Sort::Sent => [rounded(self.bits[0]), self.recent.bytes[0]],
            Sort::Received => [rounded(self.bits[1]), self.recent.bytes[1]],
            Sort::Packets => [sum(self.packets), self.recent.all_packets()],
            Sort::Bytes => [self.total.all_bytes(), 0],
            Sort::Flows => [self.flows, 0],
            Sort::Name => [0, 0],
            Sort::Rtt => [of_flow(|flow| worst(round_trips(&flow.record))), 0],
            Sort::Retrans => [of_flow(|flow| worst(retransmissions(&flow.record))), 0],
            Sort::Newest => [of_flow(|flow| Some(flow.record.first_seen_unix_ns)), 0],
        }
    }
}

/// The larger value of the two ends.
fn worst(ends: [Option<u32>; 2]) -> Option<u64> {
    ends.into_iter().flatten().max().map(u64::from)
}

fn retransmissions(record: &FlowRecord) -> [Option<u32>; 2] {
    record.ends().map(|end| end.tcp_total_retrans)
}

/// Ties are sorted by bytes, then by name, so that rows keep their places.
pub fn rows(fleet: &Fleet, view: View, sort: Sort, is_reversed: bool) -> Vec<Row<'_>> {
    let mut rows = unsorted(fleet, view);
    let named = |row: &Row<'_>| {
        let (label, name) = row.name();
        (name, label.to_owned())
    };
    if sort == Sort::Name {
        rows.sort_by_cached_key(named);
    } else {
        let key = |row: &Row<'_>| (Reverse(row.rank(sort)), Reverse(row.total.all_bytes()));
        // Names take longer to make, and few rows are equal otherwise.
        rows.sort_by(|one, other| {
            let order = key(one).cmp(&key(other));
            order.then_with(|| named(one).cmp(&named(other)))
        });
    }
    if is_reversed {
        rows.reverse();
    }
    rows
}

/// The row with this identity, whether or not its flow has ended.
pub fn row<'a>(fleet: &'a Fleet, view: View, id: &Id) -> Option<Row<'a>> {
    let mut rows = unsorted(fleet, view).into_iter();
    rows.find(|row| row.id(view) == *id)
}

fn unsorted<'a>(fleet: &'a Fleet, view: View) -> Vec<Row<'a>> {
    match view {
        View::Flows => {
            let flows = fleet.shown().flat_map(|host| {
                let flows = host.picture.flows();
                flows.map(move |(key, flow)| Row::new(Of::Flow(key, flow), host, &flow.figures))
            });
            flows.collect()
        }
        View::Hosts => {
            let row = |host: &'a Host| {
                let row = Row::new(Of::Group(&host.label), host, host.picture.all());
                if fleet.is_silent(host) {
                    row.silenced()
                } else {
                    row
                }
            };
            fleet
                .hosts()
                .filter(|host| host.has_scan)
                .map(row)
                .collect()
        }
        View::Interfaces | View::Units | View::Processes => {
            let groups = fleet.shown().flat_map(|host| {
                let groups = host.picture.groups(view);
                groups.map(move |(name, figures)| Row::new(Of::Group(name), host, figures))
            });
            groups.collect()
        }
        View::Peers | View::Names | View::Services => {
            let mut rows: HashMap<&str, Row<'a>> = HashMap::new();
            for host in fleet.shown() {
                for (name, figures) in host.picture.groups(view) {
                    match rows.entry(name) {
                        Entry::Occupied(row) => {
                            let row = row.into_mut();
                            row.add(host, figures);
                            row.host = None;
                        }
                        Entry::Vacant(place) => {
                            place.insert(Row::new(Of::Group(name), host, figures));
                        }
                    }
                }
            }
            rows.into_values().collect()
        }
    }
}

pub(super) const FLOW_TITLES: [&str; 18] = [
    "HOST",
    "INITIATOR",
    "RESPONDER",
    "PROTO",
    "BIT/S",
    "REV BIT/S",
    "BYTES",
    "REV BYTES",
    "PKT/S",
    "RTT",
    "RETRANS",
    "AGE",
    "IFACE",
    "DIR",
    "STATE",
    "UNIT",
    "PROCESS",
    "HISTORY",
];
/// Columns shown only if some flow has a value.
const OPTIONAL: [usize; 5] = [0, 9, 10, 15, 16];
pub const FLOW_COLUMNS: Columns<'_> = Columns {
    titles: &FLOW_TITLES,
    elastic: &[0, 1, 2],
    least_width: 21,
    dispensable: &[17, 8, 13, 14, 11, 7, 12, 15, 16, 10, 9, 6],
    figures: &[4, 5, 6, 7, 8, 11],
};

const GROUP_TITLES: [&str; 10] = [
    "HOST", "NAME", "TX BIT/S", "RX BIT/S", "TX", "RX", "TX PKT/S", "RX PKT/S", "FLOWS", "HISTORY",
];
pub const GROUP_COLUMNS: Columns<'_> = Columns {
    titles: &GROUP_TITLES,
    elastic: &[0, 1],
    least_width: 18,
    dispensable: &[9, 7, 6, 8, 5, 4],
    figures: &[2, 3, 4, 5, 6, 7, 8],
};
const OPTIONAL_OF_GROUPS: [usize; 1] = [0];
/// Windows in the sparkline of a cell.
const CELL_HISTORY: usize = 12;

/// One cell per column.
pub struct Cells(pub Vec<String>);

impl AsRef<[String]> for Cells {
    fn as_ref(&self) -> &[String] {
        &self.0
    }
}

/// The columns of a view, and the indices of those that are not empty in these rows.
pub fn columns(view: View, rows: &[Cells]) -> (&'static Columns<'static>, Vec<usize>) {
    let (columns, optional) = match view {
        View::Flows => (&FLOW_COLUMNS, OPTIONAL.as_slice()),
        View::Peers
        | View::Processes
        | View::Units
        | View::Interfaces
        | View::Names
        | View::Services
        | View::Hosts => (&GROUP_COLUMNS, OPTIONAL_OF_GROUPS.as_slice()),
    };
    let has_some = |column: usize| rows.iter().any(|Cells(row)| !row[column].is_empty());
    let shown =
        (0..columns.titles.len()).filter(|column| !optional.contains(column) || has_some(*column));
    (columns, shown.collect())
}

/// Whether this order goes by this column.
pub fn is_sorted_by(view: View, column: usize, sort: Sort) -> bool {
    match (sort, sort_of(view, column)) {
        // The sum of both.
        (Sort::Rate, Some(Sort::Sent | Sort::Received)) => true,
        (_, of_column) => of_column == Some(sort),
    }
}

/// The order for a click on this column's title.
pub fn sort_of(view: View, column: usize) -> Option<Sort> {
    let sort = match (view, column) {
        (_, 1) | (View::Flows, 2) => Sort::Name,
        (View::Flows, 4) => Sort::Sent,
        (View::Flows, 5) => Sort::Received,
        (View::Flows, 17) => Sort::Rate,
        (View::Flows, 6 | 7) => Sort::Bytes,
        (View::Flows, 8) => Sort::Packets,
        (View::Flows, 9) => Sort::Rtt,
        (View::Flows, 10) => Sort::Retrans,
        (View::Flows, 11) => Sort::Newest,
        (View::Flows, _) | (_, 0) => return None,
        (_, 2) => Sort::Sent,
        (_, 3) => Sort::Received,
        (_, 9) => Sort::Rate,
        (_, 4 | 5) => Sort::Bytes,
        (_, 6 | 7) => Sort::Packets,
        (_, 8) => Sort::Flows,
        _ => return None,
    };
    Some(sort)
}

pub fn cells(fleet: &Fleet, view: View, row: &Row<'_>) -> Cells {
    let [forward, reverse] = row.bits().map(human::count);
    let [bytes, reverse_bytes] = row.total.bytes.map(human::bytes);
    let history = sparkline(&row.history(), CELL_HISTORY);
    let at = if fleet.is_collector() && view != View::Hosts {
        row.at()
    } else {
        String::new()
    };
    match row.of {
        Of::Flow(_, flow) => {
            let record = &flow.record;
            let packets = rounded(row.packets.into_iter().sum());
            let named = |ends: &[Option<String>; 2]| both(ends.each_ref().map(Option::as_deref));
            let [initiator, responder] = flow.endpoints();
            let end_unix_ns = row.host.map_or(0, |host| host.picture.end_unix_ns);
            Cells(vec![
                at,
                initiator,
                responder,
                protocol(record),
                forward,
                reverse,
                bytes,
                reverse_bytes,
                human::count(packets),
                ends(&round_trips(record).map(|us| us.map(round_trip))),
                ends(
                    &retransmissions(record)
                        .map(|count| count.map(|count| human::count(count.into()))),
                ),
                age(record, end_unix_ns),
                place(record, flow.interface.as_ref()),
                direction(record),
                state(record).to_owned(),
                ends(
                    &flow
                        .units
                        .each_ref()
                        .map(|unit| unit.as_deref().map(short_unit)),
                ),
                named(&flow.processes),
                history,
            ])
        }
        Of::Group(name) => {
            let [sent, received] = row.packets().map(human::count);
            let name = view.shown(name);
            let silent = row.host.filter(|host| fleet.is_silent(host));
            let shown = match (row.called, silent) {
                (Some(called), _) => format!("{called} {name}"),
                (None, Some(host)) => {
                    let silence = human::duration(fleet.silence(host));
                    format!("{name}: silent for {silence}")
                }
                (None, None) => name.to_owned(),
            };
            Cells(vec![
                at,
                shown,
                forward,
                reverse,
                bytes,
                reverse_bytes,
                sent,
                received,
                human::count(row.flows),
                history,
            ])
        }
    }
}

/// The last values as bars, one character each. The largest value has full height, zero is a blank.
pub fn sparkline(values: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = &values[values.len().saturating_sub(width)..];
    let most = values.iter().copied().max().unwrap_or_default().max(1);
    let bar = |&value: &u64| match value {
        0 => ' ',
        _ => BARS[(u128::from(value - 1) * 8 / u128::from(most)) as usize],
    };
    let line: String = values.iter().map(bar).collect();
    format!("{line:>width$}")
}
