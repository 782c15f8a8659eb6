//! A kernel that is locked down, so that no program may read its memory. Nothing lifts that again, so this is a
//! module of its own, which a virtual machine runs last.

use std::{fs, process::Command};

use lab::{
    Lab,
    privilege::{is_root_or_skip, is_virtual_machine_or_skip},
};

use crate::support::{NATIVE_XDP, count_a_hundred, flow_agent};

/// The remedy that the start and `check` name.
const REMEDY: &str =
    "use a kernel with CONFIG_DEBUG_INFO_BTF=y that is not locked down to confidentiality";
const SECURITY: &str = "/sys/kernel/security";

#[test]
fn on_a_kernel_that_is_locked_down_what_is_lost_is_told_and_all_else_is_counted() {
    const TEST: &str =
        "agent::on_a_kernel_that_is_locked_down_what_is_lost_is_told_and_all_else_is_counted";
    if !is_virtual_machine_or_skip(TEST, "locks the kernel down") || !is_root_or_skip(TEST) {
        return;
    }
    lock_down();
    let lab = Lab::quiet().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, b"locked").unwrap();
    // The programs for processes and connections read only memory that the verifier knows, which is allowed. The
    // programs for round trips read only packets. Kernel drops are counted without their flows, and the log says so.
    for hook in [&["--enrich", "process,tcp,rtt,drops"][..], NATIVE_XDP] {
        let log = count_a_hundred(&lab, hook, &frame);
        let told = "super-frames (GSO, GRO) of UDP and of tunnels count as inexact";
        assert_eq!(log.matches(told).count(), 1, "{log}");
        assert!(log.contains("locked down (confidentiality)"), "{log}");
        assert!(log.contains(REMEDY), "{log}");
        let without_flows = "cannot count kernel drops by flow";
        assert_eq!(log.contains(without_flows), hook[0] == "--enrich", "{log}");
        assert!(!log.contains("cannot count kernel drops: "), "{log}");
        assert!(!log.contains("have no process"), "{log}");
        assert!(
            !log.contains("the final TCP figures of a connection"),
            "{log}"
        );
    }
    let check = flow_agent(&lab.agent).arg("check").output().unwrap();
    let check = String::from_utf8_lossy(&check.stdout);
    assert!(check.contains("locked down (confidentiality)"), "{check}");
    assert!(check.contains(REMEDY), "{check}");
}

fn lock_down() {
    let mounted = Command::new("mount")
        .args(["-t", "securityfs", "securityfs", SECURITY])
        .status();
    assert!(mounted.unwrap().success(), "securityfs is mounted");
    let file = format!("{SECURITY}/lockdown");
    fs::write(&file, "confidentiality").unwrap();
    let state = fs::read_to_string(&file).unwrap();
    assert!(state.contains("[confidentiality]"), "{state}");
}
