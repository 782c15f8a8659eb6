//! The calls beside the stream of batches: the status and the filter rules.

use proto::{ObserveRequest, flow_agent_client::FlowAgentClient};
use server::{Listeners, PassedSockets};
use tokio::time::timeout;
use tonic::codec::CompressionEncoding;
use view::client::{self, Observer};

use super::{Agent, batch, on_tcp, patience, socket};

#[tokio::test]
async fn the_status_tells_who_left_and_what_is_held_for_those_who_do_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let mut agent = Agent::start("one", 1024, &[unix]).await;
    drop(Observer::connect(target.clone(), "gone").await.unwrap());
    agent.has_consumers(0).await;
    // More than the connection's windows take.
    let mut stalled = Observer::connect(target.clone(), "").await.unwrap();
    for _ in 0..20 {
        agent.scan(4000);
    }
    let server = client::status(&target).await.unwrap().server.unwrap();
    assert_eq!(server.consumers_left, 1);
    assert!(server.held_bytes > 0);
    assert_eq!(batch(&mut stalled).await.scan_id, 1);
    drop(stalled);
    agent.stop().await;
}

/// Also without programs, whose rules nothing could change.
#[tokio::test]
async fn the_rules_are_told_and_changed_on_the_unix_socket_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, on_unix) = socket(&directory);
    let listeners = Listeners::bind(
        &[unix, "127.0.0.1:0".parse().unwrap()],
        PassedSockets::default(),
    )
    .await
    .unwrap();
    let on_tcp = on_tcp(listeners.tcp_addresses()[0]);
    let agent = Agent::serve("one", 1, listeners);
    assert_eq!(client::filters(&on_unix).await.unwrap().generation, 1);
    let error = client::filters(&on_tcp).await.unwrap_err().to_string();
    assert!(error.contains("only on the agent's Unix socket"), "{error}");
    let error = client::scan_now(&on_tcp).await.unwrap_err().to_string();
    assert!(error.contains("only on the agent's Unix socket"), "{error}");

    for (target, rule, reason) in [
        (&on_unix, "exclude all", "cannot change its filter rules"),
        (&on_unix, "drop all", "rule 1"),
        (&on_tcp, "exclude all", "only on the agent's Unix socket"),
    ] {
        let changed = client::set_filters(target, vec![rule.to_owned()]).await;
        let error = changed.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    agent.stop().await;
}

/// What other implementations do by default over TCP: they list gzip, whether or not they compress themselves.
#[tokio::test]
async fn a_consumer_over_tcp_gets_the_compression_that_it_accepts() {
    let listeners = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], PassedSockets::default())
        .await
        .unwrap();
    let address = format!("http://{}", listeners.tcp_addresses()[0]);
    let mut agent = Agent::serve("one", 1024, listeners);
    let client = FlowAgentClient::connect(address).await.unwrap();
    let plain = client.clone();
    let zstd = client.clone().accept_compressed(CompressionEncoding::Zstd);
    let both = zstd.clone().accept_compressed(CompressionEncoding::Gzip);
    let accepting = client.clone().accept_compressed(CompressionEncoding::Gzip);
    let compressing = accepting.clone().send_compressed(CompressionEncoding::Gzip);
    let mut streams = Vec::new();
    for (mut client, encoding) in [
        (plain, None),
        (accepting, Some("gzip")),
        (compressing, Some("gzip")),
        (zstd, Some("zstd")),
        (both, Some("zstd")),
    ] {
        let observed = client.observe(ObserveRequest::default()).await.unwrap();
        let told = observed.metadata().get("grpc-encoding");
        assert_eq!(told.map(|told| told.to_str().unwrap()), encoding);
        streams.push(observed.into_inner());
    }
    agent.has_consumers(5).await;
    let batches = agent.scan(4000);
    for stream in &mut streams {
        let mut records = 0;
        for seq in 1..=batches as u64 {
            let batch = timeout(patience(), stream.message()).await.unwrap();
            let batch = batch.unwrap().unwrap();
            assert_eq!((batch.stream_seq, batch.scan_id), (seq, 1));
            records += batch.records.len();
        }
        assert_eq!(records, 4000);
    }
    drop(streams);
    agent.stop().await;
}

#[tokio::test]
async fn a_filtered_stream_has_its_own_sequence_and_tells_what_is_left_out_to_the_packet() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let mut agent = Agent::start("one", 1024, &[unix]).await;
    let request = |filter: &str| ObserveRequest {
        filter: filter.to_owned(),
        ..ObserveRequest::default()
    };
    let refused = Observer::connect_with(target.clone(), request("only tcp")).await;
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("filter:1"), "{refused}");
    let sixteen = request("include src net 0.0.0.0/28 ingress; exclude all");
    let mut filtered = Observer::connect_with(target.clone(), sixteen)
        .await
        .unwrap();
    let mut whole = Observer::connect(target.clone(), "").await.unwrap();
    agent.has_consumers(2).await;
    let batches = agent.scan(5000) + agent.scan(0) + agent.scan(5000);
    let mut sent = (0, 0, 0);
    for seq in 1..=batches as u64 {
        let (all, few) = (batch(&mut whole).await, batch(&mut filtered).await);
        assert_eq!((all.stream_seq, few.stream_seq), (seq, seq));
        assert_eq!(few.account, all.account);
        assert_eq!(
            (few.scan_id, few.batch_index),
            (all.scan_id, all.batch_index)
        );
        assert_eq!(all.left_out_records, 0);
        for record in &few.records {
            sent.0 += 1;
            sent.1 += record.src().delta_packets + record.dst().delta_packets;
            sent.2 += record.src().delta_bytes + record.dst().delta_bytes;
        }
        if few.last_of_scan {
            // A packet of 60 bytes in each direction of each flow.
            let flows = if few.scan_id < 3 { 5000 } else { 10_000 };
            assert_eq!(sent.0 + few.left_out_records, flows);
            assert_eq!(sent.1 + few.left_out_packets, 2 * flows);
            assert_eq!(sent.2 + few.left_out_bytes, 120 * flows);
        }
    }
    assert_eq!(sent.0, 32);
    agent.stop().await;
}

/// Together they are longer than HTTP/2's windows are at first, so the agent has to make room.
#[tokio::test]
async fn long_requests_follow_one_another_on_a_connection() {
    let listeners = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], PassedSockets::default())
        .await
        .unwrap();
    let address = format!("http://{}", listeners.tcp_addresses()[0]);
    let agent = Agent::serve("one", 1, listeners);
    let mut client = FlowAgentClient::connect(address).await.unwrap();
    for _ in 0..3 {
        let request = ObserveRequest {
            consumer: "a".repeat(60_000),
            ..ObserveRequest::default()
        };
        let begun = timeout(patience(), client.observe(request)).await;
        begun.unwrap().unwrap();
    }
    agent.stop().await;
}
