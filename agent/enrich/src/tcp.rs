//! TCP's own figures of this host's connections.
//!
//! The programs note them beside the flow, from the sockets of its packets. The final figures of a connection come
//! through a ring ([`kernel::connections`]).

use agent_common::{TcpInfo, tcp::TcpLayout};
use anyhow::Context as _;
use kernel::{
    connections::{self, MOST_ENDED, RING_LEN_BYTES},
    layout,
    load::OBJECT,
    socket_bounds::{BYTES_PER_SOCKET, MOST_SOCKETS},
};

use crate::kind::{
    AgentStatus, Check, Kernel, Kind, Layout, LoadSettings, Replica, Result, Scanned, Settings,
    Tables,
};

const BYTES_PER_TRACKED_FLOW: u64 = 8 + 2 * size_of::<TcpInfo>() as u64;
/// In the process, for two scans after a connection ended: the tables before and after they have grown.
const BYTES_PER_END: u64 = 750 + 4 * size_of::<TcpInfo>() as u64;

const WITHOUT_ENDS: &str =
    "records lack the final TCP figures of a connection, and have those of an earlier packet";

pub struct Tcp;

impl Kind for Tcp {
    /// Without the layout, records have the figures of an earlier packet.
    fn load(_: &Settings, load: &mut LoadSettings) -> Result<()> {
        match layout::tcp_of_this_kernel() {
            Ok(layout) => load.tcp = layout,
            Err(error) => tracing::warn!("{WITHOUT_ENDS}: {error:#}"),
        }
        Ok(())
    }

    fn start(_: &Settings, loaded: &LoadSettings, kernel: &mut Kernel) -> Result<Self> {
        if loaded.tcp != TcpLayout::default()
            && let Err(error) = kernel.note_ends()
        {
            tracing::warn!("{WITHOUT_ENDS}: {error:#}");
        }
        Ok(Self)
    }

    fn most_bytes(_: &Settings, tables: &Tables) -> u64 {
        tables.tracked(BYTES_PER_TRACKED_FLOW)
            + u64::from(RING_LEN_BYTES)
            + MOST_ENDED * BYTES_PER_END
            + MOST_SOCKETS * BYTES_PER_SOCKET
    }

    fn check(load: LoadSettings, layout: &Layout) -> Option<Check> {
        let (outcome, remedy) = match Kernel::verified(&load, layout) {
            Err(error) => (
                Err(error),
                "run without --enrich tcp: records then lack TCP's round trips",
            ),
            Ok(_) => (
                loads_with_ends(load, layout),
                "use a kernel with CONFIG_DEBUG_INFO_BTF=y; otherwise --enrich tcp reports TCP's figures at an \
                 earlier packet, not at the end of a connection",
            ),
        };
        Some(Check {
            name: "tcp",
            outcome: outcome.map(|()| "and with --enrich tcp".to_owned()),
            remedy,
        })
    }

    fn drain(&mut self, _: u32, kernel: &mut Kernel, replica: &mut Replica) -> Result<()> {
        kernel
            .ended
            .take(|ended| replica.note_end(ended))
            .context("read the final TCP figures of connections")
    }

    fn report(&self, scanned: &Scanned<'_>, status: &mut AgentStatus) {
        let ended = &scanned.kernel.ended;
        // If ends are not reported at all, none is lost.
        let untold = if ended.are_told() {
            scanned.replica.sockets_without_end()
        } else {
            0
        };
        status.replica.get_or_insert_default().lost_tcp_ends = ended.lost() + untold;
    }
}

/// Loads the program for connections that end, and attaches nothing.
fn loads_with_ends(mut load: LoadSettings, layout: &Layout) -> Result<()> {
    load.tcp = layout::tcp_of_this_kernel()?;
    let mut kernel = Kernel::load_with(OBJECT, &load, layout)?;
    connections::load(&mut kernel.sets[0].programs)
}
