//! An agent's losses: packets that are in no flow, by reason.

use std::time::{Duration, Instant};

use anyhow::Result;
use lab::{Counters, Host};

use crate::live::{
    interrupt::Interrupt,
    program::Agent,
    status::{Status, packets, sum},
};

/// Packets between the agent's attach and its last scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub seen: u64,
    /// Packets that the table refused, for any reason.
    pub not_inserted: u64,
    /// Packets seen by the hooks but missing from the account; negative if some were counted twice.
    pub missing: i64,
    /// Packets that the interface counted and the hooks did not see.
    pub unseen: i64,
    /// Records that did not reach the consumer.
    pub lost_records: u64,
}

/// Open it before the agent attaches and while the wire is idle.
pub struct Ledger<'a> {
    host: &'a Host,
    before: Counters,
}

impl<'a> Ledger<'a> {
    pub fn open(host: &'a Host) -> Result<Self> {
        let before = host.counters()?;
        Ok(Self { host, before })
    }

    /// Call it after the traffic has ended. Waits up to `patience` until the agent has scanned all of it.
    pub fn close(&self, agent: &Agent, patience: Duration, interrupt: &Interrupt) -> Result<Loss> {
        let deadline = Instant::now() + patience;
        loop {
            // The server closes its connections only after the client has exited.
            let wire = self.host.counters()? - self.before;
            let loss = loss(&agent.status()?, wire.rx_packets + wire.tx_packets)?;
            if loss.unseen == 0 || Instant::now() > deadline {
                return Ok(loss);
            }
            interrupt.sleep(Duration::from_millis(200))?;
        }
    }
}

/// `on_the_wire` is the number of skbs that the interface counted in both directions.
fn loss(status: &Status, on_the_wire: u64) -> Result<Loss> {
    let account = &status.account;
    let seen = account.seen.packets;
    let not_inserted = sum(&account.not_inserted);
    let placed = account.flows.packets
        + account.filtered.packets
        + account.sampled_out.packets
        + sum(&account.unparsed)
        + not_inserted;
    // The interface counts a super-frame once.
    let seen_skbs = seen + packets(&account.beside, "super_frames")?
        - packets(&account.beside, "super_frame_segments")?;
    let consumers = status.consumers.iter();
    Ok(Loss {
        seen,
        not_inserted,
        missing: seen.cast_signed() - placed.cast_signed(),
        unseen: on_the_wire.cast_signed() - seen_skbs.cast_signed(),
        lost_records: consumers.map(|consumer| consumer.lost_records).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lost_packet_shows_where_it_was_lost() {
        let text = r#"{
            "account": {
                "seen": { "packets": 100 }, "flows": { "packets": 80 }, "filtered": { "packets": 1 },
                "unparsed": { "arp": { "packets": 2 } },
                "not_inserted": { "busy": { "packets": 3 }, "table_full": { "packets": 4 } },
                "beside": { "super_frames": { "packets": 2 },
                            "super_frame_segments": { "packets": 12 } }
            },
            "consumers": [{ "lost_records": 5 }],
            "replica": { "tracked": 0 }, "scans": { "count": 0 }, "table": { "occupancy": 0 }
        }"#;
        let status: Status = serde_json::from_str(text).unwrap();
        let expected = Loss {
            seen: 100,
            not_inserted: 7,
            missing: 10,
            unseen: 6,
            lost_records: 5,
        };
        assert_eq!(loss(&status, 96).unwrap(), expected);
    }
}
