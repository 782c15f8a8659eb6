//! ICMP errors, which tell the fate of the packets that they quote.
//!
//! The programs hand over each error ([`kernel::icmp_errors`]). [`icmp_error`] finds the flow that it is about. The check of
//! [`dns`](crate::dns) covers these programs: loading them again would take the kernel another second.

use anyhow::Context as _;
use flows::icmp_error::{self, QuotedPacket};
use kernel::icmp_errors::RING_LEN_BYTES;

use crate::kind::{
    AgentStatus, Kernel, Kind, LoadSettings, Replica, Result, Scanned, Settings, Tables,
};

const BYTES_PER_TRACKED_FLOW: u64 = 6;
/// Errors that wait for their flows.
const WAITING_BYTES: u64 = 2 << 20;

pub struct Icmp {
    /// Errors whose quoted packet could not be parsed.
    unread: u64,
}

impl Kind for Icmp {
    fn load(_: &Settings, load: &mut LoadSettings) -> Result<()> {
        load.icmp_errors = true;
        Ok(())
    }

    fn start(_: &Settings, _: &LoadSettings, _: &mut Kernel) -> Result<Self> {
        Ok(Self { unread: 0 })
    }

    fn most_bytes(_: &Settings, tables: &Tables) -> u64 {
        u64::from(RING_LEN_BYTES) + tables.tracked(BYTES_PER_TRACKED_FLOW) + WAITING_BYTES
    }

    fn drain(&mut self, _: u32, kernel: &mut Kernel, replica: &mut Replica) -> Result<()> {
        let taken = kernel.icmp_errors.take(|message| {
            if icmp_error::is_fragmentation_needed(message) {
                return;
            }
            match icmp_error::quoted_packet(message) {
                Some(quoted) => {
                    let QuotedPacket {
                        key,
                        direction,
                        error,
                    } = quoted;
                    replica.note_error(&key, direction, error, message.seen_ns);
                }
                None => self.unread += 1,
            }
        });
        taken.context("ICMP errors that quote packets of flows")
    }

    fn report(&self, scanned: &Scanned<'_>, status: &mut AgentStatus) {
        let replica = status.replica.get_or_insert_default();
        replica.lost_icmp_errors = scanned.kernel.icmp_errors.lost() + self.unread;
        replica.unmatched_icmp_errors = scanned.replica.unmatched_errors();
    }
}
