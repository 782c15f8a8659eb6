//! Compares the prototype of a flow table of our own with the kernel's hash map. Both run on the same hook
//! and are built for a BPF processor with compare-and-swap (`v3`, kernel 5.12). Both read only the tick
//! counter, keep no account and have one page.

#![no_std]
#![no_main]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "core has no atomic add for this target")
)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch, core_intrinsics))]

#[path = "../../../agent-ebpf/src/atomic.rs"]
mod atomic;
#[allow(dead_code, reason = "the variants are those of the other benches")]
mod bare;
#[allow(dead_code, reason = "nothing here reads the time of day")]
#[path = "../../../agent-ebpf/src/clock.rs"]
mod clock;
mod own_table;
#[allow(
    dead_code,
    reason = "the readers of paged packets are the agent's alone"
)]
#[path = "../../../agent-ebpf/src/packet.rs"]
mod packet;
#[path = "../../../agent-ebpf/src/runtime.rs"]
mod runtime;

use agent_common::{LinkType, Packet, parse};
use aya_ebpf::{bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext};

use crate::bare::linear;

#[classifier]
pub fn empty(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// The parse alone, with which both tables begin.
#[classifier]
pub fn parsed(ctx: TcContext) -> i32 {
    bare::parse_only(&ctx);
    TC_ACT_UNSPEC
}

#[classifier]
pub fn hash_map(ctx: TcContext) -> i32 {
    let (linear, len_bytes) = linear(&ctx);
    bare::count(&linear, len_bytes, bare::timeless());
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
