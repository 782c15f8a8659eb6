//! Faults in the messages of outputs: record times, elements and attributes, template and domain numbers, the account's
//! series.

use super::{Fault, Target, agent, unit};

const TIMES: &str = "agent/proto/src/lib.rs";
const FLOW_PROTO: &str = "agent/proto/flow/v1/flow.proto";
const ENRICHED: Target = unit(
    "formats",
    "ipfix::tests::enriched::a_record_has_what_was_found_out_from_its_source_on",
);

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a record has the start of its flow",
        file: TIMES,
        from: "last.saturating_sub(self.delta_duration_ns).max(first)",
        to: "first",
        target: agent("outputs::ipfix::rates::goflow2_has_the_times_of_what_a_record_counts"),
    },
    Fault {
        name: "a delta begins with the last packets that it counts",
        file: "agent/flows/src/replica/reports.rs",
        from: "self.began_boot_ns = self.began_boot_ns.min(more.began_boot_ns);",
        to: "self.began_boot_ns = more.began_boot_ns;",
        target: unit(
            "flows",
            "replica::tests::reports::a_record_lasts_from_the_first_to_the_last_packet_that_it_counts",
        ),
    },
    Fault {
        name: "a record without packets is sent without being asked for",
        file: "agent/formats/src/ipfix.rs",
        from: "record.delta().packets == 0 && !settings.end_records",
        to: "false",
        target: agent("outputs::ipfix::rates::nfdump_shows_a_constant_rate_as_constant"),
    },
    Fault {
        name: "templates of both forms have the same numbers",
        file: "agent/formats/src/ipfix/template.rs",
        from: "if settings.is_biflow { BIFLOW } else { UNIFLOW }",
        to: "BIFLOW",
        target: unit(
            "formats",
            "ipfix::template::tests::templates_of_different_fields_have_different_numbers_whatever_the_settings",
        ),
    },
    Fault {
        name: "all agents have one observation domain",
        file: "agent/formats/src/ipfix.rs",
        from: "(Domain::Flows, Some(domains)) => domains.flows,",
        to: "(Domain::Flows, Some(_)) => 1,",
        target: agent("outputs::ipfix::beside::nfdump_tells_two_agents_of_one_host_apart"),
    },
    Fault {
        name: "all series of the account begin with the agent",
        file: "agent/formats/src/otlp/metrics.rs",
        from: "let since = hook.since_unix_ns;",
        to: "let since = self.accounts.since_unix_ns;",
        target: agent(
            "outputs::otlp::series::series_only_grow_and_departed_interfaces_have_a_metric_of_their_own",
        ),
    },
    Fault {
        name: "interfaces that have left count with those that are not watched",
        file: "agent/proto/src/accounts.rs",
        from: "let mut listed = *departed;",
        to: "let mut listed = HookAccount::default();",
        target: agent(
            "outputs::otlp::series::series_only_grow_and_departed_interfaces_have_a_metric_of_their_own",
        ),
    },
    Fault {
        name: "a receiver that has moved is not looked for",
        file: "agent/exporters/src/transport/udp.rs",
        from: "if self.has_moved().await {",
        to: "if false && self.has_moved().await {",
        target: agent("outputs::ipfix::moves::datagrams_follow_the_name_of_their_receiver"),
    },
    Fault {
        name: "the DSCP of the answers is that of the source",
        file: "agent/formats/src/ipfix/flow.rs",
        from: "IP_DIFF_SERV_CODE_POINT.reverse(), reverse_dscp",
        to: "IP_DIFF_SERV_CODE_POINT.reverse(), dscp + 0 * reverse_dscp",
        target: unit("formats", "ipfix::tests::each_direction_has_its_dscp"),
    },
    Fault {
        name: "the mark of a changed DSCP is that of the other direction",
        file: FLOW_PROTO,
        from: "// dscp_changed, reverse_dscp_changed?.",
        to: "// reverse_dscp_changed, dscp_changed?.",
        target: unit(
            "formats",
            "json::tests::each_direction_has_its_dscp_and_a_mark_only_if_that_changed",
        ),
    },
    Fault {
        name: "the congestion window of the source is that of the destination",
        file: FLOW_PROTO,
        from: "(PEN/1037, PEN/1038)",
        to: "(PEN/1038, PEN/1037)",
        target: ENRICHED,
    },
    Fault {
        name: "the delivery rate of the source is that of the destination",
        file: FLOW_PROTO,
        from: "(PEN/1039, PEN/1040)",
        to: "(PEN/1040, PEN/1039)",
        target: ENRICHED,
    },
    Fault {
        name: "a delivery rate that is not known is zero",
        file: "agent/formats/src/ipfix/enriched.rs",
        from: "value.unwrap_or(u64::MAX)",
        to: "value.unwrap_or_default()",
        target: ENRICHED,
    },
    Fault {
        name: "a congestion window that is not known is zero",
        file: "agent/formats/src/ipfix/enriched.rs",
        from: "value.unwrap_or(u32::MAX)",
        to: "value.unwrap_or_default()",
        target: ENRICHED,
    },
];
