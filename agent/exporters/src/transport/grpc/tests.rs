use std::{future::Future, io::Write as _, sync::Arc};

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD},
};
use flate2::{Compression, write::GzEncoder};
use h2::server::{Connection as Server, SendResponse};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use tonic::codegen::http::{HeaderMap, HeaderValue, StatusCode};

use super::*;
use crate::settings::HostPort;

const CALL: Call = Call {
    method: "/test.Receiver/Send",
    is_gzip: false,
};

/// A message, or an answer, as gRPC frames it.
fn framed(message: &[u8]) -> Bytes {
    let message = Bytes::copy_from_slice(message);
    [header_of(message.len(), false), message].concat().into()
}

fn status(fields: &[(&'static str, &str)]) -> HeaderMap {
    let fields = fields.iter().map(|(name, value)| {
        let name = name.parse().unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    });
    fields.collect()
}

/// What a server does with a call.
#[derive(Clone)]
enum Script {
    /// Answers with these data and trailers.
    Answer(Bytes, HeaderMap),
    /// Answers with trailers only, with this HTTP status.
    Headers(u16, HeaderMap),
    Reset(Reason),
    /// Closes the connection with GOAWAY and says that it did not process the call.
    GoAway,
    /// Answers, then closes the connection with GOAWAY.
    LastAnswer,
    Hang,
}

fn ok() -> Script {
    Script::Answer(framed(b"taken"), status(&[("grpc-status", "0")]))
}

/// Answers calls by the scripts in order, then normally. Keeps the messages that it accepted.
struct Receiver {
    to: HostPort,
    taken: Arc<Mutex<Vec<Bytes>>>,
    connections: Arc<Mutex<usize>>,
}

impl Receiver {
    async fn start(scripts: Vec<Script>) -> Self {
        let scripts = Arc::new(Mutex::new(scripts.into_iter()));
        let taken = Arc::new(Mutex::new(Vec::new()));
        let (noting, connections) = (Arc::clone(&taken), Arc::new(Mutex::new(0)));
        let counting = Arc::clone(&connections);
        let to = listen(move |stream| {
            let (scripts, taken) = (Arc::clone(&scripts), Arc::clone(&noting));
            let counting = Arc::clone(&counting);
            async move {
                *counting.lock().await += 1;
                let mut server = h2::server::handshake(stream).await.unwrap();
                let mut hanging = Vec::new();
                while let Some(Ok((request, answer))) = server.accept().await {
                    let script = scripts.lock().await.next().unwrap_or_else(ok);
                    let (head, body) = request.into_parts();
                    assert_eq!(head.uri.path(), CALL.method);
                    assert_eq!(head.headers["content-type"], "application/grpc");
                    assert_eq!(head.headers["te"], "trailers");
                    // Read the message in a task, since the connection must be polled meanwhile.
                    let reading = tokio::spawn(message(body));
                    if matches!(script, Script::Hang) {
                        hanging.push((answer, reading));
                        continue;
                    }
                    let message = tokio::select! {
                        message = reading => message.unwrap(),
                        _ = server.accept() => return,
                    };
                    let encoding = head.headers.get("grpc-encoding");
                    let is_packed = encoding.is_some_and(|name| name == "gzip");
                    assert_eq!(message[0], u8::from(is_packed));
                    play(&mut server, answer, &script);
                    if matches!(script, Script::Answer(..) | Script::LastAnswer) {
                        taken.lock().await.push(message);
                    }
                }
            }
        })
        .await;
        Self {
            to,
            taken,
            connections,
        }
    }

    fn grpc(&self) -> Grpc {
        Grpc::new(Endpoint::plain(self.to.clone()))
    }
}

/// Runs this for each connection.
async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> HostPort
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream));
        }
    });
    HostPort {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

async fn message(mut body: RecvStream) -> Bytes {
    let mut whole = BytesMut::new();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
        whole.extend_from_slice(&data);
    }
    whole.freeze()
}

fn play(server: &mut Server<TcpStream, Bytes>, mut answer: SendResponse<Bytes>, script: &Script) {
    match script {
        Script::Answer(data, trailers) => respond(&mut answer, data.clone(), trailers.clone()),
        Script::Headers(http, headers) => {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::from_u16(*http).unwrap();
            *response.headers_mut() = headers.clone();
            answer.send_response(response, true).unwrap();
        }
        Script::Reset(reason) => answer.send_reset(*reason),
        Script::GoAway => {
            answer.send_reset(Reason::REFUSED_STREAM);
            server.graceful_shutdown();
        }
        Script::LastAnswer => {
            respond(
                &mut answer,
                framed(b"taken"),
                status(&[("grpc-status", "0")]),
            );
            server.graceful_shutdown();
        }
        Script::Hang => {}
    }
}

fn respond(answer: &mut SendResponse<Bytes>, data: Bytes, trailers: HeaderMap) {
    let mut body = answer.send_response(Response::new(()), false).unwrap();
    body.send_data(data, false).unwrap();
    body.send_trailers(trailers).unwrap();
}

fn again(outcome: Result<Bytes, Failure>) -> (String, Option<Duration>) {
    match outcome {
        Err(Failure::Again { why, after }) => (format!("{why:#}"), after),
        other => panic!("{other:?}"),
    }
}

fn refused(outcome: Result<Bytes, Failure>) -> String {
    match outcome {
        Err(Failure::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_message_that_is_packed_says_so() {
    let receiver = Receiver::start(vec![]).await;
    let message = Bytes::from_static(b"packed");
    let call = Call {
        is_gzip: true,
        ..CALL
    };
    receiver.grpc().send(&message, call).await.unwrap();
    let expected = [header_of(message.len(), true), message].concat();
    assert_eq!(*receiver.taken.lock().await, [Bytes::from(expected)]);
}

#[tokio::test]
async fn an_answer_that_is_packed_is_read_unless_it_is_longer_than_answers_are() {
    let packed = |message: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(message).unwrap();
        let packed = Bytes::from(gzip.finish().unwrap());
        let framed = [header_of(packed.len(), true), packed].concat();
        Script::Answer(framed.into(), status(&[("grpc-status", "0")]))
    };
    let broken = [header_of(3, true), "abc".into()].concat();
    let receiver = Receiver::start(vec![
        packed(b"taken"),
        packed(&vec![0; MOST_ANSWER_BYTES]),
        packed(&vec![0; MOST_ANSWER_BYTES + 1]),
        Script::Answer(broken.into(), status(&[("grpc-status", "0")])),
    ])
    .await;
    let mut grpc = receiver.grpc();
    let message = Bytes::new();
    assert_eq!(grpc.send(&message, CALL).await.unwrap(), "taken");
    let longest = grpc.send(&message, CALL).await.unwrap();
    assert_eq!(longest.len(), MOST_ANSWER_BYTES);
    let (why, _) = again(grpc.send(&message, CALL).await);
    assert!(why.contains("longer than"), "{why}");
    let (why, _) = again(grpc.send(&message, CALL).await);
    assert!(why.contains("unpack the answer"), "{why}");
}

#[tokio::test]
async fn messages_of_any_length_arrive_on_one_connection_and_answers_come_back() {
    let receiver = Receiver::start(vec![]).await;
    let mut grpc = receiver.grpc();
    // The last one is longer than all HTTP/2 windows.
    let lengths = [0, 1, 100, 70_000, 3_000_000];
    let messages = lengths.map(|len| Bytes::from(vec![len as u8 | 1; len]));
    for message in &messages {
        assert_eq!(grpc.send(message, CALL).await.unwrap(), "taken");
    }
    let expected: Vec<_> = messages.iter().map(|message| framed(message)).collect();
    assert!(*receiver.taken.lock().await == expected);
    assert_eq!(*receiver.connections.lock().await, 1);
}

#[tokio::test]
async fn a_status_says_whether_to_send_again() {
    let may_pass = [1, 4, 10, 11, 14, 15];
    for code in 1..=16 {
        let trailers = status(&[
            ("grpc-status", &code.to_string()),
            ("grpc-message", "not%20now%0Aor ever"),
        ]);
        let scripts = vec![
            Script::Answer(Bytes::new(), trailers.clone()),
            Script::Headers(200, trailers),
        ];
        let receiver = Receiver::start(scripts).await;
        let mut grpc = receiver.grpc();
        for _ in 0..2 {
            let outcome = grpc.send(&Bytes::from_static(b"flows"), CALL).await;
            let why = if may_pass.contains(&code) {
                let (why, after) = again(outcome);
                assert_eq!(after, None);
                why
            } else {
                refused(outcome)
            };
            assert!(why.ends_with(": not now or ever"), "{code}: {why}");
        }
        // A server that answered keeps its connection; after a passing failure the next call uses another one.
        grpc.send(&Bytes::new(), CALL).await.unwrap();
        let connections = if may_pass.contains(&code) { 3 } else { 1 };
        assert_eq!(*receiver.connections.lock().await, connections, "{code}");
    }
}

#[tokio::test]
async fn codes_are_called_as_in_the_specification() {
    let trailers = |code: &str| status(&[("grpc-status", code)]);
    let scripts = ["12", "8", "7", "99"].map(|code| Script::Headers(200, trailers(code)));
    let mut grpc = Receiver::start(scripts.into()).await.grpc();
    for name in [
        "UNIMPLEMENTED",
        "RESOURCE_EXHAUSTED",
        "PERMISSION_DENIED",
        "UNKNOWN",
    ] {
        assert_eq!(refused(grpc.send(&Bytes::new(), CALL).await), name);
    }
}

/// A hand-encoded `google.rpc.Status` with a `RetryInfo`.
fn details(delay: &[u8]) -> Vec<u8> {
    let url = b"type.googleapis.com/google.rpc.RetryInfo";
    let info = [&[0x0a, delay.len() as u8][..], delay].concat();
    let mut any = [&[0x0a, url.len() as u8][..], url].concat();
    any.extend([0x12, info.len() as u8]);
    any.extend(info);
    // A code and a message, which are ignored, and another detail.
    let mut status = vec![0x08, 14, 0x12, 2, b'n', b'o', 0x1a, 3, 0x0a, 1, b'x'];
    status.extend([0x1a, any.len() as u8]);
    status.extend(any);
    status
}

#[tokio::test]
async fn a_receiver_is_left_alone_as_long_as_it_asks() {
    let half_seconds = [0x08, 7, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01];
    let centuries = [0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
    let negative = [
        0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
    ];
    for (delay, expected) in [
        (&half_seconds[..], Duration::from_millis(7_500)),
        (&centuries, Duration::from_hours(1)),
        (&negative, Duration::ZERO),
        (&[], Duration::ZERO),
    ] {
        let details = details(delay);
        for text in [
            BASE64_STANDARD.encode(&details),
            BASE64_STANDARD_NO_PAD.encode(&details),
        ] {
            // Lack of room may pass, so `RESOURCE_EXHAUSTED` with a delay is not a refusal.
            for code in ["14", "8"] {
                let trailers = status(&[("grpc-status", code), ("grpc-status-details-bin", &text)]);
                let receiver = Receiver::start(vec![Script::Headers(200, trailers)]).await;
                let (_, after) = again(receiver.grpc().send(&Bytes::new(), CALL).await);
                assert_eq!(after, Some(expected));
            }
        }
    }
}

#[tokio::test]
async fn details_that_nobody_can_read_are_left_out() {
    for text in ["=", "%%%", "Cg", &"A".repeat(999)] {
        for code in ["14", "3"] {
            let trailers = status(&[("grpc-status", code), ("grpc-status-details-bin", text)]);
            let receiver = Receiver::start(vec![Script::Headers(200, trailers)]).await;
            let outcome = receiver.grpc().send(&Bytes::new(), CALL).await;
            match code {
                "14" => assert_eq!(again(outcome).1, None),
                _ => assert_eq!(refused(outcome), "INVALID_ARGUMENT"),
            }
        }
    }
}

#[tokio::test]
async fn a_server_of_http_that_knows_no_grpc_is_told_by_its_status() {
    let scripts = [404, 401, 403, 400, 500].map(|http| Script::Headers(http, HeaderMap::new()));
    let mut grpc = Receiver::start(scripts.into()).await.grpc();
    for why in [
        "UNIMPLEMENTED: HTTP 404",
        "UNAUTHENTICATED: HTTP 401",
        "PERMISSION_DENIED: HTTP 403",
        "INTERNAL: HTTP 400",
        "UNKNOWN: HTTP 500",
    ] {
        assert_eq!(refused(grpc.send(&Bytes::new(), CALL).await), why);
    }
    let scripts = [429, 502, 503, 504].map(|http| Script::Headers(http, HeaderMap::new()));
    let mut grpc = Receiver::start(scripts.into()).await.grpc();
    for http in [429, 502, 503, 504] {
        let (why, _) = again(grpc.send(&Bytes::new(), CALL).await);
        assert_eq!(why, format!("UNAVAILABLE: HTTP {http}"));
    }
}

#[tokio::test]
async fn an_answer_that_is_no_answer_refuses_nothing() {
    let fine = status(&[("grpc-status", "0")]);
    let garbage = Bytes::from_static(b"garbage that is no message");
    for (script, expected) in [
        (
            Script::Answer(garbage, fine.clone()),
            "not one gRPC message",
        ),
        (
            Script::Answer(Bytes::new(), fine.clone()),
            "not one gRPC message",
        ),
        (
            Script::Answer(
                [framed(b"one"), framed(b"two")].concat().into(),
                fine.clone(),
            ),
            "not one gRPC message",
        ),
        (
            Script::Answer(framed(&vec![0; MOST_ANSWER_BYTES]), fine),
            "longer than 65536",
        ),
        (
            Script::Answer(framed(b"taken"), HeaderMap::new()),
            "without a gRPC status",
        ),
        (
            Script::Headers(200, HeaderMap::new()),
            "without a gRPC status",
        ),
        (Script::Reset(Reason::INTERNAL_ERROR), "the call broke off"),
        (Script::Reset(Reason::NO_ERROR), "the call broke off"),
    ] {
        let receiver = Receiver::start(vec![script]).await;
        let mut grpc = receiver.grpc();
        let (why, after) = again(grpc.send(&Bytes::new(), CALL).await);
        assert!(why.contains(expected), "{why}");
        assert_eq!(after, None);
        // Another connection works.
        grpc.send(&Bytes::new(), CALL).await.unwrap();
        assert_eq!(*receiver.connections.lock().await, 2);
    }
}

#[tokio::test]
async fn a_connection_that_the_receiver_closes_meanwhile_is_no_failure() {
    for closing in [Script::GoAway, Script::LastAnswer] {
        let receiver = Receiver::start(vec![ok(), closing]).await;
        let mut grpc = receiver.grpc();
        for message in ["one", "two", "three"] {
            grpc.send(&Bytes::from(message), CALL).await.unwrap();
        }
        let expected = ["one", "two", "three"].map(|message| framed(message.as_bytes()));
        assert_eq!(*receiver.taken.lock().await, expected);
    }
}

#[tokio::test]
async fn a_receiver_that_closes_each_connection_is_asked_again_later() {
    let receiver = Receiver::start(vec![Script::GoAway; 3]).await;
    let mut grpc = receiver.grpc();
    let (why, _) = again(grpc.send(&Bytes::new(), CALL).await);
    assert!(why.contains("closed the connection"), "{why}");
    assert_eq!(*receiver.connections.lock().await, 1);
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_is_given_up_and_so_is_its_connection() {
    let receiver = Receiver::start(vec![Script::Hang, Script::Hang]).await;
    let mut grpc = receiver.grpc();
    grpc.patience = Duration::from_millis(100);
    let (why, _) = again(grpc.send(&Bytes::from_static(b"flows"), CALL).await);
    assert_eq!(why, "no answer within 100ms");
    // The caller may drop the call's future before that.
    grpc.patience = PATIENCE;
    let message = Bytes::from_static(b"flows");
    let dropped = timeout(Duration::from_millis(100), grpc.send(&message, CALL));
    assert!(dropped.await.is_err());
    grpc.send(&message, CALL).await.unwrap();
    assert_eq!(*receiver.connections.lock().await, 3);
}

#[tokio::test]
async fn a_connection_that_is_given_up_leaves_nothing_behind_even_if_nobody_reads_it() {
    const LONGER_THAN_ALL_BUFFERS: usize = 64 << 20;
    // Sends the HTTP/2 preface and opens the windows wide, then reads nothing.
    let to = listen(|mut stream| async move {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff];
        let window = [0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0, 0, 0];
        stream.write_all(&settings).await.unwrap();
        stream.write_all(&window).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    // The listener's task.
    assert_eq!(tasks(), 1);
    let mut grpc = Grpc::new(Endpoint::plain(to));
    grpc.patience = Duration::from_millis(100);
    again(
        grpc.send(&Bytes::from(vec![0; LONGER_THAN_ALL_BUFFERS]), CALL)
            .await,
    );
    // The kernel would give up after 30 seconds.
    let gone = timeout(Duration::from_secs(20), async {
        // The second task is the receiver's.
        while tasks() > 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    gone.await.unwrap();
}

#[tokio::test]
async fn what_is_no_http2_is_told() {
    let to = listen(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let (why, _) = again(
        Grpc::new(Endpoint::plain(to.clone()))
            .send(&Bytes::new(), CALL)
            .await,
    );
    assert!(why.contains("frame"), "{why}");
    let nobody = HostPort { port: 1, ..to };
    let (why, _) = again(
        Grpc::new(Endpoint::plain(nobody))
            .send(&Bytes::new(), CALL)
            .await,
    );
    assert!(why.starts_with("connect: "), "{why}");
}
