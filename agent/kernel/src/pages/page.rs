//! One page of the flow table: its windows, in this process's memory, and the hash map behind them.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    slice,
};

use agent_common::{
    FlowCounters, FlowKey, Senders,
    senders::Kinds,
    slots::{self, EMPTY, Hash, SLOTS, Slot, TRIES, Window},
};
use anyhow::{Context as _, Result};
use aya::{Pod, maps::MapData};
use aya_obj::generated::{
    BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC,
    bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH},
};

use super::{
    Size,
    senders::{SendersBehind, SendersOfPage},
    windows::MappedWindows,
};
use crate::{
    bpf::{self, Shape},
    foreign_map, inner_map,
    memory::map_memory_bytes,
};

/// Most entries passed to a sink at once.
const BATCH_ENTRIES: usize = 512;

pub struct Page {
    windows: Windows,
    behind: Behind,
    /// Memory of the overflow map while it is empty.
    empty_behind_memory_bytes: u64,
}

/// The windows of a page, all of them empty at first.
pub struct Windows {
    map: MapData,
    memory_bytes: u64,
    mapped: MappedWindows,
    /// Set if senders are kept.
    senders: Option<SendersOfPage>,
}

/// Entries on their way out of a page.
pub struct Taken {
    keys: Vec<FlowKey>,
    values: Vec<FlowCounters>,
    /// The senders of each flow; empty if they are not kept.
    senders: Vec<Senders>,
}

impl Windows {
    /// Creates the windows. The kernel allocates and zeroes all of their memory at once.
    pub fn create(size: Size, kinds: Kinds) -> Result<Self> {
        let map = inner_map::create(
            "flows",
            Shape {
                map_type: BPF_MAP_TYPE_ARRAY as u32,
                key_len_bytes: size_of::<u32>() as u32,
                value_len_bytes: size_of::<Window>() as u32,
                max_entries: slots::elements(size.windows),
                flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
            },
        )
        .with_context(|| {
            format!(
                "create a page of the flow table for {} flows",
                size.room_flows()
            )
        })?;
        let keeps_senders = kinds != Kinds::NONE;
        let senders = keeps_senders.then(|| SendersOfPage::create(size.windows, kinds));
        Self::of(map, size, senders.transpose()?)
    }

    /// The windows that another process made, with its array of senders.
    pub fn open(map: OwnedFd, size: Size, senders: Option<OwnedFd>, kinds: Kinds) -> Result<Self> {
        let map = foreign_map::array::<Window>(map, slots::elements(size.windows))?;
        let senders = senders.map(|senders| SendersOfPage::open(senders, size.windows, kinds));
        Self::of(map, size, senders.transpose()?)
    }

    fn of(map: MapData, size: Size, senders: Option<SendersOfPage>) -> Result<Self> {
        let mapped = MappedWindows::new(map.fd().as_fd(), size.windows);
        let of_senders = senders.as_ref().map_or(0, SendersOfPage::memory_bytes);
        Ok(Self {
            mapped: mapped.context("map a page of the flow table")?,
            memory_bytes: map_memory_bytes(&map) + of_senders,
            map,
            senders,
        })
    }

    /// The array of senders beside them.
    pub fn senders(&self) -> Option<&MapData> {
        self.senders.as_ref().map(SendersOfPage::map)
    }

    pub fn map(&self) -> &MapData {
        &self.map
    }

    pub fn size(&self) -> Size {
        Size {
            windows: self.mapped.windows(),
        }
    }
}

impl Page {
    /// Makes an empty page.
    pub fn create(size: Size, behind_flows: u32, kinds: Kinds) -> Result<Self> {
        let windows = Windows::create(size, kinds)?;
        let behind = Behind::create(behind_flows, kinds)?;
        Ok(Self {
            windows,
            empty_behind_memory_bytes: behind.memory_bytes(),
            behind,
        })
    }

    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Memory that the kernel charges. Only overflow maps change in size, with their entries, so the kernel is asked
    /// only if there may be some.
    pub fn memory_bytes(&self, may_have_behind: bool) -> u64 {
        let behind = if may_have_behind {
            self.behind.memory_bytes()
        } else {
            self.empty_behind_memory_bytes
        };
        self.windows.memory_bytes + behind
    }

    pub fn size(&self) -> Size {
        self.windows.size()
    }

    /// Replaces the windows. The page must be empty.
    pub fn change(&mut self, windows: Windows) {
        self.windows = windows;
    }

    pub fn behind(&self) -> &Behind {
        &self.behind
    }

    /// Puts a flow into the slot that a program would choose. Returns whether there was one.
    pub fn put(
        &mut self,
        factors: [u64; Hash::FACTORS],
        key: &FlowKey,
        counters: &FlowCounters,
        senders: &Senders,
    ) -> bool {
        let mut hash = Hash::of(key, |index| factors[index]);
        for _ in 0..TRIES {
            let walk = hash.walk(self.windows.mapped.windows());
            if let Some(slot) = self.windows.mapped.put(walk, key, counters) {
                if let Some(of_page) = &mut self.windows.senders {
                    of_page.put(walk.window, slot, senders);
                }
                return true;
            }
            hash = hash.again();
        }
        false
    }

    /// Puts a flow into the overflow map. Returns whether there was room.
    pub fn put_behind(
        &mut self,
        key: &FlowKey,
        counters: &FlowCounters,
        senders: &Senders,
    ) -> io::Result<bool> {
        match bpf::update_by_bytes(self.behind.map.fd().as_fd(), bytes(key), bytes(counters)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => return Ok(false),
            Err(error) => return Err(error),
        }
        if let Some(behind) = &self.behind.senders {
            bpf::update_by_bytes(behind.map().fd().as_fd(), bytes(key), bytes(senders))?;
        }
        Ok(true)
    }

    /// Removes every entry of the windows, and of the overflow map if it has any.
    pub fn clear(&mut self, has_behind: bool) -> io::Result<()> {
        let Windows {
            mapped, senders, ..
        } = &mut self.windows;
        mapped.clear(senders.as_mut());
        if has_behind {
            self.behind.clear()?;
        }
        Ok(())
    }
}

impl Windows {
    /// Passes every entry to `sink`, and leaves it there. Returns how many there are.
    pub fn read(
        &self,
        taken: &mut Taken,
        sink: &mut impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> u64 {
        let mut count = 0;
        self.mapped.read(self.senders.as_ref(), |window, senders| {
            taken.add(window, senders);
            if taken.keys.len() + window.len() > BATCH_ENTRIES {
                count += taken.hand_on(sink);
            }
        });
        count + taken.hand_on(sink)
    }
}

/// The overflow map of a page, for flows that find no slot.
pub struct Behind {
    map: MapData,
    /// Set if senders are kept.
    senders: Option<SendersBehind>,
}

impl Behind {
    fn create(flows: u32, kinds: Kinds) -> Result<Self> {
        let map = inner_map::create(
            "flows_behind",
            Shape {
                map_type: BPF_MAP_TYPE_HASH as u32,
                key_len_bytes: size_of::<FlowKey>() as u32,
                value_len_bytes: size_of::<FlowCounters>() as u32,
                max_entries: flows,
                flags: BPF_F_NO_PREALLOC,
            },
        )
        .context("create the map behind a page of the flow table")?;
        let keeps_senders = kinds != Kinds::NONE;
        let senders = keeps_senders.then(|| SendersBehind::create(flows));
        Ok(Self {
            map,
            senders: senders.transpose()?,
        })
    }

    /// The maps that another process made.
    pub fn open(map: OwnedFd, senders: Option<OwnedFd>) -> Result<Self> {
        Ok(Self {
            map: foreign_map::hash::<FlowKey, FlowCounters>(map)?,
            senders: senders.map(SendersBehind::open).transpose()?,
        })
    }

    pub fn map(&self) -> &MapData {
        &self.map
    }

    pub fn senders(&self) -> Option<&MapData> {
        self.senders.as_ref().map(SendersBehind::map)
    }

    fn memory_bytes(&self) -> u64 {
        map_memory_bytes(&self.map) + self.senders().map_or(0, map_memory_bytes)
    }

    /// Passes every entry to `sink`, and leaves it there. Returns how many there are.
    pub fn read(
        &self,
        sink: &mut impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> io::Result<u64> {
        let known = self.senders.as_ref().map(|senders| {
            // The flows count even if their senders cannot be read.
            senders.all().unwrap_or_else(|error| {
                tracing::warn!(%error, "who sent the flows behind the slots cannot be read");
                HashMap::new()
            })
        });
        let mut count = 0;
        let mut senders = Vec::new();
        bpf::read_all(self.map.fd().as_fd(), |keys, values| {
            senders.clear();
            if let Some(known) = &known {
                let of = |key| known.get(key).copied().unwrap_or_default();
                senders.extend(keys.iter().map(of));
            }
            sink(keys, values, &senders);
            count += keys.len() as u64;
        })?;
        Ok(count)
    }

    fn clear(&self) -> io::Result<()> {
        bpf::take_all::<FlowKey, FlowCounters>(self.map.fd().as_fd(), |_, _| {})?;
        self.senders.as_ref().map_or(Ok(()), SendersBehind::clear)
    }
}

fn bytes<T: Pod>(value: &T) -> &[u8] {
    // SAFETY: a `Pod` value is `size_of::<T>()` plain bytes.
    unsafe { slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

impl Default for Taken {
    fn default() -> Self {
        Self {
            keys: Vec::with_capacity(BATCH_ENTRIES),
            values: Vec::with_capacity(BATCH_ENTRIES),
            senders: Vec::new(),
        }
    }
}

impl Taken {
    /// Adds the flows of a window in the order of their tags, so that the order does not depend on the order of
    /// insertion. Merges slots of the same flow: two CPUs may have inserted it at the same moment. `senders` has the
    /// senders of each slot, or is empty.
    fn add(&mut self, window: &[Slot], senders: &[Senders]) {
        let mut flows = [(EMPTY, 0); SLOTS as usize];
        let flows = &mut flows[..window.len()];
        for (index, slot) in window.iter().enumerate() {
            flows[index] = (slot.counters.state, index);
        }
        flows.sort_unstable();
        // `start` is the first entry with the current tag; a duplicate can only be there or later.
        let (mut tag, mut start) = (EMPTY, 0);
        for &mut (state, index) in flows {
            let Slot { key, counters } = &window[index];
            if state != tag {
                (tag, start) = (state, self.keys.len());
            }
            if let Some(first) = self.keys[start..].iter().position(|other| other == key) {
                self.values[start + first].unite(counters);
                if let Some(senders) = senders.get(index) {
                    self.senders[start + first].unite(senders);
                }
                continue;
            }
            self.keys.push(*key);
            self.values.push(FlowCounters {
                state: EMPTY,
                ..*counters
            });
            self.senders.extend(senders.get(index));
        }
    }

    fn hand_on(&mut self, sink: &mut impl FnMut(&[FlowKey], &[FlowCounters], &[Senders])) -> u64 {
        let count = self.keys.len();
        if count > 0 {
            sink(&self.keys, &self.values, &self.senders);
        }
        self.keys.clear();
        self.values.clear();
        self.senders.clear();
        count as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(tag: u32, ifindex: u32, packets: u64) -> Slot {
        let mut slot = Slot::default();
        slot.key.ifindex = ifindex;
        (slot.counters.state, slot.counters.packets[0]) = (tag, packets);
        slot
    }

    /// The ifindex and packets of each flow, in the order of the window.
    fn taken(window: &[Slot]) -> Vec<(u32, u64)> {
        let mut taken = Taken::default();
        taken.add(window, &[]);
        assert!(taken.values.iter().all(|value| value.state == EMPTY));
        let flows = taken.keys.iter().zip(&taken.values);
        flows
            .map(|(key, value)| (key.ifindex, value.packets[0]))
            .collect()
    }

    #[test]
    fn a_window_gives_its_flows_in_one_order_whichever_came_first() {
        let mut window = [slot(9, 1, 1), slot(3, 2, 2), slot(5, 3, 3)];
        assert_eq!(taken(&window), [(2, 2), (3, 3), (1, 1)]);
        window.reverse();
        assert_eq!(taken(&window), [(2, 2), (3, 3), (1, 1)]);
    }

    #[test]
    fn a_flow_in_two_slots_is_one_and_another_with_its_tag_is_not() {
        let window = [
            slot(5, 1, 1),
            slot(5, 2, 10),
            slot(3, 1, 100),
            slot(5, 1, 2),
            slot(5, 2, 20),
        ];
        assert_eq!(taken(&window), [(1, 100), (1, 3), (2, 30)]);
    }

    #[test]
    fn who_sent_a_flow_goes_with_it_and_is_united_with_it() {
        let window = [slot(5, 1, 1), slot(3, 2, 2), slot(5, 1, 3)];
        let senders = [[7, 0], [0, 8], [6, 9]].map(|cgroup_ids| Senders {
            cgroup_ids,
            ..Senders::default()
        });
        let mut taken = Taken::default();
        taken.add(&window, &senders);
        let of: Vec<_> = taken.senders.iter().map(|one| one.cgroup_ids).collect();
        let flows: Vec<_> = taken.keys.iter().map(|key| key.ifindex).collect();
        assert_eq!(
            (flows, of),
            (vec![2, 1], vec![[0, 8], [7 | Senders::SHARED, 9]])
        );
        taken.hand_on(&mut |_, _, senders| assert_eq!(senders.len(), 2));
        assert!(taken.senders.is_empty());
    }
}
