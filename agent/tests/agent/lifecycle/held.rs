//! Locks and pipes that others may hold indefinitely without delaying a scan.

use std::{
    io::{self, Read as _, Write as _},
    net::Ipv4Addr,
    os::fd::AsRawFd as _,
    path::Path,
};

use lab::{Host, Lab, Process, RtnlHold, privilege::is_root_or_skip, privilege::skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    Agent, attached::nothing_is_attached, count, flow_agent, patience, threads::thread_named,
    wait_for_packets, wait_until,
};

#[test]
fn a_lock_on_all_interfaces_delays_no_scan() {
    const NAME: &str = "agent::a_lock_on_all_interfaces_delays_no_scan";
    if !is_root_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "20ms"]);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let scans = |status: &Value| status["scans"]["count"].as_u64().unwrap();
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(NAME, &format!("RTNL cannot be held: {error:#}")),
    };
    socket.send_many(std::iter::repeat_n(&frame, 100)).unwrap();
    let before = scans(&agent.status(&lab.agent));
    wait_until("scans go on, and count", || {
        let status = agent.status(&lab.agent);
        scans(&status) >= before + 10 && status["account"]["seen"]["packets"] == 100
    });
    assert!(held.release(), "they go on while RTNL is held");
    assert_eq!(agent.stop().seen(), count(100, &frame));
}

/// The agent asks the kernel whether tags are hidden from XDP, and the kernel answers under that lock.
#[test]
fn a_lock_on_all_interfaces_delays_no_scan_at_xdp() {
    const NAME: &str = "agent::a_lock_on_all_interfaces_delays_no_scan_at_xdp";
    if !is_root_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--ingress-hook", "xdp", "--xdp-mode", "generic"];
    let settings = [&settings[..], &["--scan-interval", "20ms"]].concat();
    let agent = Agent::start_on(&lab.agent, "lo", &settings);
    assert_eq!(agent.status(&lab.agent)["hooks"][0]["hook"], "xdp");
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(NAME, &format!("RTNL cannot be held: {error:#}")),
    };
    // More than a second, after which the agent asks whether tags are hidden.
    agent.wait_for_scans(&lab.agent, 60);
    assert!(held.release(), "they go on while RTNL is held");
    agent.stop();
}

/// The last records do not wait for detaching.
#[test]
fn a_lock_on_all_interfaces_delays_no_last_record() {
    const NAME: &str = "agent::a_lock_on_all_interfaces_delays_no_last_record";
    if !is_root_or_skip(NAME) {
        return;
    }
    // Only filters show that the agent has detached: links end with it.
    for attach in [&[][..], &["--tc-attach", "clsact"]] {
        an_end_waits_for_no_lock(NAME, attach);
    }
}

fn an_end_waits_for_no_lock(name: &str, attach: &[&str]) {
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[attach, &["--scan-interval", "1h"]].concat());
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many(std::iter::repeat_n(&frame, 100)).unwrap();
    wait_for_packets(&lab.agent, before, 100);
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(name, &format!("RTNL cannot be held: {error:#}")),
    };
    agent.signal(libc::SIGTERM);
    wait_until("the last account is out", || {
        let last = agent.stdout();
        let last = last.lines().last().map(serde_json::from_str::<Value>);
        last.is_some_and(|last| last.is_ok_and(|last| last["final"] == true))
    });
    assert!(held.release(), "it is out while RTNL is held");
    let report = agent.ended();
    assert_eq!(report.seen(), count(100, &frame));
    assert_eq!(report.sums().len(), 1);
    assert!(nothing_is_attached(&lab.agent));
}

/// A reload asks the kernel which interfaces there are, and the kernel answers under that lock.
#[test]
fn a_reload_that_waits_delays_no_scan() {
    const NAME: &str = "agent::a_reload_that_waits_delays_no_scan";
    if !is_root_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("agent.toml");
    let settings = |interfaces: &str| {
        let text = format!(
            "interface = [{interfaces}]\nscan_interval = \"20ms\"\nmax_flows = 1000\noutput = [\"json\"]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let interface = format!("{:?}", lab.agent.interface);
    settings(&interface);
    let mut agent = Agent::start_by_file(&lab.agent, "", &file);
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(NAME, &format!("RTNL cannot be held: {error:#}")),
    };
    settings(&format!("{interface}, \"lo\""));
    agent.signal(libc::SIGHUP);
    // On a separate thread: a thread that also wakes the scans would sometimes delay them.
    let pid = agent.pid();
    let mut reload = None;
    wait_until("the reload waits for the lock", || {
        reload = thread_named(pid, "reload");
        let state = reload.as_deref().and_then(|task| field_of_stat(task, 0));
        state.is_some_and(|state| state == "D")
    });
    let own = nice_of(Path::new("/proc/self")).unwrap();
    assert_eq!(nice_of(&reload.unwrap()), Some((own + 5).min(19)));
    agent.wait_for_scans(&lab.agent, 60);
    assert!(held.release(), "they go on while RTNL is held");
    agent.wait_until_logged("read the settings again");
    agent.stop();
}

#[test]
fn a_stderr_that_takes_nothing_holds_nothing() {
    if !is_root_or_skip("agent::a_stderr_that_takes_nothing_holds_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = TempDir::new().unwrap();
    let address = format!("unix:{}", directory.path().join("x.sock").display());
    let (mut unread, stderr) = full_pipe();
    let mut command = flow_agent(&lab.agent);
    command
        .args(["run", "--interface", &lab.agent.interface])
        .args(["--listen", &address, "--max-flows", "1000"])
        .args(["--scan-interval", "20ms"])
        .env("FLOW_AGENT_LOG", "trace")
        .stderr(stderr);
    let mut process = Process::spawn(&mut command).unwrap();
    drop(command);
    wait_until("there are scans", || {
        assert_eq!(process.exited().unwrap(), None);
        scans_of(&lab.agent, &address) >= Some(20)
    });
    process.signal(libc::SIGTERM).unwrap();
    assert!(process.wait(patience()).unwrap().success());
    let mut written = Vec::new();
    unread.read_to_end(&mut written).unwrap();
    assert!(written.iter().all(|&byte| byte == b'x'), "it was full");
}

/// A pipe that is completely full.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    let set_flags = |flags: i32| {
        // SAFETY: no pointers; the descriptor is open.
        let refused = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) };
        assert_eq!(refused, 0);
    };
    set_flags(libc::O_NONBLOCK);
    let full = loop {
        if let Err(error) = (&writer).write(b"x") {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    set_flags(0);
    (reader, writer)
}

/// The number of scans, or `None` if the agent does not answer.
fn scans_of(host: &Host, address: &str) -> Option<u64> {
    let mut status = flow_agent(host);
    status.args(["status", "--output", "json", "--connect", address]);
    let answer = status.output().unwrap().stdout;
    let status: Value = serde_json::from_slice(&answer).ok()?;
    status["scans"]["count"].as_u64()
}

/// The thread that prepares rules yields to the threads that scan.
#[test]
fn rules_are_made_ready_behind_the_scans() {
    if !is_root_or_skip("agent::rules_are_made_ready_behind_the_scans") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &["--filter", "exclude port 9"]);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("rules");
    let network = |number: u32| Ipv4Addr::from_bits(0x0a00_0000 + number * 2).to_string();
    let networks: Vec<String> = (0..100_000).map(network).collect();
    std::fs::write(&file, format!("exclude net {}", networks.join(","))).unwrap();
    let mut command = flow_agent(&lab.agent);
    command
        .args(["filter", "set", "--connect", &agent.address(), "--file"])
        .arg(file)
        .stdout(std::process::Stdio::null());
    let pid = agent.pid();
    // The agent's niceness, with which the thread begins.
    let own = nice_of(Path::new("/proc/self")).unwrap();
    let mut nice = [None; 2];
    // They are so short-lived that this test may get no CPU meanwhile.
    wait_until("both threads are seen", || {
        let mut change = Process::spawn(&mut command).unwrap();
        while nice.contains(&None) && change.exited().unwrap().is_none() {
            let has_given_way = |nice: &i64| *nice != own;
            for (name, nice) in ["read-rules", "rules"].iter().zip(&mut nice) {
                let task = thread_named(pid, name);
                let seen = task.as_deref().and_then(nice_of).filter(has_given_way);
                *nice = nice.or(seen);
            }
        }
        assert!(change.wait(patience()).unwrap().success());
        !nice.contains(&None)
    });
    assert_eq!(nice, [Some((own + 5).min(19)); 2]);
    agent.stop();
}

/// The niceness of a process or thread, by its directory in /proc.
fn nice_of(task: &Path) -> Option<i64> {
    field_of_stat(task, 16)?.parse().ok()
}

/// A field of `stat`, counted from the state, which comes behind the name.
fn field_of_stat(task: &Path, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(number).map(str::to_owned)
}
