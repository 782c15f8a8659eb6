//! Interfaces that appear while a large set of rules is loaded, and afterwards.

use std::{collections::BTreeSet, fs, net::Ipv4Addr, process::Stdio};

use lab::{Lab, Process, kernel, privilege::is_root_or_skip};

use crate::{
    lifecycle::coming::{packets_on, selection, send, wait_until_watched},
    support::{Agent, count, flow_agent, pair, patience, threads::thread_named, wait_until},
};

/// Whether it fills the maps of a set, or has just done so.
fn is_changing_rules(agent: &mut Agent) -> bool {
    thread_named(agent.pid(), "rules").is_some()
}

/// The ids of the maps that it keeps networks in.
fn tries(agent: &mut Agent) -> BTreeSet<String> {
    let folder = format!("/proc/{}/fdinfo", agent.pid());
    let files = fs::read_dir(folder).unwrap().flatten();
    let infos = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    // BPF_MAP_TYPE_LPM_TRIE.
    let of_tries = infos.filter(|info| info.lines().any(|line| line == "map_type:\t11"));
    let ids = of_tries.filter_map(|info| {
        let id = info.lines().find(|line| line.starts_with("map_id:"));
        id.map(str::to_owned)
    });
    ids.collect()
}

#[test]
fn an_interface_that_comes_waits_for_no_networks_of_rules() {
    const IN_FORCE: &str = "filter rules are in force";
    const ROUNDS: usize = 10;
    if !is_root_or_skip("agent::an_interface_that_comes_waits_for_no_networks_of_rules") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let mut agent = Agent::start_on(&lab.agent, &selection(&lab), &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    let networks = kernel::packets(400_000, 20_000) as u32;
    let network = |number: u32| format!("{}/32", Ipv4Addr::from_bits(0x0a00_0000 + number * 2));
    let list: Vec<String> = (0..networks).map(network).collect();
    let set = format!(
        "exclude on new* dst port 1\nexclude src net {}\n",
        list.join(",")
    );
    fs::write(&file, set).unwrap();

    // It may be delayed until the rules are in force. That does not happen every time.
    let mut came = 0;
    let mut has_waited = true;
    while has_waited && came < ROUNDS {
        let told = agent.stderr().len();
        let mut command = flow_agent(&lab.agent);
        command.args(["filter", "set", "--connect", &agent.address(), "--file"]);
        command.arg(&file).stdout(Stdio::null());
        let mut setting = Process::spawn(&mut command).unwrap();
        wait_until("the rules are read", || {
            is_changing_rules(&mut agent) || setting.exited().unwrap().is_some()
        });
        let (near, far) = (format!("new{came}"), format!("far{came}"));
        namespace.add_wire([&near, &far]).unwrap();
        wait_until_watched(&lab, &agent, &near);
        has_waited = agent.stderr().split_off(told).contains(IN_FORCE);
        assert!(setting.wait(patience()).unwrap().success());
        came += 1;
    }
    assert!(!has_waited, "{}", agent.stderr());

    // Rules that name interfaces are rebuilt for each new interface, except their networks.
    let before = tries(&mut agent);
    assert_eq!(before.len(), 2, "{before:?}");
    namespace.add_wire(["new99", "far99"]).unwrap();
    wait_until_watched(&lab, &agent, "new99");
    assert_eq!(tries(&mut agent), before);

    // The rules know each interface by name, and the networks are loaded.
    let frame = |host: u32, port: u16| {
        let from = Ipv4Addr::from_bits(0x0a00_0000 + host);
        let frame = lab.peer.frame_v4(&lab.agent);
        let frame = frame.between(from, lab.agent.ipv4);
        frame.udp(9, port, &[0; 18]).unwrap()
    };
    for wire in [["new0", "far0"], ["new99", "far99"]] {
        for (host, port) in [(1, 1), (2 * networks - 2, 2), (1, 2)] {
            send(&lab, wire, &frame(host, port), 10);
        }
    }
    let report = agent.stop();
    assert_eq!(pair(&report.last()["filtered"]), count(40, &frame(1, 1)));
    for interface in ["new0", "new99"] {
        assert_eq!(packets_on(&report, interface), 10, "{interface}");
    }
}
