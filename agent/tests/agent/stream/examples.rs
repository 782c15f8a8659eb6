//! The consumers in `deploy/consumers` when batches are lost: each reports that, and its sums still close.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, header};
use lab::Process;
use prost::Message as _;
use proto::{Endpoint, FlowRecord};
use serde_json::Value;

use super::{Agent, FlowBatch, TempDir, patience, socket, timeout};
use crate::consumers::{Program, in_go_or_skip, in_python_or_skip, in_rust_or_skip};

const FLOWS_IN_A_SCAN: u32 = 4000;
/// The packets of [`record`](super::record).
const PACKETS_OF_A_FLOW: u64 = 2;
const BYTES_OF_A_FLOW: u64 = 120;
/// Scans whose batches are all lost.
const FURTHER_SCANS: u64 = 5;

/// All that can be had.
fn programs(test: &str, folder: &Path) -> Vec<Program> {
    let programs = [
        in_rust_or_skip(test),
        in_python_or_skip(test, folder),
        in_go_or_skip(test),
    ];
    programs.into_iter().flatten().collect()
}

/// A consumer that runs, with its output.
struct Consumer {
    process: Process,
    folder: TempDir,
}

impl Consumer {
    fn start(program: &[PathBuf], address: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = |name| File::create(folder.path().join(name)).unwrap();
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .arg(address)
            // Which may name a proxy.
            .env_clear()
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        Self {
            process: Process::spawn(&mut command).unwrap(),
            folder,
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Its last output.
    fn sums(&self) -> Value {
        let text = self.read("stdout");
        let last = text.lines().next_back().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{text}: {}", self.read("stderr")))
    }
}

#[tokio::test]
async fn the_examples_say_what_they_lost_and_their_sums_close() {
    const TEST: &str = "agent::the_examples_say_what_they_lost_and_their_sums_close";
    let folder = TempDir::new().unwrap();
    for program in programs(TEST, folder.path()) {
        let directory = tempfile::tempdir().unwrap();
        let (unix, target) = socket(&directory);
        let mut agent = Agent::start("one", 4, &[unix]).await;
        let mut consumer = Consumer::start(&program, &target.to_string());
        agent.has_consumers(1).await;
        consumer.process.signal(libc::SIGSTOP).unwrap();
        let mut scans = 0;
        let lost_batches = |agent: &Agent| agent.hub.status()[0].lost_batches;
        let mut after_loss = 0;
        // More than the connection's windows and buffers take.
        while after_loss < FURTHER_SCANS {
            agent.scan(FLOWS_IN_A_SCAN);
            scans += 1;
            after_loss += u64::from(lost_batches(&agent) > 0);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        consumer.process.signal(libc::SIGCONT).unwrap();
        let taken = async {
            while agent.hub.held_bytes() > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        timeout(patience(), taken).await.unwrap();
        let lost = agent.hub.status()[0].lost_records;
        agent.stop().await;
        let status = consumer.process.wait(patience()).unwrap();
        assert!(status.success(), "{}", consumer.read("stderr"));

        let sums = consumer.sums();
        let number = |name: &str| sums[name].as_u64().unwrap();
        let both = |name: &str| number(name) + number(&format!("lost_{name}"));
        let flows = scans * u64::from(FLOWS_IN_A_SCAN);
        assert_eq!(number("lost_records"), lost, "{program:?}: {sums}");
        assert!(number("records") > 0 && lost > 0, "{program:?}: {sums}");
        assert_eq!(
            [both("records"), both("packets"), both("bytes")],
            [flows, PACKETS_OF_A_FLOW * flows, BYTES_OF_A_FLOW * flows],
            "{program:?}: {sums}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_python_ends_without_a_traceback() {
    const TEST: &str = "agent::the_example_in_python_ends_without_a_traceback";
    let folder = TempDir::new().unwrap();
    let Some(program) = in_python_or_skip(TEST, folder.path()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let agent = Agent::start("one", 4, &[unix]).await;
    let mut consumer = Consumer::start(&program, &target.to_string());
    agent.has_consumers(1).await;
    consumer.process.signal(libc::SIGINT).unwrap();
    let status = consumer.process.wait(patience()).unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(consumer.read("stderr"), "");
    assert_eq!(consumer.sums()["packets"], 0);
    agent.stop().await;
    let nobody = format!("unix:{}", directory.path().join("nobody").display());
    let mut consumer = Consumer::start(&program, &nobody);
    let status = consumer.process.wait(patience()).unwrap();
    let said = consumer.read("stderr");
    assert!(!status.success() && said.lines().count() == 1, "{said}");
}

/// Our agents never skip a number.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_end_where_a_batch_is_missing() {
    const TEST: &str = "agent::the_examples_end_where_a_batch_is_missing";
    let folder = TempDir::new().unwrap();
    let port = serve_batches(&[1, 3]);
    for program in programs(TEST, folder.path()) {
        let is_rust = program.len() == 1 && program[0].ends_with("examples/observe");
        let scheme = if is_rust { "http://" } else { "" };
        let mut consumer = Consumer::start(&program, &format!("{scheme}127.0.0.1:{port}"));
        let status = consumer.process.wait(patience()).unwrap();
        let said = consumer.read("stderr");
        assert!(!status.success(), "{program:?}: {said}");
        let told = "batch 3 came after 1: some are missing";
        assert!(said.contains(told), "{program:?}: {said}");
        assert_eq!(consumer.sums()["packets"], 1, "{program:?}");
    }
}

/// Answers every call with batches of these numbers, with a packet in each. Returns the port.
fn serve_batches(numbers: &[u64]) -> u16 {
    let batch = |&stream_seq| FlowBatch {
        stream_seq,
        last_of_scan: true,
        records: vec![FlowRecord {
            src: Some(Endpoint {
                delta_packets: 1,
                ..Endpoint::default()
            }),
            ..FlowRecord::default()
        }],
        ..FlowBatch::default()
    };
    let mut answer = BytesMut::new();
    for batch in numbers.iter().map(batch) {
        answer.put_u8(0);
        answer.put_u32(batch.encoded_len() as u32);
        batch.encode(&mut answer).unwrap();
    }
    let answer = answer.freeze();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    tokio::spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        while let Ok((stream, _)) = listener.accept().await {
            // A consumer that ends breaks its connection.
            let _ = serve(stream, answer.clone()).await;
        }
    });
    port
}

async fn serve(stream: tokio::net::TcpStream, answer: Bytes) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (_, mut respond) = request?;
        let grpc = HeaderValue::from_static("application/grpc");
        let mut head = Response::new(());
        head.headers_mut().insert(header::CONTENT_TYPE, grpc);
        let mut body = respond.send_response(head, false)?;
        body.send_data(answer.clone(), false)?;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        body.send_trailers(trailers)?;
    }
    Ok(())
}
