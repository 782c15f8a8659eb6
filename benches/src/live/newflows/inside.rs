//! Reads an agent's maps directly: the page in use and the packets in the account.

use std::os::fd::AsFd as _;

use agent_common::{Pair, Reason};
use anyhow::{Context as _, Result};
use aya::maps::{MapData, loaded_maps};
use kernel::{
    account::{Accounts, Layout, Maps, possible_cpus},
    bpf,
};

use crate::live::fdinfo;

pub struct Inside {
    accounts: Accounts,
    variables: MapData,
    variables_len_bytes: usize,
}

impl Inside {
    /// Opens the maps that the process holds.
    pub fn of(pid: u32) -> Result<Self> {
        let held = fdinfo::map_ids(pid)?;
        let map = |name: &str| -> Result<(MapData, aya::maps::MapInfo)> {
            for info in loaded_maps() {
                let info = info.context("list the maps")?;
                if held.contains(&info.id()) && info.name_as_str() == Some(name) {
                    return Ok((MapData::from_id(info.id())?, info));
                }
            }
            anyhow::bail!("the agent holds no map {name}")
        };
        let (rare, info) = map("RARE")?;
        let layout = Layout {
            per_page: info.max_entries() / 2,
            cpus: possible_cpus()?,
        };
        let maps = Maps {
            common: map("COMMON")?.0,
            rare,
            pending: map("PENDING")?.0,
        };
        let (variables, info) = map(".bss")?;
        Ok(Self {
            accounts: Accounts::new(maps, layout)?,
            variables,
            variables_len_bytes: info.value_size() as usize,
        })
    }

    /// The page that the programs write to.
    pub fn page(&self) -> Result<u8> {
        let mut variables = vec![0; self.variables_len_bytes];
        bpf::lookup(self.variables.fd().as_fd(), 0, &mut variables).context("read the page")?;
        variables.first().copied().context("the page has a byte")
    }

    /// Packets that the programs saw, and packets that the table refused.
    pub fn seen_and_refused(&self) -> (u64, u64) {
        let sum = self.accounts.sum();
        let Pair { packets: seen, .. } = sum.get(Reason::Seen);
        (seen, sum.not_inserted().packets)
    }
}
