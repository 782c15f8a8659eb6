//! Unary gRPC calls over HTTP/2. Messages come encoded, and answers are returned undecoded.
//!
//! Uses h2 directly, without a client around it that reconnects by itself or keeps tasks: the receiver may hang, and an
//! abandoned connection must really be gone.

use std::{io::Read as _, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use flate2::read::GzDecoder;
use formats::encoder::Call;
use h2::{
    Reason, RecvStream,
    client::{Builder, SendRequest},
};
use tokio::{task::JoinHandle, time::timeout};
use tonic::codegen::http::{HeaderMap, Request, Response, header, request};

use super::{Endpoint, Failure, MOST_ANSWER_BYTES, PATIENCE, USER_AGENT, broken_by};

mod status;
pub(crate) mod stream;

#[cfg(test)]
mod tests;

/// A flag byte for compression, and the length, big-endian.
const MESSAGE_HEADER_BYTES: usize = 5;
/// Most bytes of an answer's headers or trailers.
const MOST_HEADER_BYTES: u32 = 16 << 10;

pub(crate) struct Grpc {
    pub(super) endpoint: Endpoint,
    connection: Option<Connection>,
    /// Time limit for connecting, and for an answer.
    patience: Duration,
}

struct Connection {
    requests: SendRequest<Bytes>,
    /// Drives the connection.
    task: JoinHandle<Result<(), h2::Error>>,
}

impl Connection {
    async fn to(endpoint: &Endpoint, patience: Duration) -> Result<Self> {
        let stream = endpoint.connect(patience).await?;
        let mut http2 = Builder::new();
        http2
            .enable_push(false)
            .initial_window_size(MOST_ANSWER_BYTES as u32)
            .max_header_list_size(MOST_HEADER_BYTES);
        let (requests, connection) = timeout(patience, http2.handshake(stream))
            .await
            .context("nobody answers")?
            .context("begin HTTP/2")?;
        let task = tokio::spawn(connection);
        Ok(Self { requests, task })
    }

    /// The error that broke the connection. If that was a failed write, the call's own error says only that the
    /// connection ended.
    async fn why(&mut self, error: h2::Error) -> h2::Error {
        if !error.is_io() {
            return error;
        }
        broken_by(&mut self.task).await.unwrap_or(error)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why there is no answer.
enum Unanswered {
    /// The receiver has not seen the message, because it is closing the connection.
    Unheard(h2::Error),
    Broken(h2::Error),
    Failed(Failure),
}

impl Grpc {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            connection: None,
            patience: PATIENCE,
        }
    }

    /// Sends a message and returns the encoded answer.
    pub(super) async fn send(&mut self, message: &Bytes, call: Call) -> Result<Bytes, Failure> {
        // Take the connection out, so that cancelling this future midway leaves none for the next call.
        if let Some(connection) = self.connection.take() {
            // Servers close old or idle connections, which is not a failure.
            match self.call(connection, message, call).await {
                Err(Unanswered::Unheard(_)) => {}
                Err(unanswered) => return Err(unanswered.into()),
                Ok(answer) => return Ok(answer),
            }
        }
        let connection = Connection::to(&self.endpoint, self.patience).await?;
        let answer = self.call(connection, message, call).await;
        answer.map_err(Failure::from)
    }

    /// Makes a call. Keeps the connection if the receiver answered.
    async fn call(
        &mut self,
        mut connection: Connection,
        message: &Bytes,
        call: Call,
    ) -> Result<Bytes, Unanswered> {
        let request = self.request(call)?;
        let framed = [header_of(message.len(), call.is_gzip), message.clone()];
        let answering = answered(&mut connection.requests, request, framed);
        let answered = timeout(self.patience, answering).await.map_err(|_| {
            let patience = humantime::format_duration(self.patience);
            anyhow!("no answer within {patience}")
        })?;
        let is_kept = matches!(
            answered,
            Ok(_) | Err(Unanswered::Failed(Failure::Refused { .. }))
        );
        if is_kept {
            self.connection = Some(connection);
            return answered;
        }
        match answered {
            Err(Unanswered::Unheard(error)) => {
                Err(Unanswered::Unheard(connection.why(error).await))
            }
            Err(Unanswered::Broken(error)) => Err(Unanswered::Broken(connection.why(error).await)),
            Ok(_) | Err(Unanswered::Failed(_)) => answered,
        }
    }

    fn request(&self, call: Call) -> Result<Request<()>> {
        let mut request = request(&self.endpoint, call.method);
        if call.is_gzip {
            request = request
                .header("grpc-encoding", "gzip")
                .header("grpc-accept-encoding", "identity,gzip");
        }
        request
            .header("grpc-timeout", format!("{}m", self.patience.as_millis()))
            .body(())
            .context("make a request")
    }
}

/// A request for a method, with the headers that all calls share.
fn request(endpoint: &Endpoint, method: &str) -> request::Builder {
    let (scheme, to) = (endpoint.scheme(), &endpoint.to);
    Request::post(format!("{scheme}://{to}{method}"))
        .header(header::TE, "trailers")
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::USER_AGENT, USER_AGENT)
}

/// Sends a message and reads its answer.
async fn answered(
    requests: &mut SendRequest<Bytes>,
    request: Request<()>,
    [message_header, message]: [Bytes; 2],
) -> Result<Bytes, Unanswered> {
    // Fails if the receiver has closed the connection meanwhile.
    let ready = requests.clone().ready().await;
    let mut requests = ready.map_err(Unanswered::Unheard)?;
    let (answer, mut body) = requests
        .send_request(request, false)
        .map_err(Unanswered::Unheard)?;
    body.send_data(message_header, false)?;
    // The message is not copied, and is sent as fast as the receiver takes it.
    body.send_data(message, true)?;
    let (head, mut body) = answer.await.map(Response::into_parts)?;
    status::of_http(head.status, &head.headers)?;
    let (data, trailers) = read(&mut body).await?;
    // A response without messages has only headers, which are the trailers.
    let last = trailers.unwrap_or(head.headers);
    status::of_grpc(last)?;
    Ok(unframed(data)?)
}

fn header_of(len_bytes: usize, is_gzip: bool) -> Bytes {
    let mut header = BytesMut::with_capacity(MESSAGE_HEADER_BYTES);
    header.put_u8(is_gzip.into());
    header.put_u32(len_bytes as u32);
    header.freeze()
}

/// Reads all data and the trailers.
async fn read(body: &mut RecvStream) -> Result<(Bytes, Option<HeaderMap>), Unanswered> {
    let mut whole = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        if whole.len() + data.len() > MOST_ANSWER_BYTES {
            return Err(anyhow!("the answer is longer than {MOST_ANSWER_BYTES} bytes").into());
        }
        body.flow_control().release_capacity(data.len())?;
        whole.extend_from_slice(&data);
    }
    Ok((whole.freeze(), body.trailers().await?))
}

/// Unpacks the single message of an answer. Servers in Go compress the answer if the request was compressed.
fn unframed(mut data: Bytes) -> Result<Bytes> {
    let flag = (data.len() >= MESSAGE_HEADER_BYTES).then(|| data.get_u8());
    let is_whole =
        flag.is_some() && usize::try_from(data.get_u32()).is_ok_and(|len| len == data.len());
    match flag {
        Some(0) if is_whole => Ok(data),
        Some(1) if is_whole => unpacked(&data),
        _ => bail!("the answer is not one gRPC message"),
    }
}

fn unpacked(data: &[u8]) -> Result<Bytes> {
    let mut whole = Vec::new();
    let mut gzip = GzDecoder::new(data).take(MOST_ANSWER_BYTES as u64 + 1);
    gzip.read_to_end(&mut whole).context("unpack the answer")?;
    ensure!(
        whole.len() <= MOST_ANSWER_BYTES,
        "the answer is longer than {MOST_ANSWER_BYTES} bytes"
    );
    Ok(whole.into())
}

impl From<anyhow::Error> for Unanswered {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<h2::Error> for Unanswered {
    fn from(error: h2::Error) -> Self {
        let reason = error.reason();
        let is_unheard = error.is_remote()
            && (error.is_go_away() && reason == Some(Reason::NO_ERROR)
                || error.is_reset() && reason == Some(Reason::REFUSED_STREAM));
        if is_unheard {
            return Self::Unheard(error);
        }
        Self::Broken(error)
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Unheard(why) => {
                let why = anyhow!(why);
                why.context("the receiver closed the connection").into()
            }
            Unanswered::Broken(why) => anyhow!(why).context("the call broke off").into(),
            Unanswered::Failed(failure) => failure,
        }
    }
}
