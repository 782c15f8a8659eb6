//! Stores the flows. An entry keeps its slot number for as long as it lives.

use std::{
    collections::BTreeSet,
    ops::{Index, IndexMut, Range},
};

use super::entry::{Entry, State};

/// Entries by slot number. The slab grows by chunks, so entries are never copied, and releases chunks that have no
/// flow. Flows begin in the first chunk that has room.
///
/// Chunks are divided into blocks. Each block knows when its first flow is due, so quiet flows cost a scan nothing.
#[derive(Default)]
pub struct Slab {
    chunks: Vec<Chunk>,
    /// The numbers of the chunks with free slots.
    with_room: BTreeSet<u32>,
}

struct Chunk {
    /// Allocated at its full size, or not at all.
    entries: Vec<Entry>,
    free: Vec<u16>,
    /// By block: no flow is due before this boot time.
    due_ns: [u64; Self::BLOCKS],
}

impl Chunk {
    const BLOCKS: usize = Slab::CHUNK / Slab::BLOCK;

    const EMPTY: Self = Self {
        entries: Vec::new(),
        free: Vec::new(),
        due_ns: [u64::MAX; Self::BLOCKS],
    };

    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.entries.len() < Slab::CHUNK
    }

    fn has_flows(&self) -> bool {
        self.free.len() < self.entries.len()
    }

    fn insert(&mut self, entry: Entry) -> usize {
        if let Some(place) = self.free.pop() {
            self.entries[usize::from(place)] = entry;
            return usize::from(place);
        }
        self.entries.reserve_exact(Slab::CHUNK - self.entries.len());
        self.entries.push(entry);
        self.entries.len() - 1
    }
}

impl Slab {
    const CHUNK: usize = 4096;
    const BLOCK: usize = 64;

    pub fn insert(&mut self, entry: Entry) -> u32 {
        let at = self.with_room.first().copied().unwrap_or_else(|| {
            let at = self.chunks.len() as u32;
            self.chunks.push(Chunk::EMPTY);
            self.with_room.insert(at);
            at
        });
        let chunk = &mut self.chunks[at as usize];
        let place = chunk.insert(entry);
        if !chunk.has_room() {
            self.with_room.remove(&at);
        }
        at * Self::CHUNK as u32 + place as u32
    }

    pub fn remove(&mut self, slot: u32) {
        self[slot].state = State::Free;
        let (at, place) = Self::place(slot);
        self.chunks[at].free.push(place as u16);
        self.with_room.insert(at as u32);
    }

    /// Releases the chunks without flows. Returns how many there were.
    pub fn shrink(&mut self) -> usize {
        let mut given_back = 0;
        for chunk in &mut self.chunks {
            if !chunk.has_flows() && !chunk.entries.is_empty() {
                *chunk = Chunk::EMPTY;
                given_back += 1;
            }
        }
        while self
            .chunks
            .pop_if(|chunk| chunk.entries.is_empty())
            .is_some()
        {
            self.with_room.remove(&(self.chunks.len() as u32));
        }
        given_back
    }

    /// After the last slot.
    pub fn end(&self) -> u32 {
        let last = self.chunks.last().map_or(0, |chunk| chunk.entries.len());
        (self.chunks.len().saturating_sub(1) * Self::CHUNK + last) as u32
    }

    /// The flow of a slot, if it has one.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Entry> {
        let (at, place) = Self::place(slot);
        let entry = self.chunks.get(at)?.entries.get(place)?;
        (entry.state != State::Free).then_some(entry)
    }

    /// The first slot with a flow from this one on.
    pub fn first_from(&self, slot: u32) -> Option<u32> {
        let (first, mut place) = Self::place(slot);
        for (at, chunk) in self.chunks.iter().enumerate().skip(first) {
            let from = chunk.entries.get(place..).unwrap_or_default();
            if let Some(after) = from.iter().position(|entry| entry.state != State::Free) {
                return Some((at * Self::CHUNK + place + after) as u32);
            }
            place = 0;
        }
        None
    }

    /// The flow in this slot is due at this boot time.
    #[inline]
    pub fn note_due(&mut self, slot: u32, due_ns: u64) {
        let (at, place) = Self::place(slot);
        let block_due_ns = &mut self.chunks[at].due_ns[place / Self::BLOCK];
        *block_due_ns = due_ns.min(*block_due_ns);
    }

    /// Makes all flows due.
    pub fn all_are_due(&mut self) {
        for chunk in &mut self.chunks {
            chunk.due_ns = [0; Chunk::BLOCKS];
        }
    }

    /// The slots of the first block from this slot on that is due. The block is then not due until `note_due` says so.
    pub fn take_due(&mut self, from: u32, now_ns: u64) -> Option<Range<u32>> {
        let (first, place) = Self::place(from);
        let mut block = place / Self::BLOCK;
        for (at, chunk) in self.chunks.iter_mut().enumerate().skip(first) {
            let mut due_ns = chunk.due_ns.iter_mut().enumerate().skip(block);
            if let Some((block, due_ns)) = due_ns.find(|(_, due_ns)| **due_ns <= now_ns) {
                *due_ns = u64::MAX;
                let start = (at * Self::CHUNK + block * Self::BLOCK) as u32;
                return Some(start..start + Self::BLOCK as u32);
            }
            block = 0;
        }
        None
    }

    /// The chunk of a slot, and the place in it.
    #[inline]
    fn place(slot: u32) -> (usize, usize) {
        (slot as usize / Self::CHUNK, slot as usize % Self::CHUNK)
    }
}

impl Index<u32> for Slab {
    type Output = Entry;

    #[inline]
    fn index(&self, slot: u32) -> &Entry {
        let (at, place) = Self::place(slot);
        &self.chunks[at].entries[place]
    }
}

impl IndexMut<u32> for Slab {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        let (at, place) = Self::place(slot);
        &mut self.chunks[at].entries[place]
    }
}

#[cfg(test)]
mod tests {
    use agent_common::{FlowCounters, FlowKey};
    use sys::clock::ScanClock;

    use super::*;

    fn entry(scan: u32) -> Entry {
        let (key, counters) = (FlowKey::default(), FlowCounters::default());
        Entry::new(&key, &counters, ScanClock::default(), scan)
    }

    /// A slab whose entries have the numbers of their slots.
    fn slab(count: u32) -> Slab {
        let mut slab = Slab::default();
        for slot in 0..count {
            assert_eq!(slab.end(), slot);
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
        assert_eq!((slab[5].scan, slab.end()), (7, count + 1));
    }

    #[test]
    fn chunks_go_when_nothing_is_in_them() {
        let chunk = Slab::CHUNK as u32;
        let mut slab = slab(3 * chunk + 1);
        assert_eq!(slab.shrink(), 0);
        for slot in chunk..2 * chunk {
            slab.remove(slot);
        }
        slab.note_due(chunk, 1);
        assert_eq!((slab.shrink(), slab.end()), (1, 3 * chunk + 1));
        assert_eq!((slab.shrink(), slab.take_due(0, 1)), (0, None));
        assert!(slab.get(chunk).is_none());
        assert_eq!(slab.first_from(chunk - 1), Some(chunk - 1));
        assert_eq!(slab.first_from(chunk), Some(2 * chunk));
        assert_eq!(slab.insert(entry(1)), chunk);
        assert_eq!(slab.insert(entry(2)), chunk + 1);
        assert_eq!(slab.first_from(chunk + 2), Some(2 * chunk));
        for slot in (chunk..chunk + 2).chain(2 * chunk..=3 * chunk) {
            slab.remove(slot);
        }
        assert_eq!((slab.shrink(), slab.end()), (3, chunk));
        assert_eq!(slab.insert(entry(1)), chunk);
        slab.remove(chunk);
        for slot in 0..chunk {
            slab.remove(slot);
        }
        assert_eq!((slab.shrink(), slab.end()), (2, 0));
        assert_eq!((slab.first_from(0), slab.insert(entry(1))), (None, 0));
    }

    #[test]
    fn blocks_are_due_once_and_when_the_first_of_their_flows_is() {
        let (block, chunk) = (Slab::BLOCK as u32, Slab::CHUNK as u32);
        let mut slab = slab(chunk + 1);
        assert_eq!(slab.take_due(0, u64::MAX - 1), None);
        for (slot, due_ns) in [(3, 20), (0, 10), (block, 11), (chunk, 10)] {
            slab.note_due(slot, due_ns);
        }
        assert_eq!(slab.take_due(0, 9), None);
        assert_eq!(slab.take_due(0, 10), Some(0..block));
        assert_eq!(slab.take_due(block, 10), Some(chunk..chunk + block));
        assert_eq!(slab.take_due(0, 10), None);
        assert_eq!(slab.take_due(0, 11), Some(block..2 * block));
        slab.all_are_due();
        assert_eq!(slab.take_due(5 * block, 1), Some(5 * block..6 * block));
    }
}
