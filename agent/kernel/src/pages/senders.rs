//! Who sent the flows of a page: an array beside its windows, mapped into this process, and a hash map beside its
//! overflow map.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    ptr::NonNull,
};

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

use crate::{
    bpf::{self, Shape},
    foreign_map, inner_map,
    mapped_array::mapped,
    memory::map_memory_bytes,
};

pub struct SendersOfPage {
    map: MapData,
    memory_bytes: u64,
    /// The mapped array: one plane for each kind that is kept, one after the other, with an element for each window.
    start: NonNull<PlaneOfWindow>,
    windows: u32,
    kinds: Kinds,
}

// SAFETY: the memory belongs to the value alone in this process.
unsafe impl Send for SendersOfPage {}

impl SendersOfPage {
    /// Creates the array for a page of `windows` windows, all zero.
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
        Self::over(map, windows, kinds)
    }

    /// The array that another process made.
    pub fn open(map: OwnedFd, windows: u32, kinds: Kinds) -> Result<Self> {
        let map = foreign_map::array::<PlaneOfWindow>(map, windows * kinds.planes())?;
        Self::over(map, windows, kinds)
    }

    fn over(map: MapData, windows: u32, kinds: Kinds) -> Result<Self> {
        let elements = windows * kinds.planes();
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

    /// The senders of a flow. No program may use the page meanwhile.
    pub fn of(&self, window: u32, slot: usize) -> Senders {
        let mut found = Senders::default();
        let kinds = self.kinds;
        let of_flow = self.of_flow(window, slot);
        if kinds.has(Kinds::CGROUPS) {
            found.cgroup_ids = of_flow.read(Kinds::CGROUP_PLANE);
        }
        if kinds.has(Kinds::PROCESSES) {
            found.process_keys = of_flow.read(kinds.process_plane());
        }
        if kinds.has(Kinds::TCP) {
            let first = kinds.tcp_plane();
            let words: [_; TcpInfo::WORDS] =
                std::array::from_fn(|word| of_flow.read(first + word as u32));
            found.tcp = [0, 1].map(|side| TcpInfo::of_words(words.map(|both| both[side])));
        }
        if kinds.has(Kinds::ROUND_TRIPS) {
            found.round_trips = of_flow.read(kinds.round_trip_plane()).map(Sample);
        }
        found
    }

    /// Removes the senders of a flow. No program may use the page meanwhile.
    pub fn clear(&mut self, window: u32, slot: usize) {
        let of_flow = self.of_flow(window, slot);
        for plane in 0..self.kinds.planes() {
            // Zeros are not written again, so the cache line stays clean.
            if of_flow.read(plane) != [0; 2] {
                of_flow.put(plane, [0; 2]);
            }
        }
    }

    /// Stores the senders of a flow. No program may use the page meanwhile.
    pub fn put(&mut self, window: u32, slot: usize, senders: &Senders) {
        let kinds = self.kinds;
        let of_flow = self.of_flow(window, slot);
        if kinds.has(Kinds::CGROUPS) {
            of_flow.put(Kinds::CGROUP_PLANE, senders.cgroup_ids);
        }
        if kinds.has(Kinds::PROCESSES) {
            of_flow.put(kinds.process_plane(), senders.process_keys);
        }
        if kinds.has(Kinds::TCP) {
            let words = senders.tcp.map(TcpInfo::words);
            for (word, plane) in (kinds.tcp_plane()..).enumerate().take(TcpInfo::WORDS) {
                of_flow.put(plane, words.map(|words| words[word]));
            }
        }
        if kinds.has(Kinds::ROUND_TRIPS) {
            let both = senders.round_trips.map(|Sample(bits)| bits);
            of_flow.put(kinds.round_trip_plane(), both);
        }
    }

    /// The place of a flow's senders.
    fn of_flow(&self, window: u32, slot: usize) -> OfFlow<'_> {
        assert!(window < self.windows, "{window} of {}", self.windows);
        assert!(slot < SLOTS as usize, "{slot}");
        // SAFETY: the window is in the first plane, as was just checked. There is at least one plane: the kernel makes
        // no array without elements.
        let window = unsafe { self.start.add(window as usize) };
        OfFlow {
            // SAFETY: a window has `SLOTS` slots, and the slot was just checked.
            first: unsafe { window.cast::<[u64; 2]>().add(slot) },
            page: self,
        }
    }
}

/// The senders of one flow, while no program uses the page.
struct OfFlow<'a> {
    page: &'a SendersOfPage,
    /// The flow's place in the first plane.
    first: NonNull<[u64; 2]>,
}

impl OfFlow<'_> {
    #[inline]
    fn read(&self, plane: u32) -> [u64; 2] {
        // SAFETY: no program uses the page, and any bytes are numbers.
        unsafe { self.at(plane).read() }
    }

    fn put(&self, plane: u32, both: [u64; 2]) {
        // SAFETY: no program uses the page.
        unsafe { self.at(plane).write(both) };
    }

    #[inline]
    fn at(&self, plane: u32) -> NonNull<[u64; 2]> {
        let &SendersOfPage { windows, kinds, .. } = self.page;
        assert!(plane < kinds.planes(), "{plane} of {kinds:?}");
        let elements = plane as usize * windows as usize;
        // SAFETY: the array has `kinds.planes()` planes one after the other, each of `windows` elements, and the flow's
        // place in another plane is at the same offset from the plane's start.
        unsafe { self.first.byte_add(elements * size_of::<PlaneOfWindow>()) }
    }
}

impl Drop for SendersOfPage {
    fn drop(&mut self) {
        let elements = self.windows * self.kinds.planes();
        // SAFETY: this unmaps exactly the memory mapped at creation, and nobody has a reference into it any more.
        let refused = unsafe { libc::munmap(self.start.as_ptr().cast(), len_bytes(elements)) };
        debug_assert_eq!(refused, 0, "what was mapped can be unmapped");
    }
}

/// The senders of the flows in the overflow map.
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

    /// The map that another process made.
    pub fn open(map: OwnedFd) -> Result<Self> {
        foreign_map::hash::<FlowKey, Senders>(map).map(Self)
    }

    pub fn map(&self) -> &MapData {
        &self.0
    }

    /// All senders. No program may use the page meanwhile.
    pub fn all(&self) -> io::Result<HashMap<FlowKey, Senders>> {
        let mut all = HashMap::new();
        bpf::read_all(
            self.0.fd().as_fd(),
            |keys: &[FlowKey], senders: &[Senders]| {
                all.extend(keys.iter().copied().zip(senders.iter().copied()));
            },
        )?;
        Ok(all)
    }

    /// Removes all senders. No program may use the page meanwhile.
    pub fn clear(&self) -> io::Result<()> {
        bpf::take_all::<FlowKey, Senders>(self.0.fd().as_fd(), |_, _| {})
    }
}

fn len_bytes(elements: u32) -> usize {
    elements as usize * size_of::<PlaneOfWindow>()
}
