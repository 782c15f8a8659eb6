//! The table where the programs look up an interface's slot. Each interface index has two candidate buckets, so the
//! table's size depends on the number of interfaces and not on the highest index.

use crate::FlowKey;

/// Identifies an interface. The index alone is unique only within its network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId {
    /// The inode number of the network namespace.
    pub netns: u32,
    pub ifindex: u32,
}

impl InterfaceId {
    /// The interface of a flow.
    pub fn of(flow: &FlowKey) -> Self {
        Self {
            netns: flow.netns,
            ifindex: flow.ifindex,
        }
    }
}

/// An entry of the table. A free entry is all zero, since no interface has index 0. The alignment lets the programs
/// read an entry with one load while userspace replaces it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub ifindex: u32,
    /// The number of the interface's accounts, assigned by userspace.
    pub slot: u32,
}

impl Interface {
    pub const LEN_BYTES: usize = size_of::<Self>();

    /// The bytes as they lie in the programs' memory.
    pub fn to_bytes(self) -> [u8; Self::LEN_BYTES] {
        let mut bytes = [0; Self::LEN_BYTES];
        bytes[..4].copy_from_slice(&self.ifindex.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.slot.to_ne_bytes());
        bytes
    }
}

const _: () = assert!(size_of::<Interface>() == 8);

/// The table's element.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket(pub [Interface; Bucket::LEN]);

impl Bucket {
    pub const LEN: usize = 2;
}

/// How to get from a program's context to the network namespace of the packet's interface: offsets in bytes from the
/// running kernel's BTF. All are 0 if any was not found.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLayout {
    /// The interface (`dev`) within `struct sk_buff`.
    pub skb_device: u32,
    /// The receive queue (`rxq`) within `struct xdp_buff`.
    pub xdp_queue: u32,
    /// The interface (`dev`) within `struct xdp_rxq_info`.
    pub queue_device: u32,
    /// The namespace (`nd_net`) within `struct net_device`.
    pub device_netns: u32,
    /// Its inode number (`ns.inum`) within `struct net`.
    pub netns_inode: u32,
}

const _: () = assert!(size_of::<DeviceLayout>() == 20);

impl DeviceLayout {
    pub const UNKNOWN: Self = Self {
        skb_device: 0,
        xdp_queue: 0,
        queue_device: 0,
        device_netns: 0,
        netns_inode: 0,
    };
}

#[cfg(feature = "user")]
// SAFETY: repr(C), integers only, no padding (asserted by size above).
unsafe impl aya::Pod for DeviceLayout {}

/// The two candidate buckets of an interface in a table of `1 << bits`. `bits` is 1 to 31. `seed` is odd.
#[inline(always)]
pub fn buckets(ifindex: u32, seed: u64, bits: u32) -> [u32; 2] {
    let product = u64::from(ifindex).wrapping_mul(seed);
    let first = product >> (64 - bits);
    let second = product as u32 >> (32 - bits);
    [first as u32, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_are_the_highest_bits_of_both_halves_of_the_product() {
        let seed = 0x0812_3456_7C89_ABCD;
        assert_eq!(buckets(1, seed, 8), [0x08, 0x7c]);
        assert_eq!(buckets(16, seed, 16), [0x8123, 0xc89a]);
    }

    #[test]
    fn a_place_has_the_index_and_then_the_slot() {
        let interface = Interface {
            ifindex: 0x0102_0304,
            slot: 0x0506_0708,
        };
        let fields = [interface.ifindex, interface.slot].map(u32::to_ne_bytes);
        assert_eq!(interface.to_bytes(), fields.concat()[..]);
    }

    #[test]
    fn buckets_are_within_the_table() {
        for bits in 1..=31 {
            for ifindex in [1, 2, 10_000_000, 2_000_000_000, u32::MAX] {
                let buckets = buckets(ifindex, 0x9E37_79B9_7F4A_7C15, bits);
                assert!(buckets.iter().all(|&bucket| bucket < 1 << bits));
            }
        }
    }
}
