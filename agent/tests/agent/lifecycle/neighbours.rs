//! Other programs on the same interface: two agents both count exactly, and the verdicts of strangers hold.

use std::{net::UdpSocket, thread, time::Duration};

use lab::{Lab, privilege::is_root_or_skip};

use super::{CLSACT, TCX, has_tcx_or_skip, here};
use crate::support::{
    Agent, NATIVE_XDP,
    attached::{
        add_filter, detach_links_of, filters, tc, tcx_ingress, tcx_ingress_id, xdp, xdp_id,
    },
    count, patience, wait_for_packets, wait_until,
};

const OK: i32 = 0;
const DROP: i32 = 2;
const NEXT: i32 = -1;
const PACKETS: u64 = 100;
const PORT: u16 = 4242;

fn send(lab: &Lab, port: u16, packets: u64) -> Vec<u8> {
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.udp(1000, port, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    let frames = (0..packets).map(|_| &frame);
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    wait_for_packets(&lab.agent, before, packets);
    frame
}

#[test]
fn two_agents_count_the_same_and_one_outlives_the_other() {
    if !is_root_or_skip("agent::two_agents_count_the_same_and_one_outlives_the_other") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let ways = || here([TCX, CLSACT]);
    for (first, second) in ways().flat_map(|first| ways().map(move |second| (first, second))) {
        let agents = [first, second].map(|hooks| Agent::start(&lab, hooks));
        let [first_agent, second_agent] = agents;
        let frame = send(&lab, PORT, 1000);
        assert_eq!(first_agent.stop().seen(), count(1000, &frame), "{first:?}");
        send(&lab, PORT, 500);
        let seen = second_agent.stop().seen();
        assert_eq!(seen, count(1500, &frame), "{first:?}, then {second:?}");
    }
}

/// With all programs, or one of the two.
#[test]
fn filters_that_somebody_removes_are_put_back_and_none_is_there_twice() {
    if !is_root_or_skip("agent::filters_that_somebody_removes_are_put_back_and_none_is_there_twice")
    {
        return;
    }
    for removal in [
        "qdisc del dev agent0 clsact",
        "filter del dev agent0 ingress pref 7",
    ] {
        let lab = Lab::quiet().unwrap();
        let agent = Agent::start(&lab, &[CLSACT, &["--scan-interval", "200ms"]].concat());
        let ours = || filters(&lab.agent, "agent0").matches("flow-agent:").count();
        let before = ours();
        let received = send(&lab, PORT, 10);
        tc(&lab.agent, removal);
        wait_until("both are put back", || {
            let log = agent.stderr();
            log.contains("its programs were removed by another process")
                && log.contains("counting on an interface that came")
        });
        assert_eq!(ours(), before, "{removal}");
        send(&lab, PORT, 10);
        let sent = lab.agent.frame_v4(&lab.peer).udp(7, 8, &[0; 18]).unwrap();
        lab.agent.frame_socket().unwrap().send(&sent).unwrap();
        let report = agent.stop();
        assert_eq!(
            report.seen(),
            count(20, &received) + count(1, &sent),
            "{removal}"
        );
    }
}

/// The kernel does not notify anyone of that.
#[test]
fn links_that_somebody_detaches_are_attached_again() {
    if !is_root_or_skip("agent::links_that_somebody_detaches_are_attached_again") {
        return;
    }
    for hooks in here([TCX, NATIVE_XDP]) {
        let lab = Lab::quiet().unwrap();
        let agent = Agent::start(&lab, &[hooks, &["--scan-interval", "1h"]].concat());
        let frame = send(&lab, PORT, 10);
        let program = match hooks {
            NATIVE_XDP => xdp_id(&lab.agent) as u32,
            _ => tcx_ingress_id(&lab.agent),
        };
        assert_eq!(detach_links_of(program), 1);
        wait_until("it is attached again", || {
            let log = agent.stderr();
            log.contains("its programs were removed by another process")
                && log.contains("counting on an interface that came")
        });
        send(&lab, PORT, 10);
        assert_eq!(agent.stop().seen(), count(20, &frame), "{hooks:?}");
    }
}

#[test]
fn a_strangers_generic_xdp_is_warned_of_and_hides_no_packet_from_the_account() {
    if !is_root_or_skip(
        "agent::a_strangers_generic_xdp_is_warned_of_and_hides_no_packet_from_the_account",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let theirs = xdp(&lab.agent);
    let their_id = xdp_id(&lab.agent);
    let agent = Agent::start(&lab, &[]);
    assert!(
        agent
            .stderr()
            .contains("another owner's generic XDP program")
    );
    assert_eq!(xdp_id(&lab.agent), their_id, "beside us");
    send(&lab, PORT, PACKETS);
    assert_eq!(agent.stop().seen().packets, PACKETS);
    assert_eq!(xdp_id(&lab.agent), their_id, "after us");
    drop(theirs);
}

/// How many of [`PACKETS`] reach a socket on the agent's host. Waits for the expected number, and would notice
/// more.
fn delivered(lab: &Lab, expected: u64) -> u64 {
    // A new port each time: a child of another test may hold the last one until it has exec'ed.
    let address = (lab.agent.ipv4, 0);
    let bind = || Ok(UdpSocket::bind(address)?);
    let socket = lab.agent.namespace.enter(bind).unwrap();
    send(lab, socket.local_addr().unwrap().port(), PACKETS);
    let mut delivered = 0;
    loop {
        let patience = if delivered < expected {
            patience()
        } else {
            Duration::from_millis(200)
        };
        socket.set_read_timeout(Some(patience)).unwrap();
        if socket.recv(&mut [0; 64]).is_err() {
            return delivered;
        }
        delivered += 1;
    }
}

#[test]
fn a_strangers_filter_decides_as_without_us() {
    if !is_root_or_skip("agent::a_strangers_filter_decides_as_without_us") {
        return;
    }
    for (verdict, expected) in [(OK, PACKETS), (NEXT, PACKETS), (DROP, 0)] {
        // The stranger's priority on clsact: before us, and behind us.
        for priority in [1, 100] {
            let lab = Lab::addressed().unwrap();
            let interface = &lab.agent.interface;
            tc(&lab.agent, &format!("qdisc add dev {interface} clsact"));
            let place = format!("ingress prio {priority}");
            add_filter(&lab.agent, &place, verdict);
            assert_eq!(delivered(&lab, expected), expected, "without us");
            for hooks in here([TCX, CLSACT]) {
                let agent = Agent::start(&lab, hooks);
                let what = format!("{verdict} at {priority} with {hooks:?}");
                assert_eq!(delivered(&lab, expected), expected, "{what}");
                let seen = agent.stop().seen().packets;
                // If a stranger before us ends the chain, we see nothing.
                let is_hidden = hooks == CLSACT && priority == 1 && verdict != NEXT;
                assert_eq!(seen, if is_hidden { 0 } else { PACKETS }, "{what}");
            }
            assert_eq!(delivered(&lab, expected), expected, "after us");
        }
    }
}

#[test]
fn a_strangers_tcx_program_decides_as_without_us() {
    if !has_tcx_or_skip("agent::a_strangers_tcx_program_decides_as_without_us") {
        return;
    }
    for (verdict, expected) in [(OK, PACKETS), (NEXT, PACKETS), (DROP, 0)] {
        let lab = Lab::addressed().unwrap();
        let behind = tcx_ingress(&lab.agent, verdict);
        assert_eq!(delivered(&lab, expected), expected, "without us");
        let agent = Agent::start(&lab, TCX);
        assert_eq!(delivered(&lab, expected), expected, "{verdict} behind us");
        drop(behind);
        let before = tcx_ingress(&lab.agent, verdict);
        assert_eq!(delivered(&lab, expected), expected, "{verdict} before us");
        let seen = agent.stop().seen().packets;
        let unseen = if verdict == NEXT { 0 } else { PACKETS };
        assert_eq!(seen, 2 * PACKETS - unseen);
        assert_eq!(delivered(&lab, expected), expected, "{verdict} after us");
        drop(before);
        assert_eq!(delivered(&lab, PACKETS), PACKETS, "after all");
    }
}

#[test]
fn the_order_at_tcx_decides_whether_what_a_stranger_drops_is_counted() {
    if !has_tcx_or_skip("agent::the_order_at_tcx_decides_whether_what_a_stranger_drops_is_counted")
    {
        return;
    }
    for (order, seen) in [("first", PACKETS), ("last", 0)] {
        let lab = Lab::addressed().unwrap();
        let theirs = tcx_ingress(&lab.agent, DROP);
        let agent = Agent::start(&lab, &[TCX, &["--tcx-order", order]].concat());
        assert_eq!(delivered(&lab, 0), 0, "{order}");
        assert_eq!(agent.stop().seen().packets, seen, "{order}");
        drop(theirs);
    }
}

#[test]
fn a_strangers_redirect_still_redirects() {
    if !is_root_or_skip("agent::a_strangers_redirect_still_redirects") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let interface = &lab.agent.interface;
    lab.agent.namespace.add_wire(["out0", "out1"]).unwrap();
    tc(&lab.agent, &format!("qdisc add dev {interface} clsact"));
    tc(
        &lab.agent,
        &format!(
            "filter add dev {interface} ingress prio 100 protocol all u32 match u32 0 0 action \
             mirred egress redirect dev out0"
        ),
    );
    let arrived = || lab::Counters::read(&lab.agent.namespace, "out1").unwrap();
    let before = arrived();
    assert_eq!(delivered(&lab, 0), 0);
    wait_until("the packets are redirected without an agent", || {
        (arrived() - before).rx_packets >= PACKETS
    });
    let whole = arrived() - before;
    for hooks in here([TCX, CLSACT, NATIVE_XDP]) {
        let before = arrived();
        let agent = Agent::start(&lab, hooks);
        assert_eq!(delivered(&lab, 0), 0, "{hooks:?}");
        wait_until("the packets are redirected", || {
            (arrived() - before).rx_packets >= PACKETS
        });
        // Gives further packets time to arrive.
        thread::sleep(Duration::from_millis(50));
        let redirected = arrived() - before;
        assert_eq!(redirected.rx_packets, PACKETS, "{hooks:?}");
        // With their headers.
        assert_eq!(redirected.rx_bytes, whole.rx_bytes, "{hooks:?}");
        assert_eq!(agent.stop().seen().packets, PACKETS, "{hooks:?}");
    }
}
