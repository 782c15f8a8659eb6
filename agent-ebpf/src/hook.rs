//! One packet at one hook: what the kernel says about it comes in, the account and the table grow.

use agent_common::{
    Frame, LinkType, Packet, Reason, parse, parse_encapsulated,
    tunnel::outcome,
    wire_size::{Skb, WireSize, jumbo_len_bytes, wire_size},
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
    packet::{Fragmented, Linear, Paged},
    page, pause, table, tunnels,
    verifier::forgotten,
};

/// The network namespace of the interfaces, by inode number.
#[unsafe(no_mangle)]
static NETNS: Global<u32> = Global::new(0);

const VLAN_TAG_LEN: u32 = 4;
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
    let linear = Linear {
        data: skb.data as usize,
        data_end: skb.data_end as usize,
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
        gso_size_bytes: skb.gso_size,
        gso_segs: skb.gso_segs,
        tag_len_bytes: if tag.is_some() { VLAN_TAG_LEN } else { 0 },
    };
    forget_the_way(&mut packet, skb.len);
    let jumbo_len = jumbo_len_bytes(one, link_type, packet.key.ip_version);
    if packet.segment_header_len_bytes > jumbo_len {
        one.len_bytes -= jumbo_len;
        packet.segment_header_len_bytes -= jumbo_len;
    }
    // What the branches of that say of the lengths, too.
    one.len_bytes = forgotten(one.len_bytes, skb.ifindex);
    one.gso_size_bytes = forgotten(one.gso_size_bytes, skb.len);
    one.tag_len_bytes = forgotten(one.tag_len_bytes, skb.len);
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
    let linear = Linear {
        data: ctx.data(),
        data_end: ctx.data_end(),
    };
    // SAFETY: the context pointer is the program's own.
    let len_bytes = unsafe { bpf_xdp_get_buff_len(ctx.ctx) } as u32;
    let mut packet = Packet::default();
    let mut parsed = parse(&linear, link_type, None, &mut packet);
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
    packet.direction = forgotten(packet.direction.into(), noise) as u8;
    packet.initiator = forgotten(packet.initiator.into(), noise) as u8;
    packet.key.ip_version = forgotten(packet.key.ip_version.into(), noise) as u8;
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
    beside(&account, skb, size);
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
fn beside(account: &Account, skb: Skb, size: WireSize) {
    if skb.gso_size_bytes != 0 {
        account.add(
            Reason::SuperFrames,
            1,
            u64::from(skb.len_bytes + skb.tag_len_bytes),
        );
        account.add(Reason::SuperFrameSegments, size.packets, size.bytes);
        if !size.exact {
            account.add(Reason::Inexact, size.packets, size.bytes);
        }
    }
    if skb.tag_len_bytes != 0 {
        account.add(
            Reason::OffloadedTags,
            size.packets,
            size.packets * u64::from(VLAN_TAG_LEN),
        );
    }
    if skb.len_bytes < MIN_FRAME_LEN {
        account.add(Reason::Short, 1, u64::from(MIN_FRAME_LEN - skb.len_bytes));
    }
}
