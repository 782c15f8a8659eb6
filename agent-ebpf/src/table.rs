//! The flow table: adds packets to the flows of the current page, and begins flows.

use agent_common::{FlowCounters, FlowKey, Packet, Reason, wire_size::WireSize};
use aya_ebpf::{
    btf_maps::{ArrayOfMaps, HashMap},
    macros::btf_map,
};

use crate::{atomic, clock, fill, pause};

/// The two pages. Userspace puts an inner map of the configured size into each slot.
#[btf_map]
static PAGES: ArrayOfMaps<HashMap<FlowKey, FlowCounters, 1>, 2> = ArrayOfMaps::new();

const BPF_NOEXIST: u64 = 1;

const E2BIG: i32 = -7;
const ENOMEM: i32 = -12;
const EBUSY: i32 = -16;
const EEXIST: i32 = -17;
const EDEADLK: i32 = -35;
const ETIMEDOUT: i32 = -110;

/// Adds a packet to the flow of `key`. Returns whether there is such a flow.
///
/// The key is complete, unlike that of the packet. It must be on the stack: 6.1 accepts no key in memory that
/// was passed to a global function.
#[inline(always)]
pub fn grow(page: u32, key: &FlowKey, packet: &Packet, size: WireSize) -> bool {
    let Some(flow) = PAGES.get(page).and_then(|table| table.get_ptr_mut(key)) else {
        return false;
    };
    add(flow, packet, size);
    true
}

/// Begins the flow of `key` with a packet. Returns false if another CPU began it first, and an error if there
/// is no flow.
///
/// A function of its own: most packets find their flow and need no stack for the first counters of one.
#[inline(never)]
pub fn insert(page: u32, key: &FlowKey, packet: &Packet, size: &WireSize) -> Result<bool, Reason> {
    let table = PAGES.get(page).ok_or(Reason::Vanished)?;
    let mut first = FlowCounters {
        first_seen_ns: clock::boot_ns(),
        last_seen_jiffies: clock::jiffies(),
        first_direction: packet.initiator,
        dscp: packet.dscp,
        ..FlowCounters::default()
    };
    let direction = usize::from(packet.direction & 1);
    first.packets[direction] = size.packets;
    first.bytes[direction] = size.bytes;
    first.tcp_flags[direction].store(packet.tcp_flags);
    pause::before_the_insert();
    match table.insert(key, &first, BPF_NOEXIST) {
        Ok(()) => {
            fill::note_new_flow(page);
            Ok(true)
        }
        // Another CPU was first.
        Err(EEXIST) => {
            let flow = table.get_ptr_mut(key).ok_or(Reason::Vanished)?;
            add(flow, packet, *size);
            Ok(false)
        }
        Err(E2BIG) => {
            fill::note_full(page);
            Err(Reason::TableFull)
        }
        Err(ENOMEM) => Err(Reason::NoMemory),
        Err(EBUSY | EDEADLK | ETIMEDOUT) => Err(Reason::Busy),
        Err(_) => Err(Reason::Refused),
    }
}

/// Several CPUs may write the same entry, so counters grow by atomic adds, and flags by storing ones.
#[inline(always)]
fn add(flow: *mut FlowCounters, packet: &Packet, size: WireSize) {
    let now_jiffies = clock::jiffies();
    let direction = usize::from(packet.direction & 1);
    // SAFETY: `flow` comes from a lookup in this program run, entries are not deleted while a
    // program may hold them (DESIGN: page flip with a grace period), and the index is 0 or 1.
    unsafe {
        atomic::add(&raw mut (*flow).packets[direction], size.packets);
        atomic::add(&raw mut (*flow).bytes[direction], size.bytes);
        // Usually the tick is the same, and nothing is written.
        if (*flow).last_seen_jiffies < now_jiffies {
            (*flow).last_seen_jiffies = now_jiffies;
        }
        if packet.tcp_flags != 0 {
            (*flow).tcp_flags[direction].store(packet.tcp_flags);
        }
    }
}
