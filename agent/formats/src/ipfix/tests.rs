//! The encoder against a reader of its own, and against messages that are written out.

use proto::NatSide;

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
        ..Ipfix::new(settings, |_| Domains {
            flows: 1,
            process: 0,
        })
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
fn each_direction_has_its_dscp() {
    const CLASS_OF_SERVICE: u16 = 5;
    const DSCP: u16 = 195;
    let mut flow = flows::tcp();
    flow.dst_mut().dscp = Some(10);
    for (is_biflow, expected) in [
        (true, vec![(Some(46), Some(10))]),
        (false, vec![(Some(46), None), (Some(10), None)]),
    ] {
        let settings = Settings {
            is_biflow,
            ..Settings::datagrams()
        };
        let messages = send(&mut encoder(settings), &flows::batch(1), &[flow.clone()]);
        let records = of_flows(read(&mut Collector::default(), &messages));
        let dscp = records.iter().map(|record| {
            let class = record.number(CLASS_OF_SERVICE);
            assert_eq!(class, record.number(DSCP).map(|dscp| dscp << 2));
            (record.number(DSCP), record.reverse(DSCP))
        });
        assert_eq!(dscp.collect::<Vec<_>>(), expected);
    }
}

/// Addresses as the last byte of each.
#[test]
fn a_flow_before_a_translation_has_what_is_behind_it() {
    const POST_V4: [u16; 4] = [225, 226, 227, 228];
    const POST_V6: [u16; 4] = [281, 282, 227, 228];
    let translated = |mut flow: FlowRecord, side: NatSide| {
        let len = flow.src().addr.len();
        for (end, (number, port)) in [(7, 61_000), (8, 8443)].into_iter().enumerate() {
            let end = if end == 0 {
                flow.src_mut()
            } else {
                flow.dst_mut()
            };
            end.nat_addr = Bytes::from([vec![0; len - 1], vec![number]].concat());
            end.nat_port = end.port.is_some().then_some(port);
        }
        flow.nat_side = Some(side.into());
        flow
    };
    let post = |flow: FlowRecord, elements: [u16; 4], is_biflow: bool| {
        let settings = Settings {
            is_biflow,
            ..Settings::datagrams()
        };
        let messages = send(&mut encoder(settings), &flows::batch(1), &[flow]);
        let records = of_flows(read(&mut Collector::default(), &messages));
        let last = |record: &Record, element| {
            let bytes = record.bytes((element, 0))?;
            let is_port = bytes.len() == 2;
            Some(if is_port {
                u64::from(u16::from_be_bytes([bytes[0], bytes[1]]))
            } else {
                u64::from(*bytes.last()?)
            })
        };
        let values = records
            .iter()
            .map(|record| elements.map(|element| last(record, element)));
        values.collect::<Vec<_>>()
    };
    let tcp = translated(flows::tcp(), NatSide::Original);
    let behind = [Some(7), Some(8), Some(61_000), Some(8443)];
    assert_eq!(post(tcp.clone(), POST_V4, true), [behind]);
    // Answers have passed the translation.
    let [source, destination] = [tcp.src(), tcp.dst()];
    let own = |end: &proto::Endpoint| end.addr.last().copied().map(u64::from);
    let of_answers = [
        own(destination),
        own(source),
        destination.port.map(u64::from),
        source.port.map(u64::from),
    ];
    assert_eq!(post(tcp, POST_V4, false), [behind, of_answers]);
    let ping = translated(flows::ping6(), NatSide::Original);
    assert_eq!(post(ping, POST_V6, true), [[Some(7), Some(8), None, None]]);
    for other in [
        flows::tcp(),
        translated(flows::tcp(), NatSide::Translated),
        translated(flows::udp_with_tags(), NatSide::Original),
    ] {
        assert_eq!(post(other, POST_V4, true), [[None; 4]]);
    }
}

#[test]
fn a_record_and_its_template_have_room_in_the_shortest_message() {
    for (is_biflow, enterprise) in [
        (true, None),
        (false, None),
        (true, Some(collector::OWN)),
        (false, Some(collector::OWN)),
    ] {
        let settings = Settings {
            is_biflow,
            enterprise,
            ..Settings::datagrams()
        };
        let lengths = Lengths::new(settings.form());
        for number in 0..Shape::COUNT as u8 {
            let shape = Shape::from_number(number);
            let record = FlowRecord::default();
            let flow = Flow::new(&record, Octets::Ip);
            let specifiers = specifiers(&flow, shape, &settings);
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
fn times_are_those_of_what_a_record_counts_and_the_flows_own_start_is_apart() {
    for is_biflow in [true, false] {
        for enterprise in [None, Some(collector::OWN)] {
            let settings = Settings {
                is_biflow,
                enterprise,
                ..Settings::datagrams()
            };
            let flow = flows::tcp();
            let last_ms = flow.last_seen_unix_ns / 1_000_000;
            let messages = send(
                &mut encoder(settings),
                &flows::batch(1),
                std::slice::from_ref(&flow),
            );
            let records = of_flows(read(&mut Collector::default(), &messages));
            assert_eq!(records.len(), if is_biflow { 1 } else { 2 });
            for record in records {
                let [start, end] = [152, 153].map(|number| record.number(number));
                assert_eq!([start, end], [Some(last_ms - 500), Some(last_ms)]);
                // In units of 2^-32 seconds.
                let [start, end] = [156, 157].map(|number| record.number(number).unwrap());
                assert_eq!(end - start, 1 << 31);
                let first_ms = flow.first_seen_unix_ns / 1_000_000;
                assert_eq!(record.own(1036), enterprise.map(|_| first_ms));
            }
        }
    }
}

#[test]
fn a_record_without_packets_is_only_sent_on_demand_and_the_last_one_with_packets_tells_a_close() {
    let living = FlowRecord {
        end_reason: None,
        ..flows::tcp()
    };
    let closing = FlowRecord {
        closing: true,
        ..living.clone()
    };
    let flows = [living, closing, flows::quiet(), flows::tcp()];
    for is_biflow in [true, false] {
        let sides = if is_biflow { 1 } else { 2 };
        for (end_records, reasons) in [(false, &[2, 3, 3][..]), (true, &[2, 3, 1, 3])] {
            let settings = Settings {
                is_biflow,
                end_records,
                ..Settings::datagrams()
            };
            let mut encoder = encoder(settings);
            let messages = send(&mut encoder, &flows::batch(1), &flows);
            let records = of_flows(read(&mut Collector::default(), &messages));
            let is_empty = |record: &&Record| {
                record.number(2) == Some(0) && record.reverse(2).unwrap_or(0) == 0
            };
            assert_eq!(
                records.iter().filter(is_empty).count(),
                usize::from(end_records)
            );
            assert_eq!(records.len(), 3 * sides + usize::from(end_records));
            let mut told: Vec<_> = records
                .iter()
                .filter_map(|record| record.number(136))
                .collect();
            told.dedup();
            let mut expected = reasons.to_vec();
            expected.dedup();
            assert_eq!(told, expected);
            // What is left out takes no message of its own.
            let quiet = encoder.message(&flows::batch(1), &[flows::quiet()]);
            assert_eq!((quiet.flows, quiet.bytes.is_empty()), (1, !end_records));
            assert_eq!(quiet.skipped, usize::from(!end_records));
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
    // They are due, and options with them.
    datagrams.refreshed = Instant::now().checked_sub(DEFAULT_TEMPLATE_REFRESH);
    assert_eq!(count(&mut datagrams, &mut collector), 2);
    assert_eq!(count(&mut datagrams, &mut collector), 0);
    // Who missed that sampling has ended would still scale.
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
            let name = String::from_utf8(record.bytes((82, 0))?.to_vec()).unwrap();
            Some((record.number(10)?, name.trim_end_matches('\0').to_owned()))
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
