//! Programs that the benches compare the agent's with, on the same hooks. The empty program does nothing. The bare
//! program does the least that a flow table needs: the same parser, one clock read, a hash-map lookup and an add. It
//! has no pages, no account, no time of the first packet and no flags. The others are parts and variants of the bare
//! program.

#![no_std]
#![no_main]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "core has no atomic add for this target")
)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch, core_intrinsics))]

#[path = "../../../agent-ebpf/src/atomic.rs"]
#[expect(dead_code, reason = "the least that a program does is to add")]
mod atomic;
mod bare;
#[path = "../../../agent-ebpf/src/clock.rs"]
mod clock;
#[allow(
    dead_code,
    reason = "the readers of paged packets are the agent's alone"
)]
#[path = "../../../agent-ebpf/src/packet.rs"]
mod packet;
#[path = "../../../agent-ebpf/src/runtime.rs"]
mod runtime;
mod walk;

use core::hint::black_box;

use agent_common::{LinkType, Packet, parse};
use aya_ebpf::{
    bindings::{TC_ACT_UNSPEC, xdp_action::XDP_PASS},
    helpers::bpf_ktime_get_coarse_ns,
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

use crate::{
    bare::{
        BPF_ANY, BPF_NOEXIST, FixedSettings, Settings, atomic_add, count, linear, plain_add,
        timeless,
    },
    packet::Linear,
};

#[classifier]
pub fn empty_tc(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

#[xdp(frags)]
pub fn empty_xdp(_: XdpContext) -> u32 {
    XDP_PASS
}

/// Evicts the CPU caches, as the kernel's other work does between two runs of a program.
#[classifier]
pub fn walk_tc(_: TcContext) -> i32 {
    walk::walk();
    TC_ACT_UNSPEC
}

/// One part of the bare program alone, as are the programs below.
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
    bare::parse_only(&ctx);
    TC_ACT_UNSPEC
}

/// Puts the endpoints into canonical order a second time, after the parser has done so.
#[classifier]
pub fn order_tc(ctx: TcContext) -> i32 {
    let mut packet = Packet::default();
    let parsed = parse(&linear(&ctx).0, LinkType::Ethernet, None, &mut packet);
    let key = black_box(&mut packet.key);
    if u128::from_be_bytes(key.addr_a) > u128::from_be_bytes(key.addr_b) {
        core::mem::swap(&mut key.addr_a, &mut key.addr_b);
        core::mem::swap(&mut key.port_a, &mut key.port_b);
    }
    black_box((&packet, parsed.is_ok()));
    TC_ACT_UNSPEC
}

#[classifier]
pub fn timeless_tc(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    count(&linear, len_bytes, timeless());
    TC_ACT_UNSPEC
}

#[classifier]
pub fn plain_adds_tc(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    let settings = Settings {
        now: clock::jiffies,
        add: plain_add,
        insert_flags: BPF_ANY,
    };
    count(&linear, len_bytes, settings);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn short_key_tc(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    bare::count_by_short_key(&linear, len_bytes);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn bare_tc(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    count(&linear, len_bytes, bare(BPF_ANY));
    TC_ACT_UNSPEC
}

/// The bare program with `BPF_NOEXIST` inserts, which fail if the key is already there.
#[classifier]
pub fn noexist_tc(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    count(&linear, len_bytes, bare(BPF_NOEXIST));
    TC_ACT_UNSPEC
}

#[inline(always)]
fn bare(insert_flags: u64) -> FixedSettings {
    Settings {
        now: clock::boot_ns,
        add: atomic_add,
        insert_flags,
    }
}

#[xdp(frags)]
pub fn bare_xdp(ctx: XdpContext) -> u32 {
    let linear = Linear {
        data: ctx.data(),
        data_end: ctx.data_end(),
    };
    let len_bytes = (linear.data_end - linear.data) as u32;
    count(&linear, len_bytes, bare(BPF_ANY));
    XDP_PASS
}
