//! Faults in the address translations of flows.

use super::{Fault, Target, agent, unit};

const REUSED: Target = unit(
    "flows",
    "replica::translations::tests::a_flow_of_reused_ports_is_not_given_to_either_connection",
);
const BOTH_SIDES: Target = agent("nat::each_masqueraded_flow_names_the_one_on_the_other_side");

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a flow keeps its translation after the connection tracking has another one",
        file: "agent/flows/src/replica/translations.rs",
        from: "known.form.other == flow.other",
        to: "true || known.form.other == flow.other",
        target: agent("nat::a_flow_that_is_translated_anew_has_no_translation_from_then_on"),
    },
    Fault {
        name: "a flow of ports that were reused gets the later connection",
        file: "agent/flows/src/replica/translations.rs",
        from: "unsure_until: scan.saturating_add(1),",
        to: "unsure_until: scan.saturating_mul(0),",
        target: REUSED,
    },
    Fault {
        name: "the other form has the order of the connection, not that of the flow",
        file: "agent/flows/src/replica/translations.rs",
        from: "other: in_order(other, is_swapped),",
        to: "other: in_order(other, is_swapped && false),",
        target: BOTH_SIDES,
    },
    Fault {
        name: "the filter of the socket lets no translated connection through",
        file: "agent/kernel/src/conntrack.rs",
        from: "const IS_TRANSLATED: u32 = 1 << 4 | 1 << 5;",
        to: "const IS_TRANSLATED: u32 = 1 << 14;",
        target: BOTH_SIDES,
    },
    Fault {
        name: "connections from before the start are not listed",
        file: "agent/enrich/src/nat.rs",
        from: "replica.list_translations(self.netns, connections, *events);",
        to: "let _ = (connections, events);",
        target: agent("nat::a_flow_to_a_forwarded_port_names_the_host_behind_it"),
    },
    Fault {
        name: "after missed events, flows of that time get what is known then",
        file: "agent/flows/src/replica/translations.rs",
        from: "self.missed_at = Some(self.scan);",
        to: "",
        target: unit(
            "flows",
            "replica::translations::tests::after_missed_events_flows_of_that_time_have_no_translation",
        ),
    },
    Fault {
        name: "a connection without an event is taken for one that goes on",
        file: "agent/flows/src/replica/translations.rs",
        from: "known.is_only_listed && known.listed.1 <= flow.began",
        to: "false",
        target: unit(
            "flows",
            "replica::translations::tests::a_connection_that_was_only_listed_needs_a_later_list_to_confirm_it",
        ),
    },
    Fault {
        name: "the ports behind a translation are those before it",
        file: "agent/formats/src/ipfix/flow.rs",
        from: "(&end.nat_addr, end.nat_port)",
        to: "(&end.nat_addr, end.port)",
        target: unit(
            "formats",
            "ipfix::tests::a_flow_before_a_translation_has_what_is_behind_it",
        ),
    },
    Fault {
        name: "the status line counts what an earlier process did",
        file: "agent/src/service_manager.rs",
        from: "seen.saturating_sub(carried_over",
        to: "seen.saturating_sub(0 * carried_over",
        target: unit(
            "agent",
            "service_manager::tests::the_rate_leaves_out_what_an_earlier_process_counted",
        ),
    },
];
