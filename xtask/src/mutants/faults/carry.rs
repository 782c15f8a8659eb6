//! Faults in handing over to the next process, and in taking over from the last one.

use super::{Fault, agent, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "carry: what the account already had counts once more",
        file: "agent/src/carry/checkpoints.rs",
        from: "let account = |page| to_pairs(&kernel.accounts.taken(page));",
        to: "let account = |_: u32| to_pairs(&agent_common::HookAccount::default());",
        target: agent("carry_over::kills::ten_kills_lose_no_packet_on_tcx"),
    },
    Fault {
        name: "carry: only one page of an earlier process is drained",
        file: "agent/src/carry/heritage.rs",
        from: "(0..2).filter(is_left).collect()",
        to: "(0..1).filter(is_left).collect()",
        target: agent("carry_over::kills::ten_kills_lose_no_packet_on_tcx"),
    },
    Fault {
        name: "carry: what was drained stays in the store",
        file: "agent/src/scan/carried.rs",
        from: "keep.forget(&heritage.instance, &heritage.files);",
        to: "",
        target: agent(
            "carry_over::kills::nothing_of_an_earlier_agent_stays_in_the_store_once_the_next_one_counts",
        ),
    },
    Fault {
        name: "carry: a restart detaches as a stop does",
        file: "agent/src/agent/scanning.rs",
        from: "return can_leave;",
        to: "return false;",
        target: agent("carry_over::restarts::restarts_lose_no_packet_on_tcx"),
    },
    Fault {
        name: "carry: a stop leaves the programs as a restart does",
        file: "agent/src/agent/scanning.rs",
        from: "has_store && service_manager::is_restarting().await",
        to: "has_store && !service_manager::is_restarting().await",
        target: agent("carry_over::restarts::a_stop_detaches_and_the_next_start_counts_from_zero"),
    },
    Fault {
        name: "carry: a commit with a flipped bit counts",
        file: "agent/src/carry/ledger.rs",
        from: "(found == header(seq, &state)).then_some((seq, state))",
        to: "Some((seq, state))",
        target: unit(
            "agent",
            "carry::ledger::tests::whatever_bit_of_a_commit_is_flipped_the_one_before_it_counts",
        ),
    },
    Fault {
        name: "carry: nobody marks a page as empty",
        file: "agent/src/carry/ledger.rs",
        from: "self.file(self.seq).write_all_at(&[1], CLEARED_AT)",
        to: "Ok(())",
        target: agent("carry_over::kills::ten_kills_lose_no_packet_on_tcx"),
    },
    Fault {
        name: "carry: a page is emptied before what it held is committed",
        file: "agent/src/scan.rs",
        from: "self.commit(&idle, window_end_unix_ns);",
        to: "for &page in &idle { self.kernel.pages.clear(page)?; } self.commit(&idle, window_end_unix_ns);",
        target: agent("carry_over::steps::a_kill_at_any_step_of_a_scan_loses_no_packet_on_tcx"),
    },
    Fault {
        name: "carry: a filter is removed before its successor is added",
        file: "agent/kernel/src/attach/clsact.rs",
        from: "if !stale.is_there(&mut self.socket)? {",
        to: "if stale.is_there(&mut self.socket)? {",
        target: unit(
            "kernel",
            "attach::takeover::tests::each_packet_counts_once_while_a_successor_takes_the_filters_over",
        ),
    },
    Fault {
        name: "carry: a restart removes filters",
        file: "agent/kernel/src/attach.rs",
        from: "filters.into_iter().for_each(Clsact::leave);",
        to: "drop(filters);",
        target: agent("carry_over::restarts::restarts_lose_no_packet_on_clsact"),
    },
    Fault {
        name: "carry: what waits for a report is not in the ledger",
        file: "agent/src/scan.rs",
        from: "replica: Some(replica),",
        to: "replica: None,",
        target: agent("carry_over::settings::kills_lose_no_packet_that_waits_for_its_report"),
    },
    Fault {
        name: "carry: what waited for a report is in a scan that the killed process had",
        file: "agent/src/scan/carried.rs",
        from: "scan_id: last.id + 1,",
        to: "scan_id: last.id,",
        target: agent("carry_over::settings::kills_lose_no_packet_that_waits_for_its_report"),
    },
    Fault {
        name: "carry: programs count for ever without an agent",
        file: "agent-ebpf/src/switches.rs",
        from: "(page < Switches::OFF && clock::jiffies() < until).then_some(page)",
        to: "(page < Switches::OFF && until != 0).then_some(page)",
        target: agent(
            "carry_over::lease::programs_without_an_agent_count_only_as_long_as_their_lease_on_tcx",
        ),
    },
    Fault {
        name: "carry: nobody says that the lease was over",
        file: "agent/src/agent/scanning.rs",
        from: "scanner.note_lapse_of(&self.earlier.heritages)",
        to: "scanner.note_lapse_of(&[])",
        target: agent(
            "carry_over::lease::programs_without_an_agent_count_only_as_long_as_their_lease_on_tcx",
        ),
    },
    Fault {
        name: "carry: a scan does not renew the lease",
        file: "agent/src/scan.rs",
        from: "self.renew_lease(scan_clock, purpose);",
        to: "",
        target: agent("carry_over::lease::no_lease_ends_while_an_agent_scans"),
    },
    Fault {
        name: "carry: tables of another layout are read",
        file: "agent/src/carry/heritage.rs",
        from: "state.layout == layout(),",
        to: "!state.layout.is_empty(),",
        target: agent(
            "carry_over::emptied::tables_of_another_layout_are_given_up_and_their_packets_told",
        ),
    },
    Fault {
        name: "carry: a spool takes once more what an earlier process has put there",
        file: "agent/exporters/src/delivery/backlog.rs",
        from: "batch.head().is_some_and(|head| self.earlier.has(&head))",
        to: "false",
        target: unit(
            "exporters",
            "delivery::tests::spooled::what_a_killed_process_has_put_there_is_delivered_once",
        ),
    },
    Fault {
        name: "carry: flows that wait are read although they were changed",
        file: "agent/src/carry/ledger.rs",
        from: "(crc32fast::hash(&bytes) == written.crc).then_some(bytes)",
        to: "Some(bytes)",
        target: unit(
            "agent",
            "carry::ledger::tests::flows_that_wait_are_read_only_as_they_were_written",
        ),
    },
    Fault {
        name: "carry: a keeper does not say that it starts the agent again",
        file: "agent/src/commands/keep.rs",
        from: "if !self.asked.restart || self.asked.stop {",
        to: "if !self.asked.reload {",
        target: agent("carry_over::keeper::a_kept_agent_loses_no_packet_on_tcx"),
    },
    Fault {
        name: "carry: a keeper forgets what the agent has stored",
        file: "agent/src/commands/keep/store.rs",
        from: "self.kept.push((name.to_owned(), fd));",
        to: "",
        target: agent("carry_over::keeper::a_kept_agent_loses_no_packet_on_tcx"),
    },
    Fault {
        name: "carry: a keeper obeys any process",
        file: "agent/src/commands/keep/store.rs",
        from: "if Some(sender) != self.agent {",
        to: "if false {",
        target: unit(
            "agent",
            "commands::keep::store::tests::no_other_process_can_store_or_remove",
        ),
    },
    Fault {
        name: "carry: a keeper stops although the agent has left its programs",
        file: "agent/src/commands/keep.rs",
        from: "let leaves = self.has_promised || !status.success();",
        to: "let leaves = false;",
        target: agent("carry_over::keeper::a_stop_during_a_restart_loses_no_packet"),
    },
];
