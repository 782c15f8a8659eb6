//! Refusals of brokers: missing topics, long messages, and more than a quota allows.

use std::time::{Duration, Instant};

use super::*;

/// Some thousand bytes that compress badly.
fn long(stream_id: u64, seq: u64, bytes: usize) -> FlowBatch {
    let noise = (0..bytes).scan(seq | 1, |state, _| {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        Some(char::from(b'!' + (*state >> 58) as u8))
    });
    let name: String = noise.collect();
    let mut batch = of_agent("long", stream_id, seq);
    let names = name.as_bytes().chunks(200);
    batch.interfaces = names
        .map(|name| proto::Interface {
            name: String::from_utf8(name.to_vec()).unwrap(),
            ..proto::Interface::default()
        })
        .collect();
    batch
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_batch_that_the_topic_does_not_take_holds_up_its_own_agent_and_is_told_until_it_does() {
    const TEST: &str = "agent::a_batch_that_the_topic_does_not_take_holds_up_its_own_agent_and_is_told_until_it_does";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let broker = kafka.broker(&BrokerOptions::default());
    let address = broker.address();
    let limit = "max.message.bytes=2000";
    kafka.client(&address, &["create", TOPIC, "1", limit]);
    let (collector, socket) = kafka.collector(&setting(&address, ""));
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        // Together they are too long, and one by one they are not.
        let batches = (1..=9).map(|seq| long(1, seq, 1000)).collect();
        let (acks, ended) = call(&mut client, batches).await;
        assert_eq!(acks.last(), Some(&9), "{ended:?}");
        let batches = vec![long(1, 10, 1000), long(1, 11, 9000), long(1, 12, 1000)];
        let (acks, ended) = call(&mut client, batches.clone()).await;
        assert_eq!(acks, [10]);
        let ended = ended.unwrap_err();
        assert_eq!(ended.code(), Code::Unavailable);
        for part in [
            "batch 11 of stream 0000000000000001",
            "topic flows",
            "max.message.bytes",
        ] {
            assert!(ended.message().contains(part), "{ended}");
        }
        let told = store(&collector, &kafka);
        assert_eq!(told["failing"], true);
        let error = told["last_error"].as_str().unwrap();
        assert!(error.contains("max.message.bytes"), "{error}");
        // Other batches are stored, even at the same time.
        let mut other = connect(&socket).await;
        let mine = call(&mut client, batches.clone());
        let others = (1..=20).map(|seq| of_agent("other", 2, seq)).collect();
        let theirs = call(&mut other, others);
        let (mine, theirs) = futures_util::join!(mine, theirs);
        assert_eq!(mine.1.unwrap_err().code(), Code::Unavailable);
        assert_eq!(theirs.0.last(), Some(&20), "{:?}", theirs.1);
        kafka.client(&address, &["set", TOPIC, "max.message.bytes=20000"]);
        let (acks, ended) = call(&mut client, batches).await;
        assert_eq!(acks.last(), Some(&12), "{ended:?}");
    });
    assert_eq!(store(&collector, &kafka)["failing"], false);
    let log = collector.stop();
    assert!(log.contains("max.message.bytes"), "{log}");
    let messages = kafka.messages(&broker);
    let seqs = messages.iter().filter(|message| message["key"] == "long");
    let seqs: Vec<_> = seqs
        .map(|message| message["headers"]["stream_seq"].as_str().unwrap().parse())
        .collect();
    assert_eq!(seqs, (1..=12).map(Ok).collect::<Vec<Result<u64, _>>>());
}

#[test]
fn a_topic_that_is_not_there_is_told_at_the_start_and_nobody_makes_it() {
    const TEST: &str = "agent::a_topic_that_is_not_there_is_told_at_the_start_and_nobody_makes_it";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    // This broker creates topics for clients that ask in the usual way.
    let broker = kafka.broker(&BrokerOptions::default());
    let output = setting(&broker.address(), "");
    for _ in 0..2 {
        let refusal = kafka.refusal(&output);
        assert!(
            refusal.contains("there is no topic flows: create it"),
            "{refusal}"
        );
        assert!(refusal.contains("create_topic"), "{refusal}");
    }
    // The cluster has handled the earlier requests by then.
    let address = broker.address();
    kafka.client(&address, &["create", "other", "1"]);
    assert_eq!(kafka.client(&address, &["topics"]), ["other"]);
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_quota_slows_down_what_is_stored_and_repeats_nothing() {
    const TEST: &str = "agent::a_quota_slows_down_what_is_stored_and_repeats_nothing";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let broker = kafka.broker(&BrokerOptions::default());
    let address = broker.address();
    kafka.client(&address, &["create", TOPIC, "1"]);
    let quota = ["--alter", "--entity-type", "clients", "--entity-default"];
    let rate = ["--add-config", "producer_byte_rate=1000"];
    broker.configure(&[&quota[..], &rate].concat()).unwrap();
    let (collector, socket) = kafka.collector(&setting(&address, r#", "compression": "none""#));
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        let (acks, ended) = call(&mut client, vec![long(1, 1, 40_000)]).await;
        assert_eq!(acks, [1], "{ended:?}");
        // It is over the quota for half a minute. The agent repeats batches that were not stored.
        let mut refused = 0;
        let deadline = Instant::now() + patience();
        loop {
            assert!(Instant::now() < deadline, "nothing gets through any more");
            let (acks, ended) = call(&mut client, vec![long(1, 2, 100)]).await;
            if acks == [2] {
                break;
            }
            let ended = ended.unwrap_err();
            assert!(ended.message().contains("quota"), "{ended}");
            refused += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(refused > 0);
    });
    collector.stop();
    assert_eq!(kafka.messages(&broker).len(), 2);
}
