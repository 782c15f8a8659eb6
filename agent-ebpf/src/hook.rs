//! One packet at one hook: what the kernel says about it comes in, the account and the table grow.

use agent_common::{
    Frame, LinkType, Packet, Part, Reason, parse, parse_encapsulated,
    tunnel::outcome,
    wire_size::{Skb, TAG_LEN, WireSize, wire_size},
};
use aya_ebpf::{
    Global,
    helpers::bpf_xdp_get_buff_len,
    programs::{TcContext, XdpContext},
};
use aya_log_ebpf::debug;

use crate::{
    account::{self, Account},
    filter, fragments,
    packet::{FirstBuffer, Fragmented, Linear, LinearSkb, Paged, gso_size_bytes},
    page, pause, segmentation, table, tunnels,
    verifier::forgotten,
};

/// The network namespace of the interfaces, by inode number.
#[unsafe(no_mangle)]
static NETNS: Global<u32> = Global::new(0);

/// An Ethernet frame on the wire has at least 60 bytes, without FCS.
const MIN_FRAME_LEN: u32 = 60;

/// The index of a hook's account within an interface slot.
#[derive(Clone, Copy)]
pub enum Direction {
    Ingress = 0,
    Egress = 1,
}

/// Counts an skb. A header that ends with the linear part may go on in the pages.
#[inline(always)]
pub fn tc(ctx: &TcContext, direction: Direction, link_type: LinkType) {
    // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
    let skb = unsafe { &*ctx.skb.skb };
    let linear = LinearSkb {
        linear: Linear {
            data: skb.data as usize,
            data_end: skb.data_end as usize,
        },
        ctx,
    };
    let tag = (skb.vlan_present != 0).then_some(skb.vlan_tci as u16);

    let mut packet = Packet::default();
    let mut parsed = parse(&linear, link_type, tag, &mut packet);
    if parsed.is_err_and(Reason::may_be_more) {
        packet = Packet::default();
        parsed = parse_slowly(&Paged(ctx), link_type, tag, &mut packet);
    }
    let tunnel = if parsed.is_ok() {
        tunnels::open(&Paged(ctx), &mut packet)
    } else {
        0
    };
    let mut one = Skb {
        len_bytes: skb.len,
        gso_size_bytes: gso_size_bytes(ctx),
        gso_segs: skb.gso_segs,
        // Read again, since the stack has no room to keep it.
        lacking_len_bytes: if has_tag(ctx) { TAG_LEN } else { 0 },
    };
    forget_the_way(&mut packet, skb.len);
    if one.gso_size_bytes != 0 && parsed.is_ok() {
        let is_opened = tunnel & outcome::DECAPSULATED;
        if !packet.tells_what_repeats(is_opened != 0) {
            one.lacking_len_bytes += segmentation::read(ctx, &mut packet, is_opened);
        }
        let jumbo_len = u32::from(packet.jumbo_len_bytes);
        one.len_bytes -= jumbo_len;
        // Where it is unknown it becomes longer than any frame, which is unknown, too.
        packet.segment_header_len_bytes = packet.segment_header_len_bytes.wrapping_sub(jumbo_len);
        one.len_bytes = forgotten(one.len_bytes, skb.ifindex);
    } else {
        packet.jumbo_len_bytes = 0;
    }
    one.gso_size_bytes = forgotten(one.gso_size_bytes, skb.len);
    one.lacking_len_bytes = forgotten(one.lacking_len_bytes, skb.len);
    packet.segment_header_len_bytes = forgotten(packet.segment_header_len_bytes, skb.len);
    count(
        ctx,
        skb.ifindex,
        direction,
        one,
        &mut packet,
        parsed,
        tunnel,
    );
}

#[inline(always)]
fn has_tag(ctx: &TcContext) -> bool {
    // SAFETY: the context pointer is valid for the program's run; volatile to read it where it is wanted.
    unsafe { (&raw const (*ctx.skb.skb).vlan_present).read_volatile() != 0 }
}

/// Counts a frame in one buffer.
#[inline(always)]
pub fn xdp(ctx: &XdpContext, link_type: LinkType) {
    let linear = Linear {
        data: ctx.data(),
        data_end: ctx.data_end(),
    };
    let len_bytes = (linear.data_end - linear.data) as u32;
    let mut packet = Packet::default();
    let mut parsed = parse(&linear, link_type, None, &mut packet);
    if parsed == Err(Reason::NotIp) {
        packet = Packet::default();
        parsed = parse_slowly(&linear, link_type, None, &mut packet);
    }
    let tunnel = if parsed.is_ok() {
        tunnels::open(&linear, &mut packet)
    } else {
        0
    };
    count_frame(ctx, len_bytes, &mut packet, parsed, tunnel);
}

/// Counts a frame in one buffer or more.
#[inline(always)]
pub fn xdp_frags(ctx: &XdpContext, link_type: LinkType) {
    let first = FirstBuffer {
        linear: Linear {
            data: ctx.data(),
            data_end: ctx.data_end(),
        },
        ctx,
    };
    // SAFETY: the context pointer is the program's own.
    let len_bytes = unsafe { bpf_xdp_get_buff_len(ctx.ctx) } as u32;
    let mut packet = Packet::default();
    let mut parsed = parse(&first, link_type, None, &mut packet);
    if parsed.is_err_and(Reason::may_be_more) {
        packet = Packet::default();
        parsed = parse_slowly(&Fragmented(ctx), link_type, None, &mut packet);
    }
    let tunnel = if parsed.is_ok() {
        tunnels::open(&Fragmented(ctx), &mut packet)
    } else {
        0
    };
    count_frame(ctx, len_bytes, &mut packet, parsed, tunnel);
}

#[inline(always)]
fn count_frame(
    ctx: &XdpContext,
    len_bytes: u32,
    packet: &mut Packet,
    parsed: Result<(), Reason>,
    tunnel: u32,
) {
    forget_the_way(packet, len_bytes);
    // SAFETY: the context pointer is valid for the program's run; the verifier checks the field.
    let ifindex = unsafe { (*ctx.ctx).ingress_ifindex };
    let skb = Skb {
        len_bytes,
        ..Skb::default()
    };
    count(
        ctx,
        ifindex,
        Direction::Ingress,
        skb,
        packet,
        parsed,
        tunnel,
    );
}

/// What each way through the parser has as constants of its own, and what follows branches on.
#[inline(always)]
fn forget_the_way(packet: &mut Packet, noise: u32) {
    packet.segment_header_len_bytes = forgotten(packet.segment_header_len_bytes, noise);
    packet.jumbo_len_bytes = forgotten(packet.jumbo_len_bytes.into(), noise) as u16;
    packet.key.protocol = forgotten(packet.key.protocol.into(), noise) as u8;
    packet.direction = forgotten(packet.direction.into(), noise) as u8;
    packet.initiator = forgotten(packet.initiator.into(), noise) as u8;
    packet.key.ip_version = forgotten(packet.key.ip_version.into(), noise) as u8;
    packet.key.l4_kind = forgotten(packet.key.l4_kind.into(), noise) as u8;
    packet.tcp_flags = forgotten(packet.tcp_flags.into(), noise) as u8;
    packet.part = Part::from_bits(forgotten(packet.part.bits().into(), noise) as u16);
}

/// A function of its own, so that the slow path does not share the fast path's registers.
#[inline(never)]
fn parse_slowly<F: Frame>(
    frame: &F,
    link_type: LinkType,
    tag: Option<u16>,
    packet: &mut Packet,
) -> Result<(), Reason> {
    parse_encapsulated(frame, link_type, tag, packet)
}

/// Where every packet ends up. `seen` is added before any branch on what the parser said.
#[inline(always)]
fn count<C: aya_ebpf::EbpfContext>(
    ctx: &C,
    ifindex: u32,
    direction: Direction,
    skb: Skb,
    packet: &mut Packet,
    parsed: Result<(), Reason>,
    tunnel: u32,
) {
    pause::before_the_page();
    let Some(page) = page::current() else {
        return;
    };
    let hook = account::hook(ifindex, direction as u32);
    let Some(account) = Account::of(page, hook) else {
        return;
    };
    let parsed = if hook.is_some() {
        parsed
    } else {
        Err(Reason::UnknownInterface)
    };
    let header_len = if parsed.is_ok() {
        packet.segment_header_len_bytes
    } else {
        0
    };
    let size = wire_size(skb, header_len);
    account.add(Reason::Seen, size.packets, size.bytes);
    beside(&account, skb, packet, size);
    pause::on_the_page();

    let placed = match parsed {
        Ok(()) => {
            packet.key.netns = NETNS.load();
            packet.key.ifindex = ifindex;
            let mut tunnel = tunnel;
            if !packet.part.is_whole() {
                if let Some(fact) = fragments::join(packet) {
                    account.add(fact, size.packets, size.bytes);
                }
                tunnel |= tunnels::of_fragment(packet);
            }
            if tunnel != 0 {
                tunnels::facts(tunnel, |fact| account.add(fact, size.packets, size.bytes));
            }
            filter::select(packet, direction)
                .and_then(|()| {
                    packet.key.set_side(packet.direction, direction as u8);
                    table::add(page, packet, size.packets, size.bytes)
                })
                .map(|made| {
                    if made && tunnel & outcome::DECAPSULATED != 0 {
                        tunnels::remember_outer(packet);
                    }
                })
        }
        Err(reason) => Err(reason),
    };
    match placed {
        Ok(()) => account.add(Reason::Flows, size.packets, size.bytes),
        Err(reason) => {
            account.add(reason, size.packets, size.bytes);
            debug!(
                ctx,
                "ifindex {} not in a flow: reason {}", ifindex, reason as u8
            );
        }
    }
}

/// Facts that explain the difference to the interface's own counters.
#[inline(always)]
fn beside(account: &Account, skb: Skb, packet: &Packet, size: WireSize) {
    if skb.gso_size_bytes != 0 {
        account.add(
            Reason::SuperFrames,
            1,
            // As the kernel had it.
            u64::from(
                skb.len_bytes
                    + u32::from(packet.jumbo_len_bytes)
                    + (skb.lacking_len_bytes & TAG_LEN),
            ),
        );
        account.add(Reason::SuperFrameSegments, size.packets, size.bytes);
        if !size.exact {
            account.add(Reason::Inexact, size.packets, size.bytes);
        }
    }
    if skb.lacks_tag() {
        account.add(
            Reason::OffloadedTags,
            size.packets,
            size.packets * u64::from(TAG_LEN),
        );
    }
    if skb.len_bytes < MIN_FRAME_LEN {
        account.add(Reason::Short, 1, u64::from(MIN_FRAME_LEN - skb.len_bytes));
    }
}
