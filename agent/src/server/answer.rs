//! gRPC answers whose messages share their bytes with others, so that nothing is copied for a peer that may
//! never read it.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderMap, HeaderName, HeaderValue, Response, header::CONTENT_TYPE},
    metadata::GRPC_CONTENT_TYPE,
};

use crate::hub::Subscription;

/// A byte that says "not compressed", and the length, big-endian.
const MESSAGE_HEADER_BYTES: usize = 5;

/// An answer with one message, the concatenation of `parts`. `kept` is dropped once the transport has sent
/// all of it, or has given it up.
pub(super) fn one<T: Send + Sync + 'static>(parts: Vec<Bytes>, kept: T) -> Response<Body> {
    let mut frames = vec![header(parts.iter().map(Bytes::len).sum())];
    frames.extend(parts);
    // Tied to the last part, since the transport sends them in order.
    if let Some(last) = frames.pop() {
        frames.push(Bytes::from_owner(Kept {
            bytes: last,
            _kept: kept,
        }));
    }
    response(stream::iter(frames))
}

/// An answer with a message for each batch, until the hub is closed.
pub(super) fn batches<T: Send + 'static>(subscription: Subscription, kept: T) -> Response<Body> {
    // The fields are dropped in this order, so a consumer's place is free before the hub notes that it left.
    let state = (kept, subscription);
    let batches = stream::unfold(state, |mut state| async move {
        let [prefix, body] = state.1.next().await?.into_parts();
        let mut first = BytesMut::with_capacity(MESSAGE_HEADER_BYTES + prefix.len());
        first.put_slice(&header(prefix.len() + body.len()));
        first.put_slice(&prefix);
        Some((stream::iter([first.freeze(), body]), state))
    });
    response(batches.flatten())
}

fn header(len_bytes: usize) -> Bytes {
    let mut header = BytesMut::with_capacity(MESSAGE_HEADER_BYTES);
    header.put_u8(0);
    header.put_u32(len_bytes as u32);
    header.freeze()
}

fn response(bytes: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let data = bytes
        .filter(|bytes| std::future::ready(!bytes.is_empty()))
        .map(Frame::data);
    let end = stream::once(async { Frame::trailers(ok()) });
    let frames = data.chain(end).map(Ok::<_, Status>);
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// The trailers of a successful call.
fn ok() -> HeaderMap {
    let status = HeaderName::from_static("grpc-status");
    HeaderMap::from_iter([(status, HeaderValue::from_static("0"))])
}

struct Kept<T> {
    bytes: Bytes,
    _kept: T,
}

impl<T> AsRef<[u8]> for Kept<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
