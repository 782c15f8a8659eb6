//! The prototype of a flow table of our own, beside the kernel's hash map, and the programs that count into
//! either. See `docs/table-of-our-own.md`.

mod slots;

use std::{
    hash::{BuildHasher as _, RandomState},
    os::fd::AsFd as _,
};

use agent_common::Pair;
use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData, PerCpuArray},
};
use lab::Host;

use crate::live::{
    fdinfo,
    program::{self, Hook},
};

pub use self::slots::Slots;

static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/flow-agent-ebpf-table"));

/// Neighbouring slots in which a flow may be, from the start that its hash chooses.
const WINDOW_SLOTS: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The hash map's size.
    pub hash_map_flows: u32,
    /// The size of our own table: in how many places a window may start.
    pub window_starts: u32,
    /// How many windows a flow may be in, 1 to 3.
    pub windows: u32,
}

/// Both tables and the programs that count into them.
pub struct TablePrograms {
    ebpf: Ebpf,
    slots: u32,
}

impl TablePrograms {
    pub fn load(size: Size) -> Result<Self> {
        let slots = size.window_starts + WINDOW_SLOTS - 1;
        let seed = random_seed();
        let ebpf = EbpfLoader::new()
            .map_max_entries("BARE", size.hash_map_flows)
            .map_max_entries("SLOTS", slots)
            .override_global("WINDOW_STARTS", &size.window_starts, true)
            .override_global("WINDOWS", &size.windows, true)
            .override_global("SEED", &seed[..], true)
            .load(OBJECT)
            .context("load the programs of both tables")?;
        Ok(Self { ebpf, slots })
    }

    /// Hangs `empty`, `parsed`, `hash_map` or `own` on the interface's TC ingress; returns its id.
    pub fn attach(&mut self, which: &str, host: &Host) -> Result<u32> {
        program::attach(&mut self.ebpf, which, host, Hook::Tc)
    }

    /// Our own table, in this process's memory.
    pub fn slots(&self) -> Result<Slots> {
        Slots::map(self.map("SLOTS")?, self.slots).context("map our own table")
    }

    /// What found no slot so far.
    pub fn unplaced(&self) -> Result<Pair> {
        let map = self
            .ebpf
            .map("UNPLACED")
            .context("the object has a map UNPLACED")?;
        let map: PerCpuArray<_, [u64; 2]> = map.try_into()?;
        let mut sum = Pair::default();
        for &[packets, bytes] in map.get(&0, 0)?.iter() {
            sum += Pair { packets, bytes };
        }
        Ok(sum)
    }

    /// Kernel memory of the hash map and of our own table, as the kernel charges it.
    pub fn memory_bytes(&self) -> Result<[u64; 2]> {
        Ok([
            fdinfo::memory_bytes(self.map("BARE")?.fd().as_fd())?,
            fdinfo::memory_bytes(self.map("SLOTS")?.fd().as_fd())?,
        ])
    }

    fn map(&self, name: &str) -> Result<&MapData> {
        match self.ebpf.map(name) {
            Some(Map::Array(map) | Map::HashMap(map)) => Ok(map),
            _ => bail!("the object has no array or hash map {name}"),
        }
    }
}

/// Derived from the keys that the standard library takes from the kernel for its own hash maps.
fn random_seed() -> [u64; 15] {
    let random = RandomState::new();
    std::array::from_fn(|index| random.hash_one(index))
}
