//! What an agent lost: its status comes in, packets that are in no flow go out, by what became of
//! them.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{Counters, Host};
use serde::Deserialize;

use crate::live::rounds::Interrupt;

/// Of `flow-agent status --output json`, what is needed here.
#[derive(Deserialize)]
struct Status {
    account: Account,
    consumers: Vec<Consumer>,
}

#[derive(Deserialize)]
struct Consumer {
    lost_records: u64,
}

#[derive(Deserialize)]
struct Account {
    seen: Count,
    flows: Count,
    filtered: Count,
    #[serde(default)]
    sampled_out: Count,
    unparsed: BTreeMap<String, Count>,
    not_inserted: BTreeMap<String, Count>,
    beside: BTreeMap<String, Count>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct Count {
    packets: u64,
}

/// Packets from the agent's attach to the last scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub seen: u64,
    /// Refused by the table, for any reason.
    pub not_inserted: u64,
    /// In no place of the account; negative where something counted twice.
    pub missing: i64,
    /// What the interface counted and the hooks did not see.
    pub unseen: i64,
    /// Records that the consumer did not get.
    pub lost_records: u64,
}

/// Starts where nothing moves on the wire, before the agent is attached.
pub struct Ledger<'a> {
    host: &'a Host,
    before: Counters,
}

impl<'a> Ledger<'a> {
    pub fn open(host: &'a Host) -> Result<Self> {
        let before = host.counters()?;
        Ok(Self { host, before })
    }

    /// Once the traffic has ended: waits until the agent has scanned all of it, at most so long.
    pub fn close(
        &self,
        binary: &Path,
        address: &str,
        patience: Duration,
        interrupt: &Interrupt,
    ) -> Result<Loss> {
        let deadline = Instant::now() + patience;
        loop {
            // The server closes its connections after the client has gone.
            let wire = self.host.counters()? - self.before;
            let status = status(binary, address)?;
            let loss = status.loss(wire.rx_packets + wire.tx_packets);
            if loss.unseen == 0 || Instant::now() > deadline {
                return Ok(loss);
            }
            interrupt.sleep(Duration::from_millis(200))?;
        }
    }
}

fn status(binary: &Path, address: &str) -> Result<Status> {
    let output = Command::new(binary)
        .args(["status", "--connect", address, "--output", "json"])
        .stdin(Stdio::null())
        .output()
        .context("start flow-agent status")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "flow-agent status: {}",
        stderr.trim()
    );
    serde_json::from_slice(&output.stdout).context("parse the agent's status")
}

impl Status {
    /// `on_the_wire` are the skbs that the interface counted in both directions.
    fn loss(&self, on_the_wire: u64) -> Loss {
        let account = &self.account;
        let sum = |reasons: &BTreeMap<String, Count>| -> u64 {
            reasons.values().map(|count| count.packets).sum()
        };
        let beside = |name: &str| {
            account
                .beside
                .get(name)
                .copied()
                .unwrap_or_default()
                .packets
        };
        let not_inserted = sum(&account.not_inserted);
        let placed = account.flows.packets
            + account.filtered.packets
            + account.sampled_out.packets
            + sum(&account.unparsed)
            + not_inserted;
        // The interface counts a super-frame once.
        let seen_skbs =
            account.seen.packets + beside("super_frames") - beside("super_frame_segments");
        Loss {
            seen: account.seen.packets,
            not_inserted,
            missing: account.seen.packets.cast_signed() - placed.cast_signed(),
            unseen: on_the_wire.cast_signed() - seen_skbs.cast_signed(),
            lost_records: self
                .consumers
                .iter()
                .map(|consumer| consumer.lost_records)
                .sum(),
        }
    }
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
            "consumers": [{ "lost_records": 5 }]
        }"#;
        let status: Status = serde_json::from_str(text).unwrap();
        let expected = Loss {
            seen: 100,
            not_inserted: 7,
            missing: 10,
            unseen: 6,
            lost_records: 5,
        };
        assert_eq!(status.loss(96), expected);
    }
}
