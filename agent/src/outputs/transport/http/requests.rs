//! Requests one after another on a connection, which is made anew when it has ended.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
    header::HeaderMap,
};
use hyper_util::rt::TokioIo;
use tokio::{task::JoinHandle, time::timeout};

use super::super::{Endpoint, MOST_ANSWER_BYTES};

pub(in crate::outputs) struct Requests {
    pub(super) endpoint: Endpoint,
    pub(super) connection: Option<Connection>,
    /// For a connection, and for an answer.
    pub(super) patience: Duration,
}

pub(super) struct Connection {
    pub(super) requests: SendRequest<Full<Bytes>>,
    /// Moves the bytes.
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A whole answer.
pub(in crate::outputs) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Requests {
    pub(in crate::outputs) fn new(endpoint: Endpoint, patience: Duration) -> Self {
        Self {
            endpoint,
            connection: None,
            patience,
        }
    }

    /// Its host and port.
    pub(in crate::outputs) fn address(&self) -> String {
        self.endpoint.address()
    }

    /// Returns the answer when it is whole.
    pub(in crate::outputs) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer> {
        // Taken, so that a future that is dropped in the middle of a request leaves no connection for the next one.
        let connected = self.connection.take();
        let mut connection = match connected {
            // Servers close connections that are old or idle, which is no failure.
            Some(mut connection) => match connection.requests.ready().await {
                Ok(()) => connection,
                Err(_) => self.connect().await?,
            },
            None => self.connect().await?,
        };
        let answering = answered(&mut connection.requests, request);
        let answered = timeout(self.patience, answering).await.map_err(|_| {
            let patience = humantime::format_duration(self.patience);
            anyhow!("no answer within {patience}")
        })?;
        let answer = answered?;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn connect(&self) -> Result<Connection> {
        let stream = self.endpoint.connect(self.patience).await?;
        let shaken = timeout(self.patience, handshake(TokioIo::new(stream))).await;
        let (requests, connection) = shaken.context("nobody answers")?.context("begin HTTP")?;
        let task = tokio::spawn(async {
            // What breaks it is told by the request that it breaks.
            let _ = connection.await;
        });
        Ok(Connection { requests, task })
    }
}

/// Sends a request and reads the whole answer, so that the connection can take the next one.
async fn answered(
    requests: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Answer> {
    let answer = requests.send_request(request).await;
    let (head, mut body) = answer
        .context("the request broke off")
        .map(Response::into_parts)?;
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: read(&mut body).await?,
    })
}

async fn read(body: &mut Incoming) -> Result<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the answer broke off")?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.len() + data.len() > MOST_ANSWER_BYTES {
            bail!("the answer is longer than {MOST_ANSWER_BYTES} bytes");
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
