//! Messages written out, byte by byte and field by field. With `FLOW_AGENT_WRITE` in the environment the files are
//! written anew.

use std::{env, fmt::Write as _, fs, path::Path};

/// The fields of a message: number, name, and those of the message in it.
type Fields = &'static [(u64, &'static str, Option<&'static Inner>)];
struct Inner(Fields);

const RECORDS: Fields = &[(1, "entries", Some(&RECORD))];
const RECORD: Inner = Inner(&[
    (1, "eth_protocol", None),
    (2, "direction", None),
    (3, "time_flow_start", Some(&TIMESTAMP)),
    (4, "time_flow_end", Some(&TIMESTAMP)),
    (6, "network", Some(&NETWORK)),
    (7, "transport", Some(&TRANSPORT)),
    (8, "bytes", None),
    (9, "packets", None),
    (10, "interface", None),
    (12, "agent_ip", Some(&IP)),
    (13, "flags", None),
    (14, "icmp_type", None),
    (15, "icmp_code", None),
    (26, "dup_list", Some(&DUP_MAP_ENTRY)),
    (29, "sampling", None),
]);
const TIMESTAMP: Inner = Inner(&[(1, "seconds", None), (2, "nanos", None)]);
const NETWORK: Inner = Inner(&[
    (1, "src_addr", Some(&IP)),
    (2, "dst_addr", Some(&IP)),
    (3, "dscp", None),
]);
const IP: Inner = Inner(&[(1, "ipv4", None), (2, "ipv6", None)]);
const TRANSPORT: Inner = Inner(&[
    (1, "src_port", None),
    (2, "dst_port", None),
    (3, "protocol", None),
]);
const DUP_MAP_ENTRY: Inner = Inner(&[(1, "interface", None), (2, "direction", None)]);

pub fn is_written(name: &str, message: &[u8]) {
    let mut text = String::new();
    let mut reader = Reader {
        rest: message,
        text: &mut text,
    };
    reader.message(RECORDS, 0);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pbflow/tests/records");
    let file = folder.join(format!("{name}.hex"));
    if env::var_os("FLOW_AGENT_WRITE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, &text).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{}", file.display());
    let bytes = expected.lines().flat_map(|line| {
        let (hex, _) = line.split_once('#').unwrap();
        hex.split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
    });
    assert_eq!(bytes.collect::<Vec<u8>>(), message);
}

/// Reads from the front and writes what it read.
struct Reader<'a> {
    rest: &'a [u8],
    text: &'a mut String,
}

impl Reader<'_> {
    fn message(&mut self, fields: Fields, depth: usize) {
        while !self.rest.is_empty() {
            let whole = self.rest;
            let tag = self.varint();
            let &(_, name, inner) = fields
                .iter()
                .find(|(number, ..)| *number == tag >> 3)
                .unwrap_or_else(|| panic!("field {}", tag >> 3));
            let mut value = String::new();
            let mut content: &[u8] = &[];
            match tag & 7 {
                0 => write!(value, " = {}", self.varint()).unwrap(),
                5 => {
                    let bytes = self.take(4).try_into().unwrap();
                    write!(value, " = {:#010x}", u32::from_le_bytes(bytes)).unwrap();
                }
                2 => {
                    let len = self.varint() as usize;
                    if inner.is_some() {
                        content = &self.rest[..len];
                    } else {
                        let bytes = self.take(len);
                        let text = str::from_utf8(bytes).ok().filter(|_| name == "interface");
                        value = text.map(|text| format!(" = {text}")).unwrap_or_default();
                    }
                }
                other => panic!("wire type {other}"),
            }
            let read = &whole[..whole.len() - self.rest.len()];
            let hex: Vec<_> = read.iter().map(|byte| format!("{byte:02x}")).collect();
            let indent = "  ".repeat(depth);
            writeln!(self.text, "{indent}{} # {name}{value}", hex.join(" ")).unwrap();
            if let Some(inner) = inner {
                let mut reader = Reader {
                    rest: content,
                    text: &mut *self.text,
                };
                reader.message(inner.0, depth + 1);
                self.take(content.len());
            }
        }
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn varint(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.take(1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
}
