//! An interface that goes away under the agent.

use lab::{Lab, privilege::is_root_or_skip};
use serde_json::Value;

use crate::{
    CLSACT, TCX,
    support::{Agent, NATIVE_XDP, count, flow_agent, wait_for_packets, wait_until},
};

fn status(lab: &Lab, agent: &Agent, format: &str) -> String {
    let mut command = flow_agent(&lab.agent);
    command.args(["status", "--output", format, "--connect", &agent.address()]);
    let output = command.output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_deleted_interface_ends_its_hooks_and_not_the_agent() {
    if !is_root_or_skip("agent::a_deleted_interface_ends_its_hooks_and_not_the_agent") {
        return;
    }
    for hooks in [TCX, CLSACT, NATIVE_XDP] {
        let lab = Lab::quiet().unwrap();
        let agent = Agent::start(&lab, hooks);
        let before = lab.agent.counters().unwrap();
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
        let frames = std::iter::repeat_n(&frame, 100);
        lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
        wait_for_packets(&lab.agent, before, 100);

        let are_gone = |gone: bool| {
            let status: Value = serde_json::from_str(&status(&lab, &agent, "json")).unwrap();
            let hooks = status["hooks"].as_array().unwrap();
            hooks.len() == 2 && hooks.iter().all(|hook| hook["interface_gone"] == gone)
        };
        assert!(are_gone(false));
        let interface = &lab.agent.interface;
        lab.agent.namespace.ip(&["link", "del", interface]).unwrap();
        wait_until("the status says so", || are_gone(true));
        assert!(status(&lab, &agent, "text").contains("the interface is gone"));
        let mut audit = flow_agent(&lab.agent);
        audit.args(["audit", "--connect", &agent.address()]);
        let audit = audit.output().unwrap();
        let text = String::from_utf8(audit.stdout).unwrap();
        assert!(audit.status.success() && text.contains("gone"), "{text}");
        let warnings = agent.stderr();
        assert_eq!(
            warnings.matches("the interface is gone").count(),
            1,
            "{warnings}"
        );
        assert_eq!(agent.stop().seen(), count(100, &frame), "{hooks:?}");
    }
}
