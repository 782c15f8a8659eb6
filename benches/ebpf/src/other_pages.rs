//! What a page of the flow table might be instead: a packet comes in, its flow grows in a table that
//! takes memory for a flow only when it comes, or in a table of this CPU's own.

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

/// Userspace sizes it.
#[btf_map]
static GROWING: HashMap<FlowKey, FlowCounters, 1, BPF_F_NO_PREALLOC> = HashMap::new();

/// By CPU. Userspace sizes it and puts in tables of the size that it wants.
#[btf_map]
static BY_CPU: ArrayOfMaps<HashMap<FlowKey, FlowCounters, 1>, 2> = ArrayOfMaps::new();

#[inline(always)]
pub fn count_growing(linear: &Linear, len_bytes: u32) {
    let mut packet = Packet::default();
    if parse(linear, LinkType::Ethernet, None, &mut packet).is_ok() {
        bare::add(&GROWING, &packet.key, &packet, len_bytes, timeless());
    }
}

/// No other CPU has the table, and nothing interrupts the program for another packet on this one.
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
