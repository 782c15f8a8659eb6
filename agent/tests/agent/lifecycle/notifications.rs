//! The kernel's notifications about interfaces and routes, including large bursts.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use lab::{Lab, Process, privilege::is_root_or_skip};

use super::{
    CLSACT, TCX,
    coming::{IFINDEX, batch, hooks_of, ip, packets_on, send, status, wait_until_watched},
};
use crate::support::{
    Agent, NATIVE_XDP,
    attached::nothing_is_attached,
    count,
    threads::{id_of, status_line, thread_named},
    wait_for_packets, wait_until,
};

const MISSED: &str = "missed interface changes";

/// Their notifications have long texts, so that they soon fill a socket.
fn changes_of_busy0(count: u32) -> String {
    let text = "x".repeat(240);
    let mut lines = String::new();
    for number in 0..count {
        writeln!(lines, "link set busy0 alias {text}{}", number % 2).unwrap();
    }
    lines
}

/// The default receive buffer of a socket has room for a hundred of these.
#[test]
fn thousands_of_routes_and_changes_hide_no_interface() {
    const ROUTES: u32 = 5000;
    const CHANGES: u32 = 500;
    if !is_root_or_skip("agent::thousands_of_routes_and_changes_hide_no_interface") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let (namespace, interface) = (&lab.agent.namespace, &lab.agent.interface);
    namespace.add_wire(["new0", "far0"]).unwrap();
    namespace.add_wire(["busy0", "busy1"]).unwrap();
    ip(namespace, &format!("route add default dev {interface}"));
    let agent = Agent::start_on(&lab.agent, "", &[]);
    assert_eq!(hooks_of(&status(&lab, &agent), interface), 2);

    // Nothing is read meanwhile.
    agent.signal(libc::SIGSTOP);
    let mut lines = String::new();
    for number in 0..ROUTES {
        let [_, _, high, low] = number.to_be_bytes();
        writeln!(lines, "route add 10.77.{high}.{low}/32 dev busy0").unwrap();
    }
    lines += &changes_of_busy0(CHANGES);
    lines += "route add default dev new0 metric 7\n";
    writeln!(lines, "link del {interface}").unwrap();
    batch(namespace, &lines);
    agent.signal(libc::SIGCONT);
    wait_until("the new uplink is watched and the other one is not", || {
        let status = status(&lab, &agent);
        hooks_of(&status, "new0") == 2 && hooks_of(&status, interface) == 0
    });
    let log = agent.stderr();
    assert!(!log.contains(MISSED), "{log}");
    agent.stop();
}

/// The kernel refuses further notifications. An agent that continued would count under the names of interfaces that
/// have left.
#[test]
fn an_agent_that_cannot_follow_interfaces_any_more_drains_and_ends_with_the_error() {
    if !is_root_or_skip(
        "agent::an_agent_that_cannot_follow_interfaces_any_more_drains_and_ends_with_the_error",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &["--scan-interval", "1h"]);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    let frames = std::iter::repeat_n(&frame, 100);
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    wait_for_packets(&lab.agent, before, 100);

    let thread = id_of(&thread_named(agent.pid(), "interfaces").unwrap());
    let mut strace = Command::new("strace");
    strace
        .args(["-p", &thread, "-e", "trace=recvfrom"])
        .args(["-e", "inject=recvfrom:error=EIO"])
        .stderr(Stdio::null());
    let _strace = Process::spawn(&mut strace).unwrap();
    let report = agent.ended_by("follow the interfaces that come and leave");
    assert_eq!(report.seen(), count(100, &frame));
    assert!(nothing_is_attached(&lab.agent));
}

/// How many notifications the sockets of the agent's namespace did not take.
fn drops(lab: &Lab) -> u64 {
    column_sum(lab, 8)
}

/// The sum over the netlink sockets of the agent's namespace.
fn column_sum(lab: &Lab, column: usize) -> u64 {
    let mut command = lab.agent.command("cat");
    let sockets = command.arg("/proc/net/netlink").output().unwrap().stdout;
    let sockets = String::from_utf8(sockets).unwrap();
    let numbers = sockets.lines().skip(1).map(|socket| {
        let number = socket.split_whitespace().nth(column);
        number.unwrap().parse::<u64>().unwrap()
    });
    numbers.sum()
}

/// The agent hears of neither the one that left nor the one that came.
#[test]
fn an_index_that_comes_back_unheard_of_is_attached_to_again() {
    if !is_root_or_skip("agent::an_index_that_comes_back_unheard_of_is_attached_to_again") {
        return;
    }
    for hooks in [TCX, CLSACT, NATIVE_XDP] {
        let lab = Lab::quiet().unwrap();
        let namespace = &lab.agent.namespace;
        namespace.add_wire(["busy0", "busy1"]).unwrap();
        let add = || {
            ip(
                namespace,
                &format!("link add new0 index {IFINDEX} type veth peer name far0"),
            );
            for end in ["new0", "far0"] {
                ip(
                    namespace,
                    &format!("link set {end} arp off addrgenmode none up"),
                );
            }
        };
        add();
        let agent = Agent::start_on(&lab.agent, "new*", hooks);
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
        send(&lab, ["new0", "far0"], &frame, 100);

        agent.signal(libc::SIGSTOP);
        let changes = changes_of_busy0(1000);
        while drops(&lab) == 0 {
            batch(namespace, &changes);
        }
        ip(namespace, "link del new0");
        add();
        agent.signal(libc::SIGCONT);
        wait_until("the first one has left", || {
            status(&lab, &agent)["interfaces"]["departed"] == 1
        });
        wait_until_watched(&lab, &agent, "new0");
        send(&lab, ["new0", "far0"], &frame, 20);
        wait_until("the log says so", || agent.stderr().contains(MISSED));
        let report = agent.stop();
        assert_eq!(report.seen(), count(120, &frame), "{hooks:?}");
        assert_eq!(packets_on(&report, "new0"), 120);
    }
}

/// The bytes that wait in the netlink sockets of the agent's namespace.
fn waiting_bytes(lab: &Lab) -> u64 {
    column_sum(lab, 4)
}

/// A change must not cost a listing of all interfaces.
#[test]
fn changes_of_an_interface_that_is_not_selected_wake_nobody_who_attaches() {
    if !is_root_or_skip(
        "agent::changes_of_an_interface_that_is_not_selected_wake_nobody_who_attaches",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    namespace.add_wire(["busy0", "busy1"]).unwrap();
    let mut agent = Agent::start_on(&lab.agent, &lab.agent.interface, &["--scan-interval", "1h"]);
    let (attach, follow) = ("attach", "interfaces");
    let [attach, follow] = [attach, follow].map(|name| thread_named(agent.pid(), name).unwrap());
    let is_asleep = |task: &Path| status_line(task, "State:").contains('S');
    agent.wait_until_idle();
    let woken = || status_line(&attach, "voluntary_ctxt_switches:");
    let before = woken();
    batch(namespace, &changes_of_busy0(500));
    wait_until("all of them are read", || {
        waiting_bytes(&lab) == 0 && is_asleep(&follow)
    });
    assert_eq!(woken(), before);
    agent.stop();
}

#[test]
fn routes_that_come_choose_after_patterns_did() {
    if !is_root_or_skip("agent::routes_that_come_choose_after_patterns_did") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let (namespace, interface) = (&lab.agent.namespace, &lab.agent.interface);
    namespace.add_wire(["new0", "far0"]).unwrap();
    ip(namespace, &format!("route add default dev {interface}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let settings = "max_flows = 1000\n";
    fs::write(&file, format!("interface = ['{interface}']\n{settings}")).unwrap();
    let agent = Agent::start_by_file(&lab.agent, "", &file);
    fs::write(&file, settings).unwrap();
    agent.signal(libc::SIGHUP);
    // Until then the agent asks for all routes.
    wait_until("the routes choose", || {
        agent.stderr().contains("read the settings again")
    });
    ip(namespace, "route add default dev new0 metric 7");
    wait_until_watched(&lab, &agent, "new0");
    agent.stop_silent();
}
