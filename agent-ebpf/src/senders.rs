//! Stores the cgroup of a packet's socket, the process that created it, and TCP's state of its connection, for the
//! first packet of each direction, flow and scan. See [`agent_common::senders`].

use agent_common::{
    FlowKey, Packet, Senders, TcpInfo,
    flow::{FlowBits, tcp_flags},
    protocol::TCP,
    senders::{Kinds, PlaneOfWindow, Question},
    slots::SLOTS,
};
use aya_ebpf::{
    Global,
    bindings::{__sk_buff, BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_NOEXIST},
    btf_maps::{Array, ArrayOfMaps, HashMap},
    helpers::bpf_skb_cgroup_id,
    macros::btf_map,
};

use crate::{atomic, bounds::masked, connections, pause, processes, switches};

/// Set when the programs are loaded, so that the verifier removes the code of the other kinds.
#[unsafe(no_mangle)]
static SENDERS_KEPT: Global<Kinds> = Global::new(Kinds::NONE);

#[inline(always)]
pub fn kept() -> Kinds {
    SENDERS_KEPT.load()
}

type Page = Array<PlaneOfWindow, 1, { (BPF_F_MMAPABLE | BPF_F_INNER_MAP) as usize }>;

/// By page: one plane for each kind that is stored, one after the other. A plane has an element for each window of the
/// flow table. Userspace puts the arrays into the slots.
#[btf_map]
static SENDERS: ArrayOfMaps<Page, 2> = ArrayOfMaps::new();

/// The same for the map behind the slots of a page. The flow's own value there has no room for it, since programs build
/// that value on the stack.
#[btf_map]
static SENDERS_BEHIND: ArrayOfMaps<
    HashMap<FlowKey, Senders, 1, { BPF_F_NO_PREALLOC as usize }>,
    2,
> = ArrayOfMaps::new();

/// The bits that a packet with a possible socket sets in its flow. If one of them is new there, the sender is looked
/// up. A closing connection is looked up again. One that answers a SYN is looked up again at its next packet, since it
/// has no full socket before.
#[inline(always)]
pub fn bits(packet: &Packet, is_xdp: bool) -> FlowBits {
    const CLOSING: u8 = tcp_flags::FIN | tcp_flags::RST;
    const SYN_AND_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
    let kinds = kept().of_sockets();
    let is_of_none = kinds == Kinds::TCP && packet.key.protocol != TCP;
    if kinds == Kinds::NONE || is_xdp || is_of_none {
        return FlowBits::NONE;
    }
    let asked = FlowBits::asked(packet.direction);
    if !kinds.has(Kinds::TCP) {
        asked
    } else if packet.tcp_flags & SYN_AND_ACK == SYN_AND_ACK {
        FlowBits::asked_early(packet.direction)
    } else {
        let closing = FlowBits::segment(packet.direction, packet.tcp_flags & CLOSING);
        asked.and(closing)
    }
}

/// Whether the sender of each leaving packet is looked up, not only of the first one in a scan. A UDP port may pass to
/// a socket of another process at any time, whereas another process's TCP socket begins another connection.
#[inline(always)]
pub fn asks_each(packet: &Packet) -> bool {
    let who = Kinds::CGROUPS.and(Kinds::PROCESSES);
    let leaves = packet.key.side() != packet.direction & 1;
    kept().has(who) && leaves && packet.key.protocol != TCP
}

/// Answers the [`Question`] of a packet's flow, which [`count`](crate::count) returned.
#[inline(always)]
pub fn note(skb: *mut __sk_buff, question: u64, packet: &Packet) {
    // A forwarded packet has no socket, and may ask every time (see `asks_each`).
    // SAFETY: the context is valid for the program's run.
    let has_socket = || unsafe { !(*skb).__bindgen_anon_2.sk.is_null() };
    if kept().of_sockets() != Kinds::NONE
        && Question(question).asks(Question::SENDER)
        && has_socket()
    {
        answer(skb, question, packet);
    }
}

/// A function of its own: few packets need its stack, and the verifier does not let programs of different types pass
/// their contexts to the same function.
#[inline(never)]
fn answer(skb: *mut __sk_buff, question: u64, packet: &Packet) -> u32 {
    let kinds = kept();
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
    let tcp = if kinds.has(Kinds::TCP) {
        connections::of_packet(skb, packet, question)
    } else {
        TcpInfo::default()
    };
    let Some((window, slot)) = question.place() else {
        if cgroup_id | process_key != 0 || tcp.is_known() {
            note_behind(question, packet, cgroup_id, process_key, &tcp);
        }
        return 0;
    };
    if cgroup_id != 0
        && let Some(noted) = place(question, Kinds::CGROUP_PLANE, window, slot)
    {
        // SAFETY: see `place`.
        unsafe { note_who(noted, cgroup_id, Senders::ROOT) };
    }
    if process_key != 0
        && let Some(noted) = place(question, kinds.process_plane(), window, slot)
    {
        // SAFETY: see `place`.
        unsafe { note_who(noted, process_key, 0) };
    }
    if tcp.is_known() {
        let plane = kinds.tcp_plane();
        for (index, word) in tcp.words().into_iter().enumerate() {
            note_in_plane(question, plane + index as u32, window, slot, word);
        }
    }
    0
}

/// Stores a sender. The kernel's own sockets, which are in the root cgroup, do not replace another sender.
///
/// # Safety
///
/// `noted` must point to a number in a live map value.
#[inline(always)]
unsafe fn note_who(noted: *mut u64, who: u64, other: u64) {
    // A failed exchange means that another CPU changed the number, which happens at most this often on a page.
    for _ in 0..Senders::MOST_CHANGES {
        // SAFETY: the caller's promise.
        let before = unsafe { noted.read_volatile() };
        let after = Senders::after(before, who, other);
        // Usually it is the same and needs no write.
        if after == before {
            return;
        }
        pause::before_it_is_noted();
        // SAFETY: as above.
        if unsafe { atomic::swap_if(noted, before, after) } {
            return;
        }
    }
}

#[inline(always)]
fn note_in_plane(question: Question, plane: u32, window: u32, slot: u32, number: u64) {
    if let Some(noted) = place(question, plane, window, slot) {
        // SAFETY: see `place`.
        unsafe { noted.write_volatile(number) };
    }
}

/// Where a value is stored, valid for the program's run. Another CPU may write it at the same time, for a packet of the
/// same direction.
#[inline(always)]
fn place(question: Question, plane: u32, window: u32, slot: u32) -> Option<*mut u64> {
    let windows = switches::windows(question.page());
    let page = SENDERS.get(question.page())?;
    let window = page.get_ptr_mut(plane * windows + window)?;
    let index = masked::<{ 2 * SLOTS as u64 - 1 }>((2 * slot + question.direction()).into());
    // SAFETY: a window has two numbers for each slot, and elements of an array stay where they are.
    Some(unsafe { window.cast::<u64>().add(index) })
}

/// Unknown senders. They would take 128 bytes of a program's stack.
static UNKNOWN: Senders = Senders::UNKNOWN;

/// The senders of a flow in the map behind the slots.
#[inline(always)]
fn behind(page: u32, packet: &Packet) -> Option<*mut Senders> {
    let key = packet.key;
    let map = SENDERS_BEHIND.get(page)?;
    // Without room the senders stay unknown. If the entry exists, the other direction may have made it.
    let _ = map.insert(&key, &UNKNOWN, BPF_NOEXIST.into());
    map.get_ptr_mut(&key)
}

/// Where the samples of a flow's round trips are stored, by direction.
#[inline(always)]
pub fn round_trips(question: Question, packet: &Packet) -> Option<*mut u64> {
    let page = question.page();
    let Some((window, slot)) = question.place() else {
        let samples = round_trips_behind(page, packet);
        return (!samples.is_null()).then_some(samples);
    };
    let window = switches::windows(page) * kept().round_trip_plane() + window;
    let window = SENDERS.get(page)?.get_ptr_mut(window)?;
    let index = masked::<{ 2 * (SLOTS as u64 - 1) }>((2 * slot).into());
    // SAFETY: a window has two numbers for each slot, and elements of an array stay where they are.
    Some(unsafe { window.cast::<u64>().add(index) })
}

/// A function of its own: few packets need its stack.
#[inline(never)]
fn round_trips_behind(page: u32, packet: &Packet) -> *mut u64 {
    match behind(page, packet) {
        // SAFETY: it comes from a look-up in this program run.
        Some(senders) => unsafe { (&raw mut (*senders).round_trips).cast() },
        None => core::ptr::null_mut(),
    }
}

/// A function of its own, as above.
#[inline(never)]
fn note_behind(
    question: Question,
    packet: &Packet,
    cgroup_id: u64,
    process_key: u64,
    tcp: &TcpInfo,
) {
    let Some(senders) = behind(question.page(), packet) else {
        return;
    };
    let direction = masked::<1>(question.direction().into());
    // SAFETY: it comes from a look-up in this program run, and each kind has one element per direction. Another CPU may
    // write them at the same time, as in a slot.
    unsafe {
        if cgroup_id != 0 {
            let ids = (&raw mut (*senders).cgroup_ids).cast::<u64>();
            note_who(ids.add(direction), cgroup_id, Senders::ROOT);
        }
        if process_key != 0 {
            let keys = (&raw mut (*senders).process_keys).cast::<u64>();
            note_who(keys.add(direction), process_key, 0);
        }
        if tcp.is_known() {
            let sides = (&raw mut (*senders).tcp).cast::<[u64; TcpInfo::WORDS]>();
            let words = sides.add(direction).cast::<u64>();
            for (index, word) in tcp.words().into_iter().enumerate() {
                words.add(index).write_volatile(word);
            }
        }
    }
}
