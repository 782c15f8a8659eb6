//! The process that made the socket of each end.

use std::{collections::BTreeSet, fs, path::Path};

use lab::{
    ControlGroup, Host, Lab,
    privilege::{is_root_or_skip, skip},
};
use serde_json::{Value, json};

use super::{CLIENT, OF_PROCESS, Program, SERVER, ends_of, packets};
use crate::support::{
    Agent, as_the_service,
    attached::{no_sockets_in, programs_of_links, sock_create_programs},
    pair, wait_until,
};

pub(super) const PROCESS: &[&str] = &["--enrich", "process"];
const PORT: &str = "7000";
/// An unused user id, so that it is not one that runs here.
const UID: u32 = 54_321;

/// A server whose socket is made by a parent, as another user, and used by its child. Prints both pids.
const PARENT: &str = r#"
use IO::Socket::INET; $| = 1; $< = $> = 54321;
my $server = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => $ARGV[1], Listen => 5, ReuseAddr => 1) or die "$!";
my $child = fork;
if (!$child) { $0 = 'worker'; while (my $client = $server->accept) { while (sysread($client, my $text, 100)) { syswrite($client, $text) } } exit }
print "$$\n$child\n";
<STDIN>; kill 'KILL', $child; waitpid $child, 0;
"#;

/// Lets a child make a socket at the given port, sends over it in the child's place, and ends when its input does.
const HANDED: &str = r#"
use IO::Socket::INET; use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC); $| = 1;
pipe(my $from, my $into);
my $child = fork;
if (!$child) {
    close $from;
    $0 = 'maker'; # As prctl(PR_SET_NAME) does.
    my $socket = IO::Socket::INET->new(Proto => 'udp', PeerAddr => $ARGV[0], PeerPort => 9, LocalPort => $ARGV[1]) or die "$!";
    my $user = fork;
    if (!$user) { $0 = 'user'; select(undef, undef, undef, 0.05); $socket->send("hello") or die "$!"; syswrite($into, "sent\n"); exit }
    waitpid $user, 0; exit;
}
close $into; my $line = <$from>; waitpid $child, 0;
print "$child\n"; <STDIN>;
"#;

/// Starts the given number of children, one after the other. Each sends one datagram and exits. Prints their pids.
const MANY: &str = r#"
use IO::Socket::INET; $| = 1;
for my $number (0 .. $ARGV[2] - 1) {
    my $child = fork;
    if (!$child) {
        $0 = "child$number";
        my $socket = IO::Socket::INET->new(Proto => 'udp', PeerAddr => $ARGV[0], PeerPort => 9, LocalPort => $ARGV[1] + $number) or die "$!";
        $socket->send("hello") or die "$!"; exit;
    }
    waitpid $child, 0; print "$child\n";
}
print "done\n"; <STDIN>;
"#;

/// The same server as [`SERVER`], which takes connections of MPTCP as well.
const MPTCP_SERVER: &str = r#"
use Socket; $| = 1;
socket(my $server, AF_INET, SOCK_STREAM, 262) or die "$!"; setsockopt($server, SOL_SOCKET, SO_REUSEADDR, 1) or die "$!";
bind($server, pack_sockaddr_in($ARGV[1], inet_aton($ARGV[0]))) or die "$!"; listen($server, 5) or die "$!";
print "ready\n";
while (accept(my $client, $server)) { while (sysread($client, my $text, 100)) { syswrite($client, $text) } close $client }
"#;

/// Reports whether it gets a socket, and sends a datagram from it.
const ASKING: &str = r#"
use IO::Socket::INET; $| = 1;
my $socket = IO::Socket::INET->new(Proto => 'udp', PeerAddr => $ARGV[0], PeerPort => 9, LocalPort => $ARGV[1]);
print $socket ? "made\n" : "refused: $!\n";
$socket->send("hello") if $socket;
"#;

fn start(host: &Host, script: &str, arguments: &[&str]) -> (ControlGroup, Program) {
    let group = ControlGroup::slice().unwrap();
    let program = Program::start(&group, "one.service", host, script, arguments);
    (group, program)
}

#[test]
fn both_ends_of_a_flow_have_their_process_whether_its_socket_is_older_than_the_agent_or_not() {
    const TEST: &str = "agent::both_ends_of_a_flow_have_their_process_whether_its_socket_is_older_than_the_agent_or_not";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let address = lab.agent.ipv4.to_string();
    let to = [address.as_str(), PORT];
    let (_group, mut server) = start(&lab.agent, SERVER, &to);
    assert_eq!(server.line(), "ready");
    let (_group, mut older) = start(&lab.peer, CLIENT, &to);
    let older_port: u16 = older.line().parse().unwrap();
    older.goes_on();
    let before = lab.agent.counters().unwrap();
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, PROCESS);
    let mut sent = 0;
    // The sockets that were there are found beside the first scans.
    wait_until("both older sockets are found", || {
        older.goes_on();
        sent += 1;
        agent.wait_for_scans(&lab.agent, 2);
        let flows = agent
            .asked(&lab.agent, &["flows", "--output", "json"])
            .stdout;
        let flows = String::from_utf8(flows).unwrap();
        flows.contains(r#""src_pid""#) && flows.contains(r#""dst_pid""#)
    });
    let pids = [older.pid(), server.pid()];
    older.ends();
    let (_group, mut newer) = start(&lab.peer, CLIENT, &to);
    let newer_port: u16 = newer.line().parse().unwrap();
    newer.goes_on();
    let newer_pid = newer.pid();
    newer.ends();
    wait_until("both connections are closed", || {
        packets(&lab.agent, before) >= (3 * sent + 3) + (3 + 3 + 3)
    });
    agent.wait_for_scans(&lab.agent, 2);
    let report = agent.stop();
    for (port, pid) in [(older_port, pids[0]), (newer_port, newer_pid)] {
        let last = report.flows.iter().rfind(|line| line["src_port"] == port);
        let last = last.unwrap();
        for (name, value) in [
            ("src_process", json!("perl")),
            ("src_pid", json!(pid)),
            ("src_uid", json!(0)),
            ("dst_process", json!("perl")),
            ("dst_pid", json!(pids[1])),
            ("dst_uid", json!(0)),
        ] {
            assert_eq!(last[name], value, "{name}: {last}");
        }
    }
    assert_eq!(report.seen().packets, packets(&lab.agent, before));
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

#[test]
fn a_connection_is_said_to_be_of_the_process_that_made_the_listening_socket_and_of_its_user() {
    const TEST: &str = "agent::a_connection_is_said_to_be_of_the_process_that_made_the_listening_socket_and_of_its_user";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, PROCESS);
    let address = lab.agent.ipv4.to_string();
    let (_group, mut server) = start(&lab.agent, PARENT, &[&address, PORT]);
    let [parent, child] = [server.line(), server.line()].map(|pid| pid.parse::<u32>().unwrap());
    assert_ne!(parent, child);
    let (_group, mut client) = start(&lab.peer, CLIENT, &[&address, PORT]);
    let port: u16 = client.line().parse().unwrap();
    client.goes_on();
    let client_pid = client.pid();
    client.ends();
    server.ends();
    let report = agent.stop();
    let last = report.flows.iter().rfind(|line| line["src_port"] == port);
    let last = last.unwrap();
    assert_eq!(last["dst_pid"], parent, "{last}");
    assert_eq!(last["dst_process"], "perl", "{last}");
    assert_eq!(last["dst_uid"], UID, "{last}");
    assert_eq!(last["src_pid"], client_pid, "{last}");
}

/// The listener answers its first packets, so the test needs a flow that begins anew.
#[test]
fn an_accepted_connection_has_its_process_by_itself() {
    if !is_root_or_skip("agent::an_accepted_connection_has_its_process_by_itself") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, &[PROCESS, &["--idle-timeout", "1s"]].concat());
    let to = [&*lab.agent.ipv4.to_string(), PORT];
    let (_group, mut server) = start(&lab.agent, SERVER, &to);
    assert_eq!(server.line(), "ready");
    let (_group, mut client) = start(&lab.peer, CLIENT, &to);
    let port: u16 = client.line().parse().unwrap();
    client.goes_on();
    wait_until("the flow has ended by its idle timeout", || {
        asked_for(&agent, &lab, "src_port", port).is_none()
    });
    client.goes_on();
    client.ends();
    let server_pid = server.pid();
    let report = agent.stop();
    let is_of_it = |line: &&Value| line["src_port"] == port || line["dst_port"] == port;
    let last = report.flows.iter().rfind(is_of_it).unwrap();
    let end = if last["src_port"] == port {
        "dst"
    } else {
        "src"
    };
    assert_eq!(last[format!("{end}_pid")], server_pid, "{last}");
}

/// Many servers use MPTCP by default, such as those in Go.
#[test]
fn a_server_of_mptcp_is_known_to_clients_of_tcp() {
    const TEST: &str = "agent::a_server_of_mptcp_is_known_to_clients_of_tcp";
    if !is_root_or_skip(TEST) {
        return;
    }
    if !Path::new("/proc/sys/net/mptcp/enabled").exists() {
        skip(TEST, "the kernel has no MPTCP");
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, PROCESS);
    let to = [&*lab.agent.ipv4.to_string(), PORT];
    let (_group, mut server) = start(&lab.agent, MPTCP_SERVER, &to);
    assert_eq!(server.line(), "ready");
    let (_group, mut client) = start(&lab.peer, CLIENT, &to);
    let port: u16 = client.line().parse().unwrap();
    client.goes_on();
    client.ends();
    let server_pid = server.pid();
    let report = agent.stop();
    let last = report.flows.iter().rfind(|line| line["src_port"] == port);
    assert_eq!(last.unwrap()["dst_pid"], server_pid, "{last:?}");
}

#[test]
fn who_refuses_sockets_to_others_does_so_beside_us() {
    if !is_root_or_skip("agent::who_refuses_sockets_to_others_does_so_beside_us") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let folder = group.path().join("refused.service");
    fs::create_dir(&folder).unwrap();
    let to = lab.peer.ipv4.to_string();
    for (is_before, port) in [(true, 5001), (false, 5002)] {
        let before = is_before.then(|| no_sockets_in(&folder));
        let agent = Agent::start(&lab, PROCESS);
        let after = (!is_before).then(|| no_sockets_in(&folder));
        let mut pid = 0;
        for (unit, answer) in [("refused.service", "refused"), ("other.service", "made")] {
            let arguments = [&*to, &port.to_string()];
            let mut program = Program::start(&group, unit, &lab.agent, ASKING, &arguments);
            let line = program.line();
            assert!(line.starts_with(answer), "{unit}: {line}");
            pid = program.pid();
            program.ends();
        }
        assert_eq!(ends_of(&agent.stop(), port, OF_PROCESS)["src_pid"], pid);
        drop((before, after));
    }
}

/// The flow with this port, from the agent on request.
pub(super) fn asked_for(agent: &Agent, lab: &Lab, name: &str, port: u16) -> Option<Value> {
    let mut flows = agent.flows(&lab.agent).into_iter();
    flows.find(|flow| flow[name] == port)
}

#[test]
fn a_socket_that_is_handed_on_stays_that_of_its_maker() {
    const SOURCE: u16 = 5003;
    if !is_root_or_skip("agent::a_socket_that_is_handed_on_stays_that_of_its_maker") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, PROCESS);
    let arguments = [&*lab.peer.ipv4.to_string(), &SOURCE.to_string()];
    let (_group, mut program) = start(&lab.agent, HANDED, &arguments);
    let maker: u32 = program.line().parse().unwrap();
    program.ends();
    let report = agent.stop();
    assert_eq!(
        ends_of(&report, SOURCE, OF_PROCESS),
        json!({ "src_process": "maker", "src_pid": maker, "src_uid": 0 })
    );
}

#[test]
fn processes_that_are_gone_before_the_scan_are_named_each_by_its_own_name() {
    const COUNT: u16 = 500;
    const FIRST: u16 = 5000;
    if !is_root_or_skip(
        "agent::processes_that_are_gone_before_the_scan_are_named_each_by_its_own_name",
    ) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, &[PROCESS, &["--scan-interval", "1h"]].concat());
    let arguments = [
        &*lab.peer.ipv4.to_string(),
        &FIRST.to_string(),
        &COUNT.to_string(),
    ];
    let (_group, mut program) = start(&lab.agent, MANY, &arguments);
    let pids: Vec<u32> = (0..COUNT)
        .map(|_| program.line().parse().unwrap())
        .collect();
    assert_eq!(program.line(), "done");
    let report = agent.stop();
    program.ends();
    for (number, pid) in (0..COUNT).zip(&pids) {
        assert_eq!(
            ends_of(&report, FIRST + number, OF_PROCESS),
            json!({ "src_process": format!("child{number}"), "src_pid": pid, "src_uid": 0 }),
            "{number}"
        );
    }
    assert_eq!(pids.iter().collect::<BTreeSet<_>>().len(), pids.len());
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

#[test]
fn nobody_notes_who_makes_sockets_once_the_agent_has_ended_or_was_killed() {
    const TEST: &str =
        "agent::nobody_notes_who_makes_sockets_once_the_agent_has_ended_or_was_killed";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    for is_killed in [false, true] {
        let mut agent = Agent::start(&lab, PROCESS);
        let of_this = programs_of_links(agent.pid(), "cgroup");
        // Where sockets are made, and where they are bound over IPv4 and IPv6.
        assert_eq!(of_this.len(), 3);
        assert!(!sock_create_programs().is_disjoint(&of_this));
        if is_killed {
            agent.kill();
        } else {
            agent.stop();
        }
        // A killed process's open files go a little later than the process.
        wait_until("its program is gone", || {
            sock_create_programs().is_disjoint(&of_this)
        });
    }
}
