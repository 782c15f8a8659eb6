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

/// Names a flow. It has plain integers and byte arrays and no hidden padding, since the kernel hashes the
/// bytes.
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
    /// What tells tunnels of this kind apart, host byte order; see [`Encapsulation`].
    pub tunnel_id: u32,
}

const _: () = assert!(size_of::<FlowKey>() == 32 + 8 + 4 + 4 + 4 + 4);

impl FlowKey {
    const SIDE_SHIFT: u32 = 7;
    const KIND_MASK: u8 = (1 << Self::SIDE_SHIFT) - 1;

    /// `None` for a kind that no program writes.
    pub const fn kind(&self) -> Option<L4Kind> {
        L4Kind::from_u8(self.l4_kind & Self::KIND_MASK)
    }

    /// On which side of the interface the endpoints are: 0 if packets of a arrive and those of b leave, 1
    /// if packets of b arrive and those of a leave.
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

/// What a flow's packets were wrapped in. Each variant says what `tunnel_id` of the [`FlowKey`] then means.
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

    /// Whether IP packets carry it, so that the flow has [`Outer`] endpoints.
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
    /// Written as in a [`FlowKey`]. With tunnels inside tunnels, tags and session are those around the
    /// outermost one.
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

/// The TCP flags seen, one byte each: several CPUs can store a 1 without an atomic OR and lose nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlagBytes {
    /// FIN, SYN without ACK, RST, PSH, ACK, URG, ECE, CWR: index `n` is bit `n` of the flag byte.
    pub by_bit: [u8; 8],
    /// SYN with ACK.
    pub syn_ack: u8,
    /// The bits of the flag byte whose bytes above are already stored. It is a hint that may lack bits, but
    /// never has one too many. It never contains SYN.
    pub stored: u8,
}

impl TcpFlagBytes {
    const SYN_BIT: usize = 1;

    /// The union of the flag bytes of all segments (IPFIX element 6, `tcpControlBits`).
    pub fn union(&self) -> u8 {
        let mut flags = 0;
        for (bit, &byte) in self.by_bit.iter().enumerate() {
            flags |= u8::from(byte != 0) << bit;
        }
        if self.syn_ack != 0 {
            flags | tcp_flags::SYN
        } else {
            flags
        }
    }

    pub fn has_syn_without_ack(&self) -> bool {
        self.by_bit[Self::SYN_BIT] != 0
    }

    pub fn has_syn_with_ack(&self) -> bool {
        self.syn_ack != 0
    }

    /// Remembers a segment's flag byte. Several CPUs may do this at once, since each store writes a 1
    /// whatever was there, and the hint is written after the bytes that it speaks of.
    #[inline(always)]
    pub fn store(&mut self, flags: u8) {
        let stored = self.stored;
        if flags & !stored == 0 {
            return;
        }
        // Unrolled by hand: with a loop the verifier would have to prove a bound in each turn.
        if flags & tcp_flags::FIN != 0 {
            self.by_bit[0] = 1;
        }
        if flags & tcp_flags::SYN != 0 {
            if flags & tcp_flags::ACK == 0 {
                self.by_bit[1] = 1;
            } else {
                self.syn_ack = 1;
            }
        }
        if flags & tcp_flags::RST != 0 {
            self.by_bit[2] = 1;
        }
        if flags & tcp_flags::PSH != 0 {
            self.by_bit[3] = 1;
        }
        if flags & tcp_flags::ACK != 0 {
            self.by_bit[4] = 1;
        }
        if flags & tcp_flags::URG != 0 {
            self.by_bit[5] = 1;
        }
        if flags & tcp_flags::ECE != 0 {
            self.by_bit[6] = 1;
        }
        if flags & tcp_flags::CWR != 0 {
            self.by_bit[7] = 1;
        }
        self.stored = stored | (flags & !tcp_flags::SYN);
    }
}

/// What the kernel counts for a flow within one page. These are deltas, since every scan starts with an
/// empty page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// By direction: a → b, b → a.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// `CLOCK_BOOTTIME` nanoseconds.
    pub first_seen_ns: u64,
    /// The kernel's tick counter. Reading it costs a packet nothing measurable, whereas reading a clock
    /// would be the most expensive part of counting it.
    pub last_seen_jiffies: u64,
    /// By direction.
    pub tcp_flags: [TcpFlagBytes; 2],
    /// The direction of the packet that made the entry.
    pub first_direction: u8,
    /// The DSCP (RFC 2474, six bits) of that packet.
    pub dscp: u8,
    pub reserved: [u8; 2],
}

const _: () = assert!(size_of::<FlowCounters>() == 32 + 16 + 20 + 4);

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
    // SAFETY: an array of pairs of u64.
    unsafe impl aya::Pod for crate::HookAccount {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_bytes_keep_the_union_and_tell_the_syns_apart() {
        for flags in 0..=u8::MAX {
            let mut bytes = TcpFlagBytes::default();
            bytes.store(flags);
            assert_eq!(bytes.union(), flags);
            let syn = flags & tcp_flags::SYN != 0;
            let ack = flags & tcp_flags::ACK != 0;
            assert_eq!(bytes.has_syn_without_ack(), syn && !ack);
            assert_eq!(bytes.has_syn_with_ack(), syn && ack);
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

    #[test]
    fn the_hint_never_hides_a_flag() {
        let mut bytes = TcpFlagBytes::default();
        bytes.store(tcp_flags::SYN | tcp_flags::ACK);
        bytes.store(tcp_flags::ACK);
        bytes.store(tcp_flags::SYN);
        assert!(bytes.has_syn_without_ack() && bytes.has_syn_with_ack());
        assert_eq!(bytes.union(), tcp_flags::SYN | tcp_flags::ACK);
    }

    #[test]
    fn the_hint_has_all_flags_but_the_syns_so_that_a_repeated_one_costs_no_store() {
        let mut bytes = TcpFlagBytes::default();
        bytes.store(tcp_flags::SYN);
        bytes.store(tcp_flags::ACK);
        bytes.store(tcp_flags::PSH | tcp_flags::ACK);
        assert_eq!(bytes.stored, tcp_flags::PSH | tcp_flags::ACK);
        bytes.store(tcp_flags::SYN | tcp_flags::ACK);
        assert_eq!(bytes.stored, tcp_flags::PSH | tcp_flags::ACK);
        bytes.by_bit = [0; 8];
        bytes.store(tcp_flags::PSH);
        assert_eq!(bytes.by_bit, [0; 8]);
    }
}
