//! Stores the flows. An entry keeps its slot number for as long as it lives.

use std::{
    collections::BTreeSet,
    ops::{Index, IndexMut},
};

use super::entry::{Entry, State};

/// Entries by slot number. It grows by chunks, so that entries are never copied, and shrinks by those at its end: flows begin in
/// the first chunk that has room.
#[derive(Default)]
pub struct Slab {
    /// Only the last one may have fewer entries than [`Slab::CHUNK`].
    chunks: Vec<Chunk>,
    /// The numbers of those with free slots.
    with_room: BTreeSet<u32>,
}

struct Chunk {
    /// Allocated at its full size.
    entries: Vec<Entry>,
    free: Vec<u16>,
}

impl Slab {
    const CHUNK: usize = 4096;

    pub fn insert(&mut self, entry: Entry) -> u32 {
        if let Some(&at) = self.with_room.first() {
            let chunk = &mut self.chunks[at as usize];
            let place = chunk.free.pop().expect("it has room");
            if chunk.free.is_empty() {
                self.with_room.remove(&at);
            }
            chunk.entries[usize::from(place)] = entry;
            return at * Self::CHUNK as u32 + u32::from(place);
        }
        let slot = self.slots().end;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.entries.len() < Self::CHUNK => chunk.entries.push(entry),
            _ => {
                let mut entries = Vec::with_capacity(Self::CHUNK);
                entries.push(entry);
                let free = Vec::new();
                self.chunks.push(Chunk { entries, free });
            }
        }
        slot
    }

    pub fn remove(&mut self, slot: u32) {
        self[slot].state = State::Free;
        let (at, place) = Self::place(slot);
        self.chunks[at].free.push(place as u16);
        self.with_room.insert(at as u32);
    }

    /// Gives back the chunks at the end in which no slot is in use. Returns how many there were.
    pub fn shrink(&mut self) -> usize {
        let before = self.chunks.len();
        while let Some(chunk) = self.chunks.last()
            && chunk.free.len() == chunk.entries.len()
        {
            self.chunks.pop();
            self.with_room.remove(&(self.chunks.len() as u32));
        }
        before - self.chunks.len()
    }

    /// All slots, including the free ones.
    pub fn slots(&self) -> std::ops::Range<u32> {
        let last = self.chunks.last().map_or(0, |chunk| chunk.entries.len());
        0..(self.chunks.len().saturating_sub(1) * Self::CHUNK + last) as u32
    }

    /// The chunk of a slot, and the place in it.
    fn place(slot: u32) -> (usize, usize) {
        (slot as usize / Self::CHUNK, slot as usize % Self::CHUNK)
    }
}

impl Index<u32> for Slab {
    type Output = Entry;

    fn index(&self, slot: u32) -> &Entry {
        let (at, place) = Self::place(slot);
        &self.chunks[at].entries[place]
    }
}

impl IndexMut<u32> for Slab {
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        let (at, place) = Self::place(slot);
        &mut self.chunks[at].entries[place]
    }
}

#[cfg(test)]
mod tests {
    use agent_common::{FlowCounters, FlowKey};

    use super::*;
    use crate::clock::ScanClock;

    fn entry(scan: u32) -> Entry {
        let (key, counters) = (FlowKey::default(), FlowCounters::default());
        Entry::new(&key, &counters, ScanClock::default(), scan)
    }

    /// One whose entries have the numbers of their slots.
    fn slab(count: u32) -> Slab {
        let mut slab = Slab::default();
        for slot in 0..count {
            assert_eq!(slab.slots(), 0..slot);
            assert_eq!(slab.insert(entry(slot)), slot);
        }
        slab
    }

    #[test]
    fn entries_keep_their_place_and_the_first_free_slots_are_used_again() {
        let count = 2 * Slab::CHUNK as u32 + 1;
        let mut slab = slab(count);
        assert!((0..count).all(|slot| slab[slot].scan == slot));
        let room = slab.chunks.iter().map(|chunk| chunk.entries.capacity());
        assert_eq!(room.collect::<Vec<_>>(), [Slab::CHUNK; 3]);
        for slot in [5, count - 1, Slab::CHUNK as u32 + 5] {
            slab.remove(slot);
            assert_eq!(slab[slot].state, State::Free);
        }
        let places = [(); 4].map(|()| slab.insert(entry(7)));
        assert_eq!(places, [5, Slab::CHUNK as u32 + 5, count - 1, count]);
        assert_eq!((slab[5].scan, slab.slots()), (7, 0..count + 1));
    }

    #[test]
    fn chunks_at_the_end_go_when_nothing_is_in_them() {
        let chunk = Slab::CHUNK as u32;
        let mut slab = slab(3 * chunk + 1);
        assert_eq!(slab.shrink(), 0);
        for slot in chunk..3 * chunk {
            slab.remove(slot);
        }
        assert_eq!(slab.shrink(), 0, "the last one is in use");
        slab.remove(3 * chunk);
        slab.remove(3);
        assert_eq!((slab.shrink(), slab.slots()), (3, 0..chunk));
        assert_eq!(slab.insert(entry(1)), 3);
        assert_eq!(slab.insert(entry(1)), chunk);
        slab.remove(chunk);
        for slot in 0..chunk {
            slab.remove(slot);
        }
        assert_eq!((slab.shrink(), slab.slots()), (2, 0..0));
        assert_eq!(slab.insert(entry(1)), 0);
    }
}
