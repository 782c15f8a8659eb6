//! A connection that holds a place of its listener, and loses it if no request comes.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};
use tonic::transport::server::Connected;

use super::{
    caller::{Caller, NEXT_LOOK},
    connection::Connection,
    limits::{Doors, Place, Refusal},
    peer::Peer,
};

pub(super) struct Guarded {
    connection: Connection,
    caller: Caller,
    doors: Arc<Doors>,
    /// Wakes the connection's task to check whether the connection is idle.
    look: Pin<Box<Sleep>>,
    has_ended: bool,
    _place: Place,
}

impl Guarded {
    pub(super) fn new(connection: Connection, peer: Peer, place: Place, doors: Arc<Doors>) -> Self {
        let caller = Caller::new(peer);
        let first_look = caller.ends_at().unwrap_or_else(Instant::now);
        Self {
            connection,
            caller,
            doors,
            look: Box::pin(sleep_until(first_look)),
            has_ended: false,
            _place: place,
        }
    }

    /// Fails once the connection has been idle for too long. Called at every read and write: if the peer takes
    /// nothing, only one of them may be polled.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while !self.has_ended && self.look.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            match self.caller.ends_at() {
                Some(ends_at) if ends_at <= now => {
                    self.has_ended = true;
                    self.doors.refuse(Refusal::Silent, &self.caller.peer);
                }
                Some(ends_at) => self.look.as_mut().reset(ends_at),
                None => self.look.as_mut().reset(now + NEXT_LOOK),
            }
        }
        if self.has_ended {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
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
        Pin::new(&mut self.get_mut().connection).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().connection).poll_shutdown(context)
    }
}
