//! Agents, collectors and the broker are killed at random. In the end only scans are missing that a killed agent had
//! not handed over.

use std::{
    env,
    hash::{BuildHasher as _, RandomState},
    process::Stdio,
    rc::Rc,
    time::{Duration, Instant},
};

use lab::{Broker, BrokerOptions};

use super::{
    clickhouse::{self, ClickHouse, kafka::Bringer},
    kafka::{Kafka, setting},
    *,
};
use crate::{outputs::spool::taken, support::BINARY};

/// The pause after a kill, so that the next one hits something that runs.
const PAUSE: Duration = Duration::from_millis(700);
/// Scans that a killed agent may not have brought to its disk. There are two a second, and disk and CPU may be busy for
/// some time.
const MOST_UNDELIVERED: usize = 10;

/// Packets on the wire while something is away, and after each kill.
const SENT_EACH: u64 = 900;

/// The packets of each scan, by the agent's start and the scan's number.
type Scans = BTreeMap<String, BTreeMap<u64, u64>>;

struct Simulated {
    command: [String; 3],
    process: Process,
}

struct Fleet<'a> {
    kafka: &'a Kafka,
    broker: Broker<'a>,
    collectors: [Option<Collector>; 2],
    ports: [u16; 2],
    agents: Vec<Simulated>,
    /// Real agents. The second one is killed, too.
    real: [Option<Agent>; 2],
    /// How the second one starts.
    again: String,
    /// Its spool.
    spool: PathBuf,
    starts_again: u64,
    /// Packets that it saw and had not in its spool when it was killed.
    not_drained: u64,
    /// On the wire that both watch.
    sent: Pair,
    onward: Option<Onward>,
    random: u64,
    kills: [u32; 3],
}

impl Simulated {
    /// Fails if the example has not been built.
    fn start(host: &Host, command: [String; 3]) -> Self {
        let program = Path::new(BINARY).with_file_name("examples/simulated_agent");
        assert!(
            program.is_file(),
            "there is no {}: cargo build --workspace --examples",
            program.display()
        );
        let log = File::options()
            .append(true)
            .create(true)
            .open(format!("{}.log", command[1]))
            .unwrap();
        let mut process = host.command(&program);
        process
            .args(&command)
            .env_remove("FLOW_AGENT_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = Process::spawn(&mut process).unwrap();
        Self { command, process }
    }

    fn kill(&mut self) {
        self.process.signal(libc::SIGKILL).unwrap();
        self.process.wait(patience()).unwrap();
    }
}

impl<'a> Fleet<'a> {
    fn start(kafka: &'a Kafka, agents: usize) -> Self {
        let asked = env::var("KILLS_SEED").ok();
        let seed = asked.map_or_else(
            || RandomState::new().hash_one(agents) | 1,
            |seed| seed.parse().expect("KILLS_SEED is a number, and not 0"),
        );
        eprintln!("what is killed is drawn as with KILLS_SEED={seed}");
        let broker = kafka.broker(&BrokerOptions::default());
        let host = &kafka.lab.agent;
        let first = setting(&broker.address(), r#", "create_topic": true"#);
        let output = ["--output", &first];
        let collectors = [(); 2].map(|()| Collector::start(host, 0, &output));
        let ports = collectors.each_ref().map(|one| one.address.port());
        let folder = kafka.folder.path();
        let spool = |number: usize| folder.join(format!("spool-{number}"));
        let output = |number: usize| {
            let [one, other] = if number.is_multiple_of(2) {
                ports
            } else {
                [ports[1], ports[0]]
            };
            let spool = spool(number);
            format!(
                r#"{{"kind": "collector", "address": "http://127.0.0.1:{one}", "failover": "127.0.0.1:{other}", "spool": "{}"}}"#,
                spool.display()
            )
        };
        let again_number = agents + 1;
        let again = output(again_number);
        let real = [&output(agents), &again].map(|output| {
            let settings = ["--output", "json", "--output", output];
            Some(Agent::start(&kafka.lab, &settings))
        });
        let agents = (0..agents).map(|number| {
            let ledger = folder.join(format!("ledger-{number}"));
            let ledger = ledger.display().to_string();
            let command = [format!("simulated-{number}"), ledger, output(number)];
            Simulated::start(host, command)
        });
        Self {
            kafka,
            broker,
            collectors: collectors.map(Some),
            ports,
            agents: agents.collect(),
            real,
            again,
            spool: spool(again_number),
            starts_again: 0,
            not_drained: 0,
            sent: Pair::default(),
            onward: None,
            random: seed,
            kills: [0; 3],
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound as u64) as usize
    }

    /// Kills for this long: at least once of each kind, and the real agent in both ways.
    fn kill_for(&mut self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time || self.starts_again < 2 || self.kills.contains(&0) {
            let lacks_real = begin.elapsed() >= time && self.starts_again < 2;
            let which = if lacks_real { 4 } else { self.below(10) };
            match which {
                0 => {
                    self.broker.kill().unwrap();
                    self.kills[2] += 1;
                    self.traffic();
                    std::thread::sleep(PAUSE);
                    self.broker.start_again().unwrap();
                }
                which @ 1..=3 => {
                    // Or both.
                    let places = if which == 1 {
                        0..=1
                    } else {
                        which - 2..=which - 2
                    };
                    for place in places.clone() {
                        self.collectors[place].take().unwrap().kill();
                        self.kills[1] += 1;
                    }
                    self.traffic();
                    std::thread::sleep(PAUSE);
                    for place in places {
                        self.collectors[place] = Some(self.collector(place));
                    }
                }
                5 if self.onward.is_some() => {
                    let onward = self.onward.as_mut().unwrap();
                    onward.kill(self.kafka, &self.broker);
                    self.kills[1] += 1;
                }
                4 => {
                    self.kill_real();
                    self.kills[0] += 1;
                }
                _ => {
                    let place = self.below(self.agents.len());
                    let agent = &mut self.agents[place];
                    agent.kill();
                    let command = agent.command.clone();
                    *agent = Simulated::start(&self.kafka.lab.agent, command);
                    self.kills[0] += 1;
                }
            }
            self.traffic();
            std::thread::sleep(PAUSE);
        }
    }

    /// Packets on the wire of the real agents.
    fn traffic(&mut self) {
        self.sent += send(&self.kafka.lab, 300, SENT_EACH / 300);
    }

    /// Kills the second of the real agents: every other time once everything is in its spool, otherwise at any moment.
    fn kill_real(&mut self) {
        let agent = self.real[1].take().unwrap();
        if self.starts_again.is_multiple_of(2) {
            let drained = self.sent.packets - self.not_drained;
            wait_until("all is in the spool", || taken(&self.spool) == drained);
        }
        agent.kill();
        self.not_drained = self.sent.packets - taken(&self.spool);
        let settings = ["--output", "json", "--output", &self.again];
        self.real[1] = Some(Agent::start(&self.kafka.lab, &settings));
        self.starts_again += 1;
    }

    fn collector(&self, place: usize) -> Collector {
        let output = setting(&self.broker.address(), "");
        let port = self.ports[place];
        Collector::start(&self.kafka.lab.agent, port, &["--output", &output])
    }

    /// Ends the real agents when everything is acknowledged.
    fn end_real(&mut self) {
        for agent in self.real.each_mut().map(Option::take) {
            let agent = agent.unwrap();
            wait_until("everything is acknowledged", || {
                let output = outputs::output(&agent, &self.kafka.lab, "collector");
                output["queued"]["records"] == 0 && output["spool"]["oldest_unix_ns"] == 0
            });
            agent.stop();
        }
    }

    /// Ends the simulated agents, which wait until everything is acknowledged. Returns their scans, and the last start
    /// of each.
    fn end(&mut self) -> (Scans, Vec<String>) {
        for agent in &self.agents {
            agent.process.signal(libc::SIGTERM).unwrap();
        }
        let (mut made, mut last) = (Scans::new(), Vec::new());
        for agent in &mut self.agents {
            // Each delivers the rest to collectors and a broker that have just started.
            let status = agent.process.wait(3 * patience()).unwrap();
            let [name, ledger, _] = &agent.command;
            let log = fs::read_to_string(format!("{ledger}.log")).unwrap();
            assert!(status.success(), "{name}: {status}: {log}");
            let text = fs::read_to_string(ledger).unwrap();
            let mut instance = "";
            for line in text.lines() {
                let words: Vec<_> = line.split(' ').collect();
                let [of, scan, packets] = words[..] else {
                    panic!("{line}");
                };
                instance = of;
                let scans = made.entry(of.to_owned()).or_default();
                scans.insert(scan.parse().unwrap(), packets.parse().unwrap());
            }
            last.push(instance.to_owned());
        }
        (made, last)
    }
}

/// What the topic has, each batch once.
fn in_the_topic(messages: &[Value]) -> Scans {
    let mut batches = BTreeMap::<(&str, &str), &Value>::new();
    for message in messages {
        let headers = &message["headers"];
        let name = ["stream_id", "stream_seq"].map(|name| headers[name].as_str().unwrap());
        let before = batches.insert((name[0], name[1]), &message["batch"]);
        assert!(before.is_none_or(|before| *before == message["batch"]));
    }
    let mut scans = Scans::new();
    for batch in batches.values() {
        let number = |value: &Value| value.as_str().unwrap_or("0").parse::<u64>().unwrap();
        let records = batch["records"].as_array().into_iter().flatten();
        let both = |record: &Value| ["src", "dst"].map(|end| number(&record[end]["delta_packets"]));
        let packets: u64 = records.flat_map(both).sum();
        let instance = batch["agent"]["instance_id"].as_str().unwrap().to_owned();
        let scan = number(&batch["scan_id"]);
        let before = scans.entry(instance).or_default().insert(scan, packets);
        assert_eq!(before, None, "a scan of so few flows is one batch");
    }
    scans
}

/// A collector that stores in ClickHouse, and the program that brings there what is in the topic. Both are killed, too.
struct Onward {
    clickhouse: ClickHouse,
    collector: Option<Collector>,
    port: u16,
    bringer: Bringer,
    bring: Process,
}

impl Onward {
    fn start(clickhouse: ClickHouse, kafka: &Kafka, broker: &Broker<'_>) -> Self {
        let host = &kafka.lab.agent;
        let output = clickhouse::output("");
        let collector = Collector::start(host, 0, &["--output", &output]);
        let port = collector.address.port();
        let bringer = Bringer::new(&kafka.python, kafka.folder.path());
        Self {
            clickhouse,
            collector: Some(collector),
            port,
            bring: bringer.start(host, broker, port),
            bringer,
        }
    }

    fn kill(&mut self, kafka: &Kafka, broker: &Broker<'_>) {
        let host = &kafka.lab.agent;
        self.bring.signal(libc::SIGKILL).unwrap();
        self.bring.wait(patience()).unwrap();
        self.collector.take().unwrap().kill();
        let output = clickhouse::output("");
        self.collector = Some(Collector::start(host, self.port, &["--output", &output]));
        self.bring = self.bringer.start(host, broker, self.port);
    }

    /// What ClickHouse has, each record once.
    fn found(&self) -> Scans {
        let rows = self.clickhouse.ask(
            "SELECT instance_id, scan_id, sum(packets + reverse_packets) AS packets FROM flows FINAL \
             GROUP BY instance_id, scan_id",
        );
        let mut scans = Scans::new();
        for row in rows {
            let instance = row["instance_id"].as_str().unwrap().to_owned();
            let number = |name: &str| row[name].as_u64().unwrap();
            let scans = scans.entry(instance).or_default();
            scans.insert(number("scan_id"), number("packets"));
        }
        scans
    }
}

/// Kills for this long. Returns the final result, if nothing is missing.
fn whatever_is_killed_nothing_else_is_missing(
    kafka: &Kafka,
    agents: usize,
    time: Duration,
    clickhouse: Option<ClickHouse>,
) {
    let before = kafka.lab.agent.counters().unwrap();
    let mut fleet = Fleet::start(kafka, agents);
    let onward = clickhouse.map(|clickhouse| Onward::start(clickhouse, kafka, &fleet.broker));
    fleet.onward = onward;
    fleet.kill_for(time);
    fleet.end_real();
    let (made, last) = fleet.end();
    let found = in_the_topic(&kafka.messages(&fleet.broker));
    let (mut packets, mut undelivered) = (0, 0);
    for (instance, scans) in &made {
        let found = found.get(instance).cloned().unwrap_or_default();
        let count = found.len();
        // From the first one on, without a gap.
        let expected: BTreeMap<_, _> = scans.clone().into_iter().take(count).collect();
        assert_eq!(found, expected, "{instance}");
        packets += found.values().sum::<u64>();
        let missing = scans.len() - count;
        if last.contains(instance) {
            assert_eq!(missing, 0, "{instance} was not killed");
        }
        assert!(missing <= MOST_UNDELIVERED, "{instance}: {missing}");
        undelivered += missing;
    }
    // The starts of the real agents. One of them was never killed.
    let real = found
        .iter()
        .filter(|(instance, _)| !made.contains_key(*instance));
    let real: Vec<u64> = real.map(|(_, scans)| scans.values().sum()).collect();
    let sent = fleet.sent.packets;
    let after = kafka.lab.agent.counters().unwrap();
    assert_eq!((after - before).rx_packets, sent, "the interface's own");
    assert!(real.contains(&sent), "{real:?}, not {sent}");
    let not_drained = 2 * sent - real.iter().sum::<u64>();
    let starts = fleet.starts_again;
    assert_eq!(
        not_drained, fleet.not_drained,
        "what was not in the spool of the agent in {starts} starts"
    );
    let [of_agents, of_collectors, of_brokers] = fleet.kills;
    eprintln!(
        "{} starts of {agents} agents, {of_agents} of which were killed, {of_collectors} kills of collectors, {of_brokers} of \
         the broker: {packets} packets delivered, {undelivered} scans had not been handed over; of {sent} packets on the wire \
         the agent that was not killed had all, and the other one, in {starts} starts, all but {not_drained}",
        made.len(),
    );
    if let Some(onward) = &fleet.onward {
        let flows = |scans: Scans| -> Scans {
            // Scans without a packet have no row.
            let with_packets = |scans: BTreeMap<u64, u64>| {
                scans
                    .into_iter()
                    .filter(|(_, packets)| *packets > 0)
                    .collect()
            };
            let all = scans
                .into_iter()
                .map(|(name, scans)| (name, with_packets(scans)));
            all.filter(|(_, scans): &(_, BTreeMap<_, _>)| !scans.is_empty())
                .collect()
        };
        let expected = flows(found);
        wait_until("all of it is in ClickHouse", || {
            flows(onward.found()) == expected
        });
        eprintln!("ClickHouse has the same, each record once");
    }
}

#[test]
fn agents_collectors_and_the_broker_are_killed_and_nothing_else_is_missing() {
    const TEST: &str =
        "agent::agents_collectors_and_the_broker_are_killed_and_nothing_else_is_missing";
    let Some(kafka) = Kafka::on_or_skip(TEST, || Rc::new(Lab::quiet().unwrap())) else {
        return;
    };
    whatever_is_killed_nothing_else_is_missing(&kafka, 5, Duration::from_secs(15), None);
}

#[test]
#[ignore = "cargo xtask test-delivery"]
fn of_fifty_agents_nothing_is_missing_after_minutes_of_kills() {
    const TEST: &str = "agent::of_fifty_agents_nothing_is_missing_after_minutes_of_kills";
    let lab = || Rc::new(Lab::quiet().unwrap());
    let Some(kafka) = Kafka::on_or_skip(TEST, lab) else {
        return;
    };
    let Some(clickhouse) = ClickHouse::on_or_skip(TEST, &[], || Rc::clone(&kafka.lab)) else {
        return;
    };
    let time = Duration::from_mins(3);
    whatever_is_killed_nothing_else_is_missing(&kafka, 50, time, Some(clickhouse));
}
