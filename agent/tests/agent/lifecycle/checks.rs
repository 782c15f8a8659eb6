//! `flow-agent check` predicts what the agent finds, and leaves nothing attached.

use std::{process::Stdio, thread, time::Duration};

use lab::{Lab, Process, kernel, privilege::is_root_or_skip};
use serde_json::Value;

use crate::support::{
    Agent, BINARY, NATIVE_XDP,
    attached::{nothing_is_attached, xdp_id, xdp_named},
    flow_agent, patience, wait_until,
};

fn checks(lab: &Lab, arguments: &[&str]) -> Vec<Value> {
    let mut command = flow_agent(&lab.agent);
    command.args(["check", "--output", "json"]).args(arguments);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    // A person waiting for the verifier gets a notice on stderr. A program that reads stdout does not.
    let notice = String::from_utf8(output.stderr).unwrap();
    assert!(notice.contains("which takes some seconds"), "{notice}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn find<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    let mut found = checks.iter().filter(|check| check["name"] == name);
    found
        .next()
        .unwrap_or_else(|| panic!("{name} in {checks:?}"))
}

#[test]
fn a_check_says_of_each_interface_what_a_start_then_does() {
    if !is_root_or_skip("agent::a_check_says_of_each_interface_what_a_start_then_does") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let here = &lab.agent.interface;
    let said = checks(&lab, &["--interface", here, "--interface", "lo"]);
    assert!(nothing_is_attached(&lab.agent));
    let types = ["check", "device"];
    assert!(
        said.iter()
            .all(|line| types.contains(&line["type"].as_str().unwrap()))
    );
    for name in [
        "kernel",
        "bpf",
        "programs",
        "decapsulation",
        "CAP_BPF",
        "CAP_NET_ADMIN",
        "tc",
    ] {
        assert_eq!(find(&said, name)["status"], "ok", "{name}");
    }
    let veth = find(&said, &format!("xdp {here}"));
    let detail = veth["detail"].as_str().unwrap();
    // veth tells XDP programs the tags that it keeps beside the frames.
    let tells_tags = kernel::is_at_least(6, 8);
    let (begin, status, mode) = if tells_tags {
        ("native, with the VLAN tags", "ok", "XdpNative")
    } else {
        ("tc: XDP may miss VLAN tags", "warn", "Tc")
    };
    assert!(detail.starts_with(begin), "{veth}");
    assert_eq!(veth["status"], status);
    let lo = find(&said, "xdp lo");
    assert_eq!(lo["status"], "warn");
    assert!(lo["detail"].as_str().unwrap().starts_with("tc: "));
    assert!(lo["remedy"].as_str().unwrap().contains("--ingress-hook tc"));

    let settings = "--interface lo --ingress-hook xdp --direction ingress";
    let agent = Agent::start(&lab, &settings.split(' ').collect::<Vec<_>>());
    let log = agent.stderr();
    for (interface, mode) in [(here.as_str(), mode), ("lo", "Tc")] {
        let line = log
            .lines()
            .filter(|line| line.contains(" mode="))
            .find(|line| line.contains(&format!("interface=\"{interface}\"")));
        assert!(line.unwrap().contains(mode), "{log}");
    }
    agent.stop();

    let agent = Agent::start(&lab, NATIVE_XDP);
    let said = checks(&lab, &["--interface", here]);
    let taken = find(&said, &format!("xdp {here}"));
    assert!(
        taken["detail"].as_str().unwrap().starts_with("taken"),
        "{taken}"
    );
    agent.stop();
}

#[test]
fn a_check_leaves_anothers_xdp_program_alone_and_fails_for_no_interface() {
    if !is_root_or_skip(
        "agent::a_check_leaves_anothers_xdp_program_alone_and_fails_for_no_interface",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    for (name, is_dispatcher) in [("xdp_dispatcher", true), ("their_firewall", false)] {
        let theirs = xdp_named(&lab.agent, name);
        let said = checks(&lab, &["--interface", &lab.agent.interface]);
        let taken = find(&said, &format!("xdp {}", lab.agent.interface));
        assert_eq!(taken["status"], "warn");
        let detail = taken["detail"].as_str().unwrap();
        let named = format!("taken: by the program '{name}' (id {}", xdp_id(&lab.agent));
        assert!(detail.starts_with(&named), "{detail}");
        let told = detail.contains("libxdp's dispatcher, which the agent does not join");
        assert_eq!(told, is_dispatcher, "{detail}");
        assert!(crate::support::attached::has_xdp(&lab.agent));
        drop(theirs);
        wait_until("it is gone", || {
            !crate::support::attached::has_xdp(&lab.agent)
        });
    }

    let mut command = flow_agent(&lab.agent);
    let failed = command
        .args(["check", "--interface", "nowhere7"])
        .output()
        .unwrap();
    assert_eq!(failed.status.code(), Some(1));
    let text = String::from_utf8(failed.stdout).unwrap();
    assert!(
        text.contains("nowhere7") && text.contains("1 thing is missing"),
        "{text}"
    );
}

/// The service starts in all of these and waits. By hand such a start ends with an error.
#[test]
fn what_a_service_waits_for_is_a_warning_and_too_many_interfaces_are_missing() {
    if !is_root_or_skip(
        "agent::what_a_service_waits_for_is_a_warning_and_too_many_interfaces_are_missing",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let here = &lab.agent.interface;
    let check = |variables: &[(&str, &str)]| {
        let mut command = flow_agent(&lab.agent);
        command.args(["check", "--output", "json"]);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        let log = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), lines, log)
    };
    let names = format!("{here},wg7");
    for (variables, fault, remedy) in [
        (
            &[][..],
            "no interface carries a default route",
            "a service waits for a default route, `flow-agent run` by hand ends",
        ),
        (
            &[("FLOW_AGENT_INTERFACE", names.as_str())],
            "there is no interface 'wg7'",
            "a service waits for wg7, `flow-agent run` by hand ends",
        ),
    ] {
        let (code, lines, log) = check(variables);
        assert_eq!(code, Some(0), "{lines:?}");
        let found = find(&lines, "interfaces");
        assert_eq!(
            (&found["status"], &found["remedy"]),
            (&"warn".into(), &remedy.into())
        );
        assert!(
            found["detail"].as_str().unwrap().starts_with(fault),
            "{found}"
        );
        assert!(!log.contains("WARN"), "{log}");
    }

    let pattern = format!("lo,{here}*");
    let too_many = [
        ("FLOW_AGENT_INTERFACE", pattern.as_str()),
        ("FLOW_AGENT_MAX_INTERFACES", "1"),
    ];
    let (code, lines, _) = check(&too_many);
    assert_eq!(code, Some(1), "{lines:?}");
    let found = find(&lines, "interfaces");
    let detail = found["detail"].as_str().unwrap();
    assert!(
        detail.contains("2 interfaces are selected, and --max-interfaces is 1"),
        "{detail}"
    );
    assert_eq!(found["status"], "missing");
}

#[test]
fn a_kernel_that_does_not_tell_its_layout_is_told_of_once() {
    if !is_root_or_skip("agent::a_kernel_that_does_not_tell_its_layout_is_told_of_once") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut command = lab.agent.command("unshare");
    command.args(["--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs none /sys/kernel/btf && exec \"$0\" \"$@\"");
    command.args([BINARY, "check", "--interface", &lab.agent.interface]);
    command.env("FLOW_AGENT_CONFIG", "/dev/null");
    let output = command.output().unwrap();
    let [text, log] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    let told = |text: &str| text.matches("count as inexact").count();
    assert_eq!((told(&text), told(&log)), (1, 0), "{text}\n{log}");
    assert!(output.status.success(), "{text}");
}

#[test]
fn a_check_that_is_killed_leaves_nothing() {
    if !is_root_or_skip("agent::a_check_that_is_killed_leaves_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // Kills it at several moments. Where it is then depends on the machine's speed.
    for delay_ms in [5, 20, 50, 100, 200, 400] {
        let mut command = flow_agent(&lab.agent);
        command.args(["check", "--interface", &lab.agent.interface]);
        let mut check = Process::spawn(command.stdout(Stdio::null())).unwrap();
        thread::sleep(Duration::from_millis(delay_ms));
        check.signal(libc::SIGKILL).unwrap();
        check.wait(patience()).unwrap();
        // The kernel frees the links of a process some time after its end.
        wait_until("nothing is attached", || nothing_is_attached(&lab.agent));
    }
}
