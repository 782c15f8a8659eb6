//! The frames in a block of a `TPACKET_V3` ring. `include/uapi/linux/if_packet.h` defines the layout.

use std::mem::offset_of;

use libc::{tpacket_block_desc, tpacket_hdr_v1, tpacket_hdr_variant1, tpacket3_hdr};

/// The status word with which the kernel and user space hand a block to each other.
pub const STATUS_OFFSET_BYTES: usize = HEADER + offset_of!(tpacket_hdr_v1, block_status);

const HEADER: usize = offset_of!(tpacket_block_desc, hdr);
const FRAMES: usize = HEADER + offset_of!(tpacket_hdr_v1, num_pkts);
const FIRST: usize = HEADER + offset_of!(tpacket_hdr_v1, offset_to_first_pkt);

const NEXT: usize = offset_of!(tpacket3_hdr, tp_next_offset);
const SECONDS: usize = offset_of!(tpacket3_hdr, tp_sec);
const NANOSECONDS: usize = offset_of!(tpacket3_hdr, tp_nsec);
const CAPTURED: usize = offset_of!(tpacket3_hdr, tp_snaplen);
const LENGTH: usize = offset_of!(tpacket3_hdr, tp_len);
const STATUS: usize = offset_of!(tpacket3_hdr, tp_status);
const MAC: usize = offset_of!(tpacket3_hdr, tp_mac);
const TCI: usize = offset_of!(tpacket3_hdr, hv1) + offset_of!(tpacket_hdr_variant1, tp_vlan_tci);

const VLAN_TAG_LEN_BYTES: u64 = 4;

/// A frame as the kernel wrote it to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// From the Ethernet header on, cut by the socket's filter.
    pub bytes: &'a [u8],
    /// The length before the cut.
    pub len_bytes: u32,
    pub unix_ns: u64,
    /// The tag, if the driver removed it from the frame.
    pub vlan_tci: Option<u16>,
}

impl Captured<'_> {
    /// Includes a tag that the driver removed.
    pub fn wire_len_bytes(&self) -> u64 {
        let tag = if self.vlan_tci.is_some() {
            VLAN_TAG_LEN_BYTES
        } else {
            0
        };
        u64::from(self.len_bytes) + tag
    }
}

/// The frames of a block that belongs to user space. Stops at the first inconsistent frame header.
pub fn frames(block: &[u8]) -> impl Iterator<Item = Captured<'_>> {
    let mut left = u32_at(block, FRAMES).unwrap_or(0);
    let mut offset = u32_at(block, FIRST).unwrap_or(0) as usize;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let header = block.get(offset..)?;
        let frame = frame(header)?;
        offset += u32_at(header, NEXT)? as usize;
        Some(frame)
    })
}

fn frame(header: &[u8]) -> Option<Captured<'_>> {
    let start = usize::from(u16_at(header, MAC)?);
    let captured = u32_at(header, CAPTURED)? as usize;
    let tagged = u32_at(header, STATUS)? & libc::TP_STATUS_VLAN_VALID != 0;
    let tci = u32_at(header, TCI)?;
    let seconds = u64::from(u32_at(header, SECONDS)?);
    Some(Captured {
        bytes: header.get(start..start.checked_add(captured)?)?,
        len_bytes: u32_at(header, LENGTH)?,
        unix_ns: seconds * 1_000_000_000 + u64::from(u32_at(header, NANOSECONDS)?),
        vlan_tci: tagged.then_some(tci as u16),
    })
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*field))
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_FRAME: usize = 48;
    const SLOT_LEN: usize = 128;
    const FRAME_START: usize = 82;

    fn set<const N: usize>(block: &mut [u8], offset: usize, field: [u8; N]) {
        block[offset..offset + N].copy_from_slice(&field);
    }

    /// A block of one-byte frames: each holds its number and was 1,024 bytes long on the wire.
    fn block(count: u32) -> Vec<u8> {
        let mut block = vec![0; FIRST_FRAME + count as usize * SLOT_LEN];
        set(&mut block, FRAMES, count.to_ne_bytes());
        set(&mut block, FIRST, (FIRST_FRAME as u32).to_ne_bytes());
        for number in 0..count {
            let slot = &mut block[FIRST_FRAME + number as usize * SLOT_LEN..];
            let is_last = number + 1 == count;
            let next = if is_last { 0 } else { SLOT_LEN as u32 };
            set(slot, NEXT, next.to_ne_bytes());
            set(slot, SECONDS, 2_u32.to_ne_bytes());
            set(slot, NANOSECONDS, number.to_ne_bytes());
            set(slot, CAPTURED, 1_u32.to_ne_bytes());
            set(slot, LENGTH, 1_024_u32.to_ne_bytes());
            set(slot, MAC, (FRAME_START as u16).to_ne_bytes());
            slot[FRAME_START] = number as u8;
        }
        block
    }

    #[test]
    fn each_frame_of_a_block_comes_out_once_and_in_order() {
        let block = block(3);
        let found: Vec<_> = frames(&block).collect();
        let expected = |number: u8| Captured {
            bytes: &block[FIRST_FRAME + usize::from(number) * SLOT_LEN + FRAME_START..][..1],
            len_bytes: 1_024,
            unix_ns: 2_000_000_000 + u64::from(number),
            vlan_tci: None,
        };
        assert_eq!(found, [expected(0), expected(1), expected(2)]);
        assert_eq!(found[2].bytes, [2]);
    }

    #[test]
    fn a_tag_that_was_taken_out_counts_on_the_wire() {
        let mut block = block(1);
        let slot = &mut block[FIRST_FRAME..];
        set(slot, STATUS, libc::TP_STATUS_VLAN_VALID.to_ne_bytes());
        set(slot, TCI, 7_u32.to_ne_bytes());
        let frame = frames(&block).next().unwrap();
        assert_eq!((frame.vlan_tci, frame.wire_len_bytes()), (Some(7), 1_028));
    }

    #[test]
    fn a_block_that_contradicts_itself_ends_early() {
        assert_eq!(frames(&block(0)).count(), 0);
        assert_eq!(frames(&[]).count(), 0);
        let mut beyond = block(2);
        let slot = &mut beyond[FIRST_FRAME + SLOT_LEN..];
        set(slot, CAPTURED, u32::MAX.to_ne_bytes());
        assert_eq!(frames(&beyond).count(), 1);
        let cut = &block(2)[..FIRST_FRAME + SLOT_LEN + 8];
        assert_eq!(frames(cut).count(), 1);
    }
}
