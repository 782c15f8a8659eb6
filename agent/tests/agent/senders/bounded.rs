//! Tens of thousands of sockets take no more of the agent's memory than the bound for data kept with sockets.

use std::{
    fs,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use agent_common::process::KeptWithSockets;
use lab::{
    ControlGroup, Lab,
    control_group::Version,
    privilege::{is_root_or_skip, skip},
};

use super::{
    Program, SENDER,
    counted_again::{Bounds, KEPT, MOST},
    processes::PROCESS,
};
use crate::support::{Agent, BINARY, wait_until};

const LIMIT_BYTES: u64 = 64 << 20;
/// The bound: an eighth of the limit, at 300 bytes each.
const ROOM_BYTES: u64 = LIMIT_BYTES / 8;
const BOUND: u64 = ROOM_BYTES / 300;
/// They are counted again each second at least, and faster the more there are.
const RECOUNTED_WITHIN: Duration = Duration::from_mins(1);
/// The agent's other memory.
const BESIDE_BYTES: u64 = 2 << 20;
/// To each of these ports, as many as one process may have open.
const PORTS: [&str; 2] = ["7000", "7001"];
/// Each has two sockets, of which one is inherited from the listener. All are more than twice what may be kept.
const CONNECTIONS: u64 = 15_000;
const _: () = assert!(PORTS.len() as u64 * 2 * CONNECTIONS > 2 * BOUND);

const MANY_ACCEPTED: &str = r#"
exec 'prlimit', '--nofile=15100', 'perl', '-e', q{
use IO::Socket::INET; $| = 1;
my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[1], Listen => 4096) or die "$!";
print "ready\n";
my @all; while (@all < $ARGV[0]) { push @all, scalar $server->accept }
print "accepted\n"; <STDIN>;
}, @ARGV;
"#;

const MANY_CONNECTED: &str = r#"
exec 'prlimit', '--nofile=15100', 'perl', '-e', q{
use IO::Socket::INET; $| = 1;
my @all;
for (1 .. $ARGV[0]) { push @all, IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ARGV[1]) || die "$!" }
print "connected\n"; <STDIN>;
}, @ARGV;
"#;

const OTHER_PORT: u16 = 7002;
const OTHER: &str = r#"
use IO::Socket::INET; $| = 1;
my $server = IO::Socket::INET->new(LocalPort => 7002, Listen => 5) or die "$!";
print "ready\n"; <STDIN>;
"#;

const LATE_PORT: u16 = 7003;
const LATE: &str = r#"
use IO::Socket::INET; $| = 1;
my $socket = IO::Socket::INET->new(Proto => 'udp', PeerAddr => $ARGV[0], PeerPort => 9, LocalPort => 7003) or die "$!";
print "ready\n";
while (<STDIN>) { $socket->send("hello"); print "answered\n" }
"#;

fn files(version: Version) -> [&'static str; 2] {
    match version {
        Version::One => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        Version::Two => ["memory.max", "memory.current"],
    }
}

#[test]
fn sockets_by_the_ten_thousand_take_no_more_memory_than_there_is_for_them() {
    const TEST: &str =
        "agent::sockets_by_the_ten_thousand_take_no_more_memory_than_there_is_for_them";
    if !is_root_or_skip(TEST) {
        return;
    }
    let group = match ControlGroup::of("memory", |version| files(version)[0]) {
        Ok(group) => group,
        Err(error) => return skip(TEST, &format!("{error:#}")),
    };
    let [limit, usage] = files(group.version());
    group.write(limit, &LIMIT_BYTES.to_string()).unwrap();
    let lab = Lab::addressed().unwrap();
    let ports = ("net/ipv4/ip_local_port_range", "10000 60000");
    lab.agent.namespace.set_sysctl(ports.0, ports.1).unwrap();
    let mut command = lab.agent.command("sh");
    group.run_by(&mut command).arg(BINARY);
    let mut agent = Agent::start_by(command, &lab.agent.interface, PROCESS);
    let bounds = Bounds::of(&mut agent, KeptWithSockets::Process);
    assert_eq!(bounds.get(MOST), BOUND);
    let used = || -> u64 {
        let text = fs::read_to_string(group.path().join(usage)).unwrap();
        text.trim().parse().unwrap()
    };
    agent.wait_for_scans(&lab.agent, 2);
    let before = used();

    let users = ControlGroup::slice().unwrap();
    let to = lab.peer.ipv4.to_string();
    let mut other = Program::start(&users, "other.service", &lab.agent, OTHER, &[]);
    assert_eq!(other.line(), "ready");
    let many = CONNECTIONS.to_string();
    let start = |name: &str, script: &str, port: &str| {
        Program::start(&users, name, &lab.agent, script, &[&many, port])
    };
    let both = PORTS.map(|port| {
        let mut server = start("server.service", MANY_ACCEPTED, port);
        assert_eq!(server.line(), "ready");
        let mut client = start("client.service", MANY_CONNECTED, port);
        assert_eq!(client.line(), "connected");
        assert_eq!(server.line(), "accepted");
        [client, server]
    });
    let refused = || agent.status(&lab.agent)["replica"]["sockets_without_process"].as_u64();
    // Connections of a listener that has lost its own inherit nothing, so these are not all that had no room.
    wait_until("what is too much is counted", || refused() > Some(0));
    // Accepted connections inherit more than there is room for, until they are counted again.
    let begun = Instant::now();
    while bounds.get(KEPT) > BOUND && begun.elapsed() < RECOUNTED_WITHIN {
        thread::sleep(Duration::from_millis(100));
    }
    let grown = used().saturating_sub(before);
    eprintln!("{grown} bytes of {} sockets", bounds.get(KEPT));
    assert!(
        grown <= ROOM_BYTES + BESIDE_BYTES,
        "{grown} bytes of {BOUND} sockets"
    );
    // This socket finds no room, and is found once there is some.
    let mut late = Program::start(&users, "late.service", &lab.agent, LATE, &[&to]);
    assert_eq!(late.line(), "ready");
    late.goes_on();
    let late_has_process = || {
        let flows = agent.flows(&lab.agent);
        let mut flows = flows.iter();
        flows.any(|flow| flow["src_port"] == LATE_PORT && !flow["src_process"].is_null())
    };
    agent.wait_for_scans(&lab.agent, 2);
    assert!(!late_has_process());
    // Another process's listening socket has kept its process all the while.
    let connect = || Ok(TcpStream::connect((lab.agent.ipv4, OTHER_PORT))?);
    let connection = lab.peer.namespace.enter(connect).unwrap();
    wait_until("the server of others is known", || {
        let flows = agent.flows(&lab.agent);
        let mut flows = flows.iter();
        flows.any(|flow| flow["dst_port"] == OTHER_PORT && !flow["dst_process"].is_null())
    });
    drop(connection);
    other.ends();
    both.into_iter().flatten().for_each(Program::ends);
    // There is room again.
    wait_until("the one without room has its process", || {
        late.goes_on();
        late_has_process()
    });
    late.ends();
    let mut port = 5000;
    wait_until("a later socket has its process", || {
        port += 1;
        let arguments = [&*to, "9", &port.to_string(), "1"];
        Program::start(&users, "later.service", &lab.agent, SENDER, &arguments).ends();
        let flows = agent.flows(&lab.agent);
        let mut flows = flows.iter();
        flows.any(|flow| flow["src_port"] == port && !flow["src_process"].is_null())
    });
    agent.stop();
}
