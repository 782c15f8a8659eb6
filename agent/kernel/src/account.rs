//! Reads what each hook counted on a page that went idle.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use agent_common::{
    HookAccount, Pair,
    account::{AllPending, COMMON_REASONS, Common, PENDING_PLACES, PENDING_REASONS, Pending, Rare},
    direction::hook_number,
};
use anyhow::{Context as _, Result, ensure};
use aya::maps::MapData;

use super::{carry::Keep, foreign_map, mapped_array::MappedArray, memory::map_memory_bytes};

/// Layout of the accounts in their maps: by page, then by hook. Each CPU has its own copy of the counters that every
/// packet adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Accounts on one page. The last one is for interfaces that are not registered.
    pub per_page: u32,
    pub cpus: u32,
}

impl Layout {
    pub fn of(max_interfaces: u32, cpus: u32) -> Self {
        let per_page = hook_number(max_interfaces, 0) + 1;
        Self { per_page, cpus }
    }

    pub fn common_entries(self) -> u32 {
        self.cpus * self.rare_entries()
    }

    pub fn rare_entries(self) -> u32 {
        2 * self.per_page
    }

    pub fn pending_entries(self) -> u32 {
        self.cpus * 2
    }

    /// Memory that the maps take in the kernel.
    pub fn bytes(self) -> u64 {
        let of = |entries: u32, len: usize| u64::from(entries) * len as u64;
        of(self.common_entries(), size_of::<Common>())
            + of(self.rare_entries(), size_of::<Rare>())
            + of(self.pending_entries(), size_of::<AllPending>())
    }

    /// Memory that this process takes for the accounts.
    pub fn process_bytes(self) -> u64 {
        u64::from(self.rare_entries()) * size_of::<HookAccount>() as u64
    }
}

/// The maps of the accounts, and the last value of each account: the kernel's counters only grow, so a scan reports
/// differences.
pub struct Accounts {
    /// Keeps the maps open while they are mapped.
    maps: [MapData; 3],
    kernel_memory_bytes: u64,
    common: MappedArray,
    rare: MappedArray,
    pending: MappedArray,
    layout: Layout,
    before: Vec<HookAccount>,
}

/// The maps as they were loaded.
pub struct Maps {
    pub common: MapData,
    pub rare: MapData,
    pub pending: MapData,
}

/// The names of the maps in the store.
const COMMON: &str = "common";
const RARE: &str = "rare";
const PENDING: &str = "pending";

/// Pending counters in one entry.
const PLACES: usize = PENDING_REASONS.len() * PENDING_PLACES;
const NUMBERS_OF_PAIR: usize = size_of::<Pair>() / size_of::<u64>();
const NUMBERS_OF_PENDING: usize = size_of::<Pending>() / size_of::<u64>();

impl Accounts {
    pub fn new(maps: Maps, layout: Layout) -> Result<Self> {
        let map = |map: &MapData, entries: u32, len: usize| {
            MappedArray::new(map.fd().as_fd(), entries as usize * len / size_of::<u64>())
                .context("map the accounts")
        };
        let Maps {
            common,
            rare,
            pending,
        } = maps;
        Ok(Self {
            common: map(&common, layout.common_entries(), size_of::<Common>())?,
            rare: map(&rare, layout.rare_entries(), size_of::<Rare>())?,
            pending: map(&pending, layout.pending_entries(), size_of::<AllPending>())?,
            kernel_memory_bytes: [&common, &rare, &pending]
                .map(map_memory_bytes)
                .iter()
                .sum(),
            maps: [common, rare, pending],
            layout,
            before: vec![HookAccount::default(); layout.rare_entries() as usize],
        })
    }

    /// Stores the accounts for a successor.
    pub fn keep(&self, keep: &Keep) -> io::Result<()> {
        let names = [COMMON, RARE, PENDING];
        let mut stored = names.into_iter().zip(&self.maps);
        stored.try_for_each(|(name, map)| keep.put_file(name, map.fd().as_fd()))
    }

    /// Opens the accounts among the files that an earlier process has stored.
    pub fn open(files: &mut BTreeMap<String, OwnedFd>, layout: Layout) -> Result<Self> {
        const MOST: u64 = 1 << 28;
        let accounts = 2 * u64::from(layout.per_page);
        ensure!(
            (2..MOST).contains(&accounts) && accounts.saturating_mul(layout.cpus.into()) < MOST,
            "the predecessor cannot have had so many accounts"
        );
        let maps = Maps {
            common: stored::<Common>(files, COMMON, layout.common_entries())?,
            rare: stored::<Rare>(files, RARE, layout.rare_entries())?,
            pending: stored::<AllPending>(files, PENDING, layout.pending_entries())?,
        };
        Self::new(maps, layout)
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The accounts of a page. The page must be idle while they are read. Reading changes nothing in the kernel, so
    /// whoever reads them after a crash finds all that was counted.
    pub fn of_idle(&mut self, page: u32) -> PageAccounts<'_> {
        let pending = self.pending_of(page);
        PageAccounts {
            accounts: self,
            page,
            pending,
        }
    }

    /// What all hooks counted on a page since the maps were made. The page must be idle.
    pub fn sum_of_idle(&self, page: u32) -> HookAccount {
        let mut sum = HookAccount::default();
        for pending in self.pending_of(page) {
            pending.add_to(&mut sum);
        }
        for index in 0..self.layout.per_page {
            self.add_account(page, index, &mut sum);
        }
        sum
    }

    /// The part of a page's accounts that has been taken so far.
    pub fn taken(&self, page: u32) -> HookAccount {
        let per_page = self.layout.per_page as usize;
        let mut sum = HookAccount::default();
        for account in &self.before[page as usize * per_page..][..per_page] {
            sum.merge(account);
        }
        sum
    }

    /// The pending counters of a page, on all CPUs.
    fn pending_of(&self, page: u32) -> Vec<PendingOf> {
        let entries = (0..self.layout.cpus).map(|cpu| cpu * 2 + page);
        let pending = entries.flat_map(|entry| self.pending(entry));
        pending
            .map(|(place, pending)| PendingOf {
                account: pending.account,
                reason: reason_at(place),
                counter: pending.counter,
            })
            .collect()
    }

    /// Adds an account's counters in the maps, without pending ones.
    fn add_account(&self, page: u32, index: u32, sum: &mut HookAccount) {
        let account = (page * self.layout.per_page + index) as usize;
        let all = self.layout.rare_entries() as usize;
        let (common, rare) = sum.counters.split_at_mut(COMMON_REASONS);
        for cpu in 0..self.layout.cpus as usize {
            add(&self.common, cpu * all + account, common);
        }
        add(&self.rare, account, rare);
    }

    /// The pending counters of an entry that are not zero, each with its place in the entry.
    fn pending(&self, entry: u32) -> impl Iterator<Item = (usize, Pending)> {
        let first = entry as usize * PLACES;
        let pending = move |place| {
            let at = (first + place) * NUMBERS_OF_PENDING;
            let [packets, bytes, account] = [at, at + 1, at + 2].map(|at| self.pending.load(at));
            let counter = Pair { packets, bytes };
            (place, Pending { counter, account })
        };
        let is_something = |(_, pending): &(usize, Pending)| pending.counter != Pair::default();
        (0..PLACES).map(pending).filter(is_something)
    }

    /// What all hooks counted on both pages so far. Reads until two sums agree: counters that move from pending to the
    /// accounts in between would be missed or counted twice.
    pub fn sum(&self) -> HookAccount {
        let mut last = self.sum_once();
        loop {
            let sum = self.sum_once();
            if sum.counters[COMMON_REASONS..] == last.counters[COMMON_REASONS..] {
                return sum;
            }
            last = sum;
        }
    }

    fn sum_once(&self) -> HookAccount {
        let layout = self.layout;
        let mut sum = HookAccount::default();
        let (common, rare) = sum.counters.split_at_mut(COMMON_REASONS);
        for entry in 0..layout.common_entries() {
            add(&self.common, entry as usize, common);
        }
        for entry in 0..layout.rare_entries() {
            add(&self.rare, entry as usize, rare);
        }
        for entry in 0..layout.pending_entries() {
            for (place, pending) in self.pending(entry) {
                rare[reason_at(place)] += pending.counter;
            }
        }
        sum
    }

    pub fn kernel_memory_bytes(&self) -> u64 {
        self.kernel_memory_bytes
    }
}

/// A map among the files that an earlier process has stored.
fn stored<V>(files: &mut BTreeMap<String, OwnedFd>, name: &str, elements: u32) -> Result<MapData> {
    let map = files.remove(name);
    let map = map.with_context(|| format!("the predecessor's map {name} is missing"))?;
    foreign_map::array::<V>(map, elements)
        .with_context(|| format!("open the predecessor's map {name}"))
}

/// The reason of a place in an entry, as its index in [`Rare`].
fn reason_at(place: usize) -> usize {
    PENDING_REASONS[place / PENDING_PLACES] as usize - COMMON_REASONS
}

/// A counter that a CPU has not yet added to its account.
struct PendingOf {
    /// The number of the account on both pages.
    account: u64,
    reason: usize,
    counter: Pair,
}

impl PendingOf {
    fn add_to(&self, sum: &mut HookAccount) {
        sum.counters[COMMON_REASONS + self.reason] += self.counter;
    }
}

/// The accounts of an idle page.
pub struct PageAccounts<'a> {
    accounts: &'a mut Accounts,
    page: u32,
    pending: Vec<PendingOf>,
}

impl PageAccounts<'_> {
    /// Packets and bytes that the hook at `index` (interface slot × 2 + direction) counted since the page was last
    /// idle.
    pub fn take(&mut self, index: u32) -> Result<HookAccount> {
        let per_page = self.accounts.layout.per_page;
        ensure!(
            index < per_page,
            "there is no account {index} of {per_page}"
        );
        let account = self.page * per_page + index;
        let mut sum = HookAccount::default();
        let pending = self.pending.iter();
        for pending in pending.filter(|pending| pending.account == u64::from(account)) {
            pending.add_to(&mut sum);
        }
        self.accounts.add_account(self.page, index, &mut sum);
        let before = &mut self.accounts.before[account as usize];
        let growth = sum.since(before);
        *before = sum;
        Ok(growth)
    }

    /// Packets and bytes of interfaces that are not registered.
    pub fn take_unknown(&mut self) -> Result<HookAccount> {
        self.take(self.accounts.layout.per_page - 1)
    }
}

/// Adds an entry of a map to `counters`.
fn add(map: &MappedArray, entry: usize, counters: &mut [Pair]) {
    let first = entry * counters.len();
    for (pair, counter) in (first..).zip(counters) {
        let number = pair * NUMBERS_OF_PAIR;
        *counter += Pair {
            packets: map.load(number),
            bytes: map.load(number + 1),
        };
    }
}

/// One more than the highest number that a CPU can have.
pub fn possible_cpus() -> Result<u32> {
    const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
    let ranges = std::fs::read_to_string(POSSIBLE).with_context(|| format!("read {POSSIBLE}"))?;
    let highest = last_of(&ranges)
        .with_context(|| format!("{POSSIBLE} has no number at its end: {ranges:?}"))?;
    Ok(highest + 1)
}

/// The last number of a list of ranges, such as `0-3,8-11`.
fn last_of(list: &str) -> Option<u32> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_interfaces_on_128_cpus_take_less_than_ten_megabytes() {
        let bytes = Layout::of(500, 128).bytes();
        assert!(bytes < 10_000_000, "{bytes}");
    }

    #[test]
    fn the_last_cpu_of_a_list_counts_whatever_is_missing_before() {
        for (list, last) in [
            ("0\n", Some(0)),
            ("0-127\n", Some(127)),
            ("0,2-5", Some(5)),
            ("0-3,9", Some(9)),
            ("", None),
        ] {
            assert_eq!(last_of(list), last, "{list}");
        }
    }
}
