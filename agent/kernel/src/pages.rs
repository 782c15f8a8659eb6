//! The flow table's two pages: flips them, and drains the one that went idle. It reads the page first, and empties it
//! once the flows are safe.
//!
//! Programs read the page number once per packet. [`Pages::flip`] stores the other number, then rewrites a
//! slot of the outer map. The kernel's update of a map-in-map returns only after every running program has
//! finished (`maybe_wait_bpf_programs`, 4.20). From then on the old page, with its half of the account,
//! belongs to userspace.

mod growth;
mod old;
mod page;
mod senders;
mod size;
mod windows;

use std::{
    io,
    mem::offset_of,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::atomic::{Ordering::SeqCst, fence},
    thread::{self, JoinHandle},
};

use agent_common::{
    FlowCounters, FlowKey, PageFill, Senders, Switches, sample, senders::Kinds, slots::Hash,
};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use aya::maps::MapData;
use sys::log_limit::LogLimit;

use self::{
    growth::Growth,
    page::{Page, Taken, Windows},
    size::Mark,
};
pub use self::{old::OldPages, size::Size};
use super::{
    account::possible_cpus, bpf, carry::Keep, links::netlink::errno, memory::map_memory_bytes,
};

/// The programs' maps that belong to the pages.
pub struct Maps {
    /// The maps of maps: one holds each page's windows, the other its overflow map (`behind`) for flows that find no
    /// slot.
    pub windows: MapData,
    pub behind: MapData,
    /// The map of maps that holds the senders of the flows in the windows.
    pub senders: MapData,
    /// The same for the flows in the overflow maps.
    pub senders_behind: MapData,
    /// How full each page is, as the programs count it.
    pub fill: MapData,
    /// The map of the programs' static variables. [`Switches`] is the only one.
    pub variables: MapData,
}

/// How large pages are.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Flows that a page always has room for; at most `max_flows`.
    pub min_flows: u32,
    /// Flows that a page has room for once it has fully grown.
    pub max_flows: u32,
    /// Flows on a page of `max_flows` at which the programs ask for an early scan. On a smaller page they ask at the
    /// same share of its room. With 0 they never ask, and pages have their full size from the start.
    pub early_scan_flows: u32,
    /// Kinds of sender data that the programs record for each flow.
    pub senders: Kinds,
    /// Count one flow in this many until the rate is changed; 0 counts every flow.
    pub sample_rate: u32,
}

pub struct Pages {
    maps: Maps,
    both: [Page; 2],
    variables_len_bytes: usize,
    switches: Switches,
    mark: Mark,
    possible_cpus: u32,
    senders: Kinds,
    growth: Growth,
    /// The thread that makes windows of another size while scans go on.
    making: Option<JoinHandle<Result<Windows>>>,
    refused: LogLimit,
    /// Flows that found no slot since the start.
    behind_flows: u64,
    /// The page that was read last had flows in its overflow map.
    some_were_behind: bool,
    /// How many flows the page had that was read last.
    read_flows: u64,
    /// Memory of the maps that hold the pages.
    outer_memory_bytes: u64,
    factors: [u64; Hash::FACTORS],
    taken: Taken,
    /// Where a successor finds the pages.
    keep: Keep,
}

impl Pages {
    /// The lease of programs that count forever.
    pub const NO_LEASE: u64 = u64::MAX;

    /// Creates both pages and hands them to the programs. `factors` must be the programs' own hash factors.
    pub fn create(maps: Maps, bounds: Bounds, factors: [u64; Hash::FACTORS]) -> Result<Self> {
        let mark = Mark {
            flows: bounds.early_scan_flows,
            max_flows: bounds.max_flows,
        };
        let growth = Growth::new(bounds.min_flows, mark);
        let size = growth.wanted();
        let behind_flows = Size::behind_flows(bounds.max_flows);
        let pages = [0, 1].map(|_| Page::create(size, behind_flows, bounds.senders));
        let [first, second] = pages;
        let pages = [first?, second?];
        let variables_len_bytes = maps
            .variables
            .info()
            .context("ask for the size of the programs' variables")?
            .value_size() as usize;
        let possible_cpus = possible_cpus()?;
        let sample_below = sample::threshold(bounds.sample_rate);
        let sizes = [size.of_page(mark, possible_cpus, sample_below); 2];
        let outer = [
            &maps.windows,
            &maps.behind,
            &maps.senders,
            &maps.senders_behind,
            &maps.fill,
        ];
        let pages = Self {
            outer_memory_bytes: outer.map(map_memory_bytes).iter().sum(),
            maps,
            both: pages,
            variables_len_bytes,
            switches: Switches {
                sizes,
                count_until_jiffies: Self::NO_LEASE,
                ..Switches::default()
            },
            mark,
            possible_cpus,
            senders: bounds.senders,
            growth,
            making: None,
            refused: LogLimit::default(),
            behind_flows: 0,
            some_were_behind: false,
            read_flows: 0,
            factors,
            taken: Taken::default(),
            keep: Keep::default(),
        };
        for index in [0, 1] {
            let placed = pages.place_all(index);
            placed.with_context(|| format!("place page {index} of the flow table"))?;
        }
        pages
            .store(pages.switches)
            .context("tell the programs the size of the pages")?;
        Ok(pages)
    }

    /// Stores the pages for a successor, including later pages of another size before programs use them.
    pub fn keep(&mut self, keep: Keep) -> io::Result<()> {
        for (index, page) in (0..).zip(&self.both) {
            keep_windows(&keep, index, page.windows())?;
            let behind = page.behind();
            keep.put_file(&old::behind_name(index), behind.map().fd().as_fd())?;
            if let Some(senders) = behind.senders() {
                keep.put_file(&old::senders_behind_name(index), senders.fd().as_fd())?;
            }
        }
        self.keep = keep;
        Ok(())
    }

    /// Makes the programs stop counting at this reading of the kernel's tick counter, unless it is set again before.
    pub fn set_lease(&mut self, until_jiffies: u64) -> Result<()> {
        self.renew_lease_with_flip(until_jiffies);
        self.store(self.switches)
            .context("tell the programs until when they count")
    }

    /// The same with the next flip.
    pub fn renew_lease_with_flip(&mut self, until_jiffies: u64) {
        self.switches.count_until_jiffies = until_jiffies;
    }

    /// Until when the programs count.
    pub fn lease_jiffies(&self) -> u64 {
        self.switches.count_until_jiffies
    }

    fn place_all(&self, index: u32) -> io::Result<()> {
        let behind = self.both[index as usize].behind();
        place_in(&self.maps.behind, index, behind.map())?;
        if let Some(senders) = behind.senders() {
            place_in(&self.maps.senders_behind, index, senders)?;
        }
        let windows = self.both[index as usize].windows();
        self.place_senders(index, windows)?;
        self.place(index, windows)
    }

    /// Puts the windows of page `index` into their slot. Returns after every program that was running has finished.
    fn place(&self, index: u32, windows: &Windows) -> io::Result<()> {
        place_in(&self.maps.windows, index, windows.map())
    }

    /// Puts the senders of page `index` into their slot, if senders are kept.
    fn place_senders(&self, index: u32, windows: &Windows) -> io::Result<()> {
        match windows.senders() {
            Some(senders) => place_in(&self.maps.senders, index, senders),
            None => Ok(()),
        }
    }

    /// Makes the other page the active one and waits for the grace period. Returns the number of the page that is now
    /// idle.
    ///
    /// The other page must have been drained: flipping to a page with entries would mix two scans.
    pub fn flip(&mut self) -> Result<u32> {
        let active = self.switches.page as usize;
        self.flip_to(self.switches.sizes[active].sample_below)
    }

    /// Flips as [`Pages::flip`] does, and counts one flow in `sample_rate` from then on; 0 counts every flow.
    pub fn flip_sampling(&mut self, sample_rate: u32) -> Result<u32> {
        self.flip_to(sample::threshold(sample_rate))
    }

    fn flip_to(&mut self, sample_below: u32) -> Result<u32> {
        let idle = self.switches.page;
        let page = 1 - idle;
        let mut switches = Switches {
            page,
            ..self.switches
        };
        let next = &mut switches.sizes[page as usize].sample_below;
        if *next != sample_below {
            *next = sample_below;
            // Store the rate before the flip. One update stores all variables in no particular order, so a program may
            // see the page's new number first, and it samples at that page's rate.
            self.store(Switches {
                page: idle,
                ..switches
            })
            .context("tell the programs which flows are counted")?;
        }
        self.switch(switches).context("flip the page")?;
        Ok(idle)
    }

    /// Makes the programs stop counting: flips, then switches them off, each with a grace period. After that both pages
    /// stay idle. Returns both pages, the one filled first in front.
    pub fn stop(&mut self) -> Result<[u32; 2]> {
        let older = self.flip()?;
        self.switch(Switches {
            page: Switches::OFF,
            ..self.switches
        })
        .context("switch the programs off")?;
        Ok([older, 1 - older])
    }

    /// Makes the programs match another set of filter rules (0 for none). Returns once no program can still match the
    /// previous set.
    pub fn set_rule_set(&mut self, rule_set: u32) -> Result<()> {
        self.switch(Switches {
            rule_set,
            ..self.switches
        })
        .context("change the filter rules")
    }

    /// Stores the variables that programs read once per packet, then waits for the running programs to finish. If the
    /// wait fails, stores the previous values again.
    fn switch(&mut self, switches: Switches) -> Result<()> {
        // This page's slots were emptied by plain stores to mapped memory; they must be visible before the page number.
        fence(SeqCst);
        self.store(switches)
            .context("store the programs' variables")?;
        // This page is idle after the switch, so no program reads its slot of the outer map.
        let idle = u32::from(switches.page == 0);
        let waited = self.place(idle, self.both[idle as usize].windows());
        if waited.is_ok() {
            self.switches = switches;
        } else if let Err(error) = self.store(self.switches) {
            tracing::error!("cannot restore the programs' variables: {error}");
        }
        waited.context("wait for the programs that still use the previous variables")
    }

    fn store(&self, switches: Switches) -> io::Result<()> {
        let mut variables = vec![0; self.variables_len_bytes];
        variables[..Switches::LEN_BYTES].copy_from_slice(&switches.to_bytes());
        bpf::update(self.maps.variables.fd().as_fd(), 0, &variables)
    }

    /// Moves every entry of the idle page to `sink`, many at a time: keys, counters, and the senders of each flow if
    /// they are kept. Returns the number of entries. The page then counts as empty.
    ///
    /// A key may appear twice if two CPUs inserted its flow at the same moment.
    pub fn drain(
        &mut self,
        idle: u32,
        sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> Result<u64> {
        let drained = self.read(idle, sink)?;
        self.clear(idle)?;
        Ok(drained)
    }

    /// Passes every entry of the idle page to `sink`, as [`drain`](Self::drain) does, and leaves it there until
    /// [`clear`](Self::clear). Between the two, the entries can be stored.
    pub fn read(
        &mut self,
        idle: u32,
        sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> Result<u64> {
        self.refuse_active(idle)?;
        self.read_flows = self.read_any(idle, sink)?;
        Ok(self.read_flows)
    }

    /// Empties the idle page after [`read`](Self::read), and gives it another size if it needs one.
    pub fn clear(&mut self, idle: u32) -> Result<()> {
        self.refuse_active(idle)?;
        self.clear_any(idle)?;
        if self.switches.page == Switches::OFF {
            return Ok(());
        }
        self.adapt(idle, self.read_flows)
    }

    /// Moves every entry of any page to `sink`, while no program runs.
    pub fn take(
        &mut self,
        idle: u32,
        sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> Result<u64> {
        let drained = self.read_any(idle, sink)?;
        self.clear_any(idle)?;
        Ok(drained)
    }

    fn refuse_active(&self, idle: u32) -> Result<()> {
        ensure!(
            idle != self.switches.page,
            "page {idle} is in use by the programs"
        );
        Ok(())
    }

    fn read_any(
        &mut self,
        idle: u32,
        mut sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> Result<u64> {
        let behind_flows = behind_flows(&self.fill_of(idle)?);
        self.behind_flows += behind_flows;
        self.some_were_behind = behind_flows != 0;
        let page = &self.both[idle as usize];
        let mut read = page.windows().read(&mut self.taken, &mut sink);
        if behind_flows != 0 {
            let behind = page.behind().read(&mut sink);
            read += behind.context("read the map behind a page of the flow table")?;
        }
        Ok(read)
    }

    fn clear_any(&mut self, idle: u32) -> Result<()> {
        let fill = self.fill_of(idle)?;
        let page = &mut self.both[idle as usize];
        page.clear(behind_flows(&fill) != 0)
            .context("empty the map behind a page of the flow table")?;
        let empty = [0; size_of::<PageFill>()];
        if fill != empty {
            bpf::update(self.maps.fill.fd().as_fd(), idle, &empty)
                .context("note that a page is empty")?;
        }
        Ok(())
    }

    /// Gives the idle page, which had `drained` flows, the wanted size if windows of that size are ready. Otherwise
    /// starts a thread to make them: the kernel needs some milliseconds for each hundred thousand flows.
    fn adapt(&mut self, idle: u32, drained: u64) -> Result<()> {
        let size = self.both[idle as usize].size();
        self.growth.note(drained, size);
        let wanted = self.growth.wanted();
        // If this page already has the wanted size, the windows that are ready belong to the other page.
        if size != wanted
            && let Some(windows) = self.made()
            && windows.size() == wanted
        {
            self.resize(idle, windows)?;
        }
        let are_wanted = self.both.iter().all(|page| page.size() == wanted);
        if are_wanted {
            // Both pages have the wanted size, so drop windows that were made for another one.
            drop(self.made());
        } else if self.making.is_none() && self.growth.may_ask() {
            let maker = thread::Builder::new().name("flow-table-page".to_owned());
            let kinds = self.senders;
            match maker.spawn(move || Windows::create(wanted, kinds)) {
                Ok(making) => self.making = Some(making),
                Err(error) => {
                    self.stays(&anyhow!(error).context("start a thread that makes a page"));
                }
            }
        }
        Ok(())
    }

    /// The windows, if the thread has finished making them.
    fn made(&mut self) -> Option<Windows> {
        let made = self.making.take_if(|making| making.is_finished())?;
        let made = made.join();
        let made = made.unwrap_or_else(|_| bail!("the thread that makes a page panicked"));
        made.map_err(|error| self.stays(&error)).ok()
    }

    /// Gives the idle page other windows. If the kernel refuses, the page keeps the ones it has.
    fn resize(&mut self, idle: u32, windows: Windows) -> Result<()> {
        let size = windows.size();
        let kept = keep_windows(&self.keep, idle, &windows).and_then(|()| self.keep.settle());
        if let Err(error) = kept {
            self.stays(&anyhow!(error).context("store a page of another size"));
            self.forget_windows(idle, size);
            return Ok(());
        }
        let placed = self.place_senders(idle, &windows);
        if let Err(error) = placed.and_then(|()| self.place(idle, &windows)) {
            self.stays(&anyhow!(error).context("place a page of another size"));
            self.forget_windows(idle, size);
            // Senders must match the windows in size, so put the old windows' senders back.
            let restored = self.place_senders(idle, self.both[idle as usize].windows());
            return restored.context("place who sent the flows of a page again");
        }
        let before = self.both[idle as usize].size();
        self.both[idle as usize].change(windows);
        self.forget_windows(idle, before);
        let of_page = &mut self.switches.sizes[idle as usize];
        *of_page = size.of_page(self.mark, self.possible_cpus, of_page.sample_below);
        // Store the size before the flip, whose own store may show programs the page's number first.
        self.store(self.switches)
            .context("tell the programs the size of a page")?;
        tracing::debug!(
            page = idle,
            room_flows = size.room_flows(),
            "a page of the flow table has another size"
        );
        Ok(())
    }

    /// Windows of this size are empty, so it does no harm if they stay in the store.
    fn forget_windows(&self, index: u32, size: Size) {
        for name in [
            old::windows_name(index, size),
            old::senders_name(index, size),
        ] {
            if let Err(error) = self.keep.remove_file(&name) {
                tracing::debug!(%error, name, "an empty page stays in the store");
            }
        }
    }

    fn stays(&mut self, error: &anyhow::Error) {
        self.growth.refused();
        if self.refused.event().is_some() {
            let advice = match errno(error) {
                Some(libc::ENOMEM) => {
                    ": raise the memory limit of the agent's cgroup, or lower --max-flows"
                }
                _ => "",
            };
            tracing::warn!(
                "{error:#}: the flow table keeps its size for now, and may refuse flows{advice}"
            );
        }
    }

    /// Inserts a flow into the active page as the programs do, with its senders if they are kept. No program may be
    /// running. Returns whether there was room.
    pub fn put(
        &mut self,
        key: &FlowKey,
        counters: &FlowCounters,
        senders: &Senders,
    ) -> Result<bool> {
        let index = self.switches.page;
        let page = &mut self.both[index as usize];
        if page.put(self.factors, key, counters, senders) {
            return Ok(true);
        }
        let behind = page.put_behind(key, counters, senders);
        if !behind.context("put a flow behind the slots")? {
            return Ok(false);
        }
        let mut fill = self.fill_of(index)?;
        let more = behind_flows(&fill) + 1;
        fill[BEHIND..][..size_of::<u64>()].copy_from_slice(&more.to_ne_bytes());
        bpf::update(self.maps.fill.fd().as_fd(), index, &fill)
            .context("note that a flow is behind the slots")?;
        Ok(true)
    }

    /// The [`PageFill`] of a page, as bytes.
    fn fill_of(&self, index: u32) -> Result<[u8; size_of::<PageFill>()]> {
        let mut fill = [0; size_of::<PageFill>()];
        bpf::lookup(self.maps.fill.fd().as_fd(), index, &mut fill)
            .context("ask how full a page of the flow table is")?;
        Ok(fill)
    }

    /// The kinds of data that the programs record about the senders of flows.
    pub fn kinds(&self) -> Kinds {
        self.senders
    }

    /// Waits until every program that is running has finished, including an earlier process's.
    pub fn wait_for_programs(&self) -> Result<()> {
        // Any update of a map of maps waits.
        let idle = u32::from(self.switches.page == 0);
        self.place(idle, self.both[idle as usize].windows())
            .context("wait for the programs that are running")
    }

    /// The number of the page that the programs fill.
    pub fn active_number(&self) -> u32 {
        self.switches.page
    }

    /// Flows that a page has room for once it has fully grown.
    pub fn capacity(&self) -> u32 {
        self.mark.max_flows
    }

    /// Flows that found no slot since the start.
    pub fn behind_flows(&self) -> u64 {
        self.behind_flows
    }

    /// Flows that each page has room for at its present size.
    pub fn room_flows(&self) -> u32 {
        let room = self.both.iter().map(|page| page.size().room_flows());
        room.min().unwrap_or_default().min(self.mark.max_flows)
    }

    /// Memory that the kernel charges for both pages. It includes overflow entries added since the last scan only if
    /// the last drained page had some.
    pub fn kernel_memory_bytes(&self) -> u64 {
        let pages = self.both.iter();
        let pages: u64 = pages
            .map(|page| page.memory_bytes(self.some_were_behind))
            .sum();
        self.outer_memory_bytes + pages
    }
}

fn keep_windows(keep: &Keep, index: u32, windows: &Windows) -> io::Result<()> {
    let size = windows.size();
    keep.put_file(&old::windows_name(index, size), windows.map().fd().as_fd())?;
    match windows.senders() {
        Some(senders) => keep.put_file(&old::senders_name(index, size), senders.fd().as_fd()),
        None => Ok(()),
    }
}

/// Puts a map into a slot of a map of maps.
fn place_in(outer: &MapData, index: u32, inner: &MapData) -> io::Result<()> {
    let descriptor = inner.fd().as_fd().as_raw_fd();
    bpf::update(outer.fd().as_fd(), index, &descriptor.to_ne_bytes())
}

const BEHIND: usize = offset_of!(PageFill, behind);

/// How many flows of a page are in its overflow map.
fn behind_flows(fill: &[u8; size_of::<PageFill>()]) -> u64 {
    let behind = fill[BEHIND..].first_chunk();
    u64::from_ne_bytes(*behind.expect("the field has eight bytes"))
}

#[cfg(test)]
mod tests {
    use lab::privilege::is_root_or_skip;

    use crate::load::{Kernel, LoadSettings};

    /// The page that is drained first decides a flow's first packet and its initiator.
    #[test]
    fn both_pages_are_idle_in_the_order_in_which_they_were_filled() {
        if !is_root_or_skip("kernel::both_pages_are_idle_in_the_order_in_which_they_were_filled") {
            return;
        }
        for flips in [0, 1] {
            let mut kernel = Kernel::load(&LoadSettings {
                min_flows: 16,
                max_flows: 16,
                sample_rate: 1,
                ..LoadSettings::smallest(vec![0])
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
