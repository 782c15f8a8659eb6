//! Steps that few packets need: slow parsing, a tunnel's header, the packet in a tunnel.
//!
//! Each is a global function, which the verifier walks once, for arbitrary arguments. Inlined into a program, it would
//! be walked once for each path that leads to it. A global function cannot be generic, so each reader has its own. It
//! takes and returns plain numbers and pointers, and checks every pointer for null.

use agent_common::{
    LinkType, Packet, Reason, parse_all,
    tunnel::{self, Opening},
};
use aya_ebpf::bindings::{__sk_buff, xdp_md};

use crate::{
    packet::{Fragmented, Linear, OneBuffer, Paged, Tagged},
    vlan_tag,
};

/// A reader that can perform the steps.
pub trait Steps {
    /// Whether the slow parse may find more than the parse of the packet's front, which failed for this reason.
    fn may_find_more(&self, reason: Reason) -> bool;

    /// Does what [`parse_all`] does. Returns the [`Reason`] as a number, [`Reason::Flows`] on success.
    fn parse_slowly(&self, link_type: LinkType, packet: &mut Packet) -> u32;

    /// Does what [`tunnel::read_header`] does.
    fn read_header(&self, opening: &mut Opening) -> bool;

    /// Does what [`tunnel::parse_inner`] does.
    fn parse_inner(&self, opening: &mut Opening) -> bool;
}

/// Implements [`Steps`] for a reader. `$reader` makes the reader from a context; `$tci` returns the VLAN tag that was
/// removed from the frame; `$more` is [`Steps::may_find_more`].
macro_rules! steps {
    ($of:ty, $context:ty, $reader:expr, $tci:expr, $more:expr, $parse:ident, $header:ident, $inner:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $parse(context: *mut $context, is_ip: u32, packet: *mut Packet) -> u32 {
            // SAFETY: the verifier makes sure that every caller passes a packet or null.
            let Some(packet) = (unsafe { packet.as_mut() }) else {
                return Reason::Vanished as u32;
            };
            let link_type = if is_ip == 0 {
                LinkType::Ethernet
            } else {
                LinkType::Ip
            };
            reason(parse_all(
                &$reader(context),
                link_type,
                $tci(context),
                packet,
            ))
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $header(context: *mut $context, opening: *mut Opening) -> u32 {
            // SAFETY: as above, for an opening.
            let Some(opening) = (unsafe { opening.as_mut() }) else {
                return 0;
            };
            u32::from(tunnel::read_header(&$reader(context), opening))
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $inner(context: *mut $context, opening: *mut Opening) -> u32 {
            // SAFETY: as above.
            let Some(opening) = (unsafe { opening.as_mut() }) else {
                return 0;
            };
            u32::from(tunnel::parse_inner(&$reader(context), opening))
        }

        impl Steps for $of {
            #[inline(always)]
            fn may_find_more(&self, reason: Reason) -> bool {
                $more(reason)
            }

            #[inline(always)]
            fn parse_slowly(&self, link_type: LinkType, packet: &mut Packet) -> u32 {
                *packet = Packet::default();
                let is_ip = u32::from(link_type == LinkType::Ip);
                $parse(self.0, is_ip, packet)
            }

            #[inline(always)]
            fn read_header(&self, opening: &mut Opening) -> bool {
                $header(self.0, opening) != 0
            }

            #[inline(always)]
            fn parse_inner(&self, opening: &mut Opening) -> bool {
                $inner(self.0, opening) != 0
            }
        }
    };
}

steps!(
    Paged,
    __sk_buff,
    Paged,
    |skb| Paged(skb).tci(),
    Reason::may_be_more,
    parse_skb,
    tunnel_header_of_skb,
    tunnels_packet_of_skb
);
steps!(
    OneBuffer,
    xdp_md,
    Linear::of,
    |_| None,
    // The front is the whole frame, so the slow parse only helps with headers that `parse` does not read.
    |reason| reason == Reason::NotIp,
    parse_buffer,
    tunnel_header_of_buffer,
    tunnels_packet_of_buffer
);
steps!(
    Fragmented,
    xdp_md,
    Fragmented,
    |_| None,
    Reason::may_be_more,
    parse_buffers,
    tunnel_header_of_buffers,
    tunnels_packet_of_buffers
);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn parse_tagged(frame: *mut xdp_md, packet: *mut Packet) -> u32 {
    // SAFETY: as above, for a packet.
    let Some(packet) = (unsafe { packet.as_mut() }) else {
        return Reason::Vanished as u32;
    };
    let tci = vlan_tag::of(frame).tci();
    reason(parse_all(
        &Fragmented(frame),
        LinkType::Ethernet,
        tci,
        packet,
    ))
}

/// A removed tag matters only to the outermost headers.
impl Steps for Tagged {
    #[inline(always)]
    fn may_find_more(&self, reason: Reason) -> bool {
        Fragmented(self.0).may_find_more(reason)
    }

    #[inline(always)]
    fn parse_slowly(&self, _: LinkType, packet: &mut Packet) -> u32 {
        *packet = Packet::default();
        parse_tagged(self.0, packet)
    }

    #[inline(always)]
    fn read_header(&self, opening: &mut Opening) -> bool {
        Fragmented(self.0).read_header(opening)
    }

    #[inline(always)]
    fn parse_inner(&self, opening: &mut Opening) -> bool {
        Fragmented(self.0).parse_inner(opening)
    }
}

/// The parser's result as a number: [`Reason::Flows`] on success.
#[inline(always)]
pub fn reason(parsed: Result<(), Reason>) -> u32 {
    parsed.err().unwrap_or(Reason::Flows) as u32
}
