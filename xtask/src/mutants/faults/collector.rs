//! Faults in what a collector takes, stores and acknowledges, and in how it compares agents.

use super::{Fault, agent, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a file is not brought to the disk before its batches are acknowledged",
        file: "agent/src/collector/store.rs",
        from: "    file.sync().await\n}",
        to: "    Ok(drop(file))\n}",
        target: agent("collect::what_is_acknowledged_is_there_after_the_power_fails"),
    },
    Fault {
        name: "a batch behind one that was refused is acknowledged",
        file: "agent/src/collector/writer.rs",
        from: "None if !call.is_broken.load(Relaxed) =>",
        to: "None if one.kept < usize::MAX =>",
        target: unit(
            "collector::writer::tests::a_batch_behind_one_that_a_store_refuses_is_stored_and_not_acknowledged",
        ),
    },
    Fault {
        name: "what follows a failed batch of its call is stored",
        file: "agent/src/collector/writer.rs",
        from: "if entry.call.is_broken.load(Relaxed) || is_left_out {",
        to: "if is_left_out {",
        target: unit(
            "collector::writer::tests::nothing_is_stored_behind_a_batch_of_the_same_call_that_was_not",
        ),
    },
    Fault {
        name: "the last store's word counts for all of them",
        file: "agent/src/collector/writer.rs",
        from: "one.kept <= index && one.failure.is_none()",
        to: "one.kept <= index",
        target: unit(
            "collector::writer::tests::what_a_store_did_not_take_those_behind_it_do_not_get_and_nobody_is_told_of",
        ),
    },
    Fault {
        name: "a batch that failed is stored for the other call that sent it",
        file: "agent/src/collector/writer.rs",
        from: "                first,\n                kept,",
        to: "                first: place,\n                kept,",
        target: unit(
            "collector::writer::tests::what_a_store_did_not_take_those_behind_it_do_not_get_and_nobody_is_told_of",
        ),
    },
];
