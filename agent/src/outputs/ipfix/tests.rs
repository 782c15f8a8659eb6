//! The encoder against a reader of its own, and against messages that are written out.

use super::*;
use collector::{Collector, Record};

pub mod collector;
mod enriched;
pub mod flows;
mod sums;
mod written;

fn encoder(settings: Settings) -> Ipfix {
    Ipfix {
        process_id: 99,
        export_time_s: || 1_700_000_002,
        ..Ipfix::new(settings)
    }
}

/// Hands over everything, until there is nothing to say. Returns the messages.
fn send(encoder: &mut Ipfix, batch: &FlowBatch, mut flows: &[FlowRecord]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    loop {
        let message = encoder.message(batch, flows);
        if message.bytes.is_empty() {
            assert!(flows.is_empty());
            return messages;
        }
        encoder.sent();
        flows = &flows[message.flows..];
        messages.push(message.bytes.to_vec());
    }
}

fn read(collector: &mut Collector, messages: &[Vec<u8>]) -> Vec<Record> {
    let records = messages.iter().map(|message| collector.read(message));
    records.collect::<Vec<_>>().concat()
}

/// Those of flows.
fn of_flows(records: Vec<Record>) -> Vec<Record> {
    let of_flow = |record: &Record| record.scopes == 0;
    records.into_iter().filter(of_flow).collect()
}

#[test]
fn a_biflow_says_whether_its_source_is_known_to_be_the_initiator() {
    const BIFLOW_DIRECTION: u16 = 239;
    let assumed = FlowRecord {
        initiator_assumed: true,
        ..flows::tcp()
    };
    let messages = send(
        &mut encoder(Settings::datagrams()),
        &flows::batch(1),
        &[flows::tcp(), assumed],
    );
    let records = of_flows(read(&mut Collector::default(), &messages));
    let said = records.iter().map(|one| one.number(BIFLOW_DIRECTION));
    assert_eq!(said.collect::<Vec<_>>(), [Some(1), Some(0)]);
}

#[test]
fn a_record_and_its_template_have_room_in_the_shortest_message() {
    for is_biflow in [true, false] {
        let lengths = Lengths::new(is_biflow);
        for number in 0..Shape::COUNT as u8 {
            let mut specifiers = Specifiers::default();
            let shape = Shape::from_number(number);
            let record = FlowRecord::default();
            let flow = Flow::new(&record, Octets::Ip);
            flow.walk(shape, is_biflow, &mut specifiers);
            let records = if is_biflow { 1 } else { 2 };
            let len = message::HEADER_LEN_BYTES
                + 4
                + 4
                + specifiers.bytes.len()
                + 4
                + records * lengths.of(shape);
            assert!(len <= LEAST_LEN_BYTES, "{number}: {len}");
        }
    }
}

#[test]
fn templates_are_sent_once_until_they_are_due_or_the_connection_is_another() {
    let flow = [flows::tcp()];
    // How many templates come with the next flow.
    let count = |encoder: &mut Ipfix, collector: &mut Collector| {
        let before = collector.template_records;
        read(collector, &send(encoder, &flows::batch(1), &flow));
        collector.template_records - before
    };
    // Of the flow, and of the sampling.
    let mut stream = encoder(Settings::stream());
    let mut collector = Collector::default();
    assert_eq!(count(&mut stream, &mut collector), 2);
    assert_eq!(count(&mut stream, &mut collector), 0);
    stream.restart();
    let mut collector = Collector::default();
    assert_eq!(count(&mut stream, &mut collector), 2);

    let mut datagrams = encoder(Settings::datagrams());
    let mut collector = Collector::default();
    assert_eq!(count(&mut datagrams, &mut collector), 2);
    assert_eq!(count(&mut datagrams, &mut collector), 0);
    datagrams.restart();
    collector = collector.without_templates();
    assert_eq!(count(&mut datagrams, &mut collector), 2);
    // They are due, and options with every tenth of them.
    let counts: Vec<_> = (0..20)
        .map(|_| {
            datagrams.refreshed = None;
            count(&mut datagrams, &mut collector)
        })
        .collect();
    let counted = |templates| counts.iter().filter(|&&count| count == templates).count();
    assert_eq!((counted(1), counted(2)), (18, 2), "{counts:?}");
    datagrams.refreshed = Instant::now().checked_sub(DEFAULT_TEMPLATE_REFRESH);
    assert_eq!(count(&mut datagrams, &mut collector), 1);
    assert_eq!(count(&mut datagrams, &mut collector), 0);
    // With sampling they all do, also when it has ended: who missed that would still scale.
    for sample_rate in [10, 0] {
        let batch = FlowBatch {
            sample_rate,
            ..flows::batch(1)
        };
        for _ in 0..20 {
            datagrams.refreshed = None;
            let records = read(&mut collector, &send(&mut datagrams, &batch, &flow));
            let rates: Vec<_> = records
                .iter()
                .filter_map(|record| record.number(34))
                .collect();
            assert_eq!(rates, [u64::from(sample_rate.max(1))]);
        }
    }
}

#[test]
fn what_was_not_sent_is_announced_again_and_not_counted() {
    let flow = [flows::tcp()];
    let mut encoder = encoder(Settings::datagrams());
    let mut collector = Collector::default();
    loop {
        let first = encoder.message(&flows::batch(1), &flow);
        let again = encoder.message(&flows::batch(1), &flow);
        assert_eq!((&first.bytes, first.flows), (&again.bytes, again.flows));
        encoder.sent();
        collector.read(&again.bytes);
        if again.flows == 1 {
            break;
        }
    }
    let templates = collector.template_records;
    assert_eq!(
        of_flows(read(
            &mut collector,
            &send(&mut encoder, &flows::batch(1), &flow)
        ))
        .len(),
        1
    );
    assert_eq!(collector.template_records, templates);
}

#[test]
fn the_account_is_told_once_a_scan_and_losses_at_the_end() {
    let mut encoder = encoder(Settings::datagrams());
    let mut collector = Collector::default();
    let flow = vec![flows::tcp(); 100];
    let batch = FlowBatch {
        interfaces: vec![flows::interface(7, "eth0")],
        ..flows::last_batch(1)
    };
    let records = read(&mut collector, &send(&mut encoder, &batch, &flow));
    let told: Vec<_> = records
        .iter()
        .filter(|record| record.number(166) == Some(4))
        .collect();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].number(167), told[0].number(168)),
        (Some(50), Some(6_000))
    );
    let ignored: Vec<_> = records
        .iter()
        .filter_map(|record| record.number(164))
        .collect();
    assert_eq!(ignored, [11]);
    // A scan without flows, and what is lost at the end.
    for batch in [
        flows::last_batch(2),
        FlowBatch {
            lost_records: 9,
            ..flows::batch(0)
        },
    ] {
        let records = read(&mut collector, &send(&mut encoder, &batch, &[]));
        let lost: Vec<_> = records
            .iter()
            .filter_map(|record| record.number(166))
            .collect();
        assert_eq!(lost, [batch.lost_records]);
        let sent: Vec<_> = records
            .iter()
            .filter_map(|record| record.number(42))
            .collect();
        assert_eq!(sent, [100]);
    }
    assert!(encoder.message(&flows::batch(3), &[]).bytes.is_empty());
}

#[test]
fn a_thousand_names_go_out_in_parts_and_anew_when_one_changes() {
    let mut encoder = encoder(Settings::datagrams());
    let mut collector = Collector::default();
    let mut batch = flows::batch(1);
    batch.interfaces = (1..=1_000)
        .map(|index| flows::interface(index, &format!("veth{index}")))
        .collect();
    let flow = vec![flows::tcp(); 2_000];
    let names = |records: &[Record]| -> Vec<(u64, String)> {
        let named = records.iter().filter_map(|record| {
            let name = record.bytes((82, 0))?.to_vec();
            Some((record.number(10)?, String::from_utf8(name).unwrap()))
        });
        named.collect()
    };
    let records = read(&mut collector, &send(&mut encoder, &batch, &flow));
    let told = names(&records);
    assert_eq!(told.len(), 1_000);
    assert_eq!(told[999], (1_000, "veth1000".to_owned()));
    assert_eq!(of_flows(records).len(), 2_000);
    assert!(names(&read(&mut collector, &send(&mut encoder, &batch, &flow))).is_empty());
    batch.interfaces[0].name = "uplink".to_owned();
    let told = names(&read(&mut collector, &send(&mut encoder, &batch, &flow)));
    assert_eq!((told.len(), told[0].1.as_str()), (1_000, "uplink"));
}
