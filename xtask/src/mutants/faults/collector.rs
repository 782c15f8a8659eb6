//! Faults in how a collector accepts, stores and acknowledges batches, and in how it compares agents.

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
        file: "agent/exporters/src/files/kept.rs",
        from: "if of_owners > rotation.total_bytes / 2 {",
        to: "if of_owners > rotation.total_bytes {",
        target: unit(
            "exporters",
            "files::kept::tests::senders_with_files_of_their_own_leave_half_to_all_others",
        ),
    },
    Fault {
        name: "a sender that floods has as many files as it likes",
        file: "agent/exporters/src/files/kept.rs",
        from: "while some.files.len() > most {",
        to: "while some.files.len() > most && most == 0 {",
        target: unit(
            "exporters",
            "files::kept::tests::files_of_a_sender_count_for_themselves",
        ),
    },
    Fault {
        name: "names in a batch cost nothing when a file is made",
        file: "agent/collector/src/incoming.rs",
        from: "(self.batch.records.len() + self.others / 8)",
        to: "self.batch.records.len()",
        target: unit(
            "collector",
            "incoming::tests::names_count_as_a_part_of_a_row_each",
        ),
    },
    Fault {
        name: "a batch behind one that was refused is acknowledged",
        file: "agent/collector/src/writer.rs",
        from: "None if !call.is_broken.load(Relaxed) =>",
        to: "None if one.kept < usize::MAX =>",
        target: unit(
            "collector",
            "writer::tests::a_batch_behind_one_that_a_store_refuses_is_stored_and_not_acknowledged",
        ),
    },
    Fault {
        name: "what follows a failed batch of its call is stored",
        file: "agent/collector/src/writer.rs",
        from: "if entry.call.is_broken.load(Relaxed) || is_left_out {",
        to: "if is_left_out {",
        target: unit(
            "collector",
            "writer::tests::nothing_is_stored_behind_a_batch_of_the_same_call_that_was_not",
        ),
    },
    Fault {
        name: "the last store's word counts for all of them",
        file: "agent/collector/src/writer.rs",
        from: "one.kept <= index && one.failure.is_none()",
        to: "one.kept <= index",
        target: unit(
            "collector",
            "writer::tests::what_a_store_did_not_take_those_behind_it_do_not_get_and_nobody_is_told_of",
        ),
    },
    Fault {
        name: "a batch that failed is stored for the other call that sent it",
        file: "agent/collector/src/writer.rs",
        from: "                first,\n                kept,",
        to: "                first: place,\n                kept,",
        target: unit(
            "collector",
            "writer::tests::what_a_store_did_not_take_those_behind_it_do_not_get_and_nobody_is_told_of",
        ),
    },
    Fault {
        name: "a store gets again what another one could not take",
        file: "agent/collector/src/writer.rs",
        from: "one.kept <= index &&",
        to: "one.kept <= index + 1 &&",
        target: unit(
            "collector",
            "writer::tests::a_store_does_not_get_again_what_only_another_one_could_not_take",
        ),
    },
    Fault {
        name: "a batch that comes again is stored again",
        file: "agent/collector/src/writer.rs",
        from: "self.streams.kept(&entry.facts)",
        to: "0",
        target: unit(
            "collector",
            "writer::tests::a_batch_behind_one_that_a_store_refuses_is_stored_and_not_acknowledged",
        ),
    },
    Fault {
        name: "another batch with a known number is taken for the same",
        file: "agent/collector/src/streams.rs",
        from: "|kept: &&Kept| kept.seq == facts.seq && kept.digest == facts.digest;",
        to: "|kept: &&Kept| kept.seq == facts.seq;",
        target: unit(
            "collector",
            "writer::tests::another_batch_with_a_number_that_is_known_is_stored",
        ),
    },
    Fault {
        name: "a batch that is in some stores counts as in none",
        file: "agent/collector/src/writer.rs",
        from: "self.streams.keeps_in_part(&facts, *kept);",
        to: "let _ = Streams::keeps_in_part;",
        target: unit(
            "collector",
            "writer::tests::a_store_does_not_get_again_what_only_another_one_could_not_take",
        ),
    },
    Fault {
        name: "numbers may fall within a call",
        file: "agent/collector/src/export.rs",
        from: "if seq <= stream.last_seq {",
        to: "if seq == stream.last_seq {",
        target: agent(
            "collect::calls::what_cannot_be_an_agents_batch_is_refused_with_the_reason_and_nothing_is_stored",
        ),
    },
    Fault {
        name: "a call may go on with another stream",
        file: "agent/collector/src/export.rs",
        from: "if stream.key != incoming.stream() {",
        to: "if stream.key.1 == 0 {",
        target: agent(
            "collect::calls::what_cannot_be_an_agents_batch_is_refused_with_the_reason_and_nothing_is_stored",
        ),
    },
    Fault {
        name: "a call goes on when a batch was not stored",
        file: "agent/collector/src/export.rs",
        from: "ended = Err(Status::unavailable(why));",
        to: "drop(Status::unavailable(why));",
        target: agent(
            "collect::calls::a_call_ends_where_a_batch_cannot_be_stored_and_nothing_behind_it_is_acknowledged",
        ),
    },
    Fault {
        name: "what was taken at the end is not waited for",
        file: "agent/collector/src/export.rs",
        from: "while reading.is_some() || has_outcomes || stored_seq.is_some() {",
        to: "while reading.is_some() {",
        target: agent(
            "collect::calls::a_batch_that_comes_again_is_acknowledged_and_not_stored_again",
        ),
    },
    Fault {
        name: "a snapshot is stored",
        file: "agent/collector/src/incoming.rs",
        from: "            !batch.snapshot,",
        to: "            !batch.snapshot || batch.stream_id != 0,",
        target: unit(
            "collector",
            "incoming::tests::what_is_of_no_stream_or_repeats_what_was_sent_is_refused",
        ),
    },
    Fault {
        name: "a batch without a stream is stored",
        file: "agent/collector/src/incoming.rs",
        from: "batch.stream_id != 0 && batch.stream_seq != 0,",
        to: "batch.stream_seq != 0,",
        target: unit(
            "collector",
            "incoming::tests::what_is_of_no_stream_or_repeats_what_was_sent_is_refused",
        ),
    },
    Fault {
        name: "all batches have one digest",
        file: "agent/collector/src/incoming.rs",
        from: "digests.hash_one(&self.raw)",
        to: "digests.hash_one(self.raw.is_empty())",
        target: unit(
            "collector",
            "incoming::tests::batches_with_one_number_have_digests_of_their_own",
        ),
    },
    Fault {
        name: "an agent that sends too much saves up for ever",
        file: "agent/collector/src/rate.rs",
        from: "|at| at.max(saved_since)",
        to: "|at| at",
        target: unit(
            "collector",
            "rate::tests::a_second_of_records_may_come_at_once_and_more_than_that_waits",
        ),
    },
    Fault {
        name: "an address has a place more than it may",
        file: "agent/server/src/counted.rs",
        from: "if count >= most {",
        to: "if count > most {",
        target: unit(
            "server",
            "counted::tests::an_address_has_as_many_places_as_it_may_however_it_is_written_and_is_forgotten_with_the_last",
        ),
    },
    Fault {
        name: "a sender may have all the memory",
        file: "agent/collector/src/senders.rs",
        from: "wait(&self.units, units.min(self.most)).await",
        to: "wait(&self.units, units.min(0 * self.most)).await",
        target: unit(
            "collector",
            "senders::tests::a_sender_with_its_whole_share_waits_and_others_do_not",
        ),
    },
    Fault {
        name: "the memory of all senders has no bound",
        file: "agent/collector/src/senders.rs",
        from: "kib(bytes).min(QUEUED_KIB.all)",
        to: "kib(bytes).min(0 * QUEUED_KIB.all)",
        target: unit(
            "collector",
            "senders::tests::the_pool_is_shared_in_order_of_arrival_and_a_batch_may_be_larger_than_a_share",
        ),
    },
    Fault {
        name: "what a batch takes of the share does not follow its size",
        file: "agent/collector/src/senders.rs",
        from: "drop(taken.split(had - units));",
        to: "",
        target: unit(
            "collector",
            "senders::tests::what_a_batch_takes_of_the_share_follows_its_size",
        ),
    },
    Fault {
        name: "a relay has the share of a host",
        file: "agent/collector/src/senders.rs",
        from: "size.of_relay",
        to: "size.of_relay.min(size.of_host)",
        target: unit(
            "collector",
            "senders::tests::a_relay_has_more_and_shares_nothing_with_a_sender_of_its_name",
        ),
    },
    Fault {
        name: "a sender takes the turn of others before it has its own part of the queue",
        file: "agent/collector/src/senders.rs",
        from: "let reserved = own.sender.queued.wait(kib(bytes)).await;",
        to: "let _turn = wait(&self.decoding, 1).await;\n        let reserved = own.sender.queued.wait(kib(bytes)).await;\n        drop(_turn);",
        target: unit(
            "collector",
            "senders::tests::a_sender_with_its_whole_share_waits_and_others_do_not",
        ),
    },
    Fault {
        name: "a credential may have any number of calls",
        file: "agent/collector/src/export.rs",
        from: "let of_credential = if caller.has_share() {",
        to: "let of_credential = if caller.is_relay() {",
        target: agent(
            "collect::attacks::memory::half_messages_of_many_calls_hold_little_memory_and_delay_nobody_and_end",
        ),
    },
    Fault {
        name: "each address of an IPv6 network is another sender",
        file: "agent/collector/src/senders.rs",
        from: "caller.identity.of_host().start().clone()",
        to: "caller.identity.clone()",
        target: unit(
            "collector",
            "senders::tests::addresses_of_an_ipv6_network_are_one_sender",
        ),
    },
    Fault {
        name: "a sender that owes something is forgotten",
        file: "agent/collector/src/senders.rs",
        from: "Arc::strong_count(sender) > 1 || sender.is_in_debt()",
        to: "Arc::strong_count(sender) > 1",
        target: unit(
            "collector",
            "senders::tests::senders_are_forgotten_unless_they_hold_or_owe_something",
        ),
    },
    Fault {
        name: "a sender that holds something is forgotten",
        file: "agent/collector/src/senders.rs",
        from: "Arc::strong_count(sender) > 1 || sender.is_in_debt()",
        to: "sender.is_in_debt()",
        target: unit(
            "collector",
            "senders::tests::senders_are_forgotten_unless_they_hold_or_owe_something",
        ),
    },
    Fault {
        name: "a batch of a sender is decoded while another one of it is",
        file: "agent/collector/src/senders.rs",
        from: "    all: 2,\n    of_host: 1,",
        to: "    all: 2,\n    of_host: 2,",
        target: unit(
            "collector",
            "senders::tests::a_sender_with_its_whole_share_waits_and_others_do_not",
        ),
    },
    Fault {
        name: "a sender's streams push out those of others",
        file: "agent/collector/src/streams.rs",
        from: "streams.range(of_sender(sender)).count() >= most_of_sender {",
        to: "streams.range(of_sender(sender)).count() > 2 * most_of_sender {",
        target: unit(
            "collector",
            "streams::tests::a_sender_with_as_many_streams_as_it_may_have_forgets_its_own_oldest",
        ),
    },
    Fault {
        name: "a message may be as long as it says",
        file: "agent/collector/src/messages.rs",
        from: "if len_bytes > MOST_BATCH_BYTES {",
        to: "if len_bytes > 2 * MOST_BATCH_BYTES {",
        target: unit(
            "collector",
            "messages::tests::messages_that_are_cut_off_too_long_or_compressed_otherwise_are_refused",
        ),
    },
    Fault {
        name: "a message may expand without a bound",
        file: "agent/collector/src/messages.rs",
        from: ".take(MOST_BATCH_BYTES as u64 + 1)",
        to: ".take(MOST_BATCH_BYTES as u64)",
        target: unit(
            "collector",
            "messages::tests::messages_that_are_cut_off_too_long_or_compressed_otherwise_are_refused",
        ),
    },
    Fault {
        name: "a message is received before it has memory",
        file: "agent/collector/src/export.rs",
        from: "let received = self.receive(next.len_bytes).await;",
        to: "let received = ();",
        target: agent(
            "collect::attacks::memory::half_messages_of_many_calls_hold_little_memory_and_delay_nobody_and_end",
        ),
    },
    Fault {
        name: "a message may take any time",
        file: "agent/collector/src/export.rs",
        from: "timeout(WHOLE_BATCH, messages.message(next))",
        to: "timeout(100 * WHOLE_BATCH, messages.message(next))",
        target: agent(
            "collect::attacks::memory::half_messages_of_many_calls_hold_little_memory_and_delay_nobody_and_end",
        ),
    },
    Fault {
        name: "a call whose acknowledgements nobody reads keeps its place",
        file: "agent/collector/src/export.rs",
        from: "if !is_reading && stored_seq.is_some() => return",
        to: "if is_reading && stored_seq.is_some() => return",
        target: agent(
            "collect::attacks::memory::a_call_whose_acknowledgements_nobody_reads_gives_its_place_back",
        ),
    },
    Fault {
        name: "batches are decoded in no fair order",
        file: "agent/collector/src/senders.rs",
        from: "_of_sender: self.decoding.wait(1).await,",
        to: "_of_sender: wait(&Arc::new(Semaphore::new(1)), 1).await,",
        target: agent(
            "collect::attacks::memory::those_who_send_as_much_as_they_can_and_read_nothing_delay_others_little",
        ),
    },
    Fault {
        name: "another call pays for no records",
        file: "agent/collector/src/export.rs",
        from: "self.sender.charge(records, records_per_second);",
        to: "let _ = (records, records_per_second, Sender::charge);",
        target: agent(
            "collect::attacks::rate::streams_agents_and_addresses_that_follow_each_other_are_no_way_round_the_limit",
        ),
    },
    Fault {
        name: "pairs: a gap between batches is not noticed",
        file: "agent/collector/src/pairs/agents.rs",
        from: "self.has_lost |= batch.seq != self.seq.wrapping_add(1)\n                ||",
        to: "self.has_lost |= batch.seq == 0\n                ||",
        target: unit(
            "collector",
            "pairs::tests::of_what_one_may_have_missed_in_part_the_loss_is_not_said",
        ),
    },
    Fault {
        name: "pairs: an agent with two outputs is counted twice",
        file: "agent/collector/src/pairs/agents.rs",
        from: "} else if now.duration_since(self.heard) < SILENT_STREAM {",
        to: "} else if batch.seq == u64::MAX {",
        target: unit(
            "collector",
            "pairs::tests::a_second_output_of_an_agent_is_not_counted_again",
        ),
    },
    Fault {
        name: "pairs: packets that a full table refused were seen",
        file: "agent/collector/src/pairs/agents.rs",
        from: "if batch.has_refused {",
        to: "if batch.has_refused && end == 0 {",
        target: unit(
            "collector",
            "pairs::tests::of_what_one_may_have_missed_in_part_the_loss_is_not_said",
        ),
    },
    Fault {
        name: "pairs: a part of a scan is a whole one",
        file: "agent/collector/src/pairs/agents.rs",
        from: "if batch.is_last_of_scan {\n            self.seen_to",
        to: "if end > 0 {\n            self.seen_to",
        target: unit(
            "collector",
            "pairs::tests::a_part_of_a_scan_is_no_whole_one",
        ),
    },
    Fault {
        name: "pairs: packets at two interfaces count once",
        file: "agent/collector/src/pairs/flow.rs",
        from: "self.is_at_several |= *at != sighting.interface;",
        to: "let _ = *at != sighting.interface;",
        target: unit(
            "collector",
            "pairs::tests::packets_at_two_interfaces_of_a_host_or_at_one_that_came_late_may_be_counted_otherwise",
        ),
    },
    Fault {
        name: "pairs: what was forgotten is compared",
        file: "agent/collector/src/pairs.rs",
        from: "self.forgotten_to = self.forgotten_to.max(forgotten_to);",
        to: "let _ = forgotten_to;",
        target: unit(
            "collector",
            "pairs::tests::what_comes_after_the_flow_was_forgotten_is_not_called_exact",
        ),
    },
    Fault {
        name: "pairs: a loopback address is one host everywhere",
        file: "agent/collector/src/pairs/sighting.rs",
        from: "v4.is_unspecified() || v4.is_loopback() ||",
        to: "v4.is_unspecified() ||",
        target: unit(
            "collector",
            "pairs::tests::addresses_that_mean_another_host_on_each_link_are_left_out",
        ),
    },
    Fault {
        name: "pairs: a sender may have all the room",
        file: "agent/collector/src/pairs/room.rs",
        from: "if !self.has_place(sender) {",
        to: "if self.free == 0 {",
        target: unit(
            "collector",
            "pairs::tests::attacks::flows_without_end_of_one_sender_leave_half_the_room_to_others",
        ),
    },
    Fault {
        name: "pairs: a flow that is forgotten keeps its place",
        file: "agent/collector/src/pairs.rs",
        from: "self.places.give_back(&flow.sender, 1);",
        to: "",
        target: unit(
            "collector",
            "pairs::tests::attacks::flows_without_end_of_one_sender_leave_half_the_room_to_others",
        ),
    },
    Fault {
        name: "pairs: what found no room is not missing",
        file: "agent/collector/src/pairs.rs",
        from: "self.agents.has_no_room(agent, end);",
        to: "let _ = Agents::has_no_room;",
        target: unit(
            "collector",
            "pairs::tests::attacks::an_agent_that_found_no_room_is_not_exact_where_a_part_may_be_missing_and_others_are",
        ),
    },
    Fault {
        name: "pairs: what found no room is missing everywhere",
        file: "agent/collector/src/pairs/flow.rs",
        from: "is_before(agent.refused_to.min(self.followed_from))",
        to: "is_before(agent.refused_to.min(u64::MAX - self.followed_from))",
        target: unit(
            "collector",
            "pairs::tests::attacks::a_flow_that_is_followed_stays_exact_while_its_agents_find_no_room_for_others",
        ),
    },
    Fault {
        name: "pairs: what found no room in a flow of many agents is not missing",
        file: "agent/collector/src/pairs/flow.rs",
        from: "self.refused_to = self.refused_to.max(window[1]);",
        to: "",
        target: unit(
            "collector",
            "pairs::tests::attacks::what_an_agent_saw_of_a_flow_that_has_as_many_as_it_may_is_missing_there_alone",
        ),
    },
    Fault {
        name: "pairs: each batch without room walks all flows",
        file: "agent/collector/src/pairs/agents.rs",
        from: "now.duration_since(at) < FORGET_EVERY",
        to: "now.duration_since(at) > 9 * FORGET_EVERY",
        target: unit(
            "collector",
            "pairs::tests::attacks::agents_are_forgotten_when_there_is_no_room_but_not_for_each_batch",
        ),
    },
    Fault {
        name: "pairs: an agent that is forgotten keeps its place",
        file: "agent/collector/src/pairs/agents.rs",
        from: "self.places.give_back(&agent.sender, 1);",
        to: "",
        target: unit(
            "collector",
            "pairs::tests::attacks::agents_are_forgotten_when_there_is_no_room_but_not_for_each_batch",
        ),
    },
    Fault {
        name: "pairs: an agent that is forgotten keeps places for its interfaces",
        file: "agent/collector/src/pairs/agents.rs",
        from: "self.interfaces.give_back(&agent.sender, interfaces);",
        to: "let _ = interfaces;",
        target: unit(
            "collector",
            "pairs::tests::attacks::interfaces_of_one_credential_leave_room_for_those_of_others",
        ),
    },
    Fault {
        name: "pairs: interfaces have no bound",
        file: "agent/collector/src/pairs/agents.rs",
        from: "if room.take(&self.sender) {",
        to: "if room.take(&self.sender) || batch.window[1] > 0 {",
        target: unit(
            "collector",
            "pairs::tests::attacks::interfaces_of_one_credential_leave_room_for_those_of_others",
        ),
    },
    Fault {
        name: "pairs: a flow from the future makes all that follow inexact",
        file: "agent/collector/src/pairs.rs",
        from: "flow.forgotten_to().min(now.latest_forgotten())",
        to: "flow.forgotten_to()",
        target: unit(
            "collector",
            "pairs::tests::attacks::what_was_seen_ahead_of_the_clock_is_not_forgotten_ahead_of_it",
        ),
    },
    Fault {
        name: "pairs: a clock that was set back makes all that follows inexact",
        file: "agent/collector/src/pairs.rs",
        from: "self.forgotten_to = self.forgotten_to.min(now.latest_forgotten());",
        to: "",
        target: unit(
            "collector",
            "pairs::tests::attacks::what_was_forgotten_before_the_clock_was_set_back_is_not_ahead_of_it",
        ),
    },
    Fault {
        name: "pairs: a slow agent fills the room for hours",
        file: "agent/collector/src/pairs.rs",
        from: "remember: if is_crowded {",
        to: "remember: if is_crowded && wait < least {",
        target: unit(
            "collector",
            "pairs::tests::attacks::a_sender_that_says_it_is_late_does_not_fill_the_room_for_hours",
        ),
    },
    Fault {
        name: "pairs: a slow agent is not waited for when there is little room",
        file: "agent/collector/src/pairs/flow.rs",
        from: "let wait = if is_alone {",
        to: "let wait = if is_alone || now.remember < now.wait {",
        target: unit(
            "collector",
            "pairs::tests::attacks::a_sender_that_says_it_is_late_does_not_fill_the_room_for_hours",
        ),
    },
    Fault {
        name: "pairs: one sender holds up the flow of others",
        file: "agent/collector/src/pairs/flow.rs",
        from: "if quiet.clone().count() < 2 {",
        to: "if quiet.clone().count() < 9 {",
        target: unit(
            "collector",
            "pairs::tests::attacks::lies_about_a_flow_of_two_hosts_change_no_line_between_these",
        ),
    },
    Fault {
        name: "pairs: how old a line is depends on a third agent",
        file: "agent/collector/src/pairs/flow.rs",
        from: "let since = from.since.min(to.since);",
        to: "let since = self.sights.iter().map(|it| it.since).min().unwrap_or(0);",
        target: unit(
            "collector",
            "pairs::tests::attacks::lies_about_a_flow_of_two_hosts_change_no_line_between_these",
        ),
    },
    Fault {
        name: "pairs: whether two agents have reported all depends on a third one",
        file: "agent/collector/src/pairs/flow.rs",
        from: "let last_seen = from.last_seen.max(to.last_seen);",
        to: "let last_seen = self.last_seen;",
        target: unit(
            "collector",
            "pairs::tests::attacks::lies_about_a_flow_of_two_hosts_change_no_line_between_these",
        ),
    },
    Fault {
        name: "pairs: what was told of the future makes a flow inexact",
        file: "agent/collector/src/pairs/flow.rs",
        from: "let last_seen = self.last_seen.min(now.latest());",
        to: "let last_seen = self.last_seen;",
        target: unit(
            "collector",
            "pairs::tests::attacks::what_one_sender_says_of_the_future_does_not_make_a_flow_of_hosts_late",
        ),
    },
    Fault {
        name: "pairs: an agent that was silent is compared with what was told",
        file: "agent/collector/src/pairs/flow.rs",
        from: "last_seen.saturating_add(before_settled)",
        to: "last_seen.max(before_settled.min(0))",
        target: unit(
            "collector",
            "pairs::tests::what_comes_later_to_a_third_agent_is_not_held_against_what_was_told_before",
        ),
    },
    Fault {
        name: "pairs: what was forgotten is no part of what comes a little later",
        file: "agent/collector/src/pairs/flow.rs",
        from: "self.last_seen.max(self.whole_since.0)",
        to: "self.last_seen",
        target: unit(
            "collector",
            "pairs::tests::what_left_a_little_later_than_a_flow_was_forgotten_may_be_a_part_of_it",
        ),
    },
    Fault {
        name: "pairs: interfaces that are gone keep their room",
        file: "agent/collector/src/pairs/agents.rs",
        from: "self.forget_interfaces(batch, room);",
        to: "",
        target: unit(
            "collector",
            "pairs::tests::interfaces_that_are_gone_make_room_for_others",
        ),
    },
    Fault {
        name: "pairs: what is left over waits for what is due later",
        file: "agent/collector/src/pairs.rs",
        from: "if self.to_visit.is_empty() {",
        to: "if self.to_visit.len() < usize::MAX {",
        target: unit(
            "collector",
            "pairs::tests::attacks::reports_come_a_few_at_a_time_and_what_is_left_over_comes_first",
        ),
    },
    Fault {
        name: "pairs: a credential has as many names as it claims",
        file: "agent/collector/src/pairs/agents.rs",
        from: "Identity::Named(name) => name.to_string(),",
        to: "Identity::Named(_) => self.name.hostname.clone(),",
        target: unit(
            "collector",
            "pairs::tests::attacks::a_credential_has_one_name_in_the_sums_whatever_domains_it_claims",
        ),
    },
    Fault {
        name: "pairs: a batch may name any number of interfaces",
        file: "agent/collector/src/pairs/sighting.rs",
        from: ".take(MOST_INTERFACES)",
        to: ".take(9 * MOST_INTERFACES)",
        target: unit(
            "collector",
            "pairs::tests::attacks::what_a_batch_names_is_bounded_and_counted_while_it_waits",
        ),
    },
    Fault {
        name: "pairs: a name controls a terminal",
        file: "agent/collector/src/pairs/report.rs",
        from: "harmless::json(&line).into_owned()",
        to: "line",
        target: unit(
            "collector",
            "pairs::tests::attacks::a_name_controls_no_terminal_that_shows_a_line",
        ),
    },
];
