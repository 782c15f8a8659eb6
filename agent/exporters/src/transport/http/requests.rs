//! Sends requests one after another over a connection, reconnecting when it has ended.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, StatusCode,
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
    header::HeaderMap,
};
use hyper_util::rt::TokioIo;
use tokio::{task::JoinHandle, time::timeout};

use super::super::{Endpoint, MOST_ANSWER_BYTES, broken_by};

pub(crate) struct Requests {
    pub(super) endpoint: Endpoint,
    pub(super) connection: Option<Connection>,
    /// Time limit for connecting, and for an answer.
    pub(super) patience: Duration,
}

pub(super) struct Connection {
    pub(super) requests: SendRequest<Full<Bytes>>,
    /// Drives the connection.
    task: JoinHandle<hyper::Result<()>>,
}

impl Connection {
    /// The error that broke the connection. If it broke before the request reached it, the request's own error says
    /// only that there is no connection.
    async fn why(&mut self, error: hyper::Error) -> hyper::Error {
        if !error.is_canceled() && !error.is_closed() {
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

/// A complete answer.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Requests {
    pub(crate) fn new(endpoint: Endpoint, patience: Duration) -> Self {
        Self {
            endpoint,
            connection: None,
            patience,
        }
    }

    /// Host and port of the server.
    pub(crate) fn address(&self) -> String {
        self.endpoint.address()
    }

    /// Sends a request and returns the complete answer.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer> {
        // Take the connection out, so that cancelling this future midway leaves none for the next request.
        let connected = self.connection.take();
        let mut connection = match connected {
            // Servers close old or idle connections, which is not a failure.
            Some(mut connection) => match connection.requests.ready().await {
                Ok(()) => connection,
                Err(_) => self.connect().await?,
            },
            None => self.connect().await?,
        };
        let answering = answered(&mut connection, request);
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
        let task = tokio::spawn(connection);
        Ok(Connection { requests, task })
    }
}

/// Sends a request and reads the complete answer, so that the connection is ready for the next one.
async fn answered(connection: &mut Connection, request: Request<Full<Bytes>>) -> Result<Answer> {
    let answer = match connection.requests.send_request(request).await {
        Ok(answer) => answer,
        Err(error) => return Err(connection.why(error).await).context("the request broke off"),
    };
    let (head, mut body) = answer.into_parts();
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

#[cfg(test)]
mod tests {
    use lab::certificates::Ca;
    use tls::{
        ALPN_H2,
        client::ClientFiles,
        output::{OutputTls, ReloadableOutputTls},
        server::{ReloadableServerTls, ServerFiles},
    };
    use tokio::net::TcpListener;

    use super::{super::super::PATIENCE, *};
    use crate::settings::HostPort;

    /// With TLS 1.3 the connection may break before the request reaches it.
    #[tokio::test]
    async fn a_request_that_comes_after_a_refusal_hears_why() {
        let ca = Ca::new().unwrap();
        let issued = ca.issue("server", "localhost").unwrap();
        let server = ServerFiles {
            certificate: issued.certificate,
            key: issued.key,
            client_ca: Some(ca.file()),
        };
        let server = ReloadableServerTls::new(server.read().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = HostPort {
            host: "localhost".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let refusing = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            server.acceptor().accept(stream).await.is_ok()
        });
        let files = ClientFiles {
            ca: Some(ca.file()),
            ..ClientFiles::default()
        };
        // The ALPN protocol that the server accepts. It carries no data here.
        let tls = ReloadableOutputTls::new(OutputTls::read(files, ALPN_H2).unwrap());
        let requests = Requests::new(Endpoint::new(to, Some(tls)), PATIENCE);
        let mut connection = requests.connect().await.unwrap();
        assert!(!refusing.await.unwrap());
        while !connection.requests.is_closed() {
            tokio::task::yield_now().await;
        }
        let request = Request::post("/").body(Full::default()).unwrap();
        let error = answered(&mut connection, request).await.err().unwrap();
        let error = format!("{error:#}");
        let words = "it asks for a client's certificate";
        assert!(error.contains(words), "{error}");
    }
}
