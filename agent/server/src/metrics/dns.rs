//! Metrics of DNS messages.

use std::fmt;

use proto::DnsStatus;

use super::families::{Families, Help};

pub(super) fn families(dns: &DnsStatus, families: &mut Families<'_>) -> fmt::Result {
    families.gauges([
        (
            Help("flow_agent_dns_names", "Names of addresses that are kept"),
            dns.names as f64,
        ),
        (
            Help(
                "flow_agent_dns_names_capacity",
                "Names of addresses that can be kept",
            ),
            dns.names_capacity as f64,
        ),
    ])?;
    families.counters([
        (
            Help(
                "flow_agent_dns_queries",
                "DNS queries that were read",
            ),
            dns.queries,
        ),
        (
            Help(
                "flow_agent_dns_unanswered",
                "Queries without an answer within at least five seconds",
            ),
            dns.unanswered,
        ),
        (
            Help(
                "flow_agent_dns_lost_exchanges",
                "Answered queries that are in no batch, because too many came between two scans",
            ),
            dns.lost_exchanges,
        ),
        (
            Help(
                "flow_agent_dns_repeated",
                "Queries repeated before they were answered",
            ),
            dns.repeated,
        ),
        (
            Help(
                "flow_agent_dns_not_followed",
                "Queries given up because too many waited, or because another query took their number",
            ),
            dns.not_followed,
        ),
        (
            Help(
                "flow_agent_dns_forgotten_names",
                "Names of addresses evicted before they expired, or not kept for lack of room",
            ),
            dns.forgotten_names,
        ),
    ])?;
    let by_code = dns.answers_by_code.iter();
    families.counter(
        Help(
            "flow_agent_dns_answers",
            "Answers to the queries read, by response code",
        ),
        by_code.map(|(code, &count)| (vec![("code", code.clone())], count)),
    )?;
    families.counter(
        Help(
            "flow_agent_dns_answer_seconds",
            "Total response time of the answers",
        ),
        [(Vec::new(), dns.waited_ns as f64 / 1e9)],
    )?;
    let unread = [
        ("malformed", dns.malformed),
        ("no_room", dns.no_room),
        ("of_another_kind", dns.of_another_kind),
        ("over_rate", dns.over_rate),
        ("unasked", dns.unasked),
        ("unreadable", dns.unreadable),
    ];
    families.counter(
        Help(
            "flow_agent_dns_unread",
            "DNS messages from which nothing was learned, by reason",
        ),
        unread.map(|(reason, count)| (vec![("reason", reason.to_owned())], count)),
    )
}
