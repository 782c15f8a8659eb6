//! `flow-agent query` over the files of an agent that writes them.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use super::*;

fn query(folder: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flow-agent"));
    command.arg("query").arg(folder).args(arguments);
    command.output().unwrap()
}

/// The lines of the answer. Fails if it reports anything missing.
fn answer(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    answer_with_status(folder, arguments, 0)
}

fn answer_with_status(folder: &Path, arguments: &[&str], status: i32) -> Vec<Value> {
    let output = query(folder, &[arguments, &["--output", "json"]].concat());
    let (stdout, stderr) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(
        (output.status.code(), &*stderr),
        (Some(status), ""),
        "{stdout}"
    );
    let lines = stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn total(folder: &Path) -> Pair {
    sum(answer(folder, &[]).last().unwrap())
}

/// The same for a spool, whose last batch may be half written.
fn spooled(folder: &Path) -> Pair {
    let output = query(folder, &["--output", "json"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let is_known = |line: &str| line.ends_with("are not whole: they are being written, or damaged");
    assert!(stderr.lines().all(is_known), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    sum(&serde_json::from_str(stdout.lines().last().unwrap()).unwrap())
}

fn sum(total: &Value) -> Pair {
    let number = |name: &str| total[name].as_u64().unwrap();
    Pair {
        packets: number("packets") + number("reverse_packets"),
        bytes: number("bytes") + number("reverse_bytes"),
    }
}

#[test]
fn a_query_has_what_was_sent_while_it_waits_after_a_kill_and_when_files_are_complete() {
    if !is_root_or_skip(
        "agent::a_query_has_what_was_sent_while_it_waits_after_a_kill_and_when_files_are_complete",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::quiet().unwrap();
    let settings = parquet::table(folder.path(), "");
    let mut all = Pair::default();
    for flows in [20, 50] {
        let agent = Agent::start(&lab, &["--output", "json", "--output", &settings]);
        let sent = send(&lab, flows, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("all is written", || {
            fates(&output(&agent, &lab, "parquet"), sent)["sent"] == sent
        });
        all += sent;
        assert_eq!(total(folder.path()), all);
        agent.kill();
        assert_eq!(total(folder.path()), all);
    }
    let agent = Agent::start(&lab, &["--output", "json", "--output", &settings]);
    let sent = send(&lab, 1, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    assert_eq!(agent.stop().seen(), sent);
    all += sent;
    assert_eq!(total(folder.path()), all);
    // The test's flows differ by the source's port, so they are one group.
    let lines = answer(folder.path(), &["--by", "port,protocol,interface"]);
    assert_eq!(lines.len(), 2);
    let expected = serde_json::json!({
        "type": "group", "dst_port": 9, "protocol": 17, "interface": lab.agent.interface,
        "packets": all.packets, "bytes": all.bytes, "reverse_packets": 0, "reverse_bytes": 0, "flows_begun": 71,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&lines[0][name], value, "{name}");
    }
    // Steps of time add up to the same, and so does a time with the one before it.
    let steps = answer(folder.path(), &["--by", "minute,port", "--top", "0"]);
    let groups = steps.iter().filter(|line| line["type"] == "group");
    assert_eq!(groups.map(sum).sum::<Pair>(), all);
    let compared = answer(folder.path(), &["--since", "1h", "--compare", "1h"]);
    let compared = compared.last().unwrap();
    assert_eq!(
        (sum(compared), &compared["before_packets"]),
        (all, &0.into())
    );
    // Records left out by a filter or a time are in no sum.
    for (nothing, status) in [
        (["--filter", "exclude port 9"], 3),
        (["--until", "2020-01-01"], 0),
    ] {
        let lines = answer_with_status(folder.path(), &nothing, status);
        assert_eq!(
            (lines.len(), &lines[0]["records"]),
            (1, &0.into()),
            "{nothing:?}"
        );
    }
}

#[test]
fn a_query_of_a_spool_has_what_waits_there_beside_the_agent_and_after_a_kill() {
    if !is_root_or_skip(
        "agent::a_query_of_a_spool_has_what_waits_there_beside_the_agent_and_after_a_kill",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    let lab = Lab::quiet().unwrap();
    let mut all = Pair::default();
    for flows in [20, 50] {
        // Nobody listens there.
        let agent = spool::start(&lab, &spool::setting(1, &spool));
        let sent = send(&lab, flows, 2);
        all += sent;
        spool::wait_until_on_disk(&spool, all);
        assert_eq!(spooled(&spool), all);
        agent.kill();
        assert_eq!(spooled(&spool), all);
    }
    let store = collector::Store::default();
    let agent = spool::start(&lab, &spool::setting(store.listen(&lab), &spool));
    wait_until("all is at the collector", || store.records() == all);
    let sent = send(&lab, 1, 1);
    wait_until("that, too", || store.records() == all + sent);
    agent.stop();
    // Acknowledged batches are gone with their file, so nothing is left, which is not an error.
    assert_eq!(total(&spool), Pair::default());
}

#[test]
fn a_query_while_files_are_completed_has_no_flow_twice_and_misses_none() {
    if !is_root_or_skip(
        "agent::a_query_while_files_are_completed_has_no_flow_twice_and_misses_none",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::quiet().unwrap();
    // A file for each few batches, and none is removed.
    let settings = parquet::table(
        folder.path(),
        r#", "rotate_bytes": 20000, "keep_files": 100000"#,
    );
    let agent = Agent::start(&lab, &["--output", &settings]);
    // Packets that are certainly written, and packets that may be.
    let (written, may_be) = (AtomicU64::new(0), AtomicU64::new(0));
    let ends = AtomicBool::new(false);
    let asked = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut asked, mut last) = (0, 0);
            while !ends.load(Relaxed) {
                let at_least = written.load(Relaxed);
                if at_least == 0 {
                    thread::yield_now();
                    continue;
                }
                let packets = total(folder.path()).packets;
                let most = may_be.load(Relaxed);
                assert!(
                    (at_least.max(last)..=most).contains(&packets),
                    "{packets} of {at_least} to {most}"
                );
                last = packets;
                asked += 1;
            }
            asked
        });
        let mut sent = Pair::default();
        for _ in 0..30 {
            may_be.fetch_add(200, Relaxed);
            sent += send(&lab, 200, 1);
            wait_until("all is written", || {
                pair(&output(&agent, &lab, "parquet")["sent"]) == sent
            });
            written.store(sent.packets, Relaxed);
        }
        ends.store(true, Relaxed);
        asking.join().unwrap()
    });
    assert!(asked > 3, "{asked}");
    let files = parquet::complete(folder.path()).len();
    assert!(files >= 10, "{files}");
    agent.stop_silent();
    assert_eq!(total(folder.path()).packets, written.load(Relaxed));
}

#[test]
fn a_query_of_something_else_says_what_to_name() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, error) in [
        (&[][..], "there is no Parquet file in"),
        (
            &["--since", "1h", "--until", "2h"],
            "--since must be before --until",
        ),
        (&["--by", "port,port"], "--by has a value twice"),
        (&["--by", "hour,day"], "--by has two steps of time"),
        (&["--by", "7m"], "'7m' is not a step of time"),
        (&["--compare", "24h"], "--compare needs --since"),
        (
            &["--since", "soon"],
            "expected a time before now, as in 90m or 2h",
        ),
    ] {
        let output = query(folder.path(), arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(error),
            "{stderr}"
        );
    }
}

#[test]
fn times_without_an_offset_are_those_of_the_clock_on_the_wall() {
    let folder = tempfile::tempdir().unwrap();
    let told = |zone: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flow-agent"));
        command.arg("query").arg(folder.path()).env("TZ", zone);
        let output = command.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let range = ["--since", "2026-07-02T03:04", "--until", "2026-01-02"];
    for (zone, utc, expected) in [
        (
            "Europe/Berlin",
            false,
            "2026-07-02 03:04:00+02:00 and 2026-01-02 00:00:00+01:00",
        ),
        (
            "CET-1CEST,M3.5.0,M10.5.0/3",
            false,
            "2026-07-02 03:04:00+02:00 and 2026-01-02 00:00:00+01:00",
        ),
        (
            "Europe/Berlin",
            true,
            "2026-07-02 03:04:00Z and 2026-01-02 00:00:00Z",
        ),
        (
            "UTC",
            false,
            "2026-07-02 03:04:00Z and 2026-01-02 00:00:00Z",
        ),
    ] {
        let mut arguments = range.to_vec();
        arguments.extend(utc.then_some("--utc"));
        let told = told(zone, &arguments);
        assert!(told.contains(expected), "{zone}: {told}");
    }
    // An offset in the text applies in any zone.
    let told = told(
        "Asia/Kathmandu",
        &[
            "--since",
            "2026-07-02T03:04Z",
            "--until",
            "2026-07-02T04:04+01:00",
        ],
    );
    assert!(
        told.contains("2026-07-02 08:49:00+05:45 and 2026-07-02 08:49:00+05:45"),
        "{told}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_told_with_advice_that_fits() {
    let folder = tempfile::tempdir().unwrap();
    let [broken, other] = ["a", "b"].map(|name| {
        let path = folder.path().join(format!("flows-{name}.parquet"));
        fs::write(&path, b"PAR1 and nothing that follows").unwrap();
        path.display().to_string()
    });
    let folder = folder.path().display().to_string();
    for (paths, advice) in [
        (&[&broken][..], None),
        (&[&broken, &other], Some("leave this file out")),
        (&[&folder], Some("move this one out of the folder")),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flow-agent"));
        let output = command.arg("query").args(paths).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{said}");
        let is_first = said.starts_with(&format!("flow-agent: read {broken}: "));
        assert_eq!(is_first, advice.is_none(), "{said}");
        assert!(advice.is_none_or(|advice| said.contains(advice)), "{said}");
        assert!(said.contains(&broken), "{said}");
    }
}
