//! The agent's metrics for Prometheus, generated from its status on request, and its liveness and readiness for probes,
//! over HTTP.
//!
//! Names end in their unit, counters in `_total`. The number of series is bounded: a handful for each hook, and one for
//! each reason of the account. Consumers choose their own names, so they have no series. At most 500 units and
//! containers have series.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::Registry,
};
use proto::{AgentStatus, Count, KernelDrops, NatStatus, ServerStatus, UnitTraffic, pair};

mod address;
mod agent;
pub mod collector;
mod connections;
mod dns;
mod families;
mod health;
mod hooks;
mod http;
mod names;
mod outputs;
mod programs;
mod scans;

pub use address::MetricsAddress;
pub use agent::serve;
pub use families::Format;
use families::{Families, Help, Labels};
pub use health::Health;
pub use http::MetricsListener;
use programs::Sampled;
pub use programs::{Runs, TimePrograms, Window};

/// All metrics as text.
fn text(
    status: AgentStatus,
    cpu_ns: u64,
    sampled: Sampled,
    format: Format,
) -> Result<String, fmt::Error> {
    encoded(
        Shown {
            status,
            cpu_ns,
            sampled,
            format,
        },
        format,
    )
}

fn encoded(shown: impl Collector, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(shown));
    let mut text = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut text, &registry)?,
        Format::Classic => text::encode_registry(&mut text, &registry)?,
    }
    Ok(text)
}

#[derive(Debug)]
struct Shown {
    status: AgentStatus,
    /// CPU time of the process.
    cpu_ns: u64,
    sampled: Sampled,
    format: Format,
}

impl Collector for Shown {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder, self.format);
        self.identity(&mut families)?;
        self.account(&mut families)?;
        self.traffic(&mut families)?;
        units(&self.status.units, &mut families)?;
        self.hooks(&mut families)?;
        self.interfaces(&mut families)?;
        self.table(&mut families)?;
        self.replica(&mut families)?;
        self.scans(&mut families)?;
        if let Some(dns) = &self.status.dns {
            dns::families(dns, &mut families)?;
        }
        if let Some(drops) = &self.status.kernel_drops {
            kernel_drops(drops, &mut families)?;
        }
        if let Some(nat) = &self.status.nat {
            translations(nat, &mut families)?;
        }
        self.consumers(&mut families)?;
        self.certificate(&mut families)?;
        self.outputs(&mut families)?;
        self.process(&mut families)?;
        self.programs(&mut families)
    }
}

/// No series if units are not named.
fn units(units: &[UnitTraffic], families: &mut Families<'_>) -> fmt::Result {
    if units.is_empty() {
        return Ok(());
    }
    let by_unit = |of: fn(&UnitTraffic) -> Option<Count>| {
        let all = units.iter().map(|unit| {
            let labels = vec![
                ("unit", unit.unit.clone()),
                ("container_id", unit.container_id.clone()),
            ];
            (labels, of(unit).unwrap_or_default())
        });
        all.collect::<BTreeMap<Labels, Count>>()
    };
    families.traffic(
        Help(
            "flow_agent_unit_transmit_packets",
            "Packets in flows sent by sockets of a systemd unit or container",
        ),
        Help("flow_agent_unit_transmit_bytes", hooks::BYTES),
        &by_unit(|unit| unit.sent),
    )?;
    families.traffic(
        Help(
            "flow_agent_unit_receive_packets",
            "Packets in flows sent to sockets of a systemd unit or container",
        ),
        Help("flow_agent_unit_receive_bytes", hooks::BYTES),
        &by_unit(|unit| unit.received),
    )
}

fn kernel_drops(drops: &KernelDrops, families: &mut Families<'_>) -> fmt::Result {
    let by_reason = drops.by_reason.iter();
    families.counter(
        Help(
            "flow_agent_kernel_drops",
            "Packets that the host's kernel dropped, in all network namespaces, by its own reason",
        ),
        by_reason.map(|(reason, &count)| (vec![("reason", reason.clone())], count)),
    )?;
    families.counters([(
        Help(
            "flow_agent_kernel_drops_missed",
            "Packets that the kernel dropped and that could not be counted",
        ),
        drops.missed,
    )])?;
    let Some(of_flows) = drops.of_flows else {
        return Ok(());
    };
    families.counters([(
        Help(
            "flow_agent_kernel_drops_of_flows",
            "Packets that the kernel dropped and that were matched to flows, as of the last scan",
        ),
        of_flows,
    )])?;
    let of_no_flow = drops.of_no_flow.iter();
    families.counter(
        Help(
            "flow_agent_kernel_drops_of_no_flow",
            "Packets that the kernel dropped and that were matched to no flow, by reason",
        ),
        of_no_flow.map(|(why, &count)| (vec![("why", why.clone())], count)),
    )
}

fn translations(nat: &NatStatus, families: &mut Families<'_>) -> fmt::Result {
    families.gauges([(
        Help(
            "flow_agent_nat_connections",
            "Translated connections that are known",
        ),
        nat.connections as f64,
    )])?;
    families.counters([
        (
            Help(
                "flow_agent_nat_not_kept",
                "Translated connections that were not kept for lack of room",
            ),
            nat.not_kept,
        ),
        (
            Help(
                "flow_agent_nat_missed",
                "Scans for which events about connections were missing",
            ),
            nat.missed,
        ),
        (
            Help(
                "flow_agent_nat_ambiguous_flows",
                "Flows whose translation is uncertain",
            ),
            nat.ambiguous_flows,
        ),
    ])
}

impl Shown {
    fn identity(&self, families: &mut Families<'_>) -> fmt::Result {
        let agent = self.status.agent.clone().unwrap_or_default();
        let labels = vec![
            ("version", agent.version),
            ("agent_id", agent.agent_id),
            ("instance_id", agent.instance_id),
        ];
        families.gauge(
            Help(
                "flow_agent_build_info",
                "Always 1; the labels say which agent this is",
            ),
            [(labels, 1.0)],
        )
    }

    fn account(&self, families: &mut Families<'_>) -> fmt::Result {
        let account = self.status.account.clone().unwrap_or_default();
        let seen = pair(account.seen);
        families.counter(
            Help(
                "flow_agent_seen_packets",
                "Packets that the programs saw, on the wire side of offloads",
            ),
            [(Labels::new(), seen.packets)],
        )?;
        families.counter(
            Help("flow_agent_seen_bytes", "Their layer-2 bytes without FCS"),
            [(Labels::new(), seen.bytes)],
        )?;
        let flows = pair(account.flows);
        families.counter(
            Help("flow_agent_flow_packets", "Packets seen that are in flows"),
            [(Labels::new(), flows.packets)],
        )?;
        families.counter(
            Help("flow_agent_flow_bytes", "Their layer-2 bytes without FCS"),
            [(Labels::new(), flows.bytes)],
        )?;
        let left_out = [
            ("filtered", account.filtered),
            ("sampled_out", account.sampled_out),
        ];
        let left_out =
            left_out.map(|(reason, count)| (reason.to_owned(), count.unwrap_or_default()));
        families.by_reason(
            ["flow_agent_left_out_packets", "flow_agent_left_out_bytes"],
            "seen that the settings leave out",
            left_out,
        )?;
        families.by_reason(
            ["flow_agent_unparsed_packets", "flow_agent_unparsed_bytes"],
            "seen that could not be read as part of a flow",
            account.unparsed,
        )?;
        families.by_reason(
            ["flow_agent_lost_packets", "flow_agent_lost_bytes"],
            "seen that the flow table did not take",
            account.not_inserted,
        )?;
        families.by_reason(
            ["flow_agent_noted_packets", "flow_agent_noted_bytes"],
            "that the account marks; all but looped_back are part of the others",
            account.beside,
        )
    }

    fn interfaces(&self, families: &mut Families<'_>) -> fmt::Result {
        let interfaces = self.status.interfaces.clone().unwrap_or_default();
        let departed = pair(interfaces.departed_account.and_then(|account| account.seen));
        families.gauges([
            (
                Help("flow_agent_hooks", "Hooks at which packets are counted"),
                self.status.hooks.len() as f64,
            ),
            (
                Help(
                    "flow_agent_uncounted_interfaces",
                    "Interfaces that are selected and not counted; `flow-agent status` says why",
                ),
                f64::from(interfaces.not_counted),
            ),
        ])?;
        families.counters([
            (
                Help(
                    "flow_agent_departed_interfaces",
                    "Interfaces that have left",
                ),
                interfaces.departed,
            ),
            (
                Help(
                    "flow_agent_departed_seen_packets",
                    "Packets that were seen at them",
                ),
                departed.packets,
            ),
            (
                Help(
                    "flow_agent_departed_seen_bytes",
                    "Their layer-2 bytes without FCS",
                ),
                departed.bytes,
            ),
        ])
    }

    fn table(&self, families: &mut Families<'_>) -> fmt::Result {
        let table = self.status.table.unwrap_or_default();
        families.gauges([
            (
                Help(
                    "flow_agent_table_capacity_flows",
                    "Flows that a page of the kernel's table can hold",
                ),
                table.capacity as f64,
            ),
            (
                Help(
                    "flow_agent_table_room_flows",
                    "Flows that a page of the kernel's table has room for at its present size",
                ),
                table.room as f64,
            ),
            (
                Help(
                    "flow_agent_table_flows",
                    "Flows on the page that the last scan drained",
                ),
                table.occupancy as f64,
            ),
            (
                Help(
                    "flow_agent_table_most_flows",
                    "The most flows that a page has held since the agent started",
                ),
                table.high_water as f64,
            ),
        ])
    }

    fn replica(&self, families: &mut Families<'_>) -> fmt::Result {
        let replica = self.status.replica.clone().unwrap_or_default();
        families.gauges([
            (
                Help(
                    "flow_agent_tracked_capacity_flows",
                    "Flows that the agent can track",
                ),
                replica.capacity as f64,
            ),
            (
                Help("flow_agent_tracked_flows", "Flows that the agent tracks"),
                replica.tracked as f64,
            ),
        ])?;
        families.counters([
            (
                Help(
                    "flow_agent_evicted_flows",
                    "Flows that were ended early, to make room for others",
                ),
                replica.evicted,
            ),
            (
                Help(
                    "flow_agent_nameless_processes",
                    "Times a batch named a process only by pid, because the kernel had no room for its name",
                ),
                replica.nameless_processes,
            ),
            (
                Help(
                    "flow_agent_nameless_ends",
                    "Flow ends first reported with only the id of their cgroup",
                ),
                replica.nameless_ends,
            ),
            (
                Help(
                    "flow_agent_sockets_without_process",
                    "Times there was no room to keep the process of a socket",
                ),
                replica.sockets_without_process,
            ),
            (
                Help(
                    "flow_agent_lost_tcp_ends",
                    "Flows without the final figures of their TCP socket, because the kernel had no room to keep or report them",
                ),
                replica.lost_tcp_ends,
            ),
            (
                Help(
                    "flow_agent_lost_icmp_errors",
                    "ICMP errors that were not read, so their flows may seem unanswered",
                ),
                replica.lost_icmp_errors,
            ),
            (
                Help(
                    "flow_agent_unmatched_icmp_errors",
                    "ICMP errors about packets that are in no flow seen",
                ),
                replica.unmatched_icmp_errors,
            ),
            (
                Help(
                    "flow_agent_forgotten_initiators",
                    "TCP connections without FIN that were forgotten, so that their initiator is assumed if they go on",
                ),
                replica.forgotten_initiators,
            ),
        ])?;
        let failed = replica.failed_flows.iter();
        families.counter(
            Help(
                "flow_agent_failed_flows",
                "Flows that have ended with a failure",
            ),
            failed.map(|(failure, &count)| (vec![("failure", failure.clone())], count)),
        )
    }

    fn consumers(&self, families: &mut Families<'_>) -> fmt::Result {
        let server = self.status.server.clone().unwrap_or_default();
        consumers(families, self.status.consumers.len(), &server)
    }

    /// The certificate that all TCP listeners share.
    fn certificate(&self, families: &mut Families<'_>) -> fmt::Result {
        let listeners = self.status.server.iter();
        let mut listeners = listeners.flat_map(|server| &server.listeners);
        let Some(tls) = listeners.find_map(|listener| listener.tls.as_ref()) else {
            return Ok(());
        };
        families.gauges([
            (
                Help(
                    "flow_agent_certificate_expiry_time_seconds",
                    "Unix time at which the certificate of the TCP listeners expires",
                ),
                seconds(tls.not_after_unix_ns),
            ),
            (
                Help(
                    "flow_agent_certificate_reload_failing",
                    "1 if its changed files cannot be used, so the files read before stay in force",
                ),
                f64::from(u8::from(!tls.reload_error.is_empty())),
            ),
        ])
    }

    fn process(&self, families: &mut Families<'_>) -> fmt::Result {
        let memory = self.status.memory.unwrap_or_default();
        families.gauges([(
            Help(
                "flow_agent_kernel_map_bytes",
                "Memory of the eBPF maps, which the kernel holds for the agent",
            ),
            memory.kernel_map_bytes as f64,
        )])?;
        process(
            families,
            memory.resident_bytes,
            self.status.started_unix_ns,
            self.cpu_ns,
        )
    }
}

/// The process metrics of Prometheus' own client libraries.
fn process(
    families: &mut Families<'_>,
    resident_bytes: u64,
    started_unix_ns: u64,
    cpu_ns: u64,
) -> fmt::Result {
    families.gauges([
        (
            Help(
                "process_resident_memory_bytes",
                "Resident memory of the process",
            ),
            resident_bytes as f64,
        ),
        (
            Help(
                "process_start_time_seconds",
                "When the process started, in Unix time",
            ),
            seconds(started_unix_ns),
        ),
    ])?;
    families.counter(
        Help("process_cpu_seconds", "CPU time of the process"),
        [(Labels::new(), seconds(cpu_ns))],
    )
}

/// Figures of listeners and consumers: connections accepted and refused, batches delivered.
fn consumers(families: &mut Families<'_>, observing: usize, server: &ServerStatus) -> fmt::Result {
    families.gauges([
        (
            Help("flow_agent_consumers", "Consumers that observe"),
            observing as f64,
        ),
        (
            Help(
                "flow_agent_consumers_held_bytes",
                "Bytes of batches that wait for consumers",
            ),
            server.held_bytes as f64,
        ),
    ])?;
    families.counters([
        (
            Help(
                "flow_agent_consumers_delivered_records",
                "Records handed to the transport, over all consumers, including those that left",
            ),
            server.delivered_records,
        ),
        (
            Help(
                "flow_agent_consumers_lost_records",
                "Records that consumers lost because they read too slowly",
            ),
            server.lost_records,
        ),
        (
            Help("flow_agent_consumers_left", "Consumers that have left"),
            server.consumers_left,
        ),
    ])?;
    families.counter(
        Help("flow_agent_refused", "What the listeners refused, by kind"),
        [
            ("consumer", server.refused_consumers),
            ("connection", server.refused_connections),
            ("stream", server.refused_streams),
            ("silent_connection", server.silent_connections),
            ("unread_connection", server.unread_connections),
            ("answer", server.refused_answers),
            ("caller", server.refused_callers),
            ("handshake", server.refused_handshakes),
            ("token", server.refused_tokens),
            ("agent", server.refused_agents),
        ]
        .map(|(what, count)| (vec![("what", what.to_owned())], count)),
    )
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests;
