//! Checksums for messages built as bytes. The checksum field must be zero.

use std::net::Ipv6Addr;

use etherparse::{checksum::Sum16BitWords, ip_number};

/// ICMP (RFC 792).
pub(crate) fn icmpv4_checksum(message: &[u8]) -> u16 {
    Sum16BitWords::new()
        .add_slice(message)
        .ones_complement()
        .to_be()
}

/// `ICMPv6`, including a pseudo-header (RFC 4443, 2.3).
pub(crate) fn icmpv6_checksum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
    let length_be = (message.len() as u32).to_be_bytes();
    Sum16BitWords::new()
        .add_16bytes(src.octets())
        .add_16bytes(dst.octets())
        .add_4bytes(length_be)
        .add_2bytes([0, ip_number::IPV6_ICMP.0])
        .add_slice(message)
        .ones_complement()
        .to_be()
}

/// SCTP's CRC-32C (RFC 9260, appendix A), reflected. The header stores it in little-endian order.
pub(crate) fn crc32c(packet: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    !packet.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_has_the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn an_icmp_message_with_its_checksum_sums_to_zero() {
        let mut message = [8, 0, 0, 0, 0x12, 0x34, 0, 1, b'x'];
        let checksum = icmpv4_checksum(&message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(icmpv4_checksum(&message), 0);
    }
}
