//! The flow: the key that names it and the counters that the kernel keeps for it.
//!
//! A flow is bidirectional (RFC 5103): one entry counts both directions. Its endpoints stand in
//! canonical order, the lower `address, port` first. Direction 0 is a → b.

/// How to read the two port fields of a [`FlowKey`].
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Kind {
    /// A protocol without ports: both fields are zero.
    None = 0,
    /// TCP, UDP, SCTP, UDP-Lite, DCCP: ports.
    Ports = 1,
    /// ICMP: `port_a` is type and code; `port_b` is zero.
    Icmp = 2,
    /// ICMP with an identifier: `port_a` is type and code of the request; `port_b` the identifier.
    IcmpQuery = 3,
    /// A later fragment whose first one is not known: both fields are zero.
    Fragment = 4,
}

impl L4Kind {
    /// `None` for a byte that no parser writes.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::None,
            1 => Self::Ports,
            2 => Self::Icmp,
            3 => Self::IcmpQuery,
            4 => Self::Fragment,
            _ => return None,
        })
    }
}

/// Names a flow. It has plain integers and byte arrays and no hidden padding, since the kernel hashes the bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The lower endpoint's address in network byte order. An IPv4 address takes the first four bytes; the
    /// others are zero.
    pub addr_a: [u8; 16],
    pub addr_b: [u8; 16],
    /// The network namespace's inode number, since two namespaces may use the same interface index.
    pub netns: u32,
    pub ifindex: u32,
    /// Outer and inner VLAN id; 0 where there is no tag (802.1Q: id 0 means no VLAN).
    pub vlan_ids: [u16; 2],
    /// Host byte order; see [`L4Kind`].
    pub port_a: u16,
    pub port_b: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// IANA protocol number; for IPv6 the last next-header value.
    pub protocol: u8,
    /// An [`L4Kind`], to be read with [`FlowKey::kind`]. In the flow table its highest bit is the
    /// [`side`](Self::side).
    pub l4_kind: u8,
    /// An [`Encapsulation`]: the innermost one around the flow's packets.
    pub encapsulation: u8,
    /// The number that distinguishes tunnels of one kind, host byte order; see [`Encapsulation`].
    pub tunnel_id: u32,
}

const _: () = assert!(size_of::<FlowKey>() == 32 + 8 + 4 + 4 + 4 + 4);

impl FlowKey {
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();

    /// Whether the keys are equal; without a branch for each field, or a call.
    #[inline(always)]
    pub fn is(&self, other: &Self) -> bool {
        let mut differences = 0;
        for (one, other) in self.words().iter().zip(other.words()) {
            differences |= one ^ other;
        }
        differences == 0
    }

    #[inline(always)]
    pub const fn words(&self) -> &[u64; Self::WORDS] {
        // SAFETY: a key has the size and the alignment of its words, and no padding (asserted by size above).
        unsafe { &*(&raw const *self).cast() }
    }

    /// The key that has these [`words`](Self::words).
    #[must_use]
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        // SAFETY: as above, and a key may have any bits.
        unsafe { core::mem::transmute(words) }
    }

    /// The key in 32-bit words, from which its hash is computed.
    #[inline(always)]
    pub const fn halves(&self) -> &[u32; 2 * Self::WORDS] {
        // SAFETY: as above.
        unsafe { &*(&raw const *self).cast() }
    }

    const SIDE_SHIFT: u32 = 7;
    const KIND_MASK: u8 = (1 << Self::SIDE_SHIFT) - 1;

    /// `None` for a kind that no program writes.
    pub const fn kind(&self) -> Option<L4Kind> {
        L4Kind::from_u8(self.l4_kind & Self::KIND_MASK)
    }

    /// The side of the interface on which the endpoints are: 0 if a's packets arrive and b's leave, 1 if b's arrive and
    /// a's leave.
    ///
    /// Both directions of a plain flow have the same side, so they share an entry. A flow has two entries
    /// if the same direction both arrives and leaves (a router with one interface), or if both directions
    /// arrive (a mirror port, loopback).
    pub const fn side(&self) -> u8 {
        self.l4_kind >> Self::SIDE_SHIFT
    }

    #[must_use]
    pub const fn with_side(mut self, side: u8) -> Self {
        self.l4_kind = self.l4_kind & Self::KIND_MASK | side << Self::SIDE_SHIFT;
        self
    }

    /// Sets the side for a packet in `direction` (0 from a, 1 from b) at `hook` (0 ingress, 1 egress). Call
    /// it once a packet: the bit must still be clear.
    #[inline(always)]
    pub const fn set_side(&mut self, direction: u8, hook: u8) {
        self.l4_kind |= ((direction ^ hook) & 1) << Self::SIDE_SHIFT;
    }
}

/// The tunnel or link encapsulation of a flow's packets. Each variant says what the [`FlowKey`]'s `tunnel_id` means.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    None = 0,
    /// The session id (RFC 2516).
    Pppoe = 1,
    /// 0: a label belongs to one direction (RFC 3031), and a flow has two.
    Mpls = 2,
    /// The network identifier, VNI (RFC 7348).
    Vxlan = 3,
    /// The network identifier, VNI (RFC 8926).
    Geneve = 4,
    /// The key (RFC 2890).
    Gre = 5,
    /// A [`tunnel::name`](crate::tunnel::name), which no record shows.
    IpInIp = 6,
    /// The same; [`Gre`](Self::Gre) in records.
    GreWithoutKey = 7,
}

impl Encapsulation {
    /// `None` for a byte that no program writes.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::None,
            1 => Self::Pppoe,
            2 => Self::Mpls,
            3 => Self::Vxlan,
            4 => Self::Geneve,
            5 => Self::Gre,
            6 => Self::IpInIp,
            7 => Self::GreWithoutKey,
            _ => return None,
        })
    }

    /// Whether it is carried in IP packets, so that the flow has [`Outer`] endpoints.
    pub const fn is_tunnel(self) -> bool {
        matches!(self, Self::Vxlan | Self::Geneve | Self::Gre) || self.is_unnumbered_tunnel()
    }

    /// Whether the tunnel's packets carry no number that identifies it.
    pub const fn is_unnumbered_tunnel(self) -> bool {
        matches!(self, Self::IpInIp | Self::GreWithoutKey)
    }
}

/// The endpoints of the tunnel that a flow's first packet came through, and the VLAN tags and PPPoE session
/// around that tunnel.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    /// The tunnel endpoint on the side of the flow's endpoint a; written as in a [`FlowKey`].
    pub addr_a: [u8; 16],
    pub addr_b: [u8; 16],
    /// 4 or 6.
    pub ip_version: u8,
    /// 1 if it came through a PPPoE session, else 0.
    pub has_pppoe_session: u8,
    /// Host byte order.
    pub pppoe_session: u16,
    /// Written as in a [`FlowKey`]. If tunnels are nested, the tags and the session are the outermost tunnel's.
    pub vlan_ids: [u16; 2],
}

const _: () = assert!(size_of::<Outer>() == 40);

impl Outer {
    /// Takes the endpoints from the key of the tunnel's packet. `is_swapped` says that its endpoint a is on
    /// the side of the inner packet's endpoint b.
    #[inline(always)]
    pub fn set_ends(&mut self, key: &FlowKey, is_swapped: bool) {
        (self.addr_a, self.addr_b) = if is_swapped {
            (key.addr_b, key.addr_a)
        } else {
            (key.addr_a, key.addr_b)
        };
        self.ip_version = key.ip_version;
    }

    /// Takes tags and session from the key of the outermost packet.
    #[inline(always)]
    pub fn set_link(&mut self, key: &FlowKey) {
        self.vlan_ids = key.vlan_ids;
        self.has_pppoe_session = u8::from(key.encapsulation == Encapsulation::Pppoe as u8);
        self.pppoe_session = if self.has_pppoe_session != 0 {
            key.tunnel_id as u16
        } else {
            0
        };
    }
}

/// The TCP flags, in the order of their bits in the TCP header's flag byte.
pub mod tcp_flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

/// Facts about a flow's packets that are not sums: bits of one word, set by several CPUs with an atomic OR.
///
/// From the lowest bit on:
///
/// - Nine bits per direction: the TCP header's flag byte, where SYN means SYN without ACK, then SYN with ACK.
/// - The direction of the packet that created the entry.
/// - Per direction, whether the sender was looked up, whether a round trip is measured, and whether that has ended.
/// - Whether a SYN's answer was looked up before it had a whole socket.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowBits(pub u32);

impl FlowBits {
    const SYN_ACK: u32 = 1 << 8;
    const BITS_A_DIRECTION: u32 = 9;
    const FIRST_DIRECTION_SHIFT: u32 = 2 * Self::BITS_A_DIRECTION;
    const ASKED_SHIFT: u32 = Self::FIRST_DIRECTION_SHIFT + 1;
    const MEASURED_SHIFT: u32 = Self::ASKED_SHIFT + 2;
    const SETTLED_SHIFT: u32 = Self::MEASURED_SHIFT + 2;
    const ASKED_EARLY: u32 = 1 << (Self::SETTLED_SHIFT + 2);

    pub const NONE: Self = Self(0);

    /// The sender of a packet in this direction was looked up: see [`senders`](crate::senders).
    #[inline(always)]
    #[must_use]
    pub const fn asked(direction: u8) -> Self {
        Self(1 << (Self::ASKED_SHIFT + (direction & 1) as u32))
    }

    /// The sender of a packet that answers a SYN was looked up. Its socket may not be a whole one yet, so the next
    /// packet's sender is looked up too.
    #[inline(always)]
    #[must_use]
    pub const fn asked_early(direction: u8) -> Self {
        const SYN_AND_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
        Self(Self::ASKED_EARLY).and(Self::segment(direction, SYN_AND_ACK))
    }

    /// A segment of this direction is the [`Sample`](crate::Sample) of a round trip.
    #[inline(always)]
    #[must_use]
    pub const fn measured(direction: u8) -> Self {
        Self(1 << (Self::MEASURED_SHIFT + (direction & 1) as u32))
    }

    /// The direction's [`Sample`](crate::Sample) has ended.
    #[inline(always)]
    #[must_use]
    pub const fn settled(direction: u8) -> Self {
        Self(1 << (Self::SETTLED_SHIFT + (direction & 1) as u32))
    }

    /// Whether a sample is still open, in either direction.
    #[inline(always)]
    pub const fn is_measuring(self) -> bool {
        self.0 >> Self::MEASURED_SHIFT & !(self.0 >> Self::SETTLED_SHIFT) & 3 != 0
    }

    /// Whether anything is stored beside the flow: a sender was looked up or a round trip measured, in either
    /// direction.
    pub const fn was_asked(self) -> bool {
        self.0 >> Self::ASKED_SHIFT != 0
    }

    /// A TCP segment with these flags, in this direction.
    #[inline(always)]
    #[must_use]
    pub const fn segment(direction: u8, flags: u8) -> Self {
        const SYN_AND_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
        let flags = if flags & SYN_AND_ACK == SYN_AND_ACK {
            Self::SYN_ACK | (flags & !tcp_flags::SYN) as u32
        } else {
            flags as u32
        };
        Self(flags << (Self::BITS_A_DIRECTION * (direction & 1) as u32))
    }

    /// The packet that creates the entry: its direction, which is the initiator's.
    #[inline(always)]
    #[must_use]
    pub const fn first(direction: u8) -> Self {
        Self((direction as u32 & 1) << Self::FIRST_DIRECTION_SHIFT)
    }

    #[inline(always)]
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The bits of the TCP flags alone, without the first packet's direction.
    #[must_use]
    pub const fn flags(self) -> Self {
        Self(self.0 & ((1 << Self::FIRST_DIRECTION_SHIFT) - 1))
    }

    /// Whether all bits of `these` are set.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, these: Self) -> bool {
        these.0 & !self.0 == 0
    }

    /// The union of the flag bytes of a direction's segments (IPFIX element 6, `tcpControlBits`).
    pub const fn tcp_flags(self, direction: usize) -> u8 {
        let bits = self.of(direction);
        let flags = bits as u8;
        if bits & Self::SYN_ACK != 0 {
            flags | tcp_flags::SYN
        } else {
            flags
        }
    }

    pub const fn has_syn_without_ack(self, direction: usize) -> bool {
        self.of(direction) & tcp_flags::SYN as u32 != 0
    }

    pub const fn has_syn_with_ack(self, direction: usize) -> bool {
        self.of(direction) & Self::SYN_ACK != 0
    }

    /// The direction of the packet that created the entry.
    pub const fn first_direction(self) -> u8 {
        (self.0 >> Self::FIRST_DIRECTION_SHIFT) as u8 & 1
    }

    /// The nine bits of a direction. A SYN with ACK sets ACK and [`Self::SYN_ACK`], not SYN.
    const fn of(self, direction: usize) -> u32 {
        self.0 >> (Self::BITS_A_DIRECTION * (direction & 1) as u32)
            & ((1 << Self::BITS_A_DIRECTION) - 1)
    }
}

/// The kernel's counters for a flow within one page. They are deltas, since every scan starts with an empty page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    pub bits: FlowBits,
    /// The state of the [`Slot`](crate::slots::Slot) that holds these counters; 0 elsewhere. Programs change it
    /// together with `bits`, as one word.
    pub state: u32,
    /// By direction: a → b, b → a.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// See [`Counts`].
    pub ip_bytes: [u64; 2],
    /// `CLOCK_BOOTTIME` nanoseconds.
    pub first_seen_ns: u64,
    /// The low half of the kernel's tick counter. Reading that costs a packet nothing measurable, whereas reading a
    /// clock would be the most expensive part of counting it.
    pub last_seen_jiffies: u32,
    pub classes: Classes,
}

/// The DSCP (RFC 2474, six bits) of the first packet of each direction, and whether a later one had another, in 16 bits
/// each, set with an atomic OR.
///
/// The first six bits of a direction have the DSCP, the next six its complement. So two first packets that come at once
/// with different values show: a bit is set in both.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes(pub u32);

impl Classes {
    const BITS_A_DIRECTION: u32 = 16;
    const DSCP_BITS: u32 = 6;
    const DSCP: u32 = (1 << Self::DSCP_BITS) - 1;
    const CHANGED: u32 = 1 << (2 * Self::DSCP_BITS);

    pub const NONE: Self = Self(0);

    /// A first packet.
    #[inline(always)]
    #[must_use]
    pub const fn first(direction: u8, dscp: u8) -> Self {
        let dscp = dscp as u32 & Self::DSCP;
        let bits = dscp | (dscp ^ Self::DSCP) << Self::DSCP_BITS;
        Self(bits << (Self::BITS_A_DIRECTION * (direction & 1) as u32))
    }

    #[inline(always)]
    const fn of(self, direction: u8) -> u32 {
        self.0 >> (Self::BITS_A_DIRECTION * (direction & 1) as u32)
            & ((1 << Self::BITS_A_DIRECTION) - 1)
    }

    /// The bits that a packet sets in the flow with these.
    #[inline(always)]
    #[must_use]
    pub const fn news(self, direction: u8, dscp: u8) -> Self {
        self.news_of(direction, Self::first(direction, dscp).of(direction))
    }

    /// The bits that packets with the bits `later` of a direction set.
    #[inline(always)]
    const fn news_of(self, direction: u8, later: u32) -> Self {
        let before = self.of(direction);
        let bits = if before == 0 {
            later
        } else if later == 0 || before & Self::CHANGED != 0 || before == later {
            0
        } else {
            Self::CHANGED
        };
        Self(bits << (Self::BITS_A_DIRECTION * (direction & 1) as u32))
    }

    /// Merges the bits of a later packet of the same flow.
    #[must_use]
    #[inline]
    pub const fn and_later(self, later: Self) -> Self {
        let news = self.news_of(0, later.of(0)).0 | self.news_of(1, later.of(1)).0;
        Self(self.0 | news)
    }

    /// A byte for each direction: the DSCP, whether it is known, and whether it has changed.
    #[must_use]
    #[inline]
    pub fn compact(self) -> [u8; 2] {
        [0, 1].map(|direction| {
            let known = self.dscp(direction).map_or(0, |dscp| dscp | 1 << 6);
            known | u8::from(self.has_changed(direction)) << 7
        })
    }

    /// The classes that [`Self::compact`] made so short.
    #[must_use]
    #[inline]
    pub fn expand(bytes: [u8; 2]) -> Self {
        let mut all = Self::NONE;
        for (direction, byte) in (0..).zip(bytes) {
            let shift = Self::BITS_A_DIRECTION * u32::from(direction);
            if byte & 1 << 6 != 0 {
                all.0 |= Self::first(direction, byte).0;
            } else if byte != 0 {
                all.0 |= (Self::CHANGED - 1) << shift;
            }
            if byte & 1 << 7 != 0 {
                all.0 |= Self::CHANGED << shift;
            }
        }
        all
    }

    /// Whether the packets of a direction had more than one DSCP.
    pub const fn has_changed(self, direction: u8) -> bool {
        self.of(direction) != 0
            && (self.of(direction) & Self::CHANGED != 0 || self.dscp(direction).is_none())
    }

    /// The DSCP of a direction's first packet. `None` without a packet, or if it cannot be told.
    pub const fn dscp(self, direction: u8) -> Option<u8> {
        let bits = self.of(direction);
        let (dscp, complement) = (bits & Self::DSCP, bits >> Self::DSCP_BITS & Self::DSCP);
        if dscp ^ complement == Self::DSCP {
            Some(dscp as u8)
        } else {
            None
        }
    }
}

/// The sums of a flow's packets in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub packets: u64,
    /// Frame bytes on the wire, without preamble, FCS and gap.
    pub bytes: u64,
    /// IP packet bytes: headers and payload.
    pub ip_bytes: u64,
}

impl Counts {
    /// Packets and frame bytes, to compare with the account.
    #[inline]
    pub const fn pair(self) -> crate::Pair {
        crate::Pair {
            packets: self.packets,
            bytes: self.bytes,
        }
    }
}

impl core::ops::AddAssign for Counts {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.ip_bytes += other.ip_bytes;
    }
}

impl core::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, part: Self) -> Self {
        Self {
            packets: self.packets - part.packets,
            bytes: self.bytes - part.bytes,
            ip_bytes: self.ip_bytes - part.ip_bytes,
        }
    }
}

impl FlowCounters {
    /// By direction, like the fields.
    #[inline]
    pub fn counts(&self) -> [Counts; 2] {
        [0, 1].map(|direction| Counts {
            packets: self.packets[direction],
            bytes: self.bytes[direction],
            ip_bytes: self.ip_bytes[direction],
        })
    }

    /// `bits` and `state` as one word.
    #[inline(always)]
    pub const fn word(bits: FlowBits, state: u32) -> u64 {
        let (first, second) = if cfg!(target_endian = "little") {
            (bits.0, state)
        } else {
            (state, bits.0)
        };
        (second as u64) << 32 | first as u64
    }

    /// Whether the tick counter has `other` after `jiffies`. It wraps.
    #[inline(always)]
    pub const fn is_later(jiffies: u32, other: u32) -> bool {
        other.wrapping_sub(jiffies).cast_signed() > 0
    }

    /// `last_seen_jiffies` and `classes` as one word.
    #[inline(always)]
    pub const fn last_word(last_seen_jiffies: u32, classes: Classes) -> u64 {
        Self::word(FlowBits(last_seen_jiffies), classes.0)
    }

    /// Adds the counters of another entry for the same flow and window.
    pub fn unite(&mut self, other: &Self) {
        if other.first_seen_ns < self.first_seen_ns {
            let first = Self {
                state: self.state,
                ..*other
            };
            let second = core::mem::replace(self, first);
            self.unite(&second);
            return;
        }
        for direction in [0, 1] {
            self.packets[direction] += other.packets[direction];
            self.bytes[direction] += other.bytes[direction];
            self.ip_bytes[direction] += other.ip_bytes[direction];
        }
        self.bits = self.bits.and(other.bits.flags());
        self.classes = self.classes.and_later(other.classes);
        if Self::is_later(self.last_seen_jiffies, other.last_seen_jiffies) {
            self.last_seen_jiffies = other.last_seen_jiffies;
        }
    }
}

const _: () = assert!(size_of::<FlowCounters>() == 8 + 3 * 16 + 16);

/// Both clocks at one moment. The program `clocks` writes them to the start of its packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    pub jiffies: u64,
    /// `CLOCK_BOOTTIME` nanoseconds.
    pub boot_ns: u64,
}

const _: () = assert!(size_of::<Clocks>() == 16);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers and byte arrays only, no padding (asserted by size above).
    unsafe impl aya::Pod for super::FlowKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::FlowCounters {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Outer {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_keep_their_union_and_their_direction_and_tell_the_syns_apart() {
        for flags in 0..=u8::MAX {
            for direction in [0, 1] {
                let seen = FlowBits::segment(direction, flags).and(FlowBits::first(1 - direction));
                let direction = usize::from(direction);
                assert_eq!(seen.tcp_flags(direction), flags);
                assert_eq!(seen.tcp_flags(1 - direction), 0);
                let syn = flags & tcp_flags::SYN != 0;
                let ack = flags & tcp_flags::ACK != 0;
                assert_eq!(seen.has_syn_without_ack(direction), syn && !ack);
                assert_eq!(seen.has_syn_with_ack(direction), syn && ack);
                assert!(!seen.has_syn_without_ack(1 - direction));
                assert!(!seen.has_syn_with_ack(1 - direction));
                assert_eq!(usize::from(seen.first_direction()), 1 - direction);
            }
        }
    }

    #[test]
    fn segments_add_up_in_any_order() {
        use tcp_flags::{ACK, PSH, SYN};
        let [syn, syn_ack, push] =
            [SYN, SYN | ACK, PSH | ACK].map(|flags| FlowBits::segment(1, flags));
        for order in [
            [syn, syn_ack, push],
            [push, syn, syn_ack],
            [syn_ack, push, syn],
        ] {
            let seen = order.into_iter().fold(FlowBits::default(), FlowBits::and);
            assert!(seen.has_syn_without_ack(1) && seen.has_syn_with_ack(1));
            assert_eq!(seen.tcp_flags(1), SYN | ACK | PSH);
            assert!(order.into_iter().all(|segment| seen.has(segment)));
        }
        assert!(!syn_ack.has(syn));
        assert!(!push.has(syn_ack));
        assert!(FlowBits::segment(0, SYN).has(FlowBits::default()));
    }

    #[test]
    fn halves_of_a_flow_keep_the_first_packet_of_one() {
        let first = FlowBits::first(1).and(FlowBits::segment(0, tcp_flags::FIN));
        let second = FlowBits::first(0).and(FlowBits::segment(1, tcp_flags::RST));
        let both = first.and(second.flags());
        assert_eq!(both.first_direction(), 1);
        assert_eq!(
            (both.tcp_flags(0), both.tcp_flags(1)),
            (tcp_flags::FIN, tcp_flags::RST)
        );
    }

    #[test]
    fn each_sum_and_direction_adds_up_by_itself_in_either_order() {
        let counters = |first_seen_ns, factor: u64| FlowCounters {
            packets: [factor, 2 * factor],
            bytes: [60 * factor, 140 * factor],
            ip_bytes: [46 * factor, 112 * factor],
            first_seen_ns,
            ..FlowCounters::default()
        };
        let counts = [
            Counts {
                packets: 11,
                bytes: 660,
                ip_bytes: 506,
            },
            Counts {
                packets: 22,
                bytes: 1_540,
                ip_bytes: 1_232,
            },
        ];
        let (first, second) = (counters(1, 1), counters(2, 10));
        for [mut one, other] in [[first, second], [second, first]] {
            one.unite(&other);
            assert_eq!(one.counts(), counts);
            assert_eq!(one.first_seen_ns, 1);
        }
    }

    #[test]
    fn both_directions_of_a_plain_flow_have_one_side_and_keep_their_kind() {
        const INGRESS: u8 = 0;
        const EGRESS: u8 = 1;
        for kind in 0..=4 {
            let of = |direction, hook| {
                let mut key = FlowKey {
                    l4_kind: kind,
                    ..FlowKey::default()
                };
                key.set_side(direction, hook);
                assert_eq!(key.kind(), L4Kind::from_u8(kind));
                assert_eq!(key.with_side(0).l4_kind, kind);
                assert_eq!(key.with_side(key.side()), key);
                key
            };
            assert_eq!(of(0, INGRESS), of(1, EGRESS));
            assert_eq!(of(0, EGRESS), of(1, INGRESS));
            assert_ne!(of(0, INGRESS), of(0, EGRESS));
            assert_eq!((of(0, INGRESS).side(), of(0, EGRESS).side()), (0, 1));
        }
    }

    #[test]
    fn who_was_asked_changes_nothing_else() {
        let plain = FlowBits::segment(0, 0xff)
            .and(FlowBits::segment(1, 0xff))
            .and(FlowBits::first(1));
        assert!(!plain.was_asked());
        for direction in [0, 1] {
            let asked = plain.and(FlowBits::asked(direction));
            assert!(asked.was_asked() && asked.has(FlowBits::asked(direction)));
            assert!(!asked.has(FlowBits::asked(1 - direction)));
            let early = plain.and(FlowBits::asked_early(direction));
            assert!(early.was_asked() && early.flags() == plain.flags());
            assert!(
                !early.has(FlowBits::asked(direction))
                    && early.has(FlowBits::asked_early(direction))
            );
            assert!(!plain.has(FlowBits::asked_early(direction)));
            let measured = plain.and(FlowBits::measured(direction));
            assert!(!plain.is_measuring() && measured.is_measuring() && measured.was_asked());
            assert!(
                measured
                    .and(FlowBits::settled(1 - direction))
                    .is_measuring()
            );
            let settled = measured.and(FlowBits::settled(direction));
            assert!(!settled.is_measuring() && settled.flags() == plain.flags());
            assert!(!settled.has(FlowBits::asked(0)) && !settled.has(FlowBits::asked(1)));
            for bits in [asked, early, settled] {
                assert_eq!(bits.flags(), plain.flags());
                assert_eq!(bits.first_direction(), 1);
            }
        }
    }

    #[test]
    fn each_direction_has_the_dscp_of_its_first_packet() {
        for dscp in 0..64 {
            let first = Classes::first(1, dscp);
            assert_eq!((first.dscp(0), first.dscp(1)), (None, Some(dscp)));
            let both = Classes(first.0 | Classes::first(0, 63 - dscp).0);
            assert_eq!((both.dscp(0), both.dscp(1)), (Some(63 - dscp), Some(dscp)));
            // Two CPUs have a first packet at once.
            let mixed = Classes(first.0 | Classes::first(1, (dscp + 1) % 64).0);
            assert_eq!(mixed.dscp(1), None);
            let later = Classes::first(1, 0).and_later(both);
            assert_eq!((later.dscp(0), later.dscp(1)), (Some(63 - dscp), Some(0)));
            assert!(mixed.has_changed(1) && !mixed.has_changed(0));
            assert_eq!([0, 1].map(|at| later.has_changed(at)), [false, dscp != 0]);
            assert_eq!(later.and_later(first), later);
            let other = (dscp + 1) % 64;
            let changed = Classes(first.0 | first.news(1, other).0);
            assert_eq!(
                (changed.dscp(1), changed.has_changed(1)),
                (Some(dscp), true)
            );
            assert_eq!(first.news(1, dscp), Classes::NONE);
            assert_eq!(changed.news(1, dscp), Classes::NONE);
            assert_eq!(first.news(0, other), Classes::first(0, other));
            for classes in [first, both, later, changed, mixed, Classes::NONE] {
                let again = Classes::expand(classes.compact());
                for at in [0, 1] {
                    assert_eq!(again.dscp(at), classes.dscp(at));
                    assert_eq!(again.has_changed(at), classes.has_changed(at));
                }
            }
            // A change within the later packets.
            assert!(first.and_later(changed).has_changed(1));
        }
    }

    #[test]
    fn the_later_tick_is_kept_when_the_counter_wraps() {
        let at = |last_seen_jiffies| FlowCounters {
            last_seen_jiffies,
            ..FlowCounters::default()
        };
        for [mut one, other] in [[at(u32::MAX), at(3)], [at(3), at(u32::MAX)]] {
            one.unite(&other);
            assert_eq!(one.last_seen_jiffies, 3);
        }
    }

    #[test]
    fn kinds_and_encapsulations_are_read_back_from_their_bytes() {
        let kinds = (0..=u8::MAX).filter_map(L4Kind::from_u8);
        let encapsulations = (0..=u8::MAX).filter_map(Encapsulation::from_u8);
        assert!(kinds.map(|kind| kind as u8).eq(0..=4));
        assert!(encapsulations.map(|kind| kind as u8).eq(0..=7));
        let tunnels = (0..=u8::MAX).filter(|&byte| {
            let kind = Encapsulation::from_u8(byte);
            kind.is_some_and(Encapsulation::is_tunnel)
        });
        assert!(tunnels.eq(Encapsulation::Vxlan as u8..=Encapsulation::GreWithoutKey as u8));
    }
}
