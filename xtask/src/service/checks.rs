//! The checks of the service, in the order of its life cycle.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use lab::{FrameSocket, Lab, Process, tcx_programs};
use serde_json::Value;

use super::machine::{Machine, wait_for};

mod carry;
mod collect;
mod files;
mod netns;
mod package;
mod sockets;
mod spool;
mod tarball;

type Check = fn(&mut Service) -> Result<String>;

pub const CHECKS: &[(&str, Check)] = &[
    ("installing starts it", package::installs),
    ("started means counting", starts),
    ("members of the group observe", observes),
    ("the journal has fields", logs),
    ("a reload changes rules and settings", reloads),
    ("refused settings are not tried again", refuses),
    ("without a capability it says which", lacks),
    ("killed, it comes back", killed),
    ("a scan that hangs is ended by the watchdog", hangs),
    (
        "with a drop-in it counts in other network namespaces",
        netns::counts_elsewhere,
    ),
    (
        "with a drop-in it writes files for its group",
        files::writes_for_its_group,
    ),
    (
        "with a drop-in it keeps on disk what no collector took",
        spool::keeps_what_no_collector_took,
    ),
    (
        "beside a collector under systemd its flows are stored",
        collect::stores_for_agents,
    ),
    (
        "behind a socket of systemd it is started by a request",
        sockets::waits_behind_a_socket,
    ),
    (
        "killed and restarted under traffic, it loses no packet",
        carry::loses_nothing,
    ),
    (
        "without D-Bus a restart is a stop and a start",
        carry::stops_without_an_answer,
    ),
    ("an upgrade loses no packet", package::upgrades),
    ("removed, it leaves its settings", package::removes),
    ("purged, it leaves nothing but flows", package::purges),
    ("the tarball runs, and makes the service", tarball::serves),
];

const UNIT: &str = "flow-agent.service";
const SOCKET: &str = "/run/flow-agent/flow-agent.sock";
const SETTINGS: &str = "/etc/flow-agent/config.toml";
const RULES: &str = "/etc/flow-agent/filters";

/// The page whose commands the checks run.
const SERVICE_PAGE: &str = include_str!("../../../docs/service.md");

/// The commands in the first code block below a heading.
fn commands<'a>(document: &'a str, heading: &str) -> Result<Vec<&'a str>> {
    let (_, section) = document
        .split_once(&format!("\n{heading}\n"))
        .with_context(|| format!("no heading is {heading}"))?;
    let section = section.lines();
    let lines = section
        .take_while(|line| !line.starts_with('#'))
        .map(|line| line.strip_prefix("    "))
        .skip_while(Option::is_none);
    let commands: Vec<_> = lines.map_while(|line| line).collect();
    ensure!(!commands.is_empty(), "no commands are under {heading}");
    Ok(commands)
}

/// Lists the files of the machine, except those that Debian's tools write for any package.
const LIST_FILES: &str = "find / -xdev ! -type d ! -path '/var/log/*' ! -path '/var/lib/dpkg/*' \
    ! -path '/var/cache/*' ! -path '/var/lib/apt/*' ! -path '/etc/*-' ! -path '/etc/.pwd.lock' \
    ! -path '/var/lib/systemd/*' ; \
    find /etc/systemd /var/lib/systemd /run/flow-agent /etc/flow-agent /usr/share/doc/flow-agent \
    2>/dev/null | grep flow-agent ; true";

/// The installed service, with a wire that carries only the checks' packets.
pub struct Service {
    machine: Machine,
    lab: Lab,
    /// Sends to the watched interface.
    peer: FrameSocket,
    frame: lab::Frame,
    files_before: String,
}

impl Service {
    /// Copies the built files to /tmp of the machine.
    pub fn new(machine: Machine, lab: Lab, built: &Path) -> Result<Self> {
        for folder in ["", "current", "next"] {
            let entries = fs::read_dir(built.join(folder));
            for entry in entries.with_context(|| format!("list {}", built.display()))? {
                let file = entry.context("list what was built")?.path();
                if file.is_file() {
                    let name = file.strip_prefix(built).context("it is in the folder")?;
                    let bytes = fs::read(&file).context("read what was built")?;
                    machine.write(&format!("/tmp/{}", name.display()), bytes)?;
                }
            }
        }
        let files_before = machine.output(LIST_FILES);
        Ok(Self {
            machine,
            peer: lab.peer.frame_socket()?,
            frame: lab.peer.frame_v4(&lab.agent),
            lab,
            files_before,
        })
    }

    pub fn journal(&self) -> String {
        self.machine
            .output("journalctl --no-pager --lines 30 --unit flow-agent.service")
    }

    /// The last line of its log that contains `part`, if any.
    fn said(&self, part: &str) -> Option<String> {
        // The journal may lag behind the output of a service that has ended.
        let log = self.machine.output(&format!(
            "journalctl --sync; journalctl --no-pager --output cat --unit {UNIT} | grep -F '{part}' | tail -n 1"
        ));
        (!log.is_empty()).then_some(log)
    }

    fn show(&self, property: &str) -> String {
        let line = format!("systemctl show --value --property {property} {UNIT}");
        self.machine.output(&line)
    }

    /// Sends `packets` packets to a port.
    fn send(&self, port: u16, packets: usize) -> Result<()> {
        let frame = self.frame.udp(4000, port, &[0; 18])?;
        let sent = self.peer.send_many(std::iter::repeat_n(&frame, packets))?;
        ensure!(sent == packets, "{sent} of {packets} packets were sent");
        Ok(())
    }

    /// The agent's status as root sees it; `None` if the agent does not answer.
    fn status(&self) -> Option<Value> {
        serde_json::from_str(&self.machine.output("flow-agent status --output json")).ok()
    }

    /// Waits until the account's counter reaches this number of packets. Fails if it exceeds it.
    fn wait_for_packets(&self, counter: &str, packets: u64) -> Result<()> {
        let mut found = 0;
        let waited = wait_for("the packets are counted", || {
            found = self
                .status()
                .map_or(0, |status| packets_of(&status, counter));
            Ok((found >= packets).then_some(()))
        });
        waited.with_context(|| format!("{counter}: {found} of {packets}"))?;
        ensure!(
            found == packets,
            "{counter}: {found}, and {packets} were sent"
        );
        Ok(())
    }

    /// The service's main process, 0 if it has none; `None` if systemd does not report it.
    fn process(&self) -> Option<u32> {
        self.show("MainPID").parse().ok()
    }

    fn running(&self) -> Result<u32> {
        let process = self.process().filter(|&pid| pid != 0);
        process.context("the service has no process")
    }

    /// Waits until a different process runs, and returns its id.
    fn wait_for_another(&self, before: u32) -> Result<u32> {
        wait_for("another process is up", || {
            let other = self.process().filter(|&pid| pid != before && pid != 0);
            Ok(other.filter(|_| self.show("ActiveState") == "active"))
        })
    }

    /// The number of programs at ingress and egress of the watched interface.
    fn attached(&self) -> Result<[u32; 2]> {
        tcx_programs(&self.lab.agent.namespace, self.lab.agent.ifindex)
    }

    /// Sends some packets and waits until exactly those are counted, at two hooks.
    fn counts_from_zero(&self) -> Result<()> {
        self.send(53, 10)?;
        self.wait_for_packets("seen", 10)?;
        let status = self.status().context("the agent does not answer")?;
        let hooks = status["hooks"].as_array().map_or(0, Vec::len);
        ensure!(hooks == 2, "{hooks} hooks");
        let attached = self.attached()?;
        ensure!(attached == [1, 1], "{attached:?} programs are attached");
        Ok(())
    }
}

fn settings(scan_interval: &str) -> String {
    format!("scan_interval = \"{scan_interval}\"\nfilter_file = \"{RULES}\"\n")
}

fn packets_of(status: &Value, counter: &str) -> u64 {
    status["account"][counter]["packets"].as_u64().unwrap_or(0)
}

fn starts(service: &mut Service) -> Result<String> {
    // Takes effect at the next start.
    service.machine.write(SETTINGS, settings("200ms"))?;
    service.machine.write(RULES, "# none yet\n")?;
    service.machine.run(&format!("systemctl stop {UNIT}"))?;
    service.machine.run(&format!("systemctl start {UNIT}"))?;
    // Send as soon as systemd reports the service as started.
    service.send(53, 1000)?;
    service.wait_for_packets("seen", 1000)?;
    let status = wait_for("a line for people", || {
        let text = service.show("StatusText");
        Ok((!text.is_empty()).then_some(text))
    })?;
    Ok(format!("1000 of 1000 packets; \"{status}\""))
}

fn observes(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    machine.run("useradd --groups flow-agent member && useradd stranger")?;
    let watch = |user: &str| {
        machine.command(&format!(
            "runuser -u {user} -- flow-agent watch --output json"
        ))
    };
    let output = machine.folder().join("flows");
    let file = fs::File::create(&output).context("make a file for flows")?;
    let watching = Process::spawn(watch("member").stdout(file).stderr(Stdio::null()))?;
    wait_for("the flow arrives", || {
        service.send(5353, 1)?;
        let flows = fs::read_to_string(&output).context("read the flows")?;
        Ok(flows.contains("\"dst_port\":5353").then_some(()))
    })?;
    drop(watching);
    let refused = machine
        .command("runuser -u stranger -- flow-agent status")
        .output();
    let refused = refused.context("start nsenter")?;
    let error = String::from_utf8_lossy(&refused.stderr).trim().to_owned();
    ensure!(
        !refused.status.success() && error.contains("no permission to connect"),
        "{error}"
    );
    // nsenter has exited, but the process that it started may still run.
    machine.run("pkill --signal KILL --uid member")?;
    wait_for("the users' processes are gone", || {
        let ended = machine.run("! pgrep --uid member,stranger");
        Ok(ended.is_ok().then_some(()))
    })?;
    machine.run("userdel member && userdel stranger")?;
    Ok(format!(
        "a member sees the flow; a stranger is told \"{error}\""
    ))
}

fn logs(service: &mut Service) -> Result<String> {
    let interface = &service.lab.agent.interface;
    let of = |fields: &str| {
        let shown = format!("journalctl --no-pager --output cat --unit {UNIT} {fields}");
        service.machine.output(&shown)
    };
    let attached = of(&format!(
        "FLOW_AGENT_INTERFACE={interface} FLOW_AGENT_HOOK=tc_ingress"
    ));
    let [line, ..] = attached.lines().collect::<Vec<_>>()[..] else {
        anyhow::bail!("no line has both fields: {}", service.journal());
    };
    let expected = format!("attached interface=\"{interface}\"");
    ensure!(line.starts_with(&expected), "{line}");
    let of_another = of("FLOW_AGENT_INTERFACE=another");
    ensure!(!of_another.contains("attached"), "{of_another}");
    let errors = of("--priority err TARGET=agent::agent");
    ensure!(!errors.contains("counting"), "{errors}");
    Ok(format!("\"{line}\""))
}

fn reloads(service: &mut Service) -> Result<String> {
    const REFUSED: &str = "; the reload was refused: ";
    let pid = service.running()?;
    let before = service.status().context("the agent does not answer")?;
    ensure!(
        before["settings"]["filter_rules"] == 0,
        "{}",
        before["settings"]
    );
    service.machine.write(RULES, "exclude dst port 9\n")?;
    service.machine.write(SETTINGS, settings("300ms"))?;
    service.machine.run(&format!("systemctl reload {UNIT}"))?;
    wait_for("the rule and the interval are in force", || {
        let settings = service.status().map(|status| status["settings"].clone());
        Ok(settings.filter(|settings| {
            settings["filter_rules"] == 1 && settings["scan_interval_ns"] == 300_000_000
        }))
    })?;
    service.send(9, 100)?;
    service.wait_for_packets("filtered", 100)?;
    let state = wait_for("the reload is over", || {
        let state = service.show("ActiveState");
        Ok((state != "reloading").then_some(state))
    })?;
    ensure!(state == "active" && service.running()? == pid, "{state}");
    service
        .machine
        .write(SETTINGS, "scan_intervall = \"1s\"\n")?;
    let reload = format!("systemctl reload {UNIT}");
    ensure!(
        service.machine.run(&reload).is_err(),
        "a reload to a faulty file succeeds"
    );
    let is_told = |service: &Service| service.show("StatusText").contains(REFUSED);
    wait_for("the line of status says so", || {
        Ok(is_told(service).then_some(()))
    })?;
    service.machine.write(SETTINGS, settings("300ms"))?;
    service.machine.run(&reload)?;
    wait_for("it does no more", || Ok((!is_told(service)).then_some(())))?;
    ensure!(service.running()? == pid, "another process");
    Ok(format!(
        "300 ms; 100 of 100 packets filtered; the same process, {state}; to a faulty file it fails and says why"
    ))
}

fn refuses(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    machine.write(SETTINGS, "scan_intervall = \"1s\"\n")?;
    let restart = format!("systemctl restart {UNIT}");
    ensure!(machine.run(&restart).is_err(), "it starts");
    // If systemd retried, the state would be `activating`.
    let state = ["ActiveState", "ExecMainStatus", "NRestarts"].map(|name| service.show(name));
    ensure!(state == ["failed", "2", "0"], "{state:?}");
    let said = service
        .said("config.toml:1:1")
        .context("no place is told")?;
    ensure!(said.contains("did you mean scan_interval?"), "{said}");
    // systemd closes the stored descriptors of a failed service, and with them the links.
    wait_for("no program is attached", || {
        Ok((service.attached()? == [0, 0]).then_some(()))
    })?;
    machine.write(SETTINGS, settings("200ms"))?;
    machine.run(&restart)?;
    service.counts_from_zero()?;
    Ok(format!("\"{said}\"; failed, 0 restarts; mended, it counts"))
}

fn lacks(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let drop_in = "/run/systemd/system/flow-agent.service.d/capability.conf";
    let without = "CAP_NET_ADMIN CAP_PERFMON";
    let unit = format!(
        "[Service]\nAmbientCapabilities=\nAmbientCapabilities={without}\n\
         CapabilityBoundingSet=\nCapabilityBoundingSet={without}\n"
    );
    machine.write(drop_in, unit)?;
    let restart = format!("systemctl daemon-reload && systemctl restart {UNIT}");
    // Stop the journal, so that it reads the service's output only after the service has ended, as on a busy machine.
    let journal = "systemctl kill --signal";
    let unread = format!(
        "{journal} STOP systemd-journald; {restart}; code=$?; {journal} CONT systemd-journald; exit $code"
    );
    ensure!(machine.run(&unread).is_err(), "it starts");
    let said = service.said("CAP_BPF").context("CAP_BPF is not named")?;
    // systemd keeps retrying, and the programs keep counting for the process that will have the capability.
    service.send(53, 5)?;
    let attached = service.attached()?;
    ensure!(attached == [1, 1], "{attached:?} programs are attached");
    machine.run(&format!("rm {drop_in} && {restart}"))?;
    service.wait_for_packets("seen", 5)?;
    machine.run(&format!("systemctl stop {UNIT} && systemctl start {UNIT}"))?;
    service.counts_from_zero()?;
    Ok(format!("\"{said}\"; with it, it counts"))
}

fn killed(service: &mut Service) -> Result<String> {
    // Compare with the count before: on a slow machine systemd may have restarted the service during an earlier check.
    let restarts = |service: &Service| -> Result<u32> {
        let told = service.show("NRestarts");
        told.parse().with_context(|| format!("NRestarts={told}"))
    };
    let restarts_before = restarts(service)?;
    let before = service.running()?;
    service.machine.run(&format!("kill -9 {before}"))?;
    let after = service.wait_for_another(before)?;
    service.counts_from_zero()?;
    let growth = restarts(service)? - restarts_before;
    ensure!(growth == 1, "{growth} restarts");
    Ok(format!(
        "process {after} after {before}, 1 restart, it counts at 2 hooks"
    ))
}

/// Blocks the system call with which a scan begins until the watchdog fires.
fn hangs(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let drop_in = "/run/systemd/system/flow-agent.service.d/watchdog.conf";
    machine.write(drop_in, "[Service]\nWatchdogSec=10s\nTimeoutAbortSec=1s\n")?;
    machine.run(&format!(
        "systemctl daemon-reload && systemctl restart {UNIT}"
    ))?;
    let before = service.running()?;
    let process = machine.processes(UNIT)?;
    let [process] = process[..] else {
        anyhow::bail!("the service has the processes {process:?}");
    };
    let mut strace = Command::new("strace");
    strace
        .args([
            "-f",
            "-e",
            "trace=bpf",
            "-e",
            "inject=bpf:delay_enter=3600s",
            "-o",
            "/dev/null",
        ])
        .args(["-p", &process.to_string()])
        .stderr(Stdio::null());
    let strace = Process::spawn(&mut strace)?;
    let said = wait_for("the watchdog ends it", || {
        let said = machine.output(&format!(
            "journalctl --no-pager --output cat --unit {UNIT} | grep -F 'Watchdog timeout'"
        ));
        Ok((!said.is_empty()).then_some(said))
    })?;
    // strace keeps even a killed process from exiting.
    drop(strace);
    let after = service.wait_for_another(before)?;
    service.counts_from_zero()?;
    machine.run(&format!(
        "rm {drop_in} && systemctl daemon-reload && systemctl restart {UNIT}"
    ))?;
    Ok(format!(
        "\"{said}\"; process {after} after {before} counts at 2 hooks"
    ))
}
