mod names;
mod records;

use agent_common::{Counts, Encapsulation, FlowKey, L4Kind, Outer, Pair, Reason, TcpInfo};
use proto::{
    EndReason, Failure, NameSource,
    limits::MAX_BATCH_BYTES,
    record::{Address, EndFields, Fields, VlanIds},
};

use super::*;

fn identity() -> Arc<Identity> {
    Arc::new(Identity {
        agent_id: "agent-1".into(),
        hostname: "host".into(),
        boot_id: "boot".into(),
        instance_id: "instance".into(),
        version: "0.0.0".into(),
        identity: String::new(),
    })
}

fn header(interfaces: u32) -> ScanHeader {
    let interfaces = (1..=interfaces).map(|ifindex| Interface {
        ifindex,
        name: format!("eth{ifindex}"),
        netns: 7,
        ..Interface::default()
    });
    ScanHeader {
        scan_id: 3,
        window_start_unix_ns: 10,
        window_end_unix_ns: 20,
        capacity: 500_000,
        refused_in_window: true,
        interfaces: interfaces.collect(),
    }
}

fn trailer(account: &HookAccount) -> ScanTrailer<'_> {
    ScanTrailer {
        occupancy: 1,
        tracked: 8,
        account,
        is_final: false,
    }
}

#[test]
fn the_first_scan_after_a_longer_report_interval_still_says_how_late_its_records_may_be() {
    let mut encoder = BatchEncoder::new(identity()).reporting(Duration::from_secs(10));
    let mut said = Vec::new();
    let mut scan = |asked: Option<u64>, is_snapshot: bool| {
        if let Some(seconds) = asked {
            encoder.report_every(Duration::from_secs(seconds), seconds > 10);
        }
        let mut sink = |batch: Batch| {
            let batch = FlowBatch::decode(batch.body).unwrap();
            said.push((
                batch.report_interval_ns / 1_000_000_000,
                batch.report_interval_asked,
            ));
        };
        if is_snapshot {
            encoder.another().begin_snapshot(&header(1));
            return;
        }
        encoder.begin(&header(1));
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
    };
    scan(None, false);
    scan(Some(300), false);
    scan(Some(300), false);
    // Before the next scan, one call shortens the interval, and another lengthens it again.
    scan(Some(10), true);
    scan(Some(60), false);
    scan(Some(60), false);
    scan(Some(10), false);
    scan(Some(10), false);
    let expected = [
        (10, false),
        (300, true),
        (300, true),
        (300, true),
        (60, true),
        (60, true),
        (10, false),
    ];
    assert_eq!(said, expected);
}

fn encode(header: &ScanHeader, records: &[Record]) -> Vec<Batch> {
    let mut encoder = BatchEncoder::new(identity());
    let mut batches = Vec::new();
    // Each batch has all interfaces. Too many batches would use up the machine's memory before a test fails.
    let mut sink = |batch| {
        batches.push(batch);
        assert!(batches.len() < 100, "a batch for hardly a record");
    };
    let mut account = HookAccount::default();
    account.add(Reason::Seen, 9, 900);
    encoder.begin(header);
    for record in records {
        encoder.push(record, &mut sink);
    }
    let trailer = ScanTrailer {
        occupancy: records.len() as u64,
        ..trailer(&account)
    };
    encoder.finish(&trailer, &mut sink);
    batches
}

fn decode(batch: &Batch) -> FlowBatch {
    FlowBatch::decode(batch.body.clone()).unwrap()
}

/// A record with every field at its longest.
fn longest_record() -> Record {
    let most = Counts {
        packets: u64::MAX,
        bytes: u64::MAX,
        ip_bytes: u64::MAX,
    };
    let key = FlowKey {
        addr_a: [0xff; 16],
        addr_b: [0xff; 16],
        netns: u32::MAX,
        ifindex: u32::MAX,
        vlan_ids: [u16::MAX; 2],
        port_a: u16::MAX,
        port_b: u16::MAX,
        ip_version: 6,
        protocol: u8::MAX,
        l4_kind: L4Kind::IcmpQuery as u8,
        encapsulation: Encapsulation::Vxlan as u8,
        tunnel_id: u32::MAX,
    };
    let mut record = Record::new(key, 1);
    record.set_outer(&Outer {
        addr_a: [0xff; 16],
        addr_b: [0xff; 16],
        ip_version: 6,
        has_pppoe_session: 1,
        pppoe_session: u16::MAX,
        vlan_ids: [0xfff; 2],
    });
    let fields = &mut record.fields;
    fields.initiator_assumed = true;
    fields.delta_duration_ns = u64::MAX;
    fields.first_seen_unix_ns = u64::MAX;
    fields.last_seen_unix_ns = u64::MAX;
    fields.end_reason = Some(EndReason::LackOfResources);
    fields.closing = true;
    fields.community_id = [0xff; 20];
    fields.failure = Some(Failure::Unreachable);
    fields.icmp_error_type = Some(u8::MAX.into());
    fields.icmp_error_code = Some(u8::MAX.into());
    for end in [&mut fields.src, &mut fields.dst] {
        *end = EndFields {
            direction: proto::Direction::Egress,
            port: Some(u16::MAX.into()),
            tcp_flags: Some(u8::MAX.into()),
            dscp: Some(63),
            dscp_changed: true,
            cgroup_id: Some(u64::MAX),
            process_key: Some(u64::MAX),
            sender_shared: true,
            host_id: Some(u64::MAX),
            host_source: NameSource::HostsFile,
            handshake_rtt_us: Some(u32::MAX),
            ack_rtt_us: Some(u32::MAX),
            total_dropped_packets: u64::MAX,
            ..*end
        };
        end.set_counts(most, most);
        end.set_tcp(TcpInfo {
            min_rtt_us: u32::MAX - 1,
            ..TcpInfo::of_words([u64::MAX; TcpInfo::WORDS])
        });
    }
    record
}

#[test]
fn many_long_records_make_batches_under_the_limit_and_lose_none() {
    let records = vec![longest_record(); 20_000];
    let batches = encode(&header(20_000), &records);
    assert!(batches.len() > 2);
    let mut decoded = 0;
    for (index, batch) in batches.iter().enumerate() {
        assert!(batch.body.len() < MAX_BATCH_BYTES);
        let message = decode(batch);
        assert_eq!(message.records.len(), batch.records as usize);
        assert_eq!(
            (message.batch_index, batch.index),
            (index as u32, index as u32)
        );
        assert_eq!(message.interfaces.len(), 20_000);
        assert_eq!(message.last_of_scan, index + 1 == batches.len());
        assert_eq!(message.account.is_some(), message.last_of_scan);
        decoded += message.records.len();
    }
    assert_eq!(decoded, records.len());
}

#[test]
fn an_empty_scan_makes_one_batch_with_the_account() {
    let batches = encode(&header(1), &[]);
    assert_eq!(batches.len(), 1);
    assert_eq!((batches[0].records, batches[0].last_of_scan), (0, true));
    let message = decode(&batches[0]);
    assert_eq!(message.agent.as_ref(), Some(&*identity()));
    assert_eq!(message.scan_id, 3);
    assert_eq!(
        (message.window_start_unix_ns, message.window_end_unix_ns),
        (10, 20)
    );
    assert_eq!(
        (message.table_occupancy, message.table_capacity),
        (Some(0), 500_000)
    );
    assert_eq!(message.tracked_flows, Some(8));
    assert!(message.refused_in_window && message.last_of_scan);
    let account = message.account.unwrap();
    assert_eq!(
        Pair::from(account.seen.unwrap()),
        Pair {
            packets: 9,
            bytes: 900
        }
    );
    assert_eq!(account.unparsed.len(), Reason::UNPARSED.len());
}

#[test]
fn an_encoder_starts_every_scan_anew() {
    let mut encoder = BatchEncoder::new(identity());
    let account = HookAccount::default();
    for scan_id in 1..4 {
        encoder.begin(&ScanHeader {
            scan_id,
            ..header(1)
        });
        encoder.push(&longest_record(), &mut |_| panic!("one record fits"));
        let mut batches = Vec::new();
        let trailer = ScanTrailer {
            is_final: scan_id == 3,
            ..trailer(&account)
        };
        encoder.finish(&trailer, &mut |batch| batches.push(batch));
        let message = decode(&batches[0]);
        assert_eq!((batches.len(), message.records.len()), (1, 1));
        assert_eq!((message.scan_id, message.batch_index), (scan_id, 0));
        assert_eq!(message.account.unwrap().r#final, scan_id == 3);
    }
}

/// A record that takes this many bytes of a batch, from 143 to 303.
fn record_of(len_bytes: usize) -> Record {
    let mut record = longest_record();
    let fields = &mut record.fields;
    (fields.delta_duration_ns, fields.closing) = (0, false);
    (
        fields.failure,
        fields.icmp_error_type,
        fields.icmp_error_code,
    ) = (None, None, None);
    for end in [&mut fields.src, &mut fields.dst] {
        *end = EndFields {
            addr: end.addr,
            outer_addr: end.outer_addr,
            direction: end.direction,
            cgroup_id: end.cgroup_id,
            process_key: end.process_key,
            ..EndFields::default()
        };
    }
    let taken = |record: &Record| {
        let [one, two] = [1, 2].map(|count| encode(&header(1), &vec![*record; count]));
        two[0].body.len() - one[0].body.len()
    };
    if taken(&record) > len_bytes {
        record.outer_pppoe_session = None;
        record.outer_vlan_ids = VlanIds::default();
    }
    if taken(&record) > len_bytes {
        for end in [&mut record.fields.src, &mut record.fields.dst] {
            end.addr = Address::new(4, [0xff; 16]);
            end.outer_addr = Address::default();
        }
    }
    let mut missing = len_bytes - taken(&record);
    let Fields { src, dst, .. } = &mut record.fields;
    for counter in [
        &mut src.delta_packets,
        &mut src.delta_bytes,
        &mut dst.delta_packets,
        &mut dst.delta_bytes,
        &mut src.total_packets,
        &mut src.total_bytes,
        &mut dst.total_packets,
        &mut dst.total_bytes,
    ] {
        // A counter takes a tag and 1 to 10 bytes, or nothing.
        let len = match missing {
            0 => break,
            12 => 10,
            _ => missing.min(11),
        };
        *counter = 1 << (7 * (len - 2));
        missing -= len;
    }
    assert_eq!(taken(&record), len_bytes);
    record
}

#[test]
fn a_batch_takes_what_fits_and_is_closed_before_the_record_that_does_not() {
    // 1,024 times 256 bytes is exactly the limit of a batch; 1,417 times 185 is one byte more.
    for (len_bytes, fit) in [(256, 1024), (185, 1416)] {
        let batches = encode(&header(1), &vec![record_of(len_bytes); fit + 1]);
        let records = batches.iter().map(|batch| batch.records as usize);
        assert_eq!(records.collect::<Vec<_>>(), [fit, 1]);
    }
}

#[test]
fn the_longest_batch_has_room_for_its_account_from_the_start_and_not_much_more() {
    let mut account = HookAccount::default();
    for &reason in Reason::ALL {
        account.add(reason, u64::MAX, u64::MAX);
    }
    let mut encoder = BatchEncoder::new(identity());
    encoder.begin(&header(1));
    let room = encoder.open.body.capacity();
    let record = record_of(256);
    for _ in 0..BATCH_LEN_BYTES / 256 {
        encoder.push(&record, &mut |_| panic!("all of them fit"));
    }
    encoder.finish(&trailer(&account), &mut |batch| {
        let len = batch.body.len();
        assert!(
            len <= room && room < len + 2 * TRAILER_LEN_BYTES,
            "{len} {room}"
        );
    });
}

#[test]
fn a_small_batch_that_waits_holds_no_large_buffer() {
    let mut encoder = BatchEncoder::new(identity());
    let account = HookAccount::default();
    let record = record_of(256);
    for (records, is_copied) in [(1, true), (500, true), (520, false), (1000, false)] {
        let mut batches = Vec::new();
        encoder.begin(&header(1));
        for _ in 0..records {
            encoder.push(&record, &mut |_| panic!("all of them fit"));
        }
        encoder.finish(&trailer(&account), &mut |batch| batches.push(batch));
        // A batch that shares the encoder's buffer does not own its bytes alone.
        let own = batches.remove(0).body.try_into_mut();
        assert_eq!(own.is_ok(), is_copied, "{records} records");
    }
}

#[test]
fn the_rate_of_sampling_is_told_where_flows_are_left_out() {
    let account = HookAccount::default();
    for rate in [0, 2, 100] {
        let mut encoder = BatchEncoder::new(identity());
        encoder.sample(Sampling {
            rate,
            is_asked: rate > 1,
        });
        encoder.begin(&header(1));
        encoder.finish(&trailer(&account), &mut |batch| {
            let message = decode(&batch);
            let account = message.account.unwrap();
            assert_eq!((message.sample_rate, account.sample_rate), (rate, rate));
        });
    }
}
