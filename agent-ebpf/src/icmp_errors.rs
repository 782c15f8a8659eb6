//! Copies ICMP errors to userspace, which finds the flows whose packets they quote. See [`agent_common::icmp`].
//!
//! Reads only packets in a flow, like [`dns`](crate::dns).

use core::ffi::c_void;

use agent_common::{
    Packet,
    icmp::{IcmpMessage, KEPT_LEN, LEAST_LEN, lost, tells_of_unreachable},
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

const BPF_RB_NO_WAKEUP: u64 = 1;

/// Whether userspace wants them; 0 or 1. Set when the programs are loaded, so that the verifier removes the code if it
/// is 0.
#[unsafe(no_mangle)]
static ICMP_ERRORS_KEPT: Global<u32> = Global::new(0);

/// Userspace sets the size, and reads the ring at each scan.
#[btf_map]
static ICMP_ERRORS: RingBuf<IcmpMessage, 4096> = RingBuf::new();

/// By kind of [`lost`].
#[btf_map]
static ICMP_ERRORS_LOST: Array<u64, { lost::KINDS as usize }> = Array::new();

#[inline(always)]
pub fn is_wanted() -> bool {
    ICMP_ERRORS_KEPT.load() != 0
}

/// `answer` is the result of [`count`](crate::count).
#[inline(always)]
fn is_one(packet: &Packet, answer: u64) -> bool {
    is_wanted() && Question(answer).is_of_a_flow() && tells_of_unreachable(&packet.key)
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

/// Separate functions, like [`dns`](crate::dns).
#[inline(never)]
fn hand_over_skb(skb: *mut __sk_buff, packet: &Packet) -> u32 {
    hand_over(packet, &Skb(skb));
    0
}

#[inline(never)]
fn hand_over_frame(frame: *mut xdp_md, packet: &Packet) -> u32 {
    hand_over(packet, &Frame(frame));
    0
}

#[inline(always)]
fn hand_over(packet: &Packet, bytes: &impl Bytes) {
    // Later fragments have their first fragment's key, but quote nothing.
    if packet.part.is_later() {
        return;
    }
    let start = u32::from(packet.ip_start_bytes);
    let end = end_bytes(packet, bytes);
    if end < start + LEAST_LEN as u32 {
        note_lost(lost::UNREADABLE);
        return;
    }
    let Some(mut entry) = ICMP_ERRORS.reserve(0) else {
        note_lost(lost::NO_ROOM);
        return;
    };
    let message = entry.as_mut_ptr();
    let kept_bytes =
        within::<{ LEAST_LEN as u64 }, { KEPT_LEN as u64 }>((end - start).into()) as u32;
    // SAFETY: the reserved memory has room for a message.
    let is_loaded = unsafe {
        put_words((&raw mut (*message).key).cast(), packet.key.words());
        (*message).seen_ns = clock::boot_ns();
        (*message).direction = packet.direction.into();
        (*message).kept_bytes = kept_bytes;
        let kept = (&raw mut (*message).packet).cast::<c_void>();
        bytes.load(start, kept, kept_bytes) == 0
    };
    if is_loaded {
        entry.submit(BPF_RB_NO_WAKEUP);
    } else {
        entry.discard(BPF_RB_NO_WAKEUP);
        note_lost(lost::UNREADABLE);
    }
}

#[inline(always)]
fn note_lost(kind: u32) {
    if let Some(count) = ICMP_ERRORS_LOST.get_ptr_mut(kind) {
        // SAFETY: elements of an array stay where they are.
        unsafe { atomic::add(count, 1) };
    }
}
