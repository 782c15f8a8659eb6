//! Reads what each hook counted on a page that went idle.

use std::os::fd::AsFd as _;

use agent_common::{
    HookAccount, Pair,
    account::{COMMON_REASONS, Common, RARE_REASONS, Rare},
    direction::hook_number,
};
use anyhow::{Context as _, Result, ensure};
use aya::maps::MapData;

use super::mapped_array::MappedArray;

/// As long as all accounts take no more, each CPU has what few packets add to for itself; else CPUs share it. What every
/// packet adds to, and one shard, are there whatever they take.
const MOST_BYTES: u64 = 9_500_000;

/// How the accounts lie in their two maps: by CPU or shard, then by page, then by hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Accounts of one page. The last one is for interfaces that are not registered.
    pub per_page: u32,
    pub cpus: u32,
    /// A power of two. The CPUs whose numbers have the same remainder share one.
    pub shards: u32,
}

impl Layout {
    pub fn of(max_interfaces: u32, cpus: u32) -> Self {
        let per_page = hook_number(max_interfaces, 0) + 1;
        let all = 2 * u64::from(per_page);
        let common_bytes = all * u64::from(cpus) * size_of::<Common>() as u64;
        let left_bytes = MOST_BYTES.saturating_sub(common_bytes);
        let fit = (left_bytes / (all * size_of::<Rare>() as u64)).max(1);
        let enough = u64::from(cpus.next_power_of_two());
        let shards = enough.min(1 << fit.ilog2());
        Self {
            per_page,
            cpus,
            shards: shards as u32,
        }
    }

    /// Whether several CPUs may add to one counter.
    pub fn is_shared(self) -> bool {
        self.shards < self.cpus
    }

    pub fn common_entries(self) -> u32 {
        self.cpus * 2 * self.per_page
    }

    pub fn rare_entries(self) -> u32 {
        self.shards * 2 * self.per_page
    }

    pub fn bytes(self) -> u64 {
        let common_bytes = u64::from(self.common_entries()) * size_of::<Common>() as u64;
        common_bytes + u64::from(self.rare_entries()) * size_of::<Rare>() as u64
    }
}

/// The maps of the accounts, with the last value of each account, since the kernel's counters only grow.
pub struct Accounts {
    /// Each is held as long as it is mapped.
    maps: [MapData; 2],
    common: MappedArray,
    rare: MappedArray,
    layout: Layout,
    before: Vec<HookAccount>,
}

impl Accounts {
    pub fn new(common: MapData, rare: MapData, layout: Layout) -> Result<Self> {
        let map = |map: &MapData, entries: u32, pairs: usize| {
            MappedArray::new(map.fd().as_fd(), entries as usize * pairs * 2)
                .context("map the accounts")
        };
        Ok(Self {
            common: map(&common, layout.common_entries(), COMMON_REASONS)?,
            rare: map(&rare, layout.rare_entries(), RARE_REASONS)?,
            maps: [common, rare],
            layout,
            before: vec![HookAccount::default(); 2 * layout.per_page as usize],
        })
    }

    /// What the hook at `index` (interface slot × 2 + direction) counted on `page` since the page was last
    /// idle. The page must be idle.
    pub fn take(&mut self, page: u32, index: u32) -> Result<HookAccount> {
        let Layout {
            per_page,
            cpus,
            shards,
        } = self.layout;
        ensure!(
            index < per_page,
            "there is no account {index} of {per_page}"
        );
        let key = page * per_page + index;
        let mut sum = HookAccount::default();
        let (common, rare) = sum.counters.split_at_mut(COMMON_REASONS);
        for (map, counters, parts) in [(&self.common, common, cpus), (&self.rare, rare, shards)] {
            for part in 0..parts {
                let entry = (part * 2 * per_page + key) as usize;
                let first = entry * counters.len();
                for (number, counter) in (first..).zip(counters.iter_mut()) {
                    *counter += Pair {
                        packets: map.load(number * 2),
                        bytes: map.load(number * 2 + 1),
                    };
                }
            }
        }
        let growth = sum.since(&self.before[key as usize]);
        self.before[key as usize] = sum;
        Ok(growth)
    }

    /// What was counted on `page` at interfaces that are not registered. The page must be idle.
    pub fn take_unknown(&mut self, page: u32) -> Result<HookAccount> {
        self.take(page, self.layout.per_page - 1)
    }

    pub fn kernel_memory_bytes(&self) -> u64 {
        self.maps.iter().map(super::memory::map_memory_bytes).sum()
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
        let layout = Layout::of(500, 128);
        assert!(layout.bytes() < 10_000_000, "{layout:?}");
        assert!(layout.is_shared());
    }

    #[test]
    fn cpus_have_shards_of_their_own_where_these_fit() {
        for (max_interfaces, cpus) in [(1, 1), (64, 2), (512, 2), (512, 3), (8, 100)] {
            let layout = Layout::of(max_interfaces, cpus);
            assert!(!layout.is_shared(), "{layout:?}");
            assert!(layout.bytes() <= MOST_BYTES, "{layout:?}");
        }
    }

    #[test]
    fn there_is_a_shard_however_little_fits() {
        for (max_interfaces, cpus) in [(100_000, 2), (20_000, 512), (500, 1024)] {
            assert_eq!(Layout::of(max_interfaces, cpus).shards, 1);
        }
    }

    #[test]
    fn shards_take_what_common_counters_leave() {
        let layout = Layout::of(64, 128);
        assert!(layout.is_shared() && layout.shards > 1);
        assert!(layout.bytes() <= MOST_BYTES, "{layout:?}");
        let doubled = Layout {
            shards: layout.shards * 2,
            ..layout
        };
        assert!(doubled.bytes() > MOST_BYTES);
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
