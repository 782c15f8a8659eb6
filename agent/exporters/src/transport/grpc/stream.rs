//! A streaming call: the client sends messages, and the server answers with messages of its own.

use std::{collections::VecDeque, future::poll_fn, mem::take};

use anyhow::{Context as _, anyhow, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream, client::ResponseFuture};
use tokio::time::timeout;
use tonic::codegen::http::{HeaderMap, HeaderValue, header};

use super::{Connection, MESSAGE_HEADER_BYTES, header_of, request, status};
use crate::transport::{Endpoint, Failure, MOST_ANSWER_BYTES, PATIENCE};

/// A streaming call on its own connection, which ends with the call.
pub(crate) struct StreamingCall {
    pub(crate) outbox: Outbox,
    pub(crate) answers: Answers,
    _connection: Connection,
}

impl StreamingCall {
    pub(crate) async fn begin(
        endpoint: &Endpoint,
        method: &str,
        authorization: Option<HeaderValue>,
    ) -> Result<Self, Failure> {
        let connection = Connection::to(endpoint, PATIENCE).await?;
        let mut request = request(endpoint, method);
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(()).context("make a request")?;
        let ready = timeout(PATIENCE, connection.requests.clone().ready()).await;
        let mut requests = ready.context("nobody answers")?.context("begin a call")?;
        let (answer, stream) = requests
            .send_request(request, false)
            .context("begin a call")?;
        Ok(Self {
            outbox: Outbox {
                stream,
                parts: VecDeque::new(),
                shared: BytesMut::new(),
                put_bytes: 0,
                sent_bytes: 0,
                ends: VecDeque::new(),
                sent: 0,
            },
            answers: Answers {
                state: State::Head(answer),
                read: BytesMut::new(),
            },
            _connection: connection,
        })
    }
}

/// Every server accepts frames of this length.
const FRAME_BYTES: usize = 16 << 10;
/// Shorter parts are copied into a shared frame. Servers limit small unread frames: h2 closes a connection after some
/// hundred of them.
const SMALL_BYTES: usize = 1 << 10;

/// Outgoing messages, passed to the connection as fast as the server takes them.
pub(crate) struct Outbox {
    stream: SendStream<Bytes>,
    /// Frames to send, in order.
    parts: VecDeque<Bytes>,
    /// Bytes that follow the frames in `parts`, collected for one frame.
    shared: BytesMut,
    put_bytes: u64,
    sent_bytes: u64,
    /// Messages not sent completely: number, and end as a byte offset in the stream.
    ends: VecDeque<(u64, u64)>,
    /// Number of the last message sent completely.
    sent: u64,
}

impl Outbox {
    /// Whether everything was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.shared.is_empty()
    }

    /// Whether another message may be added to the current frame.
    pub(crate) fn has_room(&self) -> bool {
        self.parts.is_empty() && self.shared.len() < FRAME_BYTES
    }

    /// Number of the last message sent completely; 0 before the first one.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Adds a message, the concatenation of `parts`. Large parts are not copied.
    pub(crate) fn put(&mut self, number: u64, parts: [Bytes; 2]) {
        let len_bytes = parts.iter().map(Bytes::len).sum();
        let header = header_of(len_bytes, false);
        self.put_bytes += (header.len() + len_bytes) as u64;
        self.ends.push_back((number, self.put_bytes));
        for part in std::iter::once(header).chain(parts) {
            if part.len() < SMALL_BYTES {
                self.shared.extend_from_slice(&part);
            } else {
                self.end_frame();
                self.parts.push_back(part);
            }
        }
    }

    fn end_frame(&mut self) {
        if !self.shared.is_empty() {
            self.parts.push_back(self.shared.split().freeze());
        }
    }

    /// Sends everything. Cancel safe.
    pub(crate) async fn flush(&mut self) -> Result<(), Failure> {
        self.end_frame();
        let Self {
            stream,
            parts,
            sent_bytes,
            ends,
            sent,
            ..
        } = self;
        while let Some(part) = parts.front_mut() {
            stream.reserve_capacity(part.len());
            let mut capacity = stream.capacity();
            if capacity == 0 {
                let more = poll_fn(|context| stream.poll_capacity(context)).await;
                let more = more.ok_or_else(|| anyhow!("the call is over"))?;
                capacity = more.context("the call broke off")?;
            }
            let now = part.split_to(capacity.min(part.len()));
            if part.is_empty() {
                parts.pop_front();
            }
            *sent_bytes += now.len() as u64;
            stream.send_data(now, false).context("the call broke off")?;
            while let Some((number, _)) = ends.pop_front_if(|(_, end)| *end <= *sent_bytes) {
                *sent = number;
            }
        }
        Ok(())
    }

    /// Tells the server that no message follows.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        let ended = self.stream.send_data(Bytes::new(), true);
        Ok(ended.context("the call broke off")?)
    }
}

pub(crate) struct Answers {
    state: State,
    /// Bytes of incomplete answers.
    read: BytesMut,
}

enum State {
    /// The headers have not arrived.
    Head(ResponseFuture),
    Body {
        headers: HeaderMap,
        body: RecvStream,
    },
}

impl Answers {
    /// Returns the next answer. Cancel safe. Fails when the call ends, with the server's status.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Failure> {
        loop {
            if let Some(answer) = self.whole()? {
                return Ok(answer);
            }
            match &mut self.state {
                State::Head(answer) => {
                    let answer = answer.await.context("the call broke off")?;
                    let (head, body) = answer.into_parts();
                    status::of_http(head.status, &head.headers)?;
                    self.state = State::Body {
                        headers: head.headers,
                        body,
                    };
                }
                State::Body { headers, body } => {
                    if let Some(data) = body.data().await {
                        let data = data.context("the call broke off")?;
                        let released = body.flow_control().release_capacity(data.len());
                        released.context("the call broke off")?;
                        self.read.extend_from_slice(&data);
                        continue;
                    }
                    let trailers = body.trailers().await.context("the call broke off")?;
                    // A response without messages has only headers, which are the trailers.
                    status::of_grpc(trailers.unwrap_or_else(|| take(headers)))?;
                    return Err(anyhow!("the server ended the call").into());
                }
            }
        }
    }

    /// Takes a complete answer from the bytes read so far, if there is one.
    fn whole(&mut self) -> anyhow::Result<Option<Bytes>> {
        let Some((&[flag, length @ ..], _)) = self.read.split_first_chunk::<MESSAGE_HEADER_BYTES>()
        else {
            return Ok(None);
        };
        match flag {
            0 => {}
            1 => bail!("the server compresses its answers without being asked to"),
            _ => bail!("an answer is not a gRPC message"),
        }
        let len_bytes = u32::from_be_bytes(length) as usize;
        ensure!(
            len_bytes <= MOST_ANSWER_BYTES,
            "an answer is longer than {MOST_ANSWER_BYTES} bytes"
        );
        if self.read.len() < MESSAGE_HEADER_BYTES + len_bytes {
            return Ok(None);
        }
        self.read.advance(MESSAGE_HEADER_BYTES);
        Ok(Some(self.read.split_to(len_bytes).freeze()))
    }
}

#[cfg(test)]
mod tests;
