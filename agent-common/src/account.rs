//! The account: every packet that a hook sees ends up in exactly one counter beside `seen`.
//!
//! `seen = flows + unparsed (by reason) + not_inserted (by reason) + filtered + sampled_out`, in
//! packets and in bytes. `seen` is added before any branch, so the equation can fail and therefore says something.

/// Packets and bytes. Bytes are layer-2 frame bytes without FCS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    pub packets: u64,
    pub bytes: u64,
}

impl core::ops::Add for Pair {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl core::ops::AddAssign for Pair {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl core::ops::Sub for Pair {
    type Output = Self;

    /// The growth of a counter since `earlier`; wraps like the kernel's counters.
    fn sub(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.wrapping_sub(earlier.packets),
            bytes: self.bytes.wrapping_sub(earlier.bytes),
        }
    }
}

impl core::iter::Sum for Pair {
    fn sum<I: Iterator<Item = Self>>(pairs: I) -> Self {
        pairs.fold(Self::default(), |sum, pair| sum + pair)
    }
}

/// Declares [`Reason`] together with its names, so that every reason has one.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Where a packet went; the index of its counter in [`HookAccount`].
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in metrics, JSON and protobuf.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// Every packet, counted before any branch.
    Seen = "seen",
    /// Added to an entry of the flow table.
    Flows = "flows",
    /// Left out by a filter rule.
    Filtered = "filtered",
    /// Belongs to a flow that sampling leaves out.
    SampledOut = "sampled_out",

    /// Seen on an interface that the agent does not watch. A program of the agent can run there all the
    /// same: the kernel put it on a lower device, or the interface took it to another network namespace.
    UnknownInterface = "unknown_interface",
    /// ARP and RARP.
    Arp = "arp",
    /// An EtherType (or, without an Ethernet header, a first nibble) that is not IP.
    NotIp = "not_ip",
    /// An 802.3 length field instead of an EtherType: LLC frames such as STP.
    Llc = "llc",
    /// Shorter than an Ethernet header.
    TruncatedEthernet = "truncated_ethernet",
    /// Ends within a VLAN tag.
    TruncatedVlan = "truncated_vlan",
    /// More than two VLAN tags.
    VlanDepth = "vlan_depth",
    /// Ends within the PPPoE header or the PPP protocol behind it, or before the length that the header gives.
    TruncatedPppoe = "truncated_pppoe",
    /// Ends within the MPLS labels.
    TruncatedMpls = "truncated_mpls",
    /// More MPLS labels than the parser walks.
    MplsDepth = "mpls_depth",
    /// Ends within the IPv4 header or its options.
    TruncatedIpv4 = "truncated_ipv4",
    /// The version is not 4, the header length under 20, or the total length under the header's.
    MalformedIpv4 = "malformed_ipv4",
    /// Ends within the IPv6 header.
    TruncatedIpv6 = "truncated_ipv6",
    /// The version is not 6.
    MalformedIpv6 = "malformed_ipv6",
    /// Ends within an IPv6 extension header.
    TruncatedExtension = "truncated_extension",
    /// More extension headers than the parser walks.
    ExtensionDepth = "extension_depth",
    /// Ends within the transport header that carries the ports.
    TruncatedTransport = "truncated_transport",
    /// A TCP data offset under 20 bytes.
    MalformedTcp = "malformed_tcp",
    /// A UDP length under 8 bytes. 0 is legal over IPv6, and where the IP header gives no length.
    MalformedUdp = "malformed_udp",

    /// The page of the flow table had no slot for the flow, and the map behind it no room (`E2BIG`).
    TableFull = "table_full",
    /// The kernel had no memory for the entry (`ENOMEM`).
    NoMemory = "no_memory",
    /// The bucket was locked by the code that this program interrupted (`EBUSY`, `EDEADLK`).
    Busy = "busy",
    /// The page or the entry was not there when it was looked up again.
    Vanished = "vanished",
    /// The kernel refused the insert with an error that is none of the above.
    Refused = "refused",

    /// Beside the sum: super-frames (GSO, GRO). Each counts once, with the bytes of its skb.
    SuperFrames = "super_frames",
    /// Beside the sum: the frames that super-frames stand for, with their bytes on the wire.
    SuperFrameSegments = "super_frame_segments",
    /// Beside the sum: packets that may be more on the wire than was counted. These are super-frames whose repeated
    /// headers are unknown, so their bytes are too low, and every packet at a generic XDP hook, which sees a
    /// super-frame as one frame.
    Inexact = "inexact",
    /// Beside the sum: packets whose VLAN tag the driver had removed. The bytes count only the tags.
    OffloadedTags = "offloaded_tags",
    /// Beside the sum: frames under 60 bytes. The bytes are the padding that would bring them to 60.
    Short = "short",
    /// Beside the sum: later fragments that joined the flow of their first one.
    FragmentsJoined = "fragments_joined",
    /// Beside the sum: later fragments whose first one was unknown. They go into flows without ports.
    FragmentsUnmatched = "fragments_unmatched",
    /// Beside the sum: tunnel packets counted in the flow of the packet inside.
    Decapsulated = "decapsulated",
    /// Beside the sum: packets counted in the tunnel's own flow because the parser could not read the packet inside: a
    /// fragment, no IP, a header that is cut or has another version.
    TunnelsUnopened = "tunnels_unopened",
    /// Beside the sum: packets counted in the flow of a tunnel that lies deeper than the parser opens tunnels.
    TunnelDepth = "tunnel_depth",
    /// Beside the sum: packets at an XDP hook that may not have seen their VLAN tags. Their flow may lack
    /// the tags, and their bytes the four of each tag.
    TagsUnknown = "tags_unknown",
    /// Beside the sum: packets whose link header is not the one that their interface's type promises, because something
    /// redirected them (`tc`'s mirred between an Ethernet device and one without link headers).
    OtherHeader = "other_header",
    /// In no sum, not even `seen`: copies of this host's broadcasts and multicasts, which the kernel hands back to the
    /// sending interface (`dev_loopback_xmit`). Each counts once, with the bytes it has then.
    LoopedBack = "looped_back",
}

impl Reason {
    /// Packets from which no flow key could be read.
    pub const UNPARSED: &'static [Self] = &[
        Self::UnknownInterface,
        Self::Arp,
        Self::NotIp,
        Self::Llc,
        Self::TruncatedEthernet,
        Self::TruncatedVlan,
        Self::VlanDepth,
        Self::TruncatedPppoe,
        Self::TruncatedMpls,
        Self::MplsDepth,
        Self::TruncatedIpv4,
        Self::MalformedIpv4,
        Self::TruncatedIpv6,
        Self::MalformedIpv6,
        Self::TruncatedExtension,
        Self::ExtensionDepth,
        Self::TruncatedTransport,
        Self::MalformedTcp,
        Self::MalformedUdp,
    ];

    /// Whether a second attempt may still find a flow: by reading beyond linear memory, or by parsing PPPoE, MPLS
    /// and extension headers.
    #[inline(always)]
    pub fn may_be_more(self) -> bool {
        matches!(
            self,
            Self::NotIp
                | Self::TruncatedEthernet
                | Self::TruncatedVlan
                | Self::TruncatedIpv4
                | Self::TruncatedIpv6
                | Self::TruncatedExtension
                | Self::TruncatedTransport
        )
    }

    /// Packets that could not be added to the flow table.
    pub const NOT_INSERTED: &'static [Self] = &[
        Self::TableFull,
        Self::NoMemory,
        Self::Busy,
        Self::Vanished,
        Self::Refused,
    ];

    /// Facts about packets that are already in the sum, and [`Self::LoopedBack`], whose packets are in no sum.
    pub const BESIDE: &'static [Self] = &[
        Self::SuperFrames,
        Self::SuperFrameSegments,
        Self::Inexact,
        Self::OffloadedTags,
        Self::Short,
        Self::FragmentsJoined,
        Self::FragmentsUnmatched,
        Self::Decapsulated,
        Self::TunnelsUnopened,
        Self::TunnelDepth,
        Self::TagsUnknown,
        Self::OtherHeader,
        Self::LoopedBack,
    ];
}

/// The counters that every packet adds to: one CPU's part of an account, within one cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    pub seen: Pair,
    pub flows: Pair,
}

/// The reasons of [`Common`], which come first.
pub const COMMON_REASONS: usize = 2;

const _: () = assert!(Reason::Seen as usize == 0 && Reason::Flows as usize == 1);
const _: () = assert!(size_of::<Common>() == COMMON_REASONS * size_of::<Pair>());

/// The counters that few packets add to: all other reasons, in order. The CPUs share them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rare {
    pub counters: [Pair; RARE_REASONS],
}

pub const RARE_REASONS: usize = Reason::ALL.len() - COMMON_REASONS;

const _: () = assert!(size_of::<Rare>() == RARE_REASONS * size_of::<Pair>());

/// One CPU's count for one reason that is not in the account's [`Rare`] yet. While the CPU's packets belong to one
/// account, it shares no counter with another CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub counter: Pair,
    /// The number of the [`Rare`]. Initially 0 with a counter of 0, which adds nothing.
    pub account: u64,
}

/// The pending counts of one CPU and page, for each reason that can apply to most packets. An account's column is its
/// number modulo [`PENDING_PLACES`], so four interfaces, ingress and egress, do not evict each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllPending {
    pub rows: [[Pending; PENDING_PLACES]; PENDING_REASONS.len()],
}

pub const PENDING_PLACES: usize = 8;

/// Reasons that each CPU counts privately first.
pub const PENDING_REASONS: [Reason; 11] = [
    Reason::Filtered,
    Reason::SampledOut,
    Reason::UnknownInterface,
    Reason::TableFull,
    Reason::SuperFrames,
    Reason::SuperFrameSegments,
    Reason::Inexact,
    Reason::OffloadedTags,
    Reason::Short,
    Reason::Decapsulated,
    Reason::TunnelsUnopened,
];

/// The row of each reason of [`Rare`] in [`AllPending`], or [`NO_ROW`].
pub const PENDING_ROWS: [u8; RARE_REASONS] = {
    let mut rows = [NO_ROW; RARE_REASONS];
    let mut row = 0;
    while row < PENDING_REASONS.len() {
        rows[PENDING_REASONS[row] as usize - COMMON_REASONS] = row as u8;
        row += 1;
    }
    rows
};

pub const NO_ROW: u8 = u8::MAX;

const _: () = assert!(
    size_of::<AllPending>() == PENDING_REASONS.len() * PENDING_PLACES * size_of::<Pending>()
);

/// The whole account of one interface and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookAccount {
    /// By [`Reason`].
    pub counters: [Pair; Reason::ALL.len()],
}

impl Default for HookAccount {
    fn default() -> Self {
        Self {
            counters: [Pair::default(); Reason::ALL.len()],
        }
    }
}

impl HookAccount {
    pub fn get(&self, reason: Reason) -> Pair {
        self.counters[reason as usize]
    }

    pub fn add(&mut self, reason: Reason, packets: u64, bytes: u64) {
        self.counters[reason as usize] += Pair { packets, bytes };
    }

    /// Adds every counter of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (counter, more) in self.counters.iter_mut().zip(other.counters) {
            *counter += more;
        }
    }

    /// The growth of every counter since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut growth = *self;
        for (counter, before) in growth.counters.iter_mut().zip(earlier.counters) {
            *counter = *counter - before;
        }
        growth
    }

    pub fn unparsed(&self) -> Pair {
        Reason::UNPARSED
            .iter()
            .map(|&reason| self.get(reason))
            .sum()
    }

    pub fn not_inserted(&self) -> Pair {
        Reason::NOT_INSERTED
            .iter()
            .map(|&reason| self.get(reason))
            .sum()
    }

    /// `seen` minus all counters that it should equal. Anything but zero means a broken account.
    pub fn missing(&self) -> Pair {
        let placed = self.get(Reason::Flows)
            + self.unparsed()
            + self.not_inserted()
            + self.get(Reason::Filtered)
            + self.get(Reason::SampledOut);
        self.get(Reason::Seen) - placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_in_exactly_one_group() {
        let sum = [
            Reason::Seen,
            Reason::Flows,
            Reason::Filtered,
            Reason::SampledOut,
        ];
        let groups: Vec<Reason> = [&sum, Reason::UNPARSED, Reason::NOT_INSERTED, Reason::BESIDE]
            .into_iter()
            .flatten()
            .copied()
            .collect();
        assert_eq!(groups, Reason::ALL);
    }

    #[test]
    fn an_account_that_lost_a_packet_says_so() {
        let mut account = HookAccount::default();
        account.add(Reason::Seen, 2, 128);
        account.add(Reason::Flows, 1, 64);
        assert_eq!(
            account.missing(),
            Pair {
                packets: 1,
                bytes: 64
            }
        );
        account.add(Reason::Arp, 1, 64);
        assert_eq!(account.missing(), Pair::default());
    }

    /// An account with a different number in every counter.
    fn full(factor: u64) -> HookAccount {
        let mut account = HookAccount::default();
        for (index, &reason) in (1..).zip(Reason::ALL) {
            account.add(reason, index * factor, index * factor * 100);
        }
        account
    }

    #[test]
    fn every_place_counts_for_an_account_that_closes() {
        let mut account = HookAccount::default();
        for &reason in Reason::ALL {
            account.add(reason, 1, 60);
        }
        let places = (Reason::ALL.len() - Reason::BESIDE.len() - 1) as u64;
        account.add(Reason::Seen, places - 1, (places - 1) * 60);
        assert_eq!(account.missing(), Pair::default());
        account.add(Reason::Seen, 1, 60);
        assert_eq!(account.missing().packets, 1);
    }

    #[test]
    fn what_is_added_is_under_its_reason_and_two_accounts_are_one_by_one_the_sum() {
        let mut account = full(1);
        for (index, &reason) in (1..).zip(Reason::ALL) {
            let (packets, bytes) = (index, index * 100);
            assert_eq!(account.get(reason), Pair { packets, bytes });
        }
        account.merge(&full(2));
        assert_eq!(account, full(3));
        assert_eq!(account.since(&full(1)), full(2));
        let mut pair = full(1).get(Reason::Seen);
        pair += full(2).get(Reason::Seen);
        assert_eq!(pair, full(3).get(Reason::Seen));
    }

    #[test]
    fn what_ends_too_early_is_read_again_where_that_can_help() {
        for &reason in Reason::ALL {
            // Only the second attempt reads PPPoE and MPLS at all.
            let is_final = [Reason::TruncatedPppoe, Reason::TruncatedMpls].contains(&reason);
            let is_cut = reason.name().starts_with("truncated_") && !is_final;
            let expected = is_cut || reason == Reason::NotIp;
            assert_eq!(reason.may_be_more(), expected, "{reason:?}");
        }
    }
}
