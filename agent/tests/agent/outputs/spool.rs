//! Unacknowledged batches on disk: they survive the agent's end, however it comes, and full or damaged disks.

use std::{sync::atomic::Ordering::Relaxed, time::SystemTime};

use super::{collector::Store, *};
use crate::{
    metrics,
    support::disk::{PowerlessDisk, SmallDisk},
};

/// The lengths of a segment's and of a batch's header.
const FRONT_BYTES: usize = 20;
const HEADER_BYTES: usize = 120;

pub fn setting(port: u16, folder: &Path) -> String {
    let folder = folder.display();
    format!(r#"{{"kind": "collector", "address": "http://127.0.0.1:{port}", "spool": "{folder}"}}"#)
}

pub fn start(lab: &Lab, setting: &str) -> Agent {
    Agent::start(lab, &["--output", "json", "--output", setting])
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|suffix| suffix == "spool");
    let mut segments: Vec<_> = paths.filter(is_segment).collect();
    segments.sort();
    segments
}

/// The batches of a segment by their headers: where each has its bytes, and what it reports.
fn batches(segment: &[u8]) -> Vec<(usize, Pair)> {
    let mut batches = Vec::new();
    let mut at = FRONT_BYTES;
    while let Some(header) = segment.get(at..at + HEADER_BYTES) {
        let number = |place: usize| {
            let bytes = header[place..place + 8].try_into().unwrap();
            u64::from_le_bytes(bytes)
        };
        let reports = Pair {
            packets: number(40),
            bytes: number(48),
        };
        at += HEADER_BYTES;
        batches.push((at, reports));
        at += u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
    }
    batches
}

/// The sum of the batches in a folder.
fn on_disk(folder: &Path) -> Pair {
    let read = |path: PathBuf| batches(&fs::read(path).unwrap());
    let all = segments(folder).into_iter().flat_map(read);
    all.map(|(_, reports)| reports).sum()
}

/// The packets of all batches that ever came into the spool, by its mark and its batches.
pub fn taken(folder: &Path) -> u64 {
    // Acknowledged segments may be removed meanwhile. The mark has their sums.
    let read = |path: PathBuf| fs::read(path).map_or(0, |segment| through(&segment));
    let all = segments(folder).into_iter().map(read);
    all.chain([marked(folder)]).max().unwrap()
}

/// The packets up to the last batch of a segment, since the first one of the stream.
fn through(segment: &[u8]) -> u64 {
    let is_whole = |at: usize| {
        let len = segment[at - HEADER_BYTES + 8..][..4].try_into().unwrap();
        at + u32::from_le_bytes(len) as usize <= segment.len()
    };
    let last = batches(segment).into_iter().rfind(|(at, _)| is_whole(*at));
    last.map_or(0, |(at, reports)| {
        let before = segment[at - HEADER_BYTES + 72..][..8].try_into().unwrap();
        u64::from_le_bytes(before) + reports.packets
    })
}

/// The packets of all batches when the mark was written, after it had brought them to the disk.
fn marked(folder: &Path) -> u64 {
    let Ok(text) = fs::read_to_string(folder.join("mark.json")) else {
        return 0;
    };
    let mark: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    mark["last"]["sum"]["packets"].as_u64().unwrap()
}

pub fn wait_until_on_disk(folder: &Path, expected: Pair) {
    wait_until("it is on disk", || on_disk(folder) == expected);
}

/// An agent, and a collector that is away, so that flows wait in this folder. Returns what they sum to, too.
fn with_flows_on_disk(folder: &Path) -> (Lab, Store, Agent, Pair) {
    let lab = Lab::quiet().unwrap();
    let store = Store::default();
    store.is_away.store(true, Relaxed);
    let agent = start(&lab, &setting(store.listen(&lab), folder));
    let sent = send(&lab, 20, 2);
    wait_until_on_disk(folder, sent);
    (lab, store, agent, sent)
}

fn spool_error(agent: &Agent, lab: &Lab) -> String {
    let output = output(agent, lab, "collector");
    let error = output["spool"]["error"].as_str();
    error.unwrap_or_default().to_owned()
}

#[test]
fn what_killed_agents_had_drained_gets_to_a_collector_that_comes_later() {
    const TEST: &str = "agent::what_killed_agents_had_drained_gets_to_a_collector_that_comes_later";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let mut sent = Pair::default();
    for _ in 0..3 {
        let agent = start(&lab, &setting(1, &folder));
        sent += send(&lab, 50, 2);
        wait_until_on_disk(&folder, sent);
        agent.kill();
    }
    let agent = start(&lab, &setting(1, &folder));
    let last = send(&lab, 20, 1);
    sent += last;
    wait_until_on_disk(&folder, sent);
    let log = agent.stop().log;
    assert!(
        log.contains("flows wait in the spool: the next start sends them"),
        "{log}"
    );

    let store = Store::default();
    let mut agent = start(&lab, &setting(store.listen(&lab), &folder));
    agent.wait_until_logged("flows wait in the spool: an earlier run left them");
    let own = send(&lab, 30, 1);
    wait_until_counted(&agent, &lab, own.packets);
    wait_until("all is acknowledged", || {
        fates(&output(&agent, &lab, "collector"), sent + own)["sent"] == sent + own
    });
    assert_eq!(agent.stop().seen(), own);
    assert_eq!(store.records(), sent + own);
    assert_eq!(store.origins(), (1, 5));
    assert_eq!(store.lost(), Pair::default());
    let agent = start(&lab, &setting(1, &folder));
    let waits = fates(&output(&agent, &lab, "collector"), Pair::default());
    assert_eq!(waits["queued"], Pair::default());
    agent.stop();
}

#[test]
fn what_the_spool_has_brought_to_the_disk_is_there_after_the_power_fails() {
    const TEST: &str =
        "agent::what_the_spool_has_brought_to_the_disk_is_there_after_the_power_fails";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut disk = PowerlessDisk::new();
    let folder = disk.path().join("spool");
    let mut sent = Pair::default();
    // Into a new segment each time: an agent is killed, or ends by itself, or finds what one has left that was killed at once.
    for (is_left, ends) in [(false, false), (false, true), (true, false), (true, true)] {
        if is_left {
            let agent = start(&lab, &setting(1, &folder));
            sent += send(&lab, 50, 1);
            wait_until_on_disk(&folder, sent);
            agent.kill();
        }
        let agent = start(&lab, &setting(1, &folder));
        sent += send(&lab, 50, 2);
        if ends {
            wait_until_on_disk(&folder, sent);
            agent.stop();
        } else {
            wait_until("it is brought to the disk", || {
                marked(&folder) == sent.packets
            });
            agent.kill();
        }
        disk.loses_power();
        assert_eq!(on_disk(&folder), sent);
    }
    let store = Store::default();
    let agent = start(&lab, &setting(store.listen(&lab), &folder));
    wait_until("all is at the collector", || store.records() == sent);
    agent.stop();
    assert_eq!(store.records(), sent);
    assert_eq!(store.lost(), Pair::default());
}

#[test]
fn a_batch_that_is_damaged_on_disk_is_lost_to_the_packet_and_no_other() {
    const TEST: &str = "agent::a_batch_that_is_damaged_on_disk_is_lost_to_the_packet_and_no_other";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let agent = start(&lab, &setting(1, &folder));
    let mut sent = Pair::default();
    for _ in 0..5 {
        sent += send(&lab, 40, 1);
        wait_until_on_disk(&folder, sent);
    }
    agent.kill();
    let path = &segments(&folder)[0];
    let mut segment = fs::read(path).unwrap();
    let batches = batches(&segment);
    let mut with_flows = batches
        .into_iter()
        .filter(|(_, reports)| reports.packets != 0);
    let (at, damaged) = with_flows.nth(2).unwrap();
    segment[at + 10] ^= 0x10;
    fs::write(path, segment).unwrap();

    let store = Store::default();
    let agent = start(&lab, &setting(store.listen(&lab), &folder));
    let own = send(&lab, 10, 1);
    wait_until_counted(&agent, &lab, own.packets);
    wait_until("all have their fate", || {
        let fates = fates(&output(&agent, &lab, "collector"), sent + own);
        fates["queued"] == Pair::default()
    });
    let fates = fates(&output(&agent, &lab, "collector"), sent + own);
    let log = agent.stop().log;
    assert_eq!(fates["lost"], damaged);
    assert!(log.contains("the spool loses flows"), "{log}");
    assert_eq!(store.records(), fates["sent"]);
    assert_eq!(store.lost(), damaged);
}

#[test]
fn a_full_disk_keeps_nothing_from_a_collector() {
    if !is_root_or_skip("agent::a_full_disk_keeps_nothing_from_a_collector") {
        return;
    }
    let disk = SmallDisk::mount("size=1m");
    let folder = disk.path().join("spool");
    let (lab, store, mut agent, mut sent) = with_flows_on_disk(&folder);
    let rest = disk.fill();
    sent += send(&lab, 300, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    agent.wait_until_logged("cannot use the spool; batches wait in memory");
    wait_until("it is said", || {
        spool_error(&agent, &lab).contains("No space left on device")
    });
    assert_eq!(
        fates(&output(&agent, &lab, "collector"), sent)["queued"],
        sent
    );

    fs::remove_file(rest).unwrap();
    agent.wait_until_logged("writing to the spool again");
    sent += send(&lab, 10, 1);
    store.is_away.store(false, Relaxed);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("all is acknowledged", || {
        fates(&output(&agent, &lab, "collector"), sent)["sent"] == sent
    });
    assert_eq!(spool_error(&agent, &lab), "");
    let report = agent.stop();
    assert_eq!(report.seen(), sent);
    for once in ["cannot use the spool", "writing to the spool again"] {
        assert_eq!(report.log.matches(once).count(), 1, "{}", report.log);
    }
    assert_eq!(store.sums(), (sent, sent));
}

/// What the metrics say of a collector's spool: its bytes, since when the oldest batch waits, and whether it fails.
fn measured(agent: &Agent, lab: &Lab) -> [Option<f64>; 3] {
    let text = metrics::get(&lab.agent, &metrics::address(agent), "/metrics").body;
    let samples = metrics::samples(&text);
    ["bytes", "oldest_time_seconds", "failing"].map(|what| {
        let begin = format!("flow_agent_output_spool_{what}{{");
        let mut found = samples.iter().filter(|(name, _)| name.starts_with(&begin));
        let (_, value) = found.next()?;
        assert!(found.next().is_none(), "{text}");
        Some(value.parse().unwrap())
    })
}

#[test]
fn a_spool_is_in_the_status_and_the_metrics_as_it_is_on_the_disk() {
    if !is_root_or_skip("agent::a_spool_is_in_the_status_and_the_metrics_as_it_is_on_the_disk") {
        return;
    }
    let unix_time = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap().as_secs_f64()
    };
    let text = |agent: &Agent, lab: &Lab| {
        let shown = agent.asked(&lab.agent, &["status"]);
        String::from_utf8(shown.stdout).unwrap()
    };
    let disk = SmallDisk::mount("size=8m");
    let folder = disk.path().join("spool");
    let lab = Lab::quiet().unwrap();
    let store = Store::default();
    store.is_away.store(true, Relaxed);
    let setting = setting(store.listen(&lab), &folder);
    let began = unix_time();
    let settings = ["--metrics", "0", "--output", "json", "--output", &setting];
    let mut agent = Agent::start(&lab, &settings);
    let mut sent = send(&lab, 20, 2);
    wait_until_on_disk(&folder, sent);
    let until = unix_time();
    let bytes = || {
        let sizes = segments(&folder).into_iter();
        let sizes = sizes.map(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()));
        sizes.sum::<u64>()
    };
    // Scans without a flow add to it, and what was written last is said a little later.
    let before = bytes() as f64;
    let mut measures = [None; 3];
    wait_until("it is said", || {
        measures = measured(&agent, &lab);
        measures[0].is_some_and(|said| said >= before)
    });
    let [said, oldest, failing] = measures;
    let status = &output(&agent, &lab, "collector")["spool"];
    let all = [
        said.unwrap(),
        status["bytes"].as_f64().unwrap(),
        bytes() as f64,
    ];
    assert!(all.is_sorted(), "{all:?}");
    let at = oldest.unwrap();
    assert!(began < at && at < until, "{began} {at} {until}");
    let oldest_ns = status["oldest_unix_ns"].as_u64().unwrap();
    assert!((at - oldest_ns as f64 / 1e9).abs() < 1e-3, "{status}");
    assert_eq!((failing, &status["error"]), (Some(0.0), &Value::from("")));
    let shown = text(&agent, &lab);
    let line = "of the disk; the oldest batch that is not acknowledged dates from 20";
    assert!(
        shown.contains("  the spool takes ") && shown.contains(line),
        "{shown}"
    );

    let rest = disk.fill();
    sent += send(&lab, 300, 2);
    wait_until("it is said to fail", || {
        measured(&agent, &lab)[2] == Some(1.0)
    });
    wait_until("people are told, too", || {
        text(&agent, &lab).contains("  the spool cannot be used: ")
    });

    fs::remove_file(rest).unwrap();
    agent.wait_until_logged("writing to the spool again");
    store.is_away.store(false, Relaxed);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("nothing waits", || {
        let [_, oldest, failing] = measured(&agent, &lab);
        oldest.is_none() && failing == Some(0.0)
    });
    wait_until("that is said, too", || {
        text(&agent, &lab).contains("of the disk; everything is acknowledged")
    });
    agent.stop();
    assert_eq!(store.records(), sent);
}

#[test]
fn a_spool_that_cannot_be_written_keeps_nothing_from_a_collector() {
    if !is_root_or_skip("agent::a_spool_that_cannot_be_written_keeps_nothing_from_a_collector") {
        return;
    }
    let disk = SmallDisk::mount("size=1m,ro");
    let lab = Lab::quiet().unwrap();
    let store = Store::default();
    let folder = disk.path().join("spool");
    let mut agent = start(&lab, &setting(store.listen(&lab), &folder));
    agent.wait_until_logged("Read-only file system");
    let (sent, report) = {
        let sent = send(&lab, 20, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        let error = spool_error(&agent, &lab);
        assert!(
            error.ends_with("batches wait in memory only") && error.contains("Read-only"),
            "{error}"
        );
        (sent, agent.stop())
    };
    assert_eq!(report.seen(), sent);
    assert_eq!(store.sums(), (sent, sent));
}

#[test]
fn a_disk_that_becomes_read_only_keeps_nothing_from_a_collector() {
    if !is_root_or_skip("agent::a_disk_that_becomes_read_only_keeps_nothing_from_a_collector") {
        return;
    }
    let disk = PowerlessDisk::new();
    let folder = disk.path().join("spool");
    let (lab, store, mut agent, mut sent) = with_flows_on_disk(&folder);
    disk.becomes_read_only();
    sent += send(&lab, 300, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    agent.wait_until_logged("cannot use the spool; batches wait in memory");
    wait_until("it is said", || {
        spool_error(&agent, &lab).contains("Read-only file system")
    });
    let fates = fates(&output(&agent, &lab, "collector"), sent);
    assert_eq!(fates["queued"], sent);

    store.is_away.store(false, Relaxed);
    wait_until("all is acknowledged", || {
        pair(&output(&agent, &lab, "collector")["sent"]) == sent
    });
    assert_eq!(agent.stop().seen(), sent);
    assert_eq!(store.sums(), (sent, sent));
}

/// The new output waits for the old one, and the stream continues.
#[test]
fn a_reload_that_changes_a_collector_hands_its_spool_on() {
    if !is_root_or_skip("agent::a_reload_that_changes_a_collector_hands_its_spool_on") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    let file = folder.path().join("config.toml");
    let write = |port: u16| {
        let text = format!(
            "scan_interval = \"100ms\"\n[[output]]\nkind = \"collector\"\naddress = \"http://127.0.0.1:{port}\"\nspool = \
             \"{}\"\n",
            spool.display()
        );
        fs::write(&file, text).unwrap();
    };
    write(1);
    let agent = Agent::start_by_file(&lab.agent, &lab.agent.interface, &file);
    let mut sent = send(&lab, 40, 2);
    wait_until_on_disk(&spool, sent);
    let store = Store::default();
    write(store.listen(&lab));
    agent.signal(libc::SIGHUP);
    sent += send(&lab, 10, 1);
    wait_until("all is at the collector", || store.records() == sent);
    let status = agent.status(&lab.agent);
    let departed = &status["departed_outputs"];
    assert_eq!(pair(&departed["lost"]), Pair::default(), "{departed}");
    agent.stop_silent();
    assert_eq!(store.sums(), (sent, sent));
    assert_eq!(store.origins(), (1, 1));
}

#[test]
fn two_outputs_do_not_share_a_spool() {
    if !is_root_or_skip("agent::two_outputs_do_not_share_a_spool") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stores = [Store::default(), Store::default()];
    let tables = stores
        .each_ref()
        .map(|store| setting(store.listen(&lab), folder.path()));
    let [table, other] = &tables;
    let settings = ["--output", "json", "--output", table, "--output", other];
    let mut agent = Agent::start(&lab, &settings);
    agent.wait_until_logged("is in use by another output or agent; retrying");
    let sent = send(&lab, 20, 1);
    let has_all = |store: &Store| store.records() == sent;
    wait_until("one has all", || stores.iter().any(has_all));
    agent.stop();
    // The other output gets its turn when the first has ended.
    let has_nothing = |store: &Store| store.records() == Pair::default();
    assert!(
        stores
            .iter()
            .all(|store| has_all(store) || has_nothing(store))
    );
}
