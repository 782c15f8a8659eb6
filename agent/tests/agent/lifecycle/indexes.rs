//! Interfaces with the highest indexes that the kernel gives.

use lab::{FrameSocket, Lab, privilege::is_root_or_skip};

use crate::support::{Agent, count, wait_until};

#[test]
fn memory_follows_the_number_of_interfaces_and_not_their_indexes() {
    if !is_root_or_skip("agent::memory_follows_the_number_of_interfaces_and_not_their_indexes") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let wires = [
        ("low", "71"),
        ("late", "72"),
        ("high", "10000000"),
        ("far", "2000000000"),
    ];
    for (wire, index) in wires {
        let (near, other) = (format!("{wire}0"), format!("{wire}1"));
        let link = ["link", "add", &near, "index", index, "type", "veth"];
        let link = [&link[..], &["peer", "name", &other]].concat();
        namespace.ip(&link).unwrap();
        for end in [near, other] {
            let up = ["link", "set", &end, "addrgenmode", "none", "up"];
            namespace.ip(&up).unwrap();
        }
    }
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let memory = ["low0,late0", "high0,far0"].map(|interfaces| {
        let agent = Agent::start_on(&lab.agent, interfaces, &[]);
        for (name, number) in interfaces.split(',').zip([3, 5]) {
            let other = name.replace('0', "1");
            let socket = FrameSocket::new(namespace, &other).unwrap();
            socket
                .send_many(std::iter::repeat_n(&frame, number))
                .unwrap();
        }
        let status = || agent.status(&lab.agent);
        wait_until("all are counted", || {
            status()["account"]["seen"]["packets"] == 8
        });
        let memory = status()["memory"]["kernel_map_bytes"].as_u64().unwrap();
        let report = agent.stop();
        assert_eq!(report.seen(), count(8, &frame));
        for (name, number) in interfaces.split(',').zip([3, 5]) {
            let flows: Vec<_> = report.sums_on(name).into_values().collect();
            assert_eq!(flows, [[count(number, &frame), count(0, &frame)]], "{name}");
        }
        memory
    });
    assert_eq!(memory[0], memory[1]);
}
