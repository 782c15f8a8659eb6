//! Writes one message (RFC 7011, section 3): a header, and sets of templates or records.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::fields::{Specifiers, Values};

const VERSION: u16 = 10;
pub(super) const HEADER_LEN_BYTES: usize = 16;
const SET_HEADER_LEN_BYTES: usize = 4;
/// Set IDs of templates. A set of records has the ID of its template.
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;

/// A message being written.
pub(super) struct Writer<'a> {
    bytes: &'a mut BytesMut,
    most_bytes: usize,
    set: Option<Set>,
    records: u32,
}

struct Set {
    number: u16,
    start: usize,
}

/// The fields of a message header.
pub(super) struct Header {
    pub export_time_s: u32,
    /// The number of data records before this message.
    pub sequence: u32,
    pub domain: u32,
}

impl<'a> Writer<'a> {
    /// `bytes` must be empty.
    pub fn new(bytes: &'a mut BytesMut, most_bytes: usize) -> Self {
        bytes.reserve(most_bytes);
        bytes.put_bytes(0, HEADER_LEN_BYTES);
        Self {
            bytes,
            most_bytes,
            set: None,
            records: 0,
        }
    }

    /// Whether records of this length fit, together with their template if it must precede them.
    #[inline]
    pub fn has_room(
        &self,
        template: u16,
        records_len_bytes: usize,
        specifiers: Option<&Specifiers>,
    ) -> bool {
        let is_open = self.set.as_ref().is_some_and(|set| set.number == template);
        let len = match specifiers {
            // Two set headers, and the longer of the two template headers.
            Some(specifiers) => 2 * SET_HEADER_LEN_BYTES + 6 + specifiers.bytes.len(),
            None if is_open => 0,
            None => SET_HEADER_LEN_BYTES,
        };
        self.bytes.len() + len + records_len_bytes <= self.most_bytes
    }

    /// Whether the message has only its header.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_LEN_BYTES
    }

    pub fn template(&mut self, number: u16, specifiers: &Specifiers) {
        self.open(TEMPLATES);
        self.bytes.put_u16(number);
        self.bytes.put_u16(specifiers.count);
        self.bytes.put_slice(&specifiers.bytes);
    }

    /// The first `scopes` fields are the scope of the others.
    pub fn options_template(&mut self, number: u16, scopes: u16, specifiers: &Specifiers) {
        self.open(OPTIONS_TEMPLATES);
        self.bytes.put_u16(number);
        self.bytes.put_u16(specifiers.count);
        self.bytes.put_u16(scopes);
        self.bytes.put_slice(&specifiers.bytes);
    }

    /// Starts a record and returns the writer of its fields.
    #[inline]
    pub fn record(&mut self, template: u16) -> Values<'_> {
        self.open(template);
        self.records += 1;
        Values(self.bytes)
    }

    /// Closes the message. Returns the number of data records, including options.
    pub fn close(mut self) -> u32 {
        self.close_set();
        self.records
    }

    #[inline]
    fn open(&mut self, number: u16) {
        if self.set.as_ref().is_some_and(|set| set.number == number) {
            return;
        }
        self.close_set();
        self.set = Some(Set {
            number,
            start: self.bytes.len(),
        });
        self.bytes.put_u16(number);
        self.bytes.put_u16(0);
    }

    fn close_set(&mut self) {
        if let Some(set) = self.set.take() {
            let len = (self.bytes.len() - set.start) as u16;
            self.bytes[set.start + 2..set.start + 4].copy_from_slice(&len.to_be_bytes());
        }
    }
}

/// Fills in the header. `None` if the message is empty.
pub(super) fn finish(bytes: &mut BytesMut, header: &Header) -> Option<Bytes> {
    let mut message = bytes.split();
    if message.len() == HEADER_LEN_BYTES {
        return None;
    }
    let len = u16::try_from(message.len()).expect("a message has at most 65,535 bytes");
    let mut start = &mut message[..HEADER_LEN_BYTES];
    start.put_u16(VERSION);
    start.put_u16(len);
    start.put_u32(header.export_time_s);
    start.put_u32(header.sequence);
    start.put_u32(header.domain);
    Some(message.freeze())
}
