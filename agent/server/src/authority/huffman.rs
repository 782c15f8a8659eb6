//! Mends `:authority` in HPACK's Huffman code (RFC 7541, appendix B), in place.
//!
//! The codes of the bytes that an authority must not have differ in one bit from codes of the same length
//! that it may have: ` ` and `%` become `-` and `.`, `/` and `:` become `3` and `B`.

/// The Huffman code of `:authority`.
pub(super) const NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The number of bytes with a code of 1, 2, … 15 bits. Only control characters, backslash and non-ASCII bytes have
/// longer codes.
const CODES: [u16; 15] = [0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3];

/// For each length, the first number that is not a code but the prefix of longer codes. Codes of one length are
/// consecutive and continue into the next length.
const LIMITS: [u16; 15] = {
    let mut limits = [0; 15];
    let (mut length, mut limit) = (0, 0);
    while length < limits.len() {
        limit = (limit << 1) + CODES[length];
        limits[length] = limit;
        length += 1;
    }
    limits
};

const SPACE_OR_PERCENT: (u8, u16) = (5, 0b01010);
const SLASH: (u8, u16) = (6, 0b01_1000);
const COLON: (u8, u16) = (7, 0b101_1100);

/// The position in the value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Authority {
    /// The bits read of an unfinished code, and their number.
    code: u16,
    length: u8,
    is_path: bool,
    /// The rest of the value cannot be corrected.
    is_foreign: bool,
}

impl Authority {
    pub(super) fn mend(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            for bit in (0..8).rev() {
                if self.is_foreign {
                    return;
                }
                self.bit(byte, 1 << bit);
            }
        }
    }

    /// Decides on each bit when it arrives, since the byte may be the last one available.
    fn bit(&mut self, byte: &mut u8, mask: u8) {
        self.code = self.code << 1 | u16::from(*byte & mask != 0);
        self.length += 1;
        let code = (self.length, self.code);
        if code == SPACE_OR_PERCENT || code == SLASH || code == COLON && self.is_path {
            self.code |= 1;
            *byte |= mask;
            self.is_path = true;
        }
        let Some(&limit) = LIMITS.get(usize::from(self.length) - 1) else {
            self.is_foreign = true;
            return;
        };
        if self.code < limit {
            (self.code, self.length) = (0, 0);
        }
    }
}
