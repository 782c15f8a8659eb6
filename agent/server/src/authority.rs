//! Rewrites the `:authority` that clients send on a Unix socket, so that h2 accepts it.
//!
//! Most gRPC clients send the socket's path as `:authority`: gRPC's C core and Swift percent-encode it, Java and old Go
//! send it plain. Neither is an authority (RFC 3986, section 3.2), so h2 answers with `PROTOCOL_ERROR`, although
//! nothing here uses that name. This filter follows the client's HTTP/2 frames and replaces each offending byte with
//! one of the same length in the same encoding. All lengths and the client's HPACK table stay the same, so the filter
//! never has to store, copy or re-encode anything. Input that breaks the rules of HTTP/2 or HPACK passes unchanged, and
//! h2 reports the error.
//!
//! This file can go once h2 accepts such names: <https://github.com/hyperium/h2/pull/487>.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, ReadBuf};

use block::{Block, Malformed};

mod block;
mod huffman;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const FRAME_HEADER_BYTES: usize = 9;
const PRIORITY_BYTES: u32 = 5;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The client's side of one connection. It must see everything that the client sends.
#[derive(Debug, Default)]
pub struct Filter {
    at: At,
    block: Block,
    /// The next frame must be a CONTINUATION.
    in_block: bool,
}

/// The part of the stream that the next byte belongs to.
#[derive(Debug)]
enum At {
    Preface {
        seen: usize,
    },
    FrameHeader {
        header: [u8; FRAME_HEADER_BYTES],
        seen: usize,
    },
    PadLength(Payload),
    Payload(Payload),
    /// Bytes that the filter ignores.
    Other,
}

impl Default for At {
    fn default() -> Self {
        Self::Preface { seen: 0 }
    }
}

impl At {
    fn next_frame() -> Self {
        Self::FrameHeader {
            header: [0; FRAME_HEADER_BYTES],
            seen: 0,
        }
    }
}

/// The bytes left of a frame, part by part in the frame's order.
#[derive(Debug, Clone, Copy, Default)]
struct Payload {
    before: u32,
    /// The frame's fragment of a header block.
    fragment: u32,
    after: u32,
    ends_block: bool,
}

impl Filter {
    /// Reads from the client's stream.
    pub(super) fn poll_read<S: AsyncRead>(
        &mut self,
        stream: Pin<&mut S>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(stream.poll_read(context, buffer))?;
        self.pass(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }

    /// Filters the client's next bytes, which may begin and end anywhere.
    fn pass(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Ok(taken) = self.step(rest) else {
                self.at = At::Other;
                return;
            };
            rest = &mut rest[taken..];
        }
    }

    /// Returns the number of bytes consumed, at least one.
    fn step(&mut self, bytes: &mut [u8]) -> Result<usize, Malformed> {
        match &mut self.at {
            At::Preface { seen } => {
                let taken = bytes.len().min(PREFACE.len() - *seen);
                // Anything else is HTTP/1, which is answered elsewhere.
                if bytes[..taken] != PREFACE[*seen..*seen + taken] {
                    return Err(Malformed);
                }
                *seen += taken;
                if *seen == PREFACE.len() {
                    self.at = At::next_frame();
                }
                Ok(taken)
            }
            At::FrameHeader { header, seen } => {
                let taken = bytes.len().min(FRAME_HEADER_BYTES - *seen);
                header[*seen..*seen + taken].copy_from_slice(&bytes[..taken]);
                *seen += taken;
                if *seen == FRAME_HEADER_BYTES {
                    let header = *header;
                    self.begin_frame(header)?;
                }
                Ok(taken)
            }
            At::PadLength(payload) => {
                let after = u32::from(bytes[0]);
                let fragment = payload.fragment.checked_sub(after).ok_or(Malformed)?;
                let payload = Payload {
                    fragment,
                    after,
                    ..*payload
                };
                self.go_on(payload)?;
                Ok(1)
            }
            At::Payload(payload) => {
                let mut payload = *payload;
                let taken = payload.take(bytes, &mut self.block)?;
                self.go_on(payload)?;
                Ok(taken)
            }
            At::Other => Ok(bytes.len()),
        }
    }

    fn begin_frame(&mut self, header: [u8; FRAME_HEADER_BYTES]) -> Result<(), Malformed> {
        let [l0, l1, l2, kind, flags, _stream_id @ ..] = header;
        let len_bytes = u32::from_be_bytes([0, l0, l1, l2]);
        if self.in_block != (kind == CONTINUATION) {
            return Err(Malformed);
        }
        let is_headers = kind == HEADERS;
        if !is_headers && kind != CONTINUATION {
            return self.go_on(Payload {
                after: len_bytes,
                ..Payload::default()
            });
        }
        self.in_block = true;
        let has_padding = is_headers && flags & PADDED != 0;
        let before = if is_headers && flags & PRIORITY != 0 {
            PRIORITY_BYTES
        } else {
            0
        };
        let fragment = len_bytes
            .checked_sub(before + u32::from(has_padding))
            .ok_or(Malformed)?;
        let payload = Payload {
            before,
            fragment,
            after: 0,
            ends_block: flags & END_HEADERS != 0,
        };
        if has_padding {
            self.at = At::PadLength(payload);
            return Ok(());
        }
        self.go_on(payload)
    }

    /// Continues with the rest of a frame, or with the next one.
    fn go_on(&mut self, payload: Payload) -> Result<(), Malformed> {
        if payload.ends_block && payload.fragment == 0 && self.in_block {
            self.in_block = false;
            self.block.end()?;
        }
        let is_over = payload.before == 0 && payload.fragment == 0 && payload.after == 0;
        self.at = if is_over {
            At::next_frame()
        } else {
            At::Payload(payload)
        };
        Ok(())
    }
}

impl Payload {
    /// Returns the number of bytes consumed, at least one.
    fn take(&mut self, bytes: &mut [u8], block: &mut Block) -> Result<usize, Malformed> {
        let is_fragment = self.before == 0 && self.fragment > 0;
        let left = if is_fragment {
            &mut self.fragment
        } else if self.before > 0 {
            &mut self.before
        } else {
            &mut self.after
        };
        let taken = bytes.len().min(*left as usize);
        *left -= taken as u32;
        if is_fragment {
            block.pass(&mut bytes[..taken])?;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests;
