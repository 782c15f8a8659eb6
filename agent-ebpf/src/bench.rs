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
mod clock;
#[allow(
    dead_code,
    reason = "the readers of paged packets are the agent's alone"
)]
mod packet;
mod runtime;

use core::hint::black_box;

use agent_common::{FlowCounters, FlowKey, LinkType, Packet, parse};
use aya_ebpf::{
    bindings::{TC_ACT_UNSPEC, xdp_action::XDP_PASS},
    btf_maps::HashMap,
    helpers::bpf_ktime_get_coarse_ns,
    macros::{btf_map, classifier, xdp},
    programs::{TcContext, XdpContext},
};

use crate::packet::Linear;

/// Userspace sizes it.
#[btf_map]
static BARE: HashMap<FlowKey, FlowCounters, 1> = HashMap::new();

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

#[inline(always)]
fn count(linear: &Linear, len_bytes: u32, now: impl FnOnce() -> u64) {
    let mut packet = Packet::default();
    if parse(linear, LinkType::Ethernet, None, &mut packet).is_err() {
        return;
    }
    let now = now();
    let direction = usize::from(packet.direction & 1);
    if let Some(flow) = BARE.get_ptr_mut(&packet.key) {
        // SAFETY: `flow` comes from a look-up in this program run, and the index is 0 or 1.
        unsafe {
            atomic::add(&raw mut (*flow).packets[direction], 1);
            atomic::add(&raw mut (*flow).bytes[direction], u64::from(len_bytes));
            (*flow).last_seen_jiffies = now;
        }
        return;
    }
    let mut first = FlowCounters {
        last_seen_jiffies: now,
        ..FlowCounters::default()
    };
    first.packets[direction] = 1;
    first.bytes[direction] = u64::from(len_bytes);
    // A full table is the bench's own mistake; it sizes the table.
    let _ = BARE.insert(&packet.key, &first, 0);
}
