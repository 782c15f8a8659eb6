//! The kernel programs. They count each packet in the flow table and the account. They never change a packet and always
//! let it pass.
//!
//! The path of a packet:
//!
//! - A program here names the hook and the link type. [`looped_back`] recognizes copies of packets that the host sent.
//! - [`hook`] parses the packet through a reader of [`packet`], unless it begins with another [`link_header`]. Some
//!   packets need further [`steps`] (slow parsing, [`tunnels`]). For a super-frame it reads how the kernel will cut it
//!   ([`segmentation`]).
//! - [`mod@count`] gives later fragments their ports ([`fragments`]), applies the [`filter`], and counts in the
//!   [`account`] and the [`table`], both on the page that [`switches`] names.
//! - Finally [`hook`] stores the [`senders`] of a flow that asks for them: the cgroup, the process that [`processes`]
//!   keeps with the socket, and the TCP state of its [`connections`]. It also measures [`round_trips`].
//! - [`dns`] copies DNS messages to userspace, and [`icmp_errors`] ICMP errors, both by [`hand_over`].
//!
//! Other programs count the kernel's [`drops`], also by flow ([`dropped_flows`]), and record which process creates a
//! socket ([`processes`]).

#![no_std]
#![no_main]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "core has no atomic add for this target; packet.rs asks what is constant"
    )
)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch, core_intrinsics))]

mod account;
mod atomic;
mod bounds;
mod clock;
mod connections;
mod count;
mod dns;
mod dropped_flows;
mod drops;
mod errno;
mod fill;
mod filter;
mod fragments;
mod hand_over;
mod hook;
mod icmp_errors;
mod kernel_memory;
mod kernel_types;
mod link_header;
mod looped_back;
mod namespace;
mod packet;
mod pause;
mod processes;
mod round_trips;
mod runtime;
mod segmentation;
mod senders;
mod socket_storage;
mod steps;
mod switches;
mod table;
mod tunnels;
mod vlan_tag;

use agent_common::{Clocks, Direction, LinkType};
use aya_ebpf::{
    EbpfContext as _,
    bindings::{TC_ACT_UNSPEC, xdp_action::XDP_PASS},
    macros::{btf_tracepoint, cgroup_sock, classifier, xdp},
    programs::{BtfTracePointContext, SockContext, TcContext, XdpContext},
};

#[classifier]
pub fn tc_ingress(ctx: TcContext) -> i32 {
    hook::tc(&ctx, Direction::Ingress, LinkType::Ethernet);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn tc_egress(ctx: TcContext) -> i32 {
    hook::tc(&ctx, Direction::Egress, LinkType::Ethernet);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn tc_ingress_ip(ctx: TcContext) -> i32 {
    hook::tc(&ctx, Direction::Ingress, LinkType::Ip);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn tc_egress_ip(ctx: TcContext) -> i32 {
    hook::tc(&ctx, Direction::Egress, LinkType::Ip);
    TC_ACT_UNSPEC
}

#[xdp]
pub fn xdp_ingress(ctx: XdpContext) -> u32 {
    hook::xdp(&ctx, LinkType::Ethernet);
    XDP_PASS
}

#[xdp]
pub fn xdp_ingress_ip(ctx: XdpContext) -> u32 {
    hook::xdp(&ctx, LinkType::Ip);
    XDP_PASS
}

/// For drivers that may pass a frame in several buffers (since kernel 5.18).
#[xdp(frags)]
pub fn xdp_frags(ctx: XdpContext) -> u32 {
    hook::xdp_frags(&ctx, LinkType::Ethernet);
    XDP_PASS
}

/// The same for a driver that reports the VLAN tag that it removed from a frame. Userspace fills in the function number
/// and binds the program to the interface with that driver.
#[xdp(frags)]
pub fn xdp_tagged(ctx: XdpContext) -> u32 {
    hook::xdp_tagged(&ctx);
    XDP_PASS
}

#[xdp(frags)]
pub fn xdp_frags_ip(ctx: XdpContext) -> u32 {
    hook::xdp_frags(&ctx, LinkType::Ip);
    XDP_PASS
}

/// Runs when a process creates an IP socket, in any network namespace. Always allows it.
#[cgroup_sock(sock_create)]
pub fn sock_create(ctx: SockContext) -> i32 {
    processes::note_maker(ctx.as_ptr());
    1
}

/// Runs when a process binds a socket. Records the process for sockets that the kernel created on its behalf, such as
/// the subflow socket of an MPTCP listener. Always allows the bind.
#[cgroup_sock(post_bind4)]
pub fn post_bind4(ctx: SockContext) -> i32 {
    processes::note_maker(ctx.as_ptr());
    1
}

#[cgroup_sock(post_bind6)]
pub fn post_bind6(ctx: SockContext) -> i32 {
    processes::note_maker(ctx.as_ptr());
    1
}

/// Userspace runs it once for each open file of every process.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn open_files(open: *mut processes::OpenFile) -> i32 {
    processes::note_holder(open);
    0
}

/// Userspace runs it now and then for each socket that carries its process.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn kept_makers(kept: *mut socket_storage::KeptWithSocket) -> i32 {
    processes::count_kept(kept);
    0
}

/// The same for each socket that carries its flow.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn kept_flows(kept: *mut socket_storage::KeptWithSocket) -> i32 {
    connections::count_kept(kept);
    0
}

/// Runs when the kernel destroys a TCP socket, in any network namespace.
#[btf_tracepoint(function = "tcp_destroy_sock")]
pub fn tcp_destroy_sock(ctx: BtfTracePointContext) -> i32 {
    connections::note_end(ctx.arg(0));
    0
}

/// Runs when the kernel drops a packet, in any network namespace.
#[btf_tracepoint(function = "kfree_skb")]
pub fn kfree_skb(ctx: BtfTracePointContext) -> i32 {
    drops::note(ctx.arg(2));
    dropped_flows::note(ctx.arg(0), ctx.arg(2));
    0
}

/// Never attached. Userspace runs it with `BPF_PROG_TEST_RUN` on a packet with room for [`Clocks`], and reads the
/// clocks from there.
#[xdp]
pub fn clocks(ctx: XdpContext) -> u32 {
    let start = ctx.data();
    if start + size_of::<Clocks>() <= ctx.data_end() {
        // SAFETY: the packet has room (checked above). It is aligned, since `BPF_PROG_TEST_RUN` puts it
        // 256 bytes into a page (`XDP_PACKET_HEADROOM`).
        unsafe {
            (start as *mut Clocks).write(Clocks {
                jiffies: clock::jiffies(),
                boot_ns: clock::boot_ns(),
            });
        }
    }
    XDP_PASS
}
