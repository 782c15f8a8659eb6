//! Tests against misbehaving servers.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::settings::HostPort;

const CALL: Call = Call {
    method: "/v1/logs",
    is_gzip: true,
};

/// How a server handles a request: it sends these bytes, and may then close the connection.
#[derive(Clone)]
enum Deed {
    Answer(String),
    AnswerAndClose(String),
    Reset,
    Hang,
}

/// The requests that a server received, as text, each with the number of its connection.
type Requests = Arc<Mutex<Vec<(usize, String)>>>;

/// Performs the deeds in order, over any number of connections.
async fn server(deeds: Vec<Deed>) -> (Http, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = HostPort {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
    };
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    tokio::spawn(async move {
        let mut deeds = deeds.into_iter();
        for connection in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            while let Some(request) = request(&mut stream).await {
                seen.lock().unwrap().push((connection, request));
                let Some(deed) = deeds.next() else { return };
                match deed {
                    Deed::Answer(text) => stream.write_all(text.as_bytes()).await.unwrap(),
                    Deed::AnswerAndClose(text) => {
                        stream.write_all(text.as_bytes()).await.unwrap();
                        break;
                    }
                    Deed::Reset => {
                        socket2::SockRef::from(&stream)
                            .set_linger(Some(Duration::ZERO))
                            .unwrap();
                        break;
                    }
                    Deed::Hang => std::future::pending().await,
                }
            }
        }
    });
    (Http::new(Endpoint::plain(to), "/base".to_owned()), requests)
}

/// A complete request whose body has the length of [`BODY`].
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\nbody") {
        let byte = stream.read_u8().await.ok()?;
        text.push(byte.into());
    }
    Some(text)
}

const BODY: Bytes = Bytes::from_static(b"body");

fn answer(status: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {len}\r\n{headers}\r\n{body}")
}

fn accepted() -> String {
    answer("200 OK", "content-type: application/x-protobuf\r\n", "")
}

async fn failure(deed: Deed) -> Failure {
    let (mut http, _) = server(vec![deed]).await;
    http.send(&BODY, CALL).await.unwrap_err()
}

#[tokio::test]
async fn requests_follow_each_other_on_one_connection_until_it_is_closed() {
    let ok = accepted();
    let deeds = vec![
        Deed::Answer(ok.clone()),
        Deed::AnswerAndClose(ok.clone()),
        Deed::Answer(ok),
    ];
    let (mut http, requests) = server(deeds).await;
    http.send(&BODY, CALL).await.unwrap();
    http.send(&BODY, CALL).await.unwrap();
    // The end shows only once the connection's task has seen it.
    while http
        .requests
        .connection
        .as_ref()
        .is_some_and(|one| !one.requests.is_closed())
    {
        tokio::task::yield_now().await;
    }
    http.send(&BODY, CALL).await.unwrap();
    let requests = requests.lock().unwrap();
    let connections: Vec<_> = requests.iter().map(|(connection, _)| *connection).collect();
    assert_eq!(connections, [1, 1, 2]);
    let (_, first) = &requests[0];
    assert!(
        first.starts_with("POST /base/v1/logs HTTP/1.1\r\n"),
        "{first}"
    );
    let host = format!("host: {}\r\n", http.requests.address());
    for header in [
        &*host,
        "content-type: application/x-protobuf\r\n",
        "content-encoding: gzip\r\n",
        "content-length: 4\r\n",
    ] {
        assert!(first.contains(header), "{header}: {first}");
    }
}

#[tokio::test]
async fn what_is_not_packed_is_not_called_packed() {
    let (mut http, requests) = server(vec![Deed::Answer(accepted())]).await;
    let call = Call {
        is_gzip: false,
        ..CALL
    };
    http.send(&BODY, call).await.unwrap();
    assert!(!requests.lock().unwrap()[0].1.contains("encoding"));
}

#[tokio::test]
async fn failures_that_pass_say_how_long_to_wait() {
    let far = httpdate::fmt_http_date(SystemTime::now() + Duration::from_hours(9));
    let past = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH);
    for (status, header, expected) in [
        ("429 Too Many Requests", "7", Some(Duration::from_secs(7))),
        ("502 Bad Gateway", "soon", None),
        ("503 Service Unavailable", &far, Some(LONGEST_PAUSE)),
        ("503 Service Unavailable", &past, Some(Duration::ZERO)),
        ("504 Gateway Timeout", "99999999999", Some(LONGEST_PAUSE)),
    ] {
        let headers = format!("retry-after: {header}\r\ncontent-type: text/plain\r\n");
        let failure = failure(Deed::Answer(answer(status, &headers, "full\nup"))).await;
        let Failure::Again { why, after } = failure else {
            panic!("{status}: {failure}")
        };
        assert_eq!(after, expected, "{status}");
        assert_eq!(why.to_string(), format!("HTTP {status}: full up"));
    }
}

#[tokio::test]
async fn a_success_has_any_code_of_success_and_its_type_may_have_parameters() {
    for (status, kind, body) in [
        ("200 OK", "application/x-protobuf", "taken"),
        ("200 OK", "application/x-protobuf; charset=utf-8", "taken"),
        ("200 OK", "Application/X-Protobuf;a=b", "taken"),
        ("202 Accepted", "application/x-protobuf ", "taken"),
        ("200 OK", "text/html", ""),
        ("204 No Content", "text/plain", ""),
    ] {
        let answer = answer(status, &format!("content-type: {kind}\r\n"), body);
        let (mut http, _) = server(vec![Deed::Answer(answer)]).await;
        let taken = http.send(&BODY, CALL).await;
        assert_eq!(taken.unwrap(), body, "{status}, {kind}");
    }
}

#[tokio::test]
async fn other_failures_do_not_pass() {
    for (status, unknown) in [
        ("400 Bad Request", false),
        ("401 Unauthorized", false),
        ("404 Not Found", true),
        ("413 Payload Too Large", false),
        ("500 Internal Server Error", false),
        ("301 Moved Permanently", false),
    ] {
        let failure = failure(Deed::Answer(answer(status, "", "<html>"))).await;
        let Failure::Refused {
            why, is_unknown, ..
        } = failure
        else {
            panic!("{status}: {failure}")
        };
        assert_eq!((why, is_unknown), (format!("HTTP {status}"), unknown));
    }
    // `google.rpc.Status` with a message.
    for kind in ["application/x-protobuf", "application/x-protobuf;a=b"] {
        let headers = format!("content-type: {kind}\r\n");
        let answer = answer("400 Bad Request", &headers, "\x12\x03odd");
        let refused = failure(Deed::Answer(answer)).await;
        assert_eq!(refused.to_string(), "HTTP 400 Bad Request: odd");
    }
}

#[tokio::test]
async fn what_is_no_answer_is_a_failure() {
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(1 << 20));
    for (deed, error) in [
        (
            Deed::Answer("SSH-2.0-OpenSSH_9.9\r\n".to_owned()),
            "the request broke off",
        ),
        (
            Deed::AnswerAndClose("HTTP/1.1 2".to_owned()),
            "the request broke off",
        ),
        (Deed::Reset, "the request broke off"),
        (
            Deed::AnswerAndClose(endless),
            "the answer is longer than 65536 bytes",
        ),
        (
            Deed::AnswerAndClose("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab".to_owned()),
            "the answer broke off",
        ),
        (
            Deed::Answer(answer("200 OK", "content-type: text/html\r\n", "<html>")),
            "what answers is no receiver of OTLP",
        ),
    ] {
        let failure = failure(deed).await;
        let Failure::Again { after: None, .. } = failure else {
            panic!("{error}: {failure}")
        };
        assert!(failure.to_string().starts_with(error), "{failure}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_and_gets_another_connection() {
    let (mut http, requests) = server(vec![Deed::Hang]).await;
    http.requests.patience = Duration::from_millis(50);
    let failure = http.send(&BODY, CALL).await.unwrap_err();
    assert_eq!(failure.to_string(), "no answer within 50ms");
    assert!(http.requests.connection.is_none());
    drop(requests);
}
