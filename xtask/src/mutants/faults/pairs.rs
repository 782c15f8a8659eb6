//! Faults in how a collector compares what two agents saw of a flow.

use super::{Fault, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "pairs: a gap between batches is not noticed",
        file: "agent/collector/src/pairs/agents.rs",
        from: "self.has_lost |= batch.seq != self.seq.wrapping_add(1)\n                ||",
        to: "self.has_lost |= batch.seq == 0\n                ||",
        target: unit(
            "collector",
            "pairs::tests::inexact::of_what_one_may_have_missed_in_part_the_loss_is_not_said",
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
            "pairs::tests::inexact::of_what_one_may_have_missed_in_part_the_loss_is_not_said",
        ),
    },
    Fault {
        name: "pairs: a part of a scan is a whole one",
        file: "agent/collector/src/pairs/agents.rs",
        from: "if batch.is_last_of_scan {\n            self.seen_to",
        to: "if end > 0 {\n            self.seen_to",
        target: unit(
            "collector",
            "pairs::tests::inexact::a_part_of_a_scan_is_no_whole_one",
        ),
    },
    Fault {
        name: "pairs: packets at two interfaces count once",
        file: "agent/collector/src/pairs/flow.rs",
        from: "self.is_at_several |= *at != sighting.interface;",
        to: "let _ = *at != sighting.interface;",
        target: unit(
            "collector",
            "pairs::tests::inexact::packets_at_two_interfaces_of_a_host_or_at_one_that_came_late_may_be_counted_otherwise",
        ),
    },
    Fault {
        name: "pairs: what was forgotten is compared",
        file: "agent/collector/src/pairs.rs",
        from: "self.forgotten_to = self.forgotten_to.max(forgotten_to);",
        to: "let _ = forgotten_to;",
        target: unit(
            "collector",
            "pairs::tests::inexact::what_comes_after_the_flow_was_forgotten_is_not_called_exact",
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
            "pairs::tests::inexact::what_comes_later_to_a_third_agent_is_not_held_against_what_was_told_before",
        ),
    },
    Fault {
        name: "pairs: what was forgotten is no part of what comes a little later",
        file: "agent/collector/src/pairs/flow.rs",
        from: "self.last_seen.max(self.whole_since.0)",
        to: "self.last_seen",
        target: unit(
            "collector",
            "pairs::tests::inexact::what_left_a_little_later_than_a_flow_was_forgotten_may_be_a_part_of_it",
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
