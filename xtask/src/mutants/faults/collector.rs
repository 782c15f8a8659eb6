//! Faults in how a collector accepts, stores and acknowledges batches.

use super::{Fault, agent, unit};

pub(super) const FAULTS: &[Fault] = &[
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
        to: "None if one.stored_in < usize::MAX =>",
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
        from: "one.stored_in <= index && one.failure.is_none()",
        to: "one.stored_in <= index",
        target: unit(
            "collector",
            "writer::tests::what_a_store_did_not_take_those_behind_it_do_not_get_and_nobody_is_told_of",
        ),
    },
    Fault {
        name: "a batch that failed is stored for the other call that sent it",
        file: "agent/collector/src/writer.rs",
        from: "                first,\n                stored_in,",
        to: "                first: place,\n                stored_in,",
        target: unit(
            "collector",
            "writer::tests::what_a_store_did_not_take_those_behind_it_do_not_get_and_nobody_is_told_of",
        ),
    },
    Fault {
        name: "a store gets again what another one could not take",
        file: "agent/collector/src/writer.rs",
        from: "one.stored_in <= index &&",
        to: "one.stored_in <= index + 1 &&",
        target: unit(
            "collector",
            "writer::tests::a_store_does_not_get_again_what_only_another_one_could_not_take",
        ),
    },
    Fault {
        name: "a batch that comes again is stored again",
        file: "agent/collector/src/writer.rs",
        from: "self.streams.stores_with(&entry.facts)",
        to: "0",
        target: unit(
            "collector",
            "writer::tests::a_batch_behind_one_that_a_store_refuses_is_stored_and_not_acknowledged",
        ),
    },
    Fault {
        name: "another batch with a known number is taken for the same",
        file: "agent/collector/src/streams.rs",
        from: "|batch: &&StoredBatch| batch.seq == facts.seq && batch.digest == facts.digest;",
        to: "|batch: &&StoredBatch| batch.seq == facts.seq;",
        target: unit(
            "collector",
            "writer::tests::another_batch_with_a_number_that_is_known_is_stored",
        ),
    },
    Fault {
        name: "a batch that is in some stores counts as in none",
        file: "agent/collector/src/writer.rs",
        from: "self.streams.stored_in_part(&facts, *stored_in);",
        to: "let _ = Streams::stored_in_part;",
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
        from: "if len_bytes > MAX_BATCH_BYTES {",
        to: "if len_bytes > 2 * MAX_BATCH_BYTES {",
        target: unit(
            "collector",
            "messages::tests::messages_that_are_cut_off_too_long_or_compressed_otherwise_are_refused",
        ),
    },
    Fault {
        name: "a message may expand without a bound",
        file: "agent/collector/src/messages.rs",
        from: ".take(MAX_BATCH_BYTES as u64 + 1)",
        to: ".take(MAX_BATCH_BYTES as u64)",
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
];
