//! Faults in the delivery of batches to a collector, and in the spool that keeps them on disk until then.

use super::{Fault, agent, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a segment of the spool is not brought to the disk",
        file: "agent/exporters/src/delivery/spool/segment.rs",
        from: "self.file.sync_data()",
        to: "io::Result::Ok(drop(&self.file))",
        target: agent(
            "outputs::spool::what_the_spool_has_brought_to_the_disk_is_there_after_the_power_fails",
        ),
    },
    Fault {
        name: "what this call has not brought is acknowledged",
        file: "agent/exporters/src/delivery.rs",
        from: "self.backlog.acknowledge(last_seq.min(sent_seq))",
        to: "self.backlog.acknowledge(last_seq)",
        target: unit(
            "exporters",
            "delivery::tests::what_this_call_has_not_brought_is_not_acknowledged_yet",
        ),
    },
    Fault {
        name: "what was never sent is acknowledged",
        file: "agent/exporters/src/delivery.rs",
        from: "last_seq <= self.handed_seq,",
        to: "last_seq <= u64::MAX,",
        target: unit(
            "exporters",
            "delivery::tests::what_was_never_sent_cannot_be_acknowledged",
        ),
    },
    Fault {
        name: "an acknowledgement stands for the batch behind it",
        file: "agent/exporters/src/delivery/backlog.rs",
        from: "self.window.pop_front_if(|batch| batch.seq <= seq)",
        to: "self.window.pop_front_if(|batch| batch.seq <= seq + 1)",
        target: unit(
            "exporters",
            "delivery::tests::every_batch_is_stored_once_however_often_calls_break",
        ),
    },
    Fault {
        name: "a batch that has no room in memory goes before those on the disk",
        file: "agent/exporters/src/delivery/backlog.rs",
        from: "let is_next = !self.stand.is_ahead && self.window_has_room();",
        to: "let is_next = self.window_has_room();",
        target: unit(
            "exporters",
            "delivery::backlog::tests::what_has_no_room_in_memory_comes_from_the_disk_behind_the_rest_in_order",
        ),
    },
    Fault {
        name: "a batch that neither memory nor disk has is dropped",
        file: "agent/exporters/src/delivery/backlog.rs",
        from: "} else if !batch.is_on_disk {\n            self.tail = Some(batch);",
        to: "} else if !batch.is_on_disk {\n            drop(batch);",
        target: unit(
            "exporters",
            "delivery::backlog::tests::what_neither_memory_nor_the_disk_takes_keeps_others_out_until_there_is_room",
        ),
    },
    Fault {
        name: "a batch is taken from the queue without room",
        file: "agent/exporters/src/delivery/backlog.rs",
        from: "self.tail.is_none() && (self.window_has_room() || self.spool.is_some())",
        to: "true",
        target: unit(
            "exporters",
            "delivery::backlog::tests::without_a_spool_memory_is_all_there_is",
        ),
    },
    Fault {
        name: "numbers that a collector may know are given again",
        file: "agent/exporters/src/delivery/spool.rs",
        from: "last = last.leap();",
        to: "",
        target: unit(
            "exporters",
            "delivery::spool::tests::numbers_that_may_be_known_are_not_given_again",
        ),
    },
    Fault {
        name: "two agents use one spool",
        file: "agent/exporters/src/delivery/spool.rs",
        from: "        Err(Errno::WOULDBLOCK) => bail!(InUse {\n            folder: folder.to_owned()\n        }),",
        to: "        Err(Errno::WOULDBLOCK) => Ok(lock),",
        target: unit(
            "exporters",
            "delivery::spool::tests::nobody_else_uses_a_spool",
        ),
    },
    Fault {
        name: "the oldest make room and nobody is told",
        file: "agent/exporters/src/delivery/spool.rs",
        from: "self.losses.meet(missing, self.reached, point);",
        to: "let _ = Losses::meet;",
        target: unit(
            "exporters",
            "delivery::spool::tests::the_oldest_make_room_and_what_they_report_is_told",
        ),
    },
    Fault {
        name: "an acknowledgement removes a segment before the mark has it",
        file: "agent/exporters/src/delivery/spool.rs",
        from: "        self.done = through;\n",
        to: "        self.done = through;\n        self.forget_done();\n",
        target: unit(
            "exporters",
            "delivery::spool::tests::what_was_acknowledged_before_a_kill_is_not_lost",
        ),
    },
    Fault {
        name: "a damaged batch is sent",
        file: "agent/exporters/src/delivery/spool/entry.rs",
        from: " && crc32fast::hash(bytes) == self.crc",
        to: "",
        target: unit(
            "exporters",
            "delivery::spool::tests::damage_costs_what_is_damaged_and_is_told_to_the_packet",
        ),
    },
    Fault {
        name: "a damaged mark is believed",
        file: "agent/exporters/src/delivery/spool/mark.rs",
        from: "crc == crc32fast::hash(json.as_bytes()),",
        to: "crc == crc32fast::hash(json.as_bytes()) || crc != 0,",
        target: unit(
            "exporters",
            "delivery::spool::tests::a_spool_without_its_mark_has_what_is_there",
        ),
    },
];
