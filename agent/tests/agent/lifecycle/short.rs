//! Starts with too little memory, disk or threads.

use std::fs;

use lab::{
    ControlGroup, Lab,
    privilege::{is_root_or_skip, skip},
};

use super::refusals::{assert_says, refusal};
use crate::support::{Agent, BINARY, disk::SmallDisk, flow_agent, memory_limit, wait_until};

/// A service manager's limit on memory is one on the kernel's table, too.
#[test]
fn a_control_group_without_memory_for_the_table_is_refused() {
    const TEST: &str = "agent::a_control_group_without_memory_for_the_table_is_refused";
    if !is_root_or_skip(TEST) {
        return;
    }
    let group = match ControlGroup::of("memory", memory_limit) {
        Ok(group) => group,
        Err(error) => return skip(TEST, &format!("{error:#}")),
    };
    group
        .write(memory_limit(group.version()), "64000000")
        .unwrap();
    let lab = Lab::quiet().unwrap();
    let in_group = |max_flows: &str| {
        let mut command = lab.agent.command("sh");
        group.run_by(&mut command);
        command.args([BINARY, "run", "--interface", &lab.agent.interface]);
        command.args(["--listen", "127.0.0.1:0", "--duration", "1s"]);
        // Pages of the largest size.
        command.args(["--max-flows", max_flows, "--early-scan", "0"]);
        command
    };
    let error = refusal(&mut in_group("500000"));
    assert_says(
        &error,
        &["--max-flows", "memory limit of the agent's cgroup"],
    );
    // Only the table is too large.
    let smaller = in_group("10000").output().unwrap();
    let stderr = String::from_utf8_lossy(&smaller.stderr);
    assert!(smaller.status.success(), "{stderr}");
    // Flows in userspace and consumers may take more later, and the kernel would kill the agent.
    let told = "the memory limit of its control group is 61 MiB: raise the limit (MemoryMax=";
    assert!(stderr.contains(told), "{stderr}");
}

#[test]
fn a_reload_that_may_take_more_than_the_control_group_allows_says_so() {
    const TEST: &str = "agent::a_reload_that_may_take_more_than_the_control_group_allows_says_so";
    const TOLD: &str = "the memory limit of its control group is 286 MiB";
    if !is_root_or_skip(TEST) {
        return;
    }
    let group = match ControlGroup::of("memory", memory_limit) {
        Ok(group) => group,
        Err(error) => return skip(TEST, &format!("{error:#}")),
    };
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let usual = "max_flows = 1000\noutput = ['json'";
    fs::write(&file, format!("{usual}]\n")).unwrap();
    let mut command = lab.agent.command("sh");
    group.run_by(&mut command).arg(BINARY);
    let agent = Agent::start_by_file_alone(command, &lab.agent.interface, &file);
    // A million tracked flows alone may take more.
    group
        .write(memory_limit(group.version()), "300000000")
        .unwrap();
    for (reload, (line, warnings)) in [
        // This takes no memory, and the second one needs a restart.
        ("]\nidle_timeout = '7s'", 0),
        ("]\nmax_fragments = 77", 0),
        ("]\nreport_interval = '1m'", 1),
        ("]\nreport_interval = '2m'", 1),
        (", 'jsonl=FOLDER/flows.jsonl']\nreport_interval = '2m'", 2),
    ]
    .into_iter()
    .enumerate()
    {
        let line = line.replace("FOLDER", folder.path().to_str().unwrap());
        fs::write(&file, format!("{usual}{line}\n")).unwrap();
        agent.signal(libc::SIGHUP);
        wait_until("it is read again", || {
            let log = agent.stderr();
            log.matches("read the settings again").count() > reload
        });
        let log = agent.stderr();
        assert_eq!(log.matches(TOLD).count(), warnings, "{line}: {log}");
    }
    agent.stop();
}

#[test]
fn too_few_threads_are_told_with_the_limit() {
    const TEST: &str = "agent::too_few_threads_are_told_with_the_limit";
    if !is_root_or_skip(TEST) {
        return;
    }
    let group = match ControlGroup::of("pids", |_| "pids.max") {
        Ok(group) => group,
        Err(error) => return skip(TEST, &format!("{error:#}")),
    };
    let lab = Lab::quiet().unwrap();
    for most in 2..8 {
        group.write("pids.max", &most.to_string()).unwrap();
        let mut command = lab.agent.command("sh");
        group.run_by(&mut command);
        command.args([BINARY, "run", "--interface", &lab.agent.interface]);
        command.args(["--listen", "127.0.0.1:0", "--duration", "1s"]);
        let error = refusal(&mut command);
        assert_says(&error, &["too few threads", "TasksMax=", "ulimit -u"]);
    }
}

#[test]
fn a_full_disk_has_no_place_for_the_socket() {
    if !is_root_or_skip("agent::a_full_disk_has_no_place_for_the_socket") {
        return;
    }
    let disk = SmallDisk::mount("nr_inodes=1");
    assert!(fs::write(disk.path().join("file"), "").is_err());
    let socket = disk.path().join("agent.sock");
    let lab = Lab::quiet().unwrap();
    let mut command = flow_agent(&lab.agent);
    command.args(["run", "--interface", &lab.agent.interface, "--listen"]);
    command.arg(format!("unix:{}", socket.display()));
    let error = refusal(&mut command);
    assert_says(
        &error,
        &["agent.sock", "--listen", "No space left on device"],
    );
}
