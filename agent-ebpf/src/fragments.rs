//! Puts later fragments, which have no ports, into the flow of their datagram's first fragment.

use agent_common::{FlowKey, Packet, Reason};
use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};

use crate::clock;

/// Identifies the datagram of a fragment. RFC 791 identifies a datagram by addresses, protocol and identification, RFC
/// 8200 by addresses and identification. Interface and tags are included, since separate networks may use the same
/// addresses.
#[repr(C)]
struct Datagram {
    /// Without ports, and for IPv6 without the protocol, which a later fragment lacks.
    flow: FlowKey,
    id: u32,
    /// 0 if the lower address is the sender's, or if both addresses are the same.
    direction: u32,
}

const _: () = assert!(size_of::<Datagram>() == size_of::<FlowKey>() + 8);

/// The first fragment's share of the key.
#[repr(C)]
struct First {
    /// `CLOCK_BOOTTIME`.
    seen_ns: u64,
    port_a: u16,
    port_b: u16,
    l4_kind: u8,
    protocol: u8,
    direction: u8,
    initiator: u8,
}

const _: () = assert!(size_of::<First>() == 16);

/// The kernel evicts the least recently used entry when it is full. Userspace sets the size.
#[btf_map]
static FRAGMENTS: LruHashMap<Datagram, First, 1> = LruHashMap::new();

/// Linux waits this long for an IPv4 datagram's other fragments (`IP_FRAG_TIME`). A fragment that comes
/// later more likely belongs to another datagram with the same identification.
const REASSEMBLY_NS: u64 = 30_000_000_000;

/// Stores the flow of a first fragment, or puts a later one into its flow. Returns the outcome for a later one. The key
/// of `packet` is complete except for the ports.
///
/// A function of its own, since few packets are fragments and the others need its registers.
#[inline(never)]
pub fn join(packet: &mut Packet) -> Option<Reason> {
    let mut datagram = Datagram {
        flow: packet.key,
        id: packet.datagram_id,
        direction: if has_one_address(&packet.key) {
            0
        } else {
            u32::from(packet.direction)
        },
    };
    datagram.flow.port_a = 0;
    datagram.flow.port_b = 0;
    datagram.flow.l4_kind = 0;
    if datagram.flow.ip_version == 6 {
        datagram.flow.protocol = 0;
    }
    let now_ns = clock::boot_ns();
    if packet.part.is_first() {
        let first = First {
            seen_ns: now_ns,
            port_a: packet.key.port_a,
            port_b: packet.key.port_b,
            l4_kind: packet.key.l4_kind,
            protocol: packet.key.protocol,
            direction: packet.direction,
            initiator: packet.initiator,
        };
        // If the kernel has no room, the later fragments count as unmatched.
        let _ = FRAGMENTS.insert(&datagram, &first, 0);
        return None;
    }
    let Some(first) = FRAGMENTS.get_ptr(&datagram) else {
        return Some(Reason::FragmentsUnmatched);
    };
    // SAFETY: `first` comes from a look-up in this program run; a value is plain bytes.
    let first = unsafe { first.read() };
    if now_ns.wrapping_sub(first.seen_ns) > REASSEMBLY_NS {
        return Some(Reason::FragmentsUnmatched);
    }
    packet.key.port_a = first.port_a;
    packet.key.port_b = first.port_b;
    packet.key.l4_kind = first.l4_kind;
    packet.key.protocol = first.protocol;
    packet.direction = first.direction;
    packet.initiator = first.initiator;
    Some(Reason::FragmentsJoined)
}

/// Compares word by word, since kernel programs have no `memcmp`.
#[inline(always)]
fn has_one_address(key: &FlowKey) -> bool {
    let [a_high, a_low] = halves(&key.addr_a);
    let [b_high, b_low] = halves(&key.addr_b);
    a_high == b_high && a_low == b_low
}

#[inline(always)]
fn halves(address: &[u8; 16]) -> [u64; 2] {
    let number = u128::from_ne_bytes(*address);
    [number as u64, (number >> 64) as u64]
}
