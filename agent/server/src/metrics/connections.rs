//! HTTP/1.1 connections of untrusted clients: a few at a time, with one request and a few seconds each. A connection
//! that has sent no request yet gives way to the next one.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tls::source::Source;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::AbortHandle,
    time::{sleep, timeout},
};

use crate::silent::{Seat, Silent};

const MAX_CONNECTIONS: usize = 16;
/// Limit for a connection, from its first byte to its last.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Pause after a failed accept, for example when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Accepts until it is dropped.
pub(super) async fn accept<A>(listener: &TcpListener, patience: Duration, answer: A) -> Infallible
where
    A: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync + 'static,
{
    let answer = Arc::new(answer);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let silent = Arc::<Silent<AbortHandle>>::default();
    loop {
        let (connection, source) = match listener.accept().await {
            Ok((connection, peer)) => (connection, Source::of_ip(peer.ip())),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection for metrics");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if places.available_permits() == 0
            && let Some(task) = silent.pop()
        {
            task.abort();
        }
        let place = Arc::clone(&places).acquire_owned().await;
        let (asking, answer) = (Arc::clone(&silent), Arc::clone(&answer));
        silent.enter(source, |seat| {
            let conversation = async move {
                converse(connection, patience, (&asking, seat), &*answer).await;
                drop(place);
            };
            tokio::spawn(conversation).abort_handle()
        });
    }
}

/// Answers one request, if it arrives and its answer is read in time.
async fn converse(
    connection: TcpStream,
    patience: Duration,
    (silent, seat): (&Silent<AbortHandle>, Seat),
    answer: &impl Fn(&Request<Incoming>) -> Response<Full<Bytes>>,
) {
    let answer = service_fn(async |request| {
        silent.leave(seat);
        Ok::<_, Infallible>(answer(&request))
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(connection), answer);
    // The client has left, is too slow, or does not speak HTTP.
    let _ = timeout(patience, conversation).await;
    silent.leave(seat);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Much longer than any step here takes, and much shorter than the server's timeout.
    const LONG: Duration = Duration::from_mins(1);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: agent\r\n\r\n";

    async fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let answer = |_: &Request<Incoming>| Response::new(Full::from("well"));
            accept(&listener, Duration::from_hours(1), answer).await
        });
        address
    }

    /// Everything received until the server ends the connection.
    async fn answer(connection: &mut TcpStream) -> String {
        let mut text = String::new();
        let reading = connection.read_to_string(&mut text);
        timeout(LONG, reading).await.unwrap().unwrap();
        text
    }

    async fn ask(connection: &mut TcpStream) {
        connection.write_all(REQUEST).await.unwrap();
        let text = answer(connection).await;
        assert!(text.ends_with("well"), "{text}");
    }

    #[tokio::test]
    async fn a_request_takes_the_place_of_the_oldest_connection_that_is_silent() {
        let address = server().await;
        let mut silent = Vec::new();
        for number in 0..MAX_CONNECTIONS {
            let mut connection = TcpStream::connect(address).await.unwrap();
            // An incomplete request counts as no request.
            let half = [&b""[..], &REQUEST[..20]][number % 2];
            connection.write_all(half).await.unwrap();
            silent.push(connection);
        }
        let mut connection = TcpStream::connect(address).await.unwrap();
        ask(&mut connection).await;
        let rest = silent.split_off(1);
        assert_eq!(answer(&mut silent[0]).await, "");
        // No other connection had to go.
        for (connection, number) in rest.into_iter().zip(1..) {
            let mut connection = connection;
            let rest = &REQUEST[[0, 20][number % 2]..];
            connection.write_all(rest).await.unwrap();
            let text = answer(&mut connection).await;
            assert!(text.ends_with("well"), "{number}: {text}");
        }
    }

    #[tokio::test]
    async fn however_many_are_silent_each_request_is_answered() {
        let address = server().await;
        let mut silent = Vec::new();
        for _ in 0..5 {
            for _ in 0..2 * MAX_CONNECTIONS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            ask(&mut TcpStream::connect(address).await.unwrap()).await;
        }
        // All but the ones that have a place.
        let gone = silent.len() + 1 - MAX_CONNECTIONS;
        for connection in &mut silent[..gone] {
            assert_eq!(answer(connection).await, "");
        }
    }
}
