//! Faults in the counts of queries.

use super::{Fault, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "query: a batch that a collector has twice counts twice",
        file: "agent/view/src/query/complete.rs",
        from: "let is_new = sum.once.is_new((place, stream), number);",
        to: "let is_new = sum.once.is_new((place, stream), number) || number > 0;",
        target: unit(
            "view",
            "query::tests::streams::what_a_collector_has_twice_counts_once",
        ),
    },
    Fault {
        name: "query: a number of a stream counts for one sender alone",
        file: "agent/view/src/query/complete.rs",
        from: "let names = [text(identity)?, ",
        to: "let names = [text(identity).map(|_| \"\")?, ",
        target: unit(
            "view",
            "query::tests::streams::a_number_of_a_stream_is_counted_once_for_each_sender",
        ),
    },
    Fault {
        name: "query: a batch in the making that was completed counts twice",
        file: "agent/view/src/query/complete.rs",
        from: "(!sum.once.has(stream, seq.into()), hostname)",
        to: "(!sum.once.has(stream, !u128::from(seq)), hostname)",
        target: unit(
            "view",
            "query::tests::streams::a_file_that_is_completed_meanwhile_counts_once",
        ),
    },
    Fault {
        name: "query: a batch that comes again in the making counts twice",
        file: "agent/view/src/query/batch.rs",
        from: "if is_on_stream\n            && !sum",
        to: "if is_on_stream\n            && !is_on_stream\n            && !sum",
        target: unit(
            "view",
            "query::tests::streams::what_a_collector_has_twice_counts_once",
        ),
    },
    Fault {
        name: "query: numbers of records of all batches are the same",
        file: "agent/view/src/query/once.rs",
        from: "u128::from(stream_seq) << u32::BITS | u128::from(record)",
        to: "u128::from(stream_seq) & 0 | u128::from(record)",
        target: unit(
            "view",
            "query::tests::streams::what_a_collector_has_twice_counts_once",
        ),
    },
    Fault {
        name: "query: a number in the middle of a range is new",
        file: "agent/view/src/query/once.rs",
        from: "if before.is_some_and(|(_, end)| number < end) {\n            return false;",
        to: "if before.is_some_and(|(_, end)| number + 1 == end) {\n            return false;",
        target: unit(
            "view",
            "query::once::tests::each_number_of_a_stream_is_new_once_in_whatever_order_they_come",
        ),
    },
    Fault {
        name: "query: two starts of an agent are one",
        file: "agent/view/src/query/batch.rs",
        from: "hasher.hash_one((names, number))",
        to: "hasher.hash_one((names[0], number))",
        target: unit(
            "view",
            "query::tests::streams::two_starts_that_gave_a_batch_the_same_number_are_told_apart",
        ),
    },
    Fault {
        name: "query: complete files are read first",
        file: "agent/view/src/query/files.rs",
        from: ".sort_by_key(|found| found.kind == Kind::Parquet);",
        to: ".sort_by_key(|found| found.kind != Kind::Parquet);",
        target: unit(
            "view",
            "query::tests::streams::a_file_that_is_completed_meanwhile_counts_once",
        ),
    },
    Fault {
        name: "query: what was acknowledged of a spool waits",
        file: "agent/exporters/src/delivery/spool/stored.rs",
        from: "if is_its { acknowledged.through_seq } else { 0 }",
        to: "if is_its { 0 } else { 0 }",
        target: unit(
            "view",
            "query::tests::streams::what_a_collector_has_acknowledged_of_a_spool_does_not_wait",
        ),
    },
    Fault {
        name: "query: another stream's acknowledgements count",
        file: "agent/exporters/src/delivery/spool/stored.rs",
        from: "let is_its = stream_id == Some(acknowledged.stream_id);",
        to: "let is_its = stream_id.is_some();",
        target: unit(
            "view",
            "query::tests::streams::what_a_collector_has_acknowledged_of_a_spool_does_not_wait",
        ),
    },
    Fault {
        name: "query: losses of a stream add up",
        file: "agent/view/src/query.rs",
        from: "*known = known.with(told, u64::max);",
        to: "*known = known.with(told, u64::saturating_add);",
        target: unit(
            "view",
            "query::tests::streams::what_was_lost_is_told_once_for_each_stream",
        ),
    },
];
