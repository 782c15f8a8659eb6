//! Reads what each hook counted on a page that went idle.

use std::os::fd::AsFd as _;

use agent_common::HookAccount;
use anyhow::{Context as _, Result, anyhow};
use aya::maps::MapData;

use super::bpf;

/// The account map, with the last value of each account, since the kernel's counters only grow.
pub struct Accounts {
    map: MapData,
    per_page: u32,
    possible_cpus: usize,
    before: Vec<HookAccount>,
    buffer: Vec<u8>,
}

impl Accounts {
    pub fn new(map: MapData, per_page: u32) -> Result<Self> {
        let possible_cpus = possible_cpus()?;
        Ok(Self {
            map,
            per_page,
            possible_cpus,
            before: vec![HookAccount::default(); 2 * per_page as usize],
            buffer: vec![0; possible_cpus * size_of::<HookAccount>()],
        })
    }

    /// What the hook at `index` (interface slot × 2 + direction) counted on `page` since the page was last
    /// idle. The page must be idle.
    pub fn take(&mut self, page: u32, index: u32) -> Result<HookAccount> {
        let key = page * self.per_page + index;
        bpf::lookup(self.map.fd().as_fd(), key, &mut self.buffer).context("read the account")?;
        let mut sum = HookAccount::default();
        for cpu in self
            .buffer
            .chunks_exact(size_of::<HookAccount>())
            .take(self.possible_cpus)
        {
            for (counter, pair) in sum.counters.iter_mut().zip(cpu.chunks_exact(16)) {
                counter.packets += word(pair, 0);
                counter.bytes += word(pair, 8);
            }
        }
        let growth = sum.since(&self.before[key as usize]);
        self.before[key as usize] = sum;
        Ok(growth)
    }

    /// What was counted on `page` at interfaces that are not registered. The page must be idle.
    pub fn take_unknown(&mut self, page: u32) -> Result<HookAccount> {
        self.take(page, self.per_page - 1)
    }

    pub fn kernel_memory_bytes(&self) -> u64 {
        super::memory::map_memory_bytes(&self.map)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..].first_chunk().expect("a pair is sixteen bytes");
    u64::from_ne_bytes(*word)
}

/// The CPUs for which the kernel keeps per-CPU values.
pub fn possible_cpus() -> Result<usize> {
    aya::util::nr_cpus()
        .map_err(|(path, error)| anyhow!("{path}: {error}"))
        .context("count the possible CPUs")
}
