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
    Fault {
        name: "a store gets again what another one could not take",
        file: "agent/src/collector/writer.rs",
        from: "one.kept <= index &&",
        to: "one.kept <= index + 1 &&",
        target: unit(
            "collector::writer::tests::a_store_does_not_get_again_what_only_another_one_could_not_take",
        ),
    },
    Fault {
        name: "a batch that comes again is stored again",
        file: "agent/src/collector/writer.rs",
        from: "self.streams.kept(&entry.facts)",
        to: "0",
        target: unit(
            "collector::writer::tests::a_batch_behind_one_that_a_store_refuses_is_stored_and_not_acknowledged",
        ),
    },
    Fault {
        name: "another batch with a known number is taken for the same",
        file: "agent/src/collector/streams.rs",
        from: "|kept: &&Kept| kept.seq == facts.seq && kept.digest == facts.digest;",
        to: "|kept: &&Kept| kept.seq == facts.seq;",
        target: unit(
            "collector::writer::tests::another_batch_with_a_number_that_is_known_is_stored",
        ),
    },
    Fault {
        name: "a batch that is in some stores counts as in none",
        file: "agent/src/collector/writer.rs",
        from: "self.streams.keeps_in_part(&facts, *kept);",
        to: "let _ = Streams::keeps_in_part;",
        target: unit(
            "collector::writer::tests::a_store_does_not_get_again_what_only_another_one_could_not_take",
        ),
    },
    Fault {
        name: "numbers may fall within a call",
        file: "agent/src/collector/export.rs",
        from: "if seq <= stream.last_seq {",
        to: "if seq == stream.last_seq {",
        target: agent(
            "collect::calls::what_cannot_be_an_agents_batch_is_refused_with_the_reason_and_nothing_is_stored",
        ),
    },
    Fault {
        name: "a call may go on with another stream",
        file: "agent/src/collector/export.rs",
        from: "if self.key.as_ref() != Some(&incoming.stream()) {",
        to: "if self.key.is_none() {",
        target: agent(
            "collect::calls::what_cannot_be_an_agents_batch_is_refused_with_the_reason_and_nothing_is_stored",
        ),
    },
    Fault {
        name: "a call goes on when a batch was not stored",
        file: "agent/src/collector/export.rs",
        from: "                Err(Status::unavailable(why))",
        to: "                Ok(drop(Status::unavailable(why)))",
        target: agent(
            "collect::calls::a_call_ends_where_a_batch_cannot_be_stored_and_nothing_behind_it_is_acknowledged",
        ),
    },
    Fault {
        name: "what was taken at the end is not waited for",
        file: "agent/src/collector/export.rs",
        from: "while ended.is_none() || self.waiting > 0 || self.stored_seq.is_some() {",
        to: "while ended.is_none() {",
        target: agent(
            "collect::calls::a_batch_that_comes_again_is_acknowledged_and_not_stored_again",
        ),
    },
    Fault {
        name: "a snapshot is stored",
        file: "agent/src/collector/incoming.rs",
        from: "            !batch.snapshot,",
        to: "            !batch.snapshot || batch.stream_id != 0,",
        target: unit(
            "collector::incoming::tests::what_is_of_no_stream_or_repeats_what_was_sent_is_refused",
        ),
    },
    Fault {
        name: "a batch without a stream is stored",
        file: "agent/src/collector/incoming.rs",
        from: "batch.stream_id != 0 && batch.stream_seq != 0,",
        to: "batch.stream_seq != 0,",
        target: unit(
            "collector::incoming::tests::what_is_of_no_stream_or_repeats_what_was_sent_is_refused",
        ),
    },
    Fault {
        name: "all batches have one digest",
        file: "agent/src/collector/incoming.rs",
        from: "digests.hash_one(&self.raw)",
        to: "digests.hash_one(self.raw.is_empty())",
        target: unit(
            "collector::incoming::tests::batches_with_one_number_have_digests_of_their_own",
        ),
    },
    Fault {
        name: "an agent that sends too much saves up for ever",
        file: "agent/src/collector/rate.rs",
        from: "|at| at.max(saved_since)",
        to: "|at| at",
        target: unit(
            "collector::rate::tests::a_second_of_records_may_come_at_once_and_more_than_that_waits",
        ),
    },
    Fault {
        name: "an address has a place more than it may",
        file: "agent/src/collector/addresses.rs",
        from: "if calls >= most {",
        to: "if calls > most {",
        target: unit(
            "collector::addresses::tests::an_address_has_as_many_places_as_it_may_however_it_is_written_and_is_forgotten_with_the_last",
        ),
    },
    Fault {
        name: "pairs: a gap between batches is not noticed",
        file: "agent/src/collector/pairs/agents.rs",
        from: "self.has_lost |= batch.seq != self.seq.wrapping_add(1)\n                ||",
        to: "self.has_lost |= batch.seq == 0\n                ||",
        target: unit(
            "collector::pairs::tests::of_what_one_may_have_missed_in_part_the_loss_is_not_said",
        ),
    },
    Fault {
        name: "pairs: an agent with two outputs is counted twice",
        file: "agent/src/collector/pairs/agents.rs",
        from: "} else if now.duration_since(self.heard) < SILENT_STREAM {",
        to: "} else if batch.seq == u64::MAX {",
        target: unit("collector::pairs::tests::a_second_output_of_an_agent_is_not_counted_again"),
    },
    Fault {
        name: "pairs: packets that a full table refused were seen",
        file: "agent/src/collector/pairs/agents.rs",
        from: "if batch.has_refused {",
        to: "if batch.has_refused && end == 0 {",
        target: unit(
            "collector::pairs::tests::of_what_one_may_have_missed_in_part_the_loss_is_not_said",
        ),
    },
    Fault {
        name: "pairs: a part of a scan is a whole one",
        file: "agent/src/collector/pairs/agents.rs",
        from: "if batch.is_last_of_scan {\n            self.seen_to",
        to: "if end > 0 {\n            self.seen_to",
        target: unit("collector::pairs::tests::a_part_of_a_scan_is_no_whole_one"),
    },
    Fault {
        name: "pairs: packets at two interfaces count once",
        file: "agent/src/collector/pairs/flow.rs",
        from: "self.is_at_several |= *at != sighting.interface;",
        to: "let _ = *at != sighting.interface;",
        target: unit(
            "collector::pairs::tests::packets_at_two_interfaces_of_a_host_or_at_one_that_came_late_may_be_counted_otherwise",
        ),
    },
    Fault {
        name: "pairs: what was forgotten is compared",
        file: "agent/src/collector/pairs.rs",
        from: "*forgotten_to = (*forgotten_to).max(flow.last_seen());",
        to: "let _ = (forgotten_to, flow.last_seen());",
        target: unit(
            "collector::pairs::tests::what_comes_after_the_flow_was_forgotten_is_not_called_exact",
        ),
    },
    Fault {
        name: "pairs: a loopback address is one host everywhere",
        file: "agent/src/collector/pairs/sighting.rs",
        from: "v4.is_unspecified() || v4.is_loopback() ||",
        to: "v4.is_unspecified() ||",
        target: unit(
            "collector::pairs::tests::addresses_that_mean_another_host_on_each_link_are_left_out",
        ),
    },
];
