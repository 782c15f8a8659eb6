//! The life cycle of the package: installed, upgraded under traffic, removed, purged.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    LIST_FILES, Machine, RULES, SETTINGS, SOCKET, Service, UNIT, commands, files, packets_of,
    wait_for,
};

/// Files that cargo-deb adds to the declared ones.
const ADDED: [&str; 2] = [
    "/usr/lib/systemd/system/flow-agent.service",
    "/usr/share/doc/flow-agent/copyright",
];

pub(super) fn installs(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let command = the_readmes_command()?;
    machine.run(&format!("cd /tmp/current && {command}"))?;
    let enabled = machine.run(&format!("systemctl is-enabled {UNIT}"))?;
    let active = machine.run(&format!("systemctl is-active {UNIT}"))?;
    let pid = service.running()?;
    let process = machine.run(&format!(
        "ps -o user:12=,group:12= -p {pid} && grep -E 'Cap(Eff|Bnd)' /proc/{pid}/status"
    ))?;
    let process = process.split_whitespace().collect::<Vec<_>>().join(" ");
    // CAP_NET_ADMIN (12), CAP_PERFMON (38), CAP_BPF (39).
    let expected = "flow-agent flow-agent CapEff: 000000c000001000 CapBnd: 000000c000001000";
    ensure!(process == expected, "{process}");
    let socket = machine.run(&format!("stat -c '%a %U:%G' {SOCKET}"))?;
    ensure!(socket == "660 flow-agent:flow-agent", "{socket}");
    let files = has_what_is_declared(machine)?;
    Ok(format!(
        "`{command}`: {enabled}, {active}; {process}; socket {socket}; {files} files"
    ))
}

/// Fails if the package lacks a declared file of `agent/Cargo.toml`, or has an undeclared or an empty file. Returns the
/// number of files.
fn has_what_is_declared(machine: &Machine) -> Result<usize> {
    let lines = |line: &str| -> Result<BTreeSet<String>> {
        Ok(machine.run(line)?.lines().map(str::to_owned).collect())
    };
    let of_files = |test: &str| {
        format!(
            "dpkg-query --listfiles flow-agent | while read -r file; do {test} || echo \"$file\"; done"
        )
    };
    let packaged = lines(&of_files("[ -d \"$file\" ]"))?;
    let mut declared = lines("cat /tmp/declared")?;
    declared.extend(ADDED.map(str::to_owned));
    let lacking: Vec<_> = declared.difference(&packaged).collect();
    ensure!(lacking.is_empty(), "the package lacks {lacking:?}");
    let others: Vec<_> = packaged.difference(&declared).collect();
    ensure!(others.is_empty(), "nothing declares {others:?}");
    let empty = lines(&of_files("[ -s \"$file\" ]"))?;
    ensure!(empty.is_empty(), "nothing is in {empty:?}");
    Ok(packaged.len())
}

/// The README promises that one command installs the package.
fn the_readmes_command() -> Result<&'static str> {
    let readme = include_str!("../../../../README.md");
    let commands = commands(readme, "## Install as a service")?;
    let [command] = commands[..] else {
        bail!("the README does not install by one command: {commands:?}");
    };
    Ok(command)
}

/// The number of packets sent at the end of an upgrade, which a filter rule excludes.
const MARKS: usize = 10;

pub(super) fn upgrades(service: &mut Service) -> Result<String> {
    let before = service.running()?;
    let status = service.status().context("the agent does not answer")?;
    let seen_before = packets_of(&status, "seen");
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let after = thread::scope(|scope| {
        let traffic = scope.spawn(|| -> Result<()> {
            while !stop.load(Relaxed) {
                service.send(53, 10)?;
                sent.fetch_add(10, Relaxed);
            }
            Ok(())
        });
        let wait_for_more = || {
            let before = sent.load(Relaxed);
            wait_for("packets pass", || {
                Ok((sent.load(Relaxed) > before + 1000).then_some(()))
            })
        };
        let outcome = (|| -> Result<_> {
            wait_for_more()?;
            let install = "apt-get install --yes --quiet /tmp/next/*.deb";
            service.machine.run(install)?;
            let after = service.wait_for_another(before)?;
            wait_for_more()?;
            Ok(after)
        })();
        stop.store(true, Relaxed);
        traffic.join().expect("the sender does not panic")?;
        outcome
    })?;
    let version = service
        .machine
        .run("dpkg-query --show --showformat '${Version}' flow-agent")?;
    ensure!(version.ends_with("+next"), "{version}");
    let log = service.machine.run(&format!(
        "journalctl --sync; journalctl --no-pager --output cat --unit {UNIT} _PID={before} | grep -F 'final account'"
    ))?;
    ensure!(log.contains(" missing=0"), "{log}");
    let of_log = log.split(" seen=").nth(1).and_then(|rest| {
        let number = rest.split_whitespace().next()?;
        number.parse::<u64>().ok()
    });
    let first = of_log.context("the final account has no number of packets")? - seen_before;
    // Once these are counted, all earlier ones are too.
    service.send(9, MARKS)?;
    let second = wait_for("the last packets are counted", || {
        let Some(status) = service.status() else {
            return Ok(None);
        };
        let is_last = packets_of(&status, "filtered") == MARKS as u64;
        Ok(is_last.then(|| packets_of(&status, "seen") - MARKS as u64))
    })?;
    let total = sent.into_inner();
    let told =
        format!("of {total} packets {first} are counted by the first and {second} by the second");
    ensure!(first > 0 && first + second == total, "{told}");
    let rules = service.machine.run(&format!("cat {RULES}"))?;
    ensure!(rules == "exclude dst port 9", "{rules}");
    Ok(format!("{version}, process {after} after {before}; {told}"))
}

pub(super) fn removes(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    machine.run("apt-get remove --yes --quiet flow-agent")?;
    let state = service.show("ActiveState");
    ensure!(state == "inactive", "{state}");
    for gone in [
        "/usr/bin/flow-agent",
        SOCKET,
        "/lib/systemd/system/flow-agent.service",
    ] {
        ensure!(
            machine.run(&format!("test ! -e {gone}")).is_ok(),
            "{gone} is there"
        );
    }
    machine.run(&format!("test -e {SETTINGS}"))?;
    ensure!(
        machine.output("pgrep flow-agent").is_empty(),
        "a process is left"
    );
    let attached = service.attached()?;
    ensure!(attached == [0, 0], "{attached:?} programs are attached");
    Ok(format!(
        "{state}; no program at the interface; no binary, unit, socket or process; the settings stay"
    ))
}

pub(super) fn purges(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    // The administrator's own file, which the package must not remove.
    machine.run(&format!("rm {RULES}"))?;
    let flows = files::kept(service)?;
    machine.run("apt-get purge --yes --quiet flow-agent && systemctl daemon-reload")?;
    let kept = files::kept(service)?;
    ensure!(kept == flows, "{kept} after {flows}");
    let after = machine.output(LIST_FILES);
    let before: Vec<_> = service.files_before.lines().collect();
    let left: Vec<_> = after
        .lines()
        .filter(|file| !before.contains(file))
        .collect();
    ensure!(left.is_empty(), "these files are left: {left:?}");
    let unit = service.show("LoadState");
    ensure!(unit == "not-found", "{unit}");
    let user = machine.run("getent passwd flow-agent")?;
    Ok(format!(
        "no file is left of {} but flows ({kept}); the user is: {user}",
        before.len()
    ))
}
