//! The arm that counts packets: nothing, the agent, or a packet capture.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Host, Process};

use super::Load;
use crate::{
    capture::Account,
    live::{
        bench::Setup,
        memory::Memory,
        program::{Agent, PATIENCE},
        status::{Status, packets, sum},
    },
};

pub enum Counter {
    Nothing,
    Agent(Box<Agent>),
    Capture(Box<CaptureProcess>),
}

/// Totals since the start, as of the last scan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub scans: u64,
    /// Packets in flows.
    pub counted: u64,
    /// Packets that the parser refused, and are in no flow.
    pub unparsed: u64,
    pub refused: u64,
    /// Refused packets that found the table full.
    pub table_full: u64,
    /// Flows in the last scan.
    pub flows: u64,
    /// Flows in the replica.
    pub tracked: u64,
}

impl Counter {
    pub fn start(arm: &str, host: &Host, load: Load, setup: &Setup) -> Result<Self> {
        let interval = humantime::format_duration(load.interval).to_string();
        match arm {
            "nothing" => Ok(Self::Nothing),
            "agent" => {
                let table = load.table.to_string();
                let usual = [
                    "--max-flows",
                    &table,
                    "--scan-interval",
                    &interval,
                    "--idle-timeout",
                    IDLE_TIMEOUT,
                ];
                // With most of the table in use, early scans would split the traffic of one interval.
                let whole = ["--early-scan", "0"];
                let settings = [&usual[..], if load.fills_table() { &whole } else { &[] }].concat();
                let agent = Agent::start(host, &settings, setup)?;
                Ok(Self::Agent(Box::new(agent)))
            }
            _ => {
                let capture = CaptureProcess::start(host, &interval, setup)?;
                Ok(Self::Capture(Box::new(capture)))
            }
        }
    }

    /// `None` for the arm `nothing`.
    pub fn pid(&mut self) -> Option<u32> {
        match self {
            Self::Nothing => None,
            Self::Agent(agent) => Some(agent.pid()),
            Self::Capture(capture) => Some(capture.process.child().id()),
        }
    }

    /// Fails if the counting process has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        let (name, process) = match self {
            Self::Nothing => return Ok(()),
            Self::Agent(agent) => ("flow-agent", agent.process()),
            Self::Capture(capture) => ("flow-capture", &mut capture.process),
        };
        match process.exited()? {
            Some(status) => bail!("{name} ended with {status}"),
            None => Ok(()),
        }
    }

    pub fn program_ids(&mut self) -> Result<BTreeSet<u32>> {
        match self {
            Self::Nothing | Self::Capture(_) => Ok(BTreeSet::new()),
            Self::Agent(agent) => agent.program_ids(),
        }
    }

    pub fn tally(&self) -> Result<Tally> {
        match self {
            Self::Nothing => Ok(Tally::default()),
            Self::Agent(agent) => tally_of(&agent.status()?),
            Self::Capture(capture) => capture.tally(),
        }
    }

    /// The counter's losses for lack of room between two tallies, and the name of the measure.
    pub fn refused_by(&self, now: Tally, before: Tally) -> (&'static str, f64) {
        if let Self::Agent(_) = self {
            let table_full = now.table_full - before.table_full;
            ("table_full_packets", table_full as f64)
        } else {
            ("dropped_packets", (now.refused - before.refused) as f64)
        }
    }

    /// Zero for the arm `nothing`.
    pub fn memory(&mut self) -> Result<Memory> {
        self.pid().map_or(Ok(Memory::default()), Memory::of)
    }
}

/// Long enough that no flow expires between turns.
const IDLE_TIMEOUT: &str = "1h";

fn tally_of(status: &Status) -> Result<Tally> {
    let account = &status.account;
    Ok(Tally {
        scans: status.scans.count,
        counted: account.flows.packets,
        unparsed: sum(&account.unparsed),
        refused: sum(&account.not_inserted),
        table_full: packets(&account.not_inserted, "table_full")?,
        flows: status.table.occupancy,
        tracked: status.replica.tracked,
    })
}

/// A running `flow-capture`. Dropping it ends it.
pub struct CaptureProcess {
    process: Process,
    lines: PathBuf,
}

impl CaptureProcess {
    /// Returns once it captures.
    fn start(host: &Host, interval: &str, setup: &Setup) -> Result<Self> {
        let binary = std::env::current_exe()
            .context("find this program")?
            .with_file_name("flow-capture");
        ensure!(
            binary.exists(),
            "there is no {}: cargo build --release --package benches --bins",
            binary.display()
        );
        let name = format!("flow-capture-{}-{}", host.namespace.name(), host.ifindex);
        let lines = std::env::temp_dir().join(name);
        let stdout = File::create(&lines).with_context(|| format!("make {}", lines.display()))?;
        let mut command = host.command(binary);
        command
            .args(["--interface", &host.interface])
            .args(["--scan-interval", interval])
            .args(["--idle-timeout", IDLE_TIMEOUT])
            .stdin(Stdio::null())
            .stdout(stdout);
        let mut capture = Self {
            process: Process::spawn(&mut command)?,
            lines,
        };
        let deadline = Instant::now() + PATIENCE;
        while capture.account().is_err() {
            setup.interrupt.sleep(Duration::from_millis(10))?;
            if let Some(status) = capture.process.exited()? {
                bail!("flow-capture ended with {status}");
            }
            ensure!(Instant::now() < deadline, "flow-capture does not count");
        }
        Ok(capture)
    }

    /// The account that it printed after its last scan.
    fn account(&self) -> Result<Account> {
        let text = fs::read_to_string(&self.lines)
            .with_context(|| format!("read {}", self.lines.display()))?;
        // A line is complete only if it ends in a newline.
        let whole = text.rsplit_once('\n').context("no line yet")?.0;
        let line = whole.lines().next_back().context("no line yet")?;
        serde_json::from_str(line).context("parse what flow-capture says")
    }

    fn tally(&self) -> Result<Tally> {
        let account = self.account()?;
        Ok(Tally {
            scans: account.scans,
            counted: account.packets,
            unparsed: account.unparsed,
            refused: account.dropped,
            table_full: 0,
            flows: account.flows,
            tracked: account.tracked,
        })
    }
}

impl Drop for CaptureProcess {
    fn drop(&mut self) {
        // It may have ended already; either way the file is closed afterwards.
        let _ = self.process.terminate(PATIENCE);
        let _ = fs::remove_file(&self.lines);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tally_is_read_from_the_agents_status() {
        let count = |packets: u64| json!({ "packets": packets, "bytes": 0 });
        let status = json!({
            "scans": { "count": 3 },
            "table": { "occupancy": 7 },
            "replica": { "tracked": 8 },
            "consumers": [],
            "account": {
                "seen": count(112), "flows": count(100), "filtered": count(0), "beside": {},
                "unparsed": { "arp": count(1), "llc": count(2) },
                "not_inserted": { "table_full": count(4), "busy": count(5) },
            },
        });
        let mut status: Status = serde_json::from_value(status).unwrap();
        let tally = tally_of(&status).unwrap();
        assert_eq!((tally.scans, tally.flows, tally.tracked), (3, 7, 8));
        assert_eq!((tally.counted, tally.unparsed), (100, 3));
        assert_eq!((tally.refused, tally.table_full), (9, 4));
        status.account.not_inserted.remove("table_full");
        assert!(tally_of(&status).is_err());
    }
}
