//! An agent that is killed while it makes files: all files named as complete are whole, and no flow that counted as
//! sent is missing.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
};

use super::{jsonl::sum as sum_of_lines, messages::Messages, *};

/// Kills before the last agent, which ends by itself.
const KILLS: usize = 5;

/// Kills agents with this output, which reaches more than one file in each scan. `sum` reads all complete files, and
/// fails if one is not whole.
fn kill_while_files_are_made(kind: &str, output_setting: &str, sum: impl Fn() -> Pair) {
    let lab = Lab::quiet().unwrap();
    let settings = ["--output", "json", "--output", output_setting];
    let mut sent_at_least = Pair::default();
    for _ in 0..KILLS {
        let agent = Agent::start(&lab, &settings);
        for _ in 0..5 {
            send(&lab, 200, 1);
        }
        wait_until("some are written", || {
            pair(&output(&agent, &lab, kind)["sent"]).packets > 0
        });
        sent_at_least += pair(&output(&agent, &lab, kind)["sent"]);
        agent.kill();
        sum();
    }
    let agent = Agent::start(&lab, &settings);
    // The first batch, which every scan has, completes the leftover file.
    wait_until("it completes", || {
        let sum = sum();
        sum.packets >= sent_at_least.packets && sum.bytes >= sent_at_least.bytes
    });
    agent.stop();
}

fn table(kind: &str, address: &Path, more: &str) -> String {
    let address = address.display();
    format!(r#"{{"kind": "{kind}", "address": "{address}"{more}}}"#)
}

/// The complete files in a folder, whose names end so.
fn complete(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_complete = |path: &PathBuf| path.to_str().unwrap().ends_with(ending);
    paths.filter(is_complete).collect()
}

#[test]
fn kills_while_parquet_files_are_made_leave_no_half_file() {
    if !is_root_or_skip("agent::kills_while_parquet_files_are_made_leave_no_half_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // A file for each batch.
    let setting = table("parquet", folder.path(), r#", "rotate_bytes": 1"#);
    kill_while_files_are_made("parquet", &setting, || {
        parquet::sum(&parquet::complete(folder.path()))
    });
}

#[test]
fn kills_while_json_lines_are_compressed_leave_no_half_file() {
    if !is_root_or_skip("agent::kills_while_json_lines_are_compressed_leave_no_half_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flows.jsonl");
    // By default with zstd.
    let setting = table("jsonl", &path, r#", "rotate_bytes": 5000"#);
    kill_while_files_are_made("jsonl", &setting, || {
        let read = |path: PathBuf| {
            let text = zstd::Decoder::new(File::open(path).unwrap()).unwrap();
            let lines: Vec<Value> = BufReader::new(text)
                .lines()
                .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
                .collect();
            sum_of_lines(&lines)
        };
        complete(folder.path(), ".zst").into_iter().map(read).sum()
    });
}

#[test]
fn kills_while_ipfix_files_are_compressed_leave_no_half_file() {
    if !is_root_or_skip("agent::kills_while_ipfix_files_are_compressed_leave_no_half_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flows.ipfix");
    let more = r#", "rotate_bytes": 5000, "message_bytes": 1000, "compression": "gzip""#;
    kill_while_files_are_made("ipfix", &table("ipfix", &path, more), || {
        let read = |path: PathBuf| {
            let mut bytes = Vec::new();
            let mut gzip = flate2::read::GzDecoder::new(File::open(path).unwrap());
            gzip.read_to_end(&mut bytes).unwrap();
            let mut messages = Messages::default();
            messages.take(&bytes);
            assert!(messages.begun.is_empty(), "half a message");
            messages.flows
        };
        complete(folder.path(), ".gz").into_iter().map(read).sum()
    });
}
