//! Sorts the rows of a view and formats their cells.

use std::cmp::Reverse;

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
    picture::{Figures, Flow, Id, Picture, Traffic},
};

/// What a row shows.
#[derive(Clone, Copy)]
pub enum Of<'a> {
    Flow(&'a FlowKey, &'a Flow),
    /// The name is empty for the group of flows without one.
    Group(&'a str),
}

#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub of: Of<'a>,
    pub figures: &'a Figures,
    /// Traffic of the last window, and the number of flows that had packets in it.
    pub recent: Traffic,
    pub flows: u64,
}

impl Row<'_> {
    pub fn id(&self, view: View) -> Id {
        match self.of {
            Of::Flow(key, _) => Id::Flow(Box::new(key.clone())),
            Of::Group(name) => Id::Group(view, name.to_owned()),
        }
    }

    pub fn has_ended(&self) -> bool {
        match self.of {
            Of::Flow(_, flow) => flow.record.end_reason.is_some(),
            Of::Group(_) => false,
        }
    }

    /// Whether it is a flow of which only the end came with the traffic that is shown.
    pub fn is_only_an_end(&self) -> bool {
        self.has_ended() && self.recent.all_packets() == 0
    }

    fn name(&self) -> String {
        match self.of {
            Of::Flow(_, flow) => flow.endpoints()[0].clone(),
            Of::Group(name) => name.to_owned(),
        }
    }

    /// The sort key. Larger keys come first.
    fn rank(&self, sort: Sort) -> u64 {
        let of_flow = |rank: fn(&Flow) -> Option<u64>| match self.of {
            Of::Flow(_, flow) => rank(flow).map_or(0, |rank| rank.saturating_add(1)),
            Of::Group(_) => 0,
        };
        match sort {
            Sort::Rate => self.recent.all_bytes(),
            Sort::Sent => self.recent.bytes[0],
            Sort::Received => self.recent.bytes[1],
            Sort::Packets => self.recent.all_packets(),
            Sort::Bytes => self.figures.total.all_bytes(),
            Sort::Flows => self.flows,
            Sort::Name => 0,
            Sort::Rtt => of_flow(|flow| worst(round_trips(&flow.record))),
            Sort::Retrans => of_flow(|flow| worst(retransmissions(&flow.record))),
            Sort::Newest => of_flow(|flow| Some(flow.record.first_seen_unix_ns)),
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
pub fn rows(picture: &Picture, view: View, sort: Sort, is_reversed: bool) -> Vec<Row<'_>> {
    let row = |of, figures| {
        let (recent, flows) = picture.recent(figures);
        Row {
            of,
            figures,
            recent,
            flows,
        }
    };
    let mut rows: Vec<_> = if view == View::Flows {
        let flows = picture.flows();
        flows
            .map(|(key, flow)| row(Of::Flow(key, flow), &flow.figures))
            .collect()
    } else {
        let groups = picture.groups(view);
        groups
            .map(|(name, figures)| row(Of::Group(name), figures))
            .collect()
    };
    rows.sort_by_cached_key(|row| {
        let total = if sort == Sort::Name {
            0
        } else {
            row.figures.total.all_bytes()
        };
        (Reverse(row.rank(sort)), Reverse(total), row.name())
    });
    if is_reversed {
        rows.reverse();
    }
    rows
}

pub(super) const FLOW_TITLES: [&str; 17] = [
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
const OPTIONAL: [usize; 4] = [8, 9, 14, 15];
pub const FLOW_COLUMNS: Columns<'_> = Columns {
    titles: &FLOW_TITLES,
    elastic: &[0, 1],
    least_width: 21,
    dispensable: &[16, 7, 12, 13, 10, 6, 11, 14, 15, 9, 8, 5],
    figures: &[3, 4, 5, 6, 7, 10],
};

const GROUP_TITLES: [&str; 9] = [
    "NAME", "TX BIT/S", "RX BIT/S", "TX", "RX", "TX PKT/S", "RX PKT/S", "FLOWS", "HISTORY",
];
pub const GROUP_COLUMNS: Columns<'_> = Columns {
    titles: &GROUP_TITLES,
    elastic: &[0],
    least_width: 18,
    dispensable: &[8, 6, 5, 7, 4, 3],
    figures: &[1, 2, 3, 4, 5, 6, 7],
};
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
    if view != View::Flows {
        return (&GROUP_COLUMNS, (0..GROUP_TITLES.len()).collect());
    }
    let has_some = |column: usize| rows.iter().any(|Cells(row)| !row[column].is_empty());
    let shown =
        (0..FLOW_TITLES.len()).filter(|column| !OPTIONAL.contains(column) || has_some(*column));
    (&FLOW_COLUMNS, shown.collect())
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
        (_, 0) | (View::Flows, 1) => Sort::Name,
        (View::Flows, 3) => Sort::Sent,
        (View::Flows, 4) => Sort::Received,
        (View::Flows, 16) => Sort::Rate,
        (View::Flows, 5 | 6) => Sort::Bytes,
        (View::Flows, 7) => Sort::Packets,
        (View::Flows, 8) => Sort::Rtt,
        (View::Flows, 9) => Sort::Retrans,
        (View::Flows, 10) => Sort::Newest,
        (View::Flows, _) => return None,
        (_, 1) => Sort::Sent,
        (_, 2) => Sort::Received,
        (_, 8) => Sort::Rate,
        (_, 3 | 4) => Sort::Bytes,
        (_, 5 | 6) => Sort::Packets,
        (_, 7) => Sort::Flows,
        _ => return None,
    };
    Some(sort)
}

pub fn cells(picture: &Picture, view: View, row: &Row<'_>) -> Cells {
    let rate = |bytes: u64| human::count(picture.per_second(bytes.saturating_mul(8)));
    let rates = row.recent.bytes.map(rate);
    let [bytes, reverse_bytes] = row.figures.total.bytes.map(human::bytes);
    let history = sparkline(&picture.history(row.figures), CELL_HISTORY);
    let [forward, reverse] = rates;
    match row.of {
        Of::Flow(_, flow) => {
            let record = &flow.record;
            let packets = picture.per_second(row.recent.all_packets());
            let named = |ends: &[Option<String>; 2]| both(ends.each_ref().map(Option::as_deref));
            let [initiator, responder] = flow.endpoints();
            Cells(vec![
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
                age(record, picture.end_unix_ns),
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
            let packets = row.recent.packets;
            let [sent, received] = packets.map(|packets| human::count(picture.per_second(packets)));
            let name = view.shown(name);
            let shown = match &row.figures.host {
                Some(host) => format!("{host} {name}"),
                None => name.to_owned(),
            };
            Cells(vec![
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
