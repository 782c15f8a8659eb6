//! gRPC answers whose messages share their bytes with others, so that nothing is copied for a peer that may never read
//! it.

use std::{
    fmt::Display,
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
use hub::{
    CopyRoom, Hub, OutgoingBatch, SharedHeldBytes, Subscription, Turn, guarded_bytes::with_guard,
};
use proto::ObserveRequest;
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
    limits::AdmissionControl,
    peer::Peer,
};

/// Copies reserved for consumers with filters when other consumers have taken all that they may, and of these the ones
/// reserved for the user that runs the agent.
const FOR_FILTERS: u64 = 64;
const FOR_ROOT: u64 = 4;

/// The compression flag (one byte) and the message length (four bytes, big-endian).
const MESSAGE_HEADER_BYTES: usize = 5;

/// An answer with one message, the concatenation of `parts`. `kept` is dropped once the transport has sent all of it or
/// has given up.
pub fn one<T: Send + Sync + 'static>(parts: Vec<Bytes>, kept: T) -> Response<Body> {
    let mut frames = vec![header(false, parts.iter().map(Bytes::len).sum())];
    frames.extend(parts);
    // Tied to the last part, since the transport sends them in order.
    if let Some(last) = frames.pop() {
        frames.push(with_guard(last, kept));
    }
    response(stream::iter(frames))
}

/// How a consumer's batches are transformed before they are sent.
pub struct Form {
    /// `None` if batches are sent unchanged.
    own: Option<Own>,
    compressor: Arc<Compressor>,
}

/// How to make a consumer's own copies of batches, and the memory reserved for them.
struct Own {
    filter: Option<StreamFilter>,
    encoding: Option<Encoding>,
    room: CopyRoom,
}

/// An answer with a message for each batch, until the hub is closed.
pub fn batches<T: Send + 'static>(
    subscription: Subscription,
    form: Form,
    kept: T,
) -> Response<Body> {
    let encoding = form.own.as_ref().and_then(|own| own.encoding);
    // Fields are dropped in this order: the consumer's place and memory are free before the hub sees that it left.
    let state = (kept, form, subscription);
    let batches = stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        let trailers = match state.1.next(&mut state.2).await {
            Some(Ok(message)) => return Some((stream::iter(data(message)), Some(state))),
            Some(Err(status)) => trailers(Err(status)),
            None if state.2.was_too_slow_at_first() => too_slow(),
            None => ok(),
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
    /// The form that the request asks for. Without room for the consumer's copies, batches are sent uncompressed, and a
    /// request with a filter is refused.
    pub fn asked(
        request: &ObserveRequest,
        headers: &HeaderMap,
        peer: &Peer,
        (hub, admission): (&Hub, &AdmissionControl),
        compressor: &Arc<Compressor>,
    ) -> Result<Self, Status> {
        let filter = StreamFilter::read(&request.filter)?;
        let encoding = Encoding::asked(headers, peer.is_on_a_unix_socket());
        let has_own = filter.is_some() || encoding.is_some();
        // A consumer without compression still gets every batch; without its filter it would get the wrong ones.
        let others = if filter.is_some() { 0 } else { FOR_FILTERS };
        let others = others + if peer.runs_the_agent() { 0 } else { FOR_ROOT };
        let room = has_own.then(|| hub.room_for_copies(others)).flatten();
        if filter.is_some() && room.is_none() {
            return Err(admission.no_copies(peer));
        }
        Ok(Self {
            own: room.map(|room| Own {
                filter,
                encoding,
                room,
            }),
            compressor: Arc::clone(compressor),
        })
    }

    /// The next batch as gRPC frames it, in parts. `None` at the end.
    async fn next(
        &mut self,
        subscription: &mut Subscription,
    ) -> Option<Result<Vec<Bytes>, Status>> {
        let Some(own) = &mut self.own else {
            let [prefix, body] = subscription.next().await?.into_parts();
            return Some(Ok(plain(prefix, body)));
        };
        // While this waits for its turn, batches stay in the hub's queue, which may drop them.
        let turn = own.room.turn().await;
        let batch = subscription.next().await?;
        Some(
            own.message(subscription, batch, turn, &self.compressor)
                .await,
        )
    }
}

impl Own {
    async fn message(
        &mut self,
        subscription: &Subscription,
        batch: OutgoingBatch,
        turn: Turn,
        compressor: &Compressor,
    ) -> Result<Vec<Bytes>, Status> {
        let (mut id, volume) = (batch.id(), batch.volume());
        let [prefix, mut body] = batch.into_parts();
        let copies = u64::from(self.filter.is_some()) + u64::from(self.encoding.is_some());
        let Some(turn) = turn.reserve(copies * body.len() as u64) else {
            subscription.note_lost(volume);
            let len = body.len();
            return Err(Status::resource_exhausted(format!(
                "there is no memory for a copy of a batch of {len} bytes: observe without a filter, or later"
            )));
        };
        let failed = |error: &dyn Display| {
            subscription.note_lost(volume);
            Status::internal(error.to_string())
        };
        if let Some(mut filter) = self.filter.take() {
            let held = Arc::clone(&turn);
            let filtered = spawn_blocking(move || {
                let filtered = filter.apply(&body);
                (filter, filtered, held)
            });
            let filtered = filtered.await;
            let (filter, filtered, _held) = filtered.map_err(|error| failed(&error))?;
            self.filter = Some(filter);
            let (filtered, left_out) = filtered.map_err(|error| failed(&error))?;
            subscription.note_left_out(left_out);
            body = turn.hold(filtered, &SharedHeldBytes::default());
            id = None;
        }
        if let Some(encoding) = self.encoding
            && let Some(compressed) = compressor.compress(encoding, id, body.clone()).await
            && let Some([before, after]) = compressed.around(&prefix)
        {
            let len = before.len() + compressed.bytes.len() + after.len();
            let first = [header(true, len), before].concat();
            let shared = turn.hold(compressed.bytes.clone(), &compressed.held);
            return Ok(vec![first.into(), shared, after]);
        }
        Ok(plain(prefix, body))
    }
}

/// An uncompressed message.
fn plain(prefix: Bytes, body: Bytes) -> Vec<Bytes> {
    let first = [header(false, prefix.len() + body.len()), prefix].concat();
    vec![first.into(), body]
}

/// An answer with these messages, which are created while they are sent. Whatever is not sent within `patience` is
/// dropped.
pub fn list<T: Send + 'static>(
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

/// The trailers for a peer that did not read in time.
fn too_slow() -> HeaderMap {
    trailers(Err(Status::aborted("the flows were not read in time")))
}

fn data(parts: Vec<Bytes>) -> Vec<Frame<Bytes>> {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.map(Frame::data).collect()
}

/// A gRPC frame around an uncompressed message.
pub fn whole(message: &[u8]) -> Bytes {
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

/// An answer with these frames; the last one has the trailers.
pub fn framed(frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Response<Body> {
    let frames = frames.map(Ok::<_, Status>);
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// The trailers for this outcome.
pub fn trailers(outcome: Result<(), Status>) -> HeaderMap {
    let Err(status) = outcome else { return ok() };
    let mut trailers = HeaderMap::new();
    // Fails only for a message that is not plain ASCII.
    let _ = status.add_header(&mut trailers);
    trailers
}

/// The trailers of a successful call.
fn ok() -> HeaderMap {
    let status = HeaderName::from_static("grpc-status");
    HeaderMap::from_iter([(status, HeaderValue::from_static("0"))])
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;
    use hub::{COPIES_BYTES, DEFAULT_QUEUED_BYTES, Hub};
    use prost::Message as _;
    use proto::{FlowBatch, batch::Batch};

    use super::*;

    /// A batch with this hostname that compresses well.
    fn batch(hostname: &str) -> Batch {
        let message = FlowBatch {
            scan_id: 7,
            agent: Some(proto::AgentIdentity {
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

    fn own(hub: &Hub, filter: &str, encoding: Option<Encoding>) -> Form {
        let own = Own {
            filter: StreamFilter::read(filter).unwrap(),
            encoding,
            room: hub.room_for_copies(0).unwrap(),
        };
        Form {
            own: Some(own),
            compressor: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_compressed_batch_is_held_once_at_its_length_until_the_last_consumer_has_taken_it() {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let compressor = Arc::<Compressor>::default();
        let mut consumers = ["one", "two"].map(|name| hub.subscribe(name, "test"));
        let hostname = "a".repeat(10_000);
        hub.publish(&batch(&hostname));
        assert!(hub.held_bytes() > 10_000);
        let mut messages = Vec::new();
        for consumer in &mut consumers {
            let mut form = own(&hub, "", Some(Encoding::Gzip));
            form.compressor = Arc::clone(&compressor);
            messages.push(form.next(consumer).await.unwrap().unwrap());
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
        let mut form = own(&hub, "exclude all", None);
        let mut consumer = hub.subscribe("", "test");
        let whole = FlowBatch {
            scan_id: 7,
            records: vec![proto::FlowRecord::default(); 100],
            ..FlowBatch::default()
        };
        hub.publish(&Batch {
            body: whole.encode_to_vec().into(),
            records: 100,
            ..batch("")
        });
        let message = form.next(&mut consumer).await.unwrap().unwrap();
        assert_eq!(hub.held_bytes(), message[1].len() as u64);
        assert!(hub.held_bytes() < 20);
        drop(message);
        assert_eq!(hub.held_bytes(), 0);
        let status = &hub.status()[0];
        let counts = (status.delivered_records, status.left_out_records);
        assert_eq!(counts, (0, 100));
        assert_eq!(hub.fate().delivered.records, 0);
    }

    /// A batch of maximum length that barely compresses.
    fn long(scan_id: u64) -> Batch {
        let mut state = scan_id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut address = || {
            let mut next = || {
                // xorshift64.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_be_bytes()
            };
            Bytes::from([next(), next()].concat())
        };
        let mut record = |port| proto::FlowRecord {
            src: Some(proto::Endpoint {
                addr: address(),
                port: Some(port),
                delta_packets: 1,
                total_packets: 1,
                ..proto::Endpoint::default()
            }),
            dst: Some(proto::Endpoint {
                addr: address(),
                port: Some(port),
                ..proto::Endpoint::default()
            }),
            protocol: 17,
            ..Default::default()
        };
        let message = FlowBatch {
            scan_id,
            records: (0..4500).map(&mut record).collect(),
            ..FlowBatch::default()
        };
        let body: Bytes = message.encode_to_vec().into();
        assert!((200_000..260_000).contains(&body.len()), "{}", body.len());
        Batch { body, ..batch("") }
    }

    #[tokio::test]
    async fn the_next_copy_is_made_when_the_transport_has_dropped_the_one_before() {
        for encoding in [None, Some(Encoding::Gzip)] {
            let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
            let mut form = own(&hub, "include all", encoding);
            let mut consumer = hub.subscribe("", "test");
            for scan_id in 1..=4 {
                hub.publish(&long(scan_id));
            }
            for taken in 1..=4 {
                let message = form.next(&mut consumer).await.unwrap().unwrap();
                assert!(message[1].len() > 150_000, "{}", message[1].len());
                // A batch that cannot be copied yet stays in the queue, where it may be dropped.
                assert!(form.next(&mut consumer).now_or_never().is_none());
                assert_eq!(hub.status()[0].delivered_batches, taken);
                let held = hub.held_bytes();
                drop(message);
                assert!(held - hub.held_bytes() > 150_000);
            }
            assert_eq!(hub.held_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn a_batch_longer_than_a_share_is_copied_or_lost_and_that_ends_the_stream() {
        // Half of it is for a share and a half.
        let hub = Hub::new(10, 3 * COPIES_BYTES);
        let mut form = own(&hub, "include all", None);
        let mut consumer = hub.subscribe("", "test");
        let padded = |bytes: u64| {
            let long = long(1);
            let padding = FlowBatch {
                agent: Some(proto::AgentIdentity {
                    hostname: "a".repeat((bytes - long.body.len() as u64) as usize),
                    ..Default::default()
                }),
                ..FlowBatch::default()
            };
            let body = [&long.body[..], &padding.encode_to_vec()].concat();
            Batch {
                body: body.into(),
                records: 4500,
                ..long
            }
        };
        hub.publish(&padded(COPIES_BYTES * 5 / 4));
        let message = form.next(&mut consumer).await.unwrap().unwrap();
        assert!(hub.held_bytes() > COPIES_BYTES);
        drop(message);
        hub.publish(&padded(COPIES_BYTES * 7 / 4));
        let status = form.next(&mut consumer).await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        let status = &hub.status()[0];
        assert_eq!((status.delivered_batches, status.lost_records), (1, 4500));
    }

    #[tokio::test]
    async fn without_room_for_copies_nothing_is_compressed_and_a_filter_is_refused() {
        let shares = FOR_FILTERS + FOR_ROOT + 2;
        let hub = Hub::new(10, 2 * shares * COPIES_BYTES);
        let admission = AdmissionControl::new(super::super::limits::Limits::default().fixed());
        let asked = |filter: &str, peer: &Peer| {
            let request = ObserveRequest {
                filter: filter.into(),
                ..ObserveRequest::default()
            };
            let mut headers = HeaderMap::new();
            let accepted = HeaderName::from_static("grpc-accept-encoding");
            headers.insert(accepted, HeaderValue::from_static("gzip"));
            Form::asked(
                &request,
                &headers,
                peer,
                (&hub, &admission),
                &Arc::default(),
            )
        };
        let stranger = Peer::Tcp(([127, 0, 0, 1], 1).into());
        let root = Peer::Unix { pid: None, uid: 0 };
        let mut forms: Vec<Form> = Vec::new();
        loop {
            let form = asked("", &stranger).unwrap();
            if form.own.is_none() {
                break;
            }
            forms.push(form);
        }
        // Half of the bound, less the reserve for others.
        assert_eq!(forms.len(), 2);
        for _ in 0..FOR_FILTERS {
            forms.push(asked("exclude all", &stranger).unwrap());
        }
        let refused = asked("exclude all", &stranger).err().unwrap();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(admission.status().refused_consumers, 1);
        for _ in 0..FOR_ROOT {
            forms.push(asked("exclude all", &root).unwrap());
        }
        assert!(asked("exclude all", &root).is_err());

        // A share is free again when the last copy is dropped.
        let Form {
            own: Some(last), ..
        } = forms.pop().unwrap()
        else {
            panic!("it has room");
        };
        let turn = last.room.turn().await.reserve(3).unwrap();
        let copy = turn.hold(Bytes::from_static(b"abc"), &SharedHeldBytes::default());
        drop((turn, last));
        assert!(asked("exclude all", &root).is_err());
        drop(copy);
        assert!(asked("exclude all", &root).is_ok());
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
            own: None,
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
        let body = with_guard(Bytes::from_static(b"a"), held);
        let first = Batch { body, ..batch("a") };
        consumer.begin_with(vec![first], Duration::from_hours(1));
        drop(consumer);
        let gone = dropped.try_recv();
        assert_eq!(gone, Err(tokio::sync::oneshot::error::TryRecvError::Closed));
    }

    #[tokio::test]
    async fn what_does_not_shrink_is_sent_as_it_is() {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let mut form = own(&hub, "", Some(Encoding::Zstd));
        let mut consumer = hub.subscribe("", "test");
        hub.publish(&batch("a"));
        let message = form.next(&mut consumer).await.unwrap().unwrap();
        let message = message.concat();
        assert_eq!(message[0], 0);
        let decoded = FlowBatch::decode(&message[5..]).unwrap();
        assert_eq!((decoded.stream_seq, decoded.scan_id), (1, 7));
    }
}
