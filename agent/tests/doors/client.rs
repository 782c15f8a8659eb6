//! A client of bare HTTP/2: it asks as whoever it is told to be, reads as little as it is told to, and
//! sends what no client of good will would.

use std::{io, os::unix::net::UnixStream as StdUnixStream, thread};

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{Builder, SendRequest},
};
use http::{Request, Response};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

pub const OBSERVE: &str = "/flow.v1.FlowAgent/Observe";
/// One HTTP/2 connection.
pub struct Client(SendRequest<Bytes>);

/// An open call.
pub struct Call {
    pub body: SendStream<Bytes>,
    pub response: h2::client::ResponseFuture,
}

impl Client {
    /// The streams' windows have so many bytes.
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
        Ok(Self(requests))
    }

    /// Sends the head of a call.
    pub async fn open(&mut self, path: &str) -> Result<Call, h2::Error> {
        let mut requests = self.0.clone().ready().await?;
        let request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (response, body) = requests.send_request(request, false)?;
        Ok(Call { body, response })
    }

    /// A call whose answer has begun.
    pub async fn begin(&mut self, path: &str, message: &impl Message) -> Result<Begun, h2::Error> {
        let mut call = self.open(path).await?;
        call.body
            .send_data(framed(&message.encode_to_vec()), true)?;
        Ok(Begun(call.response.await?))
    }
}

/// An answer of which nothing is read.
pub struct Begun(pub Response<RecvStream>);

/// A message as gRPC frames it.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}

/// Connects to `unix:PATH` as another user: the thread's credentials are what the socket's other end
/// sees.
pub fn connect_as(address: &str, uid: libc::uid_t) -> io::Result<UnixStream> {
    let path = address.strip_prefix("unix:").expect("a Unix socket");
    let connect = || {
        // SAFETY: no pointers; the system call, unlike libc's function, changes this thread alone.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        StdUnixStream::connect(path)
    };
    let stream = thread::scope(|scope| scope.spawn(connect).join().unwrap())?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
