//! The memory that flows take, in the tables that have a place for each.

use agent_common::{TcpInfo, senders::Kinds};
use kernel::pages::Size;

/// While one of the two pages grows or shrinks, its old and new windows exist together.
const PAGES: u64 = 3;
/// While a table grows, the smaller one still exists.
const GROWTH: u64 = 2;
/// The senders of a flow: four slots for three flows, for each kind of number that is stored for both directions.
const SENDERS_BYTES_PER_FLOW: u64 = 22;
const SENDERS_BYTES_PER_TRACKED_FLOW: u64 = 32;
/// In the kernel, and in the process during a drain.
const SENDERS_BYTES_PER_FLOW_BEHIND: u64 = 364 + 2 * size_of::<TcpInfo>() as u64;

/// The settings that the sizes of tables depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    pub max_flows: u32,
    pub max_tracked_flows: u64,
    pub max_interfaces: u32,
}

impl Tables {
    /// The bytes of a table for the flows of a page.
    pub fn paged(self, bytes_per_flow: u64) -> u64 {
        u64::from(self.max_flows) * PAGES * bytes_per_flow
    }

    /// The bytes of a table for the flows behind the pages.
    pub fn behind(self, bytes_per_flow: u64) -> u64 {
        2 * u64::from(Size::behind_flows(self.max_flows)) * bytes_per_flow
    }

    /// The bytes of a table of the flow cache.
    pub fn tracked(self, bytes_per_flow: u64) -> u64 {
        self.max_tracked_flows * bytes_per_flow * GROWTH
    }

    /// The bytes of the values noted beside the flows.
    pub(crate) fn senders(self, kinds: Kinds) -> u64 {
        match u64::from(kinds.planes()) {
            0 => 0,
            planes => {
                self.paged(SENDERS_BYTES_PER_FLOW * planes)
                    + self.tracked(SENDERS_BYTES_PER_TRACKED_FLOW)
                    + self.behind(SENDERS_BYTES_PER_FLOW_BEHIND)
            }
        }
    }
}
