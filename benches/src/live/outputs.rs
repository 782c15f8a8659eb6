//! The CPU time that each output adds per flow, and the bytes that it produces per flow: an agent with half a million
//! flows, each reported in every scan, for different destinations of the reports.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process};
use tempfile::TempDir;

use super::{
    affinity,
    bench::{
        Bench, Group, Labels, Lifetime, Measures, Plan, Setup, Station, Turns, labels, notes,
        station,
    },
    cost::process_cpu_ns,
    host::Host,
    interrupt::Interrupt,
    pacer::Pace,
    program::{Agent, PATIENCE},
    sender::{Sender, Sent},
    sinks::Sink,
};

const FLOWS: u32 = 500_000;
const INTERVAL: Duration = Duration::from_secs(2);
/// Each flow sends one packet per interval.
const PACKETS_PER_SECOND: u64 = FLOWS as u64 / INTERVAL.as_secs();
const FRAME_LEN_BYTES: usize = 64;
const PACE: Pace = Pace {
    most_at_once: 250,
    pause: Duration::from_millis(1),
    longest_stall: Duration::from_millis(250),
};
const PORT: u16 = 4739;

/// The destination of an arm's reports.
#[derive(Clone, Copy)]
enum To {
    Nowhere,
    /// A consumer of the agent's own stream.
    Consumer,
    /// The output's settings table without its address, and the name of the file.
    File(&'static str, &'static str),
    /// The scheme before the address, and the server to start.
    Server(&'static str, fn(&Lab, u16) -> Result<Sink>),
    /// As `Server`, but with a server that accepts connections and does nothing else.
    Silence(&'static str),
}

const CONTROL: &str = "no output";

const ARMS: [(&str, To); 12] = [
    (CONTROL, To::Nowhere),
    ("one consumer", To::Consumer),
    (
        "ipfix file",
        To::File(r#""kind": "ipfix", "compression": "none""#, "flows.ipfix"),
    ),
    (
        "ipfix uniflow file",
        To::File(
            r#""kind": "ipfix", "compression": "none", "uniflow": true"#,
            "flows.ipfix",
        ),
    ),
    ("ipfix over UDP", To::Server("ipfix=udp", Sink::datagrams)),
    ("ipfix over TCP", To::Server("ipfix=tcp", Sink::stream)),
    ("pbflow", To::Server("pbflow=http", Sink::calls)),
    ("otlp", To::Server("otlp=http", Sink::calls)),
    (
        "jsonl file",
        To::File(r#""kind": "jsonl", "compression": "none""#, "flows.jsonl"),
    ),
    (
        "parquet files",
        To::File(r#""kind": "parquet", "rotate_after": "4s""#, ""),
    ),
    ("ipfix over TCP, unread", To::Silence("ipfix=tcp")),
    ("otlp, unanswered", To::Silence("otlp=http")),
];

#[derive(clap::Args)]
pub struct Outputs;

impl Bench for Outputs {
    const NAME: &'static str = "outputs";

    const IS_URGENT: bool = true;

    type Load = ();

    fn plan(&self, _: &Setup) -> Result<Plan<()>> {
        let arms = ARMS.map(|(name, _)| name);
        Ok(Plan {
            groups: vec![Group::new(Lifetime::Turn, arms, &())],
            notes: notes(&NOTES),
        })
    }

    fn labels((): &()) -> Labels {
        labels([
            ("flows", &FLOWS),
            ("scan_interval", &humantime::format_duration(INTERVAL)),
        ])
    }

    fn station(&self, arm: &str, (): &(), setup: &Setup) -> Result<Box<dyn Station>> {
        let arm = ARMS.into_iter().find(|(name, _)| *name == arm);
        let (_, to) = arm.context("no arm has this name")?;
        let mut counted = Counted::new(to, setup)?;
        Ok(station(move |setup| counted.measure(setup)))
    }

    /// The CPU time that each output adds.
    fn derive(turns: &Turns, _: &Host) -> Vec<(String, &'static str, f64)> {
        let Some(control_ns) = turns.get(CONTROL, CPU_NS) else {
            return Vec::new();
        };
        turns
            .of(CPU_NS)
            .filter(|(arm, _)| *arm != CONTROL)
            .map(|(arm, ns)| (arm.to_owned(), "added_ns_per_report", ns - control_ns))
            .collect()
    }
}

const CPU_NS: &str = "process_cpu_ns_per_report";

const NOTES: [&str; 6] = [
    "One thread on a CPU of its own sends UDP frames of 64 bytes, each flow once a scan interval; the agent runs on \
     the other CPUs, as its consumer does.",
    "process_cpu_ns_per_report is the CPU time of the agent's process, all threads, over the packets that were sent \
     meanwhile, each of which is its flow's report of a scan; the window is whole scan intervals. \
     added_ns_per_report is that less the arm without an output in the same round.",
    "bytes_per_report is what came into files or a socket over the records that the agent counts as sent.",
    "Parquet files are completed every four seconds, so that their completion is in the figure; those of other formats \
     are not compressed.",
    "scan_us is how long a scan took on average, and scan_lateness_us how much later than due it began, as \
     the agent tells both. The last two arms have a receiver that takes connections and never reads: the queue is full \
     and the output loses flows, while scans keep their time.",
    "Requests of otlp are compressed by gzip, as they are unless a setting says otherwise; those of pbflow are not.",
];

/// An agent with one output, on its own wire.
struct Counted {
    agent: Agent,
    sender: Sender,
    interrupt: Interrupt,
    to: To,
    folder: TempDir,
    sink: Option<Sink>,
    _consumer: Option<Process>,
    _lab: Lab,
}

impl Counted {
    fn new(to: To, setup: &Setup) -> Result<Self> {
        let lab = Lab::quiet()?;
        let folder = TempDir::with_prefix("flow-bench-outputs-").context("make a folder")?;
        let interval = humantime::format_duration(INTERVAL).to_string();
        let flows = FLOWS.to_string();
        let mut settings = vec![
            "--max-flows",
            &flows,
            "--scan-interval",
            &interval,
            "--early-scan",
            "0",
            "--idle-timeout",
            "1h",
        ];
        let output = match to {
            To::Nowhere | To::Consumer => None,
            To::File(table, name) => {
                let path = match name {
                    "" => folder.path().to_owned(),
                    name => folder.path().join(name),
                };
                Some(format!(r#"{{{table}, "address": "{}"}}"#, path.display()))
            }
            To::Server(scheme, _) | To::Silence(scheme) => {
                Some(format!("{scheme}://127.0.0.1:{PORT}"))
            }
        };
        if let Some(output) = &output {
            settings.extend(["--output", output]);
        }
        let sink = match to {
            To::Server(_, listen) => Some(listen(&lab, PORT)?),
            To::Silence(_) => Some(Sink::silence(&lab, PORT)?),
            To::Nowhere | To::Consumer | To::File(..) => None,
        };
        let mut agent = Agent::start(&lab.agent, &settings, setup)?;
        agent.keep_off_sender()?;
        let consumer = match to {
            To::Consumer => {
                let mut consumer = agent.watch()?;
                affinity::keep_off_sender(consumer.child().id())?;
                Some(consumer)
            }
            To::Nowhere | To::File(..) | To::Server(..) | To::Silence(_) => None,
        };
        Ok(Self {
            sender: Sender::new(&lab, FRAME_LEN_BYTES, Some(FLOWS), PACE)?,
            interrupt: setup.interrupt.clone(),
            agent,
            to,
            folder,
            sink,
            _consumer: consumer,
            _lab: lab,
        })
    }

    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        let window = whole_intervals(setup.window(Duration::from_secs(8)));
        let pid = self.agent.pid();
        let Self {
            agent,
            sender,
            interrupt,
            ..
        } = self;
        let (during, sending) = sender.during(PACKETS_PER_SECOND, |sent| {
            until_steady(agent, interrupt)?;
            let before = agent.status()?.scans;
            let spent = Spent::during(window, pid, sent, interrupt)?;
            Ok((spent, before, agent.status()?.scans))
        })?;
        let (spent, before, after) = during;
        ensure!(
            sending.packets_per_second() > PACKETS_PER_SECOND * 9 / 10,
            "the sender reached {} packets a second instead of {PACKETS_PER_SECOND}: this machine is too busy",
            sending.packets_per_second()
        );
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        let scan = after.durations.mean_since(&before.durations)?;
        let lateness = after.lateness.mean_since(&before.lateness)?;
        let mut measures = vec![
            (CPU_NS, spent.cpu_ns as f64 / spent.packets as f64),
            ("scan_us", us(scan)),
            ("scan_lateness_us", us(lateness)),
        ];
        if let Some(bytes) = self.bytes_of(sending.packets)? {
            measures.push(("bytes_per_report", bytes));
        }
        Ok(measures)
    }

    /// Bytes per record of everything that this output has sent, once the packets have been reported.
    fn bytes_of(&mut self, packets: u64) -> Result<Option<f64>> {
        let is_counted = match self.to {
            To::Nowhere | To::Consumer | To::Silence(_) => return Ok(None),
            To::File(..) | To::Server(..) => {
                let deadline = Instant::now() + PATIENCE;
                loop {
                    let status = self.agent.status()?;
                    let output = status.outputs.first().context("the agent has no output")?;
                    ensure!(
                        output.lost.packets == 0,
                        "the output lost {} packets",
                        output.lost.packets
                    );
                    if output.sent.packets >= packets {
                        break output.sent.records;
                    }
                    ensure!(Instant::now() < deadline, "not every flow was sent");
                    self.interrupt.sleep(Duration::from_millis(100))?;
                }
            }
        };
        let bytes = match &self.sink {
            Some(sink) => sink.bytes(),
            None => bytes_in(self.folder.path())?,
        };
        Ok(Some(bytes as f64 / is_counted as f64))
    }
}

/// Waits until a scan has reported every flow, so that the window has no new flows.
fn until_steady(agent: &Agent, interrupt: &Interrupt) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = agent.status()?;
        if status.replica.tracked >= FLOWS.into() {
            // Stay clear of the scan that reported the last flows.
            return interrupt.sleep(INTERVAL / 2);
        }
        ensure!(Instant::now() < deadline, "not every flow is tracked");
        interrupt.sleep(Duration::from_millis(50))?;
    }
}

/// CPU time and packets in a window.
struct Spent {
    cpu_ns: u64,
    packets: u64,
}

impl Spent {
    fn during(window: Duration, pid: u32, sent: &Sent, interrupt: &Interrupt) -> Result<Self> {
        let before = (process_cpu_ns(pid)?, sent.so_far().0);
        interrupt.sleep(window)?;
        Ok(Self {
            cpu_ns: process_cpu_ns(pid)? - before.0,
            packets: sent.so_far().0 - before.1,
        })
    }
}

fn whole_intervals(time: Duration) -> Duration {
    INTERVAL * u32::try_from(time.as_nanos().div_ceil(INTERVAL.as_nanos())).unwrap_or(u32::MAX)
}

/// The size of all files below a folder, including incomplete ones.
fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            bytes_in(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_whole_scan_intervals() {
        for (millis, whole) in [(1, 2), (2_000, 2), (2_001, 4), (8_000, 8)] {
            let window = whole_intervals(Duration::from_millis(millis));
            assert_eq!(window, Duration::from_secs(whole), "{millis}");
        }
    }

    #[test]
    fn bytes_are_those_of_all_files_below() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("a"), [0; 3]).unwrap();
        fs::write(folder.path().join("below/.b"), [0; 4]).unwrap();
        assert_eq!(bytes_in(folder.path()).unwrap(), 7);
    }
}
