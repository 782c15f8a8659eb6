//! Systemd units and containers, by the control groups of the sockets that send packets.
//!
//! The programs note the control group beside the flow. [`cgroups`] knows what it is called, and [`traffic`] adds up
//! what units exchange.

use std::sync::Arc;

use anyhow::Context as _;

use crate::kind::{
    AgentStatus, Check, Exchange, Kernel, Kind, Layout, LoadSettings, Names, Replica, Result,
    Scanned, Settings, Tables,
};

pub mod cgroups;
mod traffic;

use cgroups::Cgroups;
use traffic::Units;

const LOSS: &str = "flows have no unit and no container";

pub struct Unit {
    cgroups: Cgroups,
    traffic: Units,
}

impl Kind for Unit {
    fn load(_: &Settings, _: &mut LoadSettings) -> Result<()> {
        cgroups::find().map(drop).context(LOSS)
    }

    fn start(_: &Settings, _: &LoadSettings, _: &mut Kernel) -> Result<Self> {
        let cgroups = Cgroups::follow().context(LOSS)?;
        let traffic = Units::new(cgroups.clone());
        Ok(Self { cgroups, traffic })
    }

    fn most_bytes(_: &Settings, _: &Tables) -> u64 {
        Cgroups::MOST_BYTES
    }

    fn check(load: LoadSettings, layout: &Layout) -> Option<Check> {
        let folder = Kernel::verified(&load, layout).and_then(|_| cgroups::find());
        Some(Check {
            name: "enrichment",
            outcome: folder.map(|folder| {
                let folder = folder.display();
                format!("and with --enrich unit; cgroups are at {folder}")
            }),
            remedy: "run without --enrich unit: flows then have no unit and no container",
        })
    }

    fn supply(&self, replica: &mut Replica, names: &mut Names) {
        replica.add_up_cgroups();
        names.cgroups = Some(Arc::new(self.cgroups.clone()));
    }

    fn end_scan(&mut self, now_boot_ns: u64, replica: &mut Replica) -> Vec<Exchange> {
        let exchanged = replica.take_by_cgroup();
        self.traffic.add(exchanged, now_boot_ns);
        Vec::new()
    }

    fn report(&self, scanned: &Scanned<'_>, status: &mut AgentStatus) {
        let replica = status.replica.get_or_insert_default();
        replica.nameless_ends = scanned.encoder.nameless_ends();
        status.units = self.traffic.status();
    }
}
