//! Address translation (`--enrich nat`): a router between a client and a server, whose records of both sides find each other.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use lab::{Lab, Namespace, privilege::is_root_or_skip};
use serde_json::Value;

use crate::support::{Agent, wait_for_silence, wait_until};

/// The path to the client behind the router.
pub const CABLE: [&str; 2] = ["router1", "client0"];
pub const CLIENTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 0, 2), Ipv4Addr::new(10, 79, 0, 3)];
/// Answers come before a test gives up.
const PATIENCE: Duration = Duration::from_mins(1);
/// Both clients use these ports, so that the router has to choose another one for one of them.
const PORTS: std::ops::Range<u16> = 5000..5100;
const SERVICE: u16 = 7000;

/// A router, with a client behind it and a server in front of it.
pub struct Routed {
    pub lab: Lab,
    pub client: Namespace,
}

impl Routed {
    /// Adds these rules to the router's table `nat`.
    pub fn new(chains: &str) -> Self {
        let lab = Lab::addressed().unwrap();
        let client = Namespace::new("client").unwrap();
        let router = &lab.agent.namespace;
        router.add_wire(CABLE).unwrap();
        let ip = |namespace: &Namespace, command: &str| {
            let arguments: Vec<_> = command.split(' ').collect();
            namespace.ip(&arguments).unwrap();
        };
        ip(
            router,
            &format!("link set {} netns {}", CABLE[1], client.name()),
        );
        ip(
            router,
            &format!("address add 10.79.0.1/24 dev {}", CABLE[0]),
        );
        for address in CLIENTS {
            ip(
                &client,
                &format!("address add {address}/24 dev {}", CABLE[1]),
            );
        }
        ip(router, &format!("link set {} arp on up", CABLE[0]));
        ip(&client, &format!("link set {} arp on up", CABLE[1]));
        ip(&client, "route add default via 10.79.0.1");
        router
            .set_sysctl("net/ipv4/ip_forward", "1")
            // By default, the kernel stops telling of connections when an agent of another test leaves.
            .and_then(|()| router.set_sysctl("net/netfilter/nf_conntrack_events", "1"))
            .unwrap();
        let rules = format!(
            "table ip nat {{\n{}\n}}",
            chains
                .replace("WIRE", &lab.agent.interface)
                .replace("ROUTER", &lab.agent.ipv4.to_string())
        );
        let output = router.command("nft").arg(rules).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self { lab, client }
    }

    /// On both sides of the router.
    pub fn start(&self, more: &[&str]) -> Agent {
        let wire = ["--interface", &self.lab.agent.interface, "--enrich", "nat"];
        Agent::start_on(&self.lab.agent, CABLE[0], &[&wire, more].concat())
    }

    /// Flows of the client's network, and those of the server's.
    fn sides(&self, records: &[Value]) -> [Vec<Value>; 2] {
        [CABLE[0], &self.lab.agent.interface].map(|interface| {
            let of_side = records.iter().filter(|line| line["interface"] == interface);
            of_side.cloned().collect()
        })
    }
}

pub const MASQUERADE: &str =
    "chain post { type nat hook postrouting priority srcnat; oifname WIRE masquerade; }";

fn udp(namespace: &Namespace, address: Ipv4Addr, port: u16) -> UdpSocket {
    let bind = || {
        let socket = UdpSocket::bind((address, port)).context("bind")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    namespace.enter(bind).unwrap()
}

fn text<'a>(line: &'a Value, name: &str) -> &'a str {
    line[name]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {line}"))
}

/// The addresses and ports of a record, and those on the other side.
fn forms(line: &Value) -> [String; 2] {
    ["", "nat_"].map(|form| {
        let end = |end: &str| {
            let address = text(line, &format!("{end}_{form}addr"));
            format!("{address}:{}", line[format!("{end}_{form}port")])
        };
        format!("{} {} {}", line["protocol"], end("src"), end("dst"))
    })
}

/// Asserts that each flow of a side has the one on the other side, with its Community ID.
fn assert_each_has_its_other([one, other]: [&[Value]; 2]) {
    let known: BTreeMap<_, _> = other
        .iter()
        .map(|line| {
            let [here, there] = forms(line);
            (
                here,
                (
                    there,
                    text(line, "community_id"),
                    text(line, "nat_community_id"),
                ),
            )
        })
        .collect();
    for line in one {
        let [here, there] = forms(line);
        let (back, id, nat_id) = known
            .get(&there)
            .unwrap_or_else(|| panic!("{there}: {line}"));
        assert_eq!(*back, here);
        assert_eq!(*id, text(line, "nat_community_id"));
        assert_eq!(*nat_id, text(line, "community_id"));
    }
}

/// The last record of each flow: the first one may come before the news of its connection.
fn last_of_each(lines: &[Value]) -> Vec<Value> {
    let name = |line: &Value| {
        (
            line["community_id"].to_string(),
            line["src_port"].to_string(),
        )
    };
    let last: BTreeMap<_, _> = lines.iter().map(|line| (name(line), line)).collect();
    last.into_values().cloned().collect()
}

#[test]
fn each_masqueraded_flow_names_the_one_on_the_other_side() {
    if !is_root_or_skip("agent::each_masqueraded_flow_names_the_one_on_the_other_side") {
        return;
    }
    let network = Routed::new(MASQUERADE);
    let server_address = network.lab.peer.ipv4;
    let agent = network.start(&[]);
    let server = udp(&network.lab.peer.namespace, server_address, SERVICE);
    let listen = || TcpListener::bind((server_address, SERVICE)).context("listen");
    let listener = network.lab.peer.namespace.enter(listen).unwrap();
    let mut buffer = [0; 100];
    let mut sockets = Vec::new();
    for port in PORTS {
        for address in CLIENTS {
            let client = udp(&network.client, address, port);
            client.send_to(b"ask", (server_address, SERVICE)).unwrap();
            let (_, from) = server.recv_from(&mut buffer).unwrap();
            server.send_to(b"answer", from).unwrap();
            client.recv(&mut buffer).unwrap();
            sockets.push(client);
        }
    }
    let mut connections = Vec::new();
    for _ in PORTS {
        let connect = || TcpStream::connect((server_address, SERVICE)).context("connect");
        connections.push(network.client.enter(connect).unwrap());
        connections.push(listener.accept().unwrap().0);
    }
    let ping = [
        "-c",
        "3",
        "-i",
        "0.01",
        "-W",
        "60",
        &server_address.to_string(),
    ];
    assert!(
        network
            .client
            .command("ping")
            .args(ping)
            .output()
            .unwrap()
            .status
            .success()
    );
    wait_for_silence(&network.lab.agent);
    agent.wait_for_scans(&network.lab.agent, 2);
    let status = agent.status(&network.lab.agent)["nat"].clone();
    let report = agent.stop();

    let flows = last_of_each(&report.flows);
    let flows: Vec<_> = flows
        .into_iter()
        .filter(|line| line["dst_addr"] == server_address.to_string())
        .collect();
    let [inside, outside] = network.sides(&flows);
    let expected = PORTS.len() * 3 + 1;
    assert_eq!([inside.len(), outside.len()], [expected; 2]);
    for (side, name) in [(&inside, "original"), (&outside, "translated")] {
        assert!(side.iter().all(|line| line["nat_side"] == name), "{side:?}");
    }
    assert_each_has_its_other([&inside, &outside]);
    assert_each_has_its_other([&outside, &inside]);
    let router = network.lab.agent.ipv4.to_string();
    let of_udp = inside.iter().filter(|line| line["protocol"] == 17);
    let ports: BTreeSet<_> = of_udp.map(|line| line["src_nat_port"].as_u64()).collect();
    assert_eq!(ports.len(), PORTS.len() * 2);
    assert!(inside.iter().all(|line| line["src_nat_addr"] == router));
    for (name, count) in [
        ("connections", expected as u64),
        ("not_kept", 0),
        ("missed", 0),
        ("ambiguous_flows", 0),
    ] {
        assert_eq!(status[name], count, "{status}");
    }
    drop((sockets, connections));
}

/// Connections that began before the agent did are listed.
#[test]
fn a_flow_to_a_forwarded_port_names_the_host_behind_it() {
    if !is_root_or_skip("agent::a_flow_to_a_forwarded_port_names_the_host_behind_it") {
        return;
    }
    let network = Routed::new(
        "chain pre { type nat hook prerouting priority dstnat; iifname WIRE udp dport 8080 dnat to 10.79.0.3:7000; }",
    );
    let behind = udp(&network.client, CLIENTS[1], SERVICE);
    let router = SocketAddrV4::new(network.lab.agent.ipv4, 8080);
    let outside = udp(&network.lab.peer.namespace, network.lab.peer.ipv4, 4000);
    let mut buffer = [0; 100];
    let mut ask = || {
        outside.send_to(b"ask", router).unwrap();
        let (_, from) = behind.recv_from(&mut buffer).unwrap();
        behind.send_to(b"answer", from).unwrap();
        outside.recv(&mut buffer).unwrap();
    };
    ask();
    let agent = network.start(&[]);
    wait_until("a list has confirmed the connection", || {
        ask();
        let flows = agent.flows(&network.lab.agent);
        let named = flows.iter().filter(|line| !line["nat_side"].is_null());
        named.count() == 2
    });
    wait_for_silence(&network.lab.agent);
    let report = agent.stop();
    let flows = last_of_each(&report.flows);
    let flows: Vec<_> = flows
        .into_iter()
        .filter(|line| line["src_port"] == 4000)
        .collect();
    let [inside, outside] = network.sides(&flows);
    assert_eq!([inside.len(), outside.len()], [1, 1]);
    assert_each_has_its_other([&inside, &outside]);
    let [inside, outside] = [&inside[0], &outside[0]];
    assert_eq!(outside["nat_side"], "original");
    assert_eq!(outside["dst_nat_addr"], CLIENTS[1].to_string());
    assert_eq!(outside["dst_nat_port"], SERVICE);
    assert_eq!(outside["src_nat_port"], 4000);
    assert_eq!(inside["nat_side"], "translated");
    assert_eq!(inside["dst_nat_addr"], router.ip().to_string());
    assert_eq!(inside["dst_nat_port"], 8080);
}

/// A client that asks the server, whose answer comes back.
pub struct Ask {
    client: UdpSocket,
    server: UdpSocket,
    to: SocketAddrV4,
    translated_port: Cell<u16>,
}

impl Ask {
    pub fn new(network: &Routed) -> Self {
        let address = network.lab.peer.ipv4;
        Self {
            client: udp(&network.client, CLIENTS[0], 5000),
            server: udp(&network.lab.peer.namespace, address, SERVICE),
            to: SocketAddrV4::new(address, SERVICE),
            translated_port: Cell::new(0),
        }
    }

    pub fn once(&self) {
        let mut buffer = [0; 100];
        self.client.send_to(b"ask", self.to).unwrap();
        let (_, from) = self.server.recv_from(&mut buffer).unwrap();
        self.server.send_to(b"answer", from).unwrap();
        self.client.recv(&mut buffer).unwrap();
        self.translated_port.set(from.port());
    }

    /// The port from which the server was asked last.
    pub fn translated_port(&self) -> u16 {
        self.translated_port.get()
    }
}

/// The connection tracking forgets a flow that the agent still knows, and translates it anew.
#[test]
fn a_flow_that_is_translated_anew_has_no_translation_from_then_on() {
    if !is_root_or_skip("agent::a_flow_that_is_translated_anew_has_no_translation_from_then_on") {
        return;
    }
    let network = Routed::new(
        "chain post { type nat hook postrouting priority srcnat; \
         oifname WIRE ip protocol udp snat to ROUTER:20000-60000 random; }",
    );
    let router = &network.lab.agent.namespace;
    router
        .set_sysctl("net/netfilter/nf_conntrack_udp_timeout", "1")
        .and_then(|()| router.set_sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", "1"))
        .unwrap();
    let agent = network.start(&[]);
    let ask = Ask::new(&network);
    let mut ports = BTreeSet::new();
    wait_until("the router has chosen two ports", || {
        ask.once();
        agent.wait_for_scans(&network.lab.agent, 3);
        let is_new = ports.insert(ask.translated_port());
        if is_new && ports.len() == 1 {
            thread::sleep(Duration::from_millis(1500));
        }
        ports.len() > 1
    });
    wait_for_silence(&network.lab.agent);
    agent.wait_for_scans(&network.lab.agent, 3);
    let status = agent.status(&network.lab.agent)["nat"].clone();
    let report = agent.stop();
    let [inside, outside] = network.sides(&report.flows);
    let of_flow = |line: &&Value| line["src_port"] == 5000;
    let inside: Vec<_> = inside.iter().filter(of_flow).collect();
    // Each port has a flow of its own on the other side.
    let there: BTreeSet<_> = outside
        .iter()
        .filter(|line| line["nat_side"] == "translated")
        .map(|line| line["src_port"].as_u64().unwrap())
        .collect();
    let expected: BTreeSet<_> = ports.iter().map(|&port| u64::from(port)).collect();
    assert_eq!(there, expected);
    let named: Vec<_> = inside
        .iter()
        .map(|line| line.get("src_nat_port").and_then(Value::as_u64))
        .collect();
    assert!(
        named[0].is_some_and(|port| expected.contains(&port)),
        "{named:?}"
    );
    let first_without = named.iter().position(Option::is_none).expect("it changed");
    assert!(
        named[first_without..].iter().all(Option::is_none),
        "{named:?}"
    );
    assert!(named[..first_without].iter().all(|port| *port == named[0]));
    assert_eq!(status["ambiguous_flows"], 1, "{status}");
}
