//! The prototype of a flow table of our own beside the kernel's hash map, on the same hook and built
//! alike: for a processor with compare-and-swap (`v3`, kernel 5.12). Both read the tick counter
//! only, keep no account and have one page.

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
#[allow(dead_code, reason = "nothing here reads the time of day")]
mod clock;
mod own_table;
#[allow(
    dead_code,
    reason = "the readers of paged packets are the agent's alone"
)]
mod packet;
mod runtime;

use core::hint::black_box;

use agent_common::{LinkType, Packet, parse};
use aya_ebpf::{bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext};

use crate::packet::Linear;

#[classifier]
pub fn empty(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// What both tables start from.
#[classifier]
pub fn parsed(ctx: TcContext) -> i32 {
    let mut packet = Packet::default();
    let parsed = parse(&linear(&ctx).0, LinkType::Ethernet, None, &mut packet);
    black_box((&packet, parsed.is_ok()));
    TC_ACT_UNSPEC
}

#[classifier]
pub fn hash_map(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    bare::count(&linear, len_bytes, clock::jiffies);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn own(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    let mut packet = Packet::default();
    if parse(&linear, LinkType::Ethernet, None, &mut packet).is_ok() {
        own_table::add(&packet, u64::from(len_bytes));
    }
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
