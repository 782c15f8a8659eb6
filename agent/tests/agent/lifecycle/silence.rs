//! An agent that does not answer, or not for a long time: the client must report that in its own words, not a
//! library's.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::net::UnixListener,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use lab::{Lab, Process, privilege::is_root_or_skip};
use tempfile::TempDir;
use tokio::{net::UnixStream, time::sleep};

use crate::support::{Agent, flow_agent, threads::threads_named, wait_until};

/// The exit status and the lines of stderr.
fn said(mut command: Command) -> (bool, Vec<String>) {
    let Output { status, stderr, .. } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    (
        status.success(),
        stderr.lines().map(str::to_owned).collect(),
    )
}

#[test]
fn whoever_asks_a_stopped_agent_is_told_that_it_does_not_answer() {
    if !is_root_or_skip("agent::whoever_asks_a_stopped_agent_is_told_that_it_does_not_answer") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    agent.signal(libc::SIGSTOP);
    let address = agent.address();
    let (host, address) = (&lab.agent, &address);
    thread::scope(|scope| {
        for asked in [
            &["status"][..],
            &["audit"],
            &["filter", "show"],
            &["filter", "set", "exclude port 9"],
            &["flows"],
            &["watch", "--duration", "20s"],
        ] {
            scope.spawn(move || {
                let mut command = flow_agent(host);
                command.args(asked).args(["--connect", address]);
                let (is_ok, lines) = said(command);
                assert!(!is_ok, "{asked:?}");
                let [waiting, silent] = &lines[..] else {
                    panic!("{asked:?}: {lines:?}")
                };
                assert_eq!(
                    *waiting,
                    format!("flow-agent: waiting for the agent at {address} to answer")
                );
                let begin = format!("flow-agent: the server on {address} did not answer within ");
                assert!(silent.starts_with(&begin), "{asked:?}: {silent}");
            });
        }
    });
    agent.signal(libc::SIGCONT);
    agent.stop();
}

#[test]
fn a_watch_without_an_answer_or_a_scan_says_so_at_its_end() {
    if !is_root_or_skip("agent::a_watch_without_an_answer_or_a_scan_says_so_at_its_end") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let watch = |address: &str, duration: &str| {
        let mut command = flow_agent(&lab.agent);
        command.args(["watch", "--output", "json", "--connect", address]);
        command.args(["--duration", duration]);
        said(command)
    };
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("mute.sock");
    let _mute = UnixListener::bind(&path).unwrap();
    let address = format!("unix:{}", path.display());
    let (is_ok, lines) = watch(&address, "500ms");
    assert!(!is_ok);
    assert!(
        lines
            .iter()
            .any(|line| line.contains("did not answer within 500ms")),
        "{lines:?}"
    );

    let agent = Agent::start(&lab, &["--scan-interval", "1h"]);
    // On a busy machine some seconds may pass before the stream begins.
    let (is_ok, lines) = watch(&agent.address(), "20s");
    assert!(is_ok, "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("no scan came within 20s")),
        "{lines:?}"
    );
    agent.stop();
}

/// Answers a request for a scan after this pause, and every other call at once.
async fn scan_after(pause: Duration, stream: UnixStream) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, mut answer))) = connection.accept().await {
        tokio::spawn(async move {
            let scans = request.uri().path() == "/flow.v1.FlowControl/ScanNow";
            let mut head = Response::new(());
            let grpc = HeaderValue::from_static("application/grpc");
            head.headers_mut().insert("content-type", grpc);
            let mut end = HeaderMap::new();
            end.insert("grpc-status", HeaderValue::from_static("0"));
            if scans {
                sleep(pause).await;
            }
            // The client may have gone.
            let Ok(mut body) = answer.send_response(head, false) else {
                return;
            };
            if scans {
                // A message without fields.
                let _ = body.send_data(Bytes::from_static(&[0; 5]), false);
            }
            let _ = body.send_trailers(end);
        });
    }
}

/// An agent spaces out the scans on request.
#[test]
fn whoever_lists_flows_waits_for_a_scan_without_a_word() {
    const PAUSE: Duration = Duration::from_millis(1300);
    /// A call that takes longer may say so.
    const SHORT: Duration = Duration::from_secs(2);
    if !is_root_or_skip("agent::whoever_lists_flows_waits_for_a_scan_without_a_word") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("slow.sock");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _guard = runtime.enter();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(scan_after(PAUSE, stream));
        }
    });
    // On a busy machine a call takes longer now and then.
    let mut short = 0;
    wait_until("three calls are short", || {
        let mut command = flow_agent(&lab.agent);
        command.args(["flows", "--connect", &format!("unix:{}", path.display())]);
        let started = Instant::now();
        let (is_ok, lines) = said(command);
        assert!(is_ok, "{lines:?}");
        if started.elapsed() < SHORT {
            assert!(lines.is_empty(), "{lines:?}");
            short += 1;
        }
        short == 3
    });
}

/// The threads of a process that run tokio's tasks.
fn workers(pid: u32) -> usize {
    threads_named(pid, "tokio-")
}

/// With more than one, a request can be queued while its connection ends, and is never answered. That happened to one
/// of 16,000 `status` calls to a server that hangs up.
#[test]
fn whoever_asks_does_so_on_one_thread() {
    if !is_root_or_skip("agent::whoever_asks_does_so_on_one_thread") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &[]);
    // An agent has some, so they are counted by their name.
    assert!(workers(agent.pid()) > 1);
    agent.signal(libc::SIGSTOP);
    let address = agent.address();
    for asked in [
        &["status"][..],
        &["audit"],
        &["filter", "show"],
        &["flows"],
        &["watch"],
    ] {
        let mut command = flow_agent(&lab.agent);
        command.args(asked).args(["--connect", &address]);
        let mut asking = Process::spawn(command.stderr(Stdio::piped())).unwrap();
        let stderr = BufReader::new(asking.child().stderr.take().unwrap());
        let waiting = stderr.lines().next().unwrap().unwrap();
        assert!(waiting.contains("waiting for the agent"), "{waiting}");
        assert_eq!(workers(asking.child().id()), 0, "{asked:?}");
    }
    agent.signal(libc::SIGCONT);
    agent.stop();
}
