use agent_common::{
    Counts, Direction, Encapsulation, FlowKey, L4Kind, Outer, Pair, Reason, TcpInfo,
};
use proptest::prelude::*;
use proto::{
    FlowRecord, batch,
    record::{EndReason, Failure, IcmpError, NameOrigin, RecordName},
    round_trip::RoundTrip,
    tcp::Tcp,
};
use rules::Facts;

use super::*;

/// gRPC's default limit.
const MESSAGE_LIMIT_BYTES: usize = 4 << 20;

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

fn counts() -> impl Strategy<Value = Counts> {
    // Makes every length of a varint equally likely.
    let number =
        || (any::<u64>(), 0..=64u32).prop_map(|(bits, len)| bits.checked_shr(len).unwrap_or(0));
    (number(), number(), number()).prop_map(|(packets, bytes, ip_bytes)| Counts {
        packets,
        bytes,
        ip_bytes,
    })
}

fn key() -> impl Strategy<Value = FlowKey> {
    let names = (any::<u32>(), any::<u32>(), any::<[u16; 2]>());
    let tunnel = (0..=7u8, any::<u32>());
    (
        any::<([u8; 16], [u8; 16])>(),
        names,
        any::<(u16, u16)>(),
        any::<bool>(),
        any::<u8>(),
        (0..=4u8, 0..=1u8),
        tunnel,
    )
        .prop_map(
            |(addr, (netns, ifindex, vlan_ids), port, v4, protocol, (l4_kind, side), tunnel)| {
                let mut key = FlowKey {
                    addr_a: addr.0,
                    addr_b: addr.1,
                    netns,
                    ifindex,
                    vlan_ids,
                    port_a: port.0,
                    port_b: port.1,
                    ip_version: if v4 { 4 } else { 6 },
                    protocol: if protocol < 128 { TCP } else { protocol },
                    l4_kind,
                    encapsulation: tunnel.0,
                    tunnel_id: tunnel.1,
                };
                if v4 {
                    key.addr_a[4..].fill(0);
                    key.addr_b[4..].fill(0);
                }
                key.with_side(side)
            },
        )
}

fn outer() -> impl Strategy<Value = Outer> {
    let link = (any::<[u16; 2]>(), any::<bool>(), any::<u16>());
    (any::<[[u8; 16]; 2]>(), any::<bool>(), link).prop_map(
        |([addr_a, addr_b], is_ipv4, (vlan_ids, has_session, session))| Outer {
            addr_a,
            addr_b,
            ip_version: if is_ipv4 { 4 } else { 6 },
            has_pppoe_session: has_session.into(),
            pppoe_session: if has_session { session } else { 0 },
            vlan_ids,
        },
    )
}

type OfEnds = (
    [u64; 2],
    [u64; 2],
    [TcpInfo; 2],
    [Option<RecordName>; 2],
    Option<Failure>,
    [RoundTrip; 2],
    [u64; 2],
);

/// Cgroups, processes, TCP state, names, failures, round trips, and drops.
fn senders() -> impl Strategy<Value = OfEnds> {
    let both = || (0..3_u64, any::<u64>()).prop_map(<[u64; 2]>::from);
    let tcp = [tcp_info(), tcp_info()];
    let names = [name(), name()];
    let round_trips = [round_trip(), round_trip()];
    let dropped = both();
    (both(), both(), tcp, names, failure(), round_trips, dropped)
}

/// Often without one.
fn round_trip() -> impl Strategy<Value = RoundTrip> {
    let us = || prop_oneof![Just(0), any::<u32>()];
    (us(), us()).prop_map(|(handshake_us, ack_us)| RoundTrip {
        handshake_us,
        ack_us,
    })
}

fn failure() -> impl Strategy<Value = Option<Failure>> {
    let error = any::<[u8; 2]>().prop_map(|[icmp_type, code]| {
        let error = IcmpError { icmp_type, code };
        Failure::Unreachable(error)
    });
    let failures = prop_oneof![
        Just(Failure::Refused),
        Just(Failure::Unanswered),
        Just(Failure::Reset),
        error
    ];
    proptest::option::of(failures)
}

fn name() -> impl Strategy<Value = Option<RecordName>> {
    let sources = [
        NameOrigin::Dns,
        NameOrigin::DnsOfAnother,
        NameOrigin::HostsFile,
    ];
    let name = (1..=u64::MAX, proptest::sample::select(sources.to_vec()));
    proptest::option::of(name.prop_map(|(id, source)| RecordName { id, source }))
}

/// Often without round trips, or entirely unknown.
fn tcp_info() -> impl Strategy<Value = TcpInfo> {
    let min_rtt_us = prop_oneof![Just(0), Just(TcpInfo::NO_RTT), any::<u32>()];
    (0..3_u32, min_rtt_us, any::<[u32; 4]>()).prop_map(|(rtt_us, min_rtt_us, counts)| {
        let [total_retrans, delivered, delivered_ce, data_segs_out] = counts;
        TcpInfo {
            rtt_us,
            min_rtt_us,
            total_retrans,
            delivered,
            delivered_ce,
            data_segs_out,
        }
    })
}

fn record() -> impl Strategy<Value = Record> {
    let counters = ([counts(), counts()], [counts(), counts()]);
    let rest = (
        any::<u64>(),
        any::<u64>(),
        any::<[u8; 2]>(),
        0..64u8,
        any::<[u8; 20]>(),
        proptest::option::of(outer()),
        senders(),
    );
    let directions = (any::<bool>(), any::<bool>(), any::<bool>());
    (key(), 0..=1u8, directions, counters, rest, 0..=5u8).prop_map(
        |(
            key,
            initiator,
            directions,
            (delta, total),
            (first, last, tcp_flags, dscp, community_id, outer, of_ends),
            end,
        )| {
            let (cgroup_ids, process_keys, tcp, names, failure, round_trips, dropped) = of_ends;
            Record {
                key,
                initiator,
                initiator_assumed: directions.2,
                direction: Direction::from_bit(directions.0.into()),
                reverse_direction: Direction::from_bit(directions.1.into()),
                delta,
                delta_duration_ns: last >> 1,
                total,
                first_seen_unix_ns: first,
                last_seen_unix_ns: last,
                tcp_flags,
                dscp,
                end_reason: match end {
                    1 => Some(EndReason::IdleTimeout),
                    2 => Some(EndReason::ActiveTimeout),
                    3 => Some(EndReason::EndOfFlow),
                    4 => Some(EndReason::ForcedEnd),
                    5 => Some(EndReason::LackOfResources),
                    _ => None,
                },
                is_closing: first % 2 == 1,
                community_id,
                outer: outer.filter(|_| key.encapsulation != 0),
                cgroup_ids,
                process_keys,
                senders_shared: [directions.1, directions.2],
                tcp,
                names,
                failure,
                round_trips,
                dropped,
            }
        },
    )
}

const TCP: u8 = 6;

/// The message according to its definition, without regard to speed.
fn side(direction: Direction) -> i32 {
    match direction {
        Direction::Ingress => proto::Direction::Ingress,
        Direction::Egress => proto::Direction::Egress,
    }
    .into()
}

fn expected(record: &Record) -> FlowRecord {
    let key = &record.key;
    let len = if key.ip_version == 4 { 4 } else { 16 };
    let mut ends = [(key.addr_a, key.port_a), (key.addr_b, key.port_b)];
    if record.initiator == 1 {
        ends.reverse();
    }
    let kind = key.kind().unwrap();
    let has_ports = kind == L4Kind::Ports;
    let is_icmp = matches!(kind, L4Kind::Icmp | L4Kind::IcmpQuery);
    let is_tcp = has_ports && key.protocol == TCP;
    let tcp = record.tcp.map(Tcp::of);
    FlowRecord {
        protocol: key.protocol.into(),
        src_addr: Bytes::copy_from_slice(&ends[0].0[..len]),
        dst_addr: Bytes::copy_from_slice(&ends[1].0[..len]),
        src_port: has_ports.then_some(ends[0].1.into()),
        dst_port: has_ports.then_some(ends[1].1.into()),
        delta_packets: record.delta[0].packets,
        delta_bytes: record.delta[0].bytes,
        delta_reverse_packets: record.delta[1].packets,
        delta_reverse_bytes: record.delta[1].bytes,
        delta_ip_bytes: record.delta[0].ip_bytes,
        delta_reverse_ip_bytes: record.delta[1].ip_bytes,
        total_packets: record.total[0].packets,
        total_bytes: record.total[0].bytes,
        total_reverse_packets: record.total[1].packets,
        total_reverse_bytes: record.total[1].bytes,
        total_ip_bytes: record.total[0].ip_bytes,
        total_reverse_ip_bytes: record.total[1].ip_bytes,
        first_seen_unix_ns: record.first_seen_unix_ns,
        last_seen_unix_ns: record.last_seen_unix_ns,
        ip_version: key.ip_version.into(),
        ifindex: key.ifindex,
        netns: key.netns,
        vlan_ids: tags(key.vlan_ids),
        icmp_type: is_icmp.then_some((key.port_a >> 8).into()),
        icmp_code: is_icmp.then_some((key.port_a & 0xff).into()),
        icmp_identifier: (kind == L4Kind::IcmpQuery).then_some(key.port_b.into()),
        later_fragment: kind == L4Kind::Fragment,
        tcp_flags: is_tcp.then_some(record.tcp_flags[0].into()),
        reverse_tcp_flags: is_tcp.then_some(record.tcp_flags[1].into()),
        dscp: Some(record.dscp.into()),
        end_reason: record.end_reason.map(|reason| reason as i32),
        community_id: Bytes::copy_from_slice(&record.community_id),
        // 7 is GRE (5) without a key.
        encapsulation: match key.encapsulation {
            0 => None,
            7 => Some(5),
            known => Some(known.into()),
        },
        tunnel_id: tunnel_id(key),
        outer_src_addr: outer_addr(record, 0),
        outer_dst_addr: outer_addr(record, 1),
        direction: side(record.direction),
        reverse_direction: if record.direction == record.reverse_direction {
            side(record.direction)
        } else {
            0
        },
        outer_vlan_ids: record.outer.map_or_else(Vec::new, |it| tags(it.vlan_ids)),
        outer_pppoe_session: record
            .outer
            .filter(|outer| outer.has_pppoe_session != 0)
            .map(|outer| outer.pppoe_session.into()),
        src_cgroup_id: Some(record.cgroup_ids[0]).filter(|&id| id != 0),
        dst_cgroup_id: Some(record.cgroup_ids[1]).filter(|&id| id != 0),
        src_process_key: Some(record.process_keys[0]).filter(|&key| key != 0),
        dst_process_key: Some(record.process_keys[1]).filter(|&key| key != 0),
        src_tcp_rtt_us: tcp[0].rtt_us,
        dst_tcp_rtt_us: tcp[1].rtt_us,
        src_tcp_min_rtt_us: tcp[0].min_rtt_us,
        dst_tcp_min_rtt_us: tcp[1].min_rtt_us,
        src_tcp_total_retrans: tcp[0].total_retrans,
        dst_tcp_total_retrans: tcp[1].total_retrans,
        src_tcp_delivered: tcp[0].delivered,
        dst_tcp_delivered: tcp[1].delivered,
        src_tcp_delivered_ce: tcp[0].delivered_ce,
        dst_tcp_delivered_ce: tcp[1].delivered_ce,
        src_tcp_data_segs_out: tcp[0].data_segs_out,
        dst_tcp_data_segs_out: tcp[1].data_segs_out,
        src_host_id: record.names[0].map(|name| name.id),
        dst_host_id: record.names[1].map(|name| name.id),
        src_host_source: record.names[0].map_or(0, |name| name.source as i32),
        dst_host_source: record.names[1].map_or(0, |name| name.source as i32),
        failure: record.failure.map(number_of),
        icmp_error_type: error(record).map(|error| error.icmp_type.into()),
        icmp_error_code: error(record).map(|error| error.code.into()),
        src_handshake_rtt_us: measured(record.round_trips[0].handshake_us),
        dst_handshake_rtt_us: measured(record.round_trips[1].handshake_us),
        src_ack_rtt_us: measured(record.round_trips[0].ack_us),
        dst_ack_rtt_us: measured(record.round_trips[1].ack_us),
        total_dropped_packets: record.dropped[0],
        total_reverse_dropped_packets: record.dropped[1],
        initiator_assumed: record.initiator_assumed,
        src_sender_shared: record.senders_shared[0],
        dst_sender_shared: record.senders_shared[1],
        delta_duration_ns: record.delta_duration_ns,
        closing: record.is_closing,
    }
}

fn tunnel_id(key: &FlowKey) -> Option<u32> {
    match key.encapsulation {
        1 | 3 | 4 | 5 => Some(key.tunnel_id),
        7 => Some(0),
        _ => None,
    }
}

fn number_of(failure: Failure) -> i32 {
    match failure {
        Failure::Refused => 1,
        Failure::Unanswered => 2,
        Failure::Unreachable(_) => 3,
        Failure::Reset => 4,
    }
}

fn measured(us: u32) -> Option<u32> {
    Some(us).filter(|&us| us != 0)
}

fn error(record: &Record) -> Option<IcmpError> {
    match record.failure {
        Some(Failure::Unreachable(error)) => Some(error),
        Some(Failure::Refused | Failure::Unanswered | Failure::Reset) | None => None,
    }
}

fn tags(ids: [u16; 2]) -> Vec<u32> {
    ids.into_iter()
        .filter(|&id| id != 0)
        .map(u32::from)
        .collect()
}

proptest! {
    #[test]
    fn a_decoded_record_says_what_went_in(records in proptest::collection::vec(record(), 1..20)) {
        let batches = encode(&header(2), &records);
        prop_assert_eq!(batches.len(), 1);
        let message = decode(&batches[0]);
        let expected: Vec<FlowRecord> = records.iter().map(expected).collect();
        prop_assert_eq!(&message.records, &expected);
        // As many bytes as prost writes, so nothing is encoded in a longer form than it needs.
        prop_assert_eq!(message.encoded_len(), batches[0].body.len());
    }

    /// Without this, nobody would notice if all of them were left to prost.
    #[test]
    fn the_agents_own_batches_are_read_by_hand(mut records in proptest::collection::vec(record(), 0..10)) {
        // Clears the top bit: no flow counts that far, and the varint would have ten bytes.
        for count in records.iter_mut().flat_map(|record| [&mut record.delta, &mut record.total]).flatten() {
            count.packets &= u64::MAX >> 1;
            count.bytes &= u64::MAX >> 1;
            count.ip_bytes &= u64::MAX >> 1;
        }
        for record in &mut records {
            let named = record.names.iter_mut().flatten().map(|name| &mut name.id);
            let ids = record.cgroup_ids.iter_mut().chain(&mut record.process_keys);
            let ids = ids.chain(&mut record.dropped);
            for id in ids.chain(named) {
                *id &= u64::MAX >> 1;
            }
        }
        for batch in encode(&header(2), &records) {
            let theirs = FlowBatch::decode(batch.body.clone()).unwrap();
            prop_assert_eq!(batch::by_hand(&batch.body), Some(theirs));
        }
    }

    #[test]
    fn rules_see_the_same_in_a_record_and_in_its_message(record in record()) {
        prop_assert_eq!(Facts::from(&record), Facts::from(&expected(&record)));
    }
}

fn outer_addr(record: &Record, side: u8) -> Bytes {
    record.outer.map_or_else(Bytes::new, |outer| {
        let addr = if side == record.initiator {
            outer.addr_a
        } else {
            outer.addr_b
        };
        Bytes::copy_from_slice(&addr[..if outer.ip_version == 4 { 4 } else { 16 }])
    })
}

/// A record with every field at its longest.
fn longest_record() -> Record {
    let most = Counts {
        packets: u64::MAX,
        bytes: u64::MAX,
        ip_bytes: u64::MAX,
    };
    Record {
        key: FlowKey {
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
        },
        initiator: 1,
        initiator_assumed: true,
        direction: Direction::Egress,
        reverse_direction: Direction::Egress,
        delta: [most; 2],
        delta_duration_ns: u64::MAX,
        total: [most; 2],
        first_seen_unix_ns: u64::MAX,
        last_seen_unix_ns: u64::MAX,
        tcp_flags: [u8::MAX; 2],
        dscp: 63,
        end_reason: Some(EndReason::LackOfResources),
        is_closing: true,
        community_id: [0xff; 20],
        outer: Some(Outer {
            addr_a: [0xff; 16],
            addr_b: [0xff; 16],
            ip_version: 6,
            has_pppoe_session: 1,
            pppoe_session: u16::MAX,
            vlan_ids: [0xfff; 2],
        }),
        cgroup_ids: [u64::MAX; 2],
        process_keys: [u64::MAX; 2],
        senders_shared: [true; 2],
        tcp: [TcpInfo {
            rtt_us: u32::MAX,
            min_rtt_us: u32::MAX - 1,
            total_retrans: u32::MAX,
            delivered: u32::MAX,
            delivered_ce: u32::MAX,
            data_segs_out: u32::MAX,
        }; 2],
        names: [Some(RecordName {
            id: u64::MAX,
            source: NameOrigin::HostsFile,
        }); 2],
        failure: Some(Failure::Unreachable(IcmpError {
            icmp_type: u8::MAX,
            code: u8::MAX,
        })),
        round_trips: [RoundTrip {
            handshake_us: u32::MAX,
            ack_us: u32::MAX,
        }; 2],
        dropped: [u64::MAX; 2],
    }
}

#[test]
fn many_long_records_make_batches_under_the_limit_and_lose_none() {
    let records = vec![longest_record(); 20_000];
    let batches = encode(&header(20_000), &records);
    assert!(batches.len() > 2);
    let mut decoded = 0;
    for (index, batch) in batches.iter().enumerate() {
        assert!(batch.body.len() < MESSAGE_LIMIT_BYTES);
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
fn each_batch_names_the_cgroups_of_its_own_records() {
    let named = |cgroup_ids| Record {
        cgroup_ids,
        ..longest_record()
    };
    let known = [(3, "/a.service"), (5, "/b.service")];
    let encoder = BatchEncoder::new(identity()).naming(Names {
        cgroups: Some(Cgroups::of_these(&known)),
        ..Names::default()
    });
    for mut encoder in [encoder.another(), encoder] {
        let mut batches = Vec::new();
        let mut sink = |batch: Batch| batches.push(decode(&batch));
        encoder.begin(&header(1));
        for _ in 0..1_000 {
            encoder.push(&named([5, 3]), &mut sink);
        }
        encoder.push(&named([0, 5]), &mut sink);
        encoder.push(&named([9, 0]), &mut sink);
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
        encoder.begin(&header(1));
        encoder.push(&named([0, 0]), &mut sink);
        encoder.push(&named([3, 0]), &mut sink);
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
        let mut said = batches.iter().map(|batch| {
            let cgroups = batch.cgroups.iter();
            cgroups
                .map(|one| (one.id, one.path.as_str()))
                .collect::<Vec<_>>()
        });
        let unknown = (9, "");
        let all = [known[0], known[1], unknown];
        assert!(batches.len() > 2);
        assert_eq!(said.clone().next().unwrap(), known);
        // The records of the last batch may name fewer.
        let last_of_first = said.clone().nth(batches.len() - 2).unwrap();
        assert!(
            last_of_first.ends_with(&[unknown])
                && last_of_first.iter().all(|one| all.contains(one))
        );
        assert_eq!(said.next_back().unwrap(), [known[0]]);
        assert!(
            batches
                .iter()
                .all(|batch| batch.account.is_some() == batch.last_of_scan)
        );
    }
}

#[test]
fn a_batch_names_the_processes_of_its_records_each_once() {
    let process = |pid| agent_common::Process {
        name: [u64::from_ne_bytes(*b"nginx\0\0\0"), 0],
        uid: 33,
        pid,
    };
    let [first, second, third] = [7, 5, 9].map(process);
    let mut encoder = BatchEncoder::new(identity()).naming(Names {
        processes: Some(Processes::of_these(vec![first, second, third])),
        ..Names::default()
    });
    let mut batches = Vec::new();
    let mut sink = |batch: Batch| batches.push(decode(&batch));
    let named = |process_keys| Record {
        process_keys,
        ..longest_record()
    };
    for keys in [
        &[[first.key(), second.key()], [0, first.key()], [0, 0]][..],
        &[[0, third.key()]],
    ] {
        encoder.begin(&header(1));
        for keys in keys {
            encoder.push(&named(*keys), &mut sink);
        }
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
    }
    let said = batches.iter().map(|batch| {
        let processes = batch.processes.iter();
        processes
            .map(|one| (one.key, one.pid, one.name.as_str(), one.uid))
            .collect::<Vec<_>>()
    });
    let of = |process: agent_common::Process| (process.key(), process.pid, "nginx", Some(33));
    assert_eq!(
        said.collect::<Vec<_>>(),
        [vec![of(second), of(first)], vec![of(third)]]
    );
}

/// Readers of a batch find names by binary search.
#[test]
fn what_a_batch_names_is_in_order() {
    const MANY: u64 = 300;
    let mut encoder = BatchEncoder::new(identity()).naming(Names {
        cgroups: Some(Cgroups::of_these(&[])),
        processes: Some(Processes::of_these(Vec::new())),
        ..Names::default()
    });
    let mut batches = Vec::new();
    let mut sink = |batch: Batch| batches.push(decode(&batch));
    encoder.begin(&header(1));
    for number in 0..MANY {
        // In no order, and each twice.
        let id = 1 + number * 7 % (MANY / 2 + 1);
        let record = Record {
            cgroup_ids: [id, 0],
            process_keys: [0, id << 32],
            ..longest_record()
        };
        encoder.push(&record, &mut sink);
    }
    encoder.finish(&trailer(&HookAccount::default()), &mut sink);
    for batch in &batches {
        let records = || batch.records.iter();
        let in_order = |ids: Vec<u64>| {
            let all: std::collections::BTreeSet<u64> = ids.into_iter().collect();
            all.into_iter().collect::<Vec<_>>()
        };
        let cgroups: Vec<_> = batch.cgroups.iter().map(|one| one.id).collect();
        let named = records().filter_map(|one| one.cgroup_ids()[0].or(one.cgroup_ids()[1]));
        assert_eq!(cgroups, in_order(named.collect()));
        let processes: Vec<_> = batch.processes.iter().map(|one| one.key).collect();
        let named = records().filter_map(|one| one.process_keys()[0].or(one.process_keys()[1]));
        assert_eq!(processes, in_order(named.collect()));
        assert!(cgroups.len() > 10 && processes.len() > 10);
    }
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
    (record.delta, record.total) = ([Counts::default(); 2], [Counts::default(); 2]);
    (record.delta_duration_ns, record.is_closing) = (0, false);
    record.tcp = [TcpInfo::default(); 2];
    record.names = [None; 2];
    record.failure = None;
    record.round_trips = [RoundTrip::default(); 2];
    record.dropped = [0; 2];
    let taken = |record: &Record| {
        let [one, two] = [1, 2].map(|count| encode(&header(1), &vec![*record; count]));
        two[0].body.len() - one[0].body.len()
    };
    if taken(&record) > len_bytes
        && let Some(outer) = &mut record.outer
    {
        (outer.has_pppoe_session, outer.vlan_ids) = (0, [0; 2]);
    }
    if taken(&record) > len_bytes {
        record.key.ip_version = 4;
        record.outer = None;
    }
    let mut missing = len_bytes - taken(&record);
    let [[a, b], [c, d]] = [&mut record.delta, &mut record.total];
    for pair in [a, b, c, d] {
        for counter in [&mut pair.packets, &mut pair.bytes] {
            // A counter takes a tag and 1 to 10 bytes, or nothing.
            let len = match missing {
                0 => break,
                12 => 10,
                _ => missing.min(11),
            };
            *counter = 1 << (7 * (len - 2));
            missing -= len;
        }
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
