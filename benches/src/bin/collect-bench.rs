//! What a collector costs: streams of agents send flows as fast as they are acknowledged, by the agent's own output.
//!
//!     cargo run --release -p benches --bin collect-bench -- target/release/flow-agent --output jsonl=/var/tmp/flows.jsonl

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::Ipv4Addr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use agent::{
    batch::{Batch, BatchEncoder, Identity, ScanHeader, ScanTrailer},
    community_id::community_id,
    hub::{DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES, Hub},
    outputs::{
        Outputs,
        settings::{Wish, Wishes},
    },
    record::Record,
};
use agent_common::{Counts, Direction, FlowKey, HookAccount, L4Kind, protocol::TCP};
use anyhow::{Context as _, Result, bail};
use clap::Parser;
use tokio::time::sleep;

/// Measures what a collector takes of streams of agents.
#[derive(Parser)]
struct Arguments {
    /// The binary whose `collect` is measured
    binary: PathBuf,
    /// What `collect` gets, repeatable
    #[arg(long, required = true)]
    output: Vec<String>,
    /// Agents that send
    #[arg(long, default_value_t = 8)]
    streams: usize,
    /// Flows in each scan of an agent
    #[arg(long, default_value_t = 50_000)]
    flows: u32,
    /// Scans of each agent
    #[arg(long, default_value_t = 5)]
    scans: u64,
    /// Between two scans, at least
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration)]
    interval: Duration,
}

struct Collector {
    process: Child,
    address: String,
}

impl Collector {
    fn start(arguments: &Arguments) -> Result<Self> {
        let mut command = Command::new(&arguments.binary);
        command.args(["collect", "--listen", "127.0.0.1:0"]);
        command.args(["--max-agents", "10000"]);
        for output in &arguments.output {
            command.args(["--output", output]);
        }
        command.env("NO_COLOR", "1").stdout(Stdio::null());
        let mut process = command
            .stderr(Stdio::piped())
            .spawn()
            .context("start a collector")?;
        let stderr = process.stderr.take().context("its log is piped")?;
        let mut lines = BufReader::new(stderr).lines();
        let address = loop {
            let line = lines.next().context("the collector has ended")??;
            let word = line
                .split(' ')
                .find_map(|word| word.strip_prefix("address="));
            match word {
                Some(address) if line.contains("listening") => break address.to_owned(),
                _ => eprintln!("{line}"),
            }
        };
        // It may say more, and must not wait for somebody to read it.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("{line}");
            }
        });
        Ok(Self { process, address })
    }

    /// In user space and in the kernel, since it started, to 10 ms.
    fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // Behind the name, which may have anything in it.
        let (_, rest) = stat.rsplit_once(')').context("/proc tells the name")?;
        let ticks = rest.split_whitespace().skip(11).take(2);
        let ticks = ticks.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(10 * ticks))
    }

    fn memory(&self, name: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.context("/proc tells the memory")? << 10)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let collector = Collector::start(&arguments)?;
    let mut agents = Vec::new();
    for number in 0..arguments.streams {
        let output = format!("collector=http://{}", collector.address);
        let Wishes(wishes) = output.parse()?;
        let [Wish::Output(output)] = &wishes[..] else {
            bail!("{output} is one output");
        };
        let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
        let outputs = Outputs::start(&hub, vec![output.clone().prepare()?]);
        let scan = scan(number, arguments.flows);
        agents.push((hub, outputs, scan));
    }
    let bytes: usize = agents
        .iter()
        .flat_map(|(_, _, scan)| scan)
        .map(|batch| batch.body.len())
        .sum();
    let all = arguments.scans * arguments.streams as u64 * u64::from(arguments.flows);

    let (begin, cpu) = (Instant::now(), collector.cpu()?);
    for number in 1..=arguments.scans {
        let next = Instant::now() + arguments.interval;
        for (hub, outputs, scan) in &agents {
            // The queue has a bound.
            while outputs.status()[0].queued.unwrap_or_default().records > 0 {
                sleep(Duration::from_millis(1)).await;
            }
            for batch in scan {
                hub.publish(&Batch {
                    scan_id: number,
                    ..batch.clone()
                });
            }
        }
        sleep(next.saturating_duration_since(Instant::now())).await;
    }
    loop {
        let sent = agents
            .iter()
            .map(|(_, outputs, _)| outputs.status()[0].clone());
        let (mut acknowledged, mut lost) = (0, 0);
        for output in sent {
            acknowledged += output.sent.unwrap_or_default().records;
            lost += output.lost.unwrap_or_default().records;
        }
        if lost > 0 {
            bail!("{lost} records were lost on the way");
        }
        if acknowledged == all {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    let (took, cpu) = (begin.elapsed(), collector.cpu()?.saturating_sub(cpu));

    let figures = serde_json::json!({
        "outputs": arguments.output,
        "streams": arguments.streams,
        "flows": all,
        "seconds": took.as_secs_f64(),
        "flows_per_second": all as f64 / took.as_secs_f64(),
        "cpu_ns_per_flow": cpu.as_nanos() as f64 / all.max(1) as f64,
        "cpu_seconds": cpu.as_secs_f64(),
        "bytes_per_flow": bytes as f64 / (all / arguments.scans).max(1) as f64,
        "resident_bytes": collector.memory("VmRSS:")?,
        "peak_resident_bytes": collector.memory("VmHWM:")?,
    });
    println!("{figures:#}");
    Ok(())
}

/// The batches of one scan of an agent.
fn scan(number: usize, flows: u32) -> Vec<Batch> {
    let identity = Identity {
        agent_id: format!("agent-{number}"),
        hostname: format!("host-{number}"),
        boot_id: "bench".to_owned(),
        instance_id: format!("bench-{number}"),
        ..Identity::default()
    };
    let mut encoder = BatchEncoder::new(Arc::new(identity));
    let begin = 1_800_000_000_000_000_000;
    let header = ScanHeader {
        scan_id: 1,
        window_start_unix_ns: begin,
        window_end_unix_ns: begin + 10_000_000_000,
        capacity: 500_000,
        refused_in_window: false,
        interfaces: Vec::new().into(),
    };
    let mut batches = Vec::new();
    encoder.begin(&header);
    for flow in 0..flows {
        encoder.push(&record(flow, begin), &mut |batch| batches.push(batch));
    }
    let trailer = ScanTrailer {
        occupancy: flows.into(),
        tracked: flows.into(),
        account: &HookAccount::default(),
        is_final: false,
    };
    encoder.finish(&trailer, &mut |batch| batches.push(batch));
    batches
}

/// A connection of a client to one of some servers, with answers.
fn record(flow: u32, begin: u64) -> Record {
    let mut key = FlowKey {
        port_a: 1024 + (flow % 60_000) as u16,
        port_b: 443,
        ifindex: 2,
        netns: 4_026_531_840,
        ip_version: 4,
        protocol: TCP,
        l4_kind: L4Kind::Ports as u8,
        ..FlowKey::default()
    };
    let client = Ipv4Addr::from_bits(0x0a01_0000 + flow / 7);
    key.addr_a[..4].copy_from_slice(&client.octets());
    key.addr_b[..4].copy_from_slice(&[192, 0, 2, (flow % 100) as u8]);
    let counts = |packets: u64| Counts {
        packets,
        bytes: packets * 700,
        ip_bytes: packets * 686,
    };
    let packets = u64::from(flow % 90) + 1;
    Record {
        key,
        initiator: 0,
        direction: Direction::Egress,
        reverse_direction: Direction::Ingress,
        delta: [counts(packets), counts(2 * packets)],
        total: [counts(9 * packets), counts(18 * packets)],
        first_seen_unix_ns: begin - u64::from(flow) * 1_000_003,
        last_seen_unix_ns: begin + u64::from(flow) * 10_007,
        tcp_flags: [0x1a, 0x1a],
        dscp: 0,
        end_reason: None,
        community_id: community_id(&key, 0),
        outer: None,
    }
}
