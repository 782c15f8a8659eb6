//! Handles one packet at one hook: parses it, determines its size on the wire, and counts it.

use agent_common::{
    Direction, Frame, LinkType, Packet, Reason, parse,
    tunnel::outcome,
    wire_size::{Skb, TAG_LEN},
};
use aya_ebpf::{
    bindings::xdp_md,
    programs::{TcContext, XdpContext},
};

use crate::{
    count::{Arrival, OTHER_HEADER, count, count_looped_back},
    dns, icmp_errors,
    link_header::begins_otherwise,
    looped_back,
    packet::{Fragmented, Linear, OneBuffer, Paged, Tagged},
    round_trips,
    segmentation::read_segmentation,
    senders,
    steps::{Steps, reason},
    tunnels,
    vlan_tag::{self, Answer},
};

/// Counts an skb. A header that the linear part cuts off may continue in the skb's pages.
#[inline(always)]
pub fn tc(ctx: &TcContext, direction: Direction, link_type: LinkType) {
    let paged = Paged(ctx.skb.skb);
    let is_other = begins_otherwise(paged.0, u32::from(link_type == LinkType::Ip)) != 0;
    let is_bare = is_other || link_type == LinkType::Ip;
    if direction == Direction::Ingress && is_bare && looped_back::is_copy(paged.0) {
        // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
        let (ifindex, len_bytes) = unsafe { ((*paged.0).ifindex, (*paged.0).len) };
        count_looped_back(ifindex, len_bytes);
        return;
    }
    let mut packet = Packet::default();
    let reason = if is_other {
        paged.parse_slowly(link_type.other(), &mut packet) | OTHER_HEADER
    } else {
        let tci = paged.tci();
        parsed(&paged, &paged.front(), link_type, tci, &mut packet)
    };
    let tunnel = opened(&paged, reason, &mut packet);

    // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
    let skb = unsafe { &*paged.0 };
    let mut one = Skb {
        len_bytes: skb.len,
        gso_size_bytes: paged.gso_size_bytes(),
        gso_segs: skb.gso_segs,
        lacking_len_bytes: if paged.lacks_tag() { TAG_LEN } else { 0 },
    };
    if one.gso_size_bytes != 0 && reason & !OTHER_HEADER == Reason::Flows as u32 {
        let is_opened = tunnel & outcome::DECAPSULATED;
        if !packet.tells_what_repeats(is_opened != 0) {
            one.lacking_len_bytes += read_segmentation(paged.0, &raw mut packet, is_opened);
        }
        let jumbo_len = u32::from(packet.jumbo_len_bytes);
        one.len_bytes -= jumbo_len;
        // An unknown length (0) wraps to a length beyond any frame, which counts as unknown as well.
        packet.segment_header_len_bytes = packet.segment_header_len_bytes.wrapping_sub(jumbo_len);
    } else {
        packet.jumbo_len_bytes = 0;
    }
    let arrival = Arrival {
        context: paged.0 as usize,
        is_xdp: 0,
        direction: direction as u16,
        ifindex: skb.ifindex,
        skb: one,
        reason,
        tunnel,
    };
    let answer = count(&raw mut packet, &raw const arrival);
    round_trips::note_skb(paged.0, answer, &packet);
    senders::note(paged.0, answer, &packet);
    dns::note_skb(paged.0, answer, &packet);
    icmp_errors::note_skb(paged.0, answer, &packet);
}

/// Counts a frame in one buffer.
#[inline(always)]
pub fn xdp(ctx: &XdpContext, link_type: LinkType) {
    let linear = Linear::of(ctx.ctx);
    let len_bytes = (linear.data_end - linear.data) as u32;
    let mut packet = Packet::default();
    let (reason, tunnel) = read(&OneBuffer(ctx.ctx), &linear, link_type, None, &mut packet);
    count_frame(ctx.ctx, single(len_bytes), &mut packet, reason, tunnel);
}

/// Counts a frame in one buffer or more.
#[inline(always)]
pub fn xdp_frags(ctx: &XdpContext, link_type: LinkType) {
    let buffers = Fragmented(ctx.ctx);
    let len_bytes = buffers.len_bytes();
    let mut packet = Packet::default();
    let (reason, tunnel) = read(&buffers, &buffers.front(), link_type, None, &mut packet);
    count_frame(ctx.ctx, single(len_bytes), &mut packet, reason, tunnel);
}

/// Counts an Ethernet frame in one buffer or more, whose VLAN tag the driver may have removed.
#[inline(always)]
pub fn xdp_tagged(ctx: &XdpContext) {
    let buffers = Fragmented(ctx.ctx);
    let len_bytes = buffers.len_bytes();
    let mut packet = Packet::default();
    let answer = vlan_tag::of(ctx.ctx);
    let (reason, mut tunnel) = read(
        &Tagged(ctx.ctx),
        &buffers.front(),
        LinkType::Ethernet,
        answer.tci(),
        &mut packet,
    );
    let lacking_len_bytes = match answer {
        Answer::Taken(_) => TAG_LEN,
        Answer::Nothing => 0,
        Answer::Unknown => {
            tunnel |= outcome::TAG_UNKNOWN;
            0
        }
    };
    let skb = Skb {
        len_bytes,
        lacking_len_bytes,
        ..Skb::default()
    };
    count_frame(ctx.ctx, skb, &mut packet, reason, tunnel);
}

/// Parses a packet and opens tunnels. Returns the results of [`parsed`] and [`opened`].
#[inline(always)]
fn read<S: Steps>(
    steps: &S,
    front: &impl Frame,
    link_type: LinkType,
    tci: Option<u16>,
    packet: &mut Packet,
) -> (u32, u32) {
    let reason = parsed(steps, front, link_type, tci, packet);
    let tunnel = opened(steps, reason, packet);
    (reason, tunnel)
}

/// Parses a packet: first from `front`, which is read in place, then by the slow step if that may find more. Returns
/// the [`Reason`] as a number, [`Reason::Flows`] if the packet has a flow.
#[inline(always)]
fn parsed<S: Steps>(
    steps: &S,
    front: &impl Frame,
    link_type: LinkType,
    tci: Option<u16>,
    packet: &mut Packet,
) -> u32 {
    let parsed = parse(front, link_type, tci, packet);
    if parsed.is_err_and(|reason| steps.may_find_more(reason)) {
        steps.parse_slowly(link_type, packet)
    } else {
        reason(parsed)
    }
}

/// Opens tunnels, if the packet has a flow. Returns the bits of [`outcome`].
#[inline(always)]
fn opened<S: Steps>(steps: &S, reason: u32, packet: &mut Packet) -> u32 {
    if reason & !OTHER_HEADER == Reason::Flows as u32 {
        tunnels::open(steps, packet)
    } else {
        0
    }
}

/// A frame that is not a super-frame and lacks no tag.
#[inline(always)]
fn single(len_bytes: u32) -> Skb {
    Skb {
        len_bytes,
        ..Skb::default()
    }
}

#[inline(always)]
fn count_frame(frame: *mut xdp_md, skb: Skb, packet: &mut Packet, reason: u32, tunnel: u32) {
    let arrival = Arrival {
        context: frame as usize,
        is_xdp: 1,
        direction: Direction::Ingress as u16,
        // SAFETY: the context pointer is valid for the program's run; the verifier checks the field.
        ifindex: unsafe { (*frame).ingress_ifindex },
        skb,
        reason,
        tunnel,
    };
    // At XDP no packet has a socket yet, so senders are not asked for.
    let answer = count(packet, &raw const arrival);
    round_trips::note_frame(frame, answer, packet);
    dns::note_frame(frame, answer, packet);
    icmp_errors::note_frame(frame, answer, packet);
}
