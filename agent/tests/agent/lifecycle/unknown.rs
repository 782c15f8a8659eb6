//! Our program on an interface that the agent does not watch: the account must have its packets.

use lab::{FrameSocket, Lab, privilege::is_root_or_skip};

use super::TCX;
use crate::support::{Agent, attached::hang_ours_on, count, pair, wait_for_packets, wait_until};

#[test]
fn packets_of_an_unknown_interface_are_counted_as_such() {
    if !is_root_or_skip("agent::packets_of_an_unknown_interface_are_counted_as_such") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    namespace.add_wire(["other0", "other1"]).unwrap();
    let agent = Agent::start(&lab, TCX);
    let link = hang_ours_on(&lab.agent, namespace.ifindex("other0").unwrap());

    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 50]).unwrap();
    let before = lab.agent.counters().unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many((0..50).map(|_| &frame)).unwrap();
    wait_for_packets(&lab.agent, before, 50);
    agent.wait_for_scans(&lab.agent, 2);
    let is_warned_of = || agent.stderr().contains("is not watched");
    assert!(!is_warned_of());
    let socket = FrameSocket::new(namespace, "other1").unwrap();
    socket.send_many((0..30).map(|_| &frame)).unwrap();
    wait_until("the status says so", || {
        let account = &agent.status(&lab.agent)["account"];
        pair(&account["unparsed"]["unknown_interface"]) == count(30, &frame)
    });
    wait_until("the log says so, too", is_warned_of);
    let report = agent.stop();
    assert_eq!(report.seen(), count(80, &frame));
    assert_eq!(pair(&report.last()["flows"]), count(50, &frame));
    let unknown = &report.last()["unparsed"]["unknown_interface"];
    assert_eq!(pair(unknown), count(30, &frame));
    drop(link);
}
