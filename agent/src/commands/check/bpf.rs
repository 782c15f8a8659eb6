//! Two calls of `bpf(2)` go to the kernel; what it lets this process do comes back.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use super::{Check, process::Capabilities};
use crate::kernel::links::LOOPBACK_IFINDEX;

// linux/bpf.h.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_TCX_INGRESS: u32 = 46;

/// The head of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C, align(8))]
#[derive(Default)]
struct MapCreateAttr {
    map_type: u32,
    key_size_bytes: u32,
    value_size_bytes: u32,
    max_entries: u32,
}

/// `union bpf_attr` for `BPF_PROG_QUERY` (kernel 6.6; earlier ones take a tail of zeros).
#[repr(C, align(8))]
#[derive(Default)]
struct QueryAttr {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    pad: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// Creates an array of one entry, and lets it go.
pub(super) fn syscall(capabilities: Capabilities) -> Check {
    let name = "bpf";
    let mut attr = MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size_bytes: 4,
        value_size_bytes: 8,
        max_entries: 1,
    };
    let error = match bpf(BPF_MAP_CREATE, &mut attr) {
        Ok(fd) => {
            // SAFETY: BPF_MAP_CREATE answers with a file descriptor that nobody else owns.
            drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
            return Check::ok(name, "the system call creates maps");
        }
        Err(error) => error,
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

/// Asks for the programs on `lo`'s TCX ingress, which every namespace has.
pub(super) fn tcx() -> Check {
    let name = "tc";
    let mut attr = QueryAttr {
        target_ifindex: LOOPBACK_IFINDEX,
        attach_type: BPF_TCX_INGRESS,
        ..QueryAttr::default()
    };
    let Err(error) = bpf(BPF_PROG_QUERY, &mut attr) else {
        return Check::ok(
            name,
            "TCX links: nothing stays attached however the agent ends",
        );
    };
    match error.raw_os_error() {
        Some(libc::EINVAL) => Check::ok(
            name,
            "clsact filters, since this kernel has no TCX (6.6): what a killed agent leaves, the \
             next start removes",
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

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is one of the two structs above, laid out as the kernel's union and valid for
    // `size_of::<T>()` bytes of reading and writing; neither carries a pointer other than null.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
