//! Reads the messages of a request's body, within limits for bytes and, for single messages, time.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use prost::Message;
use tonic::{
    Status, Streaming,
    body::Body,
    codec::{CompressionEncoding, DecodeBuf, Decoder},
    codegen::http::HeaderMap,
    metadata::MetadataValue,
};

/// The limit for requests that are not about filter rules.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// A request that takes longer to send its message loses its place.
const TIMEOUT: Duration = Duration::from_secs(30);

pub async fn message<M: Message + Default>(headers: &HeaderMap, body: Body) -> Result<M, Status> {
    let bytes = bytes(headers, body, MAX_REQUEST_BYTES).await?;
    M::decode(bytes).map_err(|error| {
        Status::invalid_argument(format!("this is not the request's message: {error}"))
    })
}

/// Whether the messages of a request may be compressed with gzip. Refuses any other compression.
pub fn may_be_gzip(headers: &HeaderMap) -> Result<bool, Status> {
    match headers.get("grpc-encoding") {
        None => Ok(false),
        Some(encoding) if encoding == "identity" => Ok(false),
        Some(encoding) if encoding == "gzip" => Ok(true),
        // A Zstandard frame may ask for a window of 128 MiB, however short it is.
        Some(_) => {
            let mut status =
                Status::unimplemented("requests are taken without compression or with gzip");
            let accepted = MetadataValue::from_static("identity,gzip");
            status
                .metadata_mut()
                .insert("grpc-accept-encoding", accepted);
            Err(status)
        }
    }
}

/// The bytes of a request's only message, decompressed but not decoded. The limit applies before and after
/// decompression.
pub async fn bytes(headers: &HeaderMap, body: Body, most_bytes: usize) -> Result<Bytes, Status> {
    let encoding = may_be_gzip(headers)?.then_some(CompressionEncoding::Gzip);
    let mut messages = Streaming::new_request(Whole, body, encoding, Some(most_bytes));
    tokio::time::timeout(TIMEOUT, messages.message())
        .await
        .map_err(|_| {
            let seconds = TIMEOUT.as_secs();
            Status::deadline_exceeded(format!("the request did not come within {seconds} s"))
        })??
        .ok_or_else(|| Status::invalid_argument("the request has no message"))
}

struct Whole;

impl Decoder for Whole {
    type Item = Bytes;
    type Error = Status;

    /// Does not copy: the bytes share the buffer.
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use bytes::{BufMut as _, BytesMut};
    use flate2::{Compression, write::GzEncoder};
    use http_body_util::Full;
    use proto::ObserveRequest;
    use tonic::{
        Code,
        codegen::http::{HeaderName, HeaderValue},
    };

    use super::*;

    /// A body with these bytes in a gRPC frame.
    fn framed(message: &[u8]) -> Body {
        let len_bytes = (message.len() as u32).to_be_bytes();
        let framed = [&[0], &len_bytes[..], message].concat();
        Body::new(Full::new(Bytes::from(framed)))
    }

    fn encoded(encoding: &'static str) -> HeaderMap {
        let name = HeaderName::from_static("grpc-encoding");
        HeaderMap::from_iter([(name, HeaderValue::from_static(encoding))])
    }

    #[tokio::test]
    async fn a_message_is_read_up_to_its_limit_and_only_as_it_is_accepted() {
        for headers in [HeaderMap::new(), encoded("identity")] {
            let read = bytes(&headers, framed(b"abc"), 3).await.unwrap();
            assert_eq!(read, b"abc"[..]);
        }
        let too_long = bytes(&HeaderMap::new(), framed(b"abcd"), 3).await;
        assert_eq!(too_long.unwrap_err().code(), Code::OutOfRange);
        let none = bytes(&HeaderMap::new(), Body::empty(), 3).await;
        assert_eq!(none.unwrap_err().code(), Code::InvalidArgument);
        for unknown in ["zstd", "deflate"] {
            let compressed = bytes(&encoded(unknown), framed(b"abc"), 3).await;
            let refused = compressed.unwrap_err();
            assert_eq!(refused.code(), Code::Unimplemented);
            let accepted = refused.metadata().get("grpc-accept-encoding");
            assert_eq!(accepted.unwrap(), "identity,gzip");
        }
    }

    #[tokio::test]
    async fn a_compressed_message_is_as_long_as_it_becomes() {
        let gzip = |len| {
            let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
            compressed.write_all(&vec![0; len]).unwrap();
            let mut framed = BytesMut::from(&[1][..]);
            let compressed = compressed.finish().unwrap();
            framed.put_u32(compressed.len() as u32);
            framed.put_slice(&compressed);
            Body::new(Full::new(framed.freeze()))
        };
        let read = bytes(&encoded("gzip"), gzip(10_000), 10_000).await;
        assert_eq!(read.unwrap(), vec![0; 10_000]);
        let too_long = bytes(&encoded("gzip"), gzip(10_001), 10_000).await;
        assert_eq!(too_long.unwrap_err().code(), Code::ResourceExhausted);
        // Clients send small messages uncompressed, whatever the header says.
        let plain = bytes(&encoded("gzip"), framed(b"abc"), 3).await;
        assert_eq!(plain.unwrap(), b"abc"[..]);
    }

    #[tokio::test]
    async fn a_message_is_decoded_or_refused_with_the_reason() {
        let sent = ObserveRequest {
            consumer: "a".repeat(MAX_REQUEST_BYTES - 100),
            ..ObserveRequest::default()
        };
        let body = framed(&sent.encode_to_vec());
        let read: ObserveRequest = message(&HeaderMap::new(), body).await.unwrap();
        assert_eq!(read, sent);
        let broken = message::<ObserveRequest>(&HeaderMap::new(), framed(&[0xff])).await;
        let refused = broken.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(
            refused
                .message()
                .contains("this is not the request's message")
        );
    }
}
