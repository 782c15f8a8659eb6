//! Copies DNS messages to userspace, which learns the names of addresses from them. See [`agent_common::dns`].
//!
//! Only packets in a flow are read, so a filter also keeps messages from being read.

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

/// How many messages per second userspace wants; 0 for none. Set when the programs are loaded, so that the verifier
/// removes the code if it is 0.
#[unsafe(no_mangle)]
static DNS_PER_SECOND: Global<u32> = Global::new(0);

/// Messages that userspace has not read yet. Userspace sets the size. The kernel wakes it up if it had read everything.
#[btf_map]
static DNS_MESSAGES: RingBuf<DnsMessage, 4096> = RingBuf::new();

/// By kind of [`lost`].
#[btf_map]
static DNS_LOST: Array<u64, { lost::KINDS as usize }> = Array::new();

#[btf_map]
static DNS_BUDGET: Array<DnsBudget, 1> = Array::new();

/// Whether userspace wants any messages.
#[inline(always)]
pub fn is_wanted() -> bool {
    DNS_PER_SECOND.load() != 0
}

/// Whether to copy the packet to userspace. `answer` is the result of [`count`](crate::count).
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

/// A function of its own, since few packets need it. One for each program type, since the verifier does not let
/// programs of different types pass their contexts to the same function.
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
    // Later fragments have no UDP header. They have ports only if their first fragment is known.
    if packet.key.kind() != Some(L4Kind::Ports) || packet.part.is_later() {
        return;
    }
    let start = packet.segment_header_len_bytes;
    let end = end_bytes(packet, bytes);
    // A payload shorter than a header is not DNS. `start` is 0 if the packet may be a tunnel's.
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
    // SAFETY: the reserved memory has room for a message.
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

/// Takes one message from this second's budget. CPUs that start a second at the same time may take a few more.
#[inline(always)]
fn is_in_budget(now_ns: u64) -> bool {
    let Some(budget) = DNS_BUDGET.get_ptr_mut(0) else {
        return false;
    };
    let second = now_ns >> DnsBudget::SECOND_SHIFT;
    // SAFETY: elements of an array stay where they are, and each word is read and written as one.
    unsafe {
        let (last, taken) = (&raw mut (*budget).second, &raw mut (*budget).taken);
        // A CPU whose clock is behind does not turn the second back.
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
