//! The limits of a collector per agent and per address.

use std::time::{Duration, Instant};

use proto::{FlowBatch, flow_collector_client::FlowCollectorClient};
use tokio::sync::mpsc;

use super::{
    calls::{batch, call, connect, lines, runtime, start},
    identities::{NOBODY, with_channel_as},
    *,
};

/// A thousand records a second of each agent.
const LIMITED: [&str; 2] = ["--max-agent-records", "1000"];

#[test]
fn an_address_has_no_more_agents_than_it_may_and_others_have_their_own() {
    const TEST: &str = "agent::an_address_has_no_more_agents_than_it_may_and_others_have_their_own";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let settings = ["--max-agents-per-address", "1"];
    let (collector, socket) = start(&lab, &folder, &settings);
    let to = collector.setting();
    let agent = || Agent::start(&lab, &["--output", "json", "--output", &to]);
    let first = agent();
    let sent = send(&lab, 10, 2);
    wait_until_acknowledged(&first, &lab, sent);
    let second = agent();
    wait_until("it is refused", || {
        let output = outputs::output(&second, &lab, "collector");
        let error = output["last_error"].as_str().unwrap();
        error.contains("--max-agents-per-address")
    });
    // A Unix socket has no address.
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        let (_open, mut to_send) = mpsc::channel::<FlowBatch>(1);
        let waiting = futures_util::stream::poll_fn(move |context| to_send.poll_recv(context));
        let _waiting = client.clone().export(waiting).await.unwrap();
        let (acks, ended) = call(&mut client, vec![batch(1, 1)]).await;
        ended.unwrap();
        assert_eq!(acks, [1]);
    });
    let status = collector.status(&lab.agent);
    assert!(
        status["server"]["refused_agents"].as_u64() >= Some(1),
        "{status}"
    );
    // The place is given back.
    first.stop();
    let more = send(&lab, 10, 1);
    wait_until_acknowledged(&second, &lab, more);
    assert_eq!(second.stop().seen(), more);
    let log = collector.stop();
    assert!(log.contains("--max-agents-per-address"), "{log}");
    assert_eq!(stored(&[&folder.path().join("flows")]).len(), 3);
}

#[test]
fn an_agent_that_sends_more_than_it_may_waits_and_loses_nothing() {
    const TEST: &str = "agent::an_agent_that_sends_more_than_it_may_waits_and_loses_nothing";
    const FLOWS: u16 = 6000;
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (collector, _) = start(&lab, &folder, &LIMITED);
    let to = collector.setting();
    let agent = Agent::start(&lab, &["--output", "json", "--output", &to]);
    let sent = send(&lab, FLOWS, 1);
    wait_until_acknowledged(&agent, &lab, sent);
    let status = collector.status(&lab.agent);
    let stream = &status["streams"][0];
    assert_ne!(stream["held_back_ns"], 0, "{stream}");
    assert_eq!(stream["lost_batches"], 0);
    let mut command = flow_agent(&lab.agent);
    command.args(["status", "--connect", &collector.address.to_string()]);
    let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let line = "held back to --max-agent-records: 1 of the streams";
    assert!(shown.contains(line), "{shown}");
    assert_eq!(agent.stop().seen(), sent);
    collector.stop();
    let streams = stored(&[&folder.path().join("flows")]);
    let sums: Vec<_> = streams.into_values().collect();
    assert_eq!(sums, [sent]);
}

/// The stream of the calls by hand.
fn stream_of(status: &Value) -> Value {
    let streams = status["streams"].as_array().unwrap();
    let is_it = |stream: &&Value| stream["agent"]["hostname"] == "there";
    streams.iter().find(is_it).unwrap().clone()
}

#[test]
fn nobody_waits_for_one_who_sends_too_much_not_even_the_end_of_the_collector() {
    const TEST: &str =
        "agent::nobody_waits_for_one_who_sends_too_much_not_even_the_end_of_the_collector";
    // It would take eight minutes.
    const RECORDS: usize = 10_000;
    const BATCHES: u64 = 50;
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (collector, socket) = start(&lab, &folder, &LIMITED);
    let begin = Instant::now();
    let too_much = |first_seq| {
        let seqs = first_seq..first_seq + BATCHES;
        futures_util::stream::iter(seqs.map(|seq| batch(seq, RECORDS)))
    };
    let of_fast = || stream_of(&collector.status(&lab.agent));
    let is_connected = || of_fast()["connected"] == true;
    let fast = runtime();
    let _open = fast.block_on(async {
        let mut client = connect(&socket).await;
        let mut acks = client.export(too_much(1)).await.unwrap().into_inner();
        assert_eq!(acks.message().await.unwrap().unwrap().last_seq, 1);
        acks
    });
    let modest = FlowBatch {
        stream_id: 6,
        agent: None,
        ..batch(1, 1)
    };
    // Another user of the host is another sender.
    let (acks, ended) = with_channel_as(&lab.agent, &collector, NOBODY, async |channel| {
        call(&mut FlowCollectorClient::new(channel), vec![modest]).await
    });
    ended.unwrap();
    assert_eq!(acks, [1]);
    let stream = of_fast();
    assert!(stream["batches"].as_u64() < Some(BATCHES), "{stream}");

    // It ends, but the debt stays: another call of the same stream does not avoid it.
    drop(fast);
    wait_until("it is noticed", || !is_connected());
    let again = runtime();
    let _open = again.block_on(async {
        let mut client = connect(&socket).await;
        let answers = client.export(too_much(BATCHES + 1)).await.unwrap();
        let deadline = Instant::now() + patience();
        while !is_connected() {
            assert!(Instant::now() < deadline, "it calls in vain");
            // The connection goes on meanwhile.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        answers
    });
    let status = collector.status(&lab.agent);
    let (stream, elapsed) = (stream_of(&status), begin.elapsed());
    let held = stream["held_back_ns"].as_u64().unwrap();
    assert!(u128::from(held) <= elapsed.as_nanos(), "{stream}");
    // One saved second, and one extra batch.
    let most = elapsed.as_secs() * 1000 + RECORDS as u64 + 2000;
    let stored = stream["stored"]["records"].as_u64();
    assert!(stored <= Some(most), "{stream}");
    let streams = status["streams"].as_array().unwrap();
    assert!(streams.iter().any(|stream| stream["held_back_ns"] == 0));
    let log = collector.stop();
    assert!(!log.contains("did not end in time"), "{log}");
}

#[test]
fn what_waited_is_counted_and_a_call_ends_when_the_agent_ends_it() {
    const TEST: &str = "agent::what_waited_is_counted_and_a_call_ends_when_the_agent_ends_it";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (collector, socket) = start(&lab, &folder, &LIMITED);
    let held = || {
        stream_of(&collector.status(&lab.agent))["held_back_ns"]
            .as_u64()
            .unwrap()
    };
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        // No batch waits after it, though the sender owes a quarter of a minute.
        let (acks, ended) = call(&mut client, vec![batch(1, 16_000)]).await;
        ended.unwrap();
        assert_eq!((acks, held()), (vec![1], 0));
        let begin = Instant::now();
        let (acks, ended) = call(&mut client, vec![batch(2, 1)]).await;
        ended.unwrap();
        assert_eq!(acks, [2]);
        let (held, elapsed) = (held(), begin.elapsed());
        assert!(
            held > 0 && u128::from(held) <= elapsed.as_nanos(),
            "{held} {elapsed:?}"
        );
    });
    collector.stop();
    let flows = lines(&folder);
    let flows = flows.iter().filter(|line| line["type"] == "flow");
    assert_eq!(flows.count(), 16_001);
}
