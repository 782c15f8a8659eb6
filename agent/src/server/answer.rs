//! gRPC answers whose messages share their bytes with others, so that nothing is copied for a peer that may
//! never read it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::task::spawn_blocking;
use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderMap, HeaderName, HeaderValue, Response, header::CONTENT_TYPE},
    metadata::GRPC_CONTENT_TYPE,
};

use super::{
    encoding::{Compressor, Encoding},
    filtered::StreamFilter,
    peer::Peer,
};
use crate::{
    hub::{OutgoingBatch, SharedHeld, Subscription},
    proto::ObserveRequest,
};

/// A byte that says whether the message is compressed, and the length, big-endian.
const MESSAGE_HEADER_BYTES: usize = 5;

/// An answer with one message, the concatenation of `parts`. `kept` is dropped once the transport has sent
/// all of it, or has given it up.
pub(super) fn one<T: Send + Sync + 'static>(parts: Vec<Bytes>, kept: T) -> Response<Body> {
    let mut frames = vec![header(false, parts.iter().map(Bytes::len).sum())];
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

/// What becomes of a consumer's batches before they are sent.
pub(super) struct Form {
    pub(super) filter: Option<StreamFilter>,
    pub(super) encoding: Option<Encoding>,
    pub(super) compressor: Arc<Compressor>,
}

/// An answer with a message for each batch, until the hub is closed.
pub(super) fn batches<T: Send + 'static>(
    subscription: Subscription,
    form: Form,
    kept: T,
) -> Response<Body> {
    let encoding = form.encoding;
    // The fields are dropped in this order, so a consumer's place is free before the hub notes that it left.
    let state = (kept, subscription, form);
    let batches = stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        if let Some(batch) = state.1.next().await {
            let message = state.2.message(&state.1, batch).await?;
            return Some((stream::iter(data(message)), Some(state)));
        }
        let trailers = if state.1.was_too_slow_at_first() {
            too_slow()
        } else {
            ok()
        };
        Some((stream::iter(vec![Frame::trailers(trailers)]), None))
    });
    let mut response = framed(batches.flatten());
    if let Some(encoding) = encoding {
        response.headers_mut().insert(
            HeaderName::from_static("grpc-encoding"),
            HeaderValue::from_static(encoding.name()),
        );
    }
    response
}

impl Form {
    /// As the request asks for it.
    pub(super) fn asked(
        request: &ObserveRequest,
        headers: &HeaderMap,
        peer: &Peer,
        compressor: &Arc<Compressor>,
    ) -> Result<Self, Status> {
        Ok(Self {
            filter: StreamFilter::read(&request.filter)?,
            encoding: Encoding::asked(headers, peer.is_on_a_unix_socket()),
            compressor: Arc::clone(compressor),
        })
    }

    /// The batch as gRPC frames it, in parts. `None` if a thread ended that works on it.
    async fn message(
        &mut self,
        subscription: &Subscription,
        batch: OutgoingBatch,
    ) -> Option<Vec<Bytes>> {
        let mut id = batch.id();
        let [prefix, mut body] = batch.into_parts();
        if let Some(mut filter) = self.filter.take() {
            let (filter, filtered) = spawn_blocking(move || {
                let filtered = filter.apply(&body);
                (filter, filtered)
            })
            .await
            .ok()?;
            self.filter = Some(filter);
            // Our own batches can be decoded.
            let (filtered, left_out) = filtered.ok()?;
            subscription.note_left_out(left_out);
            body = subscription.charge(filtered, &SharedHeld::default());
            id = None;
        }
        if let Some(encoding) = self.encoding
            && let Some(compressed) = self.compressor.compress(encoding, id, body.clone()).await
            && let Some([before, after]) = compressed.around(&prefix)
        {
            let len = before.len() + compressed.bytes.len() + after.len();
            let first = [header(true, len), before].concat();
            let shared = subscription.charge(compressed.bytes.clone(), &compressed.held);
            return Some(vec![first.into(), shared, after]);
        }
        let first = [header(false, prefix.len() + body.len()), prefix].concat();
        Some(vec![first.into(), body])
    }
}

/// An answer with these messages, which are made as they are sent. What is not sent within `patience` is given up.
pub(super) fn list<T: Send + 'static>(
    messages: impl Iterator<Item = Bytes> + Send + 'static,
    patience: Duration,
    kept: T,
) -> Response<Body> {
    let (given_up, messages) = give_up_after(patience, messages);
    let frames = stream::unfold(Some(kept), move |kept| {
        let next = messages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .map(Iterator::next);
        let is_given_up = given_up.load(Relaxed);
        async move {
            let kept = kept?;
            if let Some(Some(message)) = next {
                let frames = data(vec![header(false, message.len()), message]);
                return Some((stream::iter(frames), Some(kept)));
            }
            let trailers = if is_given_up { too_slow() } else { ok() };
            Some((stream::iter(vec![Frame::trailers(trailers)]), None))
        }
    });
    framed(frames.flatten())
}

type Shared<T> = Arc<Mutex<Option<T>>>;

/// Drops the messages after this time.
fn give_up_after<T: Send + 'static>(
    patience: Duration,
    messages: T,
) -> (Arc<AtomicBool>, Shared<T>) {
    let given_up = Arc::<AtomicBool>::default();
    let messages = Arc::new(Mutex::new(Some(messages)));
    let (told, held) = (Arc::clone(&given_up), Arc::downgrade(&messages));
    tokio::spawn(async move {
        tokio::time::sleep(patience).await;
        if let Some(held) = held.upgrade() {
            told.store(true, Relaxed);
            held.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    });
    (given_up, messages)
}

/// The trailers for whoever did not read in time.
fn too_slow() -> HeaderMap {
    trailers(Err(Status::aborted("the flows were not read in time")))
}

fn data(parts: Vec<Bytes>) -> Vec<Frame<Bytes>> {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.map(Frame::data).collect()
}

/// A message as gRPC frames it, without compression.
pub(super) fn whole(message: &[u8]) -> Bytes {
    [&header(false, message.len())[..], message].concat().into()
}

fn header(is_compressed: bool, len_bytes: usize) -> Bytes {
    let mut header = BytesMut::with_capacity(MESSAGE_HEADER_BYTES);
    header.put_u8(is_compressed.into());
    header.put_u32(len_bytes as u32);
    header.freeze()
}

fn response(bytes: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let data = bytes
        .filter(|bytes| std::future::ready(!bytes.is_empty()))
        .map(Frame::data);
    let end = stream::once(async { Frame::trailers(ok()) });
    framed(data.chain(end))
}

/// An answer with these frames, of which the last has the trailers.
pub(super) fn framed(frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Response<Body> {
    let frames = frames.map(Ok::<_, Status>);
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// The trailers of a call that ended like this.
pub(super) fn trailers(outcome: Result<(), Status>) -> HeaderMap {
    let Err(status) = outcome else { return ok() };
    let mut trailers = HeaderMap::new();
    // Only a message of other than plain characters could fail.
    let _ = status.add_header(&mut trailers);
    trailers
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use http_body_util::BodyExt as _;
    use prost::Message as _;

    use super::*;
    use crate::{
        batch::Batch,
        hub::{DEFAULT_QUEUED_BYTES, Hub},
        proto::FlowBatch,
    };

    /// A batch that shrinks, with this hostname.
    fn batch(hostname: &str) -> Batch {
        let message = FlowBatch {
            scan_id: 7,
            agent: Some(crate::proto::AgentIdentity {
                hostname: hostname.into(),
                ..Default::default()
            }),
            ..FlowBatch::default()
        };
        Batch {
            body: message.encode_to_vec().into(),
            records: 0,
            delta: agent_common::Pair::default(),
            scan_id: 7,
            index: 0,
            last_of_scan: true,
        }
    }

    #[tokio::test]
    async fn a_compressed_batch_is_held_once_at_its_length_until_the_last_consumer_has_taken_it() {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let mut form = Form {
            filter: None,
            encoding: Some(Encoding::Gzip),
            compressor: Arc::default(),
        };
        let mut consumers = ["one", "two"].map(|name| hub.subscribe(name, "test"));
        let hostname = "a".repeat(10_000);
        hub.publish(&batch(&hostname));
        assert!(hub.held_bytes() > 10_000);
        let mut messages = Vec::new();
        for consumer in &mut consumers {
            let batch = consumer.next().await.unwrap();
            messages.push(form.message(consumer, batch).await.unwrap());
        }
        for message in &messages {
            let message = message.concat();
            assert_eq!(message[0], 1);
            let len = u32::from_be_bytes(message[1..5].try_into().unwrap());
            assert_eq!(len as usize, message.len() - 5);
            let mut decoded = Vec::new();
            let mut member = GzDecoder::new(&message[5..]);
            member.read_to_end(&mut decoded).unwrap();
            let decoded = FlowBatch::decode(&decoded[..]).unwrap();
            assert_eq!((decoded.stream_seq, decoded.scan_id), (1, 7));
            assert_eq!(decoded.agent.unwrap().hostname, hostname);
        }
        let shared = messages[0][1].len() as u64;
        assert!(shared < 1000);
        assert_eq!(hub.held_bytes(), shared);
        messages.pop();
        assert_eq!(hub.held_bytes(), shared);
        messages.pop();
        assert_eq!(hub.held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_filtered_batch_is_held_at_its_own_length_and_its_records_are_not_delivered() {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let mut form = Form {
            filter: StreamFilter::read("exclude all").unwrap(),
            encoding: None,
            compressor: Arc::default(),
        };
        let mut consumer = hub.subscribe("", "test");
        let whole = FlowBatch {
            scan_id: 7,
            records: vec![crate::proto::FlowRecord::default(); 100],
            ..FlowBatch::default()
        };
        hub.publish(&Batch {
            body: whole.encode_to_vec().into(),
            records: 100,
            ..batch("")
        });
        let sent = consumer.next().await.unwrap();
        let message = form.message(&consumer, sent).await.unwrap();
        assert_eq!(hub.held_bytes(), message[1].len() as u64);
        assert!(hub.held_bytes() < 20);
        drop(message);
        assert_eq!(hub.held_bytes(), 0);
        let status = &hub.status()[0];
        let counts = (status.delivered_records, status.left_out_records);
        assert_eq!(counts, (0, 100));
        assert_eq!(hub.fate().delivered.records, 0);
    }

    /// The messages, and the status in the trailers.
    async fn read(response: Response<Body>) -> (Bytes, String) {
        let collected = response.into_body().collect().await.unwrap();
        let trailers = collected.trailers().unwrap();
        let status = trailers["grpc-status"].to_str().unwrap().to_owned();
        (collected.to_bytes(), status)
    }

    #[tokio::test]
    async fn flows_that_are_not_read_in_time_are_given_up_and_that_is_told() {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let form = || Form {
            filter: None,
            encoding: None,
            compressor: Arc::default(),
        };
        let mut slow = hub.subscribe("slow", "test");
        slow.begin_with(vec![batch("a")], Duration::ZERO);
        while !slow.was_too_slow_at_first() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (messages, status) = read(batches(slow, form(), ())).await;
        assert_eq!((messages.len(), status.as_str()), (0, "10"));

        let mut fast = hub.subscribe("fast", "test");
        fast.begin_with(vec![batch("a")], Duration::from_hours(1));
        hub.publish(&batch("b"));
        hub.close();
        let (messages, status) = read(batches(fast, form(), ())).await;
        let sent = batch("a").body.len() + batch("b").body.len();
        assert!(messages.len() > sent, "{messages:?}");
        assert_eq!(status, "0");

        for (patience, length, expected) in [(Duration::ZERO, 0, "10"), (Duration::MAX, 8, "0")] {
            let (held, dropped) = tokio::sync::oneshot::channel::<()>();
            let messages = std::iter::once(Bytes::from_static(b"abc"));
            let messages = messages.inspect(move |_| assert!(!held.is_closed()));
            let response = list(messages, patience, ());
            if patience.is_zero() {
                assert!(dropped.await.is_err());
            }
            let (messages, status) = read(response).await;
            assert_eq!((messages.len(), status.as_str()), (length, expected));
        }
    }

    #[tokio::test]
    async fn a_consumer_that_leaves_takes_its_first_batches_along() {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let mut consumer = hub.subscribe("", "test");
        let (held, mut dropped) = tokio::sync::oneshot::channel::<()>();
        let body = Bytes::from_owner(Kept {
            bytes: Bytes::from_static(b"a"),
            _kept: held,
        });
        let first = Batch { body, ..batch("a") };
        consumer.begin_with(vec![first], Duration::from_hours(1));
        drop(consumer);
        let gone = dropped.try_recv();
        assert_eq!(gone, Err(tokio::sync::oneshot::error::TryRecvError::Closed));
    }

    #[tokio::test]
    async fn what_does_not_shrink_is_sent_as_it_is() {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let mut form = Form {
            filter: None,
            encoding: Some(Encoding::Zstd),
            compressor: Arc::default(),
        };
        let mut consumer = hub.subscribe("", "test");
        hub.publish(&batch("a"));
        let sent = consumer.next().await.unwrap();
        let message = form.message(&consumer, sent).await.unwrap().concat();
        assert_eq!(message[0], 0);
        let decoded = FlowBatch::decode(&message[5..]).unwrap();
        assert_eq!((decoded.stream_seq, decoded.scan_id), (1, 7));
    }
}
