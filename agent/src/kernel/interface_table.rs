//! The programs' table of interfaces. Each interface has two possible places, and is at one of them.

use std::{os::fd::AsFd as _, sync::Arc};

use agent_common::{Interface, interface::places};
use anyhow::{Context as _, Result};
use aya::maps::MapData;

use super::bpf;

/// How often a table is tried. A failure is rare: with a quarter of the places taken, one seed in some
/// hundreds does not work.
const SEEDS: usize = 64;
const MAX_MOVES: usize = 1000;

/// Which interface is at which place.
pub(super) struct Places {
    pub seed: u64,
    /// There are `1 << bits` places.
    pub bits: u32,
    /// By place; 0 means free.
    ifindexes: Vec<u32>,
}

impl Places {
    /// Finds a place for each interface, of at least four places per interface. No ifindex may be given
    /// twice.
    pub(super) fn of(ifindexes: &[u32]) -> Result<Self> {
        let count = (ifindexes.len().max(1) * 4).next_power_of_two();
        let bits = count.ilog2();
        // An odd number, from the golden ratio.
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..SEEDS {
            let mut tried = Self {
                seed,
                bits,
                ifindexes: vec![0; count],
            };
            if ifindexes.iter().all(|&ifindex| tried.put(ifindex)) {
                return Ok(tried);
            }
            seed = seed.wrapping_mul(0xD129_0D3B_3A5E_6D35).rotate_left(23) | 1;
        }
        let count = ifindexes.len();
        anyhow::bail!("find a place in the programs' table for each of {count} interfaces")
    }

    /// Puts an interface at one of its places. If both are taken, the interface at one of them moves to its
    /// own other place, and so on. Returns whether every interface found a place.
    fn put(&mut self, ifindex: u32) -> bool {
        let mut moving = ifindex;
        let mut from = None;
        for _ in 0..MAX_MOVES {
            let [first, second] = places(moving, self.seed, self.bits);
            let to = if from == Some(first)
                || (from.is_none() && self.at(first) != 0 && self.at(second) == 0)
            {
                second
            } else {
                first
            };
            moving = std::mem::replace(&mut self.ifindexes[to as usize], moving);
            if moving == 0 {
                return true;
            }
            from = Some(to);
        }
        false
    }

    fn at(&self, place: u32) -> u32 {
        self.ifindexes[place as usize]
    }

    pub(super) fn count(&self) -> u32 {
        1 << self.bits
    }

    /// The place of an interface.
    fn find(&self, ifindex: u32) -> Option<u32> {
        let places = places(ifindex, self.seed, self.bits);
        places.into_iter().find(|&place| self.at(place) == ifindex)
    }
}

/// The table in the kernel. Clones share it.
#[derive(Clone)]
pub struct InterfaceTable {
    map: Arc<MapData>,
    places: Arc<Places>,
}

impl InterfaceTable {
    /// `map` must be empty and have [`Places::count`] entries.
    pub(super) fn new(map: MapData, places: Places) -> Self {
        Self {
            map: Arc::new(map),
            places: Arc::new(places),
        }
    }

    /// Lets the programs find an interface, which must be in the places.
    pub(super) fn enter(&self, ifindex: u32, slot: u32) -> Result<()> {
        self.store(ifindex, Interface { ifindex, slot })
            .with_context(|| format!("register interface index {ifindex}"))
    }

    /// Makes the interface unknown to the programs.
    pub(super) fn forget(&self, ifindex: u32) -> Result<()> {
        self.store(ifindex, Interface::default())
            .with_context(|| format!("forget interface index {ifindex}"))
    }

    fn store(&self, ifindex: u32, interface: Interface) -> Result<()> {
        let place = self
            .places
            .find(ifindex)
            .context("the programs were loaded without this index")?;
        bpf::update(self.map.fd().as_fd(), place, &interface.to_bytes())?;
        Ok(())
    }

    pub(super) fn kernel_memory_bytes(&self) -> u64 {
        super::memory::map_memory_bytes(&self.map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_has_a_place_whatever_the_indexes() {
        let mut random = 1_u64;
        let mut number = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as u32 + 1
        };
        let sets: [Vec<u32>; 6] = [
            vec![],
            vec![2_000_000_000],
            (1..=5000).collect(),
            (1..=5000).map(|number| number * 4096).collect(),
            (0..5000).map(|number| u32::MAX - number * 64).collect(),
            std::iter::repeat_with(&mut number).take(20_000).collect(),
        ];
        for mut ifindexes in sets {
            ifindexes.sort_unstable();
            ifindexes.dedup();
            let table = Places::of(&ifindexes).unwrap();
            let most = ifindexes.len().max(1) * 8;
            assert!((table.count() as usize) < most.max(8));
            let found = ifindexes.iter().map(|&ifindex| table.find(ifindex));
            let mut found: Vec<u32> = found.collect::<Option<_>>().unwrap();
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), ifindexes.len());
            assert_eq!(table.find(3_999_999_999), None);
        }
    }
}
