//! A collector under systemd beside the agent, set up with the documented commands and the packaged example unit.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{SETTINGS, Service, UNIT, commands, settings, wait_for};

const COLLECT_PAGE: &str = include_str!("../../../../docs/collect.md");
const COLLECTOR: &str = "flow-agent-collect.service";
const FOLDER: &str = "/var/lib/flow-agent-collect";
const PORT: u16 = 5302;
const PACKETS: u64 = 10;

pub(super) fn stores_for_agents(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let documented = commands(COLLECT_PAGE, "## Under systemd")?.join(" && ");
    machine.run(&documented)?;
    wait_for("the collector answers", || Ok(status(service)))?;
    let output = "[[output]]\nkind = \"collector\"\naddress = \"http://127.0.0.1:4500\"\n";
    machine.write(SETTINGS, settings("200ms") + output)?;
    machine.run(&format!("systemctl restart {UNIT}"))?;
    wait_for("the agent has called", || {
        Ok(status(service).filter(|status| status["streams"][0]["connected"] == true))
    })?;
    service.send(PORT, usize::try_from(PACKETS).context("a few")?)?;
    wait_for("the packets are stored", || {
        let stored =
            status(service).map(|status| status["stores"][0]["stored"]["packets"].as_u64());
        Ok((stored.flatten() >= Some(PACKETS)).then_some(()))
    })?;
    machine.run(&format!("systemctl stop {COLLECTOR}"))?;
    let result = machine.output(&format!(
        "systemctl show --value --property Result {COLLECTOR}"
    ));
    ensure!(result == "success", "the collector ended with {result}");
    let files = machine.run(&format!("ls {FOLDER} && stat -c '%a %U:%G' {FOLDER}"))?;
    ensure!(
        files.contains("flows-") && files.ends_with("750 flow-agent:flow-agent"),
        "{files}"
    );

    machine.write(SETTINGS, settings("200ms"))?;
    machine.run(&format!(
        "systemctl stop {UNIT} && rm -r {FOLDER} /etc/systemd/system/{COLLECTOR} && systemctl daemon-reload && \
         systemctl start {UNIT}"
    ))?;
    service.counts_from_zero()?;
    Ok(format!(
        "{PACKETS} packets are in a file of the flow-agent group"
    ))
}

/// `None` if the collector does not answer.
fn status(service: &Service) -> Option<Value> {
    let asked = "flow-agent status --output json --connect 127.0.0.1:4500";
    serde_json::from_str(&service.machine.output(asked)).ok()
}
