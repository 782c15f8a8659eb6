//! The programs' filter rules: a compiled set comes in, and is in force when the call returns.
//!
//! There are two slots. The next set goes into maps of its own in the slot that no program looks at;
//! then one store changes the slot for all programs, each of which reads it once a packet. The maps
//! of the set before leave only when no program can hold them.

use std::os::fd::{AsFd as _, AsRawFd as _};

use agent_common::filter::{NetKey, NetRows, Row};
use anyhow::{Context as _, Result};
use aya::maps::MapData;
use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_LPM_TRIE};

use super::{
    bpf,
    inner_map::{self, Shape},
    load::map_memory_bytes,
    pages::Pages,
};
use crate::filter::Compiled;

// linux/bpf.h.
const BPF_F_NO_PREALLOC: u32 = 1 << 0;
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// The outer maps and the set in force.
pub struct Filters {
    rows: MapData,
    nets_v4: MapData,
    nets_v6: MapData,
    active: Option<Active>,
}

struct Active {
    slot: u32,
    maps: [MapData; 3],
}

impl Filters {
    /// Without rules.
    pub fn new(rows: MapData, nets_v4: MapData, nets_v6: MapData) -> Self {
        Self {
            rows,
            nets_v4,
            nets_v6,
            active: None,
        }
    }

    /// Puts `set` into force; every packet is held against the old set or the new one, never
    /// against none or a part. Where it fails the old one stays.
    pub fn replace(&mut self, pages: &mut Pages, set: &Compiled) -> Result<()> {
        let next = if set.is_empty() {
            None
        } else {
            let slot = self.active.as_ref().map_or(0, |active| 1 - active.slot);
            Some(self.place(slot, set).context("store the filter rules")?)
        };
        pages.set_rule_set(next.as_ref().map_or(0, |next| next.slot + 1))?;
        if let Some(old) = std::mem::replace(&mut self.active, next) {
            self.clear(old.slot);
        }
        Ok(())
    }

    /// Fills a slot that no program looks at.
    fn place(&self, slot: u32, set: &Compiled) -> Result<Active> {
        let rows = create(
            "rule_rows",
            BPF_MAP_TYPE_ARRAY as u32,
            (4, size_of::<Row>()),
            set.rows.len(),
            BPF_F_INNER_MAP,
        )?;
        let mut value = Vec::with_capacity(size_of::<NetRows>());
        for (number, row) in set.rows.iter().enumerate() {
            value.clear();
            append(&mut value, row);
            bpf::update(rows.fd().as_fd(), number as u32, &value).context("store a row")?;
        }
        let maps = [
            rows,
            trie("rule_nets_v4", &set.nets_v4)?,
            trie("rule_nets_v6", &set.nets_v6)?,
        ];
        for (outer, inner) in self.outer().into_iter().zip(&maps) {
            let inner = inner.fd().as_fd().as_raw_fd();
            bpf::update(outer.fd().as_fd(), slot, &inner.to_ne_bytes())
                .context("place the maps of the rules")?;
        }
        Ok(Active { slot, maps })
    }

    /// Gives the memory of a set back that no program follows any more.
    fn clear(&self, slot: u32) {
        for outer in self.outer() {
            if let Err(error) = bpf::delete(outer.fd().as_fd(), slot) {
                tracing::debug!("the filter rules before keep their memory: {error}");
            }
        }
    }

    fn outer(&self) -> [&MapData; 3] {
        [&self.rows, &self.nets_v4, &self.nets_v6]
    }

    /// As the kernel charges it; next to nothing without rules.
    pub fn kernel_memory_bytes(&self) -> u64 {
        let inner = self.active.iter().flat_map(|active| &active.maps);
        self.outer()
            .into_iter()
            .chain(inner)
            .map(map_memory_bytes)
            .sum()
    }
}

fn trie<const N: usize>(name: &str, prefixes: &[(NetKey<N>, NetRows)]) -> Result<MapData> {
    let map = create(
        name,
        BPF_MAP_TYPE_LPM_TRIE as u32,
        (size_of::<NetKey<N>>(), size_of::<NetRows>()),
        prefixes.len().max(1),
        BPF_F_NO_PREALLOC,
    )?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for (prefix, rows) in prefixes {
        key.clear();
        key.extend_from_slice(&prefix.prefix_len.to_ne_bytes());
        for word in prefix.address_ne {
            key.extend_from_slice(&word.to_ne_bytes());
        }
        value.clear();
        for row in [&rows.src, &rows.dst, &rows.either] {
            append(&mut value, row);
        }
        bpf::update_by_bytes(map.fd().as_fd(), &key, &value).context("store a network")?;
    }
    Ok(map)
}

fn create(
    name: &str,
    map_type: u32,
    (key_len_bytes, value_len_bytes): (usize, usize),
    entries: usize,
    flags: u32,
) -> Result<MapData> {
    let shape = Shape {
        map_type,
        key_len_bytes: key_len_bytes as u32,
        value_len_bytes: value_len_bytes as u32,
        max_entries: entries as u32,
        flags,
    };
    inner_map::create(name, shape).with_context(|| format!("create the map {name}"))
}

fn append(bytes: &mut Vec<u8>, row: &Row) {
    for word in row.0 {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
}
