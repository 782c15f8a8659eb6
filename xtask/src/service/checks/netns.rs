//! The service in another network namespace, set up with the documented commands and the packaged example drop-in.

use anyhow::{Context as _, Result, ensure};
use lab::{Lab, tcx_programs};

use super::{SERVICE_PAGE, SETTINGS, Service, UNIT, commands, settings};

const EXAMPLE: &str = "/usr/share/doc/flow-agent/examples/netns.conf";
const DROP_INS: &str = "/etc/systemd/system/flow-agent.service.d";

/// Does the same as `ip netns add`, since the machine has no `ip`.
const ADD: &str =
    "mkdir /run/netns && touch /run/netns/blue && mount --bind /proc/self/ns/net /run/netns/blue";
const REMOVE: &str = "umount /run/netns/blue && rm -r /run/netns";

pub(super) fn counts_elsewhere(service: &mut Service) -> Result<String> {
    let other = Lab::quiet()?;
    let namespace = &other.agent.namespace;
    let route = ["route", "add", "default", "dev", &other.agent.interface];
    namespace.ip(&route)?;
    let machine = &service.machine;
    let added = machine.command_in(namespace, ADD).status();
    ensure!(added.context("start nsenter")?.success(), "{ADD}");

    let with_netns = settings("200ms") + "netns = [\"self\", \"blue\"]\n";
    machine.write(SETTINGS, with_netns)?;
    let restart = format!("systemctl daemon-reload && systemctl restart {UNIT}");
    ensure!(
        machine.run(&restart).is_err(),
        "it starts without the drop-in"
    );
    let said = service
        .said("CAP_SYS_ADMIN")
        .context("CAP_SYS_ADMIN is not named")?;
    ensure!(said.contains("blue") && said.contains(EXAMPLE), "{said}");

    let documented = commands(SERVICE_PAGE, "## Other network namespaces")?.join(" && ");
    machine.run(&documented)?;
    let pid = service.running()?;
    let rights = machine.run(&format!(
        "ps -o user= -p {pid} && grep CapEff /proc/{pid}/status"
    ))?;
    let rights = rights.split_whitespace().collect::<Vec<_>>().join(" ");
    // CAP_NET_ADMIN (12), CAP_SYS_ADMIN (21), CAP_PERFMON (38), CAP_BPF (39).
    ensure!(rights == "flow-agent CapEff: 000000c000201000", "{rights}");
    let frame = other.peer.frame_v4(&other.agent).udp(1, 2, &[0; 18])?;
    let frames = std::iter::repeat_n(&frame, 7);
    other.peer.frame_socket()?.send_many(frames)?;
    service.send(53, 10)?;
    service.wait_for_packets("seen", 17)?;
    let text = machine.output("flow-agent status");
    let listed = format!("network namespace blue ({})", namespace.inode()?);
    ensure!(text.contains(&listed), "{listed}: {text}");
    let attached = || tcx_programs(namespace, other.agent.ifindex);
    ensure!(
        attached()? == [1, 1],
        "{:?} programs are attached",
        attached()?
    );

    machine.write(SETTINGS, settings("200ms"))?;
    machine.run(&format!("rm -r {DROP_INS} && {restart}"))?;
    machine.run(REMOVE)?;
    ensure!(attached()? == [0, 0], "{:?} programs stay", attached()?);
    service.counts_from_zero()?;
    Ok(format!(
        "without the drop-in \"{said}\"; with it {rights}, and 10 + 7 of 17 packets"
    ))
}
