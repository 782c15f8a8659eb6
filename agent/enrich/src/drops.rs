//! Packets that the kernel of the host drops ([`kernel::drops`]): by its own reasons, and by flow.

use std::collections::BTreeMap;

use anyhow::Context as _;
use kernel::{
    drops::{self, MOST_FLOWS},
    layout,
    load::OBJECT,
};
use proto::KernelDrops;

use crate::kind::{
    AgentStatus, Check, Kernel, Kind, Layout, LoadSettings, Replica, Result, Scanned, Settings,
    Tables,
};

const BYTES_PER_TRACKED_FLOW: u64 = 16;
/// In the kernel, and in the process until the flows are drained.
const BYTES_PER_FLOW_WITH_DROPS: u64 = 500;
/// For the interfaces that the programs count drops at.
const BYTES_PER_INTERFACE: u64 = 200;

pub struct Drops;

impl Kind for Drops {
    fn load(_: &Settings, load: &mut LoadSettings) -> Result<()> {
        match layout::drops_of_this_kernel() {
            Ok(layout) => load.drops = layout,
            Err(error) => {
                tracing::warn!("cannot count kernel drops by flow: {error:#}");
            }
        }
        Ok(())
    }

    fn start(_: &Settings, _: &LoadSettings, kernel: &mut Kernel) -> Result<Self> {
        if let Err(error) = kernel.count_drops() {
            tracing::warn!("cannot count kernel drops: {error:#}");
        }
        Ok(Self)
    }

    fn most_bytes(_: &Settings, tables: &Tables) -> u64 {
        2 * u64::from(MOST_FLOWS) * BYTES_PER_FLOW_WITH_DROPS
            + u64::from(tables.max_interfaces) * BYTES_PER_INTERFACE
            + tables.tracked(BYTES_PER_TRACKED_FLOW)
    }

    fn check(mut load: LoadSettings, layout: &Layout) -> Option<Check> {
        let by_flow = layout::drops_of_this_kernel().map(|layout| load.drops = layout);
        let counted = Kernel::load_with(OBJECT, &load, layout)
            .and_then(|mut kernel| drops::load(&mut kernel.sets[0].programs).map(drop));
        let (outcome, remedy) = match counted {
            Err(error) => (
                Err(error),
                "run without --enrich drops: kernel drops are then not counted",
            ),
            Ok(()) => (by_flow, layout::REMEDY),
        };
        Some(Check {
            name: "drops",
            outcome: outcome.map(|()| "and with --enrich drops".to_owned()),
            remedy,
        })
    }

    fn drain(&mut self, page: u32, kernel: &mut Kernel, replica: &mut Replica) -> Result<()> {
        kernel
            .drops
            .take(page, |key, packets| replica.note_dropped(key, packets))
            .context("read the kernel drops of flows")
    }

    fn report(&self, scanned: &Scanned<'_>, status: &mut AgentStatus) {
        let counted = scanned.kernel.drops.counted();
        let counted = counted.inspect_err(|error| tracing::warn!("{error:#}"));
        let Ok(Some(counted)) = counted else {
            return;
        };
        let [of_flows, of_no_flow] = scanned.replica.dropped();
        status.kernel_drops = Some(KernelDrops {
            by_reason: counted.by_reason,
            missed: counted.missed,
            of_flows: counted.beside.is_some().then_some(of_flows),
            of_no_flow: counted.beside.map_or_else(BTreeMap::new, |mut beside| {
                beside.insert("no_flow".to_owned(), of_no_flow);
                beside
            }),
        });
    }
}
