//! Who sent the flows of a page: an array beside its windows, in this process's memory, and a hash map beside the map behind
//! them.

use std::{collections::HashMap, io, os::fd::AsFd as _, ptr::NonNull};

use agent_common::{FlowKey, Senders, senders::SendersOfWindow, slots::SLOTS};
use anyhow::{Context as _, Result};
use aya::maps::MapData;
use aya_obj::generated::{
    BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC,
    bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH},
};

use crate::kernel::{
    bpf::{self, Shape},
    inner_map,
    mapped_array::mapped,
    memory::map_memory_bytes,
};

pub struct SendersOfPage {
    map: MapData,
    memory_bytes: u64,
    start: NonNull<SendersOfWindow>,
    windows: u32,
}

// SAFETY: the memory belongs to the value alone in this process.
unsafe impl Send for SendersOfPage {}

impl SendersOfPage {
    /// For a page of so many windows. Nothing is noted at first.
    pub fn create(windows: u32) -> Result<Self> {
        let map = inner_map::create(
            "senders",
            Shape {
                map_type: BPF_MAP_TYPE_ARRAY as u32,
                key_len_bytes: size_of::<u32>() as u32,
                value_len_bytes: size_of::<SendersOfWindow>() as u32,
                max_entries: windows,
                flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
            },
        )
        .context("create a page of the flows' senders")?;
        let start = Self::mapped(&map, windows).context("map a page of the flows' senders")?;
        Ok(Self {
            memory_bytes: map_memory_bytes(&map),
            map,
            start,
            windows,
        })
    }

    fn mapped(map: &MapData, windows: u32) -> io::Result<NonNull<SendersOfWindow>> {
        Ok(mapped(map.fd().as_fd(), len_bytes(windows))?.cast())
    }

    pub fn map(&self) -> &MapData {
        &self.map
    }

    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Takes what is noted of a flow out. No program may use the page meanwhile.
    pub fn take(&mut self, window: u32, slot: usize) -> Senders {
        let place = self.place(window, slot);
        // SAFETY: no program uses the page, and any bytes are numbers.
        unsafe { place.replace(Senders::default()) }
    }

    fn place(&self, window: u32, slot: usize) -> NonNull<Senders> {
        assert!(window < self.windows, "{window} of {}", self.windows);
        assert!(slot < SLOTS as usize, "{slot}");
        // SAFETY: the window lies in the array, as was just checked.
        let window = unsafe { self.start.add(window as usize) };
        // SAFETY: a window has so many slots.
        unsafe { window.cast::<Senders>().add(slot) }
    }
}

impl Drop for SendersOfPage {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nobody has a reference into it any more.
        let refused = unsafe { libc::munmap(self.start.as_ptr().cast(), len_bytes(self.windows)) };
        debug_assert_eq!(refused, 0, "what was mapped can be unmapped");
    }
}

/// Who sent the flows behind the slots.
pub struct SendersBehind(MapData);

impl SendersBehind {
    pub fn create(flows: u32) -> Result<Self> {
        let shape = Shape {
            map_type: BPF_MAP_TYPE_HASH as u32,
            key_len_bytes: size_of::<FlowKey>() as u32,
            value_len_bytes: size_of::<Senders>() as u32,
            max_entries: flows,
            flags: BPF_F_NO_PREALLOC,
        };
        let map = inner_map::create("senders_behind", shape)
            .context("create the map of senders behind a page of the flow table")?;
        Ok(Self(map))
    }

    pub fn map(&self) -> &MapData {
        &self.0
    }

    /// Takes all of them out. No program may use the page meanwhile.
    pub fn take(&self) -> io::Result<HashMap<FlowKey, Senders>> {
        const AT_ONCE: usize = 512;
        let mut taken = HashMap::new();
        let mut cursor = None;
        let (mut keys, mut values) = (
            vec![FlowKey::default(); AT_ONCE],
            vec![Senders::default(); AT_ONCE],
        );
        loop {
            match bpf::take_batch(self.0.fd().as_fd(), &mut cursor, &mut keys, &mut values) {
                Ok((count, last)) => {
                    let pairs = keys.iter().copied().zip(values.iter().copied());
                    taken.extend(pairs.take(count));
                    if last {
                        return Ok(taken);
                    }
                }
                // A bucket has more entries than the buffers hold.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    keys.resize(2 * keys.len(), FlowKey::default());
                    values.resize(keys.len(), Senders::default());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn len_bytes(windows: u32) -> usize {
    windows as usize * size_of::<SendersOfWindow>()
}
