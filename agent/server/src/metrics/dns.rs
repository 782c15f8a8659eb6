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
                "Queries of the DNS that were read",
            ),
            dns.queries,
        ),
        (
            Help(
                "flow_agent_dns_unanswered",
                "Queries to which no answer came within five seconds at least",
            ),
            dns.unanswered,
        ),
        (
            Help(
                "flow_agent_dns_lost_exchanges",
                "Queries with their answers that are in no batch, since too many came between two scans",
            ),
            dns.lost_exchanges,
        ),
        (
            Help(
                "flow_agent_dns_repeated",
                "Queries that were asked again before they were answered",
            ),
            dns.repeated,
        ),
        (
            Help(
                "flow_agent_dns_not_followed",
                "Queries that were followed no longer, since too many wait, or since another one has their number",
            ),
            dns.not_followed,
        ),
        (
            Help(
                "flow_agent_dns_forgotten_names",
                "Names of addresses that had to make room before their time was over, or found none",
            ),
            dns.forgotten_names,
        ),
    ])?;
    let by_code = dns.answers_by_code.iter();
    families.counter(
        Help(
            "flow_agent_dns_answers",
            "Answers to queries that were read, by their code",
        ),
        by_code.map(|(code, &count)| (vec![("code", code.clone())], count)),
    )?;
    families.counter(
        Help(
            "flow_agent_dns_answer_seconds",
            "How long the answers took, together",
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
            "Messages of the DNS from which nothing is learned, by the reason",
        ),
        unread.map(|(reason, count)| (vec![("reason", reason.to_owned())], count)),
    )
}
