//! Measures how long TCP segments take to be acknowledged, from the packets that pass. See
//! [`agent_common::round_trip`].
//!
//! A flow's bits tell whether a sample is open. If none is, as for most packets, nothing else is read.

use agent_common::{
    Packet, Sample,
    flow::{FlowBits, tcp_flags},
    protocol::TCP,
    round_trip::Segment,
    senders::{Kinds, Question},
};
use aya_ebpf::bindings::{__sk_buff, xdp_md};

use crate::{
    atomic,
    bounds::masked,
    clock,
    hand_over::{Bytes, Frame, Skb, end_bytes},
    senders, table,
};

#[inline(always)]
pub fn are_wanted() -> bool {
    senders::kept().has(Kinds::ROUND_TRIPS)
}

/// The bit that a segment sets in its flow if it may start a sample. `answers` is the number of the other direction's
/// packets. If there are none, the answers may take another path, and the sample would stay open at every packet. Only
/// a SYN starts a sample without answers.
#[inline(always)]
pub fn begun(packet: &Packet, answers: u64) -> FlowBits {
    // A fragmented segment may be answered before its last fragment passes.
    if !are_wanted() || packet.key.protocol != TCP || !packet.part.is_whole() {
        return FlowBits::NONE;
    }
    let is_syn = packet.tcp_flags & tcp_flags::SYN != 0;
    let has_payload = packet.ip_end_bytes > packet.segment_header_len_bytes;
    if is_syn || has_payload && answers != 0 {
        FlowBits::measured(packet.direction)
    } else {
        FlowBits::NONE
    }
}

/// `answer` is the result of [`count`](crate::count).
#[inline(always)]
pub fn note_skb(skb: *mut __sk_buff, answer: u64, packet: &Packet) {
    if are_wanted() && Question(answer).asks(Question::ROUND_TRIP) {
        measure_skb(skb, answer, packet);
    }
}

#[inline(always)]
pub fn note_frame(frame: *mut xdp_md, answer: u64, packet: &Packet) {
    if are_wanted() && Question(answer).asks(Question::ROUND_TRIP) {
        measure_frame(frame, answer, packet);
    }
}

/// Separate functions, like [`dns`](crate::dns).
#[inline(never)]
fn measure_skb(skb: *mut __sk_buff, answer: u64, packet: &Packet) -> u32 {
    measure(&Skb(skb), Question(answer), packet);
    0
}

#[inline(never)]
fn measure_frame(frame: *mut xdp_md, answer: u64, packet: &Packet) -> u32 {
    measure(&Frame(frame), Question(answer), packet);
    0
}

#[inline(always)]
fn measure(bytes: &impl Bytes, question: Question, packet: &Packet) {
    let Some(both) = senders::round_trips(question, packet) else {
        return;
    };
    let direction = masked::<1>(question.direction().into());
    // SAFETY: there is one sample for each direction.
    let (own, other) = unsafe { (both.add(direction), both.add(1 - direction)) };
    let segment = segment(bytes, packet);
    // SAFETY: they live for the program's run. Volatile, since other CPUs change them.
    let (sample, of_other) =
        unsafe { (Sample(own.read_volatile()), Sample(other.read_volatile())) };
    let Some(segment) = segment else {
        // The unreadable segment may be the one that an open sample waits for. Spoil both directions' samples, so that
        // later packets need not be read.
        if sample == Sample::NONE || sample.waits() {
            end(question, packet, direction, own, sample, Sample::SPOILED);
        }
        if of_other.waits() {
            end(
                question,
                packet,
                1 - direction,
                other,
                of_other,
                Sample::SPOILED,
            );
        }
        return;
    };
    if of_other.is_ended_by(&segment) {
        let ended = of_other.ended(clock::boot_ns());
        end(question, packet, 1 - direction, other, of_other, ended);
    }
    if sample.begins_with(&segment) {
        // If another CPU started a sample at the same time, that one counts.
        // SAFETY: as above.
        unsafe {
            atomic::swap_if(
                own,
                Sample::NONE.0,
                Sample::begun(&segment, clock::boot_ns()).0,
            )
        };
    } else if sample.is_spoiled_by(&segment) {
        end(question, packet, direction, own, sample, Sample::SPOILED);
    }
}

/// Ends a sample. If several programs do so at the same time, one succeeds.
#[inline(always)]
fn end(
    question: Question,
    packet: &Packet,
    direction: usize,
    place: *mut u64,
    sample: Sample,
    ended: Sample,
) {
    // SAFETY: it lives for the program's run.
    if unsafe { atomic::swap_if(place, sample.0, ended.0) } {
        table::settle(question, packet, FlowBits::settled(direction as u8));
    }
}

/// Reads the fields that the parser did not. `None` for a fragment, and if the header is behind extension headers.
#[inline(always)]
fn segment(bytes: &impl Bytes, packet: &Packet) -> Option<Segment> {
    const HEADER_LEN: u32 = 20;
    const HOP_BY_HOP: u8 = 0;
    if !packet.part.is_whole() {
        return None;
    }
    let start = u32::from(packet.ip_start_bytes);
    let mut ip = [0_u8; 8];
    // SAFETY: the buffer has room for all bytes.
    if unsafe { bytes.load(start, ip.as_mut_ptr().cast(), ip.len() as u32) } != 0 {
        return None;
    }
    // The header that the kernel puts into a long super-frame (BIG TCP).
    let jumbo = u32::from(packet.jumbo_len_bytes);
    let header = start
        + match (ip[0] >> 4, ip[6]) {
            (4, _) => u32::from(ip[0] & 0xf) * 4,
            (_, TCP) => 40,
            (_, HOP_BY_HOP) if jumbo != 0 => 40 + jumbo,
            _ => return None,
        };
    let mut tcp = [0_u8; 16];
    // SAFETY: as above.
    if unsafe { bytes.load(header, tcp.as_mut_ptr().cast(), tcp.len() as u32) } != 0 {
        return None;
    }
    let payload = header + u32::from(tcp[12] >> 4) * 4;
    if payload < header + HEADER_LEN || payload != packet.segment_header_len_bytes + jumbo {
        return None;
    }
    Some(Segment {
        sequence: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
        acknowledgment: u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]),
        payload_len_bytes: end_bytes(packet, bytes).saturating_sub(payload),
        flags: packet.tcp_flags,
    })
}
