use agent_common::{Counts, Encapsulation, FlowKey, L4Kind, Outer, Pair, Reason, TcpInfo};
use proptest::{prelude::*, sample::select};
use proto::{
    EndReason, Failure, FlowRecord, NameSource, Process, batch,
    record::{Address, EndFields, Fields, VlanIds},
};

use super::*;
use crate::names::Directory;

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

/// Values of which any varint length is as likely as another.
fn any_number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..=64u32).prop_map(|(bits, len)| bits.checked_shr(len).unwrap_or(0))
}

fn any_short() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0..=32u32).prop_map(|(bits, len)| bits.checked_shr(len).unwrap_or(0))
}

/// Often without one.
fn maybe<T: Clone + std::fmt::Debug>(
    some: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.3, some)
}

prop_compose! {
    /// What an end has beyond the key of its flow.
    fn end()(
        counts in [counts(), counts()],
        direction in select(vec![proto::Direction::Ingress, proto::Direction::Egress]),
        [tcp_flags, dscp] in [maybe(0..256_u32), maybe(0..64_u32)],
        [cgroup_id, process_key] in [maybe(1..=u64::MAX), maybe(1..=u64::MAX)],
        sender_shared in any::<bool>(),
        name in maybe((1..=u64::MAX, select(vec![NameSource::Dns, NameSource::HostsFile]))),
        tcp in tcp_info(),
        [handshake_rtt_us, ack_rtt_us] in [maybe(any_short()), maybe(any_short())],
        dropped in prop_oneof![Just(0), any_number()],
    ) -> EndFields {
        let [delta, total] = counts;
        let mut end = EndFields {
            direction,
            tcp_flags,
            dscp,
            cgroup_id,
            process_key,
            sender_shared,
            host_id: name.map(|(id, _)| id),
            host_source: name.map(|(_, source)| source).unwrap_or_default(),
            handshake_rtt_us,
            ack_rtt_us,
            total_dropped_packets: dropped,
            ..EndFields::default()
        };
        end.set_counts(delta, total);
        end.set_tcp(tcp);
        end
    }
}

/// Often without round trips, or entirely unknown.
fn tcp_info() -> impl Strategy<Value = TcpInfo> {
    let min_rtt_us = prop_oneof![Just(0), Just(TcpInfo::NO_RTT), any::<u32>()];
    (0..3_u32, min_rtt_us, any::<[u64; TcpInfo::WORDS]>()).prop_map(
        |(rtt_us, min_rtt_us, words)| TcpInfo {
            rtt_us,
            min_rtt_us,
            ..TcpInfo::of_words(words)
        },
    )
}

prop_compose! {
    fn record()(
        key in key(),
        initiator in 0..=1_u8,
        outer in maybe(outer()),
        ends in [end(), end()],
        [first, last] in [1..=u64::MAX, 1..=u64::MAX],
        duration in any_number(),
        [initiator_assumed, closing] in any::<[bool; 2]>(),
        end_reason in maybe(select(vec![EndReason::IdleTimeout, EndReason::EndOfFlow])),
        failure in maybe(select(vec![Failure::Refused, Failure::Unreachable])),
        error in maybe(any::<[u8; 2]>()),
        community_id in any::<[u8; 20]>(),
    ) -> Record {
        let mut record = Record::new(key, initiator);
        if let Some(outer) = outer {
            record.set_outer(&outer);
        }
        let [src, dst] = [record.src, record.dst].map(|end| (end.addr, end.port, end.outer_addr));
        for (end, (addr, port, outer_addr), more) in [
            (&mut record.fields.src, src, ends[0]),
            (&mut record.fields.dst, dst, ends[1]),
        ] {
            *end = EndFields { addr, port, outer_addr, ..more };
        }
        let fields = &mut record.fields;
        (fields.first_seen_unix_ns, fields.last_seen_unix_ns) = (first, last);
        fields.delta_duration_ns = duration;
        (fields.initiator_assumed, fields.closing) = (initiator_assumed, closing);
        (fields.end_reason, fields.failure) = (end_reason, failure);
        fields.icmp_error_type = error.map(|[icmp_type, _]| icmp_type.into());
        fields.icmp_error_code = error.map(|[_, code]| code.into());
        fields.community_id = community_id;
        record
    }
}

const TCP: u8 = 6;

/// What the key of a flow says, and the headers around its tunnel, according to the definition of the message.
fn of_key(key: &FlowKey, initiator: u8, outer: Option<Outer>) -> FlowRecord {
    let bytes = |version: u8, addr: [u8; 16]| {
        Bytes::copy_from_slice(&addr[..if version == 4 { 4 } else { 16 }])
    };
    let kind = key.kind().unwrap();
    let has_ports = kind == L4Kind::Ports;
    let is_icmp = matches!(kind, L4Kind::Icmp | L4Kind::IcmpQuery);
    let end = |addr, port: u16, outer_addr: Option<[u8; 16]>| proto::Endpoint {
        addr: bytes(key.ip_version, addr),
        port: has_ports.then_some(port.into()),
        outer_addr: outer
            .zip(outer_addr)
            .map_or_else(Bytes::new, |(outer, addr)| bytes(outer.ip_version, addr)),
        ..proto::Endpoint::default()
    };
    let in_tunnel = outer.filter(|_| key.encapsulation != 0);
    let mut ends = [
        end(key.addr_a, key.port_a, in_tunnel.map(|outer| outer.addr_a)),
        end(key.addr_b, key.port_b, in_tunnel.map(|outer| outer.addr_b)),
    ];
    if initiator == 1 {
        ends.reverse();
    }
    let [src, dst] = ends.map(Some);
    FlowRecord {
        src,
        dst,
        protocol: key.protocol.into(),
        ip_version: key.ip_version.into(),
        ifindex: key.ifindex,
        netns: key.netns,
        vlan_ids: tags(key.vlan_ids),
        icmp_type: is_icmp.then_some((key.port_a >> 8).into()),
        icmp_code: is_icmp.then_some((key.port_a & 0xff).into()),
        icmp_identifier: (kind == L4Kind::IcmpQuery).then_some(key.port_b.into()),
        later_fragment: kind == L4Kind::Fragment,
        // 7 is GRE (5) without a key.
        encapsulation: match key.encapsulation {
            0 => None,
            7 => Some(5),
            known => Some(known.into()),
        },
        tunnel_id: tunnel_id(key),
        outer_vlan_ids: outer.map_or_else(Vec::new, |it| tags(it.vlan_ids)),
        outer_pppoe_session: outer
            .filter(|outer| outer.has_pppoe_session != 0)
            .map(|outer| outer.pppoe_session.into()),
        community_id: vec![0; 20].into(),
        ..FlowRecord::default()
    }
}

fn tunnel_id(key: &FlowKey) -> Option<u32> {
    match key.encapsulation {
        1 | 3 | 4 | 5 => Some(key.tunnel_id),
        7 => Some(0),
        _ => None,
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
        let expected: Vec<FlowRecord> = records.iter().map(|one| (&one.fields).into()).collect();
        prop_assert_eq!(&message.records, &expected);
        // As many bytes as prost writes, so nothing is encoded in a longer form than it needs.
        prop_assert_eq!(message.encoded_len(), batches[0].body.len());
    }

    /// Without this, nobody would notice if all of them were left to prost.
    #[test]
    fn the_agents_own_batches_are_read_by_hand(mut records in proptest::collection::vec(record(), 0..10)) {
        // Clears the top bit: no flow counts that far, and the varint would have ten bytes.
        let clear = |number: &mut u64| *number &= u64::MAX >> 1;
        for record in &mut records {
            clear(&mut record.delta_duration_ns);
            for end in [&mut record.fields.src, &mut record.fields.dst] {
                let ids = [&mut end.cgroup_id, &mut end.process_key, &mut end.host_id];
                ids.into_iter().flatten().for_each(clear);
                clear(&mut end.total_dropped_packets);
                let counts = [
                    &mut end.delta_packets,
                    &mut end.delta_bytes,
                    &mut end.delta_ip_bytes,
                    &mut end.total_packets,
                    &mut end.total_bytes,
                    &mut end.total_ip_bytes,
                ];
                counts.into_iter().for_each(clear);
            }
        }
        for batch in encode(&header(2), &records) {
            let theirs = FlowBatch::decode(batch.body.clone()).unwrap();
            prop_assert_eq!(batch::by_hand(&batch.body), Some(theirs));
        }
    }

    #[test]
    fn a_record_says_what_its_key_says(key in key(), initiator in 0..=1_u8, outer in maybe(outer())) {
        let mut record = Record::new(key, initiator);
        if let Some(outer) = outer {
            record.set_outer(&outer);
        }
        prop_assert_eq!(FlowRecord::from(&record.fields), of_key(&key, initiator, outer));
    }
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

/// Cgroups by their ids and paths. Of any other, it knows the id alone.
struct Cgroups(Vec<(u64, &'static str)>);

impl Directory<Cgroup> for Cgroups {
    fn lookup(&self, ids: &[u64], each: &mut dyn FnMut(&Cgroup)) {
        for &id in ids {
            let known = self.0.iter().find(|(known, _)| *known == id);
            each(&Cgroup {
                id,
                path: known.map_or_else(String::new, |(_, path)| (*path).to_owned()),
                ..Cgroup::default()
            });
        }
    }
}

/// Processes. Of any other, it knows the key alone.
struct Processes(Vec<Process>);

impl Directory<Process> for Processes {
    fn lookup(&self, keys: &[u64], each: &mut dyn FnMut(&Process)) {
        for &key in keys {
            let known = self.0.iter().find(|known| known.key == key);
            each(&known.cloned().unwrap_or(Process {
                key,
                ..Process::default()
            }));
        }
    }
}

#[test]
fn each_batch_names_the_cgroups_of_its_own_records() {
    let named = |[src, dst]: [u64; 2]| {
        let mut record = longest_record();
        record.src.cgroup_id = (src != 0).then_some(src);
        record.dst.cgroup_id = (dst != 0).then_some(dst);
        record
    };
    let known = [(3, "/a.service"), (5, "/b.service")];
    let encoder = BatchEncoder::new(identity()).naming(Names {
        cgroups: Some(Arc::new(Cgroups(known.to_vec()))),
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
        assert_eq!(encoder.nameless_ends(), 1);
        assert!(
            batches
                .iter()
                .all(|batch| batch.account.is_some() == batch.last_of_scan)
        );
    }
}

#[test]
fn a_batch_names_the_processes_of_its_records_each_once() {
    let process = |pid| Process {
        key: u64::from(pid) << 32 | 1,
        pid,
        name: "nginx".to_owned(),
        uid: Some(33),
    };
    let [first, second, third] = [7, 5, 9].map(process);
    let mut encoder = BatchEncoder::new(identity()).naming(Names {
        processes: Some(Arc::new(Processes(vec![
            first.clone(),
            second.clone(),
            third.clone(),
        ]))),
        ..Names::default()
    });
    let mut batches = Vec::new();
    let mut sink = |batch: Batch| batches.push(decode(&batch));
    let named = |[src, dst]: [u64; 2]| {
        let mut record = longest_record();
        record.src.process_key = (src != 0).then_some(src);
        record.dst.process_key = (dst != 0).then_some(dst);
        record
    };
    for keys in [
        &[[first.key, second.key], [0, first.key], [0, 0]][..],
        &[[0, third.key]],
    ] {
        encoder.begin(&header(1));
        for keys in keys {
            encoder.push(&named(*keys), &mut sink);
        }
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
    }
    let said = batches.into_iter().map(|batch| batch.processes);
    assert_eq!(said.collect::<Vec<_>>(), [vec![second, first], vec![third]]);
}

/// Readers of a batch find names by binary search.
#[test]
fn what_a_batch_names_is_in_order() {
    const MANY: u64 = 300;
    let mut encoder = BatchEncoder::new(identity()).naming(Names {
        cgroups: Some(Arc::new(Cgroups(Vec::new()))),
        processes: Some(Arc::new(Processes(Vec::new()))),
        ..Names::default()
    });
    let mut batches = Vec::new();
    let mut sink = |batch: Batch| batches.push(decode(&batch));
    encoder.begin(&header(1));
    for number in 0..MANY {
        // In no order, and each twice.
        let id = 1 + number * 7 % (MANY / 2 + 1);
        let mut record = longest_record();
        (record.src.cgroup_id, record.dst.cgroup_id) = (Some(id), None);
        (record.src.process_key, record.dst.process_key) = (None, Some(id << 32));
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
        let named = records().filter_map(|one| one.src().cgroup_id.or(one.dst().cgroup_id));
        assert_eq!(cgroups, in_order(named.collect()));
        let processes: Vec<_> = batch.processes.iter().map(|one| one.key).collect();
        let named = records().filter_map(|one| one.src().process_key.or(one.dst().process_key));
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
