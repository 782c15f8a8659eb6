//! Programs on a flooded wire of their own: the station of the benches that measure the cost per packet.

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

/// `P` owns the programs and keeps them attached.
pub struct Flooded<P> {
    pub programs: P,
    ids: BTreeSet<u32>,
    flood: Flood,
    walk: Option<Walk>,
    wire: Wire,
}

impl<P> Flooded<P> {
    /// `hang` attaches the programs to the host's interface and returns their ids.
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

    /// Fills the programs' table if the flood has more than one flow. Returns the number of packets that arrived.
    pub fn warm_up(&self, interrupt: &Interrupt) -> Result<u64> {
        if self.flood.flows <= 1 {
            return Ok(0);
        }
        let flood = Flood {
            // Enough for nearly every flow to send a packet.
            packets: self.flood.flows.saturating_mul(5),
            ..self.flood
        };
        Ok(self.wire.flood(flood, interrupt)?.packets)
    }

    /// Has a program walk over this much memory before each further packet.
    pub fn cool(&mut self, bytes: u32) -> Result<()> {
        self.walk = Some(Walk::over(bytes, &self.wire.lab.agent)?);
        Ok(())
    }

    /// Nanoseconds per packet that the program takes (`None` without a program), and the number of packets that
    /// arrived.
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

/// Floods twice: with the kernel's statistics for the nanoseconds, and without them for the rate. Skips the rate during
/// a walk over memory, which takes most of the time.
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
