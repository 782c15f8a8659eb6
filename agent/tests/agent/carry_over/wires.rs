//! Interfaces that come and go while no agent runs.

use agent_common::Pair;
use lab::{Counters, FrameSocket};

use super::{Line, has_links_or_skip, wait_until};
use crate::support::{count, hook::Hook};

const PACKETS: u64 = 500;

/// Its other end is in the same namespace.
const WIRE: [&str; 2] = ["gone0", "far0"];

/// A line of agents that also count on a second wire while it exists.
fn with_a_second_wire() -> Line {
    let mut line = Line::new(Hook::TcIngress, &[]);
    line.lab.agent.namespace.add_wire(WIRE).unwrap();
    line.interfaces.push_str(",gone*");
    line
}

/// Sends packets to the near end of the second wire. Returns their sum.
fn send(line: &Line, port: u16) -> Pair {
    let namespace = &line.lab.agent.namespace;
    let frame = line.lab.peer.frame_v4(&line.lab.agent);
    let frame = frame.udp(port, 9, &[0; 18]).unwrap();
    let received = || Counters::read(namespace, WIRE[0]).unwrap();
    let before = received();
    let socket = FrameSocket::new(namespace, WIRE[1]).unwrap();
    socket.send_many((0..PACKETS).map(|_| &frame)).unwrap();
    wait_until("they arrive", || {
        (received() - before).rx_packets == PACKETS
    });
    count(PACKETS, &frame)
}

#[test]
fn what_passed_a_deleted_interface_is_reported_by_the_next_agent() {
    if !has_links_or_skip("agent::what_passed_a_deleted_interface_is_reported_by_the_next_agent") {
        return;
    }
    let line = with_a_second_wire();
    let agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    let mut on_second = send(&line, 1);
    agent.kill();
    on_second += send(&line, 2);
    let delete = ["link", "delete", WIRE[0]];
    line.lab.agent.namespace.ip(&delete).unwrap();
    traffic.wait_for(50);
    let agent = line.start();
    traffic.wait_for(50);
    drop(traffic);
    let counted = line.counted(before) + on_second;
    let books = line.end(agent, counted);
    for port in [1, 2] {
        assert_eq!(books.packets_from(port), PACKETS);
    }
}

/// The link in the store belongs to the deleted interface.
#[test]
fn an_interface_with_the_number_of_a_deleted_one_is_counted_from_its_start() {
    const TEST: &str =
        "agent::an_interface_with_the_number_of_a_deleted_one_is_counted_from_its_start";
    if !has_links_or_skip(TEST) {
        return;
    }
    let line = with_a_second_wire();
    let agent = line.start();
    let before = line.counters();
    let mut on_second = send(&line, 1);
    agent.kill();
    on_second += send(&line, 2);
    let namespace = &line.lab.agent.namespace;
    let ifindex = namespace.ifindex(WIRE[0]).unwrap().to_string();
    namespace.ip(&["link", "delete", WIRE[0]]).unwrap();
    let [near, far] = WIRE;
    let add = ["link", "add", near, "index", &ifindex, "type", "veth"];
    namespace
        .ip(&[&add[..], &["peer", "name", far]].concat())
        .unwrap();
    for end in WIRE {
        let silent = ["link", "set", end, "up", "arp", "off"];
        namespace
            .ip(&[&silent[..], &["addrgenmode", "none"]].concat())
            .unwrap();
    }
    let agent = line.start();
    on_second += send(&line, 3);
    let books = line.end(agent, line.counted(before) + on_second);
    for port in [1, 2, 3] {
        assert_eq!(books.packets_from(port), PACKETS);
    }
}
