//! Checks, with two calls of `bpf(2)`, what the kernel allows this process.

use kernel::{bpf, capabilities::Capabilities, links::LOOPBACK_IFINDEX};

use super::Check;

/// Creates an array of one entry, and frees it.
pub(super) fn syscall(capabilities: Capabilities) -> Check {
    let name = "bpf";
    let Err(error) = bpf::create_small_array() else {
        return Check::ok(name, "the system call creates maps");
    };
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSYS) => "use a kernel with CONFIG_BPF_SYSCALL=y, or allow bpf(2) in seccomp",
        Some(libc::EPERM) if capabilities.may_load_programs() => {
            "allow bpf(2): in a container give CAP_BPF and CAP_NET_ADMIN of the host's user \
             namespace and a seccomp profile that has bpf; elsewhere see kernel lockdown"
        }
        Some(libc::EPERM) => "run as root, or with CAP_BPF and CAP_NET_ADMIN",
        _ => "see the kernel's log",
    };
    Check::missing(name, format!("create a map: {error}"), remedy)
}

/// Queries the programs on the TCX ingress of `lo`, which every namespace has.
pub(super) fn tcx() -> Check {
    let name = "tc";
    let Err(error) = bpf::query_tcx_ingress(LOOPBACK_IFINDEX) else {
        return Check::ok(
            name,
            "TCX links: nothing stays attached however the agent ends",
        );
    };
    match error.raw_os_error() {
        Some(libc::EINVAL) => Check::ok(
            name,
            "clsact filters, since this kernel has no TCX (6.6): the next start replaces what a killed \
             agent leaves",
        ),
        Some(libc::EPERM) => Check::warn(
            name,
            "unknown: this process may not ask for TCX",
            "run the check as root or with CAP_NET_ADMIN",
        ),
        _ => Check::warn(
            name,
            format!("unknown: ask for TCX: {error}"),
            "see the kernel's log",
        ),
    }
}
