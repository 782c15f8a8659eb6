//! Compares the memory that the agent may need with these settings to the limit of its control group. The kernel kills
//! a process that exceeds it.

use enrich::Tables;
use exporters::Prepared;
use flows::replica::UnreportedFlow;
use formats::human;
use hub::DEFAULT_QUEUED_BYTES;
use kernel::{account, bound::TaggedPrograms, cgroup_limit};
use server::scanner_requests::MAX_SNAPSHOT_BYTES;

use crate::{
    agent::Config,
    carry::{MOST_UNDELIVERED_BYTES, MOST_UNREPORTED_FLOWS},
};

/// The figures of docs/memory.md.
const PAGE_BYTES_PER_FLOW: u64 = 171;
const BYTES_PER_FLOW_BEHIND: u64 = 200;
const TRACKED_BYTES_PER_FLOW: u64 = 192;
/// Counts that wait for the report interval.
const WAITING_BYTES_PER_FLOW: u64 = 56;
/// The same in the ledger.
const UNREPORTED_BYTES_PER_FLOW: u64 = size_of::<UnreportedFlow>() as u64;
const BYTES_PER_FRAGMENT: u64 = 150;
const TUNNEL_BYTES_PER_FLOW: u64 = 160;
/// A record with every field set takes twice as much, an IPv4 record without a tunnel less.
const SNAPSHOT_BYTES_PER_FLOW: u64 = 230;
/// The same, encoded.
const RECORD_BYTES: u64 = 110;
/// The two files of the ledger, the two of an earlier process, and the bytes before they are written.
const COPIES_OF_BATCHES: u64 = 5;
/// The two files of the ledger and the two of an earlier process. Flows are written in place. A copy of the earlier flows
/// exists only before this process writes its own.
const COPIES_OF_UNREPORTED: u64 = 4;
/// In addition to its queue.
const BYTES_PER_OUTPUT: u64 = 42 << 20;
/// Its instructions as submitted, as rewritten by the verifier, and as machine code.
const BYTES_PER_TAGGED_PROGRAM: u64 = 256 << 10;
/// The process without any flow.
const BASE_BYTES: u64 = 32 << 20;

/// The settings that the agent's memory depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    tables: Tables,
    max_fragments: u32,
    possible_cpus: u32,
    decapsulates: bool,
    enrichment_bytes: u64,
    /// Programs that serve a single interface.
    tagged: u64,
    reports_late: bool,
    outputs: usize,
    carries_over: bool,
}

impl Needs {
    /// For a configuration with slots for `max_interfaces` on `possible_cpus`.
    pub(crate) fn of(config: &Config, max_interfaces: u32, possible_cpus: u32) -> Self {
        let tables = Tables {
            max_flows: config.max_flows,
            max_tracked_flows: config.replica.max_flows as u64,
            max_interfaces,
        };
        Self {
            tables,
            max_fragments: config.max_fragments,
            possible_cpus,
            decapsulates: config.decapsulate,
            enrichment_bytes: config.enrich.most_bytes(&tables),
            tagged: if config.attach.may_ask_drivers() {
                TaggedPrograms::MOST as u64 * config.netns.len().max(1) as u64
            } else {
                0
            },
            reports_late: reports_late(config),
            outputs: config.outputs.len(),
            carries_over: config.carry_over,
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
                "with these settings the agent may take {}, but the memory limit of its control group is {}: raise \
                 the limit (MemoryMax= in the unit), lower --max-flows, --max-tracked-flows or --max-interfaces, leave out \
                 --carry-over, or, where a collector need not ask for fewer reports, set the output's max_report_interval to 0s",
                human::bytes(most),
                human::bytes(limit)
            );
        }
    }

    /// The most memory that the agent may need, in bytes: all tables full and no consumer reading.
    pub(crate) fn most(self) -> u64 {
        let tables = self.tables;
        let tunnels = if self.decapsulates {
            u64::from(tables.max_flows)
        } else {
            0
        };
        let (waiting, unreported) = if self.reports_late {
            let flows = tables.max_tracked_flows.min(MOST_UNREPORTED_FLOWS as u64);
            let unreported = flows * UNREPORTED_BYTES_PER_FLOW;
            (WAITING_BYTES_PER_FLOW, unreported)
        } else {
            (0, 0)
        };
        let accounts = account::Layout::of(tables.max_interfaces, self.possible_cpus);
        // An earlier process's are there until they are drained.
        let programs_and_maps = tables.paged(PAGE_BYTES_PER_FLOW)
            + tables.behind(BYTES_PER_FLOW_BEHIND)
            + u64::from(self.max_fragments) * BYTES_PER_FRAGMENT
            + tunnels * TUNNEL_BYTES_PER_FLOW
            + self.enrichment_bytes
            + self.tagged * BYTES_PER_TAGGED_PROGRAM
            + accounts.bytes();
        let (sets, ledger) = if self.carries_over {
            let batches =
                MOST_UNDELIVERED_BYTES as u64 + u64::from(tables.max_flows) * RECORD_BYTES;
            (
                2,
                COPIES_OF_BATCHES * batches + COPIES_OF_UNREPORTED * unreported,
            )
        } else {
            (1, 0)
        };
        sets * programs_and_maps
            + ledger
            + tables.tracked(TRACKED_BYTES_PER_FLOW + waiting)
            + DEFAULT_QUEUED_BYTES
            + self.outputs as u64 * BYTES_PER_OUTPUT
            + MAX_SNAPSHOT_BYTES.min(tables.max_tracked_flows * SNAPSHOT_BYTES_PER_FLOW)
            + accounts.process_bytes()
            + BASE_BYTES
    }
}

/// Whether the settings allow reports to wait, or allow a collector to ask for that.
fn reports_late(config: &Config) -> bool {
    let may_ask = |output: &Prepared| output.output().may_ask();
    !config.replica.report_interval.is_zero() || config.outputs.iter().any(may_ask)
}
