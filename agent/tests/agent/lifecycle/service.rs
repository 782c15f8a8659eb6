//! The agent's notifications to its service manager (`sd_notify`), received on the test's own socket.

use std::{
    collections::VecDeque,
    fs, io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use lab::{
    Lab, Process, RtnlHold,
    privilege::{is_root_or_skip, skip},
};
use serde_json::json;
use tempfile::TempDir;

use super::{has_tcx_or_skip, many::add_wires};
use crate::support::{
    Agent,
    attached::tcx_programs_on,
    count, flow_agent, pair, patience,
    threads::{id_of, thread_named},
    wait_for_packets, wait_until,
};

/// A service manager that keeps all notifications.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
    told: VecDeque<String>,
}

impl Manager {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            folder,
            socket,
            told: VecDeque::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The agent as this manager starts it.
    fn command(&self, lab: &Lab) -> Command {
        let mut command = flow_agent(&lab.agent);
        command
            .env("NOTIFY_SOCKET", self.path("notify"))
            .env_remove("WATCHDOG_PID")
            .env_remove("WATCHDOG_USEC");
        command
    }

    /// Takes all notifications that were not looked at yet.
    fn take(&mut self) -> Vec<String> {
        let mut message = [0; 4096];
        loop {
            match self.socket.recv(&mut message) {
                Ok(len) => {
                    let text = String::from_utf8(message[..len].to_vec()).unwrap();
                    self.told.push_back(text);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.told.drain(..).collect()
    }

    /// Takes the messages up to the first one that begins like this, and returns that one.
    fn wait_for(&mut self, start: &str) -> String {
        let mut found = None;
        wait_until(start, || {
            let told = self.take();
            let place = told.iter().position(|message| message.starts_with(start));
            if let Some(place) = place {
                found = Some(told[place].clone());
                self.told.extend(told.into_iter().skip(place + 1));
            }
            found.is_some()
        });
        found.unwrap()
    }
}

#[test]
fn ready_means_that_every_hook_counts() {
    const NAME: &str = "agent::ready_means_that_every_hook_counts";
    const WIRES: usize = 60;
    if !is_root_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    add_wires(&lab, WIRES);
    let mut manager = Manager::start();
    let mut agent = Agent::begin(manager.command(&lab), "many*", &[]);
    agent.wait_until_logged("attached interface=\"many0\" hook=\"tc_egress\"");
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(NAME, &format!("RTNL cannot be held: {error:#}")),
    };
    // Some hooks count, and more cannot be attached.
    agent.wait_for_scans(&lab.agent, 3);
    let told = manager.take();
    assert!(held.release(), "RTNL is held until here");
    assert!(
        !told.iter().any(|message| message.starts_with("READY=1")),
        "{told:?}"
    );
    manager.wait_for("READY=1");
    let status = agent.status(&lab.agent);
    assert_eq!(status["hooks"].as_array().unwrap().len(), 2 * WIRES);
    agent.stop();
    manager.wait_for("STOPPING=1");
}

/// As on a laptop, or at a boot where the network comes up last. A start by hand fails.
#[test]
fn a_service_waits_for_a_default_route_and_counts_when_it_comes() {
    const PACKETS: u64 = 100;
    if !is_root_or_skip("agent::a_service_waits_for_a_default_route_and_counts_when_it_comes") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut manager = Manager::start();
    let mut agent = Agent::begin(manager.command(&lab), "", &[]);
    agent.wait_until_logged("waiting for a default route");
    manager.wait_for("READY=1");
    let hooks = || agent.status(&lab.agent)["hooks"].as_array().unwrap().len();
    assert_eq!(hooks(), 0);

    let add = ["route", "add", "default", "dev", &lab.agent.interface];
    lab.agent.namespace.ip(&add).unwrap();
    wait_until("it is counted", || hooks() == 2);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many((0..PACKETS).map(|_| &frame)).unwrap();
    wait_for_packets(&lab.agent, before, PACKETS);
    let report = agent.stop();
    assert_eq!(report.seen(), count(PACKETS, &frame));
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

/// As with a tunnel that comes up after the service. A start by hand fails.
#[test]
fn a_service_waits_for_a_name_and_counts_the_others_meanwhile() {
    if !is_root_or_skip("agent::a_service_waits_for_a_name_and_counts_the_others_meanwhile") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut manager = Manager::start();
    let names = format!("{},late0", lab.agent.interface);
    let mut agent = Agent::begin(manager.command(&lab), &names, &[]);
    agent.wait_until_logged("waiting for late0: there is no interface 'late0'");
    manager.wait_for("READY=1");
    let hooks = || agent.status(&lab.agent)["hooks"].as_array().unwrap().len();
    let absent = || {
        let interfaces = agent.status(&lab.agent)["interfaces"].take();
        (
            interfaces["absent"].clone(),
            interfaces["absent_names"].clone(),
        )
    };
    assert_eq!(hooks(), 2);
    assert_eq!(absent(), (json!(1), json!(["late0"])));
    wait_until("the line for people has it", || {
        let told = manager.take();
        told.iter()
            .any(|told| told.ends_with(", no interface late0"))
    });
    lab.agent.namespace.add_wire(["late0", "far0"]).unwrap();
    wait_until("it is counted", || hooks() == 4);
    assert_eq!(absent(), (json!(0), json!([])));
    agent.stop();
}

#[test]
fn the_manager_sees_flows_rate_and_loss_and_each_reload() {
    if !is_root_or_skip("agent::the_manager_sees_flows_rate_and_loss_and_each_reload") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut manager = Manager::start();
    let settings = ["--max-flows", "4", "--early-scan", "0"];
    let agent = Agent::start_by(manager.command(&lab), &lab.agent.interface, &settings);
    manager.wait_for("READY=1");
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames = (1..=200).map(|port| frame.udp(port, 53, &[0; 18]).unwrap());
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    wait_until("the loss is shown", || {
        let shown = manager.wait_for("STATUS=");
        assert!(
            shown.contains(" flow") && shown.contains(" packets/s, "),
            "{shown}"
        );
        shown.contains(" packets lost (")
    });

    agent.signal(libc::SIGHUP);
    let reloading = manager.wait_for("RELOADING=1");
    let when_us = reloading
        .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
        .unwrap();
    assert!(when_us.parse::<u64>().unwrap() > 0, "{reloading}");
    manager.wait_for("READY=1");
    agent.stop();
    manager.wait_for("STOPPING=1");
}

/// Enough interfaces that attaching takes a while.
#[test]
fn a_reload_is_over_when_what_it_selects_counts_and_nothing_else_does() {
    const NAME: &str = "agent::a_reload_is_over_when_what_it_selects_counts_and_nothing_else_does";
    const WIRES: usize = 30;
    if !has_tcx_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let wires = add_wires(&lab, WIRES);
    let mut manager = Manager::start();
    let file = manager.path("config.toml");
    let select = |interface: &str| {
        fs::write(&file, format!("interface = ['{interface}']\n")).unwrap();
    };
    let here = &lab.agent.interface;
    select(here);
    let settings = ["--scan-interval", "1d", "--config", file.to_str().unwrap()];
    let agent = Agent::start_by(manager.command(&lab), "", &settings);
    manager.wait_for("READY=1");
    for (interface, on_wires, on_here) in [("many*", [1, 1], [0, 0]), (here, [0, 0], [1, 1])] {
        select(interface);
        agent.signal(libc::SIGHUP);
        manager.wait_for("RELOADING=1");
        manager.wait_for("READY=1");
        let on = |&ifindex: &u32| tcx_programs_on(&lab.agent, ifindex);
        let found: Vec<_> = wires.iter().map(on).collect();
        assert_eq!(found, [on_wires; WIRES], "{interface}");
        assert_eq!(tcx_programs_on(&lab.agent, lab.agent.ifindex), on_here);
        let attached = found.into_iter().chain([on_here]).flatten().sum::<u32>();
        let status = agent.status(&lab.agent);
        let listed = status["hooks"].as_array().unwrap().len();
        assert_eq!(listed, attached as usize, "{interface}: {status}");
    }
    agent.stop();
}

#[test]
fn a_reload_that_is_refused_is_in_the_line_for_people_until_one_is_not() {
    if !is_root_or_skip(
        "agent::a_reload_that_is_refused_is_in_the_line_for_people_until_one_is_not",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut manager = Manager::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    fs::write(&file, "linger = '1s'\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    // Whether or not there are scans.
    for interval in ["1d", "100ms"] {
        let settings = [&config[..], &["--scan-interval", interval]].concat();
        fs::write(&file, "linger = '1s'\n").unwrap();
        let agent = Agent::start_by(manager.command(&lab), &lab.agent.interface, &settings);
        let started = manager.wait_for("READY=1");
        assert!(started.contains("\nSTATUS="), "{started}");
        fs::write(&file, "lingerr = '1s'\n").unwrap();
        agent.signal(libc::SIGHUP);
        let refusal = "; the reload was refused: ";
        let shown = manager.wait_for("READY=1");
        let refused = shown.split_once(refusal).map(|(_, why)| why);
        let meant = "did you mean linger?";
        assert!(refused.is_some_and(|why| why.ends_with(meant)), "{shown}");
        if interval != "1d" {
            agent.wait_for_scans(&lab.agent, 2);
            let shown = manager.wait_for("STATUS=");
            assert!(shown.contains(refusal), "{shown}");
        }
        fs::write(&file, "linger = '2s'\n").unwrap();
        agent.signal(libc::SIGHUP);
        manager.wait_for("RELOADING=1");
        let shown = manager.wait_for("READY=1");
        assert!(
            shown.contains("\nSTATUS=") && !shown.contains(refusal),
            "{shown}"
        );
        agent.stop();
        manager.wait_for("STOPPING=1");
        manager.take();
    }
}

#[test]
fn the_watchdog_is_fed_between_scans_and_starves_while_one_hangs() {
    const NAME: &str = "agent::the_watchdog_is_fed_between_scans_and_starves_while_one_hangs";
    const LIMIT: Duration = Duration::from_secs(2);
    if !is_root_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut manager = Manager::start();
    let watched = |manager: &Manager| {
        let mut command = manager.command(&lab);
        command.env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
        command
    };
    let interface = &lab.agent.interface;
    let agent = Agent::start_by(watched(&manager), interface, &["--scan-interval", "1h"]);
    for _ in 0..5 {
        manager.wait_for("WATCHDOG=1");
    }
    assert_eq!(agent.status(&lab.agent)["scans"]["count"], 0);
    agent.kill();
    manager.take();

    let mut agent = Agent::start_by(watched(&manager), interface, &["--scan-interval", "20ms"]);
    manager.wait_for("WATCHDOG=1");
    // A scan makes this system call, and it does not begin before strace ends. So does the thread that looks at links.
    let looking = id_of(&thread_named(agent.pid(), "detach").unwrap()) + " ";
    let pid = agent.pid().to_string();
    let trace = manager.path("trace");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-p", &pid, "-e", "trace=bpf"])
        .args(["-e", "inject=bpf:delay_enter=3600s", "-o"])
        .arg(&trace)
        .stderr(Stdio::null());
    let mut strace = Process::spawn(&mut strace).unwrap();
    wait_until("a scan hangs", || {
        let calls = fs::read_to_string(&trace).unwrap_or_default();
        let mut calls = calls.lines().filter(|line| line.contains("bpf("));
        calls.any(|line| !line.starts_with(&looking))
    });
    manager.take();
    thread::sleep(LIMIT);
    let told = manager.take();
    assert!(
        !told.iter().any(|message| message == "WATCHDOG=1"),
        "{told:?}"
    );
    strace.terminate(patience()).unwrap();
    manager.wait_for("WATCHDOG=1");
    agent.stop();
}

#[test]
fn a_manager_that_does_not_read_holds_nothing() {
    if !is_root_or_skip("agent::a_manager_that_does_not_read_holds_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let manager = Manager::start();
    let mut command = manager.command(&lab);
    // This many keep-alives fill the socket at once.
    command.env("WATCHDOG_USEC", "4000");
    let mut agent = Agent::start_by(command, &lab.agent.interface, &["--scan-interval", "10ms"]);
    agent.wait_until_logged("the service manager takes no messages");
    agent.wait_for_scans(&lab.agent, 10);
    agent.stop();
}

/// The documented value. With the drop-in for other network namespaces it is higher.
#[test]
fn systemd_rates_the_units_exposure_at_most_2() {
    const NAME: &str = "agent::systemd_rates_the_units_exposure_at_most_2";
    let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy"));
    let root = TempDir::new().unwrap();
    let units = root.path().join("etc/systemd/system");
    let drop_ins = units.join("flow-agent.service.d");
    fs::create_dir_all(&drop_ins).unwrap();
    let unit = "flow-agent.service";
    fs::copy(deploy.join(unit), units.join(unit)).unwrap();
    for (drop_in, expected) in [(None, 1.8), (Some("netns.conf"), 2.3)] {
        if let Some(name) = drop_in {
            fs::copy(deploy.join("examples").join(name), drop_ins.join(name)).unwrap();
        }
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--no-pager", "--offline=true", "--root"]);
        let said = match analyze.arg(root.path()).arg("flow-agent.service").output() {
            Ok(output) => String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
            Err(error) => return skip(NAME, &format!("systemd-analyze: {error}")),
        };
        let Some((_, level)) = said.split_once("Overall exposure level for flow-agent.service: ")
        else {
            return skip(NAME, &format!("systemd-analyze before 250: {said}"));
        };
        let level: f64 = level.split(' ').next().unwrap().parse().unwrap();
        // Other versions of systemd rate some settings differently.
        assert!(level <= expected + 0.2, "{said}");
    }
}
