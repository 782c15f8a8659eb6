//! Notes which cgroup the socket of a packet belongs to, for the first packet of each direction, flow and scan. See
//! [`agent_common::senders`].

use agent_common::{
    FlowKey, Packet, Senders,
    flow::FlowBits,
    senders::{Question, SendersOfWindow},
    slots::SLOTS,
};
use aya_ebpf::{
    Global,
    bindings::{__sk_buff, BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, ArrayOfMaps, HashMap},
    helpers::bpf_skb_cgroup_id,
    macros::btf_map,
};

use crate::bounds::masked;

/// Fixed when the programs are loaded, so that the verifier removes what it is not needed for.
#[unsafe(no_mangle)]
static SENDERS_KEPT: Global<u32> = Global::new(0);

const BPF_NOEXIST: u64 = 1;

type Page = Array<SendersOfWindow, 1, { (BPF_F_MMAPABLE | BPF_F_INNER_MAP) as usize }>;

/// By page, a window for each of those of the flow table. Userspace puts them into the slots.
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
    if SENDERS_KEPT.load() == 0 || is_xdp {
        FlowBits::NONE
    } else {
        FlowBits::asked(packet.direction)
    }
}

/// Answers a [`Question`] of a packet's flow, which [`count`](crate::count) returned.
#[inline(always)]
pub fn note(skb: *mut __sk_buff, question: u64, packet: &Packet) {
    if SENDERS_KEPT.load() != 0 && question != Question::NONE.0 {
        answer(skb, question, packet);
    }
}

/// A function of its own: few packets need its stack, and the verifier passes a program's context to no function that is
/// shared with programs of another kind.
#[inline(never)]
fn answer(skb: *mut __sk_buff, question: u64, packet: &Packet) -> u32 {
    // SAFETY: the context is valid for the program's run.
    let cgroup_id = unsafe { bpf_skb_cgroup_id(skb) };
    if cgroup_id == 0 {
        return 0;
    }
    let question = Question(question);
    let direction = question.direction();
    let Some((window, slot)) = question.place() else {
        note_behind(question.page(), packet, direction, cgroup_id);
        return 0;
    };
    let page = SENDERS.get(question.page());
    let Some(window) = page.and_then(|page| page.get_ptr_mut(window)) else {
        return 0;
    };
    let index = masked::<{ 2 * SLOTS as u64 - 1 }>((2 * slot + direction).into());
    // SAFETY: a window has two numbers for each slot, and elements of an array stay where they are. Another CPU may
    // write the same number.
    unsafe { window.cast::<u64>().add(index).write_volatile(cgroup_id) };
    0
}

#[inline(always)]
fn note_behind(page: u32, packet: &Packet, direction: u32, cgroup_id: u64) {
    let key = packet.key;
    let Some(map) = SENDERS_BEHIND.get(page) else {
        return;
    };
    let cgroup_ids = if direction == 0 {
        [cgroup_id, 0]
    } else {
        [0, cgroup_id]
    };
    let senders = Senders { cgroup_ids };
    // If there is no room, the sender is not known.
    let _ = map.insert(&key, &senders, BPF_NOEXIST);
    // It may have been there, with the other direction.
    let Some(senders) = map.get_ptr_mut(&key) else {
        return;
    };
    // SAFETY: it comes from a look-up in this program run, and there are two numbers. Another CPU may write the same one.
    unsafe {
        let ids = (&raw mut (*senders).cgroup_ids).cast::<u64>();
        ids.add(masked::<1>(direction.into()))
            .write_volatile(cgroup_id);
    }
}
