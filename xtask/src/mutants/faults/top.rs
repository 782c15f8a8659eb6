//! Faults in what `top` shows of a collector's hosts.

use super::{Fault, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "top: a silent host's rates go on",
        file: "agent/view/src/top/fleet.rs",
        from: "self.is_collector && host.silence(self.now) > host.longest_silence()",
        to: "false && host.silence(self.now) > host.longest_silence()",
        target: unit(
            "view",
            "top::tests::fleet::a_host_that_is_silent_says_so_and_its_rates_count_no_more",
        ),
    },
    Fault {
        name: "top: a batch that comes again counts again",
        file: "agent/view/src/top/fleet/host.rs",
        from: "if (scan, index) < expected || is_rest && batch.stream_id != self.stream_id {",
        to: "if is_rest && batch.stream_id != self.stream_id {",
        target: unit(
            "view",
            "top::tests::fleet::a_batch_that_comes_again_or_on_two_streams_counts_once",
        ),
    },
    Fault {
        name: "top: two streams of an agent count twice",
        file: "agent/view/src/top/fleet/host.rs",
        from: "if (scan, index) < expected || is_rest && batch.stream_id != self.stream_id {",
        to: "if (scan, index) < expected && batch.stream_id == self.stream_id {",
        target: unit(
            "view",
            "top::tests::fleet::a_batch_that_comes_again_or_on_two_streams_counts_once",
        ),
    },
    Fault {
        name: "top: rates of many hosts are rounded before they are added",
        file: "agent/view/src/top/rows.rs",
        from: "self.packets[direction] += picture.per_second(recent.packets[direction]);",
        to: "self.packets[direction] += picture.per_second(recent.packets[direction]).round();",
        target: unit(
            "view",
            "top::tests::fleet::small_rates_of_many_hosts_add_up",
        ),
    },
    Fault {
        name: "top: a crowd of one sender displaces others",
        file: "agent/view/src/top/fleet.rs",
        from: "Reverse((numbers[host.sender.identity.as_str()], host.silence(now)))",
        to: "Reverse((numbers[host.sender.identity.as_str()].min(1), host.silence(now)))",
        target: unit(
            "view",
            "top::tests::fleet::one_sender_with_too_many_hosts_costs_no_other_its_place_or_its_rows",
        ),
    },
    Fault {
        name: "top: a machine has any number of agents",
        file: "agent/view/src/top/fleet.rs",
        from: "const MOST_OF_MACHINE: usize = 4;",
        to: "const MOST_OF_MACHINE: usize = 4_000;",
        target: unit(
            "view",
            "top::tests::fleet::one_sender_with_too_many_hosts_costs_no_other_its_place_or_its_rows",
        ),
    },
    Fault {
        name: "top: idle hosts keep the room of busy ones",
        file: "agent/view/src/top/fleet.rs",
        from: "let shares = shared(ROOM / 2, &sums);",
        to: "let shares = vec![0; sums.len()];",
        target: unit(
            "view",
            "top::tests::fleet::many_hosts_share_the_room_for_rows_and_idle_ones_leave_theirs_to_the_busy",
        ),
    },
    Fault {
        name: "top: a part of a scan that is lost is not said",
        file: "agent/view/src/top/fleet/host.rs",
        from: "self.is_cut |= index > expected.1;",
        to: "self.is_cut |= false && index > expected.1;",
        target: unit(
            "view",
            "top::tests::fleet::what_is_missing_of_a_hosts_scans_is_said_with_its_name",
        ),
    },
    Fault {
        name: "top: a scan that is lost is not said",
        file: "agent/view/src/top/fleet/host.rs",
        from: "self.missing.scans = self.missing.scans.saturating_add(skipped);",
        to: "let _ = skipped;",
        target: unit(
            "view",
            "top::tests::fleet::what_is_missing_of_a_hosts_scans_is_said_with_its_name",
        ),
    },
    Fault {
        name: "top: a host that does not say hides what others say",
        file: "agent/view/src/top/print.rs",
        from: "(Some(false), _) | (_, Some(false)) => Some(false),",
        to: "(Some(false), Some(_)) | (Some(_), Some(false)) => Some(false),",
        target: unit(
            "view",
            "top::tests::fleet::a_host_hides_nothing_that_others_say",
        ),
    },
    Fault {
        name: "top: an agent that died is taken for one that was started again",
        file: "agent/view/src/top/fleet.rs",
        from: "is_missed && later.is_some_and(|since| *since > host.heard)",
        to: "is_missed && later.is_some()",
        target: unit(
            "view",
            "top::tests::fleet::an_agent_that_was_started_again_takes_the_place_of_the_one_before",
        ),
    },
    Fault {
        name: "top: a host leaves before it is silent",
        file: "agent/view/src/top/fleet.rs",
        from: "host.silence(now) > host.longest_silence() + FORGOTTEN_AFTER",
        to: "host.silence(now) > FORGOTTEN_AFTER",
        target: unit(
            "view",
            "top::tests::fleet::a_host_of_long_windows_is_silent_before_it_is_forgotten",
        ),
    },
    Fault {
        name: "top: two hosts have one name",
        file: "agent/view/src/top/fleet/host.rs",
        from: "let label = if !is_unique {",
        to: "let label = if false && !is_unique {",
        target: unit(
            "view",
            "top::tests::fleet::a_name_that_its_sender_does_not_have_stands_with_the_identity",
        ),
    },
    Fault {
        name: "top: flows that were kept are shown as live ones",
        file: "agent/view/src/top/fleet.rs",
        from: "let is_old = self.is_collector && age > MOST_BEHIND_NS;",
        to: "let is_old = false && age > MOST_BEHIND_NS;",
        target: unit(
            "view",
            "top::tests::fleet::flows_that_an_agent_had_kept_are_not_taken_for_live_ones",
        ),
    },
];
