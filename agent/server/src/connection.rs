//! An accepted connection, over a Unix socket or TCP, with or without TLS.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

use super::{authority::Filter, handshake::Handshake, peer::Peer};

/// A connection of each kind.
pub enum Connection {
    Unix(UnixStream, Filter),
    Tcp(TcpStream),
    Tls(Box<Handshake>),
}

impl Connection {
    pub(super) fn peer(&self) -> Peer {
        match self {
            Self::Unix(stream, _) => {
                stream
                    .peer_cred()
                    .map_or(Peer::Unknown, |credentials| Peer::Unix {
                        pid: credentials.pid(),
                        uid: credentials.uid(),
                    })
            }
            Self::Tcp(stream) => stream.peer_addr().map_or(Peer::Unknown, Peer::Tcp),
            Self::Tls(handshake) => handshake.peer(),
        }
    }

    /// The local address of a TCP connection, before its handshake.
    pub(super) fn own_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Unix(..) | Self::Tls(_) => None,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream, filter) => filter.poll_read(Pin::new(stream), context, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(handshake) => {
                ready!(handshake.poll_done(context))?.poll_read(context, buffer)
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_write(context, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(handshake) => {
                ready!(handshake.poll_done(context))?.poll_write(context, bytes)
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(handshake) => {
                ready!(handshake.poll_done(context))?.poll_write_vectored(context, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_flush(context),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(handshake) => ready!(handshake.poll_done(context))?.poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_shutdown(context),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(handshake) => handshake.poll_shutdown(context),
        }
    }
}
