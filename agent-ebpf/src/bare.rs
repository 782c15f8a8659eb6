//! The least that a flow table in a hash map of the kernel needs: a packet comes in, its flow grows.

use agent_common::{FlowCounters, FlowKey, LinkType, Packet, parse};
use aya_ebpf::{btf_maps::HashMap, macros::btf_map};

use crate::{atomic, packet::Linear};

/// Userspace sizes it.
#[btf_map]
static BARE: HashMap<FlowKey, FlowCounters, 1> = HashMap::new();

/// Adds a packet to its flow; what the parser refuses is not counted.
#[inline(always)]
pub fn count(linear: &Linear, len_bytes: u32, now: impl FnOnce() -> u64) {
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
