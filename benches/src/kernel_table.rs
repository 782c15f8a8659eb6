//! The kernel's flow table as the agent creates it. A bench fills it with a profile's entries instead of running the
//! programs, and drains it as a scan does.

use agent_common::{FlowCounters, FlowKey, Senders, senders::Kinds};
use anyhow::{Result, ensure};
use kernel::load::{Kernel, LoadSettings};

use crate::{profile::Profile, user_space::Source};

/// The agent's defaults for `--min-flows` and `--max-flows`.
const LEAST_FLOWS: u32 = 6144;
const MOST_FLOWS: u32 = 500_000;

/// The agent's maps with nothing attached.
pub struct KernelTable {
    kernel: Kernel,
    keeps_senders: bool,
}

impl KernelTable {
    /// Creates the table with pages as large as the agent grows them for this many flows per scan, and with room for
    /// the senders of flows. Fails if the process may not load BPF objects.
    pub fn load(flows: u32, senders: Kinds) -> Result<Self> {
        // The agent grows a page once half of it is in use.
        let max_flows = (2 * flows).clamp(LEAST_FLOWS, MOST_FLOWS);
        let kernel = Kernel::load(&LoadSettings {
            min_flows: max_flows,
            max_flows,
            senders,
            ..LoadSettings::smallest(vec![0])
        })?;
        Ok(Self {
            kernel,
            keeps_senders: senders != Kinds::NONE,
        })
    }

    /// Puts every flow of the profile into the active page.
    pub fn fill(&mut self, profile: Profile) -> Result<()> {
        for number in 0..profile.flows {
            let (key, counters, senders) = if self.keeps_senders {
                Profile::enriched_entry(number)
            } else {
                let (key, counters) = Profile::entry(number);
                (key, counters, Senders::default())
            };
            let placed = self.kernel.pages.put(&key, &counters, &senders)?;
            ensure!(placed, "flow {number} finds no room");
        }
        Ok(())
    }

    /// Flips to the other page and waits for running programs, as a scan does.
    pub fn flip(&mut self) -> Result<IdlePage<'_>> {
        let index = self.kernel.pages.flip()?;
        Ok(IdlePage { table: self, index })
    }

    /// The memory that the kernel charges for both pages and the account.
    pub fn memory_bytes(&self) -> u64 {
        self.kernel.kernel_memory_bytes()
    }
}

/// The page that user space may drain after a flip.
pub struct IdlePage<'a> {
    table: &'a mut KernelTable,
    index: u32,
}

impl Source for IdlePage<'_> {
    fn drain(self, sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders])) -> Result<u64> {
        self.table.kernel.pages.drain(self.index, sink)
    }
}
