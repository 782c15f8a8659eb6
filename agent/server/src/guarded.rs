//! A connection that holds a place at its listener. It loses the place if no request arrives in time, or if another
//! connection needs it. At its end the peer may write until it has read everything: if the socket were closed at once,
//! a client that is about to write would see a broken connection before it reads how its call ended.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};
use tonic::transport::server::Connected;

use super::{
    caller::{Caller, NEXT_LOOK},
    connection::Connection,
    limits::{AdmissionControl, Refusal},
};

#[cfg(test)]
mod tests;

/// How long to wait, after shutting down, for the peer to take TLS's `close_notify` and to close the connection. Before
/// that, while h2 and hyper send their last frames, the limit of an idle connection applies ([`Caller::ends_at`]).
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Guarded {
    connection: Connection,
    caller: Caller,
    admission: Arc<AdmissionControl>,
    phase: Phase,
    /// Wakes the connection's task for the phase's next action.
    look: Pin<Box<Sleep>>,
    patience: Duration,
}

#[derive(Clone, Copy)]
enum Phase {
    /// `look` is the next check for idleness.
    Open,
    /// The connection was idle for too long, or the peer did not read.
    Ending,
    /// The connection is shut down; `look` is how long to wait for the peer.
    Leaving { peer_was_told: bool },
}

impl Guarded {
    pub(super) fn new(
        connection: Connection,
        caller: Caller,
        admission: Arc<AdmissionControl>,
    ) -> Self {
        let first_look = caller.ends_at().unwrap_or_else(Instant::now);
        Self {
            connection,
            caller,
            admission,
            phase: Phase::Open,
            look: Box::pin(sleep_until(first_look)),
            patience: PATIENCE,
        }
    }

    /// Fails once the connection has given way, was idle too long, has an overdue unread answer, or has waited long
    /// enough for its peer. Call it at every read, write and flush: if the peer reads nothing, only one of them may be
    /// polled. At the end that is the flush (hyper's `Buffered::poll_shutdown`), and TLS is flushed only after
    /// `close_notify`.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.caller.has_given_way(context) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        while self.look.as_mut().poll(context).is_ready() {
            let Phase::Open = self.phase else {
                return Err(io::ErrorKind::TimedOut.into());
            };
            let now = Instant::now();
            let ends = [
                (self.caller.unread_until(), Refusal::Unread),
                (self.caller.ends_at(), Refusal::Silent),
            ];
            let over = ends
                .iter()
                .find(|(at, _)| at.is_some_and(|ends_at| ends_at <= now));
            if let Some((_, refusal)) = over {
                self.phase = Phase::Ending;
                self.admission.refuse(*refusal, &self.caller.peer);
            } else {
                let next = ends.iter().filter_map(|(at, _)| *at).min();
                // An answer may be sent before then.
                let latest = now + NEXT_LOOK;
                let next = next.map_or(latest, |ends_at| ends_at.min(latest));
                self.look.as_mut().reset(next);
            }
        }
        Ok(())
    }

    /// Reads and discards input until the peer has closed the connection.
    fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut unwanted = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut unwanted);
            let read = ready!(Pin::new(&mut self.connection).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.caller.end();
    }
}

impl Connected for Guarded {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(context)?;
        Pin::new(&mut this.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(context)?;
        Pin::new(&mut this.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(context)?;
        Pin::new(&mut this.connection).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(context)?;
        Pin::new(&mut this.connection).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.caller.has_given_way(context) {
            return Poll::Ready(Ok(()));
        }
        let peer_was_told = match this.phase {
            Phase::Leaving { peer_was_told } => peer_was_told,
            Phase::Open | Phase::Ending => {
                this.look.as_mut().reset(Instant::now() + this.patience);
                this.phase = Phase::Leaving {
                    peer_was_told: false,
                };
                false
            }
        };
        if this.look.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        // Over TLS a close_notify has to be sent, which the peer may not read.
        if !peer_was_told {
            ready!(Pin::new(&mut this.connection).poll_shutdown(context))?;
            this.phase = Phase::Leaving {
                peer_was_told: true,
            };
        }
        this.poll_left(context).map(Ok)
    }
}
