//! Attacks on a collector's stored files.

use super::*;
use crate::support::BINARY;

/// The packets that are stored of each host.
fn stored_by_host(folder: &Path, kind: &str) -> BTreeMap<String, u64> {
    let mut stored = BTreeMap::new();
    let mut add = |host: &Value, packets: &Value| {
        let host = host.as_str().unwrap().to_owned();
        *stored.entry(host).or_default() += packets.as_u64().unwrap();
    };
    if kind == "jsonl" {
        let lines = outputs::jsonl::lines(folder).into_iter();
        for line in lines.filter(|line| line["type"] == "flow") {
            add(&line["hostname"], &line["packets"]);
        }
    } else {
        let mut query = Command::new(BINARY);
        query.args(["query", "--by", "host", "--output", "json"]);
        let output = query.arg(folder).output().unwrap();
        let lines = str::from_utf8(&output.stdout).unwrap().lines();
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        for group in lines.filter(|line| line["type"] == "group") {
            add(&group["hostname"], &group["packets"]);
        }
    }
    stored
}

#[test]
fn a_flood_of_a_few_senders_leaves_all_that_others_stored() {
    const TEST: &str = "agent::a_flood_of_a_few_senders_leaves_all_that_others_stored";
    const FILE_BYTES: u64 = 128 << 10;
    /// A line has some 600 bytes, a record some 60.
    const RECORDS: u64 = 1024;
    /// The batches of other hosts before and during each flood.
    const OTHERS: u64 = 10;
    for (kind, attackers, batches, files) in [
        ("jsonl", &ATTACKERS[..1], 8, 16),
        ("jsonl", &ATTACKERS[..], 8, 16),
        ("parquet", &ATTACKERS[..1], 120, 4),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (path, more) = match kind {
            "jsonl" => (
                folder.path().join("flows.jsonl"),
                r#", "compression": "none""#,
            ),
            _ => (folder.path().to_owned(), ""),
        };
        let bounds = format!(
            r#""rotate_bytes": {FILE_BYTES}, "keep_files": {files}, "keep_bytes": {}"#,
            files * FILE_BYTES
        );
        let path = path.display();
        let output = format!(r#"{{"kind": "{kind}", "address": "{path}", {bounds}{more}}}"#);
        let Some(mut confined) = Confined::start(TEST, &["--output", &output]) else {
            return;
        };
        confined.run(async {
            confined.others_are_served(1, OTHERS).await;
            for (number, name) in (1..).zip(attackers) {
                let channel = confined.channel(address(number as usize)).await;
                let flood = (1..=batches).map(|seq| batch(seq, RECORDS as usize));
                let attack = confined.send(&channel, name, flood.collect());
                let others = confined.others_are_served(1 + number * OTHERS, OTHERS);
                tokio::join!(attack, others);
            }
        });
        confined.peak();
        confined.collector.stop();
        let stored = stored_by_host(folder.path(), kind);
        // Ten records of three packets each.
        let others = OTHERS * (1 + attackers.len() as u64) * 10 * 3;
        assert_eq!(stored[OTHER], others, "{stored:?}");
        let flood: u64 = attackers.iter().filter_map(|name| stored.get(*name)).sum();
        let sent = attackers.len() as u64 * batches * RECORDS * 3;
        // The flood has removed its own.
        assert!(flood < sent, "{stored:?}");
    }
}
