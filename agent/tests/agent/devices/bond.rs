//! XDP on a bond. From 5.15 the kernel puts a native program on the bond's lower devices (`bond_xdp_set`),
//! where the program sees their indexes instead of the bond's.

use agent_common::Pair;
use lab::{
    FrameSocket, Lab,
    privilege::{is_root_or_skip, skip},
};

use super::device::{Kind, NAME};
use crate::support::{Agent, attached::hang_our_xdp_on, count, pair, wait_for_packets, wait_until};

const PACKETS: u64 = 100;

/// A lab whose wire is bonded at both ends. `None` if the test is skipped.
fn bonded(test: &str) -> Option<Lab> {
    let test = format!("agent::{test}");
    if !is_root_or_skip(&test) {
        return None;
    }
    let mut lab = Lab::addressed().unwrap();
    if !Kind::BOND.make(&mut lab).unwrap() {
        skip(&test, "this kernel has no bonding device");
        return None;
    }
    // An unused address, so that nobody answers.
    lab.agent.ipv4 = [10, 78, 0, 99].into();
    Some(lab)
}

/// Lets the frames of a flow arrive at the bond.
fn send(lab: &Lab) -> Vec<u8> {
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 50]).unwrap();
    let before = lab.agent.counters().unwrap();
    let socket = FrameSocket::new(&lab.peer.namespace, NAME).unwrap();
    socket.send_many((0..PACKETS).map(|_| &frame)).unwrap();
    wait_for_packets(&lab.agent, before, PACKETS);
    frame
}

#[test]
fn a_bond_is_counted_at_tc_where_xdp_is_asked_for() {
    let Some(lab) = bonded("a_bond_is_counted_at_tc_where_xdp_is_asked_for") else {
        return;
    };
    for mode in ["auto", "native"] {
        let settings = ["--ingress-hook", "xdp", "--xdp-mode", mode];
        let agent = Agent::start_on(&lab.agent, NAME, &settings);
        let hook = &agent.status(&lab.agent)["hooks"][0];
        assert_eq!(hook["hook"], "tc_ingress", "{mode}");
        assert_eq!(hook["instead_of_xdp"], "lower_devices", "{mode}");
        let log = agent.stderr();
        let told = log
            .lines()
            .find(|line| line.contains("counting at TC and not at XDP"));
        let why = "the kernel puts native XDP on its lower devices; name these to count there";
        assert!(told.is_some_and(|line| line.contains(why)), "{log}");
        let frame = send(&lab);
        wait_until("they are counted", || {
            pair(&agent.status(&lab.agent)["account"]["seen"]).packets == PACKETS
        });
        let report = agent.stop();
        assert_eq!(report.seen(), count(PACKETS, &frame), "{mode}");
        assert_eq!(pair(&report.last()["flows"]), report.seen(), "{mode}");
    }
}

/// Puts a native program on a bond, which the agent itself never does. Every packet must be counted.
#[test]
fn what_xdp_sees_on_a_bonds_lower_device_is_counted_as_unknown() {
    let Some(lab) = bonded("what_xdp_sees_on_a_bonds_lower_device_is_counted_as_unknown") else {
        return;
    };
    let namespace = &lab.agent.namespace;
    namespace.add_wire(["own0", "own1"]).unwrap();
    let settings = ["--ingress-hook", "xdp", "--xdp-mode", "native"];
    let settings = [&settings[..], &["--xdp-without-tags", "--interface", NAME]].concat();
    let agent = Agent::start_on(&lab.agent, "own0", &settings);
    let link = hang_our_xdp_on(&lab.agent, "own0", namespace.ifindex(NAME).unwrap());

    let frame = send(&lab);
    // XDP counts them at the lower device, and TC at the bond.
    wait_until("they are counted twice", || {
        pair(&agent.status(&lab.agent)["account"]["seen"]).packets == 2 * PACKETS
    });
    let report = agent.stop();
    let once = count(PACKETS, &frame);
    let unknown = pair(&report.last()["unparsed"]["unknown_interface"]);
    assert_eq!(unknown, once);
    assert_eq!(pair(&report.last()["flows"]), once);
    let on_bond: Pair = report.sums_on(NAME).values().flatten().copied().sum();
    assert_eq!(on_bond, once);
    assert_eq!(report.seen(), once + once);
    drop(link);
}
