//! The BPF programs, maps and links that a process holds, and which of them the kernel still has.

use std::{collections::BTreeSet, fs};

use aya::{maps::loaded_maps, programs::loaded_links, programs::loaded_programs};

/// The objects by the ids that bpftool shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    pub programs: BTreeSet<u32>,
    pub maps: BTreeSet<u32>,
    pub links: BTreeSet<u32>,
}

impl Objects {
    /// The objects that a process holds by descriptor.
    pub fn held_by(pid: u32) -> Self {
        let mut held = Self::default();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
            // A descriptor may have been closed meanwhile.
            let Ok(text) = fs::read_to_string(entry.unwrap().path()) else {
                continue;
            };
            let field = |name: &str| -> Option<u32> {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|value| value.trim().parse().ok())
            };
            held.maps.extend(field("map_id:"));
            match field("link_id:") {
                // A link's description names its program too.
                Some(link) => drop(held.links.insert(link)),
                None => held.programs.extend(field("prog_id:")),
            }
        }
        held
    }

    /// The objects that are still in the kernel.
    pub fn alive(&self) -> Self {
        let programs = loaded_programs().filter_map(|program| Some(program.ok()?.id()));
        let maps = loaded_maps().filter_map(|map| Some(map.ok()?.id()));
        let links = loaded_links().filter_map(|link| Some(link.ok()?.id()));
        let both = |ours: &BTreeSet<u32>, all: BTreeSet<u32>| ours & &all;
        Self {
            programs: both(&self.programs, programs.collect()),
            maps: both(&self.maps, maps.collect()),
            links: both(&self.links, links.collect()),
        }
    }
}
