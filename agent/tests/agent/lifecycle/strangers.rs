//! Strangers at either end of a connection: foreign clients, and servers that are not an agent.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    thread,
    time::Duration,
};

use bytes::Bytes;
use h2::SendStream;
use http::{HeaderMap, HeaderValue, Response};
use lab::{Host, Lab, privilege::is_root_or_skip};
use prost::Message;
use proto::{AgentStatus, FlowBatch, GetStatusRequest, flow_collector_server};
use tempfile::TempDir;
use tonic::{Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use crate::support::{Agent, flow_agent};

/// An `ObserveRequest` of a later version.
#[derive(Clone, PartialEq, Message)]
struct LaterRequest {
    #[prost(string, tag = "2")]
    consumer: String,
    #[prost(string, tag = "99")]
    later: String,
}

async fn call<Q, A>(address: &str, path: &'static str, question: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let endpoint = tonic::transport::Endpoint::from_shared(address.to_owned()).unwrap();
    let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.server_streaming(Request::new(question), path, codec);
    let answer = answer.await?.into_inner().message().await?;
    answer.ok_or_else(|| Status::aborted("the stream ended"))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn a_client_of_another_protocol_or_version_is_answered_and_disturbs_nobody() {
    if !is_root_or_skip(
        "agent::a_client_of_another_protocol_or_version_is_answered_and_disturbs_nobody",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let address = agent.address();
    let path = address.strip_prefix("unix:").unwrap();

    let get = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    // What a web page could send, with the method and the body of a call.
    let post = b"POST /flow.v1.FlowAgent/GetStatus HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                 Content-Type: application/grpc\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0";
    for request in [&get[..], &post[..]] {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 415 "), "{answer}");
        assert!(answer.contains("flow-agent watch --connect"), "{answer}");
    }
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(&[0xff; 100]).unwrap();
    // Whatever the answer, the connection ends.
    let _ = stream.read_to_end(&mut Vec::new());

    runtime().block_on(async {
        for path in ["/flow.v1.FlowAgent/Later", "/other.v1.Service/Call"] {
            let answer: Result<AgentStatus, _> = call(&address, path, GetStatusRequest {}).await;
            assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{path}");
        }
        let later = LaterRequest {
            consumer: "from the time to come".into(),
            later: "what is this".into(),
        };
        let batch: FlowBatch = call(&address, "/flow.v1.FlowAgent/Observe", later)
            .await
            .unwrap();
        assert_eq!(batch.stream_seq, 1);
        let filtering = proto::ObserveRequest {
            filter: "no rule".into(),
            ..Default::default()
        };
        let answer: Result<FlowBatch, _> =
            call(&address, "/flow.v1.FlowAgent/Observe", filtering).await;
        assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
    });
    agent.stop();
}

/// A command's error about a server that is not an agent. The command must end by itself.
fn says(host: &Host, command: &str, address: &str) -> String {
    let mut ask = flow_agent(host);
    let output = ask.args([command, "--connect", address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    // Says so if the answer takes long.
    let lines = stderr.lines();
    let lines = lines.filter(|line| !line.starts_with("flow-agent: waiting for the agent"));
    assert_eq!(lines.count(), 1, "{stderr}");
    assert!(stderr.contains(address), "{stderr}");
    stderr
}

struct Collector;

#[tonic::async_trait]
impl flow_collector_server::FlowCollector for Collector {
    type ExportStream = std::pin::Pin<
        Box<dyn futures_util::Stream<Item = Result<proto::ExportAck, Status>> + Send>,
    >;

    async fn export(
        &self,
        _: Request<tonic::Streaming<FlowBatch>>,
    ) -> Result<tonic::Response<Self::ExportStream>, Status> {
        Err(Status::unavailable("not here"))
    }
}

#[test]
fn a_server_that_is_no_agent_is_told_from_one_in_a_line() {
    if !is_root_or_skip("agent::a_server_that_is_no_agent_is_told_from_one_in_a_line") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = TempDir::new().unwrap();
    let address = |name: &str| format!("unix:{}", directory.path().join(name).display());
    let asked = ["status", "audit", "watch"];
    for command in asked {
        let said = says(&lab.agent, command, &address("nobody"));
        assert!(
            said.contains("no agent listens") && said.contains("give the address"),
            "{said}"
        );
    }
    let answers: [(&str, &[u8]); 3] = [
        ("garbage", &[0xff; 300]),
        (
            "http1",
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        ),
        ("closes", b""),
    ];
    for (name, answer) in answers {
        let listener = UnixListener::bind(directory.path().join(name)).unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                let _ = stream.read(&mut [0; 512]);
                let _ = stream.write_all(answer);
            }
        });
        for command in asked {
            let said = says(&lab.agent, command, &address(name));
            let parts = [
                "does not speak gRPC like a flow agent",
                "the connection to",
                "no flow agent at all",
            ];
            assert!(
                parts.iter().any(|part| said.contains(part)),
                "{name}: {said}"
            );
        }
    }

    let runtime = runtime();
    let _guard = runtime.enter();
    let listener = UnixListener::bind(directory.path().join("collector")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::UnixListener::from_std(listener).unwrap();
    let connections = futures_util::stream::unfold(listener, |listener| async {
        let connection = listener.accept().await.map(|(stream, _)| stream);
        Some((connection, listener))
    });
    let collector = flow_collector_server::FlowCollectorServer::new(Collector);
    let server = tonic::transport::Server::builder();
    runtime.spawn(server.serve_with_incoming(collector, Box::pin(connections)));
    for command in asked {
        let said = says(&lab.agent, command, &address("collector"));
        assert!(said.contains("no flow agent at all"), "{said}");
    }
}

/// Refuses each call with details of its status that nobody can read, in headers alone or in trailers.
async fn refuse(stream: tokio::net::UnixStream, has_body: bool) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((_, mut answer))) = connection.accept().await {
        let mut refusal = HeaderMap::new();
        let mut set = |name, value| refusal.insert(name, HeaderValue::from_static(value));
        set("grpc-status", "7");
        set("grpc-message", "not for you");
        set("grpc-status-details-bin", "%%% no base64");
        let mut response = Response::new(());
        // The client may have gone.
        let _ = if has_body {
            let body = answer.send_response(response, false);
            body.and_then(|mut body: SendStream<Bytes>| body.send_trailers(refusal))
        } else {
            *response.headers_mut() = refusal;
            answer.send_response(response, true).map(drop)
        };
    }
}

#[test]
fn a_status_with_details_that_nobody_can_read_is_told_like_any_other() {
    if !is_root_or_skip("agent::a_status_with_details_that_nobody_can_read_is_told_like_any_other")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = TempDir::new().unwrap();
    let runtime = runtime();
    let _guard = runtime.enter();
    for (name, has_body) in [("headers", false), ("trailers", true)] {
        let path = directory.path().join(name);
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(refuse(stream, has_body));
            }
        });
        let address = format!("unix:{}", path.display());
        for command in ["status", "audit", "watch", "flows"] {
            let said = says(&lab.agent, command, &address);
            assert!(said.ends_with(" refused: not for you\n"), "{said}");
        }
    }
}
