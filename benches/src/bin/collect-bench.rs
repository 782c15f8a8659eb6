//! Measures a collector: several agents send flows through the agent's own output, as fast as the collector
//! acknowledges.
//!
//!     cargo run --release -p benches --bin collect-bench -- target/release/flow-agent --output jsonl=/var/tmp/flows.jsonl
//!
//! With `--beside`, goflow2 takes turns with the collector. It receives the same flows as IPFIX over UDP and writes
//! them to a file as protobuf, since its JSON costs eight times the CPU. UDP has no back-pressure, so both get the
//! flows at the same pace (`--interval`), and the figures include goflow2's losses.

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use agent_common::{Counts, FlowKey, HookAccount, L4Kind, protocol::TCP};
use anyhow::{Context as _, Result, bail};
use benches::live::result::Figure;
use clap::Parser;
use exporters::{
    Outputs,
    settings::{OutputArg, OutputArgs},
};
use flows::encoder::{BatchEncoder, ScanHeader, ScanTrailer};
use hub::{DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES, Hub};
use proto::{
    batch::{Batch, Identity},
    community_id::community_id,
    record::Record,
};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Measures what a collector takes of streams of agents.
#[derive(Parser)]
struct Arguments {
    /// The binary whose `collect` is measured
    binary: PathBuf,
    /// What `collect` gets, repeatable
    #[arg(long, required = true)]
    output: Vec<String>,
    /// A further argument of `collect`, such as --with=--conversations --with=jsonl=/var/tmp/conversations.jsonl; repeatable
    #[arg(long, allow_hyphen_values = true)]
    with: Vec<String>,
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
    /// goflow2's binary, which takes the same flows in turn
    #[arg(long)]
    beside: Option<PathBuf>,
    /// How often to measure
    #[arg(long, default_value_t = 1)]
    rounds: u32,
}

impl Arguments {
    /// The flows that all agents send.
    fn all(&self) -> u64 {
        self.scans * self.streams as u64 * u64::from(self.flows)
    }
}

/// A process that receives flows.
struct Receiver {
    process: Child,
    /// The agent's output setting that sends to this process.
    output: String,
}

impl Receiver {
    fn ours(arguments: &Arguments) -> Result<Self> {
        let mut command = Command::new(&arguments.binary);
        command.args(["collect", "--listen", "127.0.0.1:0"]);
        command.args(["--max-agents", "10000"]);
        for output in &arguments.output {
            command.args(["--output", output]);
        }
        command.args(&arguments.with);
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
        // Keep reading: a full pipe would block the process.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("{line}");
            }
        });
        let output = format!("collector=http://{address}");
        Ok(Self { process, output })
    }

    fn goflow2(program: &Path, file: &Path) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("find a free port")?;
        let port = socket.local_addr()?.port();
        drop(socket);
        let process = Command::new(program)
            .args(["-listen", &format!("netflow://127.0.0.1:{port}?workers=1")])
            .args(["-addr", "127.0.0.1:0", "-format", "bin"])
            .args(["-transport", "file", "-transport.file.sep", ""])
            .arg("-transport.file")
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start goflow2")?;
        let listening = format!("0100007F:{port:04X} ");
        for _ in 0..1000 {
            if fs::read_to_string("/proc/net/udp")?.contains(&listening) {
                let output = json!({
                    "kind": "ipfix",
                    "address": format!("udp://127.0.0.1:{port}"),
                    // One record per direction: goflow2 ignores the reverse counters.
                    "uniflow": true,
                });
                let output = output.to_string();
                return Ok(Self { process, output });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("goflow2 does not listen after ten seconds");
    }

    /// User and kernel time since the process started, in steps of 10 ms.
    fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // Skip the name, which may contain any character.
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

impl Drop for Receiver {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Agents that send to one receiver.
struct Agents<'a> {
    arguments: &'a Arguments,
    agents: Vec<(Hub, Outputs, Vec<Batch>)>,
}

impl<'a> Agents<'a> {
    fn start(arguments: &'a Arguments, output: &str) -> Result<Self> {
        let agent = |number| {
            let OutputArgs(args) = output.parse()?;
            let [OutputArg::Output(output)] = &args[..] else {
                bail!("{output} is one output");
            };
            let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
            let outputs = Outputs::start(&hub, vec![output.clone().prepare()?]);
            Ok((hub, outputs, scan(number, arguments.flows)))
        };
        Ok(Self {
            arguments,
            agents: (0..arguments.streams).map(agent).collect::<Result<_>>()?,
        })
    }

    /// Uncompressed bytes.
    fn bytes_per_flow(&self) -> f64 {
        let batches = self.agents.iter().flat_map(|(_, _, scan)| scan);
        let bytes: usize = batches.map(|batch| batch.body.len()).sum();
        let flows = self.arguments.all() / self.arguments.scans;
        bytes as f64 / flows.max(1) as f64
    }

    /// Sends all scans, and waits until the outputs have sent the flows.
    async fn send(&self) -> Result<()> {
        for number in 1..=self.arguments.scans {
            let next = Instant::now() + self.arguments.interval;
            for (hub, outputs, scan) in &self.agents {
                // The queue is bounded.
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
            let (mut sent, mut lost) = (0, 0);
            for (_, outputs, _) in &self.agents {
                let output = &outputs.status()[0];
                sent += output.sent.unwrap_or_default().records;
                lost += output.lost.unwrap_or_default().records;
            }
            if lost > 0 {
                bail!("{lost} records were lost on the way");
            }
            if sent == self.arguments.all() {
                return Ok(());
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.beside.is_some() && arguments.interval.is_zero() {
        bail!(
            "nothing slows down who sends to goflow2: say how often each agent sends (--interval)"
        );
    }
    let mut ratios = Vec::new();
    for round in 1..=arguments.rounds {
        let (figures, ours) = ours(&arguments).await?;
        println!("{figures:#}");
        if let Some(program) = &arguments.beside {
            let (figures, theirs, lost) = goflow2(&arguments, program).await?;
            println!("{figures:#}");
            let ratio = ours / theirs;
            ratios.push(ratio);
            println!(
                "round {round}: {ratio:.3} of goflow2's CPU for a flow; goflow2 lost {lost:.2} %"
            );
        }
    }
    if let Some(Figure { median, low, high }) = Figure::of(&ratios) {
        println!("median {median:.3} (lowest {low:.3}, highest {high:.3})");
    }
    Ok(())
}

/// Also returns the CPU time per flow, in nanoseconds.
async fn ours(arguments: &Arguments) -> Result<(Value, f64)> {
    let receiver = Receiver::ours(arguments)?;
    let agents = Agents::start(arguments, &receiver.output)?;
    let (begin, cpu) = (Instant::now(), receiver.cpu()?);
    agents.send().await?;
    let (took, cpu) = (begin.elapsed(), receiver.cpu()?.saturating_sub(cpu));
    let all = arguments.all();
    let each = cpu.as_nanos() as f64 / all.max(1) as f64;
    let figures = json!({
        "outputs": arguments.output,
        "streams": arguments.streams,
        "flows": all,
        "seconds": took.as_secs_f64(),
        "flows_per_second": all as f64 / took.as_secs_f64(),
        "cpu_ns_per_flow": each,
        "cpu_seconds": cpu.as_secs_f64(),
        "bytes_per_flow": agents.bytes_per_flow(),
        "resident_bytes": receiver.memory("VmRSS:")?,
        "peak_resident_bytes": receiver.memory("VmHWM:")?,
    });
    Ok((figures, each))
}

/// Returns the same for goflow2, per flow that it wrote, and the percentage of flows that it lost.
async fn goflow2(arguments: &Arguments, program: &Path) -> Result<(Value, f64, f64)> {
    let folder = tempfile::tempdir_in("/var/tmp").context("make a folder")?;
    let file = folder.path().join("flows");
    let receiver = Receiver::goflow2(program, &file)?;
    let agents = Agents::start(arguments, &receiver.output)?;
    let (begin, cpu) = (Instant::now(), receiver.cpu()?);
    agents.send().await?;
    let took = begin.elapsed();
    // goflow2 does not report when it is done, so wait until it stops writing.
    let mut written = 0;
    loop {
        sleep(Duration::from_secs(1)).await;
        let now = fs::metadata(&file).map_or(0, |file| file.len());
        if now == written {
            break;
        }
        written = now;
    }
    let cpu = receiver.cpu()?.saturating_sub(cpu);
    let all = arguments.all();
    let records = messages(&fs::read(&file)?)?;
    // Each flow has traffic in both directions, and so two records.
    let stored = records as f64 / 2.0;
    let each = cpu.as_nanos() as f64 / stored.max(1.0);
    let lost = 100.0 * (1.0 - stored / all.max(1) as f64);
    let figures = json!({
        "goflow2": program,
        "streams": arguments.streams,
        "flows": all,
        "lost_percent": lost,
        "seconds": took.as_secs_f64(),
        "flows_per_second": all as f64 / took.as_secs_f64(),
        "cpu_ns_per_flow": each,
        "cpu_seconds": cpu.as_secs_f64(),
        "resident_bytes": receiver.memory("VmRSS:")?,
        "peak_resident_bytes": receiver.memory("VmHWM:")?,
    });
    Ok((figures, each, lost))
}

/// Counts the length-prefixed protobuf messages in `bytes`.
fn messages(mut bytes: &[u8]) -> Result<u64> {
    let mut count = 0;
    while !bytes.is_empty() {
        let len = prost::decode_length_delimiter(&mut bytes).context("read a length")?;
        bytes = bytes.get(len..).context("a message is cut")?;
        count += 1;
    }
    Ok(count)
}

/// One agent's batches for one scan.
fn scan(number: usize, flows: u32) -> Vec<Batch> {
    let identity = Identity {
        agent_id: format!("agent-{number}"),
        hostname: format!("host-{number}"),
        boot_id: "bench".to_owned(),
        instance_id: format!("bench-{number}"),
        ..Identity::default()
    };
    let mut encoder = BatchEncoder::new(Arc::new(identity));
    // A collector refuses a batch whose window is far from its own clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let begin = now.unwrap_or_default().as_nanos() as u64;
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

/// A connection between a client and one of several servers, with packets in both directions.
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
    let mut record = Record::new(key, 0);
    record.src.direction = proto::Direction::Egress;
    record.dst.direction = proto::Direction::Ingress;
    record.src.set_counts(counts(packets), counts(9 * packets));
    record
        .dst
        .set_counts(counts(2 * packets), counts(18 * packets));
    for end in [&mut record.fields.src, &mut record.fields.dst] {
        end.tcp_flags = Some(0x1a);
    }
    record.delta_duration_ns = u64::from(flow) * 10_007;
    record.first_seen_unix_ns = begin - u64::from(flow) * 1_000_003;
    record.last_seen_unix_ns = begin + u64::from(flow) * 10_007;
    record.community_id = community_id(&key, 0);
    record
}
