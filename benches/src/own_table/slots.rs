//! The slots of our own table, in memory that we share with the kernel, and their drain, which hands on entries like
//! that of the kernel's hash map.

use std::{
    io,
    os::fd::AsFd as _,
    ptr::{self, NonNull},
};

use agent_common::{FlowCounters, FlowKey, Pair};
use aya::maps::MapData;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::profile::Profile;

/// The agent's own drain hands on as many at once.
const BATCH_ENTRIES: usize = 4096;

/// A slot as the program has it. The last word of the key is the slot's state: 0 if it is empty.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Slot {
    key: FlowKey,
    counters: FlowCounters,
}

const _: () = assert!(size_of::<Slot>() == 128);

/// Nobody else may write the slots meanwhile: no program is attached, or no packet is under way.
pub struct Slots {
    start: NonNull<Slot>,
    count: usize,
    keys: Vec<FlowKey>,
    values: Vec<FlowCounters>,
}

impl Slots {
    pub(super) fn map(map: &MapData, count: u32) -> io::Result<Self> {
        let count = count as usize;
        let len_bytes = count * size_of::<Slot>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (anywhere, map) = (ptr::null_mut(), map.fd().as_fd());
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(anywhere, len_bytes, access, MapFlags::SHARED, map, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            start,
            count,
            keys: Vec::with_capacity(BATCH_ENTRIES),
            values: Vec::with_capacity(BATCH_ENTRIES),
        })
    }

    /// Puts every flow of the profile into some slot, far from the one before.
    pub fn fill(&mut self, profile: Profile) {
        const STRIDE: usize = 618_033_989;
        for number in 0..profile.flows {
            let (key, counters) = Profile::entry(number);
            let mut index = (number as usize * STRIDE) % self.count;
            while self.is_taken(index) {
                index = (index + 1) % self.count;
            }
            // SAFETY: `index` is below `count`, the number of slots in the mapping.
            let slot = unsafe { self.start.add(index) };
            // SAFETY: the type's own promise; a slot is as aligned as the page it lies in.
            unsafe { slot.write(Slot { key, counters }) };
        }
    }

    /// Moves every flow to `sink`, many at a time, and empties its slot; returns how many entries
    /// there were. A key may come twice.
    pub fn drain(&mut self, mut sink: impl FnMut(&[FlowKey], &[FlowCounters])) -> u64 {
        let mut drained = 0;
        for index in 0..self.count {
            if !self.is_taken(index) {
                continue;
            }
            // SAFETY: `index` is below `count`, the number of slots in the mapping.
            let slot = unsafe { self.start.add(index) };
            // SAFETY: the type's own promise; every bit pattern is a slot.
            let mut taken = unsafe { slot.read() };
            // SAFETY: as above; all zeros is an empty slot.
            unsafe { slot.write_bytes(0, 1) };
            taken.key.tunnel_id = 0;
            self.keys.push(taken.key);
            self.values.push(taken.counters);
            if self.keys.len() == BATCH_ENTRIES {
                drained += self.hand_on(&mut sink);
            }
        }
        drained + self.hand_on(&mut sink)
    }

    /// Empties the table; the answer is the number of entries and the sum over them.
    pub fn drain_sum(&mut self) -> (u64, Pair) {
        let mut sum = Pair::default();
        let entries = self.drain(|_, counters| {
            for counters in counters {
                sum += Pair {
                    packets: counters.packets.iter().sum(),
                    bytes: counters.bytes.iter().sum(),
                };
            }
        });
        (entries, sum)
    }

    fn hand_on(&mut self, sink: &mut impl FnMut(&[FlowKey], &[FlowCounters])) -> u64 {
        let count = self.keys.len() as u64;
        if count > 0 {
            sink(&self.keys, &self.values);
        }
        self.keys.clear();
        self.values.clear();
        count
    }

    #[inline]
    fn is_taken(&self, index: usize) -> bool {
        // SAFETY: callers stay below `count`, the number of slots in the mapping.
        let slot = unsafe { self.start.add(index) }.as_ptr();
        // SAFETY: the field lies in the mapping.
        let ip_version = unsafe { &raw const (*slot).key.ip_version };
        // SAFETY: as above.
        unsafe { ip_version.read_volatile() != 0 }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrowed from it outlives it.
        let unmapped =
            unsafe { munmap(self.start.as_ptr().cast(), self.count * size_of::<Slot>()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
