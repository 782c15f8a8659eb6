//! Encodes OTLP attributes as protobuf directly, without intermediate messages.

/// Tags: field number and wire type.
const KEY_VALUE_KEY: u8 = 1 << 3 | 2;
const KEY_VALUE_VALUE: u8 = 2 << 3 | 2;
const STRING_VALUE: u8 = 1 << 3 | 2;
const BOOL_VALUE: u8 = 2 << 3;
const INT_VALUE: u8 = 3 << 3;

/// An attribute's name, encoded as the start of a `KeyValue` up to the tag of its value.
#[derive(Clone, Copy)]
pub(super) struct Key {
    bytes: [u8; Self::LEN_BYTES],
    len: usize,
}

impl Key {
    const LEN_BYTES: usize = 48;

    /// Names must be short enough for a length of one byte.
    pub const fn new(name: &str) -> Self {
        let name = name.as_bytes();
        let mut bytes = [0; Self::LEN_BYTES];
        bytes[0] = KEY_VALUE_KEY;
        bytes[1] = name.len() as u8;
        let mut at = 0;
        while at < name.len() {
            bytes[2 + at] = name[at];
            at += 1;
        }
        bytes[2 + at] = KEY_VALUE_VALUE;
        Self { bytes, len: at + 3 }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The attributes of one message, each written as the field with this tag.
pub(super) struct Attributes<'a> {
    out: &'a mut Vec<u8>,
    tag: u8,
}

impl<'a> Attributes<'a> {
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, tag: u8) -> Self {
        Self { out, tag }
    }

    #[inline]
    pub fn text(&mut self, key: &Key, value: &str) {
        let value_len = 1 + varint_len(value.len() as u64) + value.len();
        self.begin(key, value_len);
        self.out.push(STRING_VALUE);
        varint(self.out, value.len() as u64);
        self.out.extend_from_slice(value.as_bytes());
    }

    #[inline]
    pub fn number(&mut self, key: &Key, value: impl Into<u64>) {
        let value = value.into();
        self.begin(key, 1 + varint_len(value));
        self.out.push(INT_VALUE);
        varint(self.out, value);
    }

    #[inline]
    pub fn boolean(&mut self, key: &Key, value: bool) {
        self.begin(key, 2);
        self.out.extend_from_slice(&[BOOL_VALUE, u8::from(value)]);
    }

    /// Appends attributes that are already encoded.
    #[inline]
    pub fn written(&mut self, attributes: &[u8]) {
        self.out.extend_from_slice(attributes);
    }

    #[inline]
    fn begin(&mut self, key: &Key, value_len: usize) {
        let len = key.len + varint_len(value_len as u64) + value_len;
        self.out.push(self.tag);
        varint(self.out, len as u64);
        self.out.extend_from_slice(key.as_bytes());
        varint(self.out, value_len as u64);
    }
}

#[inline]
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(super) fn varint_len(value: u64) -> usize {
    // Seven bits per byte, and one byte for 0.
    ((70 - (value | 1).leading_zeros() as usize) / 7).max(1)
}

/// A text of at most this many bytes, without allocation.
pub(super) struct Text<const LEN: usize> {
    bytes: [u8; LEN],
    len: usize,
}

impl<const LEN: usize> Text<LEN> {
    pub fn new() -> Self {
        Self {
            bytes: [0; LEN],
            len: 0,
        }
    }

    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).expect("it was made of text")
    }

    #[inline]
    pub fn push(&mut self, text: &str) {
        self.push_ascii(text.as_bytes());
    }

    #[inline]
    pub fn number(&mut self, mut value: u32) {
        let mut digits = [0; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.push_ascii(&digits[at..]);
    }

    #[inline]
    fn push_ascii(&mut self, text: &[u8]) {
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text);
        self.len += text.len();
    }
}

impl<const LEN: usize> std::fmt::Write for Text<LEN> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_takes_as_many_bytes_as_are_written() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                varint(&mut out, value);
                assert_eq!(varint_len(value), out.len(), "{value}");
                let read = prost::decode_length_delimiter(&out[..]);
                assert_eq!(read.ok().map(|read| read as u64), Some(value));
            }
        }
    }

    #[test]
    fn numbers_are_written_in_digits() {
        for number in [0, 9, 10, 65_535, u32::MAX] {
            let mut text = Text::<10>::new();
            text.number(number);
            assert_eq!(text.as_str(), number.to_string());
        }
    }
}
