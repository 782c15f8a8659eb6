//! Faults in what a query counts.

use super::{Fault, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "query: a batch that a collector has twice counts twice",
        file: "agent/src/query/complete.rs",
        from: "let is_new = sum.once.is_new((place, stream), number);",
        to: "let is_new = sum.once.is_new((place, stream), number) || number > 0;",
        target: unit("query::tests::what_a_collector_has_twice_counts_once"),
    },
    Fault {
        name: "query: a batch in the making that was completed counts twice",
        file: "agent/src/query/complete.rs",
        from: "(!sum.once.has(stream, seq.into()), hostname)",
        to: "(!sum.once.has(stream, !u128::from(seq)), hostname)",
        target: unit("query::tests::a_file_that_is_completed_meanwhile_counts_once"),
    },
];
