//! The kernel programs: packets at a hook come in, counters in the flow table and the account go
//! out. The packet itself is never changed and always goes on.
//!
//! A packet's way: a program here names its hook and link type → [`hook`] reads what the kernel
//! says about the packet, parses it through a reader of [`packet`], and counts it in the
//! [`account`] and the [`table`], both on the page that [`page`] names.

#![no_std]
#![no_main]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "atomic_xadd is the only atomic add that kernel 5.10 takes"
    )
)]
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics))]

mod account;
mod atomic;
mod hook;
mod packet;
mod page;
mod runtime;
mod table;

use agent_common::LinkType;
use aya_ebpf::{
    bindings::{TC_ACT_UNSPEC, xdp_action::XDP_PASS},
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

use crate::hook::Direction;

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

/// For drivers that hand over a frame in several buffers; kernel 5.18.
#[xdp(frags)]
pub fn xdp_frags(ctx: XdpContext) -> u32 {
    hook::xdp_frags(&ctx, LinkType::Ethernet);
    XDP_PASS
}

#[xdp(frags)]
pub fn xdp_frags_ip(ctx: XdpContext) -> u32 {
    hook::xdp_frags(&ctx, LinkType::Ip);
    XDP_PASS
}
