//! Destinations for a record's fields. One walk over the fields produces the template, the length and the bytes, so
//! these cannot disagree.

use bytes::{BufMut as _, BytesMut};

use super::elements::{Element, REVERSE_ENTERPRISE, Registry};

/// The length in a template for a variable-length field (RFC 7011, section 7).
const VARIABLE: u16 = 0xffff;
/// RFC 7011, section 3.2: an enterprise number follows.
const ENTERPRISE_BIT: u16 = 0x8000;
/// Values of 255 bytes or more have this byte and then a two-byte length (RFC 7011, section 7).
const LONG: u8 = 255;

/// Receives the fields of a record, in order.
pub(super) trait Fields {
    fn field<const LEN: usize>(&mut self, element: Element, value: [u8; LEN]);

    /// `value` has at most 65,535 bytes.
    fn text(&mut self, element: Element, value: &str);

    #[inline]
    fn u8(&mut self, element: Element, value: u8) {
        self.field(element, [value]);
    }

    #[inline]
    fn u16(&mut self, element: Element, value: u16) {
        self.field(element, value.to_be_bytes());
    }

    #[inline]
    fn u32(&mut self, element: Element, value: u32) {
        self.field(element, value.to_be_bytes());
    }

    #[inline]
    fn u64(&mut self, element: Element, value: u64) {
        self.field(element, value.to_be_bytes());
    }
}

/// The field specifiers of a template.
#[derive(Default)]
pub(super) struct Specifiers {
    pub bytes: Vec<u8>,
    pub count: u16,
    /// The enterprise number of elements outside IANA's registry.
    enterprise: u32,
}

impl Specifiers {
    pub fn of_enterprise(enterprise: u32) -> Self {
        Self {
            enterprise,
            ..Self::default()
        }
    }

    fn push(&mut self, element: Element, len: u16) {
        self.count += 1;
        let Element { number, registry } = element;
        let enterprise = match registry {
            Registry::Iana => None,
            Registry::Reverse => Some(REVERSE_ENTERPRISE),
            Registry::Enterprise => Some(self.enterprise),
        };
        let bit = if enterprise.is_some() {
            ENTERPRISE_BIT
        } else {
            0
        };
        self.bytes.put_u16(number | bit);
        self.bytes.put_u16(len);
        if let Some(enterprise) = enterprise {
            self.bytes.put_u32(enterprise);
        }
    }
}

impl Fields for Specifiers {
    fn field<const LEN: usize>(&mut self, element: Element, _: [u8; LEN]) {
        self.push(element, LEN as u16);
    }

    fn text(&mut self, element: Element, _: &str) {
        self.push(element, VARIABLE);
    }
}

/// Counts the bytes of a record.
#[derive(Default)]
pub(super) struct Length(pub usize);

impl Fields for Length {
    fn field<const LEN: usize>(&mut self, _: Element, _: [u8; LEN]) {
        self.0 += LEN;
    }

    fn text(&mut self, _: Element, value: &str) {
        let is_long = value.len() >= usize::from(LONG);
        self.0 += if is_long { 3 } else { 1 } + value.len();
    }
}

/// Writes the bytes of a record.
pub(super) struct Values<'a>(pub &'a mut BytesMut);

impl Fields for Values<'_> {
    #[inline]
    fn field<const LEN: usize>(&mut self, _: Element, value: [u8; LEN]) {
        self.0.extend_from_slice(&value);
    }

    fn text(&mut self, _: Element, value: &str) {
        let len = u16::try_from(value.len()).expect("the caller keeps to the limit");
        match u8::try_from(len) {
            Ok(len) if len < LONG => self.0.put_u8(len),
            _ => {
                self.0.put_u8(LONG);
                self.0.put_u16(len);
            }
        }
        self.0.extend_from_slice(value.as_bytes());
    }
}
