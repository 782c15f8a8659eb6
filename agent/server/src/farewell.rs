//! Turns a connection away when no place is left: tells its peer why, and reads nothing from it.
//!
//! HTTP/2's GOAWAY (RFC 9113, 6.8) can be sent without a request. Clients on h2 show its text; all others report
//! `UNAVAILABLE` at once. It is sent without the SETTINGS that a server normally sends first: a client on gRPC's C core
//! takes a connection with SETTINGS for a good one, and then reconnects eight times a second until its deadline. A
//! client that begins with TLS gets an alert instead (RFC 8446, 6.2), since a handshake would cost more than the place
//! that is missing. The socket is closed only later: a client that is about to write would otherwise see a broken
//! connection before it reads.

use std::{
    collections::VecDeque,
    io::{self, Write},
    net::{Shutdown, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::connection::Connection;

/// A record of type alert, as of TLS 1.2 (RFC 8446, 5.1), with two bytes: fatal, `internal_error`.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// The most closing sockets per listener. One more closes the oldest.
pub(super) const MOST: usize = 8;

/// By then the peer has read the message, or never will.
const PATIENCE: Duration = Duration::from_secs(2);

const WORDS: &str = "the listener has as many connections as --max-connections allows";

// A frame type and an error code of RFC 9113, 6.8 and 7.
const GOAWAY: u8 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Sockets that wait to be closed.
#[derive(Default)]
pub(super) struct Farewells(VecDeque<(Instant, OwnedFd)>);

impl Farewells {
    /// Tells the peer, and closes the connection a while later. Does nothing if the peer has gone.
    pub(super) fn say(&mut self, connection: Connection, has_tls: bool) {
        let words = if has_tls { ALERT.to_vec() } else { goaway() };
        let Ok(socket) = say(connection, &words) else {
            return;
        };
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((Instant::now() + PATIENCE, socket));
    }

    /// Closes the oldest socket when its time is over. Waits forever if there is none.
    pub(super) async fn close_next(&mut self) {
        let Some(&(at, _)) = self.0.front() else {
            return std::future::pending().await;
        };
        sleep_until(at).await;
        self.0.pop_front();
    }
}

fn say(connection: Connection, words: &[u8]) -> io::Result<OwnedFd> {
    match connection {
        Connection::Unix(stream, _) => say_on(stream.into_std()?, words, UnixStream::shutdown),
        Connection::Tcp(stream) => say_on(stream.into_std()?, words, TcpStream::shutdown),
        Connection::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Sends the message, which easily fits into a socket's buffer.
fn say_on<S: Write + Into<OwnedFd>>(
    mut stream: S,
    words: &[u8],
    shutdown: fn(&S, Shutdown) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    stream.write_all(words)?;
    shutdown(&stream, Shutdown::Write)?;
    Ok(stream.into())
}

/// The GOAWAY frame: length (24 bits), type, flags and stream 0 (the connection), then the last processed stream
/// (none), the error code and the text.
fn goaway() -> Vec<u8> {
    let [_, length @ ..] = (8 + WORDS.len() as u32).to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([GOAWAY, 0]);
    frame.extend(0_u32.to_be_bytes());
    frame.extend(0_u32.to_be_bytes());
    frame.extend(ENHANCE_YOUR_CALM.to_be_bytes());
    frame.extend(WORDS.as_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::authority::Filter;

    #[test]
    fn the_frame_has_its_length_and_what_it_is() {
        let frame = goaway();
        assert_eq!(frame[..3], [0, 0, frame.len() as u8 - 9]);
        assert_eq!(
            frame[3..17],
            [GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11]
        );
        assert_eq!(&frame[17..], WORDS.as_bytes());
    }

    #[tokio::test]
    async fn the_peer_reads_the_words_and_may_write_until_it_is_forgotten() {
        let mut farewells = Farewells::default();
        assert!(farewells.close_next().now_or_never().is_none());
        let mut peers = Vec::new();
        for _ in 0..=MOST {
            let (ours, mut peer) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let ours = tokio::net::UnixStream::from_std(ours).unwrap();
            let has_tls = peers.len() % 2 == 1;
            farewells.say(Connection::Unix(ours, Filter::default()), has_tls);
            let mut heard = Vec::new();
            peer.read_to_end(&mut heard).unwrap();
            let expected = if has_tls { ALERT.to_vec() } else { goaway() };
            assert_eq!(heard, expected);
            peers.push(peer);
        }
        let mut is_open = peers.iter_mut().map(|peer| peer.write_all(b"a").is_ok());
        assert_eq!(is_open.next(), Some(false));
        assert!(is_open.all(|is_open| is_open));
        assert_eq!(farewells.0.len(), MOST);
        let [(at, _), ..] = farewells.0.make_contiguous() else {
            panic!("some wait");
        };
        assert!(*at > Instant::now() - PATIENCE);
    }
}
