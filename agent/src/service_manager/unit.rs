//! Asks systemd about the unit that this process runs in.

use std::{env, fs, os::unix::process::ExitStatusExt as _, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use enrich::unit::cgroups::unit_of;
use tokio::{
    process::Command,
    task::spawn_blocking,
    time::{error::Elapsed, sleep, timeout},
};

use crate::commands::keep;

/// How long to wait for systemd's answer. Without one, an agent that stops detaches its programs, so a busy machine gets
/// time for it.
const PATIENCE: Duration = Duration::from_secs(10);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Whether systemd is restarting the unit of this process: after `systemctl restart` or `try-restart`, as in a package
/// upgrade, but not after `systemctl stop`, at a shutdown, or if the signal came from anybody else.
///
/// False without an answer, too. The user of the service may ask over D-Bus only, which minimal systems lack. Where
/// `flow-agent keep` has started this process, the answer is its own.
pub async fn is_restarting() -> bool {
    match spawn_blocking(keep::ask_for_restart).await {
        Ok(None) | Err(_) => {}
        Ok(Some(answer)) => {
            return answer.unwrap_or_else(|error| {
                let error = format!("{error:#}");
                tracing::info!(
                    error,
                    "the keeper does not say whether it starts the agent again"
                );
                false
            });
        }
    }
    let Some(unit) = own_unit() else {
        return false;
    };
    match answer(&["list-jobs", "--plain", "--full", "--", &unit]).await {
        Ok(jobs) => has_restart(&jobs, &unit),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::info!(
                unit,
                error,
                "systemd does not say whether it restarts the service"
            );
            false
        }
    }
}

/// How many descriptors systemd stores for the unit of this process (`FileDescriptorStoreMax=`). From version 254 on, it says
/// so unasked. `None` if it does not.
pub async fn most_stored() -> Option<usize> {
    if let Some(most) = env::var_os("FDSTORE") {
        return most.to_str()?.parse().ok();
    }
    let unit = own_unit()?;
    let property = "--property=FileDescriptorStoreMax";
    match answer(&["show", property, "--value", "--", &unit]).await {
        Ok(most) => most.trim().parse().ok(),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::debug!(
                unit,
                error,
                "systemd does not say how many descriptors it stores"
            );
            None
        }
    }
}

/// The service that this process runs in. `None` outside systemd, and under a user's own manager.
fn own_unit() -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    service_of(&groups).map(str::to_owned)
}

/// `groups` is the content of `/proc/PID/cgroup`. systemd names the groups of the unified hierarchy, and on machines
/// without it those of a hierarchy of its own.
fn service_of(groups: &str) -> Option<&str> {
    let in_hierarchy = |named: &str| {
        let mut lines = groups.lines();
        let path = lines.find_map(|line| line.split_once(':')?.1.strip_prefix(named))?;
        let unit = unit_of(path);
        (unit.ends_with(".service") && !unit.starts_with("user@")).then_some(unit)
    };
    in_hierarchy(":").or_else(|| in_hierarchy("name=systemd:"))
}

/// What `systemctl` prints.
async fn answer(question: &[&str]) -> Result<String> {
    let answer: Result<_, Elapsed> = timeout(PATIENCE, ask(question)).await;
    answer.with_context(|| format!("no answer within {PATIENCE:?}"))?
}

async fn ask(question: &[&str]) -> Result<String> {
    loop {
        let output = Command::new("systemctl")
            .args(["--system", "--no-pager", "--no-legend"])
            .args(question)
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = output.await.context("run systemctl")?;
        // systemd sends SIGTERM to all processes of a unit that it stops until there is no other one
        // (`cg_kill_recursive`). One in four that start that early gets it, too.
        if output.status.signal() == Some(libc::SIGTERM) {
            sleep(BETWEEN_TRIES).await;
            continue;
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "systemctl {}: {}: {}",
            question[0],
            output.status,
            stderr.trim()
        );
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
}

/// A line has number, unit, type and state. systemd makes a `try-restart` of a running unit a `restart`, too.
fn has_restart(jobs: &str, unit: &str) -> bool {
    jobs.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        matches!(words[..], [_, of, "restart", _] if of == unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_that_of_the_control_group() {
        for (groups, unit) in [
            (
                "0::/system.slice/flow-agent.service\n",
                Some("flow-agent.service"),
            ),
            (
                "0::/system.slice/flow-agent.service/below\n",
                Some("flow-agent.service"),
            ),
            (
                "0::/system.slice/system-agent.slice/agent@one.service\n",
                Some("agent@one.service"),
            ),
            (
                "2:cpu:/system.slice/other.service\n1:name=systemd:/system.slice/flow-agent.service\n0::/\n",
                Some("flow-agent.service"),
            ),
            ("0::/user.slice/user-1000.slice/session-2.scope\n", None),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/app.slice/flow-agent.service\n",
                None,
            ),
            ("0::/\n", None),
            ("", None),
        ] {
            assert_eq!(service_of(groups), unit, "{groups}");
        }
    }

    #[test]
    fn only_a_restart_of_the_unit_is_one() {
        let unit = "flow-agent.service";
        for (jobs, expected) in [
            ("1374 flow-agent.service restart running\n", true),
            (
                "1373 web.service stop running\n1374 flow-agent.service restart waiting\n",
                true,
            ),
            ("1374 flow-agent.service stop running\n", false),
            ("1374 flow-agent.service start waiting\n", false),
            ("1374 flow-agent-collect.service restart running\n", false),
            ("No jobs running.\n", false),
            ("", false),
        ] {
            assert_eq!(has_restart(jobs, unit), expected, "{jobs}");
        }
    }
}
