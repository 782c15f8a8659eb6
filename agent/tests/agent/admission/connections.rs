//! The limit on connections, and the fate of connections without a call.

use lab::{Lab, privilege::is_root_or_skip};
use proto::{GetStatusRequest, ObserveRequest};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tonic::Code;

use super::{
    client::{Client, GET_STATUS, NOBODY, OBSERVE, ROOT, connect_as, connect_by_tcp, open_to_all},
    patience,
};
use crate::support::{Agent, flow_agent};

/// Waits until the agent closes the connection.
async fn is_closed(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(patience(), stream.read_to_end(&mut rest));
    // An end or a reset.
    drop(read.await.expect("the agent closes it"));
}

async fn is_answered(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
) {
    let mut client = Client::new(stream, 65_535).await.unwrap();
    let answer = client.call(GET_STATUS, &GetStatusRequest {}).await.unwrap();
    assert_eq!(answer.code, Code::Ok, "{}", answer.message);
}

/// Asserts that calls are refused with the reason, the first one and those after it.
async fn is_turned_away(stream: UnixStream) {
    let mut client = Client::new(stream, 65_535).await.unwrap();
    for _ in 0..2 {
        let refused = client.call(GET_STATUS, &GetStatusRequest {}).await;
        let error = refused.unwrap_err();
        assert!(error.is_go_away(), "{error}");
        assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
        assert!(error.to_string().contains("--max-connections"), "{error}");
    }
}

/// A peer may send millions of them, before any request.
#[tokio::test]
async fn frames_that_nobody_asked_for_fill_no_log() {
    /// An HTTP/2 connection begins with this and with settings, here none.
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0answered";
    /// Answers a ping that the agent never sent.
    const ANSWER: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0no asker";
    if !is_root_or_skip("agent::frames_that_nobody_asked_for_fill_no_log") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--output", "none"]);
    let mut stream = connect_as(&agent.address(), ROOT).unwrap();
    let sent = [PREFACE, &ANSWER.repeat(1000)[..], PING].concat();
    stream.write_all(&sent).await.unwrap();
    let mut received = Vec::new();
    let is_answered = async {
        while !received.windows(8).any(|bytes| bytes == b"answered") {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
        }
    };
    tokio::time::timeout(patience(), is_answered).await.unwrap();
    drop(stream);
    let log = agent.stop_silent();
    assert!(!log.contains("h2::"), "{log}");
}

/// The command line's message if root's own places are taken as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_finds_no_place_says_why() {
    if !is_root_or_skip("agent::a_command_that_finds_no_place_says_why") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--max-connections", "1", "--output", "none"]);
    let address = agent.address();
    // One place for all and four for root. Each connection makes a call and so keeps its place.
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut observer = Client::new(connect_as(&address, ROOT).unwrap(), 65_535)
            .await
            .unwrap();
        let request = ObserveRequest::default();
        let batches = observer.begin(OBSERVE, &request).await.unwrap();
        held.push((observer, batches));
    }
    for command in ["status", "audit"] {
        let mut asked = flow_agent(&lab.agent);
        asked.args([command, "--connect", &address]);
        let output = asked.output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        for part in ["has no room", "--max-connections"] {
            assert!(said.contains(part), "{said}");
        }
    }
    drop(held);
    let log = agent.stop_silent();
    assert!(log.contains("as many as --max-connections allows"), "{log}");
}

/// Without a limit they would take all of the agent's file descriptors and keep them.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_keep_nobody_out_and_lose_their_places() {
    const PLACES: u64 = 8;
    if !is_root_or_skip("agent::silent_connections_keep_nobody_out_and_lose_their_places") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let places = PLACES.to_string();
    let agent = Agent::start(
        &lab,
        &[
            "--max-connections",
            &places,
            "--listen",
            "127.0.0.1:0",
            "--output",
            "none",
        ],
    );
    let address = agent.address();
    open_to_all(&address);
    let connect = |uid| connect_as(&address, uid).unwrap();

    // One of them makes a call.
    let mut observer = Client::new(connect(NOBODY), 65_535).await.unwrap();
    let request = ObserveRequest::default();
    let mut batches = observer.begin(OBSERVE, &request).await.unwrap();
    assert!(batches.refusal().is_none());
    let connect_silent = || {
        let silent = (1..PLACES).map(|_| connect(NOBODY));
        silent.collect::<Vec<UnixStream>>()
    };
    for silent in &mut connect_silent() {
        is_closed(silent).await;
    }
    let status = agent.status(&lab.agent);
    assert_eq!(status["server"]["silent_connections"], PLACES - 1);

    // The oldest gives way to a connection with a request, and all of them to observers.
    let mut silent = connect_silent();
    is_answered(connect(NOBODY)).await;
    is_closed(&mut silent[0]).await;
    let status = agent.status(&lab.agent);
    assert_eq!(status["server"]["silent_connections"], PLACES);
    assert_eq!(status["server"]["refused_connections"], 0);
    let mut observers = Vec::new();
    for _ in 1..PLACES {
        let mut observer = Client::new(connect(NOBODY), 65_535).await.unwrap();
        let batches = observer.begin(OBSERVE, &request).await.unwrap();
        assert!(batches.refusal().is_none());
        observers.push((observer, batches));
    }
    for silent in &mut silent {
        is_closed(silent).await;
    }
    is_turned_away(connect(NOBODY)).await;
    let mut too_many = connect(NOBODY);
    is_closed(&mut too_many).await;

    // Root has places of its own, and each listener has its own.
    is_answered(connect(ROOT)).await;
    is_answered(connect_by_tcp(&lab.agent, &agent.stderr())).await;
    let status = agent.status(&lab.agent);
    assert_eq!(status["server"]["refused_connections"], 2);
    assert_eq!(status["server"]["max_connections"], PLACES);

    drop(observers);
    // The one with a call goes on.
    for _ in 0..3 {
        let batch = tokio::time::timeout(patience(), batches.0.body_mut().data()).await;
        let batch = batch.unwrap().expect("the stream goes on").unwrap();
        let flow_control = batches.0.body_mut().flow_control();
        flow_control.release_capacity(batch.len()).unwrap();
    }
    drop((observer, batches));
    let log = agent.stop_silent();
    assert!(log.contains("as many as --max-connections allows"), "{log}");
    assert!(log.contains("no request came on it"), "{log}");
}
