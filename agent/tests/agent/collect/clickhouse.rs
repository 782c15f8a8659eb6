//! ClickHouse as a store: its engine (chdb) behind a small server of the test's, which speaks as much HTTP as it takes. The tables,
//! the types, the reading of Parquet and the handling of repetitions are ClickHouse's own.

use std::rc::Rc;

use proto::{AgentIdentity, FlowBatch};
use tonic::Code;

use super::{
    calls::{batch, call, connect, runtime},
    *,
};
use crate::clients::install;

mod broken;
pub(super) mod kafka;
mod refused;
mod types;

const PORT: u16 = 8123;
const DATABASE: &str = "netflow";
const SCHEMA: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/clickhouse/flows.sql"
);

/// A server in a host. What it has stored outlives it.
pub(super) struct ClickHouse {
    lab: Rc<Lab>,
    python: PathBuf,
    folder: TempDir,
    options: Vec<String>,
    process: Option<Process>,
}

impl ClickHouse {
    fn or_skip(test: &str) -> Option<Self> {
        Self::with_or_skip(test, &[])
    }

    fn with_or_skip(test: &str, options: &[&str]) -> Option<Self> {
        Self::on_or_skip(test, options, || Rc::new(Lab::quiet().unwrap()))
    }

    /// On hosts that may be there already.
    pub fn on_or_skip(test: &str, options: &[&str], lab: impl FnOnce() -> Rc<Lab>) -> Option<Self> {
        if !is_root_or_skip(test) {
            return None;
        }
        let mut clickhouse = Self {
            python: install::chdb_or_skip(test)?,
            lab: lab(),
            folder: tempfile::tempdir().unwrap(),
            options: options.iter().map(ToString::to_string).collect(),
            process: None,
        };
        clickhouse.start();
        Some(clickhouse)
    }

    fn start(&mut self) {
        let log = self.folder.path().join("log");
        let mut command = self.command();
        command
            .args(["serve", &PORT.to_string()])
            .arg(self.folder.path().join("tables"))
            .args([DATABASE, SCHEMA])
            .args(&self.options)
            .stdout(File::create(&log).unwrap());
        let mut process = Process::spawn(&mut command).unwrap();
        wait_until("ClickHouse is ready", || {
            assert!(process.exited().unwrap().is_none(), "it has ended");
            fs::read_to_string(&log).unwrap().contains("ready")
        });
        self.process = Some(process);
    }

    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.signal(libc::SIGKILL).unwrap();
        process.wait(patience()).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = self.lab.agent.command(&self.python);
        command.arg(install::python_folder().join("clickhouse.py"));
        command
    }

    fn told(&self, arguments: &[&str]) -> String {
        let (action, rest) = arguments.split_first().unwrap();
        let mut command = self.command();
        command.args([action, PORT.to_string().as_str()]).args(rest);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The rows that a statement returns.
    pub fn ask(&self, statement: &str) -> Vec<Value> {
        let lines = self.told(&["ask", statement]);
        let rows = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        rows.collect()
    }

    /// The number that a statement returns.
    fn number(&self, statement: &str) -> u64 {
        let rows = self.ask(&format!("SELECT ({statement}) AS number"));
        rows[0]["number"].as_u64().unwrap()
    }

    /// Sets how the server handles the next INSERTs.
    fn behaves(&self, mode: &str, times: i32) {
        self.told(&["behave", mode, &times.to_string()]);
    }

    /// Until it is asked to merge, or started again.
    fn keeps_repetitions(&self) {
        self.ask("SYSTEM STOP MERGES");
    }

    /// What the records sum up to, by stream, each once.
    fn sums(&self) -> BTreeMap<String, Pair> {
        let rows = self.ask(
            "SELECT stream_id, sum(packets + reverse_packets) AS packets, sum(bytes + reverse_bytes) AS bytes \
             FROM flows FINAL GROUP BY stream_id",
        );
        let sums = rows.iter().map(|row| {
            let stream = row["stream_id"].as_str().unwrap();
            (stream.to_owned(), pair(row))
        });
        sums.collect()
    }

    /// A collector that stores there, and its address for clients of the test.
    pub fn collector(&self, setting: &str) -> (Collector, String) {
        let socket = format!("unix:{}", self.folder.path().join("socket").display());
        let settings = ["--output", setting, "--listen", &socket];
        let collector = Collector::start(&self.lab.agent, 0, &settings);
        // The port was there first.
        collector.wait_until_logged(&format!("address={socket}"));
        (collector, socket)
    }

    fn store(&self, collector: &Collector) -> Value {
        collector.status(&self.lab.agent)["stores"][0].clone()
    }
}

/// The collector's setting.
pub(super) fn output(more: &str) -> String {
    format!(
        r#"{{"kind": "clickhouse", "address": "http://127.0.0.1:{PORT}/{DATABASE}/flows"{more}}}"#
    )
}

/// Sends batches and returns how the call ended.
fn export(socket: &str, batches: Vec<FlowBatch>) -> (Vec<u64>, Result<(), tonic::Status>) {
    runtime().block_on(async {
        let mut client = connect(socket).await;
        call(&mut client, batches).await
    })
}

fn batches(numbers: std::ops::RangeInclusive<u64>) -> Vec<FlowBatch> {
    numbers.map(|seq| batch(seq, 2)).collect()
}

#[test]
fn every_packet_is_in_clickhouse_and_counts_once_however_often_it_comes() {
    const TEST: &str =
        "agent::every_packet_is_in_clickhouse_and_counts_once_however_often_it_comes";
    let Some(clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    clickhouse.keeps_repetitions();
    let lab = &clickhouse.lab;
    let (collector, socket) = clickhouse.collector(&output(""));
    let to = collector.setting();
    let agents = [(); 2].map(|()| Agent::start(lab, &["--output", "json", "--output", &to]));
    let mut sent = Pair::default();
    for _ in 0..3 {
        sent += send(lab, 300, 2);
    }
    for agent in agents {
        wait_until_acknowledged(&agent, lab, sent);
        assert_eq!(agent.stop().seen(), sent);
    }
    let sums: Vec<_> = clickhouse.sums().into_values().collect();
    assert_eq!(sums, [sent, sent]);
    let of_batches = clickhouse.ask("SELECT packets, bytes, lost_packets FROM flows_streams");
    for told in &of_batches {
        assert_eq!((pair(told), &told["lost_packets"]), (sent, &0.into()));
    }
    // The last account of each agent says the same.
    let accounts = clickhouse.ask(
        "SELECT flows_packets AS packets, flows_bytes AS bytes, account FROM flows_batches FINAL WHERE final",
    );
    assert_eq!(accounts.len(), 2);
    for told in &accounts {
        assert_eq!(pair(told), sent);
        let account: Value = serde_json::from_str(told["account"].as_str().unwrap()).unwrap();
        assert_eq!(pair(&account["seen"]), sent);
    }

    // Another collector does not know what the first one has stored.
    let (acks, ended) = export(&socket, batches(1..=5));
    assert_eq!(acks.last(), Some(&5), "{ended:?}");
    let log = collector.stop();
    assert!(warns_of_slowness_alone(&log), "{log}");
    let (collector, socket) = clickhouse.collector(&output(""));
    let (acks, ended) = export(&socket, batches(1..=6));
    assert_eq!(acks.last(), Some(&6), "{ended:?}");
    assert_eq!(pair(&clickhouse.store(&collector)["stored"]).packets, 36);
    let log = log + &collector.stop();
    let stream = "stream_id = '123456789abcdef0'";
    let of = |table: &str, what: &str| {
        clickhouse.number(&format!("SELECT {what} FROM {table} WHERE {stream}"))
    };
    // If the server acknowledges too slowly, it gets the rows again.
    let count = of("flows", "count()");
    assert!(
        count == 22 || count > 22 && log.contains("cannot store flows"),
        "{count}"
    );
    assert_eq!(of("flows_once", "count()"), 12);
    assert_eq!(of("flows_once", "sum(packets)"), 36);
    assert_eq!(of("flows_streams", "packets"), 36);
    assert_eq!(of("flows_streams", "batches"), 6);
    clickhouse.ask("SYSTEM START MERGES");
    clickhouse.ask("OPTIMIZE TABLE flows FINAL");
    assert_eq!(of("flows", "count()"), 12);
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn what_comes_within_a_second_is_one_insert() {
    const TEST: &str = "agent::what_comes_within_a_second_is_one_insert";
    let Some(clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    let more = r#", "insert_every": "5s""#;
    let (collector, socket) = clickhouse.collector(&output(more));
    let inserts = || clickhouse.told(&["inserts"]).parse::<u64>().unwrap();
    assert_eq!(export(&socket, batches(1..=1)).0, [1]);
    let before = inserts();
    runtime().block_on(async {
        let calls = (1..=20).map(|stream_id| {
            let socket = socket.clone();
            async move {
                let mut client = connect(&socket).await;
                let of_it = batches(1..=3).into_iter();
                let of_it = of_it.map(|batch| FlowBatch { stream_id, ..batch });
                let (acks, ended) = call(&mut client, of_it.collect()).await;
                assert_eq!(acks.last(), Some(&3), "{ended:?}");
            }
        });
        futures_util::future::join_all(calls).await;
    });
    // One into each table, or two if this machine took its time.
    let made = inserts() - before;
    assert!((2..=4).contains(&made), "{made}");
    collector.stop();
}
