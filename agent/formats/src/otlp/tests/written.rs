//! Messages written out, byte by byte and field by field. With `FLOW_AGENT_WRITE` in the environment the files are
//! written anew.

use std::{env, fmt::Write as _, fs, path::Path};

use prost::encoding::{WireType, decode_key, decode_varint};

use super::*;

/// What a field of a message is.
#[derive(Clone, Copy)]
enum Field {
    Message(&'static [(u32, &'static str, Field)]),
    Attribute,
    /// A number or a text, or a message of one.
    Value,
}

use Field::{Attribute, Message as Inside, Value as Plain};

type Fields = &'static [(u32, &'static str, Field)];

const RESOURCE: Fields = &[(1, "attribute", Attribute)];
const SCOPE: Fields = &[(1, "name", Plain), (2, "version", Plain)];

const LOGS: Fields = &[(
    1,
    "ResourceLogs",
    Inside(&[
        (1, "Resource", Inside(RESOURCE)),
        (
            2,
            "ScopeLogs",
            Inside(&[
                (1, "InstrumentationScope", Inside(SCOPE)),
                (
                    2,
                    "LogRecord",
                    Inside(&[
                        (1, "time_unix_nano", Plain),
                        (2, "severity_number", Plain),
                        (5, "body", Inside(&[(1, "string_value", Plain)])),
                        (6, "attribute", Attribute),
                        (11, "observed_time_unix_nano", Plain),
                        (12, "event_name", Plain),
                    ]),
                ),
            ]),
        ),
    ]),
)];

const METRICS: Fields = &[(
    1,
    "ResourceMetrics",
    Inside(&[
        (1, "Resource", Inside(RESOURCE)),
        (
            2,
            "ScopeMetrics",
            Inside(&[
                (1, "InstrumentationScope", Inside(SCOPE)),
                (
                    2,
                    "Metric",
                    Inside(&[
                        (1, "name", Plain),
                        (2, "description", Plain),
                        (3, "unit", Plain),
                        (
                            7,
                            "Sum",
                            Inside(&[
                                (
                                    1,
                                    "NumberDataPoint",
                                    Inside(&[
                                        (2, "start_time_unix_nano", Plain),
                                        (3, "time_unix_nano", Plain),
                                        (6, "as_int", Plain),
                                        (7, "attribute", Attribute),
                                    ]),
                                ),
                                (2, "aggregation_temporality", Plain),
                                (3, "is_monotonic", Plain),
                            ]),
                        ),
                    ]),
                ),
            ]),
        ),
    ]),
)];

/// Reads a message with no code of ours, and writes a line for each field.
fn walk(mut message: &[u8], fields: Fields, depth: usize, text: &mut String) {
    while !message.is_empty() {
        let whole = message;
        let (number, wire_type) = decode_key(&mut message).unwrap();
        let known = fields.iter().find(|(known, ..)| *known == number);
        let &(_, name, field) = known.unwrap_or_else(|| panic!("no field has the number {number}"));
        let (bytes, shown) = match wire_type {
            WireType::Varint => {
                let value = decode_varint(&mut message).unwrap();
                (&[][..], value.to_string())
            }
            WireType::SixtyFourBit => {
                let (value, rest) = message.split_first_chunk::<8>().unwrap();
                message = rest;
                (&[][..], u64::from_le_bytes(*value).to_string())
            }
            WireType::LengthDelimited => {
                let len = decode_varint(&mut message).unwrap();
                let (bytes, rest) = message.split_at(len as usize);
                let head = whole.len() - message.len();
                message = rest;
                if let Inside(inner) = field {
                    line(&whole[..head], depth, name, text);
                    walk(bytes, inner, depth + 1, text);
                    continue;
                }
                (bytes, String::from_utf8_lossy(bytes).into_owned())
            }
            WireType::ThirtyTwoBit | WireType::StartGroup | WireType::EndGroup => {
                panic!("{wire_type:?}")
            }
        };
        let shown = if matches!(field, Attribute) {
            let KeyValue { key, value, .. } = KeyValue::decode(bytes).unwrap();
            let value = value.unwrap().value.unwrap();
            let value = if let Value::StringValue(text) = &value {
                format!("{text:?}")
            } else if let Value::IntValue(number) = value {
                number.to_string()
            } else if let Value::BoolValue(is) = value {
                is.to_string()
            } else {
                panic!("{value:?}")
            };
            format!("{key} = {value}")
        } else {
            format!("{name} {shown}")
        };
        line(&whole[..whole.len() - message.len()], depth, &shown, text);
    }
}

fn line(bytes: &[u8], depth: usize, shown: &str, text: &mut String) {
    for byte in bytes {
        write!(text, "{byte:02x} ").unwrap();
    }
    writeln!(text, "# {:depth$}{shown}", "", depth = 2 * depth).unwrap();
}

fn is_written(name: &str, fields: Fields, message: &[u8]) {
    let mut text = String::new();
    walk(message, fields, 0, &mut text);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/otlp/tests/messages");
    let file = folder.join(format!("{name}.hex"));
    if env::var_os("FLOW_AGENT_WRITE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, &text).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{}", file.display());
    let bytes = expected.lines().flat_map(|line| {
        let (hex, _) = line.split_once('#').unwrap_or_default();
        hex.split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
    });
    assert_eq!(bytes.collect::<Vec<u8>>(), message);
}

#[test]
fn flows_are_as_written() {
    for (name, flow) in [
        ("tcp", flows::tcp()),
        ("udp_with_tags", flows::udp_with_tags()),
        ("ping6", flows::ping6()),
        ("in_vxlan", flows::in_vxlan()),
        ("fragments", flows::fragments()),
    ] {
        let (logs, _) = send(&mut encoder(plain()), &batch(), &[flow]);
        is_written(name, LOGS, &logs[0]);
    }
}

#[test]
fn metrics_are_as_written() {
    let (_, metrics) = send(&mut encoder(plain()), &closing(), &[]);
    is_written("metrics", METRICS, &metrics[0]);
}
