//! Faults in conversations.

use super::{Fault, Target, agent, unit};

const CONVERSATION: &str = "agent/collector/src/pairs/flow/conversation.rs";
const PROVEN: Target = agent(
    "collect::conversations::each_connection_is_a_proven_conversation_and_each_loss_is_where_it_was_made",
);
const CLAIMS: Target = unit(
    "collector",
    "pairs::tests::conversations::without_a_socket_an_end_is_not_proven_and_two_that_claim_it_leave_it_open",
);
const PLACES: Target = unit(
    "collector",
    "pairs::tests::conversations::packets_are_lost_at_a_router_between_the_agents_or_at_the_end_and_the_sum_closes",
);
const LATER: Target = unit(
    "collector",
    "pairs::tests::conversations::drops_that_are_known_later_are_told_once_and_so_is_a_failure",
);

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "of several agents at an end, one is believed",
        file: CONVERSATION,
        from: "(is_empty || hosts.all(|host| Some(host) == first)).then_some(place)",
        to: "(is_empty || true || hosts.all(|host| Some(host) == first)).then_some(place)",
        target: CLAIMS,
    },
    Fault {
        name: "an agent that found no place in a flow is forgotten",
        file: CONVERSATION,
        from: "(self.refused_to > 0, Doubt::NoRoom),",
        to: "",
        target: unit(
            "collector",
            "pairs::tests::conversations::with_more_agents_than_are_followed_nothing_is_proven",
        ),
    },
    Fault {
        name: "an end in two network namespaces is one",
        file: CONVERSATION,
        from: "(is_unclear || is_split, Doubt::Ends),",
        to: "(is_unclear, Doubt::Ends),",
        target: unit(
            "collector",
            "pairs::tests::conversations::an_end_in_two_network_namespaces_is_not_proven",
        ),
    },
    Fault {
        name: "an end that is not known yet is not waited for",
        file: "agent/collector/src/pairs/flow.rs",
        from: "begun_for < now.remember && self.waits_for_an_end(agents)",
        to: "false",
        target: unit(
            "collector",
            "pairs::tests::conversations::an_end_that_reports_later_is_waited_for_though_a_router_has_reported",
        ),
    },
    Fault {
        name: "an end is anybody's while its host has not reported again",
        file: CONVERSATION,
        from: "let all = agents.chain(told.map(|told| &told.agent));",
        to: "let all = agents.chain(told.map(|told| &told.agent).filter(|_| false));",
        target: unit(
            "collector",
            "pairs::tests::conversations::who_claims_an_end_before_its_host_has_reported_again_proves_nothing",
        ),
    },
    Fault {
        name: "an end is waited for again and again",
        file: CONVERSATION,
        from: "!is_known && was_known != Some(false)",
        to: "!is_known && (true || was_known != Some(false))",
        target: unit(
            "collector",
            "pairs::tests::conversations::an_end_that_was_waited_for_in_vain_is_not_waited_for_again",
        ),
    },
    Fault {
        name: "drops beside later packets are in no line",
        file: CONVERSATION,
        from: "if !sight.has_packets() && !is_told {",
        to: "if !sight.has_packets() && (true || !is_told) {",
        target: unit(
            "collector",
            "pairs::tests::conversations::drops_that_are_told_beside_later_packets_are_not_lost_from_the_lines",
        ),
    },
    Fault {
        name: "each piece of news starts the wait again",
        file: "agent/collector/src/pairs/flow.rs",
        from: "(begun_for >= WAIT_FOR_NEWS).then_some(Next::Tell)",
        to: "(unchanged_for >= WAIT_FOR_NEWS).then_some(Next::Tell)",
        target: unit(
            "collector",
            "pairs::tests::conversations::news_that_never_ends_does_not_hold_back_that_of_the_other_end",
        ),
    },
    Fault {
        name: "packets alone prove an end",
        file: CONVERSATION,
        from: "|seen: &Seen| seen.owner == Owner::Socket &&",
        to: "|seen: &Seen|",
        target: CLAIMS,
    },
    Fault {
        name: "an end of two units is proven",
        file: CONVERSATION,
        from: "&& !seen.details.has_several",
        to: "",
        target: unit(
            "collector",
            "pairs::tests::conversations::an_end_whose_address_moved_to_another_unit_is_not_proven",
        ),
    },
    Fault {
        name: "a router's word counts though it does not add up",
        file: CONVERSATION,
        from: "missing.checked_sub(at_routers)",
        to: "Some(missing.saturating_sub(at_routers))",
        target: PLACES,
    },
    Fault {
        name: "what a router kept is also lost between the agents",
        file: CONVERSATION,
        from: "Some(between) => (kept, between),",
        to: "Some(_) => (kept, missing),",
        target: PROVEN,
    },
    Fault {
        name: "a router that may have missed packets lost them",
        file: CONVERSATION,
        from: "let passed = self.is_whole && arrived > 0 && left > 0;",
        to: "let passed = arrived > 0 && left > 0;",
        target: unit(
            "collector",
            "pairs::tests::conversations::what_a_router_missed_is_not_lost_there",
        ),
    },
    Fault {
        name: "a router that translates addresses is an end",
        file: CONVERSATION,
        from: "has_socket(1 - end) || details.nat_community_id.is_some()",
        to: "has_socket(1 - end)",
        target: unit(
            "collector",
            "pairs::tests::conversations::a_router_that_translates_is_no_end",
        ),
    },
    Fault {
        name: "drops are told again with each line",
        file: "agent/collector/src/pairs/flow/kept.rs",
        from: "end.dropped = end.dropped.saturating_sub(before);",
        to: "end.dropped = end.dropped.saturating_sub(0 * before);",
        target: unit(
            "collector",
            "pairs::tests::conversations::drops_of_before_the_flow_was_followed_are_in_no_line",
        ),
    },
    Fault {
        name: "a record without packets is news each time",
        file: "agent/collector/src/pairs/flow.rs",
        from: "details.failure.is_some() && failure != Some(details.failure)",
        to: "details.failure.is_some()",
        target: LATER,
    },
    Fault {
        name: "records do not get their details",
        file: "agent/collector/src/export.rs",
        from: "Sightings::of(&incoming, with_details)",
        to: "Sightings::of(&incoming, with_details && false)",
        target: PROVEN,
    },
];
