//! Has the programs note what TCP knew of connections when their sockets are taken down, and takes that from them.

use std::os::fd::AsFd as _;

use agent_common::tcp::EndedConnection;
use anyhow::{Context as _, Result, ensure};
use aya::{
    Btf, Ebpf,
    maps::{Array, Map, MapData, RingBuf},
    programs::{BtfTracePoint, tp_btf::BtfTracePointLink},
};

use super::{
    memory::{map_memory_bytes, memory_bytes},
    refusal,
    run_times::RunTimes,
};
use crate::log_limit::LogLimit;

/// The ring in which the programs tell of them: room for the ends of some 80,000 sockets between two scans.
pub const RING_LEN_BYTES: u32 = 8 << 20;
/// So many, with what the kernel puts before each.
pub const MOST_ENDED: u64 = RING_LEN_BYTES as u64 / (8 + size_of::<EndedConnection>() as u64);

/// The program, and the tracepoint at which it runs.
const ENDS: &str = "tcp_destroy_sock";

/// The maps in which the programs note connections that end.
pub struct Maps {
    pub ended: MapData,
    pub lost: MapData,
}

/// What the programs note of connections that end.
pub struct EndedConnections {
    ring: RingBuf<MapData>,
    lost: Array<MapData, u64>,
    memory_bytes: u64,
    /// Notes them as long as it is there.
    link: Option<BtfTracePointLink>,
    told_lost: u64,
    log: LogLimit,
}

impl EndedConnections {
    pub fn new(maps: Maps) -> Result<Self> {
        let Maps { ended, lost } = maps;
        let of_lost = map_memory_bytes(&lost);
        let ring = RingBuf::try_from(Map::RingBuf(ended)).context("map the ring of connections")?;
        let lost = Array::try_from(Map::Array(lost));
        Ok(Self {
            memory_bytes: memory_bytes(ring.as_fd()) + of_lost,
            ring,
            lost: lost.context("the count of connections without room in the ring")?,
            link: None,
            told_lost: 0,
            log: LogLimit::default(),
        })
    }

    /// Has the programs note from now on what ends.
    pub fn note(&mut self, programs: &mut Ebpf, run_times: &RunTimes) -> Result<()> {
        let program = load(programs)?;
        let link = program.attach();
        let link = link.with_context(|| format!("attach {ENDS}"))?;
        let fd = program.fd().context("a loaded program has a descriptor")?;
        run_times
            .watch(ENDS, fd.as_fd())
            .context("duplicate a program's descriptor")?;
        let link = program.take_link(link);
        self.link = Some(link.context("keep the program attached")?);
        Ok(())
    }

    /// Hands on what was noted since the last call, in its order.
    pub fn take(&mut self, mut each: impl FnMut(&EndedConnection)) -> Result<()> {
        if self.link.is_none() {
            return Ok(());
        }
        // What comes meanwhile may wait for the next scan.
        for _ in 0..MOST_ENDED {
            let Some(noted) = self.ring.next() else { break };
            ensure!(
                noted.len() == size_of::<EndedConnection>(),
                "the programs noted the end of a connection in {} bytes",
                noted.len()
            );
            // SAFETY: it has the size of one, as was just checked, and any bytes are one.
            each(&unsafe { noted.as_ptr().cast::<EndedConnection>().read_unaligned() });
        }
        let lost = self.lost.get(&0, 0);
        let lost = lost.context("read how many connections had no room in the ring")?;
        if lost != self.told_lost {
            self.told_lost = lost;
            if self.log.event().is_some() {
                tracing::warn!(
                    so_far = lost,
                    "the kernel had no room to tell of connections that ended, since more of them did between two scans, or no memory \
                     beside their sockets: what records say of TCP is for some of them that of an earlier packet; lower \
                     --scan-interval"
                );
            }
        }
        Ok(())
    }

    /// How often there was no room.
    pub fn lost(&self) -> u64 {
        self.told_lost
    }

    /// All of it is allocated at the beginning.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Loads the program, and does not attach it.
pub fn load(programs: &mut Ebpf) -> Result<&mut BtfTracePoint> {
    let program = programs.program_mut(ENDS);
    let program = program.with_context(|| format!("the object has no program {ENDS}"))?;
    let program: &mut BtfTracePoint = program.try_into().context("a program of a tracepoint")?;
    // What the library makes of the kernel's types takes some 50 MiB, until this function returns.
    let types = Btf::from_sys_fs().context("read the kernel's type information (BTF)")?;
    program
        .load(ENDS, &types)
        .map_err(|error| refusal::explain(ENDS, error))?;
    Ok(program)
}
