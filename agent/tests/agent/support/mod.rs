//! Runs a real agent in a laboratory and collects its reports.

#![allow(dead_code, reason = "each test file takes what it needs")]

pub mod attached;
pub mod disk;
pub mod everybodys;
pub mod hook;
pub mod threads;
pub mod wire;

use std::{
    collections::BTreeMap,
    fs::{self, DirEntry},
    path::Path,
    process::{Command, ExitStatus, Output},
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use agent_common::Pair;
use lab::{
    ControlGroup, Counters, Host, Lab,
    control_group::Version,
    kernel,
    privilege::{is_root_or_skip, skip},
};
use serde_json::Value;

/// How long to wait for anything. Only a failure waits this long. An emulated guest takes half a minute to verify the
/// programs, and ten times as long on a busy machine.
pub fn patience() -> Duration {
    Duration::from_mins(kernel::packets(2, 10))
}

/// Insists on native XDP. The peer's offloads are off, but an agent in another network namespace cannot see
/// that.
pub const NATIVE_XDP: &[&str] = &[
    "--ingress-hook",
    "xdp",
    "--xdp-mode",
    "native",
    "--xdp-without-tags",
];
pub const GENERIC_XDP: &[&str] = &[
    "--ingress-hook",
    "xdp",
    "--xdp-mode",
    "generic",
    "--xdp-without-tags",
];

/// `flow-agent run` on an interface.
pub struct Agent(lab::Agent);

impl Agent {
    /// Starts an agent on its end of the wire.
    pub fn start(lab: &Lab, settings: &[&str]) -> Self {
        Self::start_on(&lab.agent, &lab.agent.interface, settings)
    }

    /// Starts an agent and returns when all hooks are attached. A later setting wins over an earlier one.
    pub fn start_on(host: &Host, interface: &str, settings: &[&str]) -> Self {
        Self::start_by(flow_agent(host), interface, settings)
    }

    /// The same with a command that runs the binary with the arguments added to it.
    pub fn start_by(command: Command, interface: &str, settings: &[&str]) -> Self {
        let mut agent = Self::begin(command, interface, settings);
        agent.wait_until_counting();
        agent
    }

    /// Starts an agent and returns at once.
    pub fn begin(command: Command, interface: &str, settings: &[&str]) -> Self {
        let mut usual = Vec::new();
        for setting in [
            ["--output", "json"],
            ["--scan-interval", "100ms"],
            ["--max-flows", "50000"],
        ] {
            if !settings.contains(&setting[0]) {
                usual.extend(setting);
            }
        }
        let settings = [settings, &usual].concat();
        Self(lab::Agent::begin(command, interface, &settings).unwrap())
    }

    /// Starts an agent with the settings of a file alone and returns when all hooks are attached. If `interface`
    /// is empty, the file chooses.
    pub fn start_by_file(host: &Host, interface: &str, file: &Path) -> Self {
        Self::start_by_file_alone(flow_agent(host), interface, file)
    }

    /// The same with a command that runs the binary.
    pub fn start_by_file_alone(command: Command, interface: &str, file: &Path) -> Self {
        let settings = ["--config", file.to_str().unwrap()];
        let agent = lab::Agent::begin(command, interface, &settings);
        let mut agent = Self(agent.unwrap());
        agent.wait_until_counting();
        agent
    }

    /// Waits until all hooks are attached.
    pub fn wait_until_counting(&mut self) {
        self.0.wait_until_counting(patience(), || Ok(())).unwrap();
    }

    pub fn wait_until_logged(&mut self, text: &str) {
        self.0
            .wait_until_logged(text, patience(), || Ok(()))
            .unwrap();
    }

    pub fn stderr(&self) -> String {
        self.0.log().unwrap()
    }

    pub fn kill(mut self) -> ExitStatus {
        self.0.process.signal(libc::SIGKILL).unwrap();
        self.0.process.wait(patience()).unwrap()
    }

    /// The address for consumers.
    pub fn address(&self) -> String {
        self.0.address()
    }

    pub fn pid(&mut self) -> u32 {
        self.0.pid()
    }

    /// The number of programs that it keeps loaded.
    pub fn programs(&mut self) -> usize {
        let folder = format!("/proc/{}/fdinfo", self.pid());
        let files = fs::read_dir(folder).unwrap().flatten();
        // A descriptor may be closed meanwhile.
        let is_program = |file: &DirEntry| {
            let info = fs::read_to_string(file.path()).unwrap_or_default();
            info.contains("prog_jited:")
        };
        files.filter(is_program).count()
    }

    /// Waits until all of its threads are idle, not even waiting for a lock in the kernel.
    pub fn wait_until_idle(&mut self) {
        let tasks = format!("/proc/{}/task", self.pid());
        let sleeps = |task: &DirEntry| {
            // The state comes behind the name, which ends with the last parenthesis. A thread may end meanwhile.
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.is_empty()
                || stat
                    .rsplit(") ")
                    .next()
                    .is_some_and(|rest| rest.starts_with('S'))
        };
        wait_until("it is idle", || {
            let mut tasks = fs::read_dir(&tasks).unwrap();
            tasks.all(|task| sleeps(&task.unwrap()))
        });
    }

    /// Ends an agent that wrote nothing to stdout and returns its log. Asserts that its account closes.
    pub fn stop_silent(mut self) -> String {
        let status = self.0.process.terminate(patience()).unwrap();
        let log = self.stderr();
        assert!(status.success(), "{status}: {log}");
        assert!(log.contains(" missing=0"), "{log}");
        assert!(!log.contains("does not close"), "{log}");
        log
    }

    /// The JSON of `flow-agent status`.
    pub fn status(&self, host: &Host) -> Value {
        let output = self.asked(host, &["status", "--output", "json"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The output of a command that asks this agent.
    pub fn asked(&self, host: &Host, arguments: &[&str]) -> Output {
        answered(|| {
            let mut command = flow_agent(host);
            command.args(arguments).args(["--connect", &self.address()]);
            command
        })
    }

    /// Makes it scan, and returns the flows that it then tracks.
    pub fn flows(&self, host: &Host) -> Vec<Value> {
        let output = self.asked(host, &["flows", "--output", "json"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    /// Waits until `more` further scans are done.
    pub fn wait_for_scans(&self, host: &Host, more: u64) {
        let scans = || self.status(host)["scans"]["count"].as_u64().unwrap();
        let before = scans();
        wait_until("scans", || scans() >= before + more);
    }

    /// Its stdout so far.
    pub fn stdout(&self) -> String {
        self.0.stdout().unwrap()
    }

    /// Ends it with SIGTERM. Asserts that every account that it wrote closes, and that the last one is final.
    pub fn stop(self) -> Report {
        self.signal(libc::SIGTERM);
        self.ended()
    }

    /// The same. Returns the accounts and the sum of each flow's records, which need far less memory than the records.
    pub fn stop_and_sum(mut self) -> (Vec<Value>, BTreeMap<String, Both>) {
        self.signal(libc::SIGTERM);
        self.wait_for_success();
        let mut sums = BTreeMap::new();
        let (accounts, _) = self.read(|line| add_to(&mut sums, &line));
        assert_eq!(is_final(&accounts), true);
        (accounts, sums)
    }

    /// Ends it with SIGTERM where its programs go on counting for the next one. Asserts that every account that it wrote
    /// closes, and that none is final. Returns its log.
    pub fn leave(mut self) -> String {
        self.signal(libc::SIGTERM);
        self.wait_for_success();
        let (accounts, log) = self.read(|_| {});
        assert_eq!(is_final(&accounts), false, "{log}");
        log
    }

    pub fn signal(&self, signal: i32) {
        self.0.process.signal(signal).unwrap();
    }

    /// Waits for its end, and asserts the same as [`Agent::stop`].
    pub fn ended(mut self) -> Report {
        self.wait_for_success();
        self.report()
    }

    fn wait_for_success(&mut self) {
        let status = self.0.process.wait(patience()).unwrap();
        assert!(status.success(), "{status}: {}", self.stderr());
    }

    /// Waits until it ends with this error, and asserts the same of its accounts.
    pub fn ended_by(mut self, error: &str) -> Report {
        let status = self.0.process.wait(patience()).unwrap();
        let log = self.stderr();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains(&format!("flow-agent: {error}")), "{log}");
        self.report()
    }

    /// The output of an agent that has ended.
    fn report(&self) -> Report {
        let mut flows = Vec::new();
        let (accounts, log) = self.read(|line| flows.push(line));
        assert_eq!(is_final(&accounts), true);
        Report {
            accounts,
            flows,
            log,
        }
    }

    /// Passes on the records of an agent that has ended. Returns its accounts, which must close, and its log.
    fn read(&self, mut flow: impl FnMut(Value)) -> (Vec<Value>, String) {
        let log = self.stderr();
        assert!(!log.contains("does not close"), "{log}");
        let mut accounts = Vec::new();
        for line in self.stdout().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            match line["type"].as_str() {
                Some("account") => {
                    assert_closes(&line);
                    accounts.push(line);
                }
                Some("flow") => flow(line),
                // Only where exchanges of the DNS are asked for.
                Some("dns") => {}
                _ => panic!("lost batches: {line}"),
            }
        }
        (accounts, log)
    }
}

fn is_final(accounts: &[Value]) -> &Value {
    &accounts.last().expect("an account")["final"]
}

/// The tests of races have a binary of their own.
pub const BINARY: &str = match (
    option_env!("CARGO_BIN_EXE_flow-agent"),
    option_env!("CARGO_BIN_EXE_flow-agent-paused"),
) {
    (Some(binary), _) | (None, Some(binary)) => binary,
    (None, None) => panic!("cargo names the binary of a test's package"),
};

/// A command for the binary on a host, with a log in plain text.
pub fn flow_agent(host: &Host) -> Command {
    in_plain_text(host.command(BINARY))
}

/// The same with the capabilities that the service has.
pub fn as_the_service(host: &Host) -> Command {
    let mut command = host.command("setpriv");
    command.args(["--bounding-set", "-all,+bpf,+net_admin,+perfmon"]);
    command.arg(everybodys::everybodys_binary());
    in_plain_text(command)
}

/// The same in a control group.
pub fn flow_agent_in(group: &ControlGroup, host: &Host) -> Command {
    let mut command = host.command("sh");
    group.run_by(&mut command).arg(BINARY);
    in_plain_text(command)
}

/// The file of a control group that has its limit on memory.
pub fn memory_limit(version: Version) -> &'static str {
    match version {
        Version::One => "memory.limit_in_bytes",
        Version::Two => "memory.max",
    }
}

fn in_plain_text(mut command: Command) -> Command {
    command.env("NO_COLOR", "1").env_remove("FLOW_AGENT_LOG");
    command.env("FLOW_AGENT_CONFIG", "/dev/null");
    command
}

/// The whole output of an agent.
pub struct Report {
    pub accounts: Vec<Value>,
    pub flows: Vec<Value>,
    pub log: String,
}

/// Forward and reverse.
pub type Both = [Pair; 2];

impl Report {
    pub fn last(&self) -> &Value {
        self.accounts.last().expect("an account")
    }

    pub fn seen(&self) -> Pair {
        pair(&self.last()["seen"])
    }

    /// The sum of each flow's records, by [`flow_name`].
    pub fn sums(&self) -> BTreeMap<String, Both> {
        sums_of(&self.flows)
    }

    /// The same for the records of one interface.
    pub fn sums_on(&self, interface: &str) -> BTreeMap<String, Both> {
        let flows = self.flows.iter();
        sums_of(flows.filter(|line| line["interface"] == interface))
    }

    /// Why the flow ended. Asserts that it did so once.
    pub fn end_reason(&self, name: &str) -> &str {
        let reasons: Vec<&str> = self
            .flows
            .iter()
            .filter(|line| flow_name(line) == name)
            .filter_map(|line| line["end_reason"].as_str())
            .collect();
        let [reason] = reasons[..] else {
            panic!("{name} ended {reasons:?}")
        };
        reason
    }
}

/// Asserts that the IP octets of a record match its frames on the wire, without the headers before IP. Each segment of
/// a super-frame has its own headers.
pub fn assert_ip_octets(flow: &Value, before_ip_bytes: u64) {
    let number = |name: &str| flow[name].as_u64().unwrap();
    for way in ["", "reverse_", "total_", "total_reverse_"] {
        let [packets, bytes, ip_bytes] =
            ["packets", "bytes", "ip_bytes"].map(|name| number(&format!("{way}{name}")));
        assert_eq!(
            ip_bytes,
            bytes - before_ip_bytes * packets,
            "{way}ip_bytes of {flow}"
        );
    }
}

fn sums_of<'a>(flows: impl IntoIterator<Item = &'a Value>) -> BTreeMap<String, Both> {
    let mut sums = BTreeMap::new();
    for line in flows {
        add_to(&mut sums, line);
    }
    sums
}

fn add_to(sums: &mut BTreeMap<String, Both>, line: &Value) {
    let number = |name: &str| line[name].as_u64().unwrap();
    let [forward, reverse] = sums.entry(flow_name(line)).or_default();
    *forward += Pair {
        packets: number("packets"),
        bytes: number("bytes"),
    };
    *reverse += Pair {
        packets: number("reverse_packets"),
        bytes: number("reverse_bytes"),
    };
}

/// `VLANS PROTOCOL SOURCE PORT > DESTINATION PORT`, with an echo's identifier in the place of the ports.
pub fn flow_name(line: &Value) -> String {
    let text = |name: &str| line[name].as_str().unwrap();
    let port = |name: &str| {
        line[name]
            .as_u64()
            .or(line["icmp_identifier"].as_u64())
            .unwrap_or_default()
    };
    name(
        &line["vlan_ids"].to_string(),
        line["protocol"].as_u64().unwrap(),
        (text("src_addr"), port("src_port")),
        (text("dst_addr"), port("dst_port")),
    )
}

pub fn name(vlans: &str, protocol: u64, src: (&str, u64), dst: (&str, u64)) -> String {
    format!(
        "{vlans} {protocol} {} {} > {} {}",
        src.0, src.1, dst.0, dst.1
    )
}

/// The time in a line, in nanoseconds.
pub fn unix_ns_of(time: &Value) -> u64 {
    let time = time.as_str().unwrap_or_else(|| panic!("{time} is no time"));
    let time = humantime::parse_rfc3339(time).unwrap();
    let since = time.duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos().try_into().unwrap()
}

pub fn pair(count: &Value) -> Pair {
    let number = |name: &str| count[name].as_u64().unwrap();
    Pair {
        packets: number("packets"),
        bytes: number("bytes"),
    }
}

/// The count of this many copies of a frame.
pub fn count(packets: u64, frame: &[u8]) -> Pair {
    Pair {
        packets,
        bytes: packets * frame.len() as u64,
    }
}

fn sum(counts: &Value) -> Pair {
    counts.as_object().unwrap().values().map(pair).sum()
}

/// Asserts that each packet of an account has its place.
pub fn assert_closes(account: &Value) {
    let placed = pair(&account["flows"])
        + sum(&account["unparsed"])
        + sum(&account["not_inserted"])
        + pair(&account["filtered"])
        + pair(&account["sampled_out"]);
    assert_eq!(pair(&account["seen"]), placed, "{account}");
}

/// Waits until the interface has counted as many packets since `before`.
pub fn wait_for_packets(host: &Host, before: Counters, packets: u64) -> Counters {
    let mut growth = Counters::default();
    wait_until("the packets arrive", || {
        growth = host.counters().unwrap() - before;
        growth.rx_packets >= packets
    });
    growth
}

/// Starts an agent, sends a frame a hundred times to its interface, and asserts that exactly these are counted and in flows. Returns
/// the agent's log.
pub fn count_a_hundred(lab: &Lab, settings: &[&str], frame: &[u8]) -> String {
    let agent = Agent::start(lab, settings);
    let before = lab.agent.counters().unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many((0..100).map(|_| frame)).unwrap();
    wait_for_packets(&lab.agent, before, 100);
    let log = agent.stderr();
    let report = agent.stop();
    assert_eq!(report.seen(), count(100, frame), "{settings:?}: {log}");
    let packets = report.flows.iter().map(|flow| flow["packets"].as_u64());
    let packets: u64 = packets.map(Option::unwrap).sum();
    assert_eq!(packets, 100, "{settings:?}: {:?}", report.flows);
    log
}

/// Waits until the interface's counters stand still. Returns them.
pub fn wait_for_silence(host: &Host) -> Counters {
    let mut counted = Counters::default();
    wait_until("the last frames are through", || {
        let earlier = counted;
        counted = host.counters().unwrap();
        counted == earlier
    });
    counted
}

/// For tests of full-speed traffic: `is_root_or_skip`, on a kernel that can make it.
pub fn has_generator_or_skip(test: &str) -> bool {
    let has_generator = kernel::is_at_least(5, 18);
    if !has_generator {
        skip(test, "the kernel sends live frames from 5.18");
    }
    has_generator && is_root_or_skip(test)
}

/// The output of a command that asks an agent. Asks again if the agent got no CPU to answer in time.
pub fn answered(command: impl Fn() -> Command) -> Output {
    let mut output = None;
    wait_until("the agent answers", || {
        let latest = output.insert(command().output().unwrap());
        !String::from_utf8_lossy(&latest.stderr).contains("did not answer within")
    });
    output.unwrap()
}

/// The kernel's counters of a protocol in the host's network namespace (`/proc/net/snmp`).
pub fn protocol_counter(host: &Host, protocol: &str, name: &str) -> u64 {
    let read = || Ok(fs::read_to_string("/proc/thread-self/net/snmp")?);
    let table = host.namespace.enter(read).unwrap();
    let is_of_it = |line: &&str| line.split_once(':').is_some_and(|(of, _)| of == protocol);
    let mut lines = table.lines().filter(is_of_it);
    let [names, values] = [(); 2].map(|()| lines.next().unwrap().split_whitespace());
    let mut columns = names.zip(values);
    let (_, value) = columns.find(|(column, _)| *column == name).unwrap();
    value.parse().unwrap()
}

/// Most conditions start a process to check: they get a quarter of the time, and the awaited work gets the rest.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let (least, most) = (Duration::from_millis(20), Duration::from_millis(300));
    let deadline = Instant::now() + patience();
    loop {
        let begin = Instant::now();
        if condition() {
            break;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep((3 * begin.elapsed()).clamp(least, most));
    }
}
