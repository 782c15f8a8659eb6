//! Copies of the host's own broadcasts and multicasts, which the kernel hands back by the interface that sent them
//! (`dev_loopback_xmit`). They were never on the wire, so only what left is counted.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    time::Duration,
};

use agent_common::Pair;
use anyhow::{Context as _, Result};
use lab::{Host, Lab, Namespace, Tun, privilege::is_root_or_skip};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{Agent, Both, Report, name, pair, wait_until};

/// Every interface is a member of these, so nobody has to join them.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// IEEE 802 experimental: a protocol that no kernel knows.
const RAW: u8 = 253;
const FROM: u16 = 4000;
/// Where a server for names would be.
const TO: u16 = 53;
const EACH: u64 = 10;
/// Like a query for a name.
const PAYLOAD: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\0\0\x01\0\x01";
/// Everything that reads packets beyond counting them.
const EVERYTHING: &[&str] = &["--enrich", "dns,icmp,rtt,drops"];

/// A sender of broadcasts on an interface.
struct Sender<'a> {
    namespace: &'a Namespace,
    interface: &'a str,
    ifindex: u32,
    /// The length of the header before IP.
    link_len_bytes: u64,
    ipv4: Ipv4Addr,
    ipv6: Ipv6Addr,
}

impl Sender<'_> {
    fn take_addresses(&self) {
        let addresses = [format!("{}/24", self.ipv4), format!("{}/64", self.ipv6)];
        for address in &addresses {
            let add = ["address", "add", address, "dev", self.interface];
            self.namespace.ip(&add).unwrap();
        }
    }

    fn broadcast(&self) -> Ipv4Addr {
        let [a, b, c, _] = self.ipv4.octets();
        Ipv4Addr::new(a, b, c, 255)
    }

    fn targets(&self) -> Vec<(SocketAddr, SocketAddr)> {
        let from: SocketAddr = (self.ipv4, FROM).into();
        let to = [Ipv4Addr::BROADCAST, self.broadcast(), ALL_HOSTS];
        let mut targets: Vec<_> = to.map(|to| (from, (to, TO).into())).into();
        let from: SocketAddr = (self.ipv6, FROM).into();
        let to = SocketAddrV6::new(ALL_NODES, TO, 0, self.ifindex);
        targets.push((from, to.into()));
        targets
    }

    /// Sends datagrams of UDP and raw packets. Returns their flows.
    fn send(&self) -> BTreeMap<String, Both> {
        let mut flows = BTreeMap::new();
        for (from, to) in self.targets() {
            for protocol in [17, RAW] {
                self.namespace
                    .enter(|| self.send_each(protocol, from, to))
                    .unwrap();
                let header = if from.is_ipv4() { 20 } else { 40 };
                let transport = if protocol == RAW { 0 } else { 8 };
                let len_bytes = self.link_len_bytes + header + transport + PAYLOAD.len() as u64;
                let sent = Pair {
                    packets: EACH,
                    bytes: EACH * len_bytes,
                };
                let port = |port| if protocol == RAW { 0 } else { port };
                let [src, dst] = [from, to].map(|end| end.ip().to_string());
                let [src_port, dst_port] = [FROM, TO].map(|end| u64::from(port(end)));
                let flow = name("[]", protocol.into(), (&src, src_port), (&dst, dst_port));
                flows.insert(flow, [sent, Pair::default()]);
            }
        }
        flows
    }

    fn send_each(&self, protocol: u8, from: SocketAddr, to: SocketAddr) -> Result<()> {
        let (kind, from, to) = if protocol == RAW {
            let bare = |mut end: SocketAddr| {
                end.set_port(0);
                end
            };
            (Type::RAW, bare(from), bare(to))
        } else {
            (Type::DGRAM, from, to)
        };
        let socket = Socket::new(
            Domain::for_address(from),
            kind,
            Some(Protocol::from(i32::from(protocol))),
        )
        .context("open a socket")?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into()).context("bind")?;
        if from.is_ipv4() {
            socket.set_broadcast(true)?;
            socket.set_multicast_if_v4(&self.ipv4)?;
        } else {
            socket.set_multicast_if_v6(self.ifindex)?;
        }
        for _ in 0..EACH {
            socket
                .send_to(PAYLOAD, &to.into())
                .with_context(|| format!("send to {to}"))?;
        }
        Ok(())
    }

    /// A socket of each IP version for the copies.
    fn receivers(&self) -> [UdpSocket; 2] {
        let bind = || {
            let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, TO)).context("bind")?;
            let v6 = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
            v6.set_only_v6(true)?;
            v6.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, TO)).into())?;
            let sockets = [v4, v6.into()];
            for socket in &sockets {
                socket.set_read_timeout(Some(Duration::from_mins(1)))?;
            }
            Ok(sockets)
        };
        self.namespace.enter(bind).unwrap()
    }
}

/// All datagrams have come back to the host that sent them.
fn receive_all([v4, v6]: &[UdpSocket; 2]) {
    let mut buffer = [0; 1500];
    for (socket, kinds) in [(v4, 3), (v6, 1)] {
        for _ in 0..kinds * EACH {
            socket.recv(&mut buffer).expect("a copy comes back");
        }
    }
}

fn looped_back(report: &Report) -> Pair {
    pair(&report.last()["beside"]["looped_back"])
}

fn sum(flows: &BTreeMap<String, Both>) -> Pair {
    flows.values().flatten().copied().sum()
}

/// The packets that left, without the header in front of IP, which a copy lacks.
fn bare(sent: Pair, link_len_bytes: u64) -> Pair {
    Pair {
        bytes: sent.bytes - sent.packets * link_len_bytes,
        ..sent
    }
}

fn hook<'a>(status: &'a Value, name: &str) -> &'a Value {
    let hooks = status["hooks"].as_array().unwrap();
    hooks.iter().find(|hook| hook["hook"] == name).unwrap()
}

/// Runs an agent while a sender broadcasts. Asserts that it counts the leaving packets and none that arrive.
fn counts_what_leaves_alone(host: &Host, sender: &Sender<'_>, tun: Option<&Tun>) {
    let receivers = sender.receivers();
    let settings = [EVERYTHING, &["--idle-timeout", "1h"]].concat();
    let agent = Agent::start_on(host, sender.interface, &settings);
    let before = lab::Counters::read(sender.namespace, sender.interface).unwrap();
    let sent = sender.send();
    receive_all(&receivers);
    let all = sum(&sent);
    // Such a device counts the packets that were read from it.
    let mut to_read = tun.map_or(0, |_| all.packets);
    wait_until("all are read", || {
        while let Some(tun) = tun
            && tun.receive().unwrap().is_some()
        {
            to_read -= 1;
        }
        to_read == 0
    });
    wait_until("all have left", || {
        agent.wait_for_scans(host, 1);
        pair(&agent.status(host)["account"]["seen"]).packets >= all.packets
    });
    agent.wait_for_scans(host, 1);
    let status = agent.status(host);
    let audit = agent.asked(host, &["audit", "--output", "json"]);
    let growth = lab::Counters::read(sender.namespace, sender.interface).unwrap() - before;
    let text = String::from_utf8(agent.asked(host, &["status"]).stdout).unwrap();
    let report = agent.stop();

    assert_eq!((growth.tx_packets, growth.rx_packets), (all.packets, 0));
    assert_eq!(report.sums(), sent, "{}", report.last());
    assert_eq!(report.seen(), all);
    for flow in &report.flows {
        assert_eq!(flow["direction"], "egress", "{flow}");
        // The copy of a raw packet has no receiver, but the packet itself was not lost.
        assert!(flow.get("total_dropped_packets").is_none(), "{flow}");
    }
    let copies = bare(all, sender.link_len_bytes);
    assert_eq!(looped_back(&report), copies, "{}", report.last());
    let [ingress, egress] = ["tc_ingress", "tc_egress"].map(|name| hook(&status, name));
    let of = |hook: &Value, group: &str| pair(&hook["account"][group]["looped_back"]);
    assert_eq!(of(ingress, "beside"), copies);
    assert_eq!(of(egress, "beside"), Pair::default());
    assert_eq!(pair(&ingress["account"]["seen"]), Pair::default());
    assert!(
        text.contains(&format!("{} of this host's own packets", copies.packets)),
        "{text}"
    );
    let raw = 4 * EACH;
    let drops = &status["kernel_drops"];
    let [of_flows, missed] = ["of_flows", "missed"].map(|name| drops[name].as_u64().unwrap());
    let not_counted = drops["of_no_flow"]["looped_back"].as_u64().unwrap();
    assert_eq!(of_flows, 0, "{drops}");
    assert!(not_counted <= raw && not_counted + missed >= raw, "{drops}");
    let audit: Value = serde_json::from_slice(&audit.stdout).unwrap();
    for comparison in audit["comparisons"].as_array().unwrap() {
        assert_eq!(comparison["verdict"], "exact", "{comparison}");
        let explanations = comparison["explanations"].as_array().unwrap();
        let tells = explanations
            .iter()
            .any(|text| text.as_str().unwrap().contains("looped"));
        assert_eq!(tells, comparison["direction"] == "ingress", "{comparison}");
    }
}

/// Addresses that would make an Ethernet header of IP out of the copies' IP headers, and others.
const ADDRESSES: [(Ipv4Addr, Ipv6Addr); 2] = [
    (
        Ipv4Addr::new(134, 221, 96, 1),
        Ipv6Addr::new(0x2001, 0xdb8, 0x86dd, 0x6000, 0, 0, 0, 1),
    ),
    (
        Ipv4Addr::new(8, 0, 69, 1),
        Ipv6Addr::new(0x2001, 0xdb8, 0x0800, 0x4500, 0, 0, 0, 1),
    ),
];

#[test]
fn what_a_host_sends_to_everybody_is_counted_as_it_leaves_and_not_as_it_comes_back() {
    if !is_root_or_skip(
        "agent::what_a_host_sends_to_everybody_is_counted_as_it_leaves_and_not_as_it_comes_back",
    ) {
        return;
    }
    for (ipv4, ipv6) in ADDRESSES {
        let lab = Lab::addressed().unwrap();
        let host = &lab.agent;
        let sender = Sender {
            namespace: &host.namespace,
            interface: &host.interface,
            ifindex: host.ifindex,
            link_len_bytes: 14,
            ipv4,
            ipv6,
        };
        sender.take_addresses();
        counts_what_leaves_alone(host, &sender, None);
    }
}

#[test]
fn a_device_without_link_headers_counts_no_copy_either() {
    if !is_root_or_skip("agent::a_device_without_link_headers_counts_no_copy_either") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let namespace = &lab.agent.namespace;
    let tun = Tun::new(namespace, "tun0").unwrap();
    let (ipv4, ipv6) = ADDRESSES[1];
    let sender = Sender {
        namespace,
        interface: &tun.interface,
        ifindex: tun.ifindex,
        link_len_bytes: 0,
        ipv4,
        ipv6,
    };
    sender.take_addresses();
    counts_what_leaves_alone(&lab.agent, &sender, Some(&tun));
}

/// Loopback sends packets to itself. These are not copies, so they are counted on arrival.
#[test]
fn on_loopback_what_is_sent_to_everybody_arrives() {
    if !is_root_or_skip("agent::on_loopback_what_is_sent_to_everybody_arrives") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let host = &lab.agent;
    let agent = Agent::start_on(host, "lo", &[]);
    let counters = || lab::Counters::read(&host.namespace, "lo").unwrap();
    let before = counters();
    let send = || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, FROM)).context("bind")?;
        socket.set_broadcast(true)?;
        for to in ["127.255.255.255", "224.0.0.1"] {
            for _ in 0..EACH {
                socket.send_to(PAYLOAD, (to, TO))?;
            }
        }
        Ok(())
    };
    host.namespace.enter(send).unwrap();
    wait_until("all have arrived", || {
        agent.wait_for_scans(host, 1);
        pair(&agent.status(host)["account"]["seen"]).packets >= 2 * EACH
    });
    let growth = counters() - before;
    let report = agent.stop();
    assert_eq!(looped_back(&report), Pair::default());
    // The device counts bytes without the Ethernet header.
    let counted = Pair {
        packets: growth.rx_packets,
        bytes: growth.rx_bytes + 14 * growth.rx_packets,
    };
    assert_eq!(report.seen(), counted);
    assert_eq!(pair(&report.last()["flows"]), counted);
}
