//! Faults in the files that outputs and collectors write: whose they are, and which of them stay.

use super::{Fault, agent, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a file is not brought to the disk before its batches are acknowledged",
        file: "agent/exporters/src/files/shared.rs",
        from: "    file.sync().await\n}",
        to: "    Ok(())\n}",
        target: agent("collect::what_is_acknowledged_is_there_after_the_power_fails"),
    },
    Fault {
        name: "a flood goes into the file of all",
        file: "agent/exporters/src/files/shared.rs",
        from: "if all <= self.part() {",
        to: "if all <= u64::MAX {",
        target: agent(
            "collect::attacks::storage::a_flood_of_a_few_senders_leaves_all_that_others_stored",
        ),
    },
    Fault {
        name: "those who came first have all files of single senders",
        file: "agent/exporters/src/files/shared.rs",
        from: "written(least) < all / 2",
        to: "written(least) > all",
        target: unit(
            "exporters",
            "files::shared::tests::whoever_writes_more_than_twice_as_much_takes_the_place_of_another",
        ),
    },
    Fault {
        name: "a sender's part of a file begins anew with each file",
        file: "agent/exporters/src/files/shared.rs",
        from: "*written = written.saturating_add(more);",
        to: "*written = written.saturating_add(more) % 200;",
        target: unit(
            "exporters",
            "files::shared::tests::many_who_flood_at_the_same_rate_remove_nothing_of_others",
        ),
    },
    Fault {
        name: "what a sender wrote once counts for ever",
        file: "agent/exporters/src/files/shared.rs",
        from: "*written /= 2;",
        to: "*written /= 1;",
        target: unit(
            "exporters",
            "files::shared::tests::whoever_has_filled_its_part_gets_a_file_of_its_own_until_that_is_old",
        ),
    },
    Fault {
        name: "all files of single senders are completed at once",
        file: "agent/exporters/src/files.rs",
        from: "let is_old = self.owner.is_none() && self.is_old();",
        to: "let is_old = self.is_old();",
        target: unit(
            "exporters",
            "files::shared::tests::files_of_single_senders_are_completed_one_at_a_time",
        ),
    },
    Fault {
        name: "a sender's file is as old as its beginning",
        file: "agent/exporters/src/files.rs",
        from: "let of_owner = owner.map(",
        to: "let of_owner = owner.filter(|_| open.rows == u64::MAX).map(",
        target: unit(
            "exporters",
            "files::shared::tests::what_a_sender_has_written_for_long_is_not_the_oldest",
        ),
    },
    Fault {
        name: "whoever has filled its own file loses it to another",
        file: "agent/exporters/src/files/shared.rs",
        from: "        if is_full {\n",
        to: "        if is_full && self.own.len() > MOST_OWN {\n",
        target: unit(
            "exporters",
            "files::shared::tests::whoever_has_filled_its_file_keeps_its_place",
        ),
    },
    Fault {
        name: "a sender's file that a kill has left half complete is not found",
        file: "agent/exporters/src/files/names.rs",
        from: ".chain(of_parts)",
        to: ".chain(of_parts.take(0))",
        target: unit(
            "exporters",
            "files::tests::a_file_of_one_sender_says_whose_it_is_and_when_it_ended",
        ),
    },
    Fault {
        name: "a new sender's file is not later than those of others",
        file: "agent/exporters/src/files/names.rs",
        from: "self.later(time, owner, |_| true)",
        to: "self.later(time, owner, |file| file.owner.as_ref() == owner)",
        target: unit(
            "exporters",
            "files::shared::tests::a_sender_whose_first_file_begins_after_the_clock_was_set_back_keeps_it",
        ),
    },
    Fault {
        name: "what a sender's own file did not take is said to be there",
        file: "agent/exporters/src/files/shared.rs",
        from: "outcomes[place] = Err(why.clone());",
        to: "drop((place, why.clone()));",
        target: unit(
            "exporters",
            "files::shared::tests::only_what_is_not_there_is_said_to_have_failed",
        ),
    },
    Fault {
        name: "a sender's own file that a kill has left stays as it is",
        file: "agent/exporters/src/files/shared.rs",
        from: "if let Some(owner) = self.left.pop() {",
        to: "if let Some(owner) = self.left.pop().filter(|_| self.left.len() > 9) {",
        target: unit(
            "exporters",
            "files::shared::tests::what_a_killed_process_has_left_is_completed_at_the_next_start",
        ),
    },
    Fault {
        name: "the oldest file goes, whoever floods",
        file: "agent/exporters/src/files/retention.rs",
        from: "if of_owners > rotation.total_bytes / 2 {",
        to: "if of_owners > rotation.total_bytes {",
        target: unit(
            "exporters",
            "files::retention::tests::senders_with_files_of_their_own_leave_half_to_all_others",
        ),
    },
    Fault {
        name: "a sender that floods has as many files as it likes",
        file: "agent/exporters/src/files/retention.rs",
        from: "while some.files.len() > most {",
        to: "while some.files.len() > most && most == 0 {",
        target: unit(
            "exporters",
            "files::retention::tests::files_of_a_sender_count_for_themselves",
        ),
    },
];
