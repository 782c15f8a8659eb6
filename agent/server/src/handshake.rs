//! A TLS connection. The first read drives the handshake, in the connection's own task. So the handshake uses up the
//! connection's time until its first request, and delays no other connection.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tls::server::name_of_client;
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{FallibleAccept, TlsAcceptor, server::TlsStream};

use super::{caller::CertificateName, limits::AdmissionControl, peer::Peer};

pub struct Handshake {
    state: State,
    peer: Peer,
    /// Set when the handshake is done.
    name: CertificateName,
    admission: Arc<AdmissionControl>,
}

enum State {
    Going(FallibleAccept<TcpStream>),
    Done(TlsStream<TcpStream>),
    Failed(Option<io::Error>, TcpStream),
}

impl Handshake {
    pub(super) fn new(
        acceptor: &TlsAcceptor,
        stream: TcpStream,
        (peer, name): (Peer, CertificateName),
        admission: Arc<AdmissionControl>,
    ) -> Self {
        Self {
            state: State::Going(acceptor.accept(stream).into_fallible()),
            peer,
            name,
            admission,
        }
    }

    /// Returns the connection once the handshake is done. Fails once it has failed and the peer has closed the
    /// connection.
    pub(super) fn poll_done(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let State::Going(accept) = &mut self.state {
            self.state = match ready!(Pin::new(accept).poll(context)) {
                Ok(stream) => {
                    if let Some(name) = name_of_client(stream.get_ref().1) {
                        // This is the only place that sets it.
                        let _ = self.name.set(name);
                    }
                    State::Done(stream)
                }
                Err((error, mut stream)) => {
                    // A port check without TLS is no fault, so only TLS errors are logged.
                    if tls::of_tls(&error).is_some() {
                        self.admission.handshake_failed(&self.peer, &error);
                    }
                    // Send the rest of the socket's buffer.
                    let _ = Pin::new(&mut stream).poll_shutdown(context);
                    State::Failed(Some(error), stream)
                }
            };
        }
        match &mut self.state {
            State::Done(stream) => Poll::Ready(Ok(Pin::new(stream))),
            State::Failed(error, stream) => {
                ready!(read_to_end(stream, context));
                let error = error.take();
                Poll::Ready(Err(error.unwrap_or(io::ErrorKind::NotConnected.into())))
            }
            State::Going(_) => Poll::Pending,
        }
    }

    /// Sends `close_notify`, if the handshake is done.
    pub(super) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Done(stream) => Pin::new(stream).poll_shutdown(context),
            State::Going(_) | State::Failed(..) => Poll::Ready(Ok(())),
        }
    }

    pub(super) fn peer(&self) -> Peer {
        self.peer.clone()
    }
}

/// Closing a socket that has unread input discards what it has sent (RFC 1122, 4.2.2.13), and the peer would not learn
/// why its handshake failed. So the input is read for as long as the connection has its place.
fn read_to_end(stream: &mut TcpStream, context: &mut Context<'_>) -> Poll<()> {
    let mut scrap = [0; 4096];
    loop {
        let mut buffer = ReadBuf::new(&mut scrap);
        let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer));
        if read.is_err() || buffer.filled().is_empty() {
            return Poll::Ready(());
        }
    }
}
