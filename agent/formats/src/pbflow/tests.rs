//! The encoder against messages that are written out, and against a decoder that was made for others.

use proto::Endpoint;

use super::*;
use crate::ipfix::tests::flows;

mod annotated;
mod collector;
mod sums;

use collector::{Record, Records};

fn encoder() -> Pbflow {
    Pbflow::new(|| Some(IpAddr::from([198, 51, 100, 7])))
}

/// One that knows the interface.
fn batch() -> FlowBatch {
    FlowBatch {
        interfaces: vec![flows::interface(7, "eth0")],
        ..flows::batch(1)
    }
}

fn records(pbflow: &mut Pbflow, batch: &FlowBatch, flows: &[FlowRecord]) -> Vec<Record> {
    let message = pbflow.message(batch, flows);
    assert_eq!(message.flows, flows.len());
    Records::read(&message.bytes)
}

#[test]
fn records_are_as_written() {
    let sampled = FlowBatch {
        sample_rate: 50,
        ..batch()
    };
    for (name, batch, flow) in [
        ("tcp", batch(), flows::tcp()),
        ("ping6", batch(), flows::ping6()),
        ("fragments_sampled", sampled, flows::fragments()),
        // At an interface without a name.
        (
            "udp_at_a_mirror_port",
            flows::batch(1),
            flows::udp_with_tags(),
        ),
    ] {
        annotated::is_written(name, &encoder().message(&batch, &[flow]).bytes);
    }
}

#[test]
fn each_direction_with_packets_has_a_record() {
    let mut pbflow = encoder();
    for (packets, expected) in [([3, 2], 2), ([3, 0], 1), ([0, 2], 1), ([0, 0], 0)] {
        let flow = FlowRecord {
            src: Some(Endpoint {
                delta_packets: packets[0],
                ..flows::tcp().src().clone()
            }),
            dst: Some(Endpoint {
                delta_packets: packets[1],
                ..flows::tcp().dst().clone()
            }),
            ..flows::tcp()
        };
        let records = records(&mut pbflow, &batch(), &[flow]);
        assert_eq!(records.len(), expected);
        let counted = records.iter().map(|record| record.packets);
        let with_packets = packets.into_iter().filter(|&packets| packets != 0);
        assert!(counted.eq(with_packets));
    }
    // There is nothing to send about one that ended while it was quiet.
    let message = pbflow.message(&batch(), &[flows::quiet()]);
    assert_eq!((message.bytes.len(), message.flows), (0, 1));
    let message = pbflow.message(&batch(), &[flows::quiet(), flows::tcp()]);
    assert_eq!((message.flows, message.skipped), (2, 1));
}

#[test]
fn answers_have_both_ends_and_the_side_exchanged() {
    let [there, back] = records(&mut encoder(), &batch(), &[flows::tcp()])
        .try_into()
        .unwrap();
    assert_eq!(
        (there.source(), there.destination()),
        (back.destination(), back.source())
    );
    assert_eq!((there.direction, back.direction), (1, 0));
    let sides = |record: &Record| record.dup_list[0].direction;
    assert_eq!((sides(&there), sides(&back)), (1, 0));
    let echo = records(&mut encoder(), &batch(), &[flows::ping6()]);
    assert_eq!((echo[0].icmp_type, echo[1].icmp_type), (128, 129));
    let mirrored = records(&mut encoder(), &batch(), &[flows::udp_with_tags()]);
    assert_eq!((mirrored[0].direction, mirrored[1].direction), (0, 0));
}

#[test]
fn flags_that_come_together_have_netobservs_own_bits() {
    let flags = |there, back| {
        let flow = FlowRecord {
            src: Some(Endpoint {
                tcp_flags: Some(there),
                ..flows::tcp().src().clone()
            }),
            dst: Some(Endpoint {
                tcp_flags: Some(back),
                ..flows::tcp().dst().clone()
            }),
            ..flows::tcp()
        };
        let records = records(&mut encoder(), &batch(), &[flow]);
        (records[0].flags, records[1].flags)
    };
    // A SYN that was not answered, a connection, one that was closed, one that was refused, and one without its beginning.
    assert_eq!(flags(0x02, 0x00), (0x02, 0x00));
    assert_eq!(flags(0x12, 0x12), (0x12, 0x110));
    assert_eq!(flags(0x1b, 0x1b), (0x21a, 0x318));
    assert_eq!(flags(0x02, 0x14), (0x02, 0x14));
    assert_eq!(flags(0x11, 0x01), (0x210, 0x01));
    let udp = FlowRecord {
        src: Some(Endpoint {
            tcp_flags: Some(2),
            ..flows::udp_with_tags().src().clone()
        }),
        ..flows::udp_with_tags()
    };
    assert_eq!(records(&mut encoder(), &batch(), &[udp])[0].flags, 0);
}

#[test]
fn what_their_decoder_reads_unasked_is_there_without_content() {
    let empty = FlowRecord {
        src: Some(Endpoint {
            delta_packets: 1,
            ..Endpoint::default()
        }),
        ip_version: 4,
        ..FlowRecord::default()
    };
    let [record] = records(&mut encoder(), &flows::batch(1), &[empty])
        .try_into()
        .unwrap();
    assert!(record.network.is_some() && record.transport.is_some());
    assert_eq!(record.dup_list.len(), 1);
}

#[test]
fn records_have_the_name_that_their_interface_has_then() {
    let mut pbflow = encoder();
    let name = |pbflow: &mut Pbflow, batch: &FlowBatch, ifindex| {
        let flow = FlowRecord {
            ifindex,
            ..flows::tcp()
        };
        let records = records(pbflow, batch, &[flow]);
        assert_eq!(records[0].interface, records[0].dup_list[0].interface);
        records[0].interface.clone()
    };
    let mut batch = FlowBatch {
        interfaces: vec![flows::interface(7, "eth0"), flows::interface(8, "eth1")],
        ..flows::batch(1)
    };
    assert_eq!(name(&mut pbflow, &batch, 7), "eth0");
    assert_eq!(name(&mut pbflow, &batch, 8), "eth1");
    batch.interfaces[1].name = "a name that is much longer than any that a kernel has".repeat(4);
    assert_eq!(name(&mut pbflow, &batch, 8), batch.interfaces[1].name);
    batch.interfaces.clear();
    assert_eq!(name(&mut pbflow, &batch, 7), "eth0");
    assert_eq!(name(&mut pbflow, &batch, 9), "");
}

#[test]
fn many_flows_go_out_in_several_messages() {
    let flows = vec![flows::tcp(); FLOWS_IN_A_MESSAGE + 1];
    let mut pbflow = encoder();
    let first = pbflow.message(&batch(), &flows);
    assert_eq!(first.flows, FLOWS_IN_A_MESSAGE);
    assert!(first.bytes.len() < 4 << 20);
    assert_eq!(pbflow.message(&batch(), &flows[first.flows..]).flows, 1);
}

#[test]
fn the_longest_record_has_room() {
    let flow = FlowRecord {
        src: Some(Endpoint {
            dscp: Some(u32::MAX),
            port: Some(u32::MAX),
            delta_packets: u64::MAX,
            delta_bytes: u64::MAX,
            ..flows::ping6().src().clone()
        }),
        dst: Some(Endpoint {
            port: Some(u32::MAX),
            ..flows::ping6().dst().clone()
        }),
        protocol: u32::MAX,
        first_seen_unix_ns: u64::MAX,
        last_seen_unix_ns: u64::MAX,
        icmp_type: Some(u32::MAX),
        icmp_code: Some(u32::MAX),
        ..flows::ping6()
    };
    let records = records(&mut encoder(), &batch(), &[flow]);
    assert_eq!((records[0].packets, records[0].bytes), (u64::MAX, u64::MAX));
}
