//! File outputs, set up with the documented commands and the packaged example drop-in.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{SETTINGS, Service, UNIT, commands, settings, wait_for};

const OUTPUTS_PAGE: &str = include_str!("../../../../docs/outputs.md");
const DROP_INS: &str = "/etc/systemd/system/flow-agent.service.d";
const FOLDER: &str = "/var/log/flow-agent";
const FILE: &str = "/var/log/flow-agent/flows.jsonl";

const PORT: u16 = 5300;
const PACKETS: u64 = 10;

pub(super) fn writes_for_its_group(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    machine.write(
        SETTINGS,
        settings("200ms") + &format!("output = [\"jsonl={FILE}\"]\n"),
    )?;
    let restart = format!("systemctl restart {UNIT}");
    ensure!(
        machine.run(&restart).is_err(),
        "it starts without the drop-in"
    );
    let refused = service
        .said(&format!("write to {FILE}"))
        .context("the file is not named")?;

    let documented = commands(OUTPUTS_PAGE, "## Where the service may write")?.join(" && ");
    machine.run(&documented)?;
    let sandbox = ["ProtectSystem", "ProtectHome", "PrivateTmp", "User"].map(|of| service.show(of));
    ensure!(
        sandbox == ["strict", "yes", "yes", "flow-agent"],
        "{sandbox:?}"
    );
    machine.run("useradd --groups flow-agent member && useradd stranger")?;
    let sent = usize::try_from(PACKETS).context("a few")?;
    service.send(PORT, sent)?;
    let mut found = 0;
    wait_for("a member of the group reads them", || {
        let text = machine.output(&format!("runuser -u member -- cat {FILE}"));
        found = packets(&text)?;
        Ok((found >= PACKETS).then_some(()))
    })?;
    ensure!(found == PACKETS, "{found} of {PACKETS} packets");
    let rights = |files: &str| machine.run(&format!("stat -c '%a %U:%G' {files} | sort -u"));
    let folder = rights(FOLDER)?;
    ensure!(folder == "750 flow-agent:flow-agent", "{folder}");
    let open = rights(FILE)?;
    ensure!(open == "640 flow-agent:flow-agent", "{open}");
    let strangers = machine.run(&format!("runuser -u stranger -- cat {FILE}"));
    ensure!(strangers.is_err(), "a stranger reads {FILE}");

    // Stopping the service completes the file.
    machine.write(SETTINGS, settings("200ms"))?;
    machine.run(&format!("systemctl stop {UNIT}"))?;
    let complete = rights(&format!("{FOLDER}/flows-*.jsonl.zst"))?;
    ensure!(complete == open, "{complete}");
    machine.run("userdel member && userdel stranger")?;
    machine.run(&format!(
        "rm -r {DROP_INS} && systemctl daemon-reload && systemctl start {UNIT}"
    ))?;
    service.counts_from_zero()?;
    Ok(format!(
        "without the drop-in \"{refused}\"; with it a member of the group reads {found} of {PACKETS} packets ({open} in {folder})"
    ))
}

/// The names and sizes of the output files.
pub(super) fn kept(service: &Service) -> Result<String> {
    service
        .machine
        .run(&format!("cd {FOLDER} && stat -c '%n %s' *"))
}

/// Packets to the test's port. The last line may be incomplete.
fn packets(text: &str) -> Result<u64> {
    let whole = text.lines().filter(|line| line.ends_with('}'));
    let flows = whole.filter(|line| line.contains("\"type\":\"flow\""));
    let mut packets = 0;
    for flow in flows {
        let flow: Value = serde_json::from_str(flow).with_context(|| format!("read {flow}"))?;
        if flow["dst_port"] == PORT {
            packets += flow["packets"]
                .as_u64()
                .context("no packets are in a flow")?;
        }
    }
    Ok(packets)
}
