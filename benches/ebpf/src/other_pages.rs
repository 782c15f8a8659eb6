//! Alternatives to the hash map as a page of the flow table: a table that allocates memory for each flow as
//! it comes, and a table for each CPU.

use agent_common::{FlowCounters, FlowKey, LinkType, Packet, parse};
use aya_ebpf::{
    btf_maps::{ArrayOfMaps, HashMap},
    helpers::bpf_get_smp_processor_id,
    macros::btf_map,
};

use crate::{
    bare::{self, BPF_ANY, Settings, plain_add, timeless},
    clock,
    packet::Linear,
};

const BPF_F_NO_PREALLOC: usize = 1;

/// Userspace sets the size.
#[btf_map]
static GROWING: HashMap<FlowKey, FlowCounters, 1, BPF_F_NO_PREALLOC> = HashMap::new();

/// The tables by CPU. Userspace sets its size, and puts in tables of the size that it wants.
#[btf_map]
static BY_CPU: ArrayOfMaps<HashMap<FlowKey, FlowCounters, 1>, 2> = ArrayOfMaps::new();

#[inline(always)]
pub fn count_growing(linear: &Linear, len_bytes: u32) {
    let mut packet = Packet::default();
    if parse(linear, LinkType::Ethernet, None, &mut packet).is_ok() {
        bare::add(&GROWING, &packet.key, &packet, len_bytes, timeless());
    }
}

/// Uses plain adds: no other CPU has the table, and no other packet interrupts the program on this one.
#[inline(always)]
pub fn count_by_cpu(linear: &Linear, len_bytes: u32) {
    let mut packet = Packet::default();
    if parse(linear, LinkType::Ethernet, None, &mut packet).is_err() {
        return;
    }
    // SAFETY: the helper takes no argument.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(table) = BY_CPU.get(cpu) else {
        return;
    };
    let settings = Settings {
        now: clock::jiffies,
        add: plain_add,
        insert_flags: BPF_ANY,
    };
    bare::add(table, &packet.key, &packet, len_bytes, settings);
}
