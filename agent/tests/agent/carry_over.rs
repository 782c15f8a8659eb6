//! Agents that are killed, restarted and stopped under a service manager that keeps their descriptors (`--carry-over`):
//! all records together have each packet of the interface once.

use std::{
    collections::BTreeMap,
    env, fs,
    hash::{BuildHasher as _, RandomState},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use agent_common::Pair;
use lab::{
    Counters, Host, Lab, Store, kernel,
    privilege::{is_root_or_skip, skip},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    collect::Collector,
    outputs::sum,
    support::{Agent, BINARY, assert_closes, hook::Hook, pair, patience, wait_until},
};

mod emptied;
mod keeper;
mod kills;
mod lease;
mod restarts;
mod settings;
mod steps;
mod wires;

const CLSACT: &[&str] = &["--tc-attach", "clsact"];
/// The number of flows of the usual [`Traffic`].
const FLOWS: u16 = 16;
/// The time between two packets of a flow.
const PACE: Duration = Duration::from_millis(2);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Agents on one wire, one after the other, with one store, one spool and one collector.
struct Line {
    lab: Lab,
    store: Store,
    hook: Hook,
    /// The value of `--interface`.
    interfaces: String,
    settings: Vec<String>,
    folder: TempDir,
    _collector: Collector,
}

impl Line {
    fn new(hook: Hook, settings: &[&str]) -> Self {
        Self::of(Store::new().unwrap(), hook, settings)
    }

    fn of(store: Store, hook: Hook, settings: &[&str]) -> Self {
        let lab = Lab::quiet().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(path("stored")).unwrap();
        let stored = format!(
            r#"{{"kind": "jsonl", "address": "{}", "compression": "none"}}"#,
            path("stored/flows.jsonl")
        );
        let collector = Collector::start(&lab.agent, 0, &["--output", &stored]);
        let output = format!(
            r#"{{"kind": "collector", "address": "http://{}", "spool": "{}"}}"#,
            collector.address,
            path("spool")
        );
        let own = ["--carry-over", "--output", "json", "--output", &output];
        let mut all = [&own, hook.settings(), settings].concat();
        if !settings.contains(&"--scan-interval") {
            all.extend(["--scan-interval", "200ms"]);
        }
        Self {
            interfaces: lab.agent.interface.clone(),
            settings: all.into_iter().map(str::to_owned).collect(),
            lab,
            store,
            hook,
            folder,
            _collector: collector,
        }
    }

    /// Starts the next agent and returns at once. To test an upgrade, `CARRY_OVER_FROM` names the binary of another
    /// version, which begins.
    fn begin(&self) -> Agent {
        let settings: Vec<_> = self.settings.iter().map(String::as_str).collect();
        let is_first = self.store.count().unwrap() == 0;
        let earlier = env::var("CARRY_OVER_FROM").ok().filter(|_| is_first);
        let binary = earlier.as_deref().unwrap_or(BINARY);
        let command = self.store.command(&self.lab.agent.namespace, binary);
        Agent::begin(command.unwrap(), &self.interfaces, &settings)
    }

    /// Starts the next agent and returns when it counts.
    fn start(&self) -> Agent {
        let mut agent = self.begin();
        agent.wait_until_counting();
        agent
    }

    fn counters(&self) -> Counters {
        self.lab.agent.counters().unwrap()
    }

    /// All frames that the interface has counted since, in both directions.
    fn counted(&self, since: Counters) -> Pair {
        let growth = self.counters() - since;
        self.hook.counted(growth) + Hook::TcEgress.counted(growth)
    }

    /// Traffic to the agent's end of the wire.
    fn traffic(&self) -> Traffic {
        Traffic::start(&self.lab.peer, &self.lab.agent, 1000, FLOWS, PACE)
    }

    fn books(&self) -> Books {
        Books::read(&self.folder.path().join("stored"))
    }

    /// Waits until the accounts that the collector has stored have exactly this many packets.
    fn wait_until_in_accounts(&self, packets: u64) {
        let deadline = Instant::now() + patience();
        loop {
            let seen = self.books().seen().packets;
            if seen == packets {
                return;
            }
            let is_possible = seen < packets && Instant::now() < deadline;
            assert!(is_possible, "{seen} of {packets} packets are in accounts");
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Waits until the collector has the account of this many packets. Then ends the agent. Returns the books, whose
    /// accounts close.
    fn end(&self, agent: Agent, counted: Pair) -> Books {
        self.wait_until_in_accounts(counted.packets);
        agent.stop();
        let books = self.books();
        books.assert_close();
        assert_eq!(books.seen(), counted);
        books
    }
}

/// The records that a collector has stored, each once.
#[derive(Default)]
struct Books {
    instances: BTreeMap<String, Instance>,
    /// Records that were stored once more.
    repeated: usize,
}

/// Everything that one agent has reported.
#[derive(Default)]
struct Instance {
    /// By scan, batch and place in the batch.
    records: BTreeMap<[u64; 3], Value>,
    /// By scan.
    accounts: BTreeMap<u64, Value>,
}

impl Books {
    /// Fails if a record was repeated with other content.
    fn read(folder: &Path) -> Self {
        let mut books = Self::default();
        let files = fs::read_dir(folder).unwrap();
        for file in files {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            // The last line may be incomplete.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                books.add(serde_json::from_str(line).unwrap());
            }
        }
        books
    }

    fn add(&mut self, mut line: Value) {
        let number = |name: &str| line[name].as_u64().unwrap();
        let instance = line["instance_id"].as_str().unwrap().to_owned();
        let instance = self.instances.entry(instance).or_default();
        match line["type"].as_str().unwrap() {
            "flow" => {
                let place = ["scan_id", "batch", "record"].map(number);
                // A batch that is sent again may have another number on another stream.
                for of_stream in ["stream_id", "stream_seq"] {
                    line.as_object_mut().unwrap().remove(of_stream);
                }
                let again = instance.records.insert(place, line.clone());
                self.repeated += usize::from(again.is_some());
                assert!(again.is_none_or(|before| before == line), "{line}");
            }
            "account" => {
                let again = instance.accounts.insert(number("scan_id"), line.clone());
                let seen = |account: &Value| pair(&account["seen"]);
                assert!(again.is_none_or(|before| seen(&before) == seen(&line)));
            }
            "dns" => {}
            other => panic!("{other}: {line}"),
        }
    }

    /// The packets in the last account of each agent.
    fn seen(&self) -> Pair {
        self.sum("seen")
    }

    /// The sum of a counter in the last account of each agent.
    fn sum(&self, counter: &str) -> Pair {
        let last = self.instances.values().filter_map(Instance::last);
        last.map(|account| pair(&account[counter])).sum()
    }

    fn records(&self) -> impl Iterator<Item = &Value> {
        let instances = self.instances.values();
        instances.flat_map(|instance| instance.records.values())
    }

    /// The packets in records of flows from this port.
    fn packets_from(&self, port: u16) -> u64 {
        let records = self.records().filter(|line| line["src_port"] == port);
        records.map(|line| line["packets"].as_u64().unwrap()).sum()
    }

    /// Asserts that each agent's accounts close, that its records are the flows in its accounts, and that none of its
    /// scans is missing.
    fn assert_close(&self) {
        for (id, instance) in &self.instances {
            let Some(last) = instance.last() else {
                panic!("{id} has records and no account");
            };
            instance.accounts.values().for_each(assert_closes);
            let records: Vec<_> = instance.records.values().cloned().collect();
            assert_eq!(sum(&records), pair(&last["flows"]), "{id}: {last}");
            let scans: Vec<_> = instance.accounts.keys().copied().collect();
            let expected: Vec<_> = (1..=scans.len() as u64).collect();
            assert_eq!(scans, expected, "{id}");
        }
    }
}

impl Instance {
    fn last(&self) -> Option<&Value> {
        self.accounts.values().next_back()
    }
}

/// UDP packets at a steady pace, until the value is dropped.
struct Traffic {
    flows: u16,
    is_over: Arc<AtomicBool>,
    /// Each round is a packet of each flow.
    rounds: Arc<AtomicU64>,
    sender: Option<JoinHandle<()>>,
}

impl Traffic {
    /// From this port on, a flow has each port.
    fn start(from: &Host, to: &Host, port: u16, flows: u16, pace: Duration) -> Self {
        let socket = from.frame_socket().unwrap();
        let frame = from.frame_v4(to);
        let frames: Vec<_> = (port..port + flows)
            .map(|port| frame.udp(port, 9, &[0; 18]).unwrap())
            .collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (until, sent) = (Arc::clone(&is_over), Arc::clone(&rounds));
        let sender = thread::spawn(move || {
            while !until.load(Relaxed) {
                socket.send_many(&frames).unwrap();
                sent.fetch_add(1, Relaxed);
                thread::sleep(pace);
            }
        });
        Self {
            flows,
            is_over,
            rounds,
            sender: Some(sender),
        }
    }

    /// Waits for this many more packets of each flow.
    fn wait_for(&self, more: u64) {
        let before = self.rounds.load(Relaxed);
        wait_until("packets are sent", || {
            self.rounds.load(Relaxed) >= before + more
        });
    }

    /// Ends the traffic. Returns how many packets of each flow were sent.
    fn end(mut self) -> u64 {
        self.is_over.store(true, Relaxed);
        self.sender.take().unwrap().join().unwrap();
        self.rounds.load(Relaxed)
    }

    /// The same, summed over all flows.
    fn end_all(self) -> u64 {
        let flows = self.flows;
        self.end() * u64::from(flows)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(sender) = self.sender.take() {
            drop(sender.join());
        }
    }
}

/// Chooses moments, the same ones again with the `CARRY_OVER_SEED` that the test prints.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let asked = env::var("CARRY_OVER_SEED").ok();
        let seed = asked.map_or_else(
            || RandomState::new().hash_one(FLOWS) | 1,
            |seed| seed.parse().expect("the seed is a number, and not 0"),
        );
        eprintln!("what happens at random is drawn as with CARRY_OVER_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    /// Waits for up to this long.
    fn wait(&mut self, most: Duration) {
        thread::sleep(self.duration(most));
    }

    fn duration(&mut self, most: Duration) -> Duration {
        let most_us = most.as_micros() as usize;
        Duration::from_micros(self.below(most_us) as u64)
    }
}

/// Whether the agent warns about state of an earlier process, or state that a later one will lack.
fn warns_of_carrying(agent: &Agent) -> bool {
    const PARTS: [&str; 4] = [
        "carr",
        "earlier process",
        "previous process",
        "service manager",
    ];
    let log = agent.stderr();
    let mut warnings = log.lines().filter(|line| line.contains(" WARN "));
    warnings.any(|line| PARTS.iter().any(|part| line.contains(part)))
}

/// Whether the kernel has links at both hooks, so that they can be taken over.
fn has_links_or_skip(test: &str) -> bool {
    let has_links = kernel::has_tcx();
    if !has_links {
        skip(test, "the kernel has TCX from 6.6");
    }
    has_links && is_root_or_skip(test)
}
