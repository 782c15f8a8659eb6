//! Counts a parsed packet: in the flow table, and in the account by its outcome.

use agent_common::{
    Direction, Packet, Reason,
    senders::Question,
    tunnel::outcome,
    wire_size::{Skb, TAG_LEN, WireSize, ip_bytes, wire_size},
};
use aya_log_ebpf::debug;

use crate::{
    account::{self, Account},
    dns, filter, fragments, icmp_errors, namespace, pause, senders, switches,
    table::{self, Begun, Counted, Sought},
    tunnels,
};

/// An Ethernet frame on the wire has at least 60 bytes, without FCS.
const MIN_FRAME_LEN: u32 = 60;

/// A bit beside a [`Reason`]: the link header is not the one that the interface promises.
pub const OTHER_HEADER: u32 = 1 << 8;

/// Facts about a packet beyond the parser's result. It has no padding, since the verifier refuses memory that was never
/// written.
#[repr(C)]
pub struct Arrival {
    /// The address of the program's context.
    pub context: usize,
    /// 1 if the context is an XDP program's.
    pub is_xdp: u16,
    /// An [`agent_common::Direction`].
    pub direction: u16,
    pub ifindex: u32,
    pub skb: Skb,
    /// The parser's result as a [`Reason`]: [`Reason::Flows`], or why the packet has no flow. It may include
    /// [`OTHER_HEADER`]: a field of its own would take stack that the programs do not have.
    pub reason: u32,
    /// Bits of [`outcome`].
    pub tunnel: u32,
}

const _: () = assert!(size_of::<Arrival>() == 8 + 2 + 2 + 4 + size_of::<Skb>() + 4 + 4);

/// Counts a packet.
///
/// A global function, which the verifier walks once, for arbitrary arguments. Inlined into the programs, it would be
/// walked once for each path through the parser. A global function has to check its pointers for null and to return a
/// number. This one returns a [`Question`]: only the program itself can access the packet's socket and payload.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn count(packet: *mut Packet, arrival: *const Arrival) -> u64 {
    // SAFETY: the verifier makes sure that every caller passes a packet or null.
    let Some(packet) = (unsafe { packet.as_mut() }) else {
        return Question::NONE.0;
    };
    // SAFETY: as above.
    let Some(arrival) = (unsafe { arrival.as_ref() }) else {
        return Question::NONE.0;
    };
    pause::before_the_page();
    let Some(page) = switches::current() else {
        return Question::NONE.0;
    };
    count_on(page, packet, arrival).0
}

/// Counts a copy of a packet that this host sent, outside the sum. A global function, as above.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn count_looped_back(ifindex: u32, len_bytes: u32) -> u32 {
    if let Some(page) = switches::current()
        && let Some(account) = Account::of(page, account::hook(ifindex, Direction::Ingress as u32))
    {
        account.note(Reason::LoopedBack, 1, len_bytes.into());
    }
    0
}

/// Adds to `seen` before any branch on the parser's result.
#[inline(always)]
fn count_on(page: u32, packet: &mut Packet, arrival: &Arrival) -> Question {
    let hook = account::hook(arrival.ifindex, arrival.direction.into());
    let Some(account) = Account::of(page, hook) else {
        return Question::NONE;
    };
    let reason = if hook.is_some() {
        arrival.reason & !OTHER_HEADER
    } else {
        Reason::UnknownInterface as u32
    };
    let is_parsed = reason == Reason::Flows as u32;
    let header_len = if is_parsed {
        packet.segment_header_len_bytes
    } else {
        0
    };
    let size = wire_size(arrival.skb, header_len);
    account.see(size.packets, size.bytes);
    beside(&account, arrival.skb, packet, size);
    pause::on_the_page();

    if arrival.tunnel & outcome::TAG_UNKNOWN != 0 {
        account.note(Reason::TagsUnknown, size.packets, size.bytes);
    }
    if arrival.reason & OTHER_HEADER != 0 {
        account.note(Reason::OtherHeader, size.packets, size.bytes);
    }
    let (reason, question) = if is_parsed {
        match place(page, &account, packet, arrival, size) {
            Ok(question) if dns::is_wanted() || icmp_errors::is_wanted() => {
                (Reason::Flows as u32, question.of_a_flow())
            }
            Ok(question) => (Reason::Flows as u32, question),
            Err(reason) => (reason as u32, Question::NONE),
        }
    } else {
        (reason, Question::NONE)
    };
    account.place(reason, size.packets, size.bytes);
    if reason != Reason::Flows as u32 {
        debug!(
            (),
            "ifindex {} not in a flow: reason {}", arrival.ifindex, reason
        );
    }
    question
}

/// Adds a parsed packet to its flow. Returns the flow's question, or the reason why the packet is in no flow.
#[inline(always)]
fn place(
    page: u32,
    account: &Account,
    packet: &mut Packet,
    arrival: &Arrival,
    size: WireSize,
) -> Result<Question, Reason> {
    packet.key.netns = namespace::number();
    packet.key.ifindex = arrival.ifindex;
    let mut tunnel = arrival.tunnel;
    if !packet.part.is_whole() {
        if let Some(fact) = fragments::join(packet) {
            account.note(fact, size.packets, size.bytes);
        }
        tunnel |= tunnels::of_fragment(packet);
    }
    if tunnel != 0 {
        tunnels::facts(tunnel, |fact| account.note(fact, size.packets, size.bytes));
    }
    filter::select(page, packet, arrival.direction.into())?;
    packet
        .key
        .set_side(packet.direction, arrival.direction as u8);
    let ip = (packet.ip_start_bytes.into(), packet.ip_end_bytes);
    let size = Counted {
        packets: size.packets,
        bytes: size.bytes,
        ip_bytes: ip_bytes(arrival.skb, size, ip),
    };
    let asked = senders::bits(packet, arrival.is_xdp != 0);
    let sought = Sought::new(page, packet, asked);
    if let Some(question) = table::grow(&sought, size) {
        return Ok(question);
    }
    if namespace::has_left(arrival.context, arrival.is_xdp.into()) {
        return Err(Reason::UnknownInterface);
    }
    match table::begin(&sought, size) {
        Begun::Here(question) => {
            // `arrival.tunnel` has this bit as well. Keeping `tunnel` until here would take stack.
            if arrival.tunnel & outcome::DECAPSULATED != 0 {
                tunnels::remember_outer(&packet.key);
            }
            Ok(question)
        }
        Begun::Elsewhere(question) => Ok(question),
        Begun::Not(reason) => Err(reason),
    }
}

/// Counts the facts that explain the difference to the interface's own counters.
#[inline(always)]
fn beside(account: &Account, skb: Skb, packet: &Packet, size: WireSize) {
    if skb.gso_size_bytes != 0 {
        account.note(
            Reason::SuperFrames,
            1,
            // The bytes that the skb had in the kernel.
            u64::from(
                skb.len_bytes
                    + u32::from(packet.jumbo_len_bytes)
                    + (skb.lacking_len_bytes & TAG_LEN),
            ),
        );
        account.note(Reason::SuperFrameSegments, size.packets, size.bytes);
        if !size.exact {
            account.note(Reason::Inexact, size.packets, size.bytes);
        }
    }
    if skb.lacks_tag() {
        account.note(
            Reason::OffloadedTags,
            size.packets,
            size.packets * u64::from(TAG_LEN),
        );
    }
    if skb.len_bytes < MIN_FRAME_LEN {
        account.note(Reason::Short, 1, u64::from(MIN_FRAME_LEN - skb.len_bytes));
    }
}
