//! Recognizes copies of this host's own broadcasts and multicasts, which the kernel hands back to the sending interface
//! (`dev_loopback_xmit`). They were never on the wire, and begin with the IP header even on Ethernet. Packet captures
//! leave them out as well (`packet_rcv`).
//!
//! A VRF device marks its deliveries to the host itself in the same way (`vrf_local_xmit`, 6.1 to 6.19). These keep their
//! Ethernet header and count as arriving.

use aya_ebpf::bindings::__sk_buff;

/// `linux/if_packet.h`.
const PACKET_LOOPBACK: u32 = 5;

/// Whether an arriving packet that begins with its IP header is such a copy.
#[inline(always)]
pub fn is_copy(skb: *mut __sk_buff) -> bool {
    // SAFETY: the context pointer is valid for the program's run; the verifier checks the field.
    unsafe { (*skb).pkt_type == PACKET_LOOPBACK }
}

/// The same by the byte that holds `pkt_type` in the kernel's own structure.
#[inline(always)]
pub fn is_copy_by_byte(packet_type: u8) -> bool {
    const BITS: u32 = 3;
    // C compilers place the first bit field at the low end on little-endian machines, at the high end on big-endian
    // ones.
    let kind = if cfg!(target_endian = "big") {
        packet_type >> (u8::BITS - BITS)
    } else {
        packet_type & ((1 << BITS) - 1)
    };
    u32::from(kind) == PACKET_LOOPBACK
}
