//! Has the programs record the TCP state of connections when their sockets are destroyed, and reads those records.

use agent_common::{process::KeptWithSockets, tcp::EndedConnection};
use anyhow::{Context as _, Result};
use aya::{Ebpf, programs::tp_btf::BtfTracePointLink};
use sys::log_limit::LogLimit;

use super::{
    ring::{Maps, Ring},
    run_times::RunTimes,
    socket_bounds::{self, Counting, SocketBounds},
    tracepoint,
};

/// Size of the ring of records: room for the ends of some 70,000 sockets between two scans.
pub const RING_LEN_BYTES: u32 = 8 << 20;
/// Most records that the ring holds, with the kernel's header before each.
pub const MOST_ENDED: u64 = RING_LEN_BYTES as u64 / (8 + size_of::<EndedConnection>() as u64);

/// The program, and the tracepoint it is attached to.
const ENDS: &str = "tcp_destroy_sock";

/// The programs' records of connections that end.
pub struct EndedConnections {
    ring: Ring<EndedConnection>,
    /// The programs record as long as this link exists.
    link: Option<BtfTracePointLink>,
    counting: Option<Counting>,
    told_lost: u64,
    log: LogLimit,
}

impl EndedConnections {
    pub fn new(maps: Maps) -> Result<Self> {
        Ok(Self {
            ring: Ring::new(maps).context("connections that end")?,
            link: None,
            counting: None,
            told_lost: 0,
            log: LogLimit::default(),
        })
    }

    /// Starts recording connections that end.
    pub fn note(
        &mut self,
        programs: &mut Ebpf,
        run_times: &RunTimes,
        bounds: &SocketBounds,
    ) -> Result<()> {
        self.counting = bounds.count(programs, KeptWithSockets::Flow, || {});
        let program = tracepoint::load(programs, ENDS)?;
        self.link = Some(tracepoint::attach(program, ENDS, run_times)?);
        Ok(())
    }

    /// Passes on the records since the last call, in order.
    pub fn take(&mut self, each: impl FnMut(&EndedConnection)) -> Result<()> {
        if self.link.is_none() {
            return Ok(());
        }
        // Limited to one full ring; records that arrive meanwhile may wait for the next scan.
        let taken = self.ring.take(MOST_ENDED as usize, each);
        taken.context("read the ring of ended connections")?;
        let lost = self
            .ring
            .lost(0)
            .context("count the lost entries of ended connections")?;
        if lost != self.told_lost {
            self.told_lost = lost;
            if self.log.event().is_some() {
                tracing::warn!(
                    so_far = lost,
                    "more connections ended between two scans than the kernel can report: some records have the TCP \
                     figures of an earlier packet; lower --scan-interval"
                );
            }
        }
        Ok(())
    }

    /// Whether the programs record connections that end.
    pub fn are_told(&self) -> bool {
        self.link.is_some()
    }

    /// How many records were lost because the ring was full.
    pub fn lost(&self) -> u64 {
        self.told_lost
    }

    /// The kernel allocates all of it when the maps are created.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.ring.kernel_memory_bytes()
    }
}

/// Loads the programs without attaching them.
pub fn load(programs: &mut Ebpf) -> Result<()> {
    socket_bounds::load(programs, KeptWithSockets::Flow)?;
    tracepoint::load(programs, ENDS).map(drop)
}
