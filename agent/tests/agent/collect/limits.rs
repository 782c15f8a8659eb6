//! What one agent, or one address, may take of a collector.

use agent::proto::FlowBatch;
use tokio::sync::mpsc;

use super::{
    calls::{batch, call, connect, runtime},
    *,
};

#[test]
fn an_address_has_no_more_agents_than_it_may_and_others_have_their_own() {
    const TEST: &str = "agent::an_address_has_no_more_agents_than_it_may_and_others_have_their_own";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = jsonl(folder.path());
    let socket = format!("unix:{}", folder.path().join("socket").display());
    let settings = ["--output", &output, "--max-agents-per-address", "1"];
    let settings = [&settings[..], &["--listen", &socket]].concat();
    let collector = Collector::start(&lab.agent, 0, &settings);
    let to = collector.setting();
    let start = || Agent::start(&lab, &["--output", "json", "--output", &to]);
    let first = start();
    let sent = send(&lab, 10, 2);
    wait_until_acknowledged(&first, &lab, sent);
    let second = start();
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
    assert_eq!(stored(&[folder.path()]).len(), 3);
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
    let output = jsonl(folder.path());
    let settings = ["--output", &output, "--max-agent-records", "1000"];
    let collector = Collector::start(&lab.agent, 0, &settings);
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
    let sums: Vec<_> = stored(&[folder.path()]).into_values().collect();
    assert_eq!(sums, [sent]);
}

#[test]
fn whoever_sends_within_the_limit_does_not_wait_for_one_who_does_not() {
    const TEST: &str = "agent::whoever_sends_within_the_limit_does_not_wait_for_one_who_does_not";
    const RECORDS: usize = 4000;
    const BATCHES: u64 = 4;
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = jsonl(folder.path());
    let socket = format!("unix:{}", folder.path().join("socket").display());
    let settings = ["--output", &output, "--max-agent-records", "1000"];
    let settings = [&settings[..], &["--listen", &socket]].concat();
    let collector = Collector::start(&lab.agent, 0, &settings);
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        let all = (1..=BATCHES).map(|seq| batch(seq, RECORDS));
        let sending = futures_util::stream::iter(all);
        let mut fast = client.clone().export(sending).await.unwrap().into_inner();
        assert_eq!(fast.message().await.unwrap().unwrap().last_seq, 1);
        let modest = FlowBatch {
            stream_id: 6,
            ..batch(1, 1)
        };
        let (acks, ended) = call(&mut client, vec![modest]).await;
        ended.unwrap();
        assert_eq!(acks, [1]);
        let status = collector.status(&lab.agent);
        let streams = status["streams"].as_array().unwrap();
        let fast_one = |stream: &&Value| stream["batches"].as_u64() < Some(BATCHES);
        let fast_one = streams
            .iter()
            .find(|stream| stream["stream_id"] != 6 && fast_one(stream));
        assert!(fast_one.is_some(), "{status}");
        let mut last = 1;
        while let Some(ack) = fast.message().await.unwrap() {
            last = ack.last_seq;
        }
        assert_eq!(last, BATCHES);
    });
    let status = collector.status(&lab.agent);
    let streams = status["streams"].as_array().unwrap();
    let held = streams
        .iter()
        .map(|stream| stream["held_back_ns"].as_u64().unwrap());
    // A second is free at first, and up to one more for each that the collector takes for something else.
    let second = 1_000_000_000;
    let most = (BATCHES * RECORDS as u64 / 1000 - 1) * second;
    let least = most - RECORDS as u64 / 1000 * second - (BATCHES - 1) * second;
    let held: Vec<_> = held.collect();
    assert!(
        held.iter().any(|held| (least..=most).contains(held)),
        "{held:?}"
    );
    assert!(held.contains(&0), "{held:?}");
    collector.stop();
    let lines = outputs::jsonl::lines(folder.path());
    let flows = lines.iter().filter(|line| line["type"] == "flow");
    assert_eq!(flows.count(), BATCHES as usize * RECORDS + 1);
}
