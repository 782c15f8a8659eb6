//! Which flows an output sends. A flow may be selected only after some reports, for example by its bytes. Then its next
//! record reports the totals, so that the sums of a selected flow are complete.

use std::{collections::HashMap, str::FromStr};

use proto::{
    FlowBatch, FlowRecord, RecordSum, known_interfaces::KnownInterfaces, mentions::Mentions,
};
use rules::{Facts, Known, Rule, fault::Fault, passes};

use super::counters;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub filter: Filter,
    /// One record per flow, when it has ended.
    pub only_ended: bool,
    /// Leave out flows with fewer bytes than this, both directions together.
    pub min_bytes: u64,
}

/// Rules in the language of `--filter`, with their source text.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    text: String,
    rules: Vec<Rule>,
}

impl FromStr for Filter {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let rules = rules::set(&[text.parse()?]);
        let text = text.to_owned();
        Ok(Self { text, rules })
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Filter {}

/// Takes the selected records out of batches.
pub(super) struct Selector {
    selection: Selection,
    interfaces: KnownInterfaces,
}

impl Selector {
    pub(super) fn new(selection: Selection) -> Self {
        Self {
            selection,
            interfaces: KnownInterfaces::default(),
        }
    }

    /// Moves the selected records out of the batch. Also returns the totals of other flows that ended.
    pub(super) fn select(&mut self, batch: &mut FlowBatch) -> (Vec<FlowRecord>, RecordSum) {
        let mut records = std::mem::take(&mut batch.records);
        let mut left_out = RecordSum::default();
        if self.selection == Selection::default() {
            return (records, left_out);
        }
        if !self.selection.filter.rules.is_empty() {
            self.interfaces.note_all(batch);
        }
        let hosts = Hosts::of(batch, &self.selection.filter);
        records.retain_mut(|record| {
            let has_ended = record.end_reason.is_some();
            let total_bytes = record.total().bytes;
            let facts = Facts::from(&*record);
            let known = Known {
                interface: self.interfaces.name(record),
                hosts: hosts.of_ends(record),
            };
            if !self.is_selected(facts, known, total_bytes) {
                if has_ended {
                    record.report_total();
                    left_out += counters::sum([&*record]);
                }
                return false;
            }
            if self.selection.only_ended && !has_ended {
                return false;
            }
            let mut before = facts;
            if record.src().total_packets == record.src().delta_packets {
                before.sent[0] = None;
            }
            if record.dst().total_packets == record.dst().delta_packets {
                before.sent[1] = None;
            }
            let was_selected = self.is_selected(before, known, total_bytes - record.delta().bytes);
            if self.selection.only_ended || !was_selected {
                record.report_total();
            }
            true
        });
        Mentions::of(&records).retain_in(batch);
        (records, left_out)
    }

    /// Whether a flow with these facts and this many bytes is selected.
    fn is_selected(&self, facts: Facts, known: Known<'_>, total_bytes: u64) -> bool {
        total_bytes >= self.selection.min_bytes
            && passes(&self.selection.filter.rules, facts, known)
    }
}

/// The names that a batch has for its records, by id. Empty if the filter names no hosts.
struct Hosts(HashMap<u64, String>);

impl Hosts {
    fn of(batch: &FlowBatch, filter: &Filter) -> Self {
        if filter.rules.iter().all(|rule| rule.names.is_empty()) {
            return Self(HashMap::new());
        }
        let hosts = batch.hosts.iter();
        Self(hosts.map(|host| (host.id, host.name.clone())).collect())
    }

    fn of_ends(&self, record: &FlowRecord) -> [&str; 2] {
        let name = |id: Option<u64>| Some(self.0.get(&id?)?.as_str());
        let ends = record.ends();
        ends.map(|end| name(end.host_id).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proto::{EndReason, Endpoint};

    use super::*;

    /// A flow's record after this many packets of 100 bytes each way, `more` of them since the last one.
    fn record(packets: u64, more: u64, ended: bool) -> FlowRecord {
        FlowRecord {
            src: Some(Endpoint {
                total_packets: packets,
                total_bytes: packets * 100,
                delta_packets: more,
                delta_bytes: more * 100,
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                total_packets: packets,
                total_bytes: packets * 100,
                delta_packets: more,
                delta_bytes: more * 100,
                ..Endpoint::default()
            }),
            end_reason: ended.then_some(EndReason::IdleTimeout.into()),
            ..FlowRecord::default()
        }
    }

    /// Forward packets of each kept record, and the total of those left out.
    fn kept(wanted: &Selection, records: &[FlowRecord]) -> (Vec<u64>, u64) {
        let mut selector = Selector::new(wanted.clone());
        let (mut kept, mut left_out) = (Vec::new(), 0);
        for record in records {
            let mut batch = FlowBatch {
                records: vec![record.clone()],
                ..FlowBatch::default()
            };
            let (records, out) = selector.select(&mut batch);
            left_out += out.packets;
            kept.extend(records.iter().map(|record| record.src().delta_packets));
        }
        (kept, left_out)
    }

    fn flow() -> [FlowRecord; 4] {
        [
            record(2, 2, false),
            record(5, 3, false),
            record(6, 1, false),
            record(6, 0, true),
        ]
    }

    #[test]
    fn without_a_wish_everything_is_selected_as_it_is() {
        assert_eq!(kept(&Selection::default(), &flow()), (vec![2, 3, 1, 0], 0));
    }

    #[test]
    fn an_ended_flow_alone_has_all_its_packets() {
        let wanted = Selection {
            only_ended: true,
            ..Selection::default()
        };
        assert_eq!(kept(&wanted, &flow()), (vec![6], 0));
    }

    #[test]
    fn a_flow_that_grows_beyond_the_least_bytes_comes_with_what_it_had_before() {
        let wanted = |min_bytes| Selection {
            min_bytes,
            ..Selection::default()
        };
        // Both directions together have 400, 1,000 and 1,200 bytes.
        assert_eq!(kept(&wanted(400), &flow()), (vec![2, 3, 1, 0], 0));
        assert_eq!(kept(&wanted(401), &flow()), (vec![5, 1, 0], 0));
        assert_eq!(kept(&wanted(1_200), &flow()), (vec![6, 0], 0));
        assert_eq!(kept(&wanted(1_201), &flow()), (vec![], 12));
        let both = Selection {
            only_ended: true,
            filter: Filter::default(),
            min_bytes: 1_200,
        };
        assert_eq!(kept(&both, &flow()), (vec![6], 0));
        let both = Selection {
            only_ended: true,
            filter: Filter::default(),
            min_bytes: 1_201,
        };
        assert_eq!(kept(&both, &flow()), (vec![], 12));
    }

    #[test]
    fn a_flow_that_the_rules_come_to_want_comes_with_what_it_had_before() {
        let half = |total, more, reverse, ended| FlowRecord {
            src: Some(Endpoint {
                addr: vec![10, 0, 0, 1].into(),
                direction: proto::Direction::Ingress.into(),
                ..record(total, more, ended).src().clone()
            }),
            dst: Some(Endpoint {
                addr: vec![10, 0, 0, 2].into(),
                total_packets: reverse,
                total_bytes: reverse * 100,
                delta_packets: 0,
                delta_bytes: 0,
                ..record(total, more, ended).dst().clone()
            }),
            ..record(total, more, ended)
        };
        let answered = FlowRecord {
            dst: Some(Endpoint {
                delta_packets: 4,
                delta_bytes: 400,
                ..half(3, 1, 4, false).dst().clone()
            }),
            ..half(3, 1, 4, false)
        };
        let flow = [half(2, 2, 0, false), answered, half(3, 0, 4, true)];
        let rules = |text: &str| Selection {
            filter: text.parse().unwrap(),
            ..Selection::default()
        };
        for (text, expected) in [
            ("include net 10.0.0.0/8", (vec![2, 1, 0], 0)),
            // Only the reverse packets leave through the interface.
            ("include egress; exclude all", (vec![3, 0], 0)),
            ("exclude net 10.0.0.0/8", (vec![], 7)),
        ] {
            assert_eq!(kept(&rules(text), &flow), expected, "{text}");
        }
    }

    #[test]
    fn a_filter_chooses_by_the_names_of_hosts() {
        let named = |host_id| FlowRecord {
            dst: Some(Endpoint {
                host_id,
                ..record(1, 1, false).dst().clone()
            }),
            ..record(1, 1, false)
        };
        let mut batch = FlowBatch {
            records: vec![named(Some(7)), named(None)],
            hosts: vec![proto::HostName {
                id: 7,
                name: "a.example".to_owned(),
            }],
            ..FlowBatch::default()
        };
        for record in &mut batch.records {
            record.src_mut().set_direction(proto::Direction::Ingress);
        }
        let mut selector = Selector::new(Selection {
            filter: "host *.example".parse().unwrap(),
            ..Selection::default()
        });
        let kept = selector.select(&mut batch).0;
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].dst().host_id, Some(7));
    }

    #[test]
    fn rules_know_the_name_of_an_interface_that_is_gone() {
        let filter = "include on eth0; exclude all".parse().unwrap();
        let mut selector = Selector::new(Selection {
            filter,
            ..Selection::default()
        });
        let flow = FlowRecord {
            ifindex: 2,
            ..record(1, 1, false)
        };
        let interface = proto::Interface {
            ifindex: 2,
            name: "eth0".to_owned(),
            ..proto::Interface::default()
        };
        for interfaces in [vec![interface], Vec::new()] {
            let mut batch = FlowBatch {
                records: vec![flow.clone()],
                interfaces,
                ..FlowBatch::default()
            };
            assert_eq!(selector.select(&mut batch).0.len(), 1);
        }
    }
}
