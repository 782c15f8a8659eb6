//! The fields of an encoded batch, for those who need not decode all of it.

use std::ops::Range;

use bytes::{Buf as _, Bytes};
use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

/// The number of `FlowBatch.agent`.
pub const AGENT: u32 = 1;
/// The number of `FlowBatch.records`.
pub const RECORDS: u32 = 15;
/// That of `FlowBatch.cgroups`, which come behind the records that name them.
pub const CGROUPS: u32 = 28;
/// That of `FlowBatch.processes`, likewise.
pub const PROCESSES: u32 = 30;
/// That of `FlowBatch.hosts`, likewise.
pub const HOSTS: u32 = 31;
/// That of `FlowBatch.dns_exchanges`.
pub const DNS_EXCHANGES: u32 = 32;

/// A field of a batch.
pub struct Field {
    pub tag: u32,
    /// Where it is, with its tag.
    pub whole: Range<usize>,
    /// What it has, without its length, if it is a message or bytes.
    pub message: Bytes,
}

/// Calls `visit` with the fields of an encoded message in their order.
pub fn each_field(
    body: &Bytes,
    mut visit: impl FnMut(Field) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut rest = body.clone();
    while rest.has_remaining() {
        let start = body.len() - rest.len();
        let (tag, wire_type) = decode_key(&mut rest)?;
        let mut message = Bytes::new();
        if wire_type == WireType::LengthDelimited {
            let len = decode_varint(&mut rest)? as usize;
            message = rest.split_to(len.min(rest.len()));
        } else {
            skip_field(wire_type, tag, &mut rest, DecodeContext::default())?;
        }
        let whole = start..body.len() - rest.len();
        visit(Field {
            tag,
            whole,
            message,
        })?;
    }
    Ok(())
}
