//! SIGHUP: the settings that a running agent takes over from the file, and the others.

use std::{fs, path::PathBuf};

use lab::{Lab, privilege::is_root_or_skip};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    filters::in_force,
    support::{Agent, flow_agent, wait_until},
};

const USUAL: &str = "output = ['json']\nmax_flows = 50000\n";

/// An agent and the file of its settings.
pub(super) struct Watched {
    pub lab: Lab,
    pub agent: Agent,
    file: PathBuf,
    _folder: TempDir,
}

/// The times that the status has, in milliseconds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub scan_interval: u64,
    pub idle_timeout: u64,
    pub linger: u64,
}

impl Watched {
    fn start(settings: &str) -> Self {
        let lab = Lab::quiet().unwrap();
        let interface = lab.agent.interface.clone();
        Self::start_in(lab, &interface, &format!("{USUAL}{settings}"))
    }

    /// With only these settings. If `interface` is empty, they choose the interfaces.
    pub fn start_in(lab: Lab, interface: &str, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, settings).unwrap();
        let agent = Agent::start_by_file(&lab.agent, interface, &file);
        Self {
            lab,
            agent,
            file,
            _folder: folder,
        }
    }

    fn reload(&self, settings: &str) {
        self.reload_to(&format!("{USUAL}{settings}"));
    }

    /// Replaces all settings by these.
    pub fn reload_to(&self, settings: &str) {
        fs::write(&self.file, settings).unwrap();
        self.agent.signal(libc::SIGHUP);
    }

    pub fn setting(&self, name: &str) -> u64 {
        self.agent.status(&self.lab.agent)["settings"][name]
            .as_u64()
            .unwrap()
    }

    pub fn times(&self) -> Times {
        let milliseconds = |name: &str| self.setting(name) / 1_000_000;
        Times {
            scan_interval: milliseconds("scan_interval_ns"),
            idle_timeout: milliseconds("idle_timeout_ns"),
            linger: milliseconds("linger_ns"),
        }
    }

    /// The agent's settings in force.
    fn told(&self) -> Value {
        let address = self.agent.address();
        let mut command = flow_agent(&self.lab.agent);
        let shown = command.args(["config", "show", "--connect", &address, "--output", "json"]);
        let shown = shown.output().unwrap();
        let stderr = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success(), "{stderr}");
        serde_json::from_slice(&shown.stdout).unwrap()
    }

    pub fn scans(&self) -> u64 {
        self.agent.status(&self.lab.agent)["scans"]["count"]
            .as_u64()
            .unwrap()
    }

    fn wait_until_logged(&self, text: &str) {
        wait_until(text, || self.agent.stderr().contains(text));
    }

    pub fn lines(&self, text: &str) -> Vec<String> {
        let log = self.agent.stderr();
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

#[test]
fn a_shorter_idle_timeout_ends_flows_that_are_quiet_already() {
    if !is_root_or_skip("agent::a_shorter_idle_timeout_ends_flows_that_are_quiet_already") {
        return;
    }
    let watched = Watched::start("scan_interval = '50ms'\nidle_timeout = '1h'\n");
    let frame = watched.lab.peer.frame_v4(&watched.lab.agent);
    let frame = frame.udp(1000, 53, &[0; 18]).unwrap();
    watched
        .lab
        .peer
        .frame_socket()
        .unwrap()
        .send(&frame)
        .unwrap();
    wait_until("the flow is told", || {
        watched.agent.stdout().contains("\"type\":\"flow\"")
    });
    assert!(!watched.agent.stdout().contains("idle_timeout"));
    watched.reload("scan_interval = '50ms'\nidle_timeout = '1ms'\n");
    wait_until("the flow ends", || {
        watched
            .agent
            .stdout()
            .contains("\"end_reason\":\"idle_timeout\"")
    });
    watched.agent.stop();
}

#[test]
fn a_broken_file_changes_nothing_and_is_told() {
    if !is_root_or_skip("agent::a_broken_file_changes_nothing_and_is_told") {
        return;
    }
    let good = "scan_interval = '1h'\nlinger = '2s'\nfilter = ['exclude dst port 1']\n";
    let watched = Watched::start(good);
    let before = watched.times();
    let many_rules = watched.file.with_file_name("rules");
    fs::write(&many_rules, "exclude all\n".repeat(1025)).unwrap();
    let others = "scan_interval = '50ms'\nlinger = '9s'\nfilter = ['exclude dst port 2']\n";
    let many = format!("filter_file = '{}'", many_rules.display());
    for (line, told) in [
        (
            "lingerr = '1s'",
            "config.toml:6:1: no setting has this name; did you mean linger?",
        ),
        ("idle_timeout = 'soon'", "config.toml:6:16: "),
        (
            "xdp_mode = 'native'",
            "--xdp-mode does nothing with --ingress-hook tc",
        ),
        ("filter_file = '/nonexistent/rules'", "/nonexistent/rules"),
        ("filter_file = '/dev/null'", "/dev/null is no regular file"),
        (&many, "1026 filter rules; a set has at most 1024"),
        (
            "listen = ['a.example:1']",
            "config.toml:6:11: the name a.example is not looked up",
        ),
    ] {
        watched.reload(&format!("{others}{line}\n"));
        watched.wait_until_logged(told);
        let lines = watched.lines(told);
        let [line] = &lines[..] else {
            panic!("one line with {told}: {lines:?}");
        };
        // The agent continues, so it is not an error.
        assert!(
            line.contains("WARN") && line.contains("keeping the settings: "),
            "{line}"
        );
        assert!(
            line.ends_with("; fix it and reload again (SIGHUP)"),
            "{line}"
        );
        let is_drawn = |mark: &str| watched.agent.stderr().contains(mark);
        assert!(!is_drawn("^^") && !is_drawn("u{a}"), "{line}");
    }
    fs::remove_file(&watched.file).unwrap();
    watched.agent.signal(libc::SIGHUP);
    watched.wait_until_logged("keeping the settings: look at the settings in ");
    assert_eq!(watched.times(), before);
    let rules = in_force(&watched.lab, &watched.agent.address());
    assert_eq!(rules, "exclude dst port 1\n# 1 rule; set 1 of this agent\n");

    // A good file is taken over after that.
    watched.reload(others);
    wait_until("the settings are in force", || {
        watched.times().linger == 9000
    });
    watched.agent.stop();
}

#[test]
fn a_setting_that_needs_a_restart_is_told_by_name_and_the_others_are_taken_over() {
    if !is_root_or_skip(
        "agent::a_setting_that_needs_a_restart_is_told_by_name_and_the_others_are_taken_over",
    ) {
        return;
    }
    let watched = Watched::start("linger = '2s'\nearly_scan = 40\n");
    let restart = || watched.lines("this setting needs a restart");
    let again = || watched.lines("read the settings again").len();
    watched.reload("linger = '3s'\nearly_scan = 60\n");
    wait_until("the settings are read", || again() == 1);
    assert_eq!(watched.times().linger, 3000);
    assert_eq!(watched.setting("early_scan_percent"), 40);
    let told = watched.told();
    assert_eq!(told["file"], watched.file.to_str().unwrap());
    let place = |line| format!("{}:{line}:1", watched.file.display());
    let (linger, early_scan) = (&told["settings"]["linger"], &told["settings"]["early_scan"]);
    let expected = json!({ "value": "3s", "source": "file", "place": place(3) });
    assert_eq!(*linger, expected);
    let expected = json!({ "value": 40, "source": "file", "place": place(4), "wanted": 60 });
    assert_eq!(*early_scan, expected);
    let scan_interval = json!({ "value": "10s", "source": "default" });
    assert_eq!(told["settings"]["scan_interval"], scan_interval);
    let lines = restart();
    let [line] = &lines[..] else {
        panic!("one line: {lines:?}");
    };
    for part in [
        "WARN",
        "early_scan",
        "in_force=40",
        "wanted=60",
        "config.toml:4:1",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let changed = watched.lines("a setting has changed");
    let [line] = &changed[..] else {
        panic!("one line: {changed:?}");
    };
    assert!(
        line.contains("linger") && line.contains("from=\"2s\" to=\"3s\""),
        "{line}"
    );
    // It is logged until the file matches the settings in force.
    watched.reload("linger = '3s'\nearly_scan = 60\n");
    wait_until("the settings are read", || again() == 2);
    watched.reload("linger = '3s'\nearly_scan = 40\n");
    wait_until("the settings are read", || again() == 3);
    assert_eq!(restart().len(), 2);
    // A client's rules differ from those of the settings.
    assert_eq!(watched.told()["filters_by_client"], false);
    let set = ["filter", "set", "exclude port 77"];
    let set = watched.agent.asked(&watched.lab.agent, &set);
    assert!(set.status.success(), "{set:?}");
    assert_eq!(watched.told()["filters_by_client"], true);
    watched.agent.stop();
}

#[test]
fn the_log_level_is_taken_over() {
    if !is_root_or_skip("agent::the_log_level_is_taken_over") {
        return;
    }
    // The line that says that it counts comes from agent::agent.
    let watched = Watched::start("log = 'warn,agent::agent=info'\nlinger = '2s'\n");
    let again = || watched.lines("read the settings again").len();
    watched.reload("log = 'warn,agent::agent=info'\nlinger = '3s'\n");
    wait_until("the settings are in force", || {
        watched.times().linger == 3000
    });
    watched.reload("log = 'info'\nlinger = '3s'\n");
    wait_until("the settings are told", || again() == 1);
    let changed = watched.lines("a setting has changed");
    assert!(
        changed.len() == 1 && changed[0].contains("log"),
        "{changed:?}"
    );
    watched.agent.stop();
}
