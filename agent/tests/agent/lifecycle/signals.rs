//! Signals during the agent's start.

use std::{
    fs::{self, File},
    thread,
    time::Duration,
};

use lab::{Lab, Process, privilege::is_root_or_skip};

use crate::support::{flow_agent, patience, wait_until};

/// Sends a signal to each thread every millisecond, which is less than the verifier needs for a program.
#[test]
fn signals_do_not_keep_the_programs_out() {
    if !is_root_or_skip("agent::signals_do_not_keep_the_programs_out") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = tempfile::TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("rules"), "exclude port 9").unwrap();
    let mut command = flow_agent(&lab.agent);
    command
        .args(["run", "--interface", &lab.agent.interface])
        .args(["--max-flows", "1000", "--listen"])
        .arg(format!("unix:{}", path("x.sock").display()))
        .arg("--filter-file")
        .arg(path("rules"))
        .stderr(File::create(path("stderr")).unwrap());
    let mut process = Process::spawn(&mut command).unwrap();
    let pid = process.child().id();
    let status = format!("/proc/{pid}/status");
    wait_until("it handles SIGHUP", || {
        handles(&fs::read_to_string(&status).unwrap(), libc::SIGHUP)
    });
    let mut log = String::new();
    wait_until("it counts", || {
        for _ in 0..20 {
            signal_all_threads(pid, libc::SIGHUP);
            thread::sleep(Duration::from_millis(1));
        }
        log = fs::read_to_string(path("stderr")).unwrap();
        assert_eq!(process.exited().unwrap(), None, "{log}");
        log.contains("counting max_flows=")
    });
    // Nor from the agent's probes of the kernel, which load programs.
    assert!(!log.contains("count as inexact"), "{log}");
    assert!(process.terminate(patience()).unwrap().success());
}

/// The kernel gives a signal to a process to any thread that does not block it, mostly to the first one. The verifier works on
/// others.
fn signal_all_threads(pid: u32, signal: i32) {
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread: i32 = thread
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        // SAFETY: the call takes numbers alone. A thread may have ended.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, signal) };
    }
}

/// `SigCgt` in /proc/PID/status: a bit for each signal that is caught.
fn handles(status: &str, signal: i32) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    caught & 1 << (signal - 1) != 0
}
