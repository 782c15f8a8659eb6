//! An interface that goes away while the agent counts on it.

use lab::{Host, Lab, Namespace, privilege::is_root_or_skip};
use serde_json::Value;

use super::{
    CLSACT, TCX,
    coming::{IFINDEX, ip, send as send_over, wait_until_watched},
    here,
};
use crate::support::{
    Agent, Both, NATIVE_XDP, attached::nothing_is_attached, count, pair, wait_for_packets,
    wait_until,
};

/// The ways to attach that this kernel has.
fn every_way() -> impl Iterator<Item = &'static [&'static str]> {
    here([TCX, CLSACT, NATIVE_XDP])
}

fn status(lab: &Lab, agent: &Agent, format: &str) -> String {
    let output = agent.asked(&lab.agent, &["status", "--output", format]);
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_deleted_interface_ends_its_hooks_and_not_the_agent() {
    if !is_root_or_skip("agent::a_deleted_interface_ends_its_hooks_and_not_the_agent") {
        return;
    }
    for hooks in every_way() {
        let lab = Lab::quiet().unwrap();
        let agent = Agent::start(&lab, hooks);
        let before = lab.agent.counters().unwrap();
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
        let frames = std::iter::repeat_n(&frame, 100);
        lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
        wait_for_packets(&lab.agent, before, 100);

        let hooks_left = || {
            let status: Value = serde_json::from_str(&status(&lab, &agent, "json")).unwrap();
            status["hooks"].as_array().unwrap().len()
        };
        assert_eq!(hooks_left(), 2);
        let interface = &lab.agent.interface;
        lab.agent.namespace.ip(&["link", "del", interface]).unwrap();
        wait_until("the status says so", || hooks_left() == 0);
        let text = status(&lab, &agent, "text");
        assert!(text.contains("1 interfaces that have left"), "{text}");
        let audit = agent.asked(&lab.agent, &["audit"]);
        let text = String::from_utf8(audit.stdout).unwrap();
        assert!(audit.status.success());
        assert!(text.contains("1 interfaces have left"), "{text}");
        let log = agent.stderr();
        assert_eq!(log.matches("the interface is gone").count(), 1, "{log}");
        assert_eq!(agent.stop().seen(), count(100, &frame), "{hooks:?}");
    }
}

/// A new interface has the index of one that left, and receives a fragment with the same identification.
#[test]
fn a_fragment_joins_no_datagram_of_an_interface_that_has_left() {
    const UDP: u8 = 17;
    if !is_root_or_skip("agent::a_fragment_joins_no_datagram_of_an_interface_that_has_left") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let agent = Agent::start_on(&lab.agent, "lo,new*", &[]);
    let base = lab.peer.frame_v4(&lab.agent);
    let first = base.clone().fragment(7, 0, true);
    let fragments = [
        first.udp(1000, 53, &[0; 56]).unwrap(),
        base.fragment(7, 64, false).ip(UDP, &[0; 13]).unwrap(),
    ];
    for (number, fragment) in (0..).zip(&fragments) {
        let add = format!("link add new0 index {IFINDEX} type veth peer name far0");
        ip(namespace, &add);
        for end in ["new0", "far0"] {
            ip(namespace, &format!("link set {end} up"));
        }
        wait_until_watched(&lab, &agent, "new0");
        send_over(&lab, ["new0", "far0"], fragment, 1);
        ip(namespace, "link del new0");
        wait_until("it has departed", || {
            agent.status(&lab.agent)["interfaces"]["departed"] == number + 1
        });
    }
    let report = agent.stop();
    let once = |fragment: &[u8]| count(1, fragment);
    assert_eq!(report.seen(), once(&fragments[0]) + once(&fragments[1]));
    let beside = |fact: &str| pair(&report.last()["beside"][fact]);
    assert_eq!(beside("fragments_unmatched"), once(&fragments[1]));
    assert_eq!(beside("fragments_joined"), count(0, &fragments[1]));
}

/// Moves the agent's end of the wire to another namespace and brings it up there.
fn moved(lab: &Lab, to: Namespace) -> Host {
    let interface = lab.agent.interface.clone();
    let arguments = ["link", "set", &interface, "netns", to.name()];
    lab.agent.namespace.ip(&arguments).unwrap();
    let (mac, ipv4, ipv6) = (lab.agent.mac, lab.agent.ipv4, lab.agent.ipv6);
    Host {
        ifindex: to.ifindex(&interface).unwrap(),
        namespace: to,
        interface,
        mac,
        ipv4,
        ipv6,
    }
}

/// Brings an end up and waits until frames pass, which takes some time (`linkwatch_event`).
fn bring_up(lab: &Lab, host: &Host, frame: &[u8]) {
    let up = ["link", "set", &host.interface, "up"];
    host.namespace.ip(&up).unwrap();
    let before = host.counters().unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    wait_until("frames pass again", || {
        // May fail: without a carrier the qdisc takes no frame (`noop_qdisc`).
        let _ = socket.send(frame);
        host.counters().unwrap().rx_packets > before.rx_packets
    });
}

fn send(lab: &Lab, to: &Host, packets: u64, frame: &[u8]) {
    let before = to.counters().unwrap();
    let frames = std::iter::repeat_n(frame, packets as usize);
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    wait_for_packets(to, before, packets);
}

#[test]
fn an_interface_that_moves_away_takes_no_program_along() {
    if !is_root_or_skip("agent::an_interface_that_moves_away_takes_no_program_along") {
        return;
    }
    for hooks in every_way() {
        let lab = Lab::quiet().unwrap();
        let agent = Agent::start(&lab, hooks);
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
        send(&lab, &lab.agent, 100, &frame);
        let elsewhere = moved(&lab, Namespace::new("elsewhere").unwrap());
        wait_until("the programs are gone", || nothing_is_attached(&elsewhere));
        bring_up(&lab, &elsewhere, &frame);
        send(&lab, &elsewhere, 200, &frame);
        wait_until("the status says so", || {
            let status = agent.status(&lab.agent);
            status["interfaces"]["departed"] == 1
        });
        assert_eq!(agent.stop().seen(), count(100, &frame), "{hooks:?}");
    }
}

/// In the other namespace the interface gets the index that another watched interface has in ours.
#[test]
fn an_interface_that_moves_away_counts_as_no_other() {
    if !is_root_or_skip("agent::an_interface_that_moves_away_counts_as_no_other") {
        return;
    }
    for hooks in every_way() {
        let (lab, elsewhere) = (Lab::quiet().unwrap(), Namespace::new("elsewhere").unwrap());
        // Its own index is taken there, and the next free one is that of `other`.
        let taken = "link add taken type veth peer name takenp";
        elsewhere.ip(&taken.split(' ').collect::<Vec<_>>()).unwrap();
        let last = elsewhere.ifindex("taken").unwrap();
        assert!(lab.agent.ifindex <= last);
        let next = format!("link add other index {} type veth", last + 1);
        let namespace = &lab.agent.namespace;
        namespace.ip(&next.split(' ').collect::<Vec<_>>()).unwrap();
        let interfaces = format!("{},other", lab.agent.interface);
        let agent = Agent::start_on(&lab.agent, &interfaces, hooks);
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
        send(&lab, &lab.agent, 100, &frame);

        let elsewhere = moved(&lab, elsewhere);
        assert_eq!(
            elsewhere.ifindex,
            lab.agent.namespace.ifindex("other").unwrap()
        );
        wait_until("the programs are gone", || nothing_is_attached(&elsewhere));
        bring_up(&lab, &elsewhere, &frame);
        send(&lab, &elsewhere, 200, &frame);
        let report = agent.stop();
        assert_eq!(report.seen(), count(100, &frame), "{hooks:?}");
        assert!(report.sums_on("other").is_empty(), "{hooks:?}");
    }
}

/// The agent hears of the move only after its programs have run elsewhere for a long time.
#[test]
fn an_interface_that_moves_away_behind_a_stopped_agent_begins_no_flows() {
    if !is_root_or_skip(
        "agent::an_interface_that_moves_away_behind_a_stopped_agent_begins_no_flows",
    ) {
        return;
    }
    for hooks in every_way().filter(|&hooks| hooks != CLSACT) {
        let lab = Lab::quiet().unwrap();
        let agent = Agent::start(&lab, hooks);
        let frame = |port| {
            let udp = lab.peer.frame_v4(&lab.agent);
            udp.udp(port, 2, &[0; 18]).unwrap()
        };
        send(&lab, &lab.agent, 100, &frame(1));
        agent.signal(libc::SIGSTOP);
        let elsewhere = moved(&lab, Namespace::new("elsewhere").unwrap());
        bring_up(&lab, &elsewhere, &frame(3));
        send(&lab, &elsewhere, 200, &frame(4));
        agent.signal(libc::SIGCONT);
        wait_until("the programs are gone", || nothing_is_attached(&elsewhere));
        wait_until("it is said", || {
            agent.stderr().contains("went to another network namespace")
        });

        let report = agent.stop();
        assert_eq!(pair(&report.last()["flows"]), count(100, &frame(1)));
        let unknown = pair(&report.last()["unparsed"]["unknown_interface"]);
        assert!(unknown.packets > 200, "{hooks:?}: {unknown:?}");
        // The other namespace may send something of its own when the interface comes up.
        assert_eq!(report.seen().packets, 100 + unknown.packets);
    }
}

#[test]
fn a_renamed_interface_is_told_by_its_new_name() {
    if !is_root_or_skip("agent::a_renamed_interface_is_told_by_its_new_name") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    send(&lab, &lab.agent, 100, &frame);
    let name = || agent.status(&lab.agent)["hooks"][0]["interface"]["name"].clone();
    let seen = || agent.status(&lab.agent)["account"]["seen"]["packets"].clone();
    wait_until("the first are counted", || seen() == 100);

    let set = ["link", "set", &lab.agent.interface];
    for change in [&["down"][..], &["name", "fresh0"]] {
        lab.agent
            .namespace
            .ip(&[&set[..], change].concat())
            .unwrap();
    }
    wait_until("the status has the name", || name() == "fresh0");
    lab.agent
        .namespace
        .ip(&["link", "set", "fresh0", "up"])
        .unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    wait_until("frames pass again", || {
        // May fail: without a carrier the qdisc takes no frame (`noop_qdisc`).
        let _ = socket.send(&frame);
        seen().as_u64() > Some(100)
    });
    let report = agent.stop();
    assert_eq!(report.log.matches("an interface was renamed").count(), 1);
    let old = report.sums_on(&lab.agent.interface).into_values();
    let new = report.sums_on("fresh0").into_values();
    let packets = |sums: &[Both]| sums.iter().map(|both| both[0].packets).sum::<u64>();
    let (old, new): (Vec<Both>, Vec<Both>) = (old.collect(), new.collect());
    assert_eq!(packets(&old), 100);
    assert_eq!(packets(&old) + packets(&new), report.seen().packets);
    assert!(packets(&new) > 0);
}
