//! Recognizes the copies of this host's own broadcasts and multicasts, which the kernel hands back by the interface that they
//! left by (`dev_loopback_xmit`). They were never on the wire, and begin with the IP header also on Ethernet. A packet
//! capture leaves them out, too (`packet_rcv`).
//!
//! A VRF device marks its deliveries to the host itself in the same way (`vrf_local_xmit`, 6.1 to 6.19). These keep their
//! Ethernet header and count as arriving.

use aya_ebpf::bindings::__sk_buff;

/// `linux/if_packet.h`.
const PACKET_LOOPBACK: u32 = 5;

/// Whether a packet that arrives, and begins with its IP header, is one.
#[inline(always)]
pub fn is_copy(skb: *mut __sk_buff) -> bool {
    // SAFETY: the context pointer is valid for the program's run; the verifier checks the field.
    unsafe { (*skb).pkt_type == PACKET_LOOPBACK }
}

/// The same by the byte that has `pkt_type` in the kernel's own structure.
#[inline(always)]
pub fn is_copy_by_byte(packet_type: u8) -> bool {
    const BITS: u32 = 3;
    // C compilers begin bit fields at the end that their machine begins numbers with.
    let kind = if cfg!(target_endian = "big") {
        packet_type >> (u8::BITS - BITS)
    } else {
        packet_type & ((1 << BITS) - 1)
    };
    u32::from(kind) == PACKET_LOOPBACK
}
