//! A ring buffer that programs put entries into, and their counts of entries that were lost.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Pod,
    maps::{Array, Map, MapData, RingBuf},
};

use super::memory::map_memory_bytes;

/// The maps of a ring.
pub struct Maps {
    pub entries: MapData,
    /// Counts of lost entries, by kind of loss.
    pub lost: MapData,
}

/// A ring of entries of one type.
pub struct Ring<T> {
    entries: RingBuf<MapData>,
    lost: Array<MapData, u64>,
    memory_bytes: u64,
    entry: PhantomData<fn() -> T>,
}

impl<T: Pod> Ring<T> {
    pub fn new(maps: Maps) -> Result<Self> {
        let memory_bytes = map_memory_bytes(&maps.entries) + map_memory_bytes(&maps.lost);
        let ring = RingBuf::try_from(Map::RingBuf(maps.entries)).context("map a ring")?;
        let lost = Array::try_from(Map::Array(maps.lost));
        Ok(Self {
            entries: ring,
            lost: lost.context("open the counts of entries that a ring lost")?,
            memory_bytes,
            entry: PhantomData,
        })
    }

    /// Passes on up to `most` waiting entries in order, including ones that arrive meanwhile. Returns how many there
    /// were.
    pub fn take(&mut self, most: usize, mut each: impl FnMut(&T)) -> Result<usize> {
        const { assert!(align_of::<T>() <= 8) }
        for taken in 0..most {
            let Some(noted) = self.entries.next() else {
                return Ok(taken);
            };
            ensure!(
                noted.len() == size_of::<T>(),
                "the programs wrote an entry of {} bytes instead of {}",
                noted.len(),
                size_of::<T>()
            );
            let one = noted.as_ptr().cast::<T>();
            // SAFETY: the entry has the size and alignment of `T`, and any bytes are a valid `T` (`Pod`).
            each(unsafe { &*one });
        }
        Ok(most)
    }

    /// How many entries were lost in this way.
    pub fn lost(&self, kind: u32) -> Result<u64> {
        let lost = self.lost.get(&kind, 0);
        lost.context("read how many entries of a ring were lost")
    }

    /// A descriptor to wait on. It becomes readable when an entry arrives after all were taken.
    pub fn try_clone_descriptor(&self) -> io::Result<OwnedFd> {
        self.entries.as_fd().try_clone_to_owned()
    }

    /// The kernel allocates all of it when the maps are created.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
