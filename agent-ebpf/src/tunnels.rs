//! Tunnels: where userspace asks for it, what a tunnel carries is counted in the place of the tunnel's
//! packet, and the tunnel's own endpoints are kept beside the flow.

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

/// Fixed when the programs are loaded, so that the verifier takes the branches away where it is 0.
#[unsafe(no_mangle)]
static DECAPSULATE: Global<u32> = Global::new(0);

/// The endpoints of the tunnel in which a flow was seen. Userspace sizes it.
#[btf_map]
static OUTER: LruHashMap<FlowKey, Outer, 1> = LruHashMap::new();

/// The packet while it is being opened. Not on the stack, which is short; and what is read from a map
/// is unknown to the verifier, so that the ways here and the tunnels do not multiply. A program runs
/// to its end before the next one starts on its CPU.
#[btf_map]
static OPENING: PerCpuArray<Opening, 1> = PerCpuArray::new();

/// Puts what a tunnel carries in the place of `packet`; the bits of [`outcome`] say whether it was one.
#[inline(always)]
pub fn open<F: Steps>(frame: &F, packet: &mut Packet) -> u32 {
    if DECAPSULATE.load() == 0 || !packet.may_be_tunnel() {
        return 0;
    }
    let Some(opening) = OPENING.get_ptr_mut(0) else {
        return outcome::UNOPENED;
    };
    // SAFETY: the only slot of a per-CPU array, which nothing else on this CPU uses meanwhile.
    let opening = unsafe { &mut *opening };
    opening.begin(packet);
    tunnel::open(frame, opening, F::read_header, F::parse_inner);
    *packet = opening.packet;
    opening.outcome
}

/// Keeps the endpoints that [`open`] found, for a flow that its packet began.
#[inline(always)]
pub fn remember_outer(flow: &FlowKey) {
    if let Some(opening) = OPENING.get_ptr(0) {
        // SAFETY: as in `open`; the fields are plain bytes.
        let outer = unsafe { &(*opening).outer };
        // Where the kernel has no room, the record has no outer endpoints.
        let _ = OUTER.insert(flow, outer, 0);
    }
}

/// As [`open`] of a later fragment, which has no header to open; its key must be its flow's.
#[inline(always)]
pub fn of_fragment(packet: &Packet) -> u32 {
    if DECAPSULATE.load() != 0 && packet.is_tunnels_later_fragment() {
        outcome::UNOPENED
    } else {
        0
    }
}

/// Tells `count` each fact that the bits of [`outcome`] stand for.
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
