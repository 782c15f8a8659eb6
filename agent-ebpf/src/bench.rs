//! Programs that the benches hold ours against, on the same hooks: one that does nothing, and one
//! that does the least that a flow table needs: the same parser, one clock read, a look-up in a
//! hash map and an add. It has no pages, no account, no time of the first packet and no flags.

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

mod atomic;
mod bare;
mod clock;
#[allow(
    dead_code,
    reason = "the readers of paged packets are the agent's alone"
)]
mod packet;
mod runtime;

use core::hint::black_box;

use agent_common::{LinkType, Packet, parse};
use aya_ebpf::{
    bindings::{TC_ACT_UNSPEC, xdp_action::XDP_PASS},
    helpers::bpf_ktime_get_coarse_ns,
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

use crate::{bare::count, packet::Linear};

#[classifier]
pub fn empty_tc(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

#[xdp(frags)]
pub fn empty_xdp(_: XdpContext) -> u32 {
    XDP_PASS
}

/// One part of the bare program alone, and so each of those below.
#[classifier]
pub fn clock_tc(_: TcContext) -> i32 {
    black_box(clock::boot_ns());
    TC_ACT_UNSPEC
}

#[classifier]
pub fn coarse_clock_tc(_: TcContext) -> i32 {
    // SAFETY: the helper takes no argument.
    black_box(unsafe { bpf_ktime_get_coarse_ns() });
    TC_ACT_UNSPEC
}

#[classifier]
pub fn parse_tc(ctx: TcContext) -> i32 {
    let mut packet = Packet::default();
    let parsed = parse(&linear(&ctx).0, LinkType::Ethernet, None, &mut packet);
    black_box((&packet, parsed.is_ok()));
    TC_ACT_UNSPEC
}

#[classifier]
pub fn timeless_tc(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    count(&linear, len_bytes, clock::jiffies);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn bare_tc(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    count(&linear, len_bytes, clock::boot_ns);
    TC_ACT_UNSPEC
}

/// The linear part, and the length of the whole.
#[inline(always)]
fn linear(ctx: &TcContext) -> (Linear, u32) {
    // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
    let skb = unsafe { &*ctx.skb.skb };
    let linear = Linear {
        data: skb.data as usize,
        data_end: skb.data_end as usize,
    };
    (linear, skb.len)
}

#[xdp(frags)]
pub fn bare_xdp(ctx: XdpContext) -> u32 {
    let linear = Linear {
        data: ctx.data(),
        data_end: ctx.data_end(),
    };
    count(
        &linear,
        (linear.data_end - linear.data) as u32,
        clock::boot_ns,
    );
    XDP_PASS
}
