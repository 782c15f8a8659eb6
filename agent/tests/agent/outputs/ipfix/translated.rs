//! Flows that the agent's host translates (`--enrich nat`).

use super::{start_nfcapd, udp, wait_until_read};
use crate::{
    clients::install,
    nat::{Ask, MASQUERADE, Routed},
    support::patience,
};
use lab::privilege::is_root_or_skip;
use serde_json::Value;
use std::{fs, process::Command};
use tempfile::TempDir;

#[test]
fn nfdump_has_the_addresses_behind_a_translation() {
    const TEST: &str = "agent::nfdump_has_the_addresses_behind_a_translation";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some([nfcapd, nfdump]) = install::nfdump_or_skip(TEST) else {
        return;
    };
    let network = Routed::new(MASQUERADE);
    let lab = &network.lab;
    let folder = TempDir::new().unwrap();
    let (mut nfcapd, files) = start_nfcapd(&nfcapd, lab, folder.path());
    let agent = network.start(&["--output", "json", "--output", &udp("")]);
    let ask = Ask::new(&network);
    ask.once();
    agent.wait_for_scans(&lab.agent, 2);
    ask.once();
    agent.stop();
    wait_until_read(lab);
    nfcapd.terminate(patience()).unwrap();

    let file = fs::read_dir(&files).unwrap().next().unwrap().unwrap();
    let mut read = Command::new(nfdump);
    read.arg("-r").arg(file.path()).args(["-o", "json"]);
    let flows: Vec<Value> = serde_json::from_slice(&read.output().unwrap().stdout).unwrap();
    let translated = flows
        .iter()
        .filter(|flow| flow.get("src4_xlt_ip").is_some());
    let seen: Vec<_> = translated
        .map(|flow| {
            ["src4_xlt_ip", "dst4_xlt_ip", "src_xlt_port", "dst_xlt_port"]
                .map(|name| flow[name].as_str().unwrap_or_default().to_owned())
        })
        .collect();
    let port = ask.translated_port().to_string();
    let [router, server] = [lab.agent.ipv4, lab.peer.ipv4].map(|one| one.to_string());
    let expected = [router, server, port, "7000".to_owned()];
    assert!(
        !seen.is_empty() && seen.iter().all(|one| *one == expected),
        "{flows:#?}: {}",
        super::log_of(folder.path())
    );
}
