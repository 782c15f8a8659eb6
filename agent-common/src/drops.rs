//! Packets that the kernel drops.

/// How many reasons are counted apart. Kernels have about a hundred (`enum skb_drop_reason`). Higher numbers, and
/// reasons of a subsystem such as Wi-Fi, share the last counter.
pub const REASONS: u32 = 256;
pub const OTHER: u32 = REASONS - 1;

/// The index of a reason's counter.
#[inline(always)]
#[must_use]
pub const fn place(reason: u32) -> u32 {
    if reason < OTHER { reason } else { OTHER }
}

/// The key of a watched interface. Drops on other interfaces would take room from its flows.
#[inline(always)]
#[must_use]
pub const fn watched(ifindex: u32, netns: u32) -> u64 {
    (netns as u64) << 32 | ifindex as u64
}

/// Offsets in bytes of the kernel fields that lead to a dropped packet's flow, from the running kernel's BTF. The
/// offsets are 0 if one was not found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropLayout {
    /// In `struct sk_buff`: the start of its first buffer, and the offsets there of the IP header and of the end of the
    /// data.
    pub head: u32,
    pub network_header: u32,
    pub tail: u32,
    /// The index of the ingress interface (`skb_iif`), and the current interface (`dev`).
    pub arrived_by: u32,
    pub device: u32,
    /// The packet type (`pkt_type`), which shares its byte with other bits.
    pub packet_type: u32,
    /// In `struct net_device`.
    pub device_ifindex: u32,
    pub device_netns: u32,
    /// In `struct net`.
    pub netns_inode: u32,
    /// The reasons for dropping frames for other hosts, which a promiscuous interface receives, and copies for packet
    /// sockets. [`Self::NO_REASON`] in kernels that lack them.
    pub other_host: u32,
    pub packet_socket: u32,
}

const _: () = assert!(size_of::<DropLayout>() == 44);

impl DropLayout {
    pub const UNKNOWN: Self = Self {
        head: 0,
        network_header: 0,
        tail: 0,
        arrived_by: 0,
        device: 0,
        packet_type: 0,
        device_ifindex: 0,
        device_netns: 0,
        netns_inode: 0,
        other_host: Self::NO_REASON,
        packet_socket: Self::NO_REASON,
    };

    pub const NO_REASON: u32 = u32::MAX;

    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.head != 0
    }
}

/// Dropped packets that are counted without a flow: indices by kind.
pub mod beside {
    /// It has no ingress interface, or left it: packets that this host sent, and packets in a socket's queue.
    pub const ELSEWHERE: u32 = 0;
    /// Not IP, a later fragment, or headers outside the first buffer.
    pub const UNPARSED: u32 = 1;
    /// Too many flows with drops since the last scan.
    pub const NO_ROOM: u32 = 2;
    /// For another host, or a copy for a packet socket.
    pub const NOT_FOR_US: u32 = 3;
    /// Its interface is not watched.
    pub const UNWATCHED: u32 = 4;
    /// A copy of a broadcast or multicast of this host, which was never on the wire.
    pub const LOOPED_BACK: u32 = 5;
    pub const KINDS: u32 = 6;
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers of one size only.
    unsafe impl aya::Pod for super::DropLayout {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_place() {
        let places = [0, 1, OTHER - 1, OTHER, REASONS, 0x1_0003, u32::MAX].map(place);
        assert_eq!(places, [0, 1, OTHER - 1, OTHER, OTHER, OTHER, OTHER]);
    }

    #[test]
    fn interfaces_with_one_index_are_told_apart_by_their_namespaces() {
        assert_eq!(watched(2, 0xf000_0001), 0xf000_0001_0000_0002);
    }
}
