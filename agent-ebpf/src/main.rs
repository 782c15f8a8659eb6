//! The kernel programs. They count each packet in the flow table and the account. The packet itself is
//! never changed and always goes on.
//!
//! A packet takes this way:
//!
//! - A program here names the hook and the link type. Copies that the host made of what it sent are [`looped_back`].
//! - [`hook`] parses the packet through a reader of [`packet`], unless it begins with another [`link_header`]. Some packets need further [`steps`] (slow
//!   parsing, [`tunnels`]). For a super-frame it asks the kernel how that will be cut ([`segmentation`]).
//! - [`mod@count`] gives later fragments their ports ([`fragments`]), asks the [`filter`], and counts in the
//!   [`account`] and the [`table`], both on the page that [`switches`] names.
//! - [`senders`] are noted by [`hook`] at last, where the flow asks for one: the cgroup, the process that [`processes`] has noted
//!   with the socket, and what TCP knows of its [`connections`]. So are [`round_trips`], where one is measured.
//! - [`dns`] hands messages of the Domain Name System to userspace, and [`icmp_errors`] errors of ICMP, both by [`hand_over`].
//!
//! Programs elsewhere count what the kernel [`drops`], also by its flow ([`dropped_flows`]), and note who makes sockets ([`processes`]).

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

/// The same for a driver that says which VLAN tag it took out of a frame. Userspace completes its code, and binds it to
/// the interface whose driver it asks.
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

/// Runs where any process makes a socket for IP, in all network namespaces. Always allows it.
#[cgroup_sock(sock_create)]
pub fn sock_create(ctx: SockContext) -> i32 {
    processes::note_maker(ctx.as_ptr());
    1
}

/// Runs where a process binds a socket, for those that the kernel has made on its behalf: such as the one with which a listener of
/// MPTCP takes connections. Always allows it.
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

/// Userspace has it run once for each file that a process has open.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn open_files(open: *mut processes::OpenFile) -> i32 {
    processes::note_holder(open);
    0
}

/// Userspace has it run now and then for each socket whose maker is kept.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn kept_makers(kept: *mut socket_storage::KeptWithSocket) -> i32 {
    processes::count_kept(kept);
    0
}

/// Likewise for each socket whose flow is kept.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn kept_flows(kept: *mut socket_storage::KeptWithSocket) -> i32 {
    connections::count_kept(kept);
    0
}

/// Runs where the kernel takes down a socket of TCP, in all network namespaces.
#[btf_tracepoint(function = "tcp_destroy_sock")]
pub fn tcp_destroy_sock(ctx: BtfTracePointContext) -> i32 {
    connections::note_end(ctx.arg(0));
    0
}

/// Runs where the kernel drops a packet, in all network namespaces.
#[btf_tracepoint(function = "kfree_skb")]
pub fn kfree_skb(ctx: BtfTracePointContext) -> i32 {
    drops::note(ctx.arg(2));
    dropped_flows::note(ctx.arg(0), ctx.arg(2));
    0
}

/// Never attached. Userspace runs it with `BPF_PROG_TEST_RUN` on a packet that has room for [`Clocks`], and
/// reads them from there.
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
