//! Complete files and those in the making have the same answers, which are those of a plain addition.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

prop_compose! {
    fn any_record()(
        host in 0_u8..4,
        port in prop_oneof![Just(443_u32), Just(80), Just(65_535)],
        has_ports in any::<bool>(),
        packets in 0_u64..1000,
        before in prop_oneof![Just(0_u64), 1_u64..9],
        ends in any::<bool>(),
        ifindex in 1_u32..4,
    ) -> FlowRecord {
        let mut record = record(host, port, packets);
        if !has_ports {
            record.protocol = 47;
            record.src_mut().port = None;
            record.dst_mut().port = None;
        }
        record.src_mut().total_packets += before;
        record.ifindex = ifindex;
        record.end_reason = ends.then(|| EndReason::IdleTimeout.into());
        record
    }
}

/// By source and port of the destination.
type Plain = BTreeMap<(u8, Option<u32>), (u64, [u64; 2], u64, u64)>;

fn plain(batches: &[FlowBatch], from: u64, to: u64) -> Plain {
    let mut sums = Plain::new();
    for batch in batches
        .iter()
        .filter(|one| from < one.stream_seq && one.stream_seq <= to)
    {
        for record in &batch.records {
            let sum = sums
                .entry((record.src().addr[3], record.dst().port))
                .or_default();
            sum.0 += 1;
            sum.1[0] += record.src().delta_packets;
            sum.1[1] += record.dst().delta_packets;
            sum.2 += u64::from(record.src().delta_packets == record.src().total_packets);
            sum.3 += u64::from(record.end_reason.is_some());
        }
    }
    sums
}

fn found(answer: &QueryResult) -> Plain {
    let groups = answer.groups.iter().map(|group| {
        let [Part::Address(IpAddr::V4(source)), Part::Port(_, port)] = &group.parts[..] else {
            panic!("{:?}", group.parts);
        };
        let key = (source.octets()[3], port.map(u32::from));
        let sums = group.sums;
        (key, (sums.records, sums.packets, sums.begun, sums.ended))
    });
    groups.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_answer_is_the_plain_sum(
        records in prop::collection::vec(prop::collection::vec(any_record(), 0..6), 1..8),
        from in 0_u64..8,
        length in 1_u64..8,
    ) {
        let numbered = records.into_iter().zip(1..);
        let batches: Vec<_> = numbered.map(|(records, seq)| batch(seq, records)).collect();
        let at = |seq: u64| i64::try_from(BEGAN_S + seq).unwrap() * SECOND_US;
        let query = Query {
            time_us: at(from)..at(from + length),
            ..everything(&[By::Source, By::Port])
        };
        let expected = plain(&batches, from, from + length);
        let streams: Vec<_> = batches.iter().cloned().map(|one| on_stream(7, one)).collect();
        for folder in [
            Folder::new().complete("flows-1.parquet", MADE, &pieces(&batches)),
            Folder::new().in_the_making(&pieces(&batches)),
            Folder::new().complete("flows-1.parquet", MADE_OF_MANY, &pieces_of_many(&streams)),
            Folder::new().in_the_making(&pieces_of_many(&streams)),
        ] {
            prop_assert_eq!(&found(&folder.ask(&query)), &expected);
        }
    }
}
