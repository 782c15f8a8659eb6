//! Who sent the flows of a page: an array beside its windows, in this process's memory, and a hash map beside the map behind
//! them.

use std::{collections::HashMap, io, os::fd::AsFd as _, ptr::NonNull};

use agent_common::{
    FlowKey, Sample, Senders, TcpInfo,
    senders::{Kinds, PlaneOfWindow},
    slots::SLOTS,
};
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
    /// For each window, an element for each kind that is kept, one kind behind the other.
    start: NonNull<PlaneOfWindow>,
    windows: u32,
    kinds: Kinds,
}

// SAFETY: the memory belongs to the value alone in this process.
unsafe impl Send for SendersOfPage {}

impl SendersOfPage {
    /// For a page of so many windows. Nothing is noted at first.
    pub fn create(windows: u32, kinds: Kinds) -> Result<Self> {
        let elements = windows * kinds.planes();
        let map = inner_map::create(
            "senders",
            Shape {
                map_type: BPF_MAP_TYPE_ARRAY as u32,
                key_len_bytes: size_of::<u32>() as u32,
                value_len_bytes: size_of::<PlaneOfWindow>() as u32,
                max_entries: elements,
                flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
            },
        )
        .context("create a page of the flows' senders")?;
        let start = Self::mapped(&map, elements).context("map a page of the flows' senders")?;
        Ok(Self {
            memory_bytes: map_memory_bytes(&map),
            map,
            start,
            windows,
            kinds,
        })
    }

    fn mapped(map: &MapData, elements: u32) -> io::Result<NonNull<PlaneOfWindow>> {
        Ok(mapped(map.fd().as_fd(), len_bytes(elements))?.cast())
    }

    pub fn map(&self) -> &MapData {
        &self.map
    }

    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Takes what is noted of a flow out. No program may use the page meanwhile.
    pub fn take(&mut self, window: u32, slot: usize) -> Senders {
        let mut taken = Senders::default();
        if self.kinds.has(Kinds::CGROUPS) {
            taken.cgroup_ids = self.take_of(Kinds::CGROUP_PLANE, window, slot);
        }
        if self.kinds.has(Kinds::PROCESSES) {
            taken.process_keys = self.take_of(self.kinds.process_plane(), window, slot);
        }
        if self.kinds.has(Kinds::TCP) {
            let first = self.kinds.tcp_plane();
            let words: [_; TcpInfo::WORDS] =
                std::array::from_fn(|word| self.take_of(first + word as u32, window, slot));
            taken.tcp = [0, 1].map(|side| TcpInfo::of_words(words.map(|both| both[side])));
        }
        if self.kinds.has(Kinds::ROUND_TRIPS) {
            let plane = self.kinds.round_trip_plane();
            taken.round_trips = self.take_of(plane, window, slot).map(Sample);
        }
        taken
    }

    /// Notes this of a flow. No program may use the page meanwhile.
    pub fn put(&mut self, window: u32, slot: usize, senders: &Senders) {
        if self.kinds.has(Kinds::CGROUPS) {
            self.put_of(Kinds::CGROUP_PLANE, window, slot, senders.cgroup_ids);
        }
        if self.kinds.has(Kinds::PROCESSES) {
            let plane = self.kinds.process_plane();
            self.put_of(plane, window, slot, senders.process_keys);
        }
        if self.kinds.has(Kinds::TCP) {
            let words = senders.tcp.map(TcpInfo::words);
            for (word, plane) in (self.kinds.tcp_plane()..).enumerate().take(TcpInfo::WORDS) {
                self.put_of(plane, window, slot, words.map(|words| words[word]));
            }
        }
        if self.kinds.has(Kinds::ROUND_TRIPS) {
            let plane = self.kinds.round_trip_plane();
            let both = senders.round_trips.map(|Sample(bits)| bits);
            self.put_of(plane, window, slot, both);
        }
    }

    fn take_of(&mut self, plane: u32, window: u32, slot: usize) -> [u64; 2] {
        // SAFETY: no program uses the page, and any bytes are numbers.
        unsafe { self.place(plane, window, slot).replace([0; 2]) }
    }

    fn put_of(&mut self, plane: u32, window: u32, slot: usize, both: [u64; 2]) {
        // SAFETY: as above.
        unsafe { self.place(plane, window, slot).write(both) };
    }

    /// Where a kind of a flow lies.
    fn place(&self, plane: u32, window: u32, slot: usize) -> NonNull<[u64; 2]> {
        assert!(window < self.windows, "{window} of {}", self.windows);
        assert!(plane < self.kinds.planes(), "{plane} of {:?}", self.kinds);
        assert!(slot < SLOTS as usize, "{slot}");
        let element = (plane * self.windows + window) as usize;
        // SAFETY: the element lies in the array, as was just checked.
        let element = unsafe { self.start.add(element) };
        // SAFETY: a window has so many slots.
        unsafe { element.cast::<[u64; 2]>().add(slot) }
    }
}

impl Drop for SendersOfPage {
    fn drop(&mut self) {
        let elements = self.windows * self.kinds.planes();
        // SAFETY: this is what was mapped, and nobody has a reference into it any more.
        let refused = unsafe { libc::munmap(self.start.as_ptr().cast(), len_bytes(elements)) };
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
        let mut taken = HashMap::new();
        bpf::take_all(self.0.fd().as_fd(), |&key, &senders| {
            taken.insert(key, senders);
        })?;
        Ok(taken)
    }
}

fn len_bytes(elements: u32) -> usize {
    elements as usize * size_of::<PlaneOfWindow>()
}
