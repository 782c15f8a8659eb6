//! Adds up the records in a stream of IPFIX messages (RFC 7011, section 3).

use std::collections::HashMap;

use agent_common::Pair;

const VERSION: u16 = 10;
const HEADER_LEN_BYTES: usize = 16;
const SET_HEADER_LEN_BYTES: usize = 4;
const TEMPLATE_SET: u16 = 2;
const OPTIONS_TEMPLATE_SET: u16 = 3;
/// Of reverse elements (RFC 5103).
const REVERSE: u32 = 29_305;

/// An element's enterprise number, or 0, its number and its length in bytes.
type Field = (u32, u16, usize);

#[derive(Default)]
pub struct Messages {
    /// The beginning of a message.
    pub begun: Vec<u8>,
    templates: HashMap<u16, Vec<Field>>,
    /// The sums of the flow records.
    pub flows: Pair,
    /// The flows not sent, from the last record about them.
    pub not_sent: Pair,
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

impl Messages {
    pub fn take(&mut self, bytes: &[u8]) {
        let mut begun = std::mem::take(&mut self.begun);
        begun.extend_from_slice(bytes);
        let mut rest = &begun[..];
        while rest.len() >= HEADER_LEN_BYTES {
            assert_eq!(word(rest, 0), VERSION);
            let len = usize::from(word(rest, 2));
            if rest.len() < len {
                break;
            }
            self.message(&rest[HEADER_LEN_BYTES..len]);
            rest = &rest[len..];
        }
        self.begun = rest.to_vec();
    }

    fn message(&mut self, mut sets: &[u8]) {
        while !sets.is_empty() {
            let (id, len) = (word(sets, 0), usize::from(word(sets, 2)));
            let set = &sets[SET_HEADER_LEN_BYTES..len];
            match id {
                TEMPLATE_SET => self.templates(set, 4),
                OPTIONS_TEMPLATE_SET => self.templates(set, 6),
                _ => self.records(id, set),
            }
            sets = &sets[len..];
        }
    }

    fn templates(&mut self, mut set: &[u8], header_len_bytes: usize) {
        while set.len() >= header_len_bytes {
            let (id, fields) = (word(set, 0), word(set, 2));
            set = &set[header_len_bytes..];
            let mut field = || {
                let (number, len) = (word(set, 0), usize::from(word(set, 2)));
                let has_enterprise = number & 0x8000 != 0;
                let enterprise = if has_enterprise {
                    u32::from_be_bytes(set[4..8].try_into().unwrap())
                } else {
                    0
                };
                set = &set[if has_enterprise { 8 } else { 4 }..];
                (enterprise, number & 0x7fff, len)
            };
            let fields = (0..fields).map(|_| field()).collect();
            self.templates.insert(id, fields);
        }
    }

    fn records(&mut self, template: u16, mut set: &[u8]) {
        let fields = &self.templates[&template];
        // Names of interfaces have variable length.
        if fields.iter().any(|field| field.2 == usize::from(u16::MAX)) {
            return;
        }
        let len: usize = fields.iter().map(|field| field.2).sum();
        while set.len() >= len {
            for &(enterprise, number, len) in fields {
                let value = set[..len.min(8)]
                    .iter()
                    .fold(0, |value, &byte| value << 8 | u64::from(byte));
                match (enterprise, number) {
                    (0 | REVERSE, 2) => self.flows.packets += value,
                    (0 | REVERSE, 352) => self.flows.bytes += value,
                    (0, 167) => self.not_sent.packets = value,
                    (0, 168) => self.not_sent.bytes = value,
                    _ => {}
                }
                set = &set[len..];
            }
        }
    }
}
