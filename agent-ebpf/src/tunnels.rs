//! Counts the packet inside a tunnel instead of the tunnel's packet, if userspace wants that. The tunnel's endpoints
//! are stored beside the flow.

use agent_common::{
    FlowKey, Outer, Packet, Reason,
    tunnel::{self, Opening, outcome},
};
use aya_ebpf::{
    Global,
    btf_maps::{LruHashMap, PerCpuArray},
    macros::btf_map,
};

use crate::steps::Steps;

/// Set when the programs are loaded, so that the verifier removes the branches if it is 0.
#[unsafe(no_mangle)]
static DECAPSULATE: Global<u32> = Global::new(0);

/// The endpoints of each flow's tunnel. Userspace sets the size.
#[btf_map]
static OUTER: LruHashMap<FlowKey, Outer, 1> = LruHashMap::new();

/// The packet while it is being opened, which is too large for the stack. Besides, the verifier knows nothing about
/// values read from a map, so the paths that lead here do not multiply with those through the tunnels. One entry is
/// enough: a program runs to its end before the next one starts on its CPU.
#[btf_map]
static OPENING: PerCpuArray<Opening, 1> = PerCpuArray::new();

/// Replaces a tunnel's packet by the packet inside. Returns bits of [`outcome`].
#[inline(always)]
pub fn open<F: Steps>(frame: &F, packet: &mut Packet) -> u32 {
    if DECAPSULATE.load() == 0 || !packet.may_be_tunnel() {
        return 0;
    }
    let Some(opening) = OPENING.get_ptr_mut(0) else {
        return outcome::UNOPENED;
    };
    // SAFETY: the only slot of a per-CPU array, and nothing else on this CPU uses it meanwhile.
    let opening = unsafe { &mut *opening };
    opening.begin(packet);
    tunnel::open(frame, opening, F::read_header, F::parse_inner);
    *packet = opening.packet;
    opening.outcome
}

/// Stores the endpoints that [`open`] found for the flow that this packet began.
///
/// A function of its own: few packets need its stack, and 6.1 accepts no key in memory that was passed to a global function.
#[inline(never)]
pub fn remember_outer(flow: &FlowKey) {
    let flow = *flow;
    if let Some(opening) = OPENING.get_ptr(0) {
        // SAFETY: see `open`; the fields are plain bytes.
        let outer = unsafe { &(*opening).outer };
        // If the kernel has no room, the record has no outer endpoints.
        let _ = OUTER.insert(&flow, outer, 0);
    }
}

/// The result of [`open`] for a later fragment, which has no header to open. Its key must be its flow's key.
#[inline(always)]
pub fn of_fragment(packet: &Packet) -> u32 {
    if DECAPSULATE.load() != 0 && packet.is_tunnels_later_fragment() {
        outcome::UNOPENED
    } else {
        0
    }
}

/// Calls `count` for each bit of [`outcome`].
#[inline(always)]
pub fn facts(outcome: u32, count: impl Fn(Reason)) {
    if outcome & outcome::DECAPSULATED != 0 {
        count(Reason::Decapsulated);
    }
    if outcome & outcome::UNOPENED != 0 {
        count(Reason::TunnelsUnopened);
    }
    if outcome & outcome::DEEPER != 0 {
        count(Reason::TunnelDepth);
    }
}
