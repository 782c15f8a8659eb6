//! Clients' streams, as they may be and as proptest thinks of them.

use httlib_hpack::Encoder;
use proptest::{collection::vec, prelude::*, sample::Index};

use super::super::{
    CONTINUATION, END_HEADERS, FRAME_HEADER_BYTES, HEADERS, PADDED, PREFACE, PRIORITY,
};

pub(super) const DATA: u8 = 0;
pub(super) const HUFFMAN: u8 = Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE;

pub(super) fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![len[1], len[2], len[3], kind, flags, 0, 0, 0, 1];
    frame.extend_from_slice(payload);
    frame
}

pub(super) fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &frames.concat()].concat()
}

/// A field that any decoder takes, `flags` as the encoder takes them.
pub(super) fn header_field(
    encoder: &mut Encoder,
    (name, value, flags): (&[u8], &[u8], u8),
) -> Vec<u8> {
    let mut block = Vec::new();
    let field = (name.to_vec(), value.to_vec(), flags);
    encoder.encode(field, &mut block).unwrap();
    block
}

pub(super) fn authority(value: &[u8], flags: u8) -> Vec<u8> {
    header_field(&mut Encoder::default(), (b":authority", value, flags))
}

pub(super) fn block_alone(block: &[u8]) -> Vec<u8> {
    stream(&[frame(HEADERS, END_HEADERS, block)])
}

/// A request as clients may send it.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    /// Names, values, and flags as the encoder takes them.
    pub(super) fields: Vec<(Vec<u8>, Vec<u8>, u8)>,
    padding: Option<u8>,
    has_priority: bool,
    cuts: Vec<Index>,
    data: Vec<u8>,
}

pub(super) fn sent(huffman: u8) -> impl Strategy<Value = Sent> {
    let name = prop_oneof![
        3 => Just(b":authority".to_vec()),
        1 => Just(b":path".to_vec()),
        1 => "[a-z:-]{1,20}".prop_map(String::into_bytes),
    ];
    let indexed = prop::sample::select(vec![0, 4, 8, 16, 20]);
    let flags = indexed.prop_map(move |indexed| huffman | indexed);
    // Without the backslash, whose code is longer than those that are read.
    let value = r"[ -\[\]-~]{0,200}".prop_map(String::into_bytes);
    let fields = vec((name, value, flags), 0..6);
    let data = vec(any::<u8>(), 0..100);
    (
        fields,
        any::<Option<u8>>(),
        any::<bool>(),
        vec(any::<Index>(), 0..3),
        data,
    )
        .prop_map(|(fields, padding, has_priority, cuts, data)| Sent {
            fields,
            padding,
            has_priority,
            cuts,
            data,
        })
}

impl Sent {
    pub(super) fn block(&self, encoder: &mut Encoder) -> Vec<u8> {
        let fields = self.fields.iter();
        fields
            .flat_map(|(name, value, flags)| header_field(encoder, (name, value, *flags)))
            .collect()
    }

    pub(super) fn frames(&self, block: &[u8]) -> Vec<u8> {
        let mut cuts: Vec<usize> = self
            .cuts
            .iter()
            .map(|cut| cut.index(block.len() + 1))
            .collect();
        cuts.sort_unstable();
        let mut bounds = vec![0];
        bounds.extend(cuts);
        bounds.push(block.len());
        let parts: Vec<&[u8]> = bounds
            .windows(2)
            .map(|bound| &block[bound[0]..bound[1]])
            .collect();
        let mut frames = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let is_last = number == parts.len() - 1;
            let mut flags = if is_last { END_HEADERS } else { 0 };
            if number > 0 {
                frames.extend(frame(CONTINUATION, flags, part));
                continue;
            }
            let mut payload = Vec::new();
            if let Some(padding) = self.padding {
                flags |= PADDED;
                payload.push(padding);
            }
            if self.has_priority {
                flags |= PRIORITY;
                payload.extend([0; 5]);
            }
            payload.extend_from_slice(part);
            payload.extend(vec![0; self.padding.unwrap_or(0).into()]);
            frames.extend(frame(HEADERS, flags, &payload));
        }
        frames.extend(frame(DATA, 0, &self.data));
        frames
    }
}

/// The fragments of the blocks in well-formed frames.
pub(super) fn block_of(mut frames: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    while !frames.is_empty() {
        let len = u32::from_be_bytes([0, frames[0], frames[1], frames[2]]) as usize;
        let (kind, flags) = (frames[3], frames[4]);
        let (payload, rest) = frames[FRAME_HEADER_BYTES..].split_at(len);
        if kind == HEADERS || kind == CONTINUATION {
            let is_padded = kind == HEADERS && flags & PADDED != 0;
            let has_priority = kind == HEADERS && flags & PRIORITY != 0;
            let padding = if is_padded { payload[0].into() } else { 0 };
            let from = usize::from(is_padded) + if has_priority { 5 } else { 0 };
            block.extend_from_slice(&payload[from..payload.len() - padding]);
        }
        frames = rest;
    }
    block
}
