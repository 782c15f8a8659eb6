//! An output with a spool on disk, across a restart of the service. Set up with the documented commands and the
//! packaged example drop-in.

use anyhow::{Context as _, Result, ensure};

use super::{SETTINGS, Service, UNIT, commands, settings, wait_for};

const COLLECTOR_PAGE: &str = include_str!("../../../../docs/collector.md");
const DROP_INS: &str = "/etc/systemd/system/flow-agent.service.d";
const FOLDER: &str = "/var/lib/flow-agent";
const PORT: u16 = 5301;
const PACKETS: u64 = 10;

pub(super) fn keeps_what_no_collector_took(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let output = format!(
        "[[output]]\nkind = \"collector\"\naddress = \"http://127.0.0.1:1\"\nspool = \"{FOLDER}/spool\"\n"
    );
    machine.write(SETTINGS, settings("200ms") + &output)?;
    machine.run(&format!("systemctl restart {UNIT}"))?;
    let refused = wait_for("the output says that it cannot write", || {
        let error = spool(service, "error").and_then(|error| error.as_str().map(str::to_owned));
        Ok(error.filter(|error| !error.is_empty()))
    })?;

    let documented = commands(COLLECTOR_PAGE, "### Under the service")?.join(" && ");
    machine.run(&documented)?;
    wait_for("the spool is in use", || Ok(spool(service, "bytes")))?;
    service.send(PORT, usize::try_from(PACKETS).context("a few")?)?;
    wait_for("the packets wait", || {
        Ok((queued(service).unwrap_or(0) >= PACKETS).then_some(()))
    })?;
    for end in ["systemctl restart", "systemctl kill --signal SIGKILL"] {
        let starts = service.show("ExecMainPID");
        machine.run(&format!("{end} {UNIT}"))?;
        wait_for("what waited waits", || {
            let is_another = service.show("ExecMainPID") != starts;
            Ok((is_another && queued(service).unwrap_or(0) >= PACKETS).then_some(()))
        })?;
    }
    let rights = machine.run(&format!("stat -c '%a %U:%G' {FOLDER}"))?;
    ensure!(rights == "700 flow-agent:flow-agent", "{rights}");

    machine.write(SETTINGS, settings("200ms"))?;
    machine.run(&format!(
        "systemctl stop {UNIT} && rm -r {DROP_INS} {FOLDER} && systemctl daemon-reload && systemctl start {UNIT}"
    ))?;
    service.counts_from_zero()?;
    Ok(format!(
        "without the drop-in: {refused}; with it {PACKETS} packets wait through a stop and a kill"
    ))
}

/// The spool's state in the agent's status, once the output has a spool.
fn spool(service: &Service, of: &str) -> Option<serde_json::Value> {
    let status = service.status()?;
    status["outputs"].get(0)?["spool"].get(of).cloned()
}

fn queued(service: &Service) -> Result<u64> {
    let status = service.status().context("the agent answers")?;
    status["outputs"][0]["queued"]["packets"]
        .as_u64()
        .context("the output says how many packets wait")
}
