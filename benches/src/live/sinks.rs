//! Receivers for outputs. They count the received bytes and discard them.

use std::{
    io::{ErrorKind, Read as _},
    net::{TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use lab::Lab;
use tokio::{net::TcpStream, time::timeout};

use super::affinity;

/// How often a waiting thread checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Large enough that no sender waits for it, and typical for collectors that expect much data.
const WINDOW_BYTES: u32 = 8 << 20;
/// An empty, uncompressed gRPC message: the answer of any service whose response has no fields set.
const EMPTY_MESSAGE: Bytes = Bytes::from_static(&[0; 5]);

/// A receiver. Dropping it ends its thread.
pub struct Sink {
    received: Received,
    thread: Option<JoinHandle<()>>,
}

/// State that a sink's thread shares with its owner.
#[derive(Clone, Default)]
struct Received {
    bytes: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Received {
    fn add(&self, len: usize) {
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

impl Sink {
    pub fn datagrams(lab: &Lab, port: u16) -> Result<Self> {
        let bind = || Ok(UdpSocket::bind(("127.0.0.1", port))?);
        let socket = lab.agent.namespace.enter(bind).context("open a socket")?;
        socket.set_read_timeout(Some(LOOK))?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20)
            .context("give the socket room")?;
        Ok(Self::run(move |received| {
            let mut datagram = vec![0; 1 << 16];
            while !received.has_ended() {
                // A read timeout is an error too.
                if let Ok(len) = socket.recv(&mut datagram) {
                    received.add(len);
                }
            }
        }))
    }

    /// Accepts one connection after the other.
    pub fn stream(lab: &Lab, port: u16) -> Result<Self> {
        let listener = listen(lab, port)?;
        Ok(Self::run(move |received| {
            let mut chunk = vec![0; 1 << 16];
            while !received.has_ended() {
                let Ok((mut stream, _)) = listener.accept() else {
                    thread::sleep(LOOK);
                    continue;
                };
                let blocking = stream
                    .set_nonblocking(false)
                    .and_then(|()| stream.set_read_timeout(Some(LOOK)));
                blocking.expect("a socket that was accepted can be set up");
                while !received.has_ended() {
                    match stream.read(&mut chunk) {
                        Ok(0) => break,
                        Ok(len) => received.add(len),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(_) => break,
                    }
                }
            }
        }))
    }

    /// Accepts connections and never reads or writes.
    pub fn silence(lab: &Lab, port: u16) -> Result<Self> {
        let listener = listen(lab, port)?;
        Ok(Self::run(move |received| {
            let mut connections = Vec::new();
            while !received.has_ended() {
                connections.extend(listener.accept());
                thread::sleep(LOOK);
            }
        }))
    }

    /// Answers each gRPC call, of any service, with an empty message.
    pub fn calls(lab: &Lab, port: u16) -> Result<Self> {
        let listener = listen(lab, port)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start a runtime")?;
        Ok(Self::run(move |received| {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)
                    .expect("it was set up for a runtime");
                while !received.has_ended() {
                    if let Ok(Ok((stream, _))) = timeout(LOOK, listener.accept()).await {
                        tokio::spawn(answer(stream, received.clone()));
                    }
                }
            });
        }))
    }

    /// The bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.received.bytes.load(Ordering::Relaxed)
    }

    fn run(receive: impl FnOnce(Received) + Send + 'static) -> Self {
        let received = Received::default();
        let shared = received.clone();
        let thread = thread::spawn(move || {
            affinity::keep_this_thread_off_sender().expect("a thread may choose its CPUs");
            receive(shared);
        });
        Self {
            received,
            thread: Some(thread),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.received.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has printed its message on stderr, and the bench fails because of the missing flows.
            let _ = thread.join();
        }
    }
}

fn listen(lab: &Lab, port: u16) -> Result<TcpListener> {
    let bind = || {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    lab.agent.namespace.enter(bind).context("listen")
}

/// Serves a connection until its client closes it.
async fn answer(stream: TcpStream, received: Received) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake::<_, Bytes>(stream)
        .await?;
    while let Some(call) = connection.accept().await {
        let (request, mut respond) = call?;
        let received = received.clone();
        tokio::spawn(async move {
            let mut body = request.into_body();
            while let Some(part) = body.data().await {
                let len = part?.len();
                received.add(len);
                body.flow_control().release_capacity(len)?;
            }
            let mut response = Response::new(());
            let headers = response.headers_mut();
            headers.insert(
                http::header::CONTENT_TYPE,
                HeaderValue::from_static("application/grpc"),
            );
            let mut stream = respond.send_response(response, false)?;
            stream.send_data(EMPTY_MESSAGE, false)?;
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            stream.send_trailers(trailers)
        });
    }
    Ok(())
}
