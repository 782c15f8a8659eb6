//! Counts the programs at the TCX hooks of an interface, whoever attached them.

use std::io;

use anyhow::{Context as _, Result};

use crate::Namespace;

const BPF_PROG_QUERY: libc::c_long = 16;
const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;

/// The number of programs at ingress and at egress. Fails on a kernel without TCX (before 6.6).
pub fn tcx_programs(namespace: &Namespace, ifindex: u32) -> Result<[u32; 2]> {
    let query = |attach_type| namespace.enter(|| programs(ifindex, attach_type));
    Ok([query(TCX_INGRESS)?, query(TCX_EGRESS)?])
}

fn programs(ifindex: u32, attach_type: u32) -> Result<u32> {
    // The start of `union bpf_attr` for BPF_PROG_QUERY. The count is at offset 24.
    let mut query = [0_u32; 16];
    query[0] = ifindex;
    query[1] = attach_type;
    // SAFETY: the kernel accesses no more than the given size, and the structure contains no other pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_QUERY,
            &raw mut query,
            size_of_val(&query),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error()).context("ask for the programs at TCX");
    }
    Ok(query[6])
}
