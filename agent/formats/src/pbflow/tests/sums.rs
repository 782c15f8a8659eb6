//! What goes in comes out, whatever flows come.

use std::collections::BTreeMap;

use collector::End;
use proptest::{collection::vec, prelude::*};

use proto::Endpoint;

use super::*;

/// Varints of all lengths.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(bits, shift)| bits >> shift >> 8)
}

prop_compose! {
    fn any_flow()(
        base in prop_oneof![
            Just(flows::tcp()),
            Just(flows::udp_with_tags()),
            Just(flows::ping6()),
            Just(flows::fragments()),
        ],
        packets in [number(), number()],
        bytes in [number(), number()],
        ports in any::<[u16; 2]>(),
        ifindex in 6u32..9,
        dscp in 0u32..64,
        times in [number(), number()],
        delta_duration_ns in number(),
        direction in 1i32..=2,
    ) -> FlowRecord {
        let src = Endpoint {
            dscp: Some(dscp),
            delta_packets: packets[0],
            delta_bytes: bytes[0],
            port: base.src().port.map(|_| ports[0].into()),
            direction,
            ..base.src().clone()
        };
        let dst = Endpoint {
            delta_packets: packets[1],
            delta_bytes: bytes[1],
            port: base.dst().port.map(|_| ports[1].into()),
            ..base.dst().clone()
        };
        FlowRecord {
            src: Some(src),
            dst: Some(dst),
            ifindex,
            first_seen_unix_ns: times[0],
            last_seen_unix_ns: times[1],
            delta_duration_ns,
            ..base
        }
    }
}

/// Of one direction between two ends, at one interface: records, packets, bytes.
type Sums = BTreeMap<(End, End, String), [u128; 3]>;

fn add(sums: &mut Sums, name: (End, End, String), packets: u64, bytes: u64) {
    let sum = sums.entry(name).or_default();
    for (sum, more) in sum.iter_mut().zip([1, packets.into(), bytes.into()]) {
        *sum += more;
    }
}

proptest! {
    #[test]
    fn a_receiver_has_what_was_given_in(flows in vec(any_flow(), 1..20)) {
        let batch = FlowBatch {
            interfaces: vec![flows::interface(7, "eth0"), flows::interface(8, "eth1")],
            ..flows::batch(1)
        };
        let mut expected = Sums::new();
        for flow in &flows {
            let name = ["", "eth0", "eth1"][flow.ifindex as usize - 6];
            let source = (flow.src().addr.to_vec(), flow.src().port.unwrap_or_default());
            let destination = (flow.dst().addr.to_vec(), flow.dst().port.unwrap_or_default());
            let there = (source.clone(), destination.clone(), name.to_owned());
            let back = (destination, source, name.to_owned());
            for (name, packets, bytes) in [
                (there, flow.src().delta_packets, flow.src().delta_bytes),
                (back, flow.dst().delta_packets, flow.dst().delta_bytes),
            ] {
                if packets != 0 {
                    add(&mut expected, name, packets, bytes);
                }
            }
        }
        let read = records(&mut encoder(), &batch, &flows);
        let mut got = Sums::new();
        for record in &read {
            let name = (record.source(), record.destination(), record.interface.clone());
            add(&mut got, name, record.packets, record.bytes);
        }
        prop_assert_eq!(got, expected);
        let mut left = read.iter();
        for flow in &flows {
            for from in flow.ends() {
                if from.delta_packets == 0 {
                    continue;
                }
                let record = left.next().unwrap();
                let ns = |time: Option<collector::Timestamp>| {
                    let time = time.unwrap();
                    time.seconds.cast_unsigned() * 1_000_000_000
                        + u64::from(time.nanos.cast_unsigned())
                };
                let times = [record.time_flow_start, record.time_flow_end].map(ns);
                prop_assert_eq!(times, flow.delta_times());
                prop_assert_eq!(record.network.as_ref().unwrap().dscp, from.dscp.unwrap_or_default());
                prop_assert_eq!(record.transport.unwrap().protocol, flow.protocol);
                let ethertype = if flow.ip_version == 4 { 0x800 } else { 0x86dd };
                prop_assert_eq!(record.eth_protocol, ethertype);
            }
        }
        prop_assert!(left.next().is_none());
    }
}
