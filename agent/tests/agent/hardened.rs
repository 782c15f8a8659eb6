//! A kernel whose JIT compiler hides constants also from root (`net.core.bpf_jit_harden=2`).

use std::fs;

use lab::{
    AtEnd, Lab,
    privilege::{is_root_or_skip, is_virtual_machine_or_skip},
};

use crate::support::{NATIVE_XDP, count_a_hundred, flow_agent};

const HARDEN: &str = "/proc/sys/net/core/bpf_jit_harden";
const EVERYTHING: &[&str] = &[
    "--enrich",
    "process,tcp,rtt,dns,icmp,drops",
    "--decapsulate",
    "--filter",
    "exclude net 192.0.2.0/24",
];

#[test]
fn on_a_kernel_that_hides_constants_all_programs_load_and_count_exactly() {
    const TEST: &str =
        "agent::on_a_kernel_that_hides_constants_all_programs_load_and_count_exactly";
    if !is_virtual_machine_or_skip(TEST, "changes a sysctl of the host") || !is_root_or_skip(TEST) {
        return;
    }
    let before = fs::read_to_string(HARDEN).unwrap();
    let _restored = AtEnd(|| fs::write(HARDEN, &before).unwrap());
    fs::write(HARDEN, "2").unwrap();
    assert_eq!(fs::read_to_string(HARDEN).unwrap().trim(), "2");
    let lab = Lab::quiet().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, b"hard").unwrap();
    for settings in [EVERYTHING, NATIVE_XDP] {
        let log = count_a_hundred(&lab, settings, &frame);
        // Nothing is left out because its program does not load. Scans may take long on an emulated machine, and
        // native XDP counts without tags because the settings say so.
        let is_expected =
            |line: &str| line.contains("scan interval") || line.contains("--xdp-without-tags");
        let is_trouble = |line: &&str| line.contains("WARN") && !is_expected(line);
        let trouble: Vec<&str> = log.lines().filter(is_trouble).collect();
        assert!(trouble.is_empty(), "{settings:?}: {trouble:#?}");
    }
    // It loads all programs.
    let check = flow_agent(&lab.agent).arg("check").output().unwrap();
    let check = String::from_utf8_lossy(&check.stdout);
    assert!(check.contains("the agent can run here"), "{check}");
}
