//! Stores the flows. An entry keeps its slot number for as long as it lives.

use std::ops::{Index, IndexMut};

use super::entry::{Entry, State};

/// Entries by slot number. It grows by chunks, so that entries are never copied.
#[derive(Default)]
pub struct Slab {
    /// Each is allocated at its full size.
    chunks: Vec<Vec<Entry>>,
    free: Vec<u32>,
}

impl Slab {
    const CHUNK: usize = 4096;

    pub fn insert(&mut self, entry: Entry) -> u32 {
        if let Some(slot) = self.free.pop() {
            self[slot] = entry;
            return slot;
        }
        let slot = self.slots().end;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < Self::CHUNK => chunk.push(entry),
            _ => {
                let mut chunk = Vec::with_capacity(Self::CHUNK);
                chunk.push(entry);
                self.chunks.push(chunk);
            }
        }
        slot
    }

    pub fn remove(&mut self, slot: u32) {
        self[slot].state = State::Free;
        self.free.push(slot);
    }

    /// All slots, including the free ones.
    pub fn slots(&self) -> std::ops::Range<u32> {
        let last = self.chunks.last().map_or(0, Vec::len);
        0..(self.chunks.len().saturating_sub(1) * Self::CHUNK + last) as u32
    }
}

impl Index<u32> for Slab {
    type Output = Entry;

    fn index(&self, slot: u32) -> &Entry {
        &self.chunks[slot as usize / Self::CHUNK][slot as usize % Self::CHUNK]
    }
}

impl IndexMut<u32> for Slab {
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.chunks[slot as usize / Self::CHUNK][slot as usize % Self::CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use agent_common::{FlowCounters, FlowKey};

    use super::*;
    use crate::clock::ScanClock;

    #[test]
    fn entries_keep_their_place_and_free_slots_are_used_again() {
        let entry = |scan| {
            let (key, counters) = (FlowKey::default(), FlowCounters::default());
            Entry::new(&key, &counters, ScanClock::default(), scan)
        };
        let mut slab = Slab::default();
        let count = 2 * Slab::CHUNK as u32 + 1;
        for slot in 0..count {
            assert_eq!(slab.slots(), 0..slot);
            assert_eq!(slab.insert(entry(slot)), slot);
        }
        assert!((0..count).all(|slot| slab[slot].scan == slot));
        let room = slab.chunks.iter().map(Vec::capacity);
        assert_eq!(room.collect::<Vec<_>>(), [Slab::CHUNK; 3]);
        slab.remove(5);
        assert_eq!(slab[5].state, State::Free);
        assert_eq!(slab.insert(entry(7)), 5);
        assert_eq!((slab[5].scan, slab.slots()), (7, 0..count));
    }
}
