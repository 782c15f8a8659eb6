//! Hands messages of the DNS to userspace, which learns from them what addresses are called. See [`agent_common::dns`].
//!
//! Only packets that are in a flow are looked at, so that what a filter leaves out is not read.

use core::ffi::c_void;

use agent_common::{
    L4Kind, Packet,
    dns::{DnsBudget, DnsMessage, HEADER_LEN, KEPT_LEN, PORT, lost},
    protocol::UDP,
    senders::Question,
};
use aya_ebpf::{
    Global,
    bindings::{__sk_buff, xdp_md},
    btf_maps::{Array, RingBuf},
    macros::btf_map,
};

use crate::{
    atomic,
    bounds::within,
    clock,
    hand_over::{Bytes, Frame, Skb, end_bytes, put_words},
};

/// How many messages userspace wants in a second; 0 if none. Fixed when the programs are loaded, so that the verifier removes what it
/// is not needed for.
#[unsafe(no_mangle)]
static DNS_PER_SECOND: Global<u32> = Global::new(0);

/// What userspace has not read yet. It sets the size, and is woken up when it has read all that was there.
#[btf_map]
static DNS_MESSAGES: RingBuf<DnsMessage, 4096> = RingBuf::new();

/// By kind of [`lost`].
#[btf_map]
static DNS_LOST: Array<u64, { lost::KINDS as usize }> = Array::new();

#[btf_map]
static DNS_BUDGET: Array<DnsBudget, 1> = Array::new();

/// Whether anybody wants any.
#[inline(always)]
pub fn is_wanted() -> bool {
    DNS_PER_SECOND.load() != 0
}

/// Whether the packet is to be handed over. `answer` is what [`count`](crate::count) returned.
#[inline(always)]
fn is_one(packet: &Packet, answer: u64) -> bool {
    let key = &packet.key;
    is_wanted()
        && Question(answer).is_of_a_flow()
        && key.protocol == UDP
        && (key.port_a == PORT || key.port_b == PORT)
}

#[inline(always)]
pub fn note_skb(skb: *mut __sk_buff, answer: u64, packet: &Packet) {
    if is_one(packet, answer) {
        hand_over_skb(skb, packet);
    }
}

#[inline(always)]
pub fn note_frame(frame: *mut xdp_md, answer: u64, packet: &Packet) {
    if is_one(packet, answer) {
        hand_over_frame(frame, packet);
    }
}

/// A function of its own, since few packets need it, and one for each kind of program, since the verifier passes a program's context to
/// no function that is shared with programs of another kind.
#[inline(never)]
fn hand_over_skb(skb: *mut __sk_buff, packet: &Packet) -> u32 {
    let skb = Skb(skb);
    if skb.is_super_frame() {
        note_lost(lost::UNREADABLE);
    } else {
        hand_over(packet, &skb);
    }
    0
}

#[inline(never)]
fn hand_over_frame(frame: *mut xdp_md, packet: &Packet) -> u32 {
    hand_over(packet, &Frame(frame));
    0
}

#[inline(always)]
fn hand_over(packet: &Packet, bytes: &impl Bytes) {
    // Later fragments have no header, and no ports but those of their first one.
    if packet.key.kind() != Some(L4Kind::Ports) || packet.part.is_later() {
        return;
    }
    let start = packet.segment_header_len_bytes;
    let end = end_bytes(packet, bytes);
    // What is shorter than a header is nothing of the DNS; what is of a tunnel has no known start.
    if start == 0 || end < start + HEADER_LEN as u32 {
        note_lost(lost::UNREADABLE);
        return;
    }
    let seen_ns = clock::boot_ns();
    if !is_in_budget(seen_ns) {
        note_lost(lost::OVER_RATE);
        return;
    }
    let Some(mut entry) = DNS_MESSAGES.reserve(0) else {
        note_lost(lost::NO_ROOM);
        return;
    };
    let message = entry.as_mut_ptr();
    let len_bytes = end - start;
    let kept_bytes = within::<{ HEADER_LEN as u64 }, { KEPT_LEN as u64 }>(len_bytes.into()) as u32;
    // SAFETY: what is reserved has room for a message.
    let is_loaded = unsafe {
        put_words((&raw mut (*message).key).cast(), packet.key.words());
        (*message).seen_ns = seen_ns;
        (*message).direction = packet.direction.into();
        (*message).is_part = u32::from(!packet.part.is_whole());
        (*message).len_bytes = len_bytes;
        (*message).kept_bytes = kept_bytes;
        let payload = (&raw mut (*message).payload).cast::<c_void>();
        bytes.load(start, payload, kept_bytes) == 0
    };
    if is_loaded {
        entry.submit(0);
    } else {
        entry.discard(0);
        note_lost(lost::UNREADABLE);
    }
}

/// Takes one of this second's. CPUs that begin a second at the same time may take some more.
#[inline(always)]
fn is_in_budget(now_ns: u64) -> bool {
    let Some(budget) = DNS_BUDGET.get_ptr_mut(0) else {
        return false;
    };
    let second = now_ns >> DnsBudget::SECOND_SHIFT;
    // SAFETY: elements of an array stay where they are, and each word is read and written as one.
    unsafe {
        let (last, taken) = (&raw mut (*budget).second, &raw mut (*budget).taken);
        // A CPU that is late does not turn it back.
        if last.read_volatile() < second {
            last.write_volatile(second);
            taken.write_volatile(0);
        }
        if taken.read_volatile() >= DNS_PER_SECOND.load().into() {
            return false;
        }
        atomic::add(taken, 1);
    }
    true
}

#[inline(always)]
fn note_lost(kind: u32) {
    if let Some(count) = DNS_LOST.get_ptr_mut(kind) {
        // SAFETY: elements of an array stay where they are.
        unsafe { atomic::add(count, 1) };
    }
}
