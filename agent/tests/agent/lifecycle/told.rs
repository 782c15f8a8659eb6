//! Messages for the operator at the start, at the end, and on a usage error.

use std::{
    fs::{self, File},
    io,
    process::Command,
};

use lab::{Lab, Process, privilege::is_root_or_skip};
use tempfile::TempDir;

use crate::support::{Agent, BINARY, flow_agent, patience, wait_until};

/// The situation of `flow-agent run --output json | head -1`.
#[test]
fn a_run_whose_stdout_is_closed_ends_unless_flows_go_elsewhere_too() {
    if !is_root_or_skip("agent::a_run_whose_stdout_is_closed_ends_unless_flows_go_elsewhere_too") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // A scan's write notices it. It is noticed without a scan, too.
    for (has_another, interval) in [(false, "100ms"), (false, "1h"), (true, "1h")] {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (reader, stdout) = io::pipe().unwrap();
        let mut command = flow_agent(&lab.agent);
        command
            .args(["run", "--interface", &lab.agent.interface])
            .args(["--listen", &format!("unix:{}", path("socket"))])
            .args(["--output", "json", "--scan-interval", interval])
            .stdout(stdout)
            .stderr(File::create(path("log")).unwrap());
        if has_another {
            command.args(["--output", &format!("jsonl={}", path("flows.jsonl"))]);
        }
        let mut process = Process::spawn(&mut command).unwrap();
        let log = || fs::read_to_string(path("log")).unwrap();
        wait_until("it counts", || {
            assert!(process.exited().unwrap().is_none(), "{}", log());
            log().contains("counting max_flows")
        });
        drop(reader);
        let status = if has_another {
            wait_until("it says so", || log().contains("stdout is closed"));
            assert!(process.exited().unwrap().is_none(), "{}", log());
            process.terminate(patience()).unwrap()
        } else {
            process.wait(patience()).unwrap()
        };
        assert!(status.success(), "{status}: {}", log());
        let says_more = log().contains("flows still go to the other outputs");
        assert_eq!(says_more, has_another, "{}", log());
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_at_the_start_and_at_a_reload() {
    if !is_root_or_skip(
        "agent::an_output_that_cannot_be_written_is_refused_at_the_start_and_at_a_reload",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("notes"), "not ours").unwrap();
    for output in [
        format!("jsonl={}", path("missing/flows.jsonl")),
        format!("jsonl={}", path("notes/flows.jsonl")),
        format!("jsonl={}", path("notes")),
        format!("ipfix={}", path("notes")),
        format!("parquet={}", path("missing")),
        "jsonl=/proc/flows.jsonl".to_owned(),
    ] {
        let mut command = flow_agent(&lab.agent);
        command
            .args(["run", "--interface", &lab.agent.interface])
            .args(["--listen", &format!("unix:{}", path("socket"))])
            // It would end if it were not refused.
            .args(["--duration", "100ms", "--output", &output]);
        let refused = command.output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{output}: {said}");
        let last = said.lines().next_back().unwrap();
        let begin = format!("flow-agent: --output {output}: write to ");
        assert!(last.starts_with(&begin), "{output}: {said}");
        assert!(!said.contains("attached"), "{output}: {said}");
    }
    assert_eq!(fs::read_to_string(path("notes")).unwrap(), "not ours");

    let settings = folder.path().join("config.toml");
    let interface = &lab.agent.interface;
    let write = |output: &str| {
        let text = format!("interface = [\"{interface}\"]\noutput = [\"{output}\"]\n");
        fs::write(&settings, text).unwrap();
    };
    let flows = format!("jsonl={}", path("flows.jsonl"));
    write(&flows);
    let mut agent = Agent::start_by_file(&lab.agent, "", &settings);
    write(&format!("jsonl={}", path("missing/flows.jsonl")));
    agent.signal(libc::SIGHUP);
    agent.wait_until_logged("keeping the settings");
    assert_eq!(
        agent.status(&lab.agent)["outputs"][0]["address"],
        path("flows.jsonl")
    );
    // Its own files are in use, which is not a fault.
    write(&flows);
    agent.signal(libc::SIGHUP);
    agent.wait_until_logged("read the settings again");
    agent.stop_silent();
}

#[test]
fn the_end_says_what_it_waits_for() {
    if !is_root_or_skip("agent::the_end_says_what_it_waits_for") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // Nobody listens there.
    let output = ["--output", "json", "--output", "ipfix=tcp://127.0.0.1:9"];
    let mut agent = Agent::start(&lab, &output);
    wait_until("the output fails", || {
        agent.status(&lab.agent)["outputs"][0]["failing"] == true
    });
    agent.signal(libc::SIGINT);
    agent.wait_until_logged("counting has stopped");
    agent.wait_until_logged("still trying to send the remaining flows to tcp://127.0.0.1:9");
    agent.ended();
}

#[test]
fn options_that_contradict_each_other_have_the_exit_status_of_a_usage_error() {
    for arguments in [
        &["top", "--sort", "bytes", "--limit", "5"][..],
        &[
            "top",
            "--once",
            "--connect",
            "h:1",
            "--",
            "--interface",
            "lo",
        ],
        &[
            "status",
            "--connect",
            "https://h:1",
            "--tls-client-key",
            "a",
        ],
        &["flows", "--connect", "h:1", "--tls-ca", "a"],
        &["query", "--by", "port,port", "/"],
        &["query", "--since", "1h", "--until", "2h", "/"],
        &["filter", "set"],
        &["check", "--flow", "192.0.2.1:1 > 192.0.2.2:2 tcp"],
        &["run", "--no-such-option"],
    ] {
        let mut command = Command::new(BINARY);
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    }
}
