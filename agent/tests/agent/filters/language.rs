//! Every command takes the same filters: conditions without include or exclude mean only these.

use lab::{Lab, privilege::is_root_or_skip};

use crate::support::{Agent, flow_agent, pair, wait_until};

const PORTS: [u16; 3] = [9, 22, 53];

#[test]
fn a_condition_means_only_these_in_every_command() {
    if !is_root_or_skip("agent::a_condition_means_only_these_in_every_command") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--filter", "udp port ssh,domain", "--idle-timeout", "1h"];
    let agent = Agent::start(&lab, &settings);
    let host = lab.peer.frame_v4(&lab.agent);
    let frames = PORTS.map(|port| host.udp(7, port, &[0; 18]).unwrap());
    lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_until("all are counted", || {
        let account = agent.status(&lab.agent)["account"].clone();
        ["seen", "flows", "filtered"].map(|of| pair(&account[of]).packets) == [3, 2, 1]
    });
    let ports = |arguments: &[&str]| -> Vec<u64> {
        let json = ["--output", "json"];
        let output = agent.asked(&lab.agent, &[arguments, &json].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut ports: Vec<u64> = lines
            .filter_map(|line: serde_json::Value| line["dst_port"].as_u64())
            .collect();
        ports.sort_unstable();
        ports
    };
    let other = lab.agent.ipv4.to_string();
    for (filter, expected) in [
        ("port domain".to_owned(), vec![53]),
        (format!("{other} port 22"), vec![22]),
        (format!("host {other} udp; exclude port 22"), vec![53]),
        ("tcp".to_owned(), vec![]),
    ] {
        assert_eq!(ports(&["flows", "--filter", &filter]), expected, "{filter}");
        let once = ["top", "--once", "--every", "0s", "--filter", &filter];
        assert_eq!(ports(&once), expected, "{filter}");
    }
    let set = ["filter", "set", "port 22"];
    let in_force = agent.asked(&lab.agent, &set).stdout;
    let in_force = String::from_utf8(in_force).unwrap();
    assert!(
        in_force.starts_with("include port 22\nexclude all\n"),
        "{in_force}"
    );
    agent.stop();
}

#[test]
fn rules_for_packets_refuse_names_and_a_mistake_is_corrected_in_full() {
    const TEST: &str = "agent::rules_for_packets_refuse_names_and_a_mistake_is_corrected_in_full";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    for (arguments, told) in [
        (["run", "--filter", "host a.example"], "give the address"),
        (["check", "--filter", "host a.example"], "give the address"),
        (
            ["flows", "--filter", "tcp and port htps"],
            "  did you mean: tcp port https",
        ),
        (["filter", "set", "443"], "  did you mean: port 443"),
    ] {
        let output = flow_agent(&lab.agent).args(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(told), "{stderr}");
    }
}
