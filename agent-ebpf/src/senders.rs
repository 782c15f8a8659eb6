//! Notes which cgroup the socket of a packet belongs to, and which process made it, for the first packet of each direction, flow and
//! scan. See [`agent_common::senders`].

use agent_common::{
    FlowKey, Packet, Senders,
    flow::FlowBits,
    senders::{Kinds, PlaneOfWindow, Question},
    slots::SLOTS,
};
use aya_ebpf::{
    Global,
    bindings::{__sk_buff, BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, ArrayOfMaps, HashMap},
    helpers::bpf_skb_cgroup_id,
    macros::btf_map,
};

use crate::{bounds::masked, processes, switches};

/// Fixed when the programs are loaded, so that the verifier removes what it is not needed for.
#[unsafe(no_mangle)]
static SENDERS_KEPT: Global<Kinds> = Global::new(Kinds::NONE);

const BPF_NOEXIST: u64 = 1;

type Page = Array<PlaneOfWindow, 1, { (BPF_F_MMAPABLE | BPF_F_INNER_MAP) as usize }>;

/// By page: for each window of the flow table, an element for each kind that is kept, one kind behind the other. Userspace puts them
/// into the slots.
#[btf_map]
static SENDERS: ArrayOfMaps<Page, 2> = ArrayOfMaps::new();

/// The same for the map behind the slots of a page. What that has of a flow itself has no room for more: it is made on the
/// stack.
#[btf_map]
static SENDERS_BEHIND: ArrayOfMaps<
    HashMap<FlowKey, Senders, 1, { BPF_F_NO_PREALLOC as usize }>,
    2,
> = ArrayOfMaps::new();

/// The bit that a packet which may have a socket sets in its flow.
#[inline(always)]
pub fn bits(packet: &Packet, is_xdp: bool) -> FlowBits {
    if SENDERS_KEPT.load() == Kinds::NONE || is_xdp {
        FlowBits::NONE
    } else {
        FlowBits::asked(packet.direction)
    }
}

/// Answers a [`Question`] of a packet's flow, which [`count`](crate::count) returned.
#[inline(always)]
pub fn note(skb: *mut __sk_buff, question: u64, packet: &Packet) {
    if SENDERS_KEPT.load() != Kinds::NONE && question != Question::NONE.0 {
        answer(skb, question, packet);
    }
}

/// A function of its own: few packets need its stack, and the verifier passes a program's context to no function that is
/// shared with programs of another kind.
#[inline(never)]
fn answer(skb: *mut __sk_buff, question: u64, packet: &Packet) -> u32 {
    let kinds = SENDERS_KEPT.load();
    let cgroup_id = if kinds.has(Kinds::CGROUPS) {
        // SAFETY: the context is valid for the program's run.
        unsafe { bpf_skb_cgroup_id(skb) }
    } else {
        0
    };
    let process_key = if kinds.has(Kinds::PROCESSES) {
        processes::of_packet(skb)
    } else {
        0
    };
    let question = Question(question);
    let Some((window, slot)) = question.place() else {
        if cgroup_id | process_key != 0 {
            note_behind(question, packet, cgroup_id, process_key);
        }
        return 0;
    };
    if cgroup_id != 0 {
        note_in_plane(question, Kinds::CGROUP_PLANE, window, slot, cgroup_id);
    }
    if process_key != 0 {
        note_in_plane(question, kinds.process_plane(), window, slot, process_key);
    }
    0
}

#[inline(always)]
fn note_in_plane(question: Question, plane: u32, window: u32, slot: u32, number: u64) {
    let windows = switches::windows(question.page());
    let page = SENDERS.get(question.page());
    let Some(window) = page.and_then(|page| page.get_ptr_mut(plane * windows + window)) else {
        return;
    };
    let index = masked::<{ 2 * SLOTS as u64 - 1 }>((2 * slot + question.direction()).into());
    // SAFETY: a window has two numbers for each slot, and elements of an array stay where they are. Another CPU may
    // write the same number.
    unsafe { window.cast::<u64>().add(index).write_volatile(number) };
}

#[inline(always)]
fn note_behind(question: Question, packet: &Packet, cgroup_id: u64, process_key: u64) {
    let key = packet.key;
    let Some(map) = SENDERS_BEHIND.get(question.page()) else {
        return;
    };
    // If there is no room, the sender is not known. If it was there, it may be with the other direction.
    let _ = map.insert(&key, &Senders::default(), BPF_NOEXIST);
    let Some(senders) = map.get_ptr_mut(&key) else {
        return;
    };
    let direction = masked::<1>(question.direction().into());
    // SAFETY: it comes from a look-up in this program run, and there are two numbers of each kind. Another CPU may write the
    // same ones.
    unsafe {
        let ids = (&raw mut (*senders).cgroup_ids).cast::<u64>();
        ids.add(direction).write_volatile(cgroup_id);
        let keys = (&raw mut (*senders).process_keys).cast::<u64>();
        keys.add(direction).write_volatile(process_key);
    }
}
