//! The service with socket activation by systemd, set up with the documented commands.

use anyhow::{Result, ensure};

use super::{SERVICE_PAGE, SOCKET, Service, UNIT, commands, wait_for};

const SYSTEM: &str = "/etc/systemd/system";

pub(super) fn waits_behind_a_socket(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let documented = commands(SERVICE_PAGE, "## Socket activation")?.join(" && ");
    machine.run(&documented)?;
    service.counts_from_zero()?;
    machine.run(&format!("systemctl stop {UNIT}"))?;
    let socket = || machine.run(&format!("stat -c '%a %U:%G %i' {SOCKET}"));
    let opened = socket()?;
    ensure!(opened.starts_with("660 flow-agent:flow-agent "), "{opened}");
    let state = service.show("ActiveState");
    ensure!(state == "inactive", "{state}");
    // Connecting starts the service, which answers the request.
    wait_for("the request is answered", || {
        let said = machine.output("flow-agent status --output json 2>&1");
        if said.contains("did not answer within") {
            return Ok(None);
        }
        ensure!(said.contains("\"instance_id\""), "{said}");
        Ok(Some(()))
    })?;
    let before = service.wait_for_another(0)?;
    service.counts_from_zero()?;
    machine.run(&format!("systemctl restart {UNIT}"))?;
    let after = service.wait_for_another(before)?;
    service.counts_from_zero()?;
    machine.run(&format!("systemctl stop {UNIT}"))?;
    let stayed = socket()?;
    ensure!(stayed == opened, "{stayed} after {opened}");

    machine.run(&format!(
        "systemctl disable --now flow-agent.socket && rm -r {SYSTEM}/flow-agent.socket {SYSTEM}/{UNIT}.d && \
         systemctl daemon-reload && systemctl start {UNIT}"
    ))?;
    service.counts_from_zero()?;
    Ok(format!(
        "stopped, it was started by a request; process {after} after {before} at the same socket ({opened})"
    ))
}
