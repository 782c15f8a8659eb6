//! Checks of what this process's capabilities allow.

use kernel::{
    capabilities::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN, Capabilities},
    netns::{Netns, REMEDY},
};

use super::Check;

/// The checks for an agent that counts in these network namespaces.
pub(super) fn capabilities(capabilities: Capabilities, netns: &[Netns]) -> [Check; 4] {
    [
        bpf(capabilities),
        net_admin(capabilities),
        perfmon(capabilities),
        sys_admin(capabilities, netns),
    ]
}

fn bpf(capabilities: Capabilities) -> Check {
    let name = "CAP_BPF";
    if capabilities.may_load_programs() {
        return Check::ok(name, granted(capabilities, CAP_BPF));
    }
    Check::missing(
        name,
        "this process may not create maps and load programs",
        "run as root, or setcap cap_bpf,cap_net_admin,cap_perfmon+ep on the binary",
    )
}

fn net_admin(capabilities: Capabilities) -> Check {
    let name = "CAP_NET_ADMIN";
    if capabilities.has(CAP_NET_ADMIN) {
        return Check::ok(name, "held");
    }
    Check::missing(
        name,
        "this process may not attach programs to interfaces",
        "run as root, or setcap cap_bpf,cap_net_admin,cap_perfmon+ep on the binary",
    )
}

fn perfmon(capabilities: Capabilities) -> Check {
    let name = "CAP_PERFMON";
    if capabilities.has_or_is_admin(CAP_PERFMON) {
        return Check::ok(name, granted(capabilities, CAP_PERFMON));
    }
    Check::missing(
        name,
        "the verifier refuses the programs' pointer arithmetic without it",
        "run as root, or setcap cap_bpf,cap_net_admin,cap_perfmon+ep on the binary",
    )
}

/// The service runs without `CAP_SYS_ADMIN` on purpose.
fn sys_admin(capabilities: Capabilities, netns: &[Netns]) -> Check {
    let name = "CAP_SYS_ADMIN";
    let is_needed = netns.iter().any(|netns| *netns != Netns::Own);
    match (capabilities.has(CAP_SYS_ADMIN), is_needed) {
        (true, true) => Check::ok(
            name,
            "held by this process, for other network namespaces; the service needs the drop-in netns.conf for it",
        ),
        (true, false) => Check::ok(name, "held, and not needed"),
        (false, false) => Check::ok(name, "not held, and not needed"),
        (false, true) => Check::missing(
            name,
            "this process may not enter other network namespaces (--netns)",
            REMEDY,
        ),
    }
}

fn granted(capabilities: Capabilities, capability: u32) -> &'static str {
    if capabilities.has(capability) {
        "held"
    } else {
        "CAP_SYS_ADMIN includes it"
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Status, *};

    fn statuses(effective: &str) -> [Status; 4] {
        statuses_in(effective, &[])
    }

    fn statuses_in(effective: &str, netns: &[&str]) -> [Status; 4] {
        let text = format!("Name:\tx\nCapEff:\t{effective}\nCapBnd:\t0\n");
        let netns: Vec<_> = netns.iter().map(|name| name.parse().unwrap()).collect();
        capabilities(Capabilities::parse(&text).unwrap(), &netns).map(|check| check.status)
    }

    #[test]
    fn the_service_runs_with_three_capabilities() {
        let three = format!("{:016x}", 1_u64 << 39 | 1 << 38 | 1 << 12);
        assert_eq!(statuses(&three), [Status::Ok; 4]);
    }

    #[test]
    fn other_network_namespaces_take_a_fourth() {
        let three = format!("{:016x}", 1_u64 << 39 | 1 << 38 | 1 << 12);
        let four = format!("{:016x}", 1_u64 << 39 | 1 << 38 | 1 << 21 | 1 << 12);
        assert_eq!(statuses_in(&three, &["self"]), [Status::Ok; 4]);
        assert_eq!(statuses_in(&three, &["self", "blue"])[3], Status::Missing);
        assert_eq!(statuses_in(&four, &["blue"]), [Status::Ok; 4]);
        let four = Capabilities::parse(&format!("CapEff:\t{four}\n")).unwrap();
        let [.., held] = capabilities(four, &["blue".parse().unwrap()]);
        // root has it, and the service has not.
        assert!(
            held.detail.contains("the service needs the drop-in"),
            "{held:?}"
        );
    }

    #[test]
    fn sys_admin_stands_for_all_but_net_admin() {
        let admin = format!("{:016x}", 1_u64 << 21);
        assert_eq!(
            statuses(&admin),
            [Status::Ok, Status::Missing, Status::Ok, Status::Ok]
        );
    }

    #[test]
    fn an_unprivileged_process_lacks_all_three() {
        assert_eq!(
            statuses("0000000000000000"),
            [
                Status::Missing,
                Status::Missing,
                Status::Missing,
                Status::Ok
            ]
        );
    }
}
