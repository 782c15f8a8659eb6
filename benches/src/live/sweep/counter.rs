//! What counts the packets: nothing, the agent, or a packet capture. A host comes in, process ids and
//! tallies go out.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Host, Process};
use serde_json::Value;

use crate::{
    capture::Account,
    live::{cost, program::Agent, rounds::Interrupt},
    resident::Resident,
};

/// To start and to stop, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

pub enum Counter {
    Nothing,
    Agent { agent: Box<Agent>, binary: PathBuf },
    Capture(Box<CaptureProcess>),
}

/// What was counted since the start, as of the last scan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub scans: u64,
    /// Packets in flows.
    pub counted: u64,
    /// Packets that are in no flow, for a reason.
    pub unparsed: u64,
    pub refused: u64,
    /// Of those refused.
    pub table_full: u64,
    /// Flows in the last scan.
    pub flows: u64,
    /// Flows in the replica.
    pub tracked: u64,
}

/// Memory of a process and of what the kernel holds for it.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident_bytes: u64,
    pub kernel_bytes: u64,
}

impl Counter {
    pub fn agent(
        host: &Host,
        binary: &Path,
        table: u32,
        interval: Duration,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (table, interval) = (table.to_string(), text(interval));
        let settings = [
            "--max-flows",
            &table,
            "--scan-interval",
            &interval,
            // Where every flow of the table is in use, half of it would be a scan of its own.
            "--early-scan",
            "0",
            "--idle-timeout",
            IDLE_TIMEOUT,
        ];
        let agent = Agent::start(host, binary, &settings, interrupt)?;
        Ok(Self::Agent {
            agent: Box::new(agent),
            binary: binary.to_owned(),
        })
    }

    pub fn capture(
        host: &Host,
        binary: &Path,
        interval: Duration,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let capture = CaptureProcess::start(host, binary, interval, interrupt)?;
        Ok(Self::Capture(Box::new(capture)))
    }

    /// `None` for nothing.
    pub fn pid(&mut self) -> Option<u32> {
        match self {
            Self::Nothing => None,
            Self::Agent { agent, .. } => Some(agent.pid()),
            Self::Capture(capture) => Some(capture.process.child().id()),
        }
    }

    /// Fails where the process that counts has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        let (name, process) = match self {
            Self::Nothing => return Ok(()),
            Self::Agent { agent, .. } => ("flow-agent", agent.process()),
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
            Self::Agent { agent, .. } => agent.program_ids(),
        }
    }

    pub fn tally(&mut self) -> Result<Tally> {
        match self {
            Self::Nothing => Ok(Tally::default()),
            Self::Agent { agent, binary } => agent_tally(binary, &agent.address()),
            Self::Capture(capture) => Ok(capture.tally()?),
        }
    }

    pub fn memory(&mut self) -> Result<Option<Memory>> {
        let Some(pid) = self.pid() else {
            return Ok(None);
        };
        let resident_bytes = Resident::of(pid)?.now_bytes;
        Ok(Some(match self {
            Self::Capture(capture) => {
                let ring_bytes = capture.account()?.ring_bytes;
                Memory {
                    // Its pages are mapped all at once and count as the process's.
                    resident_bytes: resident_bytes.saturating_sub(ring_bytes),
                    kernel_bytes: ring_bytes,
                }
            }
            Self::Nothing | Self::Agent { .. } => Memory {
                resident_bytes,
                kernel_bytes: cost::map_memory_bytes(pid)?,
            },
        }))
    }
}

/// Flows stay from turn to turn.
const IDLE_TIMEOUT: &str = "1h";

fn text(interval: Duration) -> String {
    format!("{}ms", interval.as_millis())
}

fn agent_tally(binary: &Path, address: &str) -> Result<Tally> {
    let mut command = Command::new(binary);
    command.args(["status", "--connect", address, "--output", "json"]);
    let output = command.output().context("start flow-agent status")?;
    ensure!(
        output.status.success(),
        "flow-agent status: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    tally_of(&serde_json::from_slice(&output.stdout).context("parse the agent's status")?)
}

fn tally_of(status: &Value) -> Result<Tally> {
    let number = |path: &str| {
        status
            .pointer(path)
            .and_then(Value::as_u64)
            .with_context(|| format!("the agent's status has no {path}"))
    };
    let sum = |path: &str| -> Result<u64> {
        let reasons = status.pointer(path).and_then(Value::as_object);
        let reasons = reasons.with_context(|| format!("the agent's status has no {path}"))?;
        Ok(reasons
            .values()
            .filter_map(|count| count.get("packets")?.as_u64())
            .sum())
    };
    Ok(Tally {
        scans: number("/scans/count")?,
        counted: number("/account/flows/packets")?,
        unparsed: sum("/account/unparsed")?,
        refused: sum("/account/not_inserted")?,
        table_full: number("/account/not_inserted/table_full/packets")?,
        flows: number("/table/occupancy")?,
        tracked: number("/replica/tracked")?,
    })
}

/// A running `flow-capture` that ends with the value.
pub struct CaptureProcess {
    process: Process,
    lines: PathBuf,
}

impl CaptureProcess {
    /// Returns when it captures.
    fn start(
        host: &Host,
        binary: &Path,
        interval: Duration,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let name = format!("flow-capture-{}-{}", host.namespace.name(), host.ifindex);
        let lines = std::env::temp_dir().join(name);
        let stdout = File::create(&lines).with_context(|| format!("make {}", lines.display()))?;
        let mut command = host.command(binary);
        command
            .args(["--interface", &host.interface])
            .args(["--scan-interval", &text(interval)])
            .args(["--idle-timeout", IDLE_TIMEOUT])
            .stdin(Stdio::null())
            .stdout(stdout);
        let mut capture = Self {
            process: Process::spawn(&mut command)?,
            lines,
        };
        let deadline = Instant::now() + PATIENCE;
        while capture.account().is_err() {
            interrupt.check()?;
            if let Some(status) = capture.process.exited()? {
                bail!("flow-capture ended with {status}");
            }
            ensure!(Instant::now() < deadline, "flow-capture does not count");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(capture)
    }

    /// Of its last scan.
    fn account(&self) -> Result<Account> {
        let text = fs::read_to_string(&self.lines)
            .with_context(|| format!("read {}", self.lines.display()))?;
        // A line is whole when it is ended.
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
        // It may have ended before, and then nobody holds the file either way.
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
            "account": {
                "flows": count(100),
                "unparsed": { "arp": count(1), "llc": count(2) },
                "not_inserted": { "table_full": count(4), "busy": count(5) },
            },
        });
        let tally = tally_of(&status).unwrap();
        assert_eq!((tally.scans, tally.flows, tally.tracked), (3, 7, 8));
        assert_eq!((tally.counted, tally.unparsed), (100, 3));
        assert_eq!((tally.refused, tally.table_full), (9, 4));
        assert!(tally_of(&json!({})).is_err());
    }
}
