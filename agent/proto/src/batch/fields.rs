//! The fields of an encoded batch, for callers that do not decode all of it.

use std::ops::Range;

use bytes::{Buf as _, Bytes};
use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

/// The field number of `FlowBatch.agent`.
pub const AGENT: u32 = 1;
/// The field number of `FlowBatch.records`.
pub const RECORDS: u32 = 15;
/// The field number of `FlowBatch.cgroups`, which follow the records that name them.
pub const CGROUPS: u32 = 28;
/// The field number of `FlowBatch.processes`, which follow the records that name them.
pub const PROCESSES: u32 = 30;
/// The field number of `FlowBatch.hosts`, which follow the records that name them.
pub const HOSTS: u32 = 31;
/// The field number of `FlowBatch.dns_exchanges`.
pub const DNS_EXCHANGES: u32 = 32;

/// A field of a batch.
pub struct Field {
    pub tag: u32,
    /// The range of the field in the batch, with its tag.
    pub whole: Range<usize>,
    /// The content without its length, if the field is a message or bytes; otherwise empty.
    pub message: Bytes,
}

/// Calls `visit` with each field of an encoded message, in order.
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
