//! A batch in a segment: a header with two checksums, then the encoded batch. All numbers are little-endian.

use std::ops::{Range, RangeInclusive};

use hub::Volume;
use proto::RecordSum;

use super::super::waiting::Point;

pub const HEADER_BYTES: usize = 120;
/// A longer length means damage.
const MOST_BYTES: u32 = 64 << 20;

/// Everything about a batch except its body.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Header {
    /// Sequence number on the stream.
    pub seq: u64,
    /// When it was queued.
    pub unix_ns: u64,
    /// What it reports.
    pub own: RecordSum,
    /// Total of all batches with lower sequence numbers, whether delivered or lost.
    pub before: Volume,
    /// Total lost before it got a sequence number.
    pub lost_in_queue: Volume,
    pub len_bytes: u32,
    /// CRC-32 of the body.
    pub crc: u32,
}

/// Valid sequence numbers. Others mean damage.
pub const SEQS: RangeInclusive<u64> = 1..=u64::MAX / 2;
/// The bytes that the header's checksum covers; the checksum precedes them.
const CHECKED: Range<usize> = 4..HEADER_BYTES;

impl Header {
    /// Sets length and checksum of this body.
    pub fn of(self, parts: &[impl AsRef<[u8]>]) -> Self {
        let mut crc = crc32fast::Hasher::new();
        let mut len_bytes = 0;
        for part in parts.iter().map(AsRef::as_ref) {
            crc.update(part);
            len_bytes += part.len();
        }
        Self {
            len_bytes: u32::try_from(len_bytes).expect("a batch is not that long"),
            crc: crc.finalize(),
            ..self
        }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len_bytes.to_le_bytes());
        for (place, number) in bytes[16..].chunks_exact_mut(8).zip(self.numbers()) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes[CHECKED]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` if the header is damaged.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        if short(0) != crc32fast::hash(&bytes[CHECKED]) {
            return None;
        }
        let mut numbers = [0; NUMBERS];
        for (number, place) in numbers.iter_mut().zip(bytes[16..].chunks_exact(8)) {
            *number = u64::from_le_bytes(place.try_into().expect("eight"));
        }
        let volume = |first: usize| Volume {
            batches: numbers[first],
            records: numbers[first + 1],
            packets: numbers[first + 2],
            bytes: numbers[first + 3],
        };
        let header = Self {
            seq: numbers[0],
            unix_ns: numbers[1],
            own: RecordSum {
                records: numbers[2],
                packets: numbers[3],
                bytes: numbers[4],
            },
            before: volume(5),
            lost_in_queue: volume(9),
            len_bytes: short(8),
            crc: short(4),
        };
        let is_sound = SEQS.contains(&header.seq) && header.len_bytes <= MOST_BYTES;
        is_sound.then_some(header)
    }

    /// Whether this is the body that belongs to the header.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == u64::from(self.len_bytes) && crc32fast::hash(bytes) == self.crc
    }

    /// The stream's position before this batch.
    pub fn preceding(&self) -> Point {
        Point {
            seq: self.seq - 1,
            sum: self.before,
        }
    }

    /// The stream's position after this batch.
    pub fn through(&self) -> Point {
        self.preceding().with(self.seq, self.own)
    }

    /// Size in a segment: header and body.
    pub fn stored_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.len_bytes)
    }

    fn numbers(&self) -> [u64; NUMBERS] {
        let Self {
            own,
            before,
            lost_in_queue: lost,
            ..
        } = self;
        [
            self.seq,
            self.unix_ns,
            own.records,
            own.packets,
            own.bytes,
            before.batches,
            before.records,
            before.packets,
            before.bytes,
            lost.batches,
            lost.records,
            lost.packets,
            lost.bytes,
        ]
    }
}

const NUMBERS: usize = (HEADER_BYTES - 16) / 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_every_damaged_bit_is_seen() {
        let volume = |least| Volume {
            batches: least,
            records: least + 1,
            packets: least + 2,
            bytes: u64::MAX - least,
        };
        let body = b"a batch";
        let header = Header {
            seq: 7,
            unix_ns: 1_800_000_000_000_000_000,
            own: RecordSum {
                records: 1,
                packets: 2,
                bytes: 3,
            },
            before: volume(20),
            lost_in_queue: volume(30),
            ..Header::default()
        }
        .of(&[&body[..2], &body[2..]]);
        assert!(header.fits(body) && !header.fits(b"a botch") && !header.fits(b"a batc"));
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for bit in 0..8 * HEADER_BYTES {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&damaged), None, "bit {bit}");
        }
        for seq in [0, u64::MAX] {
            let header = Header { seq, ..header };
            assert_eq!(Header::decode(&header.encode()), None);
        }
    }
}
