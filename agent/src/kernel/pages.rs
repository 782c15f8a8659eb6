//! The flow table's two pages: flips them, and drains the one that went idle.
//!
//! Programs read the page number once per packet. [`Pages::flip`] stores the other number, then rewrites a
//! slot of the outer map. The kernel's update of a map-in-map returns only after every running program has
//! finished (`maybe_wait_bpf_programs`, 4.20). From then on the old page, with its half of the account,
//! belongs to userspace.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

use agent_common::{FlowCounters, FlowKey, PageFill, Switches};
use anyhow::{Context as _, Result, bail};
use aya::maps::MapData;

use super::{bpf, bpf::Shape, inner_map};

/// Entries moved out of the kernel by one system call. The buffers take half a megabyte.
const BATCH_ENTRIES: usize = 4096;

pub struct Pages {
    outer: MapData,
    inner: [MapData; 2],
    /// How full each page is, as the programs count it.
    fill: MapData,
    /// The map of the programs' static variables. [`Switches`] is the only one.
    variables: MapData,
    variables_len_bytes: usize,
    switches: Switches,
    capacity: u32,
    keys: Vec<FlowKey>,
    values: Vec<FlowCounters>,
}

/// Makes an empty page. The kernel allocates all of its memory at once.
pub fn create_page(name: &str, max_flows: u32) -> Result<MapData> {
    let shape = Shape {
        map_type: aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_HASH as u32,
        key_len_bytes: size_of::<FlowKey>() as u32,
        value_len_bytes: size_of::<FlowCounters>() as u32,
        max_entries: max_flows,
        flags: 0,
    };
    inner_map::create(name, shape).with_context(|| {
        format!(
            "create a page of the flow table for {max_flows} flows (lower --max-flows if memory is short)"
        )
    })
}

impl Pages {
    /// Creates both pages with room for `max_flows` each and hands them to the programs.
    pub fn create(
        outer: MapData,
        fill: MapData,
        variables: MapData,
        max_flows: u32,
    ) -> Result<Self> {
        let inner = [
            create_page("flows_0", max_flows)?,
            create_page("flows_1", max_flows)?,
        ];
        let variables_len_bytes = variables
            .info()
            .context("ask for the size of the programs' variables")?
            .value_size() as usize;
        let pages = Self {
            outer,
            inner,
            fill,
            variables,
            variables_len_bytes,
            switches: Switches::default(),
            capacity: max_flows,
            keys: vec![FlowKey::default(); BATCH_ENTRIES],
            values: vec![FlowCounters::default(); BATCH_ENTRIES],
        };
        pages.place(0).context("place page 0 of the flow table")?;
        pages.place(1).context("place page 1 of the flow table")?;
        Ok(pages)
    }

    /// Puts page `index` into its slot. Returns after every program that was running has finished.
    fn place(&self, index: u32) -> io::Result<()> {
        let inner = self.inner[index as usize].fd().as_fd();
        bpf::update(
            self.outer.fd().as_fd(),
            index,
            &inner.as_raw_fd().to_ne_bytes(),
        )
    }

    /// Makes the other page the active one and waits for the grace period. Returns the number of the page
    /// that is idle from then on.
    ///
    /// The caller must have drained the other page before: a flip to a page with entries would mix two scans.
    pub fn flip(&mut self) -> Result<u32> {
        let idle = self.switches.page;
        self.switch(Switches {
            page: 1 - idle,
            ..self.switches
        })
        .context("flip the page")?;
        Ok(idle)
    }

    /// Makes the programs stop counting: flips, then switches them off, each with a grace period. After that
    /// both pages stay idle. The first of the returned pages was filled first.
    pub fn stop(&mut self) -> Result<[u32; 2]> {
        let older = self.flip()?;
        self.switch(Switches {
            page: Switches::OFF,
            ..self.switches
        })
        .context("switch the programs off")?;
        Ok([older, 1 - older])
    }

    /// Makes the programs follow another set of filter rules, 0 for none, and waits until none of them can
    /// still follow the previous one.
    pub fn set_rule_set(&mut self, rule_set: u32) -> Result<()> {
        self.switch(Switches {
            rule_set,
            ..self.switches
        })
        .context("change the filter rules")
    }

    /// Stores what the programs read once per packet, then waits for those that are running. If the wait
    /// fails, the previous values are stored again.
    fn switch(&mut self, switches: Switches) -> Result<()> {
        self.store(switches)
            .context("store the programs' variables")?;
        // This page is idle after the switch, so no program reads its slot.
        let waited = self.place(u32::from(switches.page == 0));
        if waited.is_ok() {
            self.switches = switches;
        } else if let Err(error) = self.store(self.switches) {
            tracing::error!("the programs' variables are not what they were: {error}");
        }
        waited.context("wait for the programs that still use the old ones")
    }

    fn store(&self, switches: Switches) -> io::Result<()> {
        let mut variables = vec![0; self.variables_len_bytes];
        variables[..Switches::LEN_BYTES].copy_from_slice(&switches.to_bytes());
        bpf::update(self.variables.fd().as_fd(), 0, &variables)
    }

    /// Moves every entry of the idle page to `sink`, many at a time, with a key for each of the counters.
    /// Returns how many there were. After that the page counts as empty.
    pub fn drain(
        &mut self,
        idle: u32,
        mut sink: impl FnMut(&[FlowKey], &[FlowCounters]),
    ) -> Result<u64> {
        if idle == self.switches.page {
            bail!("page {idle} is in use by the programs");
        }
        let mut drained = 0;
        let mut cursor = None;
        loop {
            let map: BorrowedFd<'_> = self.inner[idle as usize].fd().as_fd();
            let (count, last) =
                match bpf::take_batch(map, &mut cursor, &mut self.keys, &mut self.values) {
                    Ok(batch) => batch,
                    // A bucket has more entries than the buffers hold.
                    Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                        let room = self.keys.len() * 2;
                        self.keys.resize(room, FlowKey::default());
                        self.values.resize(room, FlowCounters::default());
                        continue;
                    }
                    Err(error) => return Err(error).context("drain a page of the flow table"),
                };
            sink(&self.keys[..count], &self.values[..count]);
            drained += count as u64;
            if last {
                break;
            }
        }
        let empty = [0; size_of::<PageFill>()];
        bpf::update(self.fill.fd().as_fd(), idle, &empty).context("note that a page is empty")?;
        Ok(drained)
    }

    /// The page that the programs fill.
    pub fn active(&self) -> &MapData {
        &self.inner[self.switches.page as usize]
    }

    /// Its number for the programs.
    pub fn active_number(&self) -> u32 {
        self.switches.page
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Memory that the kernel charges for both pages.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.inner
            .iter()
            .chain([&self.outer, &self.fill])
            .map(super::memory::map_memory_bytes)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use lab::privilege::is_root_or_skip;

    use crate::kernel::load::{Kernel, LoadSettings};

    /// What is drained first decides about a flow's first packet and its initiator.
    #[test]
    fn both_pages_are_idle_in_the_order_in_which_they_were_filled() {
        if !is_root_or_skip("agent::both_pages_are_idle_in_the_order_in_which_they_were_filled") {
            return;
        }
        for flips in [0, 1] {
            let mut kernel = Kernel::load(&LoadSettings {
                max_flows: 16,
                max_fragments: 1,
                decapsulate: false,
                early_scan_flows: 0,
                netns: vec![0],
                max_interfaces: 1,
                sample_rate: 1,
                log_level: 0,
            })
            .unwrap();
            for _ in 0..flips {
                kernel.pages.flip().unwrap();
            }
            let older = kernel.pages.active_number();
            assert_eq!(kernel.pages.stop().unwrap(), [older, 1 - older]);
        }
    }
}
