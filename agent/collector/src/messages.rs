//! The messages of an agent's call in gRPC framing: a byte that says whether the message is compressed, its length in
//! four bytes, big-endian, and the message.
//!
//! Header and message are read separately, so that memory is reserved for a message before it is received.

use std::io::Read as _;

use bytes::{Buf as _, Bytes};
use flate2::read::GzDecoder;
use http_body_util::BodyExt as _;
use proto::limits::MAX_BATCH_BYTES;
use tonic::{Code, Status, body::Body};

const HEADER_BYTES: usize = 5;

pub(crate) struct Messages {
    body: Body,
    may_be_gzip: bool,
    /// Received and not yet read: at most one HTTP/2 frame.
    received: Bytes,
}

/// The header of the message that follows.
#[derive(Clone, Copy)]
pub(super) struct Header {
    is_gzip: bool,
    pub len_bytes: usize,
}

/// A message as it was sent, possibly compressed.
pub(super) struct Message {
    bytes: Vec<u8>,
    is_gzip: bool,
}

impl Messages {
    /// `may_be_gzip` says whether the call's headers allow gzip.
    pub(crate) fn new(body: Body, may_be_gzip: bool) -> Self {
        Self {
            body,
            may_be_gzip,
            received: Bytes::new(),
        }
    }

    /// The header of the next message, or `None` at the end of the call.
    pub(super) async fn header(&mut self) -> Result<Option<Header>, Status> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        self.read(&mut bytes, HEADER_BYTES).await?;
        match <[u8; HEADER_BYTES]>::try_from(bytes) {
            Ok([flag, len @ ..]) => self.checked(flag, u32::from_be_bytes(len)).map(Some),
            Err(bytes) if bytes.is_empty() => Ok(None),
            Err(_) => Err(broken_off()),
        }
    }

    /// The message after its header.
    pub(super) async fn message(&mut self, header: Header) -> Result<Message, Status> {
        let mut bytes = Vec::with_capacity(header.len_bytes);
        self.read(&mut bytes, header.len_bytes).await?;
        if bytes.len() < header.len_bytes {
            return Err(broken_off());
        }
        Ok(Message {
            bytes,
            is_gzip: header.is_gzip,
        })
    }

    fn checked(&self, flag: u8, len_bytes: u32) -> Result<Header, Status> {
        let is_gzip = match flag {
            0 => false,
            1 if self.may_be_gzip => true,
            _ => {
                return Err(Status::internal(
                    "a message does not use the compression that its call announced",
                ));
            }
        };
        let len_bytes = len_bytes as usize;
        if len_bytes > MAX_BATCH_BYTES {
            return Err(Status::out_of_range(format!(
                "a batch has at most {MAX_BATCH_BYTES} bytes, and this one has {len_bytes}"
            )));
        }
        Ok(Header { is_gzip, len_bytes })
    }

    /// Reads until `bytes` has `len_bytes` bytes, or to the end of the call.
    async fn read(&mut self, bytes: &mut Vec<u8>, len_bytes: usize) -> Result<(), Status> {
        while bytes.len() < len_bytes {
            if self.received.is_empty() {
                let Some(received) = self.body.frame().await else {
                    break;
                };
                match received.map(http_body::Frame::into_data) {
                    Ok(Ok(data)) => self.received = data,
                    Ok(Err(_trailers)) => break,
                    // The agent has ended the call.
                    Err(status) if status.code() == Code::Cancelled => break,
                    Err(status) => return Err(status),
                }
            }
            let more = self.received.len().min(len_bytes - bytes.len());
            bytes.extend_from_slice(&self.received[..more]);
            self.received.advance(more);
        }
        Ok(())
    }
}

impl Message {
    /// The batch, decompressed. Blocks.
    pub(super) fn batch(self) -> Result<Bytes, Status> {
        if !self.is_gzip {
            return Ok(self.bytes.into());
        }
        let mut batch = Vec::new();
        GzDecoder::new(&self.bytes[..])
            .take(MAX_BATCH_BYTES as u64 + 1)
            .read_to_end(&mut batch)
            .map_err(|error| Status::internal(format!("decompress a batch: {error}")))?;
        if batch.len() > MAX_BATCH_BYTES {
            return Err(Status::resource_exhausted(format!(
                "a decompressed batch has at most {MAX_BATCH_BYTES} bytes"
            )));
        }
        Ok(batch.into())
    }
}

fn broken_off() -> Status {
    Status::internal("the call ended within a batch")
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io::Write as _};

    use flate2::{Compression, write::GzEncoder};
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// A call that sends these bytes in pieces of this size, and then ends.
    fn call(bytes: &[u8], piece_bytes: usize) -> Messages {
        let frames: Vec<_> = bytes
            .chunks(piece_bytes)
            .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        Messages::new(body, true)
    }

    async fn next(messages: &mut Messages) -> Result<Option<Bytes>, Status> {
        let Some(header) = messages.header().await? else {
            return Ok(None);
        };
        messages.message(header).await?.batch().map(Some)
    }

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        [&[flag], &(message.len() as u32).to_be_bytes()[..], message].concat()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    #[tokio::test]
    async fn messages_are_read_however_they_are_cut() {
        let bytes = [
            framed(0, b"one"),
            framed(0, b""),
            framed(1, &gzip(b"three")),
        ]
        .concat();
        for piece_bytes in [1, 2, 7, 1000] {
            let mut messages = call(&bytes, piece_bytes);
            for expected in [&b"one"[..], b"", b"three"] {
                assert_eq!(next(&mut messages).await.unwrap().unwrap(), expected);
            }
            assert!(next(&mut messages).await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn messages_that_are_cut_off_too_long_or_compressed_otherwise_are_refused() {
        let too_long = [&[0], &(MAX_BATCH_BYTES as u32 + 1).to_be_bytes()[..]].concat();
        let expands = gzip(&vec![0; MAX_BATCH_BYTES + 1]);
        for (bytes, code) in [
            (framed(0, b"long")[..6].to_vec(), Code::Internal),
            (vec![0, 0], Code::Internal),
            (framed(2, b""), Code::Internal),
            (too_long, Code::OutOfRange),
            (framed(1, &expands), Code::ResourceExhausted),
            (framed(1, b"no gzip"), Code::Internal),
        ] {
            let refused = next(&mut call(&bytes, 1000)).await.unwrap_err();
            assert_eq!(refused.code(), code, "{refused}");
        }
        let mut plain = call(&framed(1, b""), 1000);
        plain.may_be_gzip = false;
        assert_eq!(next(&mut plain).await.unwrap_err().code(), Code::Internal);
    }

    #[tokio::test]
    async fn a_batch_may_have_all_the_bytes_it_may() {
        let largest = vec![0; MAX_BATCH_BYTES];
        for (flag, message) in [(0, largest.clone()), (1, gzip(&largest))] {
            let mut messages = call(&framed(flag, &message), 1 << 14);
            assert_eq!(next(&mut messages).await.unwrap().unwrap(), largest);
        }
    }
}
