//! A connection that holds a place of its listener, and loses it if no request comes. At its end the peer may
//! write until it has read everything: if the socket were closed at once, a client that is about to write would
//! see a broken connection before it reads how its call ended.

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
    limits::{Doors, Place, Refusal},
};

/// How long a connection on which nothing more is sent waits for its peer to close it.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Guarded {
    connection: Connection,
    caller: Caller,
    doors: Arc<Doors>,
    /// Wakes the connection's task to check whether the connection is idle.
    look: Pin<Box<Sleep>>,
    has_ended: bool,
    /// It is shut down, and `look` says until when the peer is waited for.
    is_leaving: bool,
    /// The peer was told that nothing more comes.
    has_said_so: bool,
    _place: Place,
}

impl Guarded {
    pub(super) fn new(
        connection: Connection,
        caller: Caller,
        place: Place,
        doors: Arc<Doors>,
    ) -> Self {
        let first_look = caller.ends_at().unwrap_or_else(Instant::now);
        Self {
            connection,
            caller,
            doors,
            look: Box::pin(sleep_until(first_look)),
            has_ended: false,
            is_leaving: false,
            has_said_so: false,
            _place: place,
        }
    }

    /// Fails once the connection has been idle for too long. Called at every read, write and flush: if the peer takes
    /// nothing, only one of them may be polled.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while !self.is_leaving && !self.has_ended && self.look.as_mut().poll(context).is_ready() {
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

    /// Reads what nobody wants any more, until the peer has closed the connection.
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
        if !this.is_leaving {
            this.is_leaving = true;
            this.look.as_mut().reset(Instant::now() + PATIENCE);
        }
        if this.look.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        // Over TLS it has something to send, which the peer may not take.
        if !this.has_said_so {
            ready!(Pin::new(&mut this.connection).poll_shutdown(context))?;
            this.has_said_so = true;
        }
        this.poll_left(context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, pin::pin};

    use futures_util::poll;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream, UnixStream},
        time::timeout,
    };

    use super::{
        super::{authority::Filter, limits::Limits, peer::Peer},
        *,
    };

    fn doors() -> Arc<Doors> {
        Arc::new(Doors::new(Limits::default().fixed()))
    }

    fn guarded(connection: Connection, caller: Caller, doors: &Arc<Doors>) -> Guarded {
        let place = doors.consumer(&Peer::Unknown).unwrap();
        Guarded::new(connection, caller, place, Arc::clone(doors))
    }

    /// A connection that has to end at `ends_at`, and its other end.
    fn silent_until(ends_at: Instant, doors: &Arc<Doors>) -> (Guarded, Caller, UnixStream) {
        let (ours, peer) = UnixStream::pair().unwrap();
        let caller = Caller::silent_until(Peer::Unknown, ends_at);
        let connection = Connection::Unix(ours, Filter::default());
        (guarded(connection, caller.clone(), doors), caller, peer)
    }

    async fn passes(connection: Connection, mut peer: impl AsyncRead + AsyncWrite + Unpin) {
        let mut guarded = guarded(connection, Caller::new(Peer::Unknown), &doors());
        peer.write_all(b"ask").await.unwrap();
        let mut asked = [0; 3];
        guarded.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"ask");

        guarded.write_all(b"ans").await.unwrap();
        assert!(guarded.is_write_vectored());
        let slices = [IoSlice::new(b"w"), IoSlice::new(b"er")];
        assert_eq!(guarded.write_vectored(&slices).await.unwrap(), 3);
        let end = async {
            guarded.shutdown().await.unwrap();
            let error = guarded.write_all(b"more").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            drop(guarded);
        };
        // The peer writes until it has read everything.
        let read = async {
            let mut answer = Vec::new();
            peer.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"answer");
            // More than the sockets hold.
            for _ in 0..16 {
                peer.write_all(&vec![0; 1 << 20]).await.unwrap();
            }
            drop(peer);
        };
        tokio::join!(end, read);
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_on_either_kind_of_socket() {
        let (ours, peer) = UnixStream::pair().unwrap();
        passes(Connection::Unix(ours, Filter::default()), peer).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connect = TcpStream::connect(listener.local_addr().unwrap());
        let (peer, accepted) = tokio::join!(connect, listener.accept());
        passes(Connection::Tcp(accepted.unwrap().0), peer.unwrap()).await;
    }

    #[tokio::test]
    async fn a_peer_that_does_not_close_the_connection_is_not_waited_for_long() {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let connection = Connection::Unix(ours, Filter::default());
        let mut guarded = guarded(connection, Caller::new(Peer::Unknown), &doors());
        {
            let mut shutdown = pin!(guarded.shutdown());
            assert!(poll!(&mut shutdown).is_pending());
            let done = timeout(100 * PATIENCE, shutdown).await;
            done.expect("it ends").unwrap();
        }
        drop(guarded);
        let error = peer.write_all(b"late").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn an_idle_connection_ends_whatever_is_polled_and_is_counted_once() {
        let doors = doors();
        let (mut guarded, _, _peer) = silent_until(Instant::now(), &doors);
        let read = guarded.read(&mut [0]).await;
        let written = guarded.write(b"a").await;
        let written_vectored = guarded.write_vectored(&[IoSlice::new(b"a")]).await;
        let flushed = guarded.flush().await.map(|()| 0);
        for ended in [read, written, written_vectored, flushed] {
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(doors.status().silent_connections, 1);
    }

    #[tokio::test]
    async fn a_request_keeps_its_connection_open_and_so_does_one_that_has_just_ended() {
        let doors = doors();
        let past = Instant::now() - Duration::from_secs(1);
        let (mut busy, caller, mut peer) = silent_until(past, &doors);
        let _open = caller.open(&doors).unwrap();
        peer.write_all(b"a").await.unwrap();
        assert_eq!(busy.read_u8().await.unwrap(), b'a');

        let (mut just_idle, caller, mut peer) = silent_until(past, &doors);
        drop(caller.open(&doors).unwrap());
        peer.write_all(b"b").await.unwrap();
        assert_eq!(just_idle.read_u8().await.unwrap(), b'b');
        assert_eq!(doors.status().silent_connections, 0);
    }
}
