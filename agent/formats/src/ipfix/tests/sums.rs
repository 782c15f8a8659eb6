//! What goes in comes out, whatever flows come, whatever their messages may hold, and whenever sending fails.

use proptest::{collection::vec, prelude::*};
use proto::{Cgroup, Direction, Endpoint, Failure};

use super::{collector::OWN, *};

/// What a datagram may hold at least.
const SHORTEST: usize = 700;

/// What happens to a message.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Sent,
    Kept,
    Restarted,
    TooLong,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        8 => Just(Fate::Sent),
        2 => Just(Fate::Kept),
        1 => Just(Fate::Restarted),
        1 => Just(Fate::TooLong),
    ]
}

prop_compose! {
    fn any_flow()(
        base in prop_oneof![
            Just(flows::tcp()),
            Just(flows::udp_with_tags()),
            Just(flows::ping6()),
            Just(flows::in_vxlan()),
            Just(flows::fragments()),
        ],
        packets in [0u64..1_000, 0..1_000],
        size in [60u64..1_500, 60..1_500],
        ip_size in [20u64..1_500, 20..1_500],
        ifindex in 1u32..4,
        tags in vec(1u32..4_095, 0..=2),
        is_egress in any::<bool>(),
        found in 0..3,
    ) -> FlowRecord {
        let side = if is_egress { Direction::Egress } else { Direction::Ingress };
        let end = |end: usize, side: Direction| Endpoint {
            cgroup_id: (found == 1).then_some(7),
            delta_packets: packets[end],
            delta_bytes: packets[end] * size[end],
            delta_ip_bytes: packets[end] * ip_size[end],
            direction: side.into(),
            ..base.ends()[end].clone()
        };
        FlowRecord {
            src: Some(end(0, side)),
            dst: Some(end(1, side.opposite())),
            failure: (found > 0).then_some(Failure::Reset.into()),
            ifindex,
            vlan_ids: tags,
            ..base
        }
    }
}

/// Packets, layer-2 bytes and IP octets, of both directions.
type Sums = [u64; 3];

fn sums_of(flow: &FlowRecord) -> Sums {
    [
        flow.src().delta_packets + flow.dst().delta_packets,
        flow.src().delta_bytes + flow.dst().delta_bytes,
        flow.src().delta_ip_bytes + flow.dst().delta_ip_bytes,
    ]
}

fn sums_read(record: &Record) -> Sums {
    [2, 352, 1].map(|number| record.number(number).unwrap() + record.reverse(number).unwrap_or(0))
}

fn add(sums: impl IntoIterator<Item = Sums>) -> Sums {
    sums.into_iter().fold([0; 3], |sum, more| {
        [0, 1, 2].map(|place| sum[place] + more[place])
    })
}

fn batches() -> impl Strategy<Value = Vec<Vec<FlowRecord>>> {
    vec(vec(any_flow(), 0..60), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn sums_and_sequence_hold(
        batches in batches(),
        fates in vec(fate(), 1..40),
        is_biflow in any::<bool>(),
        is_stream in any::<bool>(),
        [has_enterprise, end_records] in any::<[bool; 2]>(),
        limit in SHORTEST..1_500,
    ) {
        let settings = if is_stream { Settings::stream() } else { Settings::datagrams() };
        let enterprise = has_enterprise.then_some(OWN);
        let mut encoder = encoder(Settings { is_biflow, end_records, message_len_bytes: limit, enterprise, ..settings });
        let mut collector = Collector::default();
        let mut limit = limit;
        let mut fates = fates.into_iter().chain(std::iter::repeat(Fate::Sent));
        let mut records = Vec::new();
        for (flows, scan) in batches.iter().zip(1..) {
            let mut batch = flows::last_batch(scan);
            batch.cgroups = vec![Cgroup { id: 7, unit: "long".repeat(30), ..Cgroup::default() }];
            batch.interfaces = (1..4).map(|index| flows::interface(index, "eth0")).collect();
            let mut rest = &flows[..];
            let mut closes = true;
            while !rest.is_empty() || std::mem::take(&mut closes) {
                let message = encoder.message(&batch, rest);
                prop_assert!(message.bytes.len() <= limit);
                match fates.next().unwrap() {
                    Fate::Sent => {
                        encoder.sent();
                        records.extend(collector.read(&message.bytes));
                        rest = &rest[message.flows..];
                        closes = false;
                        continue;
                    }
                    Fate::Kept => {}
                    Fate::Restarted => {
                        encoder.restart();
                        collector = if is_stream {
 Collector::default()
} else {
 collector.without_templates()
};
                    }
                    Fate::TooLong => {
                        limit = (limit - 10).max(SHORTEST);
                        encoder.limit(limit);
                    }
                }
                closes = rest.is_empty();
            }
        }
        let flows = batches.concat();
        prop_assert_eq!(add(of_flows(records.clone()).iter().map(sums_read)), add(flows.iter().map(sums_of)));
        let accounts = records.iter().filter(|record| record.number(164).is_some());
        prop_assert_eq!(accounts.count(), batches.len());
        if is_biflow {
            let read: Vec<_> = of_flows(records).iter().map(sums_read).collect();
            let sent: Vec<_> = flows.iter().map(sums_of).filter(|sums| sums[0] != 0 || end_records).collect();
            prop_assert_eq!(read, sent);
        }
    }
}
