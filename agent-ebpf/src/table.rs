//! The flow table: a packet's key and size come in, an entry of the current page grows.

use agent_common::{FlowCounters, FlowKey, Packet, Reason};
use aya_ebpf::{
    btf_maps::{ArrayOfMaps, HashMap},
    macros::btf_map,
};

use crate::{atomic, clock, fill, pause};

/// The two pages. Userspace puts inner maps of the size that it wants into both slots.
#[btf_map]
static PAGES: ArrayOfMaps<Page, 2> = ArrayOfMaps::new();

type Page = HashMap<FlowKey, FlowCounters, 1>;

const BPF_NOEXIST: u64 = 1;

const E2BIG: i32 = -7;
const ENOMEM: i32 = -12;
const EBUSY: i32 = -16;
const EEXIST: i32 = -17;
const EDEADLK: i32 = -35;
const ETIMEDOUT: i32 = -110;

/// What became of a packet.
pub enum Added {
    ToItsFlow,
    /// It is the first of its flow.
    Newly,
    Not(Reason),
}

/// Adds a packet to the flow of `key`, which is complete, unlike that of the packet. It must be on the stack:
/// 6.1 takes no other memory of a global function.
#[inline(always)]
pub fn add(page: u32, key: &FlowKey, packet: &Packet, packets: u64, bytes: u64) -> Added {
    let Some(table) = PAGES.get(page) else {
        return Added::Not(Reason::Vanished);
    };
    if let Some(flow) = table.get_ptr_mut(key) {
        grow(flow, packet, packets, bytes);
        return Added::ToItsFlow;
    }
    let added = insert(table, key, packet, packets, bytes);
    match added {
        Added::Newly => fill::note_new_flow(page),
        Added::Not(Reason::TableFull) => fill::note_full(page),
        Added::ToItsFlow | Added::Not(_) => {}
    }
    added
}

/// A function of its own: most packets find their flow, and need no stack for the counters of another.
#[inline(never)]
fn insert(table: &Page, key: &FlowKey, packet: &Packet, packets: u64, bytes: u64) -> Added {
    let mut first = FlowCounters {
        first_seen_ns: clock::boot_ns(),
        last_seen_jiffies: clock::jiffies(),
        first_direction: packet.initiator,
        dscp: packet.dscp,
        ..FlowCounters::default()
    };
    let direction = usize::from(packet.direction & 1);
    first.packets[direction] = packets;
    first.bytes[direction] = bytes;
    first.tcp_flags[direction].store(packet.tcp_flags);
    pause::before_the_insert();
    let refused = match table.insert(key, &first, BPF_NOEXIST) {
        Ok(()) => return Added::Newly,
        // Another CPU was first.
        Err(EEXIST) => {
            if let Some(flow) = table.get_ptr_mut(key) {
                grow(flow, packet, packets, bytes);
                return Added::ToItsFlow;
            }
            Reason::Vanished
        }
        Err(E2BIG) => Reason::TableFull,
        Err(ENOMEM) => Reason::NoMemory,
        Err(EBUSY | EDEADLK | ETIMEDOUT) => Reason::Busy,
        Err(_) => Reason::Refused,
    };
    Added::Not(refused)
}

/// Several CPUs may be in the same entry: counters grow by atomic adds, flags by storing ones.
#[inline(always)]
fn grow(flow: *mut FlowCounters, packet: &Packet, packets: u64, bytes: u64) {
    let now_jiffies = clock::jiffies();
    let direction = usize::from(packet.direction & 1);
    // SAFETY: `flow` comes from a lookup in this program run, entries are not deleted while a
    // program may hold them (DESIGN: page flip with a grace period), and the index is 0 or 1.
    unsafe {
        atomic::add(&raw mut (*flow).packets[direction], packets);
        atomic::add(&raw mut (*flow).bytes[direction], bytes);
        // Mostly the tick is the same, and nothing is written.
        if (*flow).last_seen_jiffies < now_jiffies {
            (*flow).last_seen_jiffies = now_jiffies;
        }
        if packet.tcp_flags != 0 {
            (*flow).tcp_flags[direction].store(packet.tcp_flags);
        }
    }
}
