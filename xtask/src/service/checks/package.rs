//! The life of the package: installed, upgraded under traffic, removed, purged.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use anyhow::{Result, ensure};

use super::{LIST_FILES, RULES, SETTINGS, SOCKET, Service, UNIT, packets_of, wait_for};

pub(super) fn installs(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let [current, _] = &service.packages;
    machine.run(&format!("apt-get install --yes --quiet {current}"))?;
    let enabled = machine.run(&format!("systemctl is-enabled {UNIT}"))?;
    let active = machine.run(&format!("systemctl is-active {UNIT}"))?;
    let pid = service.show("MainPID");
    let process = machine.run(&format!(
        "ps -o user:12=,group:12= -p {pid} && grep -E 'Cap(Eff|Bnd)' /proc/{pid}/status"
    ))?;
    let process = process.split_whitespace().collect::<Vec<_>>().join(" ");
    // CAP_NET_ADMIN (12), CAP_PERFMON (38), CAP_BPF (39).
    let expected = "flow-agent flow-agent CapEff: 000000c000001000 CapBnd: 000000c000001000";
    ensure!(process == expected, "{process}");
    let socket = machine.run(&format!("stat -c '%a %U:%G' {SOCKET}"))?;
    ensure!(socket == "660 flow-agent:flow-agent", "{socket}");
    for page in [
        "/usr/share/man/man1/flow-agent-run.1.gz",
        "/usr/share/bash-completion/completions/flow-agent",
    ] {
        machine.run(&format!("test -s {page}"))?;
    }
    Ok(format!("{enabled}, {active}; {process}; socket {socket}"))
}

pub(super) fn upgrades(service: &mut Service) -> Result<String> {
    let [_, next] = &service.packages;
    let before = service.show("MainPID");
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let (after, seen) = thread::scope(|scope| {
        let traffic = scope.spawn(|| -> Result<()> {
            while !stop.load(Relaxed) {
                service.send(53, 10)?;
                sent.fetch_add(10, Relaxed);
            }
            Ok(())
        });
        let outcome = (|| -> Result<_> {
            let install = format!("apt-get install --yes --quiet {next}");
            service.machine.run(&install)?;
            let after = service.wait_for_another(&before)?;
            let seen = wait_for("it counts", || {
                let seen = service
                    .status()
                    .map_or(0, |status| packets_of(&status, "seen"));
                Ok((seen > 0).then_some(seen))
            })?;
            Ok((after, seen))
        })();
        stop.store(true, Relaxed);
        traffic.join().expect("the sender does not panic")?;
        outcome
    })?;
    let version = service
        .machine
        .run("dpkg-query --show --showformat '${Version}' flow-agent")?;
    ensure!(version.ends_with("+next"), "{version}");
    // What the first process saw until its end, and the second since its start.
    let log = service.machine.run(&format!(
        "journalctl --no-pager --output cat --unit {UNIT} _PID={before} | grep -F 'final account'"
    ))?;
    ensure!(log.contains(" missing=0"), "{log}");
    let rules = service.machine.run(&format!("cat {RULES}"))?;
    ensure!(rules == "exclude dst port 9", "{rules}");
    let total = sent.load(Relaxed);
    Ok(format!(
        "{version}, process {after} after {before}; of {total} packets: {}, then {seen} and counting",
        log.rsplit("final account ").next().unwrap_or_default()
    ))
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
    // The administrator's own file, which no package may remove.
    machine.run(&format!("rm {RULES}"))?;
    machine.run("apt-get purge --yes --quiet flow-agent && systemctl daemon-reload")?;
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
        "no file is left of {}; the user is: {user}",
        before.len()
    ))
}
