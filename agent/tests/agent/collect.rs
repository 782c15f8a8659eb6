//! `flow-agent collect`: acknowledged batches are stored, to the packet, and identified by stream and number.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use agent_common::Pair;
use lab::{Host, Lab, Process, privilege::is_root_or_skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    clients::install,
    outputs::{self, send},
    support::{
        Agent, answered,
        disk::{PowerlessDisk, SmallDisk},
        flow_agent, pair, patience, wait_until,
    },
};

mod attacks;
mod calls;
mod clickhouse;
mod consumers;
mod conversations;
mod delivery;
mod identities;
mod kafka;
mod limits;
mod pairs;
mod reports;
mod samples;
mod secured;
mod silence;
mod tokens;
mod validity;

/// Whether its only warnings are about a slow store, as on a busy machine.
fn warns_of_slowness_alone(log: &str) -> bool {
    let is_slow = |line: &str| {
        line.contains("cannot store flows")
            && (line.contains("within") || line.contains("nothing for"))
    };
    log.lines()
        .filter(|line| line.contains("WARN"))
        .all(is_slow)
}

/// A running `flow-agent collect`, on the loopback interface of a host.
pub struct Collector {
    process: Process,
    log: PathBuf,
    pub address: SocketAddr,
    _folder: TempDir,
}

impl Collector {
    /// At this port, at any port if it is 0, or where the settings say.
    pub fn start(host: &Host, port: u16, settings: &[&str]) -> Self {
        Self::start_by(flow_agent(host), port, settings)
    }

    /// The same with a command that runs the binary with the arguments added to it.
    fn start_by(mut command: Command, port: u16, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        command.arg("collect").args(settings);
        let mut pairs = settings.iter().zip(settings.iter().skip(1));
        if !pairs.any(|(name, value)| *name == "--listen" && !value.starts_with("unix:")) {
            command.args(["--listen", &format!("127.0.0.1:{port}")]);
        }
        command
            .stdout(File::create(folder.path().join("out")).unwrap())
            .stderr(File::create(&log).unwrap());
        let mut process = Process::spawn(&mut command).unwrap();
        let mut address = None;
        wait_until("it listens", || {
            let text = fs::read_to_string(&log).unwrap();
            assert!(process.exited().unwrap().is_none(), "{text}");
            let lines = text.lines().filter(|line| line.contains("listening"));
            let mut words = lines.flat_map(str::split_whitespace);
            address = words.find_map(|word| word.strip_prefix("address=")?.parse().ok());
            address.is_some()
        });
        Self {
            process,
            log,
            address: address.unwrap(),
            _folder: folder,
        }
    }

    /// The address for agents.
    fn setting(&self) -> String {
        format!("collector=http://{}", self.address)
    }

    fn status(&self, host: &Host) -> Value {
        let output = answered(|| {
            let mut command = flow_agent(host);
            let address = self.address.to_string();
            command.args(["status", "--output", "json", "--connect", &address]);
            command
        });
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_until_logged(&self, text: &str) {
        wait_until(text, || self.log().contains(text));
    }

    /// Ends it with SIGTERM. Returns its log.
    fn stop(mut self) -> String {
        let status = self.process.terminate(patience()).unwrap();
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        log
    }

    fn kill(mut self) {
        self.process.signal(libc::SIGKILL).unwrap();
        self.process.wait(patience()).unwrap();
    }
}

/// An output to it, with more settings.
fn to(collector: &Collector, more: &str) -> String {
    let address = collector.address;
    format!(r#"{{"kind": "collector", "address": "http://{address}"{more}}}"#)
}

fn jsonl(folder: &Path) -> String {
    let path = folder.join("flows.jsonl");
    let path = path.display();
    format!(r#"{{"kind": "jsonl", "address": "{path}", "compression": "none"}}"#)
}

fn parquet(folder: &Path) -> String {
    format!("parquet={}", folder.display())
}

/// A flow line's own name.
type Key = (String, u64, u64);

/// The sums of the lines of all files by stream, each record once. Fails if a record was repeated with other content.
fn stored(folders: &[&Path]) -> BTreeMap<String, Pair> {
    let mut records = BTreeMap::<Key, Value>::new();
    for folder in folders {
        for line in outputs::jsonl::lines(folder) {
            if line["type"] != "flow" {
                continue;
            }
            let number = |name: &str| line[name].as_u64().unwrap();
            let stream = line["stream_id"].as_str().unwrap().to_owned();
            let key = (stream, number("stream_seq"), number("record"));
            let before = records.insert(key, line.clone());
            assert!(before.is_none_or(|before| before == line));
        }
    }
    let mut streams = BTreeMap::new();
    for ((stream, _, _), line) in records {
        let sum = outputs::jsonl::sum(std::slice::from_ref(&line));
        *streams.entry(stream).or_insert_with(Pair::default) += sum;
    }
    streams
}

/// Waits until the agent's output to the collector has nothing left.
fn wait_until_acknowledged(agent: &Agent, lab: &Lab, sent: Pair) {
    wait_until("all is acknowledged", || {
        pair(&outputs::output(agent, lab, "collector")["sent"]) == sent
    });
}

#[test]
fn every_packet_of_two_agents_is_stored_however_often_the_collector_is_killed() {
    const TEST: &str =
        "agent::every_packet_of_two_agents_is_stored_however_often_the_collector_is_killed";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let [lines, files] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (as_lines, as_files) = (jsonl(lines.path()), parquet(files.path()));
    let settings = ["--output", &as_lines, "--output", &as_files];
    let mut collector = Collector::start(&lab.agent, 0, &settings);
    let port = collector.address.port();
    let to = collector.setting();
    let agents = [(); 2].map(|()| Agent::start(&lab, &["--output", "json", "--output", &to]));
    let mut sent = Pair::default();
    for _ in 0..4 {
        sent += send(&lab, 300, 1);
        collector.kill();
        sent += send(&lab, 300, 2);
        collector = Collector::start(&lab.agent, port, &settings);
        sent += send(&lab, 100, 1);
    }
    for agent in agents {
        wait_until_acknowledged(&agent, &lab, sent);
        assert_eq!(agent.stop().seen(), sent);
    }
    let status = collector.status(&lab.agent);
    let streams = status["streams"].as_array().unwrap();
    assert_eq!(streams.len(), 2, "{streams:?}");
    for stream in streams {
        assert_eq!(pair(&stream["account"]["seen"]), sent, "{stream}");
        assert_eq!(stream["account"]["final"], true);
        assert_eq!(stream["lost_batches"], 0);
        assert_ne!(stream["agent"]["hostname"], "");
    }
    let log = collector.stop();
    assert!(!log.contains("WARN"), "{log}");
    let streams = stored(&[lines.path()]);
    assert_eq!(streams.len(), 2);
    for sum in streams.into_values() {
        assert_eq!(sum, sent);
    }
    assert_eq!(in_parquet(files.path()), [sent, sent]);
}

#[test]
fn what_is_acknowledged_is_there_after_the_power_fails() {
    if !is_root_or_skip("agent::what_is_acknowledged_is_there_after_the_power_fails") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut disk = PowerlessDisk::new();
    let [lines, files] = ["lines", "files"].map(|name| disk.path().join(name));
    for folder in [&lines, &files] {
        fs::create_dir(folder).unwrap();
        // As if an operator had created them earlier.
        File::open(folder).unwrap().sync_all().unwrap();
    }
    let (as_lines, as_files) = (jsonl(&lines), parquet(&files));
    let settings = ["--output", &as_lines, "--output", &as_files];
    let mut collector = Collector::start(&lab.agent, 0, &settings);
    let port = collector.address.port();
    let to = collector.setting();
    let agent = Agent::start(&lab, &["--output", "json", "--output", &to]);
    let mut sent = Pair::default();
    // Into new files, and into files left by a power cut.
    for _ in 0..3 {
        sent += send(&lab, 50, 2);
        wait_until_acknowledged(&agent, &lab, sent);
        collector.kill();
        disk.loses_power();
        collector = Collector::start(&lab.agent, port, &settings);
    }
    assert_eq!(agent.stop().seen(), sent);
    collector.stop();
    assert_eq!(stored(&[&lines]).into_values().collect::<Vec<_>>(), [sent]);
    assert_eq!(in_parquet(&files), [sent]);
}

/// The query in `docs/collect.md`, over files in this folder.
fn documented_query(folder: &Path) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/collect.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, query) = text.split_once("\n    SELECT hostname").unwrap();
    let (query, _) = query.split_once("\n\n").unwrap();
    let files = "/var/lib/flow-agent/";
    assert!(query.contains(files), "{query}");
    format!("SELECT hostname{query}").replace(files, &format!("{}/", folder.display()))
}

#[test]
fn duckdb_counts_each_record_of_a_collectors_files_once_by_the_documented_query() {
    let test =
        "agent::duckdb_counts_each_record_of_a_collectors_files_once_by_the_documented_query";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(python) = install::duckdb_or_skip(test) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(&lab.agent, 0, &["--output", &parquet(folder.path())]);
    let to = collector.setting();
    let agent = Agent::start(&lab, &["--output", "json", "--output", &to]);
    let sent = send(&lab, 300, 2);
    wait_until_acknowledged(&agent, &lab, sent);
    agent.stop();
    collector.stop();
    // As if a killed collector had stored everything again.
    let files = outputs::parquet::complete(folder.path());
    for (number, file) in files.iter().enumerate() {
        fs::copy(file, folder.path().join(format!("again-{number}.parquet"))).unwrap();
    }
    assert_eq!(in_parquet(folder.path()), [sent]);
    let script = "import duckdb, sys; print(duckdb.execute(sys.argv[1]).fetchall())";
    let mut command = Command::new(python);
    let output = command
        .args(["-c", script, &documented_query(folder.path())])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout
            .trim_end()
            .ends_with(&format!(", {})]", sent.packets)),
        "{stdout}"
    );
    assert_eq!(stdout.matches("), (").count(), 0, "one host: {stdout}");
}

/// The sums of the rows of all files by stream, each record once.
fn in_parquet(folder: &Path) -> Vec<Pair> {
    use ::parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::RowAccessor as _,
    };
    let mut records = BTreeMap::<Key, Pair>::new();
    for path in outputs::parquet::complete(folder) {
        let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let metadata = file.metadata().file_metadata();
        let streams = metadata.key_value_metadata().unwrap();
        let streams = streams.iter().find(|pair| pair.key == "flow_agent.streams");
        let streams: Value =
            serde_json::from_str(streams.unwrap().value.as_ref().unwrap()).unwrap();
        let columns = metadata.schema().get_fields();
        let column = |name: &str| {
            let found = columns.iter().position(|column| column.name() == name);
            found.unwrap_or_else(|| panic!("no column {name}"))
        };
        for row in file.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let number = |name| row.get_ulong(column(name)).unwrap();
            let stream = row.get_string(column("stream_id")).unwrap().clone();
            let named = |known: &Value| known["stream_id"] == stream.as_str();
            let known = streams
                .as_array()
                .unwrap()
                .iter()
                .find(|known| named(known));
            let agent = &known.expect("the file names its stream")["agent"];
            assert_eq!(
                agent["hostname"],
                row.get_string(column("hostname")).unwrap().as_str()
            );
            let record = row.get_uint(column("record")).unwrap();
            let key = (stream, number("stream_seq"), record.into());
            let reports = Pair {
                packets: number("packets") + number("reverse_packets"),
                bytes: number("bytes") + number("reverse_bytes"),
            };
            let before = records.insert(key, reports);
            assert!(before.is_none_or(|before| before == reports));
        }
    }
    let mut streams = BTreeMap::new();
    for ((stream, _, _), reports) in records {
        *streams.entry(stream).or_insert_with(Pair::default) += reports;
    }
    streams.into_values().collect()
}

#[test]
fn what_a_full_disk_does_not_take_is_not_acknowledged_and_goes_to_another_collector() {
    const TEST: &str =
        "agent::what_a_full_disk_does_not_take_is_not_acknowledged_and_goes_to_another_collector";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let small = SmallDisk::mount("size=1m");
    let large = tempfile::tempdir().unwrap();
    let (little, much) = (jsonl(small.path()), jsonl(large.path()));
    let full = Collector::start(&lab.agent, 0, &["--output", &little]);
    let other = Collector::start(&lab.agent, 0, &["--output", &much]);
    let setting = format!(
        r#"{{"kind": "collector", "address": "http://{}", "failover": "{}"}}"#,
        full.address, other.address
    );
    let agent = Agent::start(&lab, &["--output", "json", "--output", &setting]);
    let mut sent = Pair::default();
    for _ in 0..8 {
        sent += send(&lab, 1000, 1);
    }
    wait_until_acknowledged(&agent, &lab, sent);
    full.wait_until_logged("cannot store flows");
    let status = full.status(&lab.agent);
    let store = &status["stores"][0];
    let error = store["last_error"].as_str().unwrap();
    assert!(error.contains("free space there"), "{error}");
    // A short batch may have found room.
    assert!(store["failures"].as_u64().unwrap() > 0, "{store}");
    let first = pair(&store["stored"]);
    assert_eq!(agent.stop().seen(), sent);
    let there = pair(&other.status(&lab.agent)["stores"][0]["stored"]);
    assert_eq!(
        first + there,
        sent,
        "nothing twice, since nothing was half stored"
    );
    other.stop();
    full.stop();
    let sums: Vec<_> = stored(&[small.path(), large.path()])
        .into_values()
        .collect();
    assert_eq!(sums, [sent]);
}

#[test]
fn a_collector_that_stops_has_stored_what_it_took_and_tells_agents_to_go() {
    const TEST: &str =
        "agent::a_collector_that_stops_has_stored_what_it_took_and_tells_agents_to_go";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (in_one, in_two) = (jsonl(one.path()), jsonl(two.path()));
    let first = Collector::start(&lab.agent, 0, &["--output", &in_one]);
    let second = Collector::start(&lab.agent, 0, &["--output", &in_two]);
    let setting = format!(
        r#"{{"kind": "collector", "address": "http://{}", "failover": "{}"}}"#,
        first.address, second.address
    );
    let agent = Agent::start(&lab, &["--output", "json", "--output", &setting]);
    let mut sent = send(&lab, 500, 1);
    wait_until("the first one has something", || {
        let stored = &first.status(&lab.agent)["stores"][0]["stored"]["records"];
        stored.as_u64().is_some_and(|records| records > 0)
    });
    first.stop();
    sent += send(&lab, 500, 1);
    wait_until_acknowledged(&agent, &lab, sent);
    assert_eq!(agent.stop().seen(), sent);
    let log = second.stop();
    assert!(!log.contains("WARN"), "{log}");
    let sums: Vec<_> = stored(&[one.path(), two.path()]).into_values().collect();
    assert_eq!(sums, [sent]);
}
