//! The endpoints of the tunnels that flows arrived in.

use agent_common::{FlowKey, Outer};
use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};

/// The map of endpoints by flow. The programs add an entry when a flow begins; the kernel evicts the least recently
/// used one.
pub struct Outers {
    pub map: HashMap<MapData, FlowKey, Outer>,
    are_kept: bool,
    kernel_memory_bytes: u64,
}

impl Outers {
    /// `are_kept` says whether the programs look into tunnels.
    pub fn new(map: MapData, are_kept: bool) -> Result<Self> {
        let kernel_memory_bytes = super::memory::map_memory_bytes(&map);
        Ok(Self {
            map: Map::LruHashMap(map)
                .try_into()
                .context("the map of tunnels' endpoints")?,
            are_kept,
            kernel_memory_bytes,
        })
    }

    pub fn are_kept(&self) -> bool {
        self.are_kept
    }

    /// `None` if the endpoints were evicted.
    pub fn get(&self, flow: &FlowKey) -> Option<Outer> {
        self.map.get(flow, 0).ok()
    }

    /// Memory that the kernel charges for the map. It never changes.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.kernel_memory_bytes
    }
}
