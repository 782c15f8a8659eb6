//! JSON Lines in files.

use super::*;

/// The lines of all files in a folder, oldest first.
pub fn lines(folder: &Path) -> Vec<Value> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort_by_cached_key(|file| age_order(file));
    let text = files.iter().map(|file| fs::read_to_string(file).unwrap());
    let text: String = text.collect();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Sorts `flows-20260102T030405Z.jsonl` before `flows-20260102T030405Z-2.jsonl` of the same second, and `flows.jsonl`, which is
/// still written, last. A file of one sender is between those of all.
fn age_order(file: &Path) -> (bool, String, u32) {
    let name = file.file_stem().unwrap().to_str().unwrap();
    let name = name.split_once("-from-").map_or(name, |(name, _)| name);
    match name.split_once('Z') {
        None => (true, name.to_owned(), 0),
        Some((begun, "")) => (false, begun.to_owned(), 1),
        Some((begun, number)) => (false, begun.to_owned(), number[1..].parse().unwrap()),
    }
}

/// The sums of the flows, both directions together.
pub fn sum(lines: &[Value]) -> Pair {
    let flows = lines.iter().filter(|line| line["type"] == "flow");
    let number = |line: &Value, name: &str| line[name].as_u64().unwrap();
    flows
        .map(|line| Pair {
            packets: number(line, "packets") + number(line, "reverse_packets"),
            bytes: number(line, "bytes") + number(line, "reverse_bytes"),
        })
        .sum()
}

fn table(folder: &TempDir, compression: &str, more: &str) -> String {
    let path = folder.path().join("flows.jsonl");
    format!(
        r#"{{"kind": "jsonl", "address": "{}", "compression": "{compression}"{more}}}"#,
        path.display()
    )
}

/// Runs an agent whose flows make three files or more. Returns what was sent.
fn write_three_files(folder: &TempDir, compression: &str) -> Pair {
    let lab = Lab::quiet().unwrap();
    // Each round is longer than a file.
    let setting = table(folder, compression, r#", "rotate_bytes": 5000"#);
    let agent = Agent::start(&lab, &["--output", "json", "--output", &setting]);
    let mut sent = Pair::default();
    for _ in 0..3 {
        sent += send(&lab, 20, 3);
        wait_until_counted(&agent, &lab, sent.packets);
    }
    wait_until("all is written", || {
        fates(&output(&agent, &lab, "jsonl"), sent)["sent"] == sent
    });
    let report = agent.stop();
    assert_eq!(report.seen(), sent);
    sent
}

#[test]
fn files_have_every_packet_however_often_they_are_rotated() {
    if !is_root_or_skip("agent::files_have_every_packet_however_often_they_are_rotated") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sent = write_three_files(&folder, "none");
    let lines = lines(folder.path());
    assert_eq!(sum(&lines), sent);
    let finals = lines.iter().filter(|line| line["final"] == true);
    assert_eq!(finals.count(), 1);
    assert!(fs::read_dir(folder.path()).unwrap().count() >= 3);
    assert!(!folder.path().join("flows.jsonl").exists());
}

#[test]
fn duckdb_reads_every_packet_from_compressed_files() {
    let test = "agent::duckdb_reads_every_packet_from_compressed_files";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(python) = install::duckdb_or_skip(test) else {
        return;
    };
    for compression in ["zstd", "gzip"] {
        let folder = tempfile::tempdir().unwrap();
        let sent = write_three_files(&folder, compression);
        let read = read_with(&python, "jsonl.py", folder.path());
        assert_eq!(pair(&read), sent, "{compression}");
        assert_eq!(read["finals"], 1);
        assert!(read["files"].as_u64() >= Some(3), "{read}");
    }
}

#[test]
fn ended_and_large_flows_alone_have_all_their_packets() {
    if !is_root_or_skip("agent::ended_and_large_flows_alone_have_all_their_packets") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::quiet().unwrap();
    let wanted = table(&folder, "none", r#", "only_ended": true, "min_bytes": 300"#);
    let agent = Agent::start(&lab, &["--output", "json", "--output", &wanted]);
    // Of 60 bytes each, in two scans.
    send(&lab, 5, 2);
    wait_until_counted(&agent, &lab, 10);
    let large = send(&lab, 2, 3);
    wait_until_counted(&agent, &lab, 16);
    agent.stop();
    let lines = lines(folder.path());
    let flows = lines.iter().filter(|line| line["type"] == "flow");
    assert_eq!(flows.count(), 2);
    let [large_packets, large_bytes] = [large.packets / 3 * 5, large.bytes / 3 * 5];
    assert_eq!(
        sum(&lines),
        Pair {
            packets: large_packets,
            bytes: large_bytes
        }
    );
}

#[test]
fn a_file_that_cannot_be_written_is_told_once_and_its_flows_wait() {
    if !is_root_or_skip("agent::a_file_that_cannot_be_written_is_told_once_and_its_flows_wait") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [here, elsewhere] = ["here", "elsewhere"].map(|name| folder.path().join(name));
    fs::create_dir(&here).unwrap();
    let path = here.join("flows.jsonl");
    let lab = Lab::quiet().unwrap();
    // Each scan begins another file.
    let table = format!(
        r#"{{"kind": "jsonl", "address": "{}", "rotate_bytes": 1}}"#,
        path.display()
    );
    let mut agent = Agent::start(&lab, &["--output", "json", "--output", &table]);
    fs::rename(&here, &elsewhere).unwrap();
    agent.wait_until_logged("cannot deliver flows to");
    let sent = send(&lab, 10, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("they wait", || {
        let output = output(&agent, &lab, "jsonl");
        output["failing"] == true && fates(&output, sent)["queued"] == sent
    });
    fs::rename(&elsewhere, &here).unwrap();
    wait_until("they are written", || {
        let output = output(&agent, &lab, "jsonl");
        output["failing"] == false && fates(&output, sent)["sent"] == sent
    });
    agent.wait_until_logged("again");
    let log = agent.stderr();
    assert_eq!(log.matches("cannot deliver flows to").count(), 1, "{log}");
    agent.stop();
}

#[test]
fn what_is_not_sent_before_the_end_is_counted_and_told() {
    if !is_root_or_skip("agent::what_is_not_sent_before_the_end_is_counted_and_told") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // Nobody listens there.
    let settings = ["--output", "ipfix=tcp://127.0.0.1:9"];
    let agent = Agent::start(&lab, &settings);
    let sent = send(&lab, 10, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    let log = agent.stop_silent();
    let told = format!("lost_packets={} lost_bytes={}", sent.packets, sent.bytes);
    assert!(log.contains(&told), "{log}");
}
