//! The maps that hold the programs' filter rules.
//!
//! There are two slots. [`Networks`] first puts the networks of the next set into new maps, which may take a while.
//! Then the set is staged in the slot that no program uses, with the current names of the interfaces. One store
//! ([`super::pages::Pages::set_rule_set`]) switches all programs to that slot: each program reads the slot's number
//! once per packet. The maps of the previous set are freed only when no program can be using them.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::Arc,
    thread,
    time::Duration,
};

use agent_common::filter::{NetKey, NetRows, Row};
use anyhow::{Context as _, Result};
use aya::maps::MapData;
use aya_obj::generated::{
    BPF_F_INNER_MAP, BPF_F_NO_PREALLOC,
    bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_LPM_TRIE},
};
use rules::{Compiled, Rule, link_names::LinkNames};

use super::{
    bpf::{self, Shape},
    inner_map,
    memory::map_memory_bytes,
};

/// The outer maps, and the set that the programs use.
pub struct RuleMaps {
    rows: MapData,
    nets_v4: MapData,
    nets_v6: MapData,
    /// The interfaces' names by slot, for matching the names in rules.
    interfaces: Vec<Option<LinkNames>>,
    active: Option<Active>,
}

struct Active {
    slot: u32,
    /// Keeps the map open.
    _rows: MapData,
    networks: Arc<Networks>,
}

/// The IPv4 and IPv6 networks of a set of rules, each in its own map.
pub struct Networks([MapData; 2]);

impl Networks {
    /// Fills the maps, which takes seconds for a million networks. Fails first if the rules do not fit into a set.
    pub fn of(rules: &[Rule]) -> Result<Arc<Self>> {
        Compiled::check(rules)?;
        let (nets_v4, nets_v6) = rules::networks(rules);
        let maps = [
            trie("rule_nets_v4", &nets_v4)?,
            trie("rule_nets_v6", &nets_v6)?,
        ];
        Ok(Arc::new(Self(maps)))
    }
}

/// A set in its slot that the programs do not use yet.
pub struct Staged {
    next: Option<Active>,
    rules: PlacedRules,
    warnings: Vec<String>,
}

/// A set whose maps are filled, as [`super::pages::Pages`] needs it for the switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlacedRules {
    /// The set's number for the programs; 0 means no rules.
    pub number: u32,
    pub rules: u32,
    /// Whether the rules may leave out one direction of a flow and count the other.
    pub divide_flows: bool,
    /// Memory that the kernel charges; very little without rules.
    pub kernel_memory_bytes: u64,
}

impl Staged {
    pub fn rules(&self) -> PlacedRules {
        self.rules
    }

    /// Warnings about rules that may not do what their author meant.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl RuleMaps {
    /// Starts without rules.
    pub fn new(
        rows: MapData,
        nets_v4: MapData,
        nets_v6: MapData,
        interfaces: Vec<Option<LinkNames>>,
    ) -> Self {
        Self {
            rows,
            nets_v4,
            nets_v6,
            interfaces,
            active: None,
        }
    }

    /// Changes the names of the interface in a slot, for sets that are staged later.
    pub fn name_interface(&mut self, slot: u32, names: &LinkNames) {
        if let Some(known) = self.interfaces.get_mut(slot as usize) {
            *known = Some(names.clone());
        }
    }

    /// The networks of the set that the programs use; `None` without rules.
    pub fn networks(&self) -> Option<Arc<Networks>> {
        let active = self.active.as_ref();
        active.map(|active| Arc::clone(&active.networks))
    }

    /// Fills the slot that no program uses with `rules`, for the current names of the interfaces. `networks` must come
    /// from the same rules.
    pub fn stage(&self, rules: &[Rule], networks: Arc<Networks>) -> Result<Staged> {
        let warnings = rules::not_watched(rules, &self.interfaces);
        let mut kernel_memory_bytes = self.outer().into_iter().map(map_memory_bytes).sum();
        let next = if rules.is_empty() {
            None
        } else {
            let slot = self.active.as_ref().map_or(0, |active| 1 - active.slot);
            let rows = rules::rows(rules, &self.interfaces)?;
            let rows = self
                .place(slot, &rows, &networks)
                .context("store the filter rules")?;
            kernel_memory_bytes += map_memory_bytes(&rows);
            kernel_memory_bytes += networks.0.iter().map(map_memory_bytes).sum::<u64>();
            Some(Active {
                slot,
                _rows: rows,
                networks,
            })
        };
        let placed = PlacedRules {
            number: next.as_ref().map_or(0, |next| next.slot + 1),
            rules: rules.len() as u32,
            divide_flows: rules.iter().any(Rule::names_a_direction),
            kernel_memory_bytes,
        };
        Ok(Staged {
            next,
            rules: placed,
            warnings,
        })
    }

    /// Frees the previous set's memory. Call it after all programs have switched to `staged`.
    pub fn settle(&mut self, staged: Staged) {
        if let Some(old) = std::mem::replace(&mut self.active, staged.next) {
            self.clear(old.slot);
        }
    }

    /// Fills a slot that no program uses. Returns the map of the rows.
    fn place(&self, slot: u32, rows: &[Row], networks: &Networks) -> Result<MapData> {
        let map = create(
            "rule_rows",
            BPF_MAP_TYPE_ARRAY as u32,
            (4, size_of::<Row>()),
            rows.len(),
            BPF_F_INNER_MAP,
        )?;
        let mut value = Vec::with_capacity(size_of::<Row>());
        for (number, row) in rows.iter().enumerate() {
            value.clear();
            append(&mut value, row);
            bpf::update(map.fd().as_fd(), number as u32, &value).context("store a row")?;
        }
        let [nets_v4, nets_v6] = &networks.0;
        for (outer, inner) in self.outer().into_iter().zip([&map, nets_v4, nets_v6]) {
            let inner = inner.fd().as_fd().as_raw_fd();
            bpf::update(outer.fd().as_fd(), slot, &inner.to_ne_bytes())
                .context("place the maps of the rules")?;
        }
        Ok(map)
    }

    /// Frees the memory of a set that no program uses.
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
        patiently(|| bpf::update_by_bytes(map.fd().as_fd(), &key, &value))
            .context("store a network")?;
    }
    Ok(map)
}

/// Retries while the kernel is out of memory. A trie's nodes come from a pool that the kernel refills in the background
/// without waiting for memory (`alloc_bulk`, kernel/bpf/memalloc.c), so a busy machine may run out for a moment.
fn patiently(mut update: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut pause = Duration::from_millis(1);
    loop {
        match update() {
            Err(error)
                if error.raw_os_error() == Some(libc::ENOMEM) && pause < Duration::from_secs(1) =>
            {
                thread::sleep(pause);
                pause *= 2;
            }
            outcome => return outcome,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_stored_when_the_kernel_has_memory_again() {
        let error = |number| Err(io::Error::from_raw_os_error(number));
        let mut left = 3;
        let stored = patiently(|| {
            left -= 1;
            if left == 0 {
                Ok(())
            } else {
                error(libc::ENOMEM)
            }
        });
        assert!(stored.is_ok());
        for (number, tried) in [(libc::ENOSPC, 1..=1), (libc::ENOMEM, 2..=20)] {
            let mut calls = 0;
            let refused = patiently(|| {
                calls += 1;
                error(number)
            });
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(number));
            assert!(tried.contains(&calls), "{number}: {calls}");
        }
    }
}
