//! Consumers that outlive restarts of the agent, and one that does not read.

use std::{
    fs::{self, File},
    io::{self, PipeReader},
    os::fd::AsRawFd as _,
    path::PathBuf,
    process::Stdio,
    thread,
};

use lab::{Host, Lab, Process, privilege::is_root_or_skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Agent, flow_agent, patience, wait_until};

/// A running `flow-agent watch --output json`, with its output.
struct Watch {
    process: Process,
    directory: TempDir,
}

impl Watch {
    fn start(host: &Host, address: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let stdout = File::create(directory.path().join("stdout")).unwrap();
        Self::start_with(host, address, directory, stdout.into())
    }

    /// Starts a watch that writes into a pipe, which nobody reads until [`Watch::take_all`].
    fn start_stalled(host: &Host, address: &str) -> (Self, PipeReader) {
        let directory = TempDir::new().unwrap();
        File::create(directory.path().join("stdout")).unwrap();
        let (unread, stdout) = io::pipe().unwrap();
        let watch = Self::start_with(host, address, directory, stdout.into());
        (watch, unread)
    }

    fn start_with(host: &Host, address: &str, directory: TempDir, stdout: Stdio) -> Self {
        let stderr = File::create(directory.path().join("stderr")).unwrap();
        let mut command = flow_agent(host);
        command
            .args(["watch", "--output", "json", "--connect", address])
            .stdout(stdout)
            .stderr(stderr);
        Self {
            process: Process::spawn(&mut command).unwrap(),
            directory,
        }
    }

    /// Reads what a stalled watch writes, until it ends.
    fn take_all(&self, mut unread: PipeReader) -> thread::JoinHandle<()> {
        let mut stdout = File::create(self.file("stdout")).unwrap();
        thread::spawn(move || {
            io::copy(&mut unread, &mut stdout).unwrap();
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    /// The complete lines that it wrote, parsed as JSON.
    fn lines(&self) -> Vec<Value> {
        let text = self.read("stdout");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    fn has_flow(&self, port: u16) -> bool {
        let mut lines = self.lines().into_iter();
        lines.any(|line| line["type"] == "flow" && line["src_port"] == port)
    }

    /// The scans whose account arrived.
    fn scans(&self) -> Vec<u64> {
        let lines = self.lines().into_iter();
        let accounts = lines.filter(|line| line["type"] == "account");
        accounts
            .map(|line| line["scan_id"].as_u64().unwrap())
            .collect()
    }

    /// Ends it with SIGINT, and asserts that every line is complete.
    fn stop(mut self, taking: Option<thread::JoinHandle<()>>) -> Vec<Value> {
        self.process.signal(libc::SIGINT).unwrap();
        assert!(self.process.wait(patience()).unwrap().success());
        if let Some(taking) = taking {
            taking.join().unwrap();
        }
        assert!(self.read("stdout").ends_with('\n'));
        self.lines()
    }
}

fn send(lab: &Lab, ports: impl Iterator<Item = u16>) {
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames = ports.map(|port| frame.udp(port, 53, &[0; 18]).unwrap());
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
}

#[test]
fn a_watch_outlives_its_agent_and_goes_on_with_the_next() {
    if !is_root_or_skip("agent::a_watch_outlives_its_agent_and_goes_on_with_the_next") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = TempDir::new().unwrap();
    let address = format!("unix:{}", directory.path().join("agent.sock").display());
    let settings = ["--listen", &address];
    let agent = Agent::start(&lab, &settings);
    let watch = Watch::start(&lab.agent, &address);
    // Sends until the watch shows the flow, since it may miss the first scans.
    let consumed = |port| {
        wait_until("the watch shows the flow", || {
            send(&lab, [port].into_iter());
            watch.has_flow(port)
        });
    };
    consumed(1001);
    agent.kill();
    wait_until("the watch says that the stream broke", || {
        watch.read("stderr").contains("waiting for the agent")
    });
    let said = watch.read("stderr");
    assert!(
        said.contains("broke off: the agent was killed") && !said.contains("hyper"),
        "{said}"
    );
    let agent = Agent::start(&lab, &settings);
    consumed(1002);
    assert!(watch.read("stderr").contains("it is another process"));
    // An orderly stop is reported as well.
    agent.stop();
    wait_until("the watch says that the agent stopped", || {
        watch.read("stderr").contains("the agent stopped")
    });
    let agent = Agent::start(&lab, &settings);
    consumed(1003);
    let lines = watch.stop(None);
    assert!(lines.iter().all(|line| line["type"] != "lost"));
    agent.stop();
}

#[test]
fn a_stalled_consumer_loses_its_own_batches_and_nobody_elses() {
    /// Its queue holds 1024 batches, one a scan, beyond what the transport and the pipe take.
    const MOST_SCANS: u64 = 5_000;
    if !is_root_or_skip("agent::a_stalled_consumer_loses_its_own_batches_and_nobody_elses") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "10ms"]);
    let address = agent.address();
    let quick = Watch::start(&lab.agent, &address);
    // The process keeps answering the agent's pings, however long this takes. A stopped process would look
    // like one whose machine is gone.
    let (slow, unread) = Watch::start_stalled(&lab.agent, &address);
    wait_until("both get batches", || {
        !quick.scans().is_empty() && waiting_bytes(&unread) > 0
    });
    // Fills what the transport holds for a consumer (2 MiB and the socket's buffer). The others have the time that they need.
    for _ in 0..3 {
        send(&lab, 1..=30_000);
        let scans = agent.status(&lab.agent)["scans"]["count"].as_u64();
        wait_until("the others keep up", || {
            let printed = agent.stdout().matches(r#""type":"account""#).count() as u64;
            quick.scans().last().copied() >= scans && Some(printed) >= scans
        });
    }
    let mut scans = 0;
    while !agent.stderr().contains("loses its oldest queued batches") {
        agent.wait_for_scans(&lab.agent, 20);
        scans += 20;
        assert!(scans < MOST_SCANS, "it never loses: {}", agent.stderr());
    }
    agent.wait_for_scans(&lab.agent, 20);
    let taking = slow.take_all(unread);
    wait_until("the consumer is told", || {
        slow.read("stdout").contains(r#""type":"lost""#)
    });
    wait_until("the consumer keeps up again", || {
        agent.stderr().contains("keeps up again")
    });

    let scans = quick.scans();
    let expected: Vec<u64> = (scans[0]..scans[0] + scans.len() as u64).collect();
    assert_eq!(scans, expected, "a scan is missing to the other consumer");
    let told = slow.stop(Some(taking));
    let lost: Vec<&Value> = told.iter().filter(|line| line["type"] == "lost").collect();
    assert!(
        lost.iter()
            .all(|line| line["lost_batches"].as_u64() > Some(0))
    );
    assert!(quick.stop(None).iter().all(|line| line["type"] != "lost"));
    // The third consumer, the agent's own standard output, must have every batch too: `stop` asserts that.
    agent.stop();
}

/// The bytes that wait in a pipe.
fn waiting_bytes(pipe: &PipeReader) -> libc::c_int {
    let mut waiting = 0;
    // SAFETY: FIONREAD writes one int, which outlives the call, and the descriptor is open.
    let result = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
    assert_eq!(result, 0);
    waiting
}

/// The situation of `flow-agent watch | less` when the reader has seen enough.
#[test]
fn a_watch_whose_reader_stalls_still_hears_its_end() {
    /// A pipe's default size is 64 KiB, and the last write may not fit into the rest.
    const NEARLY_FULL: libc::c_int = 60_000;
    if !is_root_or_skip("agent::a_watch_whose_reader_stalls_still_hears_its_end") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let (mut watch, unread) = Watch::start_stalled(&lab.agent, &agent.address());
    wait_until("the pipe is full", || {
        send(&lab, 1..=2_000);
        waiting_bytes(&unread) > NEARLY_FULL
    });
    watch.process.signal(libc::SIGINT).unwrap();
    assert!(watch.process.wait(patience()).unwrap().success());
    agent.stop();
}
