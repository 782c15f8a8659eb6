//! Servers of gRPC that hang, refuse, reset and answer garbage.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use h2::{Reason, server::SendResponse};
use http::{HeaderMap, HeaderValue, Response};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{super::serve::serve_each, *};

/// Messages of pbflow and of OTLP.
const METHODS: [&str; 3] = [
    "/pbflow.Collector/Send",
    ".LogsService/Export",
    ".MetricsService/Export",
];
/// An empty message.
const EMPTY: [u8; 5] = [0; 5];

/// What a server does with each call while it misbehaves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Manner {
    /// This status of gRPC, with these details.
    Refuses(&'static str, Option<&'static str>),
    Resets,
    Hangs,
    AnswersGarbage,
    /// With much more than there is room for.
    AnswersTooMuch,
    /// Takes the message and ends the connection without an answer.
    Hangsup,
}

/// Misbehaves until the test changes that.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    behaves: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    /// The messages that it answered well.
    taken: Arc<Mutex<Vec<Bytes>>>,
}

impl Server {
    pub(super) fn start(lab: &Lab, manner: Manner) -> Self {
        let (behaves, calls, taken) = <(Arc<AtomicBool>, Arc<AtomicUsize>, Arc<_>)>::default();
        let shared = (Arc::clone(&behaves), Arc::clone(&calls), Arc::clone(&taken));
        let address = serve_each(lab, move |stream| {
            let (behaves, calls, taken) = shared.clone();
            serve(stream, manner, behaves, calls, taken)
        });
        Self {
            address,
            behaves,
            calls,
            taken,
        }
    }

    fn behave(&self) {
        self.behaves.store(true, Relaxed);
    }

    fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }
}

async fn serve(
    stream: TcpStream,
    manner: Manner,
    behaves: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    taken: Arc<Mutex<Vec<Bytes>>>,
) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let mut hanging = Vec::new();
    while let Some(Ok((request, mut answer))) = connection.accept().await {
        let path = request.uri().path();
        assert!(
            METHODS.iter().any(|method| path.ends_with(method)),
            "{path}"
        );
        calls.fetch_add(1, Relaxed);
        let manner = (!behaves.load(Relaxed)).then_some(manner);
        if matches!(manner, Some(Manner::Hangsup)) {
            return;
        }
        if matches!(manner, Some(Manner::Hangs)) {
            hanging.push((request, answer));
            continue;
        }
        let taken = Arc::clone(&taken);
        tokio::spawn(async move {
            let mut message = Vec::new();
            let mut body = request.into_body();
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).unwrap();
                message.extend_from_slice(&data);
            }
            if manner.is_none() {
                taken.lock().unwrap().push(message.into());
            }
            // The agent may have gone.
            let _ = play(&mut answer, manner);
        });
    }
}

fn play(answer: &mut SendResponse<Bytes>, manner: Option<Manner>) -> Result<(), h2::Error> {
    let status = |code: &'static str| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(code));
        trailers
    };
    let mut begin = || answer.send_response(Response::new(()), false);
    match manner {
        None => {
            let mut body = begin()?;
            body.send_data(Bytes::from_static(&EMPTY), false)?;
            body.send_trailers(status("0"))
        }
        Some(Manner::Refuses(code, details)) => {
            let mut trailers = status(code);
            if let Some(details) = details {
                let details = HeaderValue::from_static(details);
                trailers.insert("grpc-status-details-bin", details);
            }
            begin()?.send_trailers(trailers)
        }
        Some(Manner::Resets) => {
            answer.send_reset(Reason::INTERNAL_ERROR);
            Ok(())
        }
        Some(Manner::AnswersGarbage) => {
            let mut body = begin()?;
            body.send_data(Bytes::from_static(b"\xff\xff\xff\xff\xffgarbage"), false)?;
            body.send_trailers(status("0"))
        }
        Some(Manner::AnswersTooMuch) => begin()?.send_data(vec![0; 64 << 20].into(), true),
        Some(Manner::Hangs | Manner::Hangsup) => Ok(()),
    }
}

/// An agent with an output of this kind, so many flows and the server, when all flows are counted.
fn with_server(lab: &Lab, kind: &str, manner: Manner) -> (Agent, Server, Pair) {
    let server = Server::start(lab, manner);
    let address = format!("{kind}=http://{}", server.address);
    let agent = Agent::start(lab, &["--output", "json", "--output", &address]);
    let sent = send(lab, 40, 2);
    wait_until_counted(&agent, lab, sent.packets);
    (agent, server, sent)
}

#[test]
fn a_server_of_pbflow_that_misbehaves_has_every_flow_when_it_behaves() {
    if is_root_or_skip("agent::a_server_of_pbflow_that_misbehaves_has_every_flow_when_it_behaves") {
        has_every_flow_when_it_behaves("pbflow");
    }
}

#[test]
fn a_server_of_otlp_that_misbehaves_has_every_flow_when_it_behaves() {
    if is_root_or_skip("agent::a_server_of_otlp_that_misbehaves_has_every_flow_when_it_behaves") {
        has_every_flow_when_it_behaves("otlp");
    }
}

fn has_every_flow_when_it_behaves(kind: &str) {
    for (manner, error) in [
        (Manner::Refuses("14", None), "UNAVAILABLE"),
        // Not in base64.
        (Manner::Refuses("14", Some("%%%")), "UNAVAILABLE"),
        (Manner::Resets, "the call broke off"),
        (Manner::AnswersGarbage, "not one gRPC message"),
        (Manner::AnswersTooMuch, "longer than 65536 bytes"),
        (Manner::Hangsup, "the call broke off"),
        (Manner::Hangs, "no answer within 10s"),
    ] {
        let lab = Lab::quiet().unwrap();
        let (agent, server, sent) = with_server(&lab, kind, manner);
        let output = || output(&agent, &lab, kind);
        wait_until("it is told", || {
            let output = output();
            let fates = fates(&output, sent);
            assert_eq!(fates["queued"], sent, "{manner:?}: {output}");
            output["failing"] == true
        });
        let told = output();
        let told = told["last_error"].as_str().unwrap();
        assert!(told.contains(error), "{manner:?}: {told}");
        server.behave();
        wait_until("all is sent", || fates(&output(), sent)["sent"] == sent);
        let report = agent.stop();
        assert_eq!(report.seen(), sent);
        let log = report.log;
        assert_eq!(log.matches("cannot deliver flows to").count(), 1, "{log}");
        assert_eq!(log.matches("delivering flows to").count(), 1, "{log}");
        assert!(!server.taken.lock().unwrap().is_empty());
    }
}

/// Another service listens there: it is called less and less often, and the flows sent to it count as refused, to the
/// packet.
#[test]
fn a_server_that_is_another_one_refuses_flows_and_is_not_flooded() {
    if !is_root_or_skip("agent::a_server_that_is_another_one_refuses_flows_and_is_not_flooded") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let (agent, server, first) = with_server(&lab, "pbflow", Manner::Refuses("12", None));
    let pbflow = || output(&agent, &lab, "pbflow");
    wait_until("they are refused", || {
        fates(&pbflow(), first)["refused"].packets != 0
    });
    // Each scan has a batch, and each batch would be a call.
    let mut sent = first;
    for _ in 0..20 {
        sent += send(&lab, 5, 1);
        wait_until_counted(&agent, &lab, sent.packets);
    }
    let output = pbflow();
    assert_eq!(
        (&output["failing"], &output["failures"]),
        (&true.into(), &1.into())
    );
    assert_eq!(output["last_error"], "UNIMPLEMENTED");
    fates(&output, sent);
    server.behave();
    let fates = || fates(&pbflow(), sent);
    wait_until("nothing waits", || fates()["queued"] == Pair::default());
    let after = fates();
    assert_eq!(after["sent"] + after["refused"], sent);
    let refused = server.calls() - server.taken.lock().unwrap().len();
    assert!(refused < 20, "{refused} calls");
    let log = agent.stop().log;
    assert_eq!(
        log.matches("refuses flows: UNIMPLEMENTED").count(),
        1,
        "{log}"
    );
}

#[test]
fn a_server_that_breaks_http2_holds_up_nothing() {
    if !is_root_or_skip("agent::a_server_that_breaks_http2_holds_up_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // SETTINGS, then PINGs for ever, whether they are answered or not.
    let server = serve_each(&lab, |mut stream| async move {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let mut ping = vec![0, 0, 8, 6, 0, 0, 0, 0, 0];
        ping.extend([7; 8]);
        let many = ping.repeat(1_000);
        let (mut reading, mut writing) = stream.split();
        let talk = async {
            let _ = writing.write_all(&settings).await;
            while writing.write_all(&many).await.is_ok() {}
        };
        let listen = async {
            let mut read = [0; 4096];
            while reading.read(&mut read).await.is_ok_and(|len| len > 0) {}
        };
        tokio::join!(talk, listen);
    });
    let address = format!("pbflow=http://{server}");
    let agent = Agent::start(&lab, &["--output", "json", "--output", &address]);
    let sent = send(&lab, 20, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("it is told", || {
        let output = output(&agent, &lab, "pbflow");
        assert_eq!(fates(&output, sent)["queued"], sent);
        output["failing"] == true
    });
    let more = sent + send(&lab, 20, 1);
    wait_until_counted(&agent, &lab, more.packets);
    assert_eq!(agent.stop().seen(), more);
}
