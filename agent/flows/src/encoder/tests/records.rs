//! Any record is decoded as it was encoded.

use proptest::{prelude::*, sample::select};
use proto::{FlowRecord, batch};

use super::*;

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

/// Values whose varint lengths are all equally likely.
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
    /// The fields of an end beyond its flow's key.
    fn end()(
        counts in [counts(), counts()],
        direction in select(vec![proto::Direction::Ingress, proto::Direction::Egress]),
        [tcp_flags, dscp] in [maybe(0..256_u32), maybe(0..64_u32)],
        [cgroup_id, process_key] in [maybe(1..=u64::MAX), maybe(1..=u64::MAX)],
        [sender_shared, dscp_changed] in any::<[bool; 2]>(),
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
            dscp_changed,
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

/// The fields of a flow's key and of the headers around its tunnel, according to the definition of the message.
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
        // As many bytes as prost writes, so no encoding is longer than necessary.
        prop_assert_eq!(message.encoded_len(), batches[0].body.len());
    }

    /// Otherwise a fallback to prost for all of them would go unnoticed.
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
