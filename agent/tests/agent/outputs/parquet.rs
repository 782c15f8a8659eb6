//! Parquet in files, read by DuckDB and by the crate that writes them.

use ::parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::RowAccessor as _,
};
use serde_json::json;

use super::*;
use crate::{
    admission::memory::{MIB, Memory, reset_peak},
    support::{Report, unix_ns_of},
};

/// The columns of every file with their types as the documentation names them.
fn documented() -> Vec<(String, String)> {
    let pages = [
        include_str!("../../../../docs/parquet.md"),
        include_str!("../../../../docs/fields.md"),
    ];
    let mut columns = Vec::new();
    for page in pages {
        let (_, table) = page.split_once("| column | type |").unwrap();
        let rows = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        for row in rows {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let (names, of_type) = (cells.next().unwrap(), cells.next().unwrap());
            let names = names.split(", ").map(|name| name.trim_matches('`'));
            columns.extend(names.map(|name| (name.to_owned(), of_type.to_owned())));
        }
    }
    assert!(columns.len() > 80);
    columns
}

/// What DuckDB calls a type.
fn in_duckdb(name: &str) -> &'static str {
    match name {
        "UINT64" => "UBIGINT",
        "UINT32" => "UINTEGER",
        "UINT16" => "USMALLINT",
        "UINT8" => "UTINYINT",
        "list of UINT16" => "USMALLINT[]",
        "TIMESTAMP" => "TIMESTAMP WITH TIME ZONE",
        "STRING" => "VARCHAR",
        "BOOLEAN" => "BOOLEAN",
        _ => panic!("{name}"),
    }
}

pub(super) fn table(folder: &Path, more: &str) -> String {
    let folder = folder.display();
    format!(r#"{{"kind": "parquet", "address": "{folder}"{more}}}"#)
}

/// The paths of files that are complete by their names.
pub fn complete(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    assert!(
        names.iter().all(|name| name.ends_with(".parquet")),
        "{names:?}"
    );
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// The sums of these files, both directions together. Fails if one of them is not whole.
pub(super) fn sum(files: &[PathBuf]) -> Pair {
    let mut sum = Pair::default();
    for path in files {
        let file = fs::File::open(path).unwrap();
        let file = SerializedFileReader::new(file)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let columns = file.metadata().file_metadata().schema().get_fields();
        let column = |name: &str| columns.iter().position(|column| column.name() == name);
        let [packets, bytes, reverse_packets, reverse_bytes] =
            ["packets", "bytes", "reverse_packets", "reverse_bytes"]
                .map(|name| column(name).unwrap());
        for row in file.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let number = |column| row.get_ulong(column).unwrap();
            sum += Pair {
                packets: number(packets) + number(reverse_packets),
                bytes: number(bytes) + number(reverse_bytes),
            };
        }
    }
    sum
}

/// A line of JSON Lines as a row of Parquet.
fn as_row(line: &Value) -> Value {
    let mut row = line.clone();
    let fields = row.as_object_mut().unwrap();
    // A file names its agent once.
    for other in ["type", "batch", "agent_id", "hostname"] {
        fields.remove(other);
    }
    for time in ["first_seen", "last_seen"] {
        let nanos = unix_ns_of(&fields[time]);
        fields.insert(time.to_owned(), json!(nanos / 1000));
    }
    // Fields that JSON Lines leave out.
    for (column, of_type) in documented() {
        let nothing = match of_type.as_str() {
            "BOOLEAN" => json!(false),
            "UINT64" if column.ends_with("dropped_packets") => json!(0),
            _ => Value::Null,
        };
        let in_the_batch = ["window_start", "window_end"];
        if !in_the_batch.contains(&column.as_str()) {
            fields.entry(column).or_insert(nothing);
        }
    }
    row
}

/// An agent's report of some flows, whose Parquet files are in the folder.
fn written(folder: &Path) -> (Pair, Report) {
    let lab = Lab::quiet().unwrap();
    let settings = table(folder, r#", "rotate_bytes": 5000"#);
    let settings = [
        "--output", "json", "--output", &settings, "--enrich", "unit",
    ];
    let agent = Agent::start(&lab, &settings);
    let mut sent = Pair::default();
    for _ in 0..3 {
        sent += send(&lab, 20, 3);
        wait_until_counted(&agent, &lab, sent.packets);
    }
    let report = agent.stop();
    assert_eq!(report.seen(), sent);
    // Each round is longer than a file.
    assert!(complete(folder).len() >= 3);
    (sent, report)
}

/// Asserts that the columns have these types, and no others.
fn assert_types(read: &Value, called: fn(&str) -> &'static str) {
    let expected = documented();
    let expected = expected
        .into_iter()
        .map(|(column, of_type)| (column, json!(called(&of_type))));
    assert_eq!(*read, Value::Object(expected.collect()));
}

/// Asserts that the rows equal the JSON Lines.
fn assert_rows(read: &Value, report: &Report) {
    let mut rows = read.as_array().unwrap().clone();
    for row in &mut rows {
        let row = row.as_object_mut().unwrap();
        let [start, end] = ["window_start", "window_end"].map(|name| row.remove(name).unwrap());
        let last_seen = row["last_seen"].as_i64().unwrap();
        // A flow that ends by its idle timeout has its last packet in an earlier window.
        assert!(start.as_i64().unwrap() < end.as_i64().unwrap(), "{row:?}");
        assert!(last_seen <= end.as_i64().unwrap(), "{row:?}");
    }
    let mut lines: Vec<Value> = report.flows.iter().map(as_row).collect();
    let order = |row: &Value| row.to_string();
    rows.sort_by_key(order);
    lines.sort_by_key(order);
    // The two are different consumers; both miss nothing, so batches have the same numbers.
    assert_eq!(rows, lines);
}

#[test]
fn duckdb_reads_what_json_lines_have() {
    let test = "agent::duckdb_reads_what_json_lines_have";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(python) = install::duckdb_or_skip(test) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (sent, report) = written(folder.path());
    let read = read_with(&python, "parquet.py", folder.path());
    assert_types(&read["types"], in_duckdb);
    assert_rows(&read["rows"], &report);

    let told = read["told"].as_array().unwrap();
    let accounts = told.iter().filter(|fact| fact[1] == "flow_agent.account");
    let mut accounts = accounts.map(|fact| {
        let account: Value = serde_json::from_str(fact[2].as_str().unwrap()).unwrap();
        account
    });
    let last = accounts.find(|account| account["final"] == true).unwrap();
    assert_eq!(pair(&last["flows"]), sent);
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn pandas_reads_what_json_lines_have() {
    let test = "agent::pandas_reads_what_json_lines_have";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(python) = install::pandas_or_skip(test) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (sent, report) = written(folder.path());
    let read = read_with(&python, "frame.py", folder.path());
    assert_types(&read["types"], |name| in_pandas(in_duckdb(name)));
    assert_rows(&read["rows"], &report);
    // All are to one port.
    assert_eq!(read["by_port"], json!({"9": sent.bytes}));
}

/// The name that pandas, with pyarrow, gives to a type of DuckDB.
fn in_pandas(name: &str) -> &'static str {
    match name {
        "UBIGINT" => "uint64[pyarrow]",
        "UINTEGER" => "uint32[pyarrow]",
        "USMALLINT" => "uint16[pyarrow]",
        "UTINYINT" => "uint8[pyarrow]",
        "USMALLINT[]" => "list<element: uint16 not null>[pyarrow]",
        "TIMESTAMP WITH TIME ZONE" => "timestamp[us, tz=UTC][pyarrow]",
        "VARCHAR" => "string[pyarrow]",
        "BOOLEAN" => "bool[pyarrow]",
        _ => panic!("{name}"),
    }
}

#[test]
fn a_kill_leaves_no_half_file_and_loses_nothing_that_was_sent() {
    if !is_root_or_skip("agent::a_kill_leaves_no_half_file_and_loses_nothing_that_was_sent") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::quiet().unwrap();
    // So large that no file is complete before the kill, however the scans split the packets.
    let settings = table(folder.path(), "");
    let mut all = Pair::default();
    for flows in [20, 50, 90] {
        let agent = Agent::start(&lab, &["--output", "json", "--output", &settings]);
        let sent = send(&lab, flows, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("all is written", || {
            fates(&output(&agent, &lab, "parquet"), sent)["sent"] == sent
        });
        all += sent;
        agent.kill();
        let hidden = folder.path().join(".flows.parquet.open");
        assert!(hidden.exists(), "nothing waits, so nothing is tested");
        assert_ne!(sum(&complete(folder.path())), all);
    }
    let agent = Agent::start(&lab, &["--output", "json", "--output", &settings]);
    let sent = send(&lab, 1, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    assert_eq!(agent.stop().seen(), sent);
    assert_eq!(sum(&complete(folder.path())), all + sent);
}

/// The memory of one file while it is built, besides the flows and the batches of a scan.
#[test]
fn many_files_take_no_more_memory_than_a_few() {
    const FLOWS: u16 = 50_000;
    const ROUNDS: u64 = 30;
    const MOST_BYTES: u64 = 72 * MIB;
    if !is_root_or_skip("agent::many_files_take_no_more_memory_than_a_few") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::quiet().unwrap();
    let settings = table(folder.path(), r#", "rotate_bytes": 5000000"#);
    // A table that does not grow, so what it takes is the same all the time.
    let table = ["--max-flows", "65536", "--min-flows", "65536"];
    let settings = [&["--output", &settings], &table[..]].concat();
    let mut agent = Agent::start(&lab, &settings);
    let pid = agent.pid();
    reset_peak(pid);
    let before = Memory::of(pid).resident + kernel_map_bytes(&agent, &lab);
    let to_agent = lab.peer.frame_v6(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| to_agent.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    let socket = lab.peer.frame_socket().unwrap();
    for round in 1..=ROUNDS {
        socket.send_many(&frames).unwrap();
        let sent = count(round * u64::from(FLOWS), &frames[0]);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("all is written", || {
            pair(&output(&agent, &lab, "parquet")["sent"]) == sent
        });
    }
    let files = complete(folder.path()).len();
    assert!(files as u64 > ROUNDS, "{files} files");
    let peak = Memory::of(pid).peak;
    assert!(
        peak < before + MOST_BYTES,
        "{before} before, {peak} at most"
    );
    agent.stop_silent();
}

#[test]
fn what_a_filter_leaves_out_closes_the_sum_of_a_file() {
    if !is_root_or_skip("agent::what_a_filter_leaves_out_closes_the_sum_of_a_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("flows.jsonl");
    let lab = Lab::quiet().unwrap();
    let filter = r#", "filter": "include port 1003; exclude all""#;
    let jsonl = format!(
        r#"{{"kind": "jsonl", "address": "{}", "compression": "none"{filter}}}"#,
        lines.display()
    );
    let parquet = folder.path().join("parquet");
    fs::create_dir(&parquet).unwrap();
    let settings = ["--output", "json", "--output", &jsonl, "--output"];
    let parquet_setting = table(&parquet, filter);
    let agent = Agent::start(&lab, &[&settings[..], &[&parquet_setting]].concat());
    let sent = send(&lab, 10, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    assert_eq!(agent.stop().seen(), sent);
    let left_out = |account: &Value| Pair {
        packets: account["left_out_packets"].as_u64().unwrap(),
        bytes: account["left_out_bytes"].as_u64().unwrap(),
    };
    let tenth = |sent: Pair| Pair {
        packets: sent.packets / 10,
        bytes: sent.bytes / 10,
    };

    let files = complete(&parquet);
    assert_eq!(sum(&files), tenth(sent));
    let file = SerializedFileReader::new(fs::File::open(files.last().unwrap()).unwrap()).unwrap();
    let facts = file.metadata().file_metadata().key_value_metadata();
    let fact = |key: &str| {
        let found = facts.unwrap().iter().find(|fact| fact.key == key).unwrap();
        let value: Value = serde_json::from_str(found.value.as_ref().unwrap()).unwrap();
        value
    };
    assert_eq!(tenth(sent) + left_out(&fact("flow_agent.account")), sent);
    assert_eq!(tenth(sent) + pair(&fact("flow_agent.left_out")), sent);

    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    let entries = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
    let complete = entries.filter(|entry| name(entry).starts_with("flows-"));
    let text: String = complete
        .map(|entry| fs::read_to_string(entry.path()).unwrap())
        .collect();
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let account: Value = lines
        .rfind(|line: &Value| line["type"] == "account")
        .unwrap();
    assert_eq!(account["final"], true);
    assert_eq!(tenth(sent) + left_out(&account), sent);
}
