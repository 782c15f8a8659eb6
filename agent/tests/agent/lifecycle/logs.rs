//! What the agent logs on request.

use lab::{Lab, privilege::is_root_or_skip};

use crate::support::{Agent, wait_until};

#[test]
fn the_programs_log_is_off_by_default_and_reaches_ours_where_it_is_on() {
    if !is_root_or_skip("agent::the_programs_log_is_off_by_default_and_reaches_ours_where_it_is_on")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let unknown = lab.peer.frame_v4(&lab.agent);
    let unknown = unknown.ether_type(0x88cc, &[0; 50]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let agent = Agent::start(&lab, &["--bpf-log-level", "debug"]);
    socket.send(&unknown).unwrap();
    wait_until("the log has the packet", || {
        agent.stderr().contains("not in a flow")
    });
    agent.stop();

    let agent = Agent::start(&lab, &[]);
    socket.send(&unknown).unwrap();
    let stderr = agent.stderr();
    assert_eq!(agent.stop().seen().packets, 1);
    assert!(!stderr.contains("not in a flow"), "{stderr}");
}
