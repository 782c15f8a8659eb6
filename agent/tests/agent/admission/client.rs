//! A client of bare HTTP/2 that can misbehave: it connects as any user, reads as little as a test wants, and sends
//! anything.

use std::{
    fs::{Permissions, set_permissions},
    io,
    net::TcpStream as StdTcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixStream as StdUnixStream},
    path::Path,
    thread,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{Builder, SendRequest},
};
use http::{HeaderMap, Request, Response};
use lab::Host;
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use super::patience;

pub const OBSERVE: &str = "/flow.v1.FlowAgent/Observe";
pub const GET_STATUS: &str = "/flow.v1.FlowAgent/GetStatus";
pub const GET_FILTERS: &str = "/flow.v1.FlowControl/GetFilters";
pub const SET_FILTERS: &str = "/flow.v1.FlowControl/SetFilters";

pub const ROOT: libc::uid_t = 0;
pub const NOBODY: libc::uid_t = 65534;

/// The result of a call.
#[derive(Debug)]
pub struct Outcome {
    pub code: tonic::Code,
    pub message: String,
    /// The answer's message, without gRPC's header.
    pub answer: Bytes,
}

/// One HTTP/2 connection.
#[derive(Clone)]
pub struct Client {
    requests: SendRequest<Bytes>,
    token: Option<String>,
}

/// An open call.
pub struct Call {
    pub body: SendStream<Bytes>,
    pub response: h2::client::ResponseFuture,
}

impl Client {
    /// `window_bytes` is the size of each stream's window.
    pub async fn new(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        window_bytes: u32,
    ) -> Result<Self, h2::Error> {
        let mut builder = Builder::new();
        builder
            .initial_window_size(window_bytes)
            .initial_connection_window_size(16 << 20);
        let (requests, connection) = builder.handshake(stream).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self {
            requests,
            token: None,
        })
    }

    /// Shows this token with each call.
    pub fn with_token(self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self
        }
    }

    /// Sends the head of a call.
    pub async fn open(&mut self, path: &str) -> Result<Call, h2::Error> {
        self.open_with(path, "identity").await
    }

    /// The same for a call whose messages may be compressed.
    pub async fn open_with_gzip(&mut self, path: &str) -> Result<Call, h2::Error> {
        self.open_with(path, "gzip").await
    }

    async fn open_with(&mut self, path: &str, encoding: &str) -> Result<Call, h2::Error> {
        let mut requests = self.requests.clone().ready().await?;
        let mut request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("grpc-encoding", encoding)
            .header("te", "trailers");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).unwrap();
        let (response, body) = requests.send_request(request, false)?;
        Ok(Call { body, response })
    }

    async fn send(&mut self, path: &str, message: &impl Message) -> Result<Call, h2::Error> {
        let mut call = self.open(path).await?;
        // The call may be refused already. The answer then says so.
        drop(call.body.send_data(framed(&message.encode_to_vec()), true));
        Ok(call)
    }

    /// Makes a call and waits until its answer begins.
    pub async fn begin(
        &mut self,
        path: &str,
        message: &impl Message,
    ) -> Result<OpenStream, h2::Error> {
        let call = self.send(path, message).await?;
        Ok(OpenStream(call.response.await?))
    }

    /// Makes a call and waits for its end.
    pub async fn call(&mut self, path: &str, message: &impl Message) -> Result<Outcome, h2::Error> {
        let work = async {
            let call = self.send(path, message).await?;
            outcome(call.response.await?).await
        };
        let ended = tokio::time::timeout(patience(), work).await;
        ended.expect("the call ends")
    }
}

/// An answer that has begun and is unread.
pub struct OpenStream(pub Response<RecvStream>);

impl OpenStream {
    /// The refusal, if the call was refused before there was an answer.
    pub fn refusal(&self) -> Option<Outcome> {
        let headers = self.0.headers();
        headers
            .contains_key("grpc-status")
            .then(|| told(headers, Bytes::new()))
    }
}

/// A message as gRPC frames it.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}

pub async fn outcome(response: Response<RecvStream>) -> Result<Outcome, h2::Error> {
    let (head, mut body) = response.into_parts();
    let mut answer = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        answer.put_slice(&data);
    }
    let trailers = body.trailers().await?;
    let answer = answer.freeze();
    let answer = answer.slice(answer.len().min(5)..);
    Ok(told(trailers.as_ref().unwrap_or(&head.headers), answer))
}

fn told(headers: &HeaderMap, answer: Bytes) -> Outcome {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
    let code: i32 = text("grpc-status").expect("a status").parse().unwrap();
    Outcome {
        code: code.into(),
        // Percent-encoded.
        message: text("grpc-message").unwrap_or_default().replace("%20", " "),
        answer,
    }
}

/// Connects to `unix:PATH` as another user. The socket's other end sees the credentials of the thread.
pub fn connect_as(address: &str, uid: libc::uid_t) -> io::Result<UnixStream> {
    let path = address.strip_prefix("unix:").expect("a Unix socket");
    let connect = || {
        // SAFETY: no pointers. Unlike libc's function the system call changes this thread only.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        StdUnixStream::connect(path)
    };
    let stream = thread::scope(|scope| scope.spawn(connect).join().unwrap())?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Lets every user connect to `unix:PATH`.
pub fn open_to_all(address: &str) {
    let socket = Path::new(address.strip_prefix("unix:").expect("a Unix socket"));
    set_permissions(socket, Permissions::from_mode(0o666)).unwrap();
    set_permissions(socket.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
}

/// Connects to the TCP address that the agent's log names, on its host.
pub fn connect_by_tcp(host: &Host, log: &str) -> TcpStream {
    let mut words = log.split_whitespace();
    let address = words.find_map(|word| word.strip_prefix("address=127.0.0.1:"));
    let port: u16 = address.expect("a TCP address").parse().unwrap();
    let connect = || Ok(StdTcpStream::connect(("127.0.0.1", port))?);
    let stream = host.namespace.enter(connect).unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}
