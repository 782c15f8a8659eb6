//! Programs on a wire of their own that is flooded: the station of the benches that ask what a packet costs.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use lab::Host;

use super::{
    bench::{Measures, Setup, Station},
    cost::programs_during,
    interrupt::Interrupt,
    program::{Occupant, Walk},
    wire::{Flood, Wire},
};

/// `P` is what keeps the programs where they are.
pub struct Flooded<P> {
    pub programs: P,
    ids: BTreeSet<u32>,
    flood: Flood,
    walk: Option<Walk>,
    wire: Wire,
}

impl<P> Flooded<P> {
    /// `hang` puts the programs on the host's interface and returns their ids.
    pub fn new(
        flood: Flood,
        hang: impl FnOnce(&Host) -> Result<(P, BTreeSet<u32>)>,
    ) -> Result<Self> {
        let wire = Wire::new()?;
        let (programs, ids) = hang(&wire.lab.agent)?;
        Ok(Self {
            programs,
            ids,
            flood,
            walk: None,
            wire,
        })
    }

    /// Puts the flows into the programs' table, where there are some; returns how many packets arrived.
    pub fn warm_up(&self, interrupt: &Interrupt) -> Result<u64> {
        if self.flood.flows <= 1 {
            return Ok(0);
        }
        let flood = Flood {
            // Nearly every flow has one.
            packets: self.flood.flows.saturating_mul(5),
            ..self.flood
        };
        Ok(self.wire.flood(flood, interrupt)?.packets)
    }

    /// From now on, between two packets something walks over so much memory.
    pub fn cool(&mut self, bytes: u32) -> Result<()> {
        self.walk = Some(Walk::over(bytes, &self.wire.lab.agent)?);
        Ok(())
    }

    /// Nanoseconds that a program takes for a packet, `None` where there is no program, and the number of packets
    /// that arrived.
    pub fn program_ns(&self, interrupt: &Interrupt) -> Result<(Option<f64>, u64)> {
        let flood = || self.wire.flood(self.flood, interrupt);
        let (cost, passage) = programs_during(&self.ids, flood)?;
        ensure!(
            self.ids.is_empty() || cost.runs >= passage.packets,
            "{} packets arrived and the program ran {} times",
            passage.packets,
            cost.runs
        );
        Ok((cost.ns_per_run(), passage.packets))
    }
}

/// Floods twice: with the kernel's statistics for the nanoseconds, and without them for the rate, which says nothing where
/// something else takes most of the time.
impl Station for Flooded<Occupant> {
    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        let (ns, _) = self.program_ns(&setup.interrupt)?;
        let mut measures = Measures::new();
        measures.extend(ns.map(|ns| ("program_ns_per_packet", ns)));
        if self.walk.is_none() {
            let passage = self.wire.flood(self.flood, &setup.interrupt)?;
            measures.push(("packets_per_second", passage.packets_per_second()));
        }
        Ok(measures)
    }
}
