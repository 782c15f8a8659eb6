use std::future::Future;

use bytes::BufMut as _;
use futures_util::poll;
use h2::server::{Builder, Connection as Served, SendResponse};
use tokio::net::{TcpListener, TcpStream};
use tonic::codegen::http::{HeaderValue, Response};

use super::*;
use crate::settings::HostPort;

type Server = Served<TcpStream, Bytes>;

/// A call to a server that handles it like this.
async fn call<F>(
    window_bytes: u32,
    serve: impl FnOnce(Server, RecvStream, SendResponse<Bytes>) -> F + Send + 'static,
) -> StreamingCall
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = HostPort {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
    };
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut settings = Builder::new();
        settings.initial_window_size(window_bytes);
        let mut server: Server = settings.handshake(stream).await.unwrap();
        let (request, respond) = server.accept().await.unwrap().unwrap();
        assert_eq!(request.uri().path(), "/test.Receiver/Stream");
        serve(server, request.into_body(), respond).await;
    });
    let endpoint = Endpoint::plain(to);
    let call = StreamingCall::begin(&endpoint, "/test.Receiver/Stream", None).await;
    call.unwrap()
}

/// Answers with these pieces, then with this status in the trailers.
async fn answering(pieces: &'static [&'static [u8]], status: &'static str) -> StreamingCall {
    call(65_535, move |mut server, _, mut respond| async move {
        let mut answers = respond.send_response(Response::new(()), false).unwrap();
        for piece in pieces {
            answers.send_data(Bytes::from_static(piece), false).unwrap();
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(status));
        answers.send_trailers(trailers).unwrap();
        while server.accept().await.is_some() {}
    })
    .await
}

async fn failure(call: &mut StreamingCall) -> String {
    call.answers.next().await.unwrap_err().to_string()
}

#[tokio::test]
async fn answers_are_whole_however_they_come() {
    let pieces: &[&[u8]] = &[
        &[0, 0],
        &[0, 0, 2, b'a', b'b', 0, 0, 0, 0],
        &[0],
        &[0, 0, 0, 0, 1, b'c', 0],
    ];
    let mut call = answering(pieces, "14").await;
    for expected in ["ab", "", "c"] {
        assert_eq!(call.answers.next().await.unwrap(), expected);
    }
    // The last message is cut off.
    assert_eq!(failure(&mut call).await, "UNAVAILABLE");
}

#[tokio::test]
async fn what_is_no_answer_ends_the_call() {
    for (piece, status, told) in [
        (&b""[..], "0", "the server ended the call"),
        (&b""[..], "7", "PERMISSION_DENIED"),
        (&[1, 0, 0, 0, 0], "0", "the server compresses its answers"),
        (b"<html>", "0", "an answer is not a gRPC message"),
        (
            &[0, 0, 1, 0, 1],
            "0",
            "an answer is longer than 65536 bytes",
        ),
    ] {
        let pieces: &'static [&'static [u8]] = Box::leak(Box::new([piece]));
        let mut call = answering(pieces, status).await;
        let failure = failure(&mut call).await;
        assert!(failure.starts_with(told), "{failure}");
    }
}

/// Messages that the server does not take stay in the outbox.
#[tokio::test]
async fn a_message_is_handed_over_as_fast_as_the_server_takes_it() {
    const LEN_BYTES: usize = 300_000;
    const WINDOW_BYTES: usize = 65_535;
    let (release, mut released) = tokio::sync::mpsc::unbounded_channel();
    let (told, mut read) = tokio::sync::mpsc::unbounded_channel();
    let mut call = call(
        WINDOW_BYTES as u32,
        move |mut server, mut body, _respond| async move {
            tokio::spawn(async move {
                while let Some(data) = body.data().await {
                    let data = data.unwrap();
                    let len_bytes = data.len();
                    told.send(data).unwrap();
                    released.recv().await.unwrap();
                    let mut window = body.flow_control().clone();
                    window.release_capacity(len_bytes).unwrap();
                }
            });
            while server.accept().await.is_some() {}
        },
    )
    .await;
    let message = Bytes::from((0..LEN_BYTES).map(|byte| byte as u8).collect::<Vec<_>>());
    let mut expected = BytesMut::from(&b"\0\0\0\0\x03one"[..]);
    call.outbox
        .put(6, [Bytes::from_static(b"one"), Bytes::new()]);
    call.outbox
        .put(7, [Bytes::from_static(b"ab"), message.clone()]);
    assert_eq!(call.outbox.sent(), 0);
    expected.put_u8(0);
    expected.put_u32(2 + LEN_BYTES as u32);
    expected.extend_from_slice(b"ab");
    expected.extend_from_slice(&message);
    let mut got = BytesMut::new();
    while got.len() < expected.len() {
        tokio::select! {
            flushed = call.outbox.flush(), if !call.outbox.is_empty() => flushed.unwrap(),
            data = read.recv() => {
                got.extend_from_slice(&data.unwrap());
                // At most one window is in flight.
                let left: usize = call.outbox.parts.iter().map(Bytes::len).sum();
                assert!(expected.len() - left - got.len() <= WINDOW_BYTES);
                let whole = if left == 0 { 7 } else { 6 };
                assert_eq!(call.outbox.sent(), whole);
                release.send(()).unwrap();
            }
        }
    }
    assert!(call.outbox.is_empty());
    assert!(poll!(std::pin::pin!(call.outbox.flush())).is_ready());
    assert_eq!(got, expected);
    call.outbox.end().unwrap();
    // An empty frame that ends the stream.
    assert_eq!(read.recv().await.unwrap(), "");
}
