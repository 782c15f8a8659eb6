//! Killed and restarted under traffic, by a real service manager with its store of descriptors: the records of all
//! processes together have each packet of the interface once.

use std::{
    collections::BTreeMap,
    env, fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{SETTINGS, Service, UNIT, commands, settings, wait_for};

const COLLECTOR_PAGE: &str = include_str!("../../../../docs/collector.md");
const DROP_INS: &str = "/etc/systemd/system/flow-agent.service.d";
const SPOOL: &str = "/var/lib/flow-agent";
const COLLECTOR: &str = "carry-collect.service";
const ADDRESS: &str = "127.0.0.1:4501";
const STORED: &str = "/var/lib/carry-collect";

/// The port of the traffic, which nothing else uses.
const PORT: u16 = 5303;
/// Packets per call.
const PACKETS: u64 = 10;
const PACE: Duration = Duration::from_millis(1);

/// To test an upgrade, this names the binary of another version, which runs until the first end.
const EARLIER: &str = "CARRY_OVER_FROM";
const UPGRADE: &str = "mv /tmp/flow-agent /usr/bin/ && systemctl restart";

/// The ways to end the process; another one follows.
const ENDS: [&str; 5] = [
    "systemctl kill --signal SIGKILL",
    "systemctl restart",
    "systemctl try-restart",
    "systemctl kill --kill-who main --signal SIGABRT",
    "deb-systemd-invoke restart",
];

pub(super) fn loses_nothing(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let stored =
        format!(r#"{{"kind":"jsonl","address":"{STORED}/flows.jsonl","compression":"none"}}"#);
    machine.run(&format!(
        "mkdir {STORED} && systemd-run --unit {COLLECTOR} flow-agent collect --listen {ADDRESS} --output '{stored}'"
    ))?;
    wait_for("the collector answers", || {
        let asked = format!("flow-agent status --output json --connect {ADDRESS}");
        Ok(serde_json::from_str::<Value>(&machine.output(&asked)).ok())
    })?;
    let output = format!(
        "[[output]]\nkind = \"collector\"\naddress = \"http://{ADDRESS}\"\nspool = \"{SPOOL}/spool\"\n"
    );
    machine.write(SETTINGS, settings("200ms") + &output)?;
    machine.run(&commands(COLLECTOR_PAGE, "### Under the service")?.join(" && "))?;

    let mut ends = ENDS.to_vec();
    if let Some(earlier) = env::var_os(EARLIER) {
        machine.run("mv /usr/bin/flow-agent /tmp/")?;
        let earlier = fs::read(earlier).context("read the binary of another version")?;
        machine.write("/usr/bin/flow-agent", earlier)?;
        machine.run(&format!(
            "chmod 755 /usr/bin/flow-agent && systemctl restart {UNIT}"
        ))?;
        ends.insert(0, UPGRADE);
    }
    let counted = || -> Result<u64> { Ok(service.lab.agent.counters()?.rx_packets) };
    let before = counted()?;
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let traffic = scope.spawn(|| -> Result<()> {
            while !stop.load(Relaxed) {
                service.send(PORT, usize::try_from(PACKETS).context("a few")?)?;
                sent.fetch_add(PACKETS, Relaxed);
                thread::sleep(PACE);
            }
            Ok(())
        });
        let outcome = ends
            .iter()
            .try_for_each(|end| end_under_traffic(service, end, &sent));
        stop.store(true, Relaxed);
        traffic.join().expect("the sender does not panic")?;
        outcome
    })?;
    let passed = counted()? - before;
    let sent = sent.into_inner();
    ensure!(passed == sent, "{passed} of {sent} packets passed");
    let mut found = 0;
    let waited = wait_for("all packets are in records", || {
        let text = machine.output(&format!("cat {STORED}/*.jsonl"));
        found = packets(&text)?;
        ensure!(found <= sent, "{found} packets are in records of {sent}");
        Ok((found == sent).then_some(()))
    });
    waited.with_context(|| format!("{found} of {sent} packets are in records"))?;

    machine.write(SETTINGS, settings("200ms"))?;
    machine.run(&format!(
        "systemctl stop {UNIT} {COLLECTOR} && rm -r {DROP_INS} {SPOOL} {STORED} && systemctl daemon-reload && \
         systemctl start {UNIT}"
    ))?;
    service.counts_from_zero()?;
    Ok(format!(
        "{sent} of {sent} packets are in records, through {} ends",
        ends.len()
    ))
}

/// Returns once another process counts and some more packets were sent.
fn end_under_traffic(service: &Service, end: &str, sent: &AtomicU64) -> Result<()> {
    let more = || {
        let before = sent.load(Relaxed);
        wait_for("packets are sent", || {
            Ok((sent.load(Relaxed) >= before + 100 * PACKETS).then_some(()))
        })
    };
    more()?;
    let before = service.running()?;
    // Five starts in ten seconds would be too many (`StartLimitBurst=`).
    let reset = format!("systemctl reset-failed {UNIT}");
    service.machine.run(&reset)?;
    service.machine.run(&format!("{end} {UNIT}"))?;
    service.wait_for_another(before).context(end.to_owned())?;
    more()
}

/// If the service manager does not answer, the agent assumes a stop.
pub(super) fn stops_without_an_answer(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    let before = service.running()?;
    machine.run("systemctl stop dbus.socket dbus.service")?;
    let restarted = machine.run(&format!("systemctl restart {UNIT}"));
    machine.run("systemctl start dbus.socket")?;
    restarted?;
    let after = service.wait_for_another(before)?;
    service.counts_from_zero()?;
    let said = service.said("whether it restarts the service");
    let said = said.context("the log does not say that systemd did not answer")?;
    Ok(format!("\"{said}\"; process {after} after {before} counts"))
}

/// The packets of the traffic in the records, each record once.
fn packets(text: &str) -> Result<u64> {
    // The last line may be incomplete.
    let whole = text.lines().filter(|line| line.ends_with('}'));
    let flows = whole.filter(|line| line.contains("\"type\":\"flow\""));
    let mut records = BTreeMap::new();
    for flow in flows {
        let flow: Value = serde_json::from_str(flow).with_context(|| format!("read {flow}"))?;
        if flow["dst_port"] == PORT {
            let number = |name: &str| {
                let number = flow[name].as_u64();
                number.with_context(|| format!("{flow} has no {name}"))
            };
            let instance = flow["instance_id"].as_str().context("of an instance")?;
            let place = [number("scan_id")?, number("batch")?, number("record")?];
            records.insert((instance.to_owned(), place), number("packets")?);
        }
    }
    Ok(records.into_values().sum())
}
