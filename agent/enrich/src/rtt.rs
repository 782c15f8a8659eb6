//! How long the ends of connections take to answer, measured from their packets. The programs note it beside the flow.

use crate::kind::{Check, Kernel, Kind, Layout, LoadSettings, Result, Settings, Tables};

const BYTES_PER_TRACKED_FLOW: u64 = 16;

pub struct Rtt;

impl Kind for Rtt {
    fn start(_: &Settings, _: &LoadSettings, _: &mut Kernel) -> Result<Self> {
        Ok(Self)
    }

    fn most_bytes(_: &Settings, tables: &Tables) -> u64 {
        tables.tracked(BYTES_PER_TRACKED_FLOW)
    }

    fn check(load: LoadSettings, layout: &Layout) -> Option<Check> {
        let outcome = Kernel::verified(&load, layout);
        Some(Check {
            name: "rtt",
            outcome: outcome.map(|_| "and with --enrich rtt".to_owned()),
            remedy: "run without --enrich rtt: records then lack the round trips of handshakes and acknowledgments",
        })
    }
}
