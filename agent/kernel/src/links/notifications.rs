//! Prepares a socket for the kernel's notifications, so that the ones that matter are not lost among others: a router
//! changes thousands of routes at once, and the kernel sends a notification for each.

use std::io;

use netlink_sys::Socket;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use socket2::{SockFilter, SockRef};

/// Size of the receive buffer, which the kernel doubles. A notification about a link takes some 3 KiB.
const WAITING_LEN_BYTES: usize = 8 * 1024 * 1024;

/// Offsets of the type in a netlink message, and of the prefix length in the `struct rtmsg` after the header.
const TYPE_OFFSET: u32 = 4;
const RTM_DST_LEN_OFFSET: u32 = 16 + 1;

/// Filters out all routes except default routes, and enlarges the receive buffer. Call it before joining a group.
pub(super) fn prepare(socket: &Socket) -> io::Result<()> {
    SockRef::from(socket).attach_filter(&filter())?;
    // Try to exceed `net.core.rmem_max`, which takes `CAP_NET_ADMIN`. Otherwise the buffer is limited to it.
    set_socket_recv_buffer_size_force(socket, WAITING_LEN_BYTES)
        .or_else(|_| set_socket_recv_buffer_size(socket, WAITING_LEN_BYTES))?;
    Ok(())
}

/// A classic BPF program, which the kernel runs before it charges a message to the socket (`do_one_broadcast`).
fn filter() -> [SockFilter; 7] {
    let load = |size: u32, offset| {
        SockFilter::new((libc::BPF_LD | size | libc::BPF_ABS) as u16, 0, 0, offset)
    };
    // Both jumps count from the next instruction.
    let if_equal = |operand, then, otherwise| {
        let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        SockFilter::new(code as u16, then, otherwise, operand)
    };
    let end = |len| SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, len);
    // A load reads the field as big-endian, but it is in host byte order.
    let kind = |kind: u16| kind.to_be().into();
    [
        load(libc::BPF_H, TYPE_OFFSET),
        if_equal(kind(libc::RTM_NEWROUTE), 0, 2),
        load(libc::BPF_B, RTM_DST_LEN_OFFSET),
        if_equal(0, 2, 1),
        if_equal(kind(libc::RTM_DELROUTE), 0, 1),
        end(0),
        end(u32::MAX),
    ]
}
