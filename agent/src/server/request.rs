//! Reads the one message of a request's body, limited in bytes and in time.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use prost::Message;
use tonic::{
    Status, Streaming,
    body::Body,
    codec::{DecodeBuf, Decoder},
    codegen::http::HeaderMap,
};

/// The limit for requests that are not about filter rules.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// A request that takes longer to send its message loses its place.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn message<M: Message + Default>(
    headers: &HeaderMap,
    body: Body,
) -> Result<M, Status> {
    let bytes = bytes(headers, body, MAX_REQUEST_BYTES).await?;
    M::decode(bytes).map_err(|error| {
        Status::invalid_argument(format!("this is not the request's message: {error}"))
    })
}

/// The message's bytes, not decoded.
pub(super) async fn bytes(
    headers: &HeaderMap,
    body: Body,
    most_bytes: usize,
) -> Result<Bytes, Status> {
    if let Some(encoding) = headers.get("grpc-encoding")
        && encoding != "identity"
    {
        let mut status = Status::unimplemented("this agent takes requests without compression");
        let identity = tonic::metadata::MetadataValue::from_static("identity");
        status
            .metadata_mut()
            .insert("grpc-accept-encoding", identity);
        return Err(status);
    }
    let mut messages = Streaming::new_request(Whole, body, None, Some(most_bytes));
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
