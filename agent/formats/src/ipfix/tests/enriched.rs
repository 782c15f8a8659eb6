//! What was found out about flows, under an enterprise number.

use proto::{Cgroup, Endpoint, Failure, HostName, NameSource, Process};

use super::{collector::OWN, *};
use crate::ipfix::enriched::{MOST_NAME_BYTES, len_bytes};

const ALL_BITS: u64 = u32::MAX as u64;

fn settings(is_biflow: bool) -> Settings {
    Settings {
        is_biflow,
        enterprise: Some(OWN),
        ..Settings::datagrams()
    }
}

fn batch() -> FlowBatch {
    let cgroup = |id: u64, unit: &str, container_id: &str| Cgroup {
        id,
        unit: unit.to_owned(),
        container_id: container_id.to_owned(),
        ..Cgroup::default()
    };
    FlowBatch {
        cgroups: vec![
            cgroup(7, "web.service", ""),
            cgroup(8, &"ä".repeat(MOST_NAME_BYTES), "c0ffee"),
        ],
        processes: vec![Process {
            key: 4711 << 32,
            pid: 4711,
            name: "nginx".to_owned(),
            uid: Some(33),
        }],
        hosts: vec![HostName {
            id: 5,
            name: "www.example".to_owned(),
        }],
        ..flows::batch(1)
    }
}

fn enriched() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            cgroup_id: Some(7),
            process_key: Some(4711 << 32),
            tcp_min_rtt_us: Some(70),
            tcp_total_retrans: Some(0),
            tcp_delivered: Some(3),
            tcp_delivered_ce: Some(1),
            tcp_data_segs_out: Some(2),
            tcp_snd_cwnd: Some(10),
            tcp_delivery_rate: Some(1 << 33),
            total_dropped_packets: 4,
            ..flows::tcp().src().clone()
        }),
        dst: Some(Endpoint {
            cgroup_id: Some(8),
            sender_shared: true,
            host_id: Some(5),
            host_source: NameSource::Dns.into(),
            handshake_rtt_us: Some(200),
            ack_rtt_us: Some(300),
            total_dropped_packets: 5,
            ..flows::tcp().dst().clone()
        }),
        failure: Some(Failure::Unreachable.into()),
        icmp_error_type: Some(3),
        icmp_error_code: Some(1),
        ..flows::tcp()
    }
}

#[test]
fn a_record_has_what_was_found_out_from_its_source_on() {
    for is_biflow in [true, false] {
        let mut encoder = encoder(settings(is_biflow));
        let mut collector = Collector::default();
        let flows = [enriched(), flows::tcp()];
        let messages = send(&mut encoder, &batch(), &flows);
        let records = of_flows(read(&mut collector, &messages));
        let (enriched, plain): (Vec<_>, Vec<_>) = records
            .iter()
            .partition(|record| record.own(1007).is_some());
        let sides = if is_biflow { 1 } else { 2 };
        assert_eq!((enriched.len(), plain.len()), (sides, sides));
        // From the destination's side the two ends change places.
        for (record, swap) in enriched.iter().zip([0, 1]) {
            let text = |number: u16| record.own_text(number + swap).unwrap();
            let other_text = |number: u16| record.own_text(number + 1 - swap).unwrap();
            let number = |number: u16| record.own(number + swap).unwrap();
            let other = |number: u16| record.own(number + 1 - swap).unwrap();
            assert_eq!((text(1001), text(1003)), ("web.service", ""));
            assert_eq!(other_text(1001), "ä".repeat(MOST_NAME_BYTES / 2));
            assert_eq!(other_text(1003), "c0ffee");
            assert_eq!(
                (text(1005), number(1007), number(1009)),
                ("nginx", 4711, 33)
            );
            assert_eq!(
                (other_text(1005), other(1007), other(1009)),
                ("", ALL_BITS, ALL_BITS)
            );
            assert_eq!((text(1011), text(1013)), ("", ""));
            assert_eq!((other_text(1011), other_text(1013)), ("www.example", "dns"));
            let tcp = [1015, 1017, 1019, 1021, 1023, 1025];
            assert_eq!(tcp.map(number), [ALL_BITS, 70, 0, 3, 1, 2]);
            assert_eq!(tcp.map(other), [ALL_BITS; 6]);
            assert_eq!([1037, 1039].map(number), [10, 1 << 33]);
            assert_eq!([1037, 1039].map(other), [ALL_BITS, u64::MAX]);
            assert_eq!([1027, 1029].map(number), [ALL_BITS; 2]);
            assert_eq!([1027, 1029].map(other), [200, 300]);
            assert_eq!((number(1034), other(1034)), (0, 1));
            assert_eq!(record.own_text(1031), Some("unreachable"));
            assert_eq!(
                [1032, 1033].map(|number| record.own(number)),
                [Some(3), Some(1)]
            );
            let dropped = [4, 5].map(Some);
            assert_eq!(record.number(135), dropped[usize::from(swap)]);
            assert_eq!(record.reverse(135), dropped[1].filter(|_| is_biflow));
        }
        for record in plain {
            let fields = record.fields.iter();
            let own = fields.filter(|((_, enterprise), _)| *enterprise == OWN);
            assert_eq!(
                own.map(|((number, _), _)| *number).collect::<Vec<_>>(),
                [1036]
            );
        }
    }
}

#[test]
fn without_an_enterprise_number_nothing_is_said() {
    let mut encoder = encoder(Settings::datagrams());
    let mut collector = Collector::default();
    let records = of_flows(read(
        &mut collector,
        &send(&mut encoder, &batch(), &[enriched()]),
    ));
    let plain = self::encoder(Settings::datagrams());
    let mut plain = (plain, Collector::default());
    let expected = send(&mut plain.0, &batch(), &[flows::tcp()]);
    assert_eq!(records, of_flows(read(&mut plain.1, &expected)));
}

#[test]
fn what_has_no_room_in_any_message_goes_without() {
    let longest = FlowRecord {
        src: Some(Endpoint {
            cgroup_id: Some(8),
            ..enriched().src().clone()
        }),
        ..enriched()
    };
    let batch = batch();
    let row = Row::new(&batch, &longest, None);
    let shape = Shape::of(&longest, false).enriched();
    let flow = Flow::new(&longest, Octets::Ip).with(&row);
    let settings = settings(false);
    let specifiers = specifiers(&flow, shape, &settings);
    let record = Lengths::new(settings.form()).of(shape) + len_bytes(&row, false);
    let (template, records) = (specifiers.bytes.len() + 14, 4 + 2 * record);
    // If the two have no room together, the template goes ahead.
    let least = message::HEADER_LEN_BYTES + records;
    assert!(template < records && least < 1_400);
    let together = least + template;
    for (most_bytes, is_enriched) in [
        (together, true),
        (1_400, true),
        (least, true),
        (least - 1, false),
        (512, false),
    ] {
        let mut encoder = encoder(Settings {
            message_len_bytes: most_bytes,
            ..settings.clone()
        });
        let mut collector = Collector::default();
        let messages = send(&mut encoder, &batch, &vec![longest.clone(); 5]);
        assert!(messages.iter().all(|message| message.len() <= most_bytes));
        let records = of_flows(read(&mut collector, &messages));
        assert_eq!(records.len(), 10);
        let has_own = |record: &Record| record.own(1007).is_some();
        assert!(records.iter().all(|record| has_own(record) == is_enriched));
    }
}
