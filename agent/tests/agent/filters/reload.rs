//! Rule files that changed between the start and a SIGHUP.

use std::{ffi::CString, fs, os::unix::ffi::OsStrExt as _, thread};

use lab::{Lab, privilege::is_root_or_skip};

use super::changes::in_force;
use crate::support::{Agent, wait_until};

#[test]
fn rules_that_can_be_read_only_once_outlive_a_reload() {
    if !is_root_or_skip("agent::rules_that_can_be_read_only_once_outlive_a_reload") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let path = CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a string that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let agent = thread::scope(|scope| {
        let writer = scope.spawn(|| fs::write(&pipe, "exclude dst port 1\n").unwrap());
        let agent = Agent::start(&lab, &["--filter-file", pipe.to_str().unwrap()]);
        writer.join().unwrap();
        agent
    });
    agent.signal(libc::SIGHUP);
    wait_until("the reload is refused", || {
        let log = agent.stderr();
        log.contains("keeping the settings") && log.contains("is no regular file")
    });
    assert_eq!(
        in_force(&lab, &agent.address()),
        "exclude dst port 1\n# 1 rule; set 1 of this agent\n"
    );
    agent.stop();
}

fn reloads(agent: &Agent) -> usize {
    let log = agent.stderr();
    log.matches("read the settings again").count()
}

#[test]
fn rules_of_a_client_stay_until_those_of_the_settings_change() {
    if !is_root_or_skip("agent::rules_of_a_client_stay_until_those_of_the_settings_change") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    fs::write(&file, "exclude dst port 1\n").unwrap();
    let agent = Agent::start(&lab, &["--filter-file", file.to_str().unwrap()]);
    let target = agent.address().parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rules = vec!["exclude dst port 9".to_owned()];
    let set = view::client::set_filters(&target, rules);
    runtime.block_on(set).unwrap();
    for (text, rule, set) in [
        ("exclude dst port 1\n", 9, 2),
        ("# as before\nexclude   dst port 1\n", 9, 2),
        ("exclude dst port 2\n", 2, 3),
    ] {
        let before = reloads(&agent);
        fs::write(&file, text).unwrap();
        agent.signal(libc::SIGHUP);
        wait_until("the file is read", || reloads(&agent) > before);
        assert_eq!(
            in_force(&lab, &agent.address()),
            format!("exclude dst port {rule}\n# 1 rule; set {set} of this agent\n")
        );
    }
    agent.stop();
}

#[test]
fn a_reload_that_finds_no_rules_any_more_warns() {
    if !is_root_or_skip("agent::a_reload_that_finds_no_rules_any_more_warns") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    fs::write(&file, "exclude dst port 1\nexclude dst port 2\n").unwrap();
    let agent = Agent::start(&lab, &["--filter-file", file.to_str().unwrap()]);
    let warnings = || {
        let log = agent.stderr();
        let lines = log.lines().filter(|line| line.contains("no filter rules"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // First no rules replace two, then nothing has changed.
    fs::write(&file, "").unwrap();
    for times in [1, 2] {
        agent.signal(libc::SIGHUP);
        wait_until("the file is read", || reloads(&agent) == times);
        assert_eq!(
            in_force(&lab, &agent.address()),
            "# no rules: every packet is counted; set 2 of this agent\n"
        );
    }
    wait_until("a warning is written", || !warnings().is_empty());
    let [warning] = &warnings()[..] else {
        panic!("one warning in {}", agent.stderr());
    };
    assert!(
        warning.contains("WARN") && warning.contains("before=2"),
        "{warning}"
    );
    agent.stop();
}
