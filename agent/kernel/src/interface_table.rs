//! The programs' table of interfaces. Each interface has two possible buckets, and is at one place in one of them.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agent_common::{
    Interface,
    interface::{Bucket, buckets},
};
use anyhow::{Context as _, Result};
use aya::maps::MapData;

use super::{drops::Watching, mapped_array::MappedArray, memory::map_memory_bytes};

/// An odd number derived from the golden ratio.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The interface at each place.
pub(super) struct Places {
    pub seed: u64,
    /// There are `1 << bits` buckets.
    pub bits: u32,
    /// By place; a free one is all zero.
    interfaces: Vec<Interface>,
}

impl Places {
    /// Makes eight places for each of `count` interfaces, so an interface nearly always finds one of its places free.
    pub(super) fn for_up_to(count: u32) -> Self {
        let buckets = (count.max(1) as usize * 4).next_power_of_two();
        Self {
            seed: SEED,
            bits: buckets.ilog2(),
            interfaces: vec![Interface::default(); buckets * Bucket::LEN],
        }
    }

    /// The writes that give an interface a place, in order. If all of its places are taken, the interface at one of
    /// them moves to another of its own places, and so on. Each moved interface is written to its next place before its
    /// old place is overwritten, so programs find it at all times. `None` if no chain of moves works.
    fn moves(&self, interface: Interface) -> Option<Vec<(usize, Interface)>> {
        // Each place reached, and the place whose interface would move there.
        let mut from = BTreeMap::new();
        let mut next = VecDeque::new();
        for place in self.of(interface.ifindex) {
            from.entry(place).or_insert_with(|| {
                next.push_back(place);
                None
            });
        }
        while let Some(place) = next.pop_front() {
            let here = self.interfaces[place];
            if here.ifindex != 0 {
                for other in self.of(here.ifindex) {
                    from.entry(other).or_insert_with(|| {
                        next.push_back(other);
                        Some(place)
                    });
                }
                continue;
            }
            let (mut moves, mut to) = (Vec::new(), place);
            while let Some(before) = from[&to] {
                moves.push((to, self.interfaces[before]));
                to = before;
            }
            moves.push((to, interface));
            return Some(moves);
        }
        None
    }

    /// The possible places of an interface.
    fn of(&self, ifindex: u32) -> impl Iterator<Item = usize> + use<> {
        let buckets = buckets(ifindex, self.seed, self.bits);
        let first = buckets.map(|bucket| bucket as usize * Bucket::LEN);
        first
            .into_iter()
            .flat_map(|first| first..first + Bucket::LEN)
    }

    pub(super) fn buckets(&self) -> u32 {
        1 << self.bits
    }

    /// The place of an interface.
    fn find(&self, ifindex: u32) -> Option<usize> {
        self.of(ifindex)
            .find(|&place| self.interfaces[place].ifindex == ifindex)
    }
}

/// The table in the kernel. Clones share it.
#[derive(Clone)]
pub struct InterfaceTable {
    _map: Arc<MapData>,
    kernel_memory_bytes: u64,
    entries: Arc<MappedArray>,
    places: Arc<Mutex<Places>>,
    /// Set if drops are counted by flow.
    drops: Option<Watching>,
}

impl InterfaceTable {
    /// `map` must be empty and have [`Places::buckets`] entries.
    pub(super) fn new(map: MapData, places: Places, drops: Option<Watching>) -> Result<Self> {
        let entries = MappedArray::new(map.fd().as_fd(), places.interfaces.len());
        let entries = entries.context("map the programs' table of interfaces")?;
        Ok(Self {
            kernel_memory_bytes: map_memory_bytes(&map),
            _map: Arc::new(map),
            entries: Arc::new(entries),
            places: Arc::new(Mutex::new(places)),
            drops,
        })
    }

    /// Adds an interface, which must not be in the table, so that programs find it. Returns whether the table had a
    /// place for it.
    pub(super) fn enter(&self, ifindex: u32, slot: u32) -> bool {
        let mut places = self.places();
        let Some(moves) = places.moves(Interface { ifindex, slot }) else {
            return false;
        };
        if let Some(drops) = &self.drops
            && let Err(error) = drops.begin(ifindex)
        {
            tracing::warn!(
                "cannot match kernel drops at interface index {ifindex} to flows (`unwatched`): {error}"
            );
        }
        for (place, interface) in moves {
            self.store(&mut places, place, interface);
        }
        true
    }

    /// Removes an interface from the table, if it is there.
    pub(super) fn forget(&self, ifindex: u32) {
        let mut places = self.places();
        if let Some(place) = places.find(ifindex) {
            self.store(&mut places, place, Interface::default());
            if let Some(drops) = &self.drops
                && let Err(error) = drops.end(ifindex)
            {
                tracing::warn!(
                    "cannot stop counting kernel drops by flow at interface index {ifindex}: {error}"
                );
            }
        }
    }

    fn store(&self, places: &mut Places, place: usize, interface: Interface) {
        places.interfaces[place] = interface;
        let entry = u64::from_ne_bytes(interface.to_bytes());
        self.entries.store(place, entry);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kernel_memory_bytes(&self) -> u64 {
        self.kernel_memory_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_numbers() -> impl Iterator<Item = u32> {
        let mut random = 1_u64;
        std::iter::repeat_with(move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as u32 + 1
        })
    }

    /// Returns how many interfaces had to move.
    fn enter(places: &mut Places, interface: Interface) -> usize {
        let moves = places.moves(interface).unwrap();
        let others = moves.len() - 1;
        for (place, interface) in moves {
            places.interfaces[place] = interface;
            // No interface is missing between two writes.
            let before = places.interfaces.iter().filter(|one| one.ifindex != 0);
            if places.interfaces.len() < 1000 {
                assert!(before.clone().all(|one| places.find(one.ifindex).is_some()));
            }
        }
        others
    }

    #[test]
    fn every_interface_has_a_place_whatever_the_indexes() {
        let sets: [Vec<u32>; 6] = [
            vec![],
            vec![2_000_000_000],
            (1..=5000).collect(),
            (1..=5000).map(|number| number * 4096).collect(),
            (0..5000).map(|number| u32::MAX - number * 64).collect(),
            random_numbers().take(20_000).collect(),
        ];
        for mut ifindexes in sets {
            ifindexes.sort_unstable();
            ifindexes.dedup();
            let mut table = Places::for_up_to(ifindexes.len() as u32);
            for (slot, &ifindex) in (0..).zip(&ifindexes) {
                enter(&mut table, Interface { ifindex, slot });
            }
            for (slot, &ifindex) in (0..).zip(&ifindexes) {
                let place = table.find(ifindex).unwrap();
                assert_eq!(table.interfaces[place], Interface { ifindex, slot });
            }
            assert_eq!(table.find(3_999_999_999), None);
        }
    }

    #[test]
    fn interfaces_come_and_go_for_long_in_a_table_that_is_more_than_full() {
        let mut table = Places::for_up_to(32);
        let mut here = VecDeque::new();
        let mut moved = 0;
        for ifindex in random_numbers().take(20_000) {
            if here.contains(&ifindex) {
                continue;
            }
            // Half as many again as the table is made for.
            if here.len() == 48 {
                let place = table.find(here.pop_front().unwrap()).unwrap();
                table.interfaces[place] = Interface::default();
            }
            moved += enter(&mut table, Interface { ifindex, slot: 1 });
            here.push_back(ifindex);
            assert!(here.iter().all(|&ifindex| table.find(ifindex).is_some()));
        }
        assert!(moved > 10, "{moved}");
    }
}
