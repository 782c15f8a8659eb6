//! Compares the memory that the agent may need with these settings to the limit of its control group. The kernel kills
//! a process that exceeds it.

use agent_common::senders::Kinds;
use enrich::{dns, enrichment::Enrichment, process::Processes, unit::cgroups::Cgroups};
use exporters::Prepared;
use formats::human;
use hub::DEFAULT_QUEUED_BYTES;
use kernel::{
    account,
    bound::TaggedPrograms,
    cgroup_limit,
    connections::{MOST_ENDED, RING_LEN_BYTES},
    pages::Size,
    processes::MOST_IN_THE_KERNEL,
    socket_bounds::{BYTES_PER_SOCKET, MOST_SOCKETS},
};
use server::asks::MAX_SNAPSHOT_BYTES;

use crate::agent::Config;

/// The figures of docs/memory.md.
const PAGE_BYTES_PER_FLOW: u64 = 171;
/// While one of the two pages grows or shrinks, its old and new windows exist together.
const PAGES: u64 = 3;
const BYTES_PER_FLOW_BEHIND: u64 = 200;
const TRACKED_BYTES_PER_FLOW: u64 = 192;
/// Counts that wait for the report interval.
const WAITING_BYTES_PER_FLOW: u64 = 56;
/// While a table grows, the smaller one still exists.
const GROWTH: u64 = 2;
const BYTES_PER_FRAGMENT: u64 = 150;
const TUNNEL_BYTES_PER_FLOW: u64 = 160;
/// The senders of a flow: four slots for three flows, for each kind of number that is stored for both directions.
const SENDERS_BYTES_PER_FLOW: u64 = 22;
const SENDERS_BYTES_PER_TRACKED_FLOW: u64 = 32;
const TCP_BYTES_PER_TRACKED_FLOW: u64 = 56;
const ROUND_TRIP_BYTES_PER_TRACKED_FLOW: u64 = 16;
const DROPS_BYTES_PER_TRACKED_FLOW: u64 = 16;
/// In the kernel, and in the process until the flows are drained.
const BYTES_PER_FLOW_WITH_DROPS: u64 = 500;
/// For the interfaces that the programs count drops at.
const BYTES_PER_INTERFACE_WITH_DROPS: u64 = 200;
const ICMP_BYTES_PER_TRACKED_FLOW: u64 = 6;
/// ICMP errors that wait for their flows.
const WAITING_ICMP_BYTES: u64 = 2 << 20;
/// In the kernel, and in the process during a drain.
const SENDERS_BYTES_PER_FLOW_BEHIND: u64 = 412;
/// In the process, for two scans after a connection ended.
const BYTES_PER_END: u64 = 600;
/// In the kernel.
const BYTES_PER_PROCESS: u64 = 120;
/// A record with every field set takes twice as much, an IPv4 record without a tunnel less.
const SNAPSHOT_BYTES_PER_FLOW: u64 = 230;
/// In addition to its queue.
const BYTES_PER_OUTPUT: u64 = 42 << 20;
/// Its instructions as submitted, as rewritten by the verifier, and as machine code.
const BYTES_PER_TAGGED_PROGRAM: u64 = 256 << 10;
/// The process without any flow.
const BASE_BYTES: u64 = 32 << 20;

/// The settings that the agent's memory depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    max_flows: u32,
    max_tracked_flows: u64,
    max_fragments: u32,
    max_interfaces: u32,
    possible_cpus: u32,
    decapsulates: bool,
    senders: Kinds,
    /// The number of address names; 0 without them.
    dns_names: u32,
    reads_icmp_errors: bool,
    /// Flows with drops between two scans.
    flows_with_drops: u32,
    /// Programs that serve a single interface.
    tagged: u64,
    reports_late: bool,
    outputs: usize,
}

impl Needs {
    /// For a configuration with slots for `max_interfaces` on `possible_cpus`.
    pub(crate) fn of(config: &Config, max_interfaces: u32, possible_cpus: u32) -> Self {
        Self {
            max_flows: config.max_flows,
            max_tracked_flows: config.replica.max_flows as u64,
            max_fragments: config.max_fragments,
            max_interfaces,
            possible_cpus,
            decapsulates: config.decapsulate,
            senders: Enrichment::kinds(&config.enrich),
            dns_names: if Enrichment::reads_dns(&config.enrich) {
                config.dns_names
            } else {
                0
            },
            reads_icmp_errors: config.enrich.contains(&Enrichment::Icmp),
            flows_with_drops: if config.enrich.contains(&Enrichment::Drops) {
                2 * kernel::drops::MOST_FLOWS
            } else {
                0
            },
            tagged: if config.attach.may_ask_drivers() {
                TaggedPrograms::MOST as u64 * config.netns.len().max(1) as u64
            } else {
                0
            },
            reports_late: reports_late(config),
            outputs: config.outputs.len(),
        }
    }

    /// The same after a reload. Takes over only what can change without a restart.
    #[must_use]
    pub(crate) fn reloaded(self, read: &Config) -> Self {
        Self {
            reports_late: reports_late(read),
            outputs: read.outputs.len(),
            ..self
        }
    }

    /// Warns if the limit is lower than the agent may need. Filter rules are not included.
    pub(crate) fn warn_if_limit_is_low(self) {
        let Some(limit) = cgroup_limit::memory_of_this_process() else {
            return;
        };
        let most = self.most();
        if most > limit {
            tracing::warn!(
                "with these settings the agent may take {}, and the memory limit of its control group is {}: raise \
                 the limit (MemoryMax= in the unit), lower --max-flows, --max-tracked-flows or --max-interfaces, or, where a \
                 collector need not ask for fewer reports, set the output's max_report_interval to 0s",
                human::bytes(most),
                human::bytes(limit)
            );
        }
    }

    /// The most memory that the agent may need, in bytes: all tables full and no consumer reading.
    pub(crate) fn most(self) -> u64 {
        let flows = u64::from(self.max_flows);
        let tunnels = if self.decapsulates { flows } else { 0 };
        let tracked = self.max_tracked_flows;
        let waiting = if self.reports_late { tracked } else { 0 };
        let planes = u64::from(self.senders.planes());
        let senders = if planes == 0 {
            0
        } else {
            flows * PAGES * SENDERS_BYTES_PER_FLOW * planes
                + tracked * SENDERS_BYTES_PER_TRACKED_FLOW * GROWTH
                + 2 * u64::from(Size::behind_flows(self.max_flows)) * SENDERS_BYTES_PER_FLOW_BEHIND
        };
        let tcp = if self.senders.has(Kinds::TCP) {
            tracked * TCP_BYTES_PER_TRACKED_FLOW * GROWTH
                + u64::from(RING_LEN_BYTES)
                + MOST_ENDED * BYTES_PER_END
                + MOST_SOCKETS * BYTES_PER_SOCKET
        } else {
            0
        };
        let round_trips = if self.senders.has(Kinds::ROUND_TRIPS) {
            tracked * ROUND_TRIP_BYTES_PER_TRACKED_FLOW * GROWTH
        } else {
            0
        };
        let cgroups = if self.senders.has(Kinds::CGROUPS) {
            Cgroups::MOST_BYTES
        } else {
            0
        };
        let processes = if self.senders.has(Kinds::PROCESSES) {
            Processes::MOST_BYTES
                + u64::from(MOST_IN_THE_KERNEL) * BYTES_PER_PROCESS
                + MOST_SOCKETS * BYTES_PER_SOCKET
        } else {
            0
        };
        let dns = if self.dns_names == 0 {
            0
        } else {
            u64::from(self.dns_names) * dns::MOST_BYTES_PER_NAME
                + u64::from(kernel::dns::RING_LEN_BYTES)
                + dns::MOST_BYTES_OF_QUERIES
                + dns::MOST_BYTES_OF_EXCHANGES
                + 2 * tracked * dns::MOST_BYTES_PER_FLOW_END * GROWTH
        };
        let icmp_errors = if self.reads_icmp_errors {
            u64::from(kernel::icmp_errors::RING_LEN_BYTES)
                + tracked * ICMP_BYTES_PER_TRACKED_FLOW * GROWTH
                + WAITING_ICMP_BYTES
        } else {
            0
        };
        let drops = if self.flows_with_drops == 0 {
            0
        } else {
            u64::from(self.flows_with_drops) * BYTES_PER_FLOW_WITH_DROPS
                + u64::from(self.max_interfaces) * BYTES_PER_INTERFACE_WITH_DROPS
                + tracked * DROPS_BYTES_PER_TRACKED_FLOW * GROWTH
        };
        let accounts = account::Layout::of(self.max_interfaces, self.possible_cpus);
        flows * PAGES * PAGE_BYTES_PER_FLOW
            + 2 * u64::from(Size::behind_flows(self.max_flows)) * BYTES_PER_FLOW_BEHIND
            + (tracked * TRACKED_BYTES_PER_FLOW + waiting * WAITING_BYTES_PER_FLOW) * GROWTH
            + u64::from(self.max_fragments) * BYTES_PER_FRAGMENT
            + tunnels * TUNNEL_BYTES_PER_FLOW
            + senders
            + tcp
            + round_trips
            + cgroups
            + processes
            + dns
            + icmp_errors
            + drops
            + self.tagged * BYTES_PER_TAGGED_PROGRAM
            + DEFAULT_QUEUED_BYTES
            + self.outputs as u64 * BYTES_PER_OUTPUT
            + MAX_SNAPSHOT_BYTES.min(tracked * SNAPSHOT_BYTES_PER_FLOW)
            + accounts.bytes()
            + accounts.process_bytes()
            + BASE_BYTES
    }
}

/// Whether the settings allow reports to wait, or allow a collector to ask for that.
fn reports_late(config: &Config) -> bool {
    let may_ask = |output: &Prepared| output.output().may_ask();
    !config.replica.report_interval.is_zero() || config.outputs.iter().any(may_ask)
}
