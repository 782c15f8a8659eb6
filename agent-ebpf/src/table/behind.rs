//! A small kernel hash map behind the slots of each page, for flows whose windows are full.

use agent_common::{FlowCounters, FlowKey, Packet, Reason, senders::Question};
use aya_ebpf::{
    bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST},
    btf_maps::{ArrayOfMaps, HashMap},
    macros::btf_map,
};

use super::{Begun, Counted, Sought, add, tick};
use crate::{
    atomic, clock,
    errno::{E2BIG, EBUSY, EDEADLK, EEXIST, ENOMEM, ETIMEDOUT},
    fill,
};

/// By page. Userspace puts an inner map into each slot, and chooses its size.
#[btf_map]
static BEHIND: ArrayOfMaps<HashMap<FlowKey, FlowCounters, 1, { BPF_F_NO_PREALLOC as usize }>, 2> =
    ArrayOfMaps::new();

/// Not a kernel error, since these are negative.
const NO_MAP: i32 = 1;

/// Set beside the [`Question`] in the result of [`find_and_add`] if the flow exists.
const FOUND: u64 = 1 << Question::BITS;

/// Adds a packet to its flow, if that exists. Returns the flow's question.
#[inline(always)]
pub fn grow(sought: &Sought<'_>, size: Counted) -> Option<Question> {
    let did = find_and_add(sought, size.packets, size.bytes, size.ip_bytes);
    (did != 0).then(|| sought.behind(Question(did & (FOUND - 1))))
}

/// A function of its own, like the next one, since few packets need its stack. 6.1 accepts no key in memory that was
/// passed to a global function.
#[inline(never)]
fn find_and_add(sought: &Sought<'_>, packets: u64, bytes: u64, ip_bytes: u64) -> u64 {
    let key = sought.packet.key;
    let map = BEHIND.get(sought.page);
    let Some(flow) = map.and_then(|map| map.get_ptr_mut(&key)) else {
        return 0;
    };
    let size = Counted {
        packets,
        bytes,
        ip_bytes,
    };
    FOUND | add(flow, sought, size).0
}

/// Sets bits of a packet's flow, if that exists.
#[inline(never)]
pub fn note(page: u32, packet: &Packet, bits: u64) -> u32 {
    let key = packet.key;
    let map = BEHIND.get(page);
    if let Some(flow) = map.and_then(|map| map.get_ptr_mut(&key)) {
        // SAFETY: it comes from a look-up in this program run, and the bits are the counters' first word.
        unsafe { atomic::or(flow.cast(), bits) };
    }
    0
}

#[inline(never)]
fn insert(sought: &Sought<'_>, packets: u64, bytes: u64, ip_bytes: u64) -> i32 {
    // The order keeps few values alive at a time, since each takes stack.
    let packet = sought.packet;
    let mut first = FlowCounters::default();
    let direction = usize::from(packet.direction & 1);
    first.packets[direction] = packets;
    first.bytes[direction] = bytes;
    first.ip_bytes[direction] = ip_bytes;
    first.first_seen_ns = clock::boot_ns();
    first.last_seen_jiffies = tick();
    first.bits = sought.first_bits();
    first.classes = sought.first_class();
    let key = packet.key;
    let Some(map) = BEHIND.get(sought.page) else {
        return NO_MAP;
    };
    map.insert(&key, &first, BPF_NOEXIST.into())
        .err()
        .unwrap_or_default()
}

/// Inserts a flow with a packet.
#[inline(always)]
pub fn begin(sought: &Sought<'_>, size: Counted) -> Begun {
    let page = sought.page;
    match insert(sought, size.packets, size.bytes, size.ip_bytes) {
        0 => {
            fill::note_behind(page);
            fill::note_new_flow(page);
            Begun::Here(sought.behind(sought.first_question()))
        }
        // Another CPU inserted the flow first.
        EEXIST => grow(sought, size).map_or(Begun::Not(Reason::Vanished), Begun::Elsewhere),
        E2BIG => {
            fill::note_full(page);
            Begun::Not(Reason::TableFull)
        }
        ENOMEM => Begun::Not(Reason::NoMemory),
        EBUSY | EDEADLK | ETIMEDOUT => Begun::Not(Reason::Busy),
        NO_MAP => Begun::Not(Reason::Vanished),
        _ => Begun::Not(Reason::Refused),
    }
}
