//! A failed start reports what was tried and what to do, exits with an error, and leaves nothing behind.

use std::{
    fs,
    net::TcpListener,
    os::unix::net::UnixListener,
    process::{Command, Output},
};

use lab::{Host, Lab, Tun, privilege::is_root_or_skip, privilege::skip};
use tempfile::TempDir;

use super::{CLSACT, TCX};
use crate::support::{
    Agent,
    attached::{
        add_filter, filters, nothing_is_attached, nothing_is_attached_anywhere, qdiscs, tc, xdp,
    },
    everybodys::everybodys_binary,
    flow_agent,
};

/// The error at the end of stderr, without the log lines before it.
pub(super) fn refusal(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(!status.success() && status.code().is_some(), "{stderr}");
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|line| line.starts_with("flow-agent: ") || line.starts_with("error: "))
        .collect();
    let [error] = errors[..] else {
        panic!("one line of error in: {stderr}")
    };
    error.to_owned()
}

fn refused(host: &Host, arguments: &str) -> String {
    let arguments = arguments.split(' ').filter(|one| !one.is_empty());
    let mut command = flow_agent(host);
    command.arg("run").args(["--max-flows", "1000"]);
    let error = refusal(command.args(arguments));
    assert!(nothing_is_attached_anywhere(host), "{error}");
    error
}

pub(super) fn assert_says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn settings_that_make_no_sense_are_named_with_what_is_allowed() {
    if !is_root_or_skip("agent::settings_that_make_no_sense_are_named_with_what_is_allowed") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let here = &lab.agent.interface;
    let says = |arguments: &str, parts: &[&str]| {
        assert_says(&refused(&lab.agent, arguments), parts);
    };
    let tcp = "--listen 127.0.0.1:0";
    says(
        &format!("--interface nowhere7 {tcp}"),
        &["'nowhere7'", here],
    );
    says("--interface [", &["'['", "glob", "--interface"]);
    says("--interface /[/", &["'/[/'", "regex", "--interface"]);
    says("", &["default route", "--interface", here]);
    let here = format!("--interface {here}");
    says(
        &format!("{here} --listen nonsense"),
        &["nonsense", "--listen", "127.0.0.1:50051"],
    );
    says(
        &format!("{here} --listen unix:/nowhere7/x.sock"),
        &["/nowhere7", "create it", "--listen"],
    );
    says(
        &format!("{here} --listen 192.0.2.1:50051 --insecure-listen"),
        &["192.0.2.1:50051", "--listen"],
    );
    says(
        &format!("{here} --scan-interval 0"),
        &["--scan-interval", "at least 10ms"],
    );
    says(
        &format!("--interface lo --direction egress {tcp}"),
        &["lo", "--direction"],
    );
    says("--duration -1s", &["'-1s'", "--duration", "such as 500ms"]);
    says(&format!("{here} {tcp} --xdp-mode native"), &["--xdp-mode"]);
    says(
        &format!("{here} --listen unix:/a --listen unix:/a"),
        &["twice"],
    );
    let variable = refusal(
        flow_agent(&lab.agent)
            .arg("run")
            .env("FLOW_AGENT_DURATION", "soon"),
    );
    assert_says(
        &variable,
        &["'soon'", "FLOW_AGENT_DURATION", "such as 500ms"],
    );
    assert!(!variable.contains("--duration"), "{variable}");
}

#[test]
fn an_address_in_use_is_refused_and_a_stale_socket_is_replaced() {
    if !is_root_or_skip("agent::an_address_in_use_is_refused_and_a_stale_socket_is_replaced") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let here = &lab.agent.interface;
    let bind = || Ok(TcpListener::bind("127.0.0.1:0")?);
    let taken = lab.agent.namespace.enter(bind).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = refused(
        &lab.agent,
        &format!("--interface {here} --listen {address}"),
    );
    assert_says(&error, &[&address, "in use", "--listen"]);

    let directory = TempDir::new().unwrap();
    let path = directory.path().join("stale.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let address = format!("unix:{}", path.display());
    let agent = Agent::start(&lab, &["--listen", &address]);
    let mut second = flow_agent(&lab.agent);
    second.args(["run", "--interface", here, "--listen", &address]);
    let error = refusal(&mut second);
    assert_says(&error, &["another agent", &address, "--listen"]);
    agent.stop();
    assert!(!path.exists());
    assert!(nothing_is_attached(&lab.agent));
}

/// A command that runs the binary as a user with only these capabilities.
pub(super) fn with_capabilities(host: &Host, capabilities: &str) -> Command {
    let mut command = host.command("prlimit");
    command
        // The kernel charges maps to the control group (5.11), so no limit of locked memory is in the way.
        .args(["--memlock=0:0", "setpriv"])
        .args("--reuid 65534 --regid 65534 --clear-groups".split(' '))
        .args(["--inh-caps", capabilities, "--ambient-caps", capabilities])
        .arg(everybodys_binary())
        .env("NO_COLOR", "1");
    command
}

fn unprivileged(host: &Host) -> Command {
    with_capabilities(host, "-all")
}

/// The service's capabilities are enough, and without one of them they are not.
#[test]
fn without_perfmon_or_net_admin_the_kernel_refuses_and_the_agent_says_why() {
    if !is_root_or_skip(
        "agent::without_perfmon_or_net_admin_the_kernel_refuses_and_the_agent_says_why",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let run = |capabilities: &str| {
        let mut command = with_capabilities(&lab.agent, capabilities);
        command.args(["run", "--interface", &lab.agent.interface]);
        command.args(["--listen", "127.0.0.1:0", "--duration", "300ms"]);
        command
    };
    let served = run("+bpf,+net_admin,+perfmon").status().unwrap();
    assert!(served.success());
    let error = refusal(&mut run("+bpf,+net_admin"));
    assert_says(&error, &["verifier", "tc_ingress", "CAP_PERFMON"]);
    assert!(error.len() < 500, "{error}");
    let error = refusal(&mut run("+bpf,+perfmon"));
    assert_says(&error, &["this process lacks CAP_NET_ADMIN: run as root"]);
    assert!(nothing_is_attached(&lab.agent));
}

#[test]
fn without_privilege_a_start_says_which_capabilities_it_needs() {
    if !is_root_or_skip("agent::without_privilege_a_start_says_which_capabilities_it_needs") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut command = unprivileged(&lab.agent);
    command.args(["run", "--interface", &lab.agent.interface]);
    let error = refusal(command.args(["--listen", "127.0.0.1:0"]));
    assert_says(
        &error,
        &["privilege", "root", "CAP_BPF", "flow-agent check"],
    );
    assert!(nothing_is_attached(&lab.agent));

    let mut command = unprivileged(&lab.agent);
    let checked = command.args(["check", "--interface", &lab.agent.interface]);
    let checked = checked.output().unwrap();
    assert_eq!(checked.status.code(), Some(1));
    let text = String::from_utf8(checked.stdout).unwrap();
    for name in ["bpf", "CAP_BPF", "CAP_NET_ADMIN"] {
        let mut lines = text.lines().map(str::split_whitespace);
        assert!(
            lines.any(|mut words| words.next() == Some("missing") && words.next() == Some(name)),
            "{name} is not missing in:\n{text}"
        );
    }
}

#[test]
fn another_xdp_program_is_left_there_and_named() {
    if !is_root_or_skip("agent::another_xdp_program_is_left_there_and_named") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let here = &lab.agent.interface;
    let theirs = xdp(&lab.agent);
    for mode in ["native", "generic"] {
        let mut command = flow_agent(&lab.agent);
        command.args(["run", "--interface", here, "--max-flows", "1000"]);
        command.args(["--ingress-hook", "xdp", "--xdp-mode", mode]);
        command.arg("--xdp-without-tags");
        let error = refusal(command.args(["--listen", "127.0.0.1:0"]));
        assert_says(&error, &[here, "another XDP program", "--ingress-hook tc"]);
        assert!(crate::support::attached::has_xdp(&lab.agent));
    }
    drop(theirs);
    assert!(nothing_is_attached(&lab.agent));
}

#[test]
fn native_xdp_without_a_driver_for_it_is_refused_and_auto_takes_tc() {
    if !is_root_or_skip("agent::native_xdp_without_a_driver_for_it_is_refused_and_auto_takes_tc") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let native = "--interface lo --listen 127.0.0.1:0 --ingress-hook xdp --xdp-mode native";
    let error = refused(&lab.agent, native);
    assert_says(&error, &["lo", "native", "--xdp-mode auto"]);

    let auto = "--interface lo --ingress-hook xdp --direction ingress";
    let agent = Agent::start(&lab, &auto.split(' ').collect::<Vec<_>>());
    let log = agent.stderr();
    assert!(log.contains("mode=Tcx"), "{log}");
    assert_says(&log, &["counting at TC", "interface=\"lo\""]);
    let hook = &agent.status(&lab.agent)["hooks"][0];
    assert_eq!(hook["hook"], "tc_ingress");
    assert_eq!(hook["instead_of_xdp"], "no_native_mode");
    agent.stop();
}

/// The socket is there before the programs are attached, which is done in the order of the interfaces' indices.
#[test]
fn a_start_that_fails_midway_leaves_no_socket_no_lock_and_no_program() {
    if !is_root_or_skip("agent::a_start_that_fails_midway_leaves_no_socket_no_lock_and_no_program")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let taken = || Ok(TcpListener::bind("127.0.0.1:0")?);
    let taken = lab.agent.namespace.enter(taken).unwrap();
    let port = taken.local_addr().unwrap();
    let folder = TempDir::new().unwrap();
    let socket = format!("--listen unix:{}/x", folder.path().display());
    let here = &lab.agent.interface;
    let bridge = ["link", "add", "last0", "type", "bridge"];
    lab.agent.namespace.ip(&bridge).unwrap();
    let in_use = format!("{socket} --interface {here} --listen {port}");
    // The bridge comes last, and has no XDP of its own. Filters do not end with the process.
    let native = format!(
        "{socket} --interface {here} --interface last0 --ingress-hook xdp --xdp-mode native \
         --xdp-without-tags {}",
        CLSACT.join(" ")
    );
    let has_clsact = || qdiscs(&lab.agent, here).contains("clsact");
    assert!(!has_clsact());
    for (arguments, told) in [(in_use, "in use"), (native, "attach XDP to last0")] {
        let error = refused(&lab.agent, &arguments);
        assert_says(&error, &[told]);
        let mut left = fs::read_dir(folder.path()).unwrap();
        assert!(left.next().is_none(), "{told}: something is left");
    }
    // The qdisc stays where a filter was.
    assert!(has_clsact(), "nothing was attached before the start failed");
}

#[test]
fn tcx_on_a_tun_device_counts_and_an_unreadable_link_type_is_refused() {
    if !is_root_or_skip("agent::tcx_on_a_tun_device_counts_and_an_unreadable_link_type_is_refused")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let tun = Tun::new(&lab.agent.namespace, "tun7").unwrap();
    let agent = Agent::start_on(&lab.agent, &tun.interface, TCX);
    agent.stop();
    // A tun device may take any link type while it is down (TUNSETLINK); 32 is InfiniBand.
    lab.agent
        .namespace
        .ip(&["link", "set", "tun7", "down"])
        .unwrap();
    tun.set_link_type(32).unwrap();
    let error = refused(&lab.agent, "--interface tun7 --listen 127.0.0.1:0");
    assert_says(&error, &["tun7", "ARPHRD 32", "name another"]);
}

#[test]
fn an_ingress_qdisc_of_others_takes_no_egress_filter() {
    if !is_root_or_skip("agent::an_ingress_qdisc_of_others_takes_no_egress_filter") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let here = &lab.agent.interface;
    tc(&lab.agent, &format!("qdisc add dev {here} ingress"));
    add_filter(&lab.agent, "ingress prio 100", -1);
    let before = filters(&lab.agent, here);
    let clsact = format!(
        "--interface {here} --listen 127.0.0.1:0 {}",
        CLSACT.join(" ")
    );
    let error = refused(&lab.agent, &clsact);
    assert_says(&error, &[here, "egress", "--direction ingress"]);
    assert_eq!(filters(&lab.agent, here), before);
}

/// A clsact qdisc stays where the agent adds one, so it looks at all interfaces before.
#[test]
fn a_start_that_an_ingress_qdisc_ends_leaves_no_qdisc_on_other_interfaces() {
    if !is_root_or_skip(
        "agent::a_start_that_an_ingress_qdisc_ends_leaves_no_qdisc_on_other_interfaces",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    lab.agent.namespace.add_wire(["new0", "far0"]).unwrap();
    tc(&lab.agent, "qdisc add dev new0 ingress");
    let here = &lab.agent.interface;
    let before = qdiscs(&lab.agent, here);
    let clsact = format!(
        "--interface {here},new0 --listen 127.0.0.1:0 {}",
        CLSACT.join(" ")
    );
    let error = refused(&lab.agent, &clsact);
    assert_says(&error, &["attach tc egress to new0", "--direction ingress"]);
    assert_eq!(qdiscs(&lab.agent, here), before);
}

#[test]
fn a_table_larger_than_the_memory_is_refused() {
    let test = "agent::a_table_larger_than_the_memory_is_refused";
    if !is_root_or_skip(test) {
        return;
    }
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let total_kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap();
    // The kernel refuses an area with more pages than it has, before it takes one (`__vmalloc_node_range`).
    let flows = total_kib * 1024 / 100;
    if flows > 100_000_000 {
        return skip(
            test,
            "the memory holds the largest table that can be asked for",
        );
    }
    let lab = Lab::quiet().unwrap();
    let mut command = flow_agent(&lab.agent);
    command.args(["run", "--interface", &lab.agent.interface]);
    command.args(["--listen", "127.0.0.1:0", "--max-flows", &flows.to_string()]);
    command.args(["--early-scan", "0"]);
    let error = refusal(&mut command);
    assert_says(&error, &["--max-flows", "memory"]);
}

/// An operator leaves a variable empty in an environment file to get the default.
#[test]
fn an_empty_variable_is_no_setting() {
    if !is_root_or_skip("agent::an_empty_variable_is_no_setting") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let schema = agent::commands::settings::schema::schema();
    let settings = schema["properties"].as_object().unwrap().keys();
    let mut variables: Vec<String> = settings
        .map(|name| format!("FLOW_AGENT_{}", name.to_uppercase()))
        .collect();
    variables.push("FLOW_AGENT_DURATION".to_owned());
    assert!(
        variables.contains(&"FLOW_AGENT_FILTER".to_owned()),
        "{variables:?}"
    );
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("agent.sock");
    let mut command = flow_agent(&lab.agent);
    command
        .args(["run", "--interface", &lab.agent.interface])
        .args(["--duration", "10ms", "--listen"])
        .arg(format!("unix:{}", socket.display()))
        .envs(variables.iter().map(|name| (name, "")));
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}
