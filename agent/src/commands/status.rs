//! `flow-agent status`: shows the status of a running agent or collector.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt::{Display, Write as _},
    process::ExitCode,
    time::Duration,
};

use agent_common::Reason;
use anyhow::Result;
use formats::{harmless, human, table};
use proto::{
    AgentStatus, CarriedOver, ConsumerStatus, DnsStatus, HookStatus, InterfacesStatus, KernelDrops,
    ListenerStatus, NatStatus, OutputSpoolStatus, OutputStatus, OutputTlsStatus, RecordSum,
    ServerStatus, UncountedInterface,
};
use sys::local_time::Zone;
use view::client::{self, ClientError};

use super::{
    answer::{self, Format},
    connect::Connect,
};

mod collector;

/// Show what a running agent or collector does and how well.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub connect: Connect,

    /// Text for people, or one JSON object.
    #[arg(
        short = 'o',
        long,
        value_name = "FORMAT",
        value_enum,
        default_value = "text"
    )]
    pub output: Format,

    /// Show times in UTC rather than in local time.
    #[arg(long)]
    pub utc: bool,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let target = args.connect.target()?;
    let status = match super::patiently(&target, client::status(&target)).await {
        Err(unknown @ ClientError::TooOld { .. }) => {
            let status = client::collector_status(&target).await;
            // A server that implements neither call is no collector.
            let status = status.map_err(|error| {
                let is_neither = matches!(error, ClientError::TooOld { .. });
                if is_neither { unknown } else { error }
            })?;
            let text = match args.output {
                Format::Text => harmless::lines(collector::lines(&status)),
                Format::Json => answer::json(&status)?,
            };
            answer::show(text).await?;
            return Ok(ExitCode::SUCCESS);
        }
        status => status?,
    };
    let text = match args.output {
        Format::Text => text(&status, Zone::utc_if(args.utc)),
        Format::Json => answer::json(&status)?,
    };
    answer::show(text).await?;
    Ok(ExitCode::SUCCESS)
}

fn text(status: &AgentStatus, zone: Zone) -> String {
    let mut lines = Vec::new();
    let agent = status.agent.clone().unwrap_or_default();
    lines.push(format!(
        "flow-agent {} on {}, up {}",
        agent.version,
        agent.hostname,
        duration(status.uptime_ns)
    ));
    if !agent.agent_id.is_empty() {
        lines.push(format!(
            "  agent id {}, instance {}",
            agent.agent_id, agent.instance_id
        ));
    }
    settings_lines(status, &mut lines);
    if status.hooks.is_empty() {
        lines.push("no interface is counted; the log says what the agent waits for".to_owned());
    }
    hooks_lines(&status.hooks, &mut lines);
    if let Some(interfaces) = &status.interfaces {
        interfaces_lines(interfaces, &mut lines);
    }
    if let Some(account) = &status.account {
        lines.push("all hooks".to_owned());
        lines.push(format!("  {}", table::closing(account)));
    }
    figures_lines(status, &mut lines);
    for output in &status.outputs {
        output_lines(output, zone, &mut lines);
    }
    if status.consumers.is_empty() {
        lines.push("no consumers".to_owned());
    }
    lines.extend(status.consumers.iter().map(consumer_line));
    let listeners = status.server.iter().flat_map(|server| &server.listeners);
    listeners.for_each(|listener| listener_lines(listener, zone, &mut lines));
    lines.extend(status.server.as_ref().map(server_line));
    harmless::lines(&lines)
}

fn settings_lines(status: &AgentStatus, lines: &mut Vec<String>) {
    let Some(settings) = &status.settings else {
        return;
    };
    let sample = match settings.sample_rate {
        0 => String::new(),
        rate => format!(", sample 1 in {rate} flows"),
    };
    let report = match settings.report_interval_ns {
        0 => String::new(),
        interval => format!(", report-interval {}", duration(interval)),
    };
    let filter = match settings.filter_rules {
        0 => String::new(),
        1 => ", 1 filter rule".to_owned(),
        rules => format!(", {rules} filter rules"),
    };
    lines.push(format!(
        "settings  max-flows {}, max-tracked-flows {}, scan-interval {}, early-scan {} %, \
         idle-timeout {}, linger {}{report}{sample}{filter}",
        settings.max_flows,
        settings.max_tracked_flows,
        duration(settings.scan_interval_ns),
        settings.early_scan_percent,
        duration(settings.idle_timeout_ns),
        duration(settings.linger_ns)
    ));
}

/// The hooks by network namespace, with a heading for each namespace that has a name.
fn hooks_lines(hooks: &[HookStatus], lines: &mut Vec<String>) {
    let mut by_netns = BTreeMap::<u32, Vec<&HookStatus>>::new();
    for hook in hooks {
        let netns = hook.interface.as_ref().map_or(0, |one| one.netns);
        by_netns.entry(netns).or_default().push(hook);
    }
    for (netns, hooks) in by_netns {
        let interface = hooks.first().and_then(|hook| hook.interface.as_ref());
        let name = interface.map_or("", |one| one.netns_name.as_str());
        if !name.is_empty() {
            lines.push(format!("network namespace {name} ({netns})"));
        }
        for hook in hooks {
            hook_lines(hook, lines);
        }
    }
}

fn hook_lines(hook: &HookStatus, lines: &mut Vec<String>) {
    let interface = hook.interface.clone().unwrap_or_default();
    lines.push(format!(
        "{} (ifindex {}, netns {}) {} by {}",
        interface.name,
        interface.ifindex,
        interface.netns,
        hook.hook().name(),
        hook.mode().name()
    ));
    if hook.instead_of_xdp.is_some() {
        lines.push(format!(
            "  instead of xdp: {}",
            hook.instead_of_xdp().words()
        ));
    }
    if hook.interface_gone {
        lines.push("  the interface is gone".to_owned());
    }
    let Some(account) = &hook.account else { return };
    lines.push(format!("  {}", table::closing(account)));
    let seen = proto::pair(account.seen);
    lines.push(format!(
        "  {} packets, {}",
        seen.packets,
        human::bytes(seen.bytes)
    ));
    let copies = account.beside(Reason::LoopedBack).packets;
    if copies > 0 {
        lines.push(format!(
            "  {copies} of this host's own packets were looped back (broadcast, multicast) and are not counted"
        ));
    }
}

fn interfaces_lines(interfaces: &InterfacesStatus, lines: &mut Vec<String>) {
    if interfaces.departed != 0 {
        lines.push(format!("{} interfaces that have left", interfaces.departed));
        let account = interfaces.departed_account.as_ref();
        lines.extend(account.map(|account| format!("  {}", table::closing(account))));
    }
    if interfaces.not_counted != 0 {
        lines.push(format!(
            "{} selected interfaces are not counted; there is room for {}",
            interfaces.not_counted, interfaces.capacity
        ));
        let named = interfaces.uncounted.iter();
        lines.extend(named.map(|one| format!("  {}", uncounted(one, interfaces.capacity))));
        let named = interfaces.uncounted.len() as u64;
        match u64::from(interfaces.not_counted).checked_sub(named) {
            None | Some(0) => {}
            Some(more) => lines.push(format!("  and {more} more")),
        }
    }
    lines.extend(absent_line(interfaces));
}

/// The first of these names, and the number of the others.
fn absent_line(interfaces: &InterfacesStatus) -> Option<String> {
    let named = interfaces.absent_names.join(", ");
    let named_len = interfaces.absent_names.len() as u64;
    let more = u64::from(interfaces.absent).saturating_sub(named_len);
    match (interfaces.absent, more) {
        (0, _) => None,
        (_, 0) => Some(format!("no interface has these names: {named}")),
        _ => Some(format!(
            "no interface has these names: {named}, and {more} more"
        )),
    }
}

fn output_lines(output: &OutputStatus, zone: Zone, lines: &mut Vec<String>) {
    lines.push(format!(
        "output {} to {}={}{}",
        output.name,
        output.kind,
        output.address,
        if output.failing { ": FAILING" } else { "" }
    ));
    if let Some(tls) = &output.tls {
        output_tls_lines(tls, zone, lines);
    }
    let sums = [
        ("sent", output.sent),
        ("queued", output.queued),
        ("refused", output.refused),
        ("lost", output.lost),
        ("left out", output.left_out),
    ];
    for (what, sum) in sums {
        let RecordSum {
            records,
            packets,
            bytes,
        } = sum.unwrap_or_default();
        if records != 0 || what == "sent" {
            let bytes = human::bytes(bytes);
            lines.push(format!(
                "  {what} {records} records of {packets} packets, {bytes}"
            ));
        }
    }
    if output.asked_report_interval_ns != 0 {
        lines.push(format!(
            "  asks for reports of continuing flows every {} at most",
            duration(output.asked_report_interval_ns)
        ));
    }
    if output.asked_sample_rate != 0 {
        lines.push(format!(
            "  asks to count one flow in {}",
            output.asked_sample_rate
        ));
    }
    if let Some(spool) = &output.spool {
        spool_lines(spool, zone, lines);
    }
    if output.failures != 0 {
        let when = if output.failing { "is" } else { "was last" };
        lines.push(format!(
            "  began to fail {} times; the error {when}: {}",
            output.failures, output.last_error
        ));
    }
}

fn spool_lines(spool: &OutputSpoolStatus, zone: Zone, lines: &mut Vec<String>) {
    let bytes = human::bytes(spool.bytes);
    let since = match spool.oldest_unix_ns {
        0 => "everything is acknowledged".to_owned(),
        oldest => {
            let oldest = zone.seconds(oldest);
            format!("the oldest batch that is not acknowledged dates from {oldest}")
        }
    };
    if spool.bytes != 0 || spool.error.is_empty() {
        lines.push(format!("  the spool takes {bytes} of the disk; {since}"));
    }
    if !spool.error.is_empty() {
        lines.push(format!("  the spool cannot be used: {}", spool.error));
    }
}

fn output_tls_lines(tls: &OutputTlsStatus, zone: Zone, lines: &mut Vec<String>) {
    if tls.client_certificate {
        let end = zone.seconds(tls.not_after_unix_ns);
        lines.push(format!("  TLS with a certificate until {end}"));
    } else {
        lines.push("  TLS".to_owned());
    }
    lines.extend(not_in_force(&tls.reload_error));
}

/// The error, if changed TLS files could not be loaded.
fn not_in_force(reload_error: &str) -> Option<String> {
    (!reload_error.is_empty())
        .then(|| format!("  its changed files are not in force: {reload_error}"))
}

fn uncounted(one: &UncountedInterface, capacity: u32) -> String {
    let interface = one.interface.clone().unwrap_or_default();
    let why = match one.reason.as_str() {
        "no_place" => {
            format!(
                "{capacity} interfaces are counted already: raise --max-interfaces, or choose fewer"
            )
        }
        "draining" => "waits until one that has left is drained".to_owned(),
        "refused" => one.detail.clone(),
        // From an agent of a later version.
        other => format!("{other} {}", one.detail),
    };
    format!(
        "{} (ifindex {}, netns {}): {why}",
        interface.name, interface.ifindex, interface.netns
    )
}

fn nat_line(nat: &NatStatus) -> String {
    let mut line = format!("nat       {} translated connections", nat.connections);
    for (count, what) in [
        (nat.not_kept, "not kept, for lack of room"),
        (nat.ambiguous_flows, "flows whose translation is uncertain"),
        (nat.missed, "scans for which events were missing"),
    ] {
        if count != 0 {
            write!(line, "; {count} {what}").expect("a string grows");
        }
    }
    line
}

fn carried_line(carried: &CarriedOver) -> String {
    let mut parts = vec![format!(
        "carried   over from {} earlier processes: {} packets in {} flows, and {} links",
        carried.processes,
        human::count(carried.seen_packets),
        human::count(carried.flows),
        carried.links
    )];
    if carried.gaps != 0 {
        parts.push(format!(
            "{} hooks were attached anew, with a gap of some milliseconds",
            carried.gaps
        ));
    }
    if carried.orphans != 0 {
        parts.push(format!(
            "some flows could not be taken over: at least {} packets are in no record (see the log)",
            human::count(carried.orphaned_packets)
        ));
    }
    if carried.waiting_packets != 0 {
        parts.push(format!(
            "{} packets waited for their report when a process was killed, and were reported as its last scan",
            human::count(carried.waiting_packets)
        ));
    }
    parts.join("; ")
}

fn drops_line(drops: &KernelDrops) -> String {
    let all: u64 = drops.by_reason.values().sum();
    let mut by_reason: Vec<_> = drops.by_reason.iter().collect();
    by_reason.sort_by_key(|&(_, count)| Reverse(count));
    let by_reason = listed(by_reason);
    let mut line = format!("drops     {all} by the kernel, in all network namespaces");
    if !by_reason.is_empty() {
        line = format!("{line}: {by_reason}");
    }
    if drops.missed != 0 {
        line = format!("{line}; {} not counted", drops.missed);
    }
    if let Some(of_flows) = drops.of_flows {
        line = format!("{line}; {of_flows} of flows");
    }
    line
}

fn dns_lines(dns: &DnsStatus, lines: &mut Vec<String>) {
    let answered: u64 = dns.answers_by_code.values().sum();
    let mean = dns.waited_ns.checked_div(answered);
    let mean = mean.map_or_else(String::new, |mean| {
        format!(" after {} on average", fine(mean))
    });
    let codes = listed(&dns.answers_by_code);
    lines.push(format!(
        "dns       {} of {} names known; {} queries, {answered} answered{mean}{}, {} unanswered",
        dns.names,
        dns.names_capacity,
        dns.queries,
        if codes.is_empty() {
            String::new()
        } else {
            format!(" ({codes})")
        },
        dns.unanswered
    ));
    let unread = listed([
        ("answers to queries that were not read", &dns.unasked),
        ("over --dns-rate", &dns.over_rate),
        ("no room in the kernel", &dns.no_room),
        ("malformed", &dns.malformed),
        ("of another kind", &dns.of_another_kind),
        ("unreadable", &dns.unreadable),
    ]);
    if dns.lost_exchanges > 0 {
        lines.push(format!(
            "  exchanges in no batch, because there were too many: {}",
            dns.lost_exchanges
        ));
    }
    if dns.forgotten_names > 0 {
        lines.push(format!(
            "  names evicted early, or not kept for lack of room: {}",
            dns.forgotten_names
        ));
    }
    if dns.not_followed > 0 {
        lines.push(format!(
            "  queries given up because too many waited, or another one took their number: {}",
            dns.not_followed
        ));
    }
    if !unread.is_empty() {
        lines.push(format!("  nothing is learned from: {unread}"));
    }
}

/// The counts that are not zero, as in `noerror 3, nxdomain 1`.
fn listed<'a>(counts: impl IntoIterator<Item = (impl Display, &'a u64)>) -> String {
    let counts = counts.into_iter().filter(|(_, count)| **count != 0);
    let counts = counts.map(|(what, count)| format!("{what} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn figures_lines(status: &AgentStatus, lines: &mut Vec<String>) {
    if let Some(table) = &status.table {
        lines.push(format!(
            "table     {} of {} flows in the last scan, at most {}; suggested --max-flows {}",
            table.occupancy, table.capacity, table.high_water, table.suggested_max_flows
        ));
        lines.push(format!(
            "  room for {} at its present size; {} found no slot and went behind it",
            table.room, table.behind
        ));
    }
    if let Some(replica) = &status.replica {
        lines.push(format!(
            "replica   {} of {} flows tracked, {} evicted",
            replica.tracked, replica.capacity, replica.evicted
        ));
        let failed = listed(&replica.failed_flows);
        if !failed.is_empty() {
            lines.push(format!("  ended with a failure: {failed}"));
        }
        if replica.lost_icmp_errors > 0 {
            lines.push(format!(
                "  ICMP errors that were not read: {}",
                replica.lost_icmp_errors
            ));
        }
        if replica.unmatched_icmp_errors > 0 {
            lines.push(format!(
                "  ICMP errors about packets in no flow seen: {}",
                replica.unmatched_icmp_errors
            ));
        }
        if replica.forgotten_initiators > 0 {
            lines.push(format!(
                "  forgotten quiet TCP connections: {}",
                replica.forgotten_initiators
            ));
        }
        if replica.nameless_processes > 0 {
            lines.push(format!(
                "  processes named only by pid: {}",
                replica.nameless_processes
            ));
        }
        if replica.sockets_without_process > 0 {
            lines.push(format!(
                "  no room to keep the process of a socket: {} times",
                replica.sockets_without_process
            ));
        }
        if replica.nameless_ends > 0 {
            lines.push(format!(
                "  ends of flows whose unit was unknown: {}",
                replica.nameless_ends
            ));
        }
        if replica.lost_tcp_ends > 0 {
            lines.push(format!(
                "  flows without TCP's final figures, for lack of room: {}",
                replica.lost_tcp_ends
            ));
        }
    }
    if let Some(dns) = &status.dns {
        dns_lines(dns, lines);
    }
    if let Some(drops) = &status.kernel_drops {
        lines.push(drops_line(drops));
    }
    if let Some(nat) = &status.nat {
        lines.push(nat_line(nat));
    }
    if let Some(carried) = &status.carried_over {
        lines.push(carried_line(carried));
    }
    if let Some(scans) = &status.scans {
        lines.push(format!(
            "scans     {}, {} before they were due (a full page or a request), {} late; the last took {} of which {} waiting for the flip; \
             CPU {} in all",
            scans.count,
            scans.early,
            scans.late,
            fine(scans.last_duration_ns),
            fine(scans.last_flip_wait_ns),
            fine(scans.cpu_ns)
        ));
        if scans.lapsed_ns != 0 {
            lines.push(format!(
                "lapsed    {} in which no packet was counted, since no scan had renewed the lease (--lease)",
                fine(scans.lapsed_ns)
            ));
        }
    }
    if let Some(memory) = &status.memory {
        lines.push(format!(
            "memory    {} resident, {} of kernel maps",
            human::bytes(memory.resident_bytes),
            human::bytes(memory.kernel_map_bytes)
        ));
    }
}

fn consumer_line(consumer: &ConsumerStatus) -> String {
    format!(
        "consumer  {} ({}): {} batches with {} records delivered, {} queued, {} batches with {} \
         records lost",
        if consumer.name.is_empty() {
            "unnamed"
        } else {
            &consumer.name
        },
        consumer.peer,
        consumer.delivered_batches,
        consumer.delivered_records,
        consumer.queued_batches,
        consumer.lost_batches,
        consumer.lost_records
    )
}

fn listener_lines(listener: &ListenerStatus, zone: Zone, lines: &mut Vec<String>) {
    let address = if listener.address.is_empty() {
        "a Unix socket without a file"
    } else {
        &listener.address
    };
    let Some(tls) = &listener.tls else {
        let plain = match address.split_once(':') {
            Some(("unix", _)) => "",
            _ => ", without TLS",
        };
        lines.push(format!("listener  {address}{plain}"));
        return;
    };
    let end = zone.seconds(tls.not_after_unix_ns);
    let clients = if tls.client_certificates {
        ", clients need one, too"
    } else {
        ""
    };
    lines.push(format!(
        "listener  {address}, TLS with a certificate until {end}{clients}"
    ));
    lines.extend(not_in_force(&tls.reload_error));
}

fn server_line(server: &ServerStatus) -> String {
    format!(
        "server    {} held for consumers, {} consumers have left; refused: {} consumers, {} connections, \
         {} requests, {} answers, {} callers, {} TLS handshakes; {} silent connections closed, {} that did not read",
        human::bytes(server.held_bytes),
        server.consumers_left,
        server.refused_consumers,
        server.refused_connections,
        server.refused_streams,
        server.refused_answers,
        server.refused_callers,
        server.refused_handshakes,
        server.silent_connections,
        server.unread_connections
    )
}

fn duration(ns: u64) -> String {
    human::duration(Duration::from_nanos(ns))
}

/// Milliseconds with one decimal, which suits the times of a scan.
fn fine(ns: u64) -> String {
    format!("{:.1}ms", ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use agent_common::{HookAccount, Reason};
    use proto::{Account, AttachMode, Hook, Interface, TableStatus};

    use super::*;

    fn status() -> AgentStatus {
        let mut account = HookAccount::default();
        account.add(Reason::Seen, 10, 1000);
        account.add(Reason::Flows, 10, 1000);
        let account = Some(Account::from_hook(&account, false));
        let hook = HookStatus {
            interface: Some(Interface {
                ifindex: 2,
                name: "eth0".into(),
                netns: 5,
                ..Interface::default()
            }),
            hook: Hook::TcIngress.into(),
            mode: AttachMode::Tcx.into(),
            account: account.clone(),
            ..HookStatus::default()
        };
        AgentStatus {
            hooks: vec![hook],
            account,
            table: Some(TableStatus {
                capacity: 1000,
                suggested_max_flows: 2048,
                ..Default::default()
            }),
            consumers: vec![ConsumerStatus {
                lost_batches: 3,
                ..ConsumerStatus::default()
            }],
            ..AgentStatus::default()
        }
    }

    #[test]
    fn the_text_names_hooks_accounts_and_the_suggested_table() {
        let text = text(&status(), Zone::Utc);
        for part in [
            "eth0 (ifindex 2, netns 5) tc_ingress by tcx",
            "account closes: seen 10 = flows 10",
            "suggested --max-flows 2048",
            "3 batches with 0 records lost",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }

    #[test]
    fn interfaces_that_are_not_counted_are_named_with_the_reason() {
        let uncounted = |ifindex: u32, reason: &str, detail: &str| UncountedInterface {
            interface: Some(Interface {
                ifindex,
                name: format!("veth{ifindex}"),
                netns: 5,
                ..Interface::default()
            }),
            reason: reason.into(),
            detail: detail.into(),
        };
        let status = AgentStatus {
            interfaces: Some(InterfacesStatus {
                capacity: 64,
                not_counted: 16,
                uncounted: vec![
                    uncounted(7, "no_place", ""),
                    uncounted(8, "refused", "attach tc egress to veth8: no memory"),
                    uncounted(9, "draining", ""),
                ],
                ..InterfacesStatus::default()
            }),
            ..AgentStatus::default()
        };
        let text = text(&status, Zone::Utc);
        let (_, told) = text.split_once("16 selected").unwrap();
        let told: Vec<&str> = told.lines().take(5).collect();
        assert_eq!(
            told,
            [
                " interfaces are not counted; there is room for 64",
                "  veth7 (ifindex 7, netns 5): 64 interfaces are counted already: raise --max-interfaces, or choose fewer",
                "  veth8 (ifindex 8, netns 5): attach tc egress to veth8: no memory",
                "  veth9 (ifindex 9, netns 5): waits until one that has left is drained",
                "  and 13 more",
            ]
        );
    }

    #[test]
    fn names_that_no_interface_has_are_told() {
        let told = |absent, names: &[&str]| {
            let status = AgentStatus {
                interfaces: Some(InterfacesStatus {
                    absent,
                    absent_names: names.iter().map(ToString::to_string).collect(),
                    ..InterfacesStatus::default()
                }),
                ..status()
            };
            let text = text(&status, Zone::Utc);
            let line = text.lines().find(|line| line.contains("these names"));
            line.map(str::to_owned)
        };
        assert_eq!(told(0, &[]), None);
        assert_eq!(
            told(2, &["eth7", "eth8"]).unwrap(),
            "no interface has these names: eth7, eth8"
        );
        assert_eq!(
            told(5, &["eth7", "eth8"]).unwrap(),
            "no interface has these names: eth7, eth8, and 3 more"
        );
    }

    #[test]
    fn interfaces_are_listed_by_network_namespace() {
        let mut status = status();
        let hook = |netns: u32, netns_name: &str, name: &str| HookStatus {
            interface: Some(Interface {
                ifindex: 2,
                name: name.into(),
                netns,
                netns_name: netns_name.into(),
                bare_ip: false,
            }),
            ..status.hooks[0].clone()
        };
        status.hooks = vec![
            hook(6, "blue", "eth0"),
            hook(7, "red", "eth0"),
            hook(6, "blue", "eth1"),
        ];
        let text = text(&status, Zone::Utc);
        let found = [
            "blue (6)",
            "eth0 (",
            "eth1 (",
            "red (7)",
            "eth0 (ifindex 2, netns 7)",
        ];
        let mut rest = text.as_str();
        for part in found {
            let (_, after) = rest.split_once(part).expect(part);
            rest = after;
        }
    }

    #[test]
    fn the_json_names_what_the_wire_numbers() {
        let value = serde_json::to_value(status()).unwrap();
        let hook = &value["hooks"][0];
        assert_eq!(
            (&hook["hook"], &hook["mode"]),
            (&"tc_ingress".into(), &"tcx".into())
        );
        assert_eq!(
            hook["account"]["seen"],
            serde_json::json!({"packets": 10, "bytes": 1000})
        );
        assert_eq!(hook["account"]["not_inserted"]["table_full"]["packets"], 0);
    }
}
