//! Attacks on the memory of a collector, and on the shares of honest senders.

use std::{io::Write as _, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use futures_util::{FutureExt as _, StreamExt as _, future::join_all, stream::FuturesUnordered};
use prost::Message as _;
use proto::{Account, Count, GetCollectorStatusRequest};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;

use super::*;
use crate::admission::client::{Call, OpenStream, framed, outcome};

const STATUS: &str = "/flow.v1.FlowCollectorControl/GetCollectorStatus";
const EXPORT: &str = "/flow.v1.FlowCollector/Export";
/// The most that a message may have, in bytes.
const MESSAGE: usize = 4 << 20;
/// Open calls that a credential may have.
const MOST_CALLS: usize = 16;

/// How a call ended.
async fn end(call: Call) -> Code {
    let begun = OpenStream(call.response.await.unwrap());
    match begun.refusal() {
        Some(refusal) => refusal.code,
        None => outcome(begun.0).await.unwrap().code,
    }
}

#[test]
fn half_messages_of_many_calls_hold_little_memory_and_delay_nobody_and_end() {
    const TEST: &str =
        "agent::half_messages_of_many_calls_hold_little_memory_and_delay_nobody_and_end";
    let folder = tempfile::tempdir().unwrap();
    let Some(mut confined) = Confined::start(TEST, &["--output", &jsonl(folder.path())]) else {
        return;
    };
    let mut half = BytesMut::zeroed(5 + MESSAGE / 2);
    half[1..5].copy_from_slice(&(MESSAGE as u32).to_be_bytes());
    let half = half.freeze();
    confined.run(async {
        let mut ends = FuturesUnordered::new();
        for (number, name) in ATTACKERS.into_iter().enumerate() {
            for connection in 0..MOST_CALLS {
                let from = address(1 + number * MOST_CALLS + connection);
                let mut client = confined.client(name, from, 65_535).await;
                // Twice as many as a credential may have.
                for _ in 0..2 {
                    let mut call = client.open(EXPORT).await.unwrap();
                    // The collector may take only a part of it, or nothing if it refused the call.
                    let _ = call.body.send_data(half.clone(), false);
                    let client = client.clone();
                    ends.push(async move {
                        let code = end(call).await;
                        drop(client);
                        code
                    });
                }
            }
        }
        for _ in 0..ATTACKERS.len() * MOST_CALLS {
            assert_eq!(ends.next().await, Some(Code::ResourceExhausted));
        }
        confined.others_are_served(1, 10).await;
        // They hold their memory until they time out.
        let first = ends.next().now_or_never();
        assert_eq!(first, None, "the others waited for those who attack");
        let peak = confined.memory_peak();
        assert!(peak < memory_of_the_unit() / 5, "{peak}");
        assert_eq!(ends.next().await, Some(Code::DeadlineExceeded));
    });
    let refused = &confined.status()["server"]["refused_agents"];
    assert_eq!(*refused, ATTACKERS.len() * MOST_CALLS);
    confined.peak();
}

/// A message that decompresses to the longest batch, with as many lines of JSON as possible.
fn bomb(stream_id: u64, seq: u64) -> Bytes {
    let batch = FlowBatch {
        stream_id,
        agent: None,
        ..batch(seq, 16_000)
    };
    let mut raw = batch.encode_to_vec();
    // A field that a later agent may send.
    let padding = MESSAGE - 4096 - raw.len();
    prost::encoding::bytes::encode(99, &vec![0_u8; padding], &mut raw);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&raw).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut framed = BytesMut::new();
    framed.put_u8(1);
    framed.put_u32(gzip.len() as u32);
    framed.put_slice(&gzip);
    framed.freeze()
}

#[test]
fn those_who_send_as_much_as_they_can_and_read_nothing_delay_others_little() {
    const TEST: &str =
        "agent::those_who_send_as_much_as_they_can_and_read_nothing_delay_others_little";
    const BATCHES: u64 = 4;
    let folder = tempfile::tempdir().unwrap();
    let Some(mut confined) = Confined::start(TEST, &["--output", &jsonl(folder.path())]) else {
        return;
    };
    let bombs: Vec<_> = (1..=MOST_CALLS as u64)
        .map(|stream_id| [1, 2, 3].map(|seq| bomb(stream_id, seq)))
        .collect();
    let all = bombs.as_flattened().len() as u64;
    let status = confined.run(async {
        let mut open = Vec::new();
        for (number, name) in ATTACKERS.into_iter().enumerate() {
            let mut client = confined.client(name, address(1 + number), 65_535).await;
            for bombs in &bombs {
                let mut call = client.open_with_gzip(EXPORT).await.unwrap();
                for bomb in bombs {
                    call.body.send_data(bomb.clone(), false).unwrap();
                }
                open.push(call);
            }
        }
        confined.others_are_served(1, BATCHES).await;
        confined.status()
    });
    let streams = status["streams"].as_array().unwrap();
    for name in ATTACKERS {
        let of_it = streams.iter().filter(|stream| stream["identity"] == name);
        let taken: u64 = of_it.filter_map(|stream| stream["batches"].as_u64()).sum();
        // It had one turn for every one or two of the other host.
        assert!(taken < all, "{name}: all {taken} were taken");
    }
    let peak = confined.peak();
    assert!(peak < memory_of_the_unit() * 3 / 4, "{peak}");
}

#[test]
fn a_call_whose_acknowledgements_nobody_reads_gives_its_place_back() {
    const TEST: &str = "agent::a_call_whose_acknowledgements_nobody_reads_gives_its_place_back";
    let folder = tempfile::tempdir().unwrap();
    let output = jsonl(folder.path());
    let settings = ["--output", &output, "--max-agents", "1"];
    let Some(mut confined) = Confined::start(TEST, &settings) else {
        return;
    };
    confined.run(async {
        let mut client = confined.client(ATTACKER, address(1), 0).await;
        let mut call = client.open(EXPORT).await.unwrap();
        // The first acknowledgement is sent, the second waits, and the third has no room.
        for seq in 1..=3 {
            let batch = FlowBatch {
                agent: None,
                ..batch(seq, 1)
            };
            let ends = seq == 3;
            let message = framed(&batch.encode_to_vec());
            call.body.send_data(message, ends).unwrap();
            let stored = || stored_seq(&confined.status()) == seq;
            while !stored() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let channel = confined.channel(address(2)).await;
        let refused = confined.try_send(&channel, OTHER, vec![batch(1, 1)]).await;
        assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
        while confined
            .try_send(&channel, OTHER, vec![batch(1, 1)])
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // Nor does it keep its connection.
        let response = call.response.await.unwrap();
        assert!(outcome(response).await.is_err());
    });
    confined.peak();
}

/// Of the only stream.
fn stored_seq(status: &Value) -> u64 {
    status["streams"][0]["stored_seq"].as_u64().unwrap_or(0)
}

/// A batch of a new stream, whose account has the most and longest reasons allowed.
fn with_reasons(stream_id: u64) -> FlowBatch {
    let reasons: BTreeMap<_, _> = (0..64)
        .map(|reason| (format!("{reason:064}"), Count::default()))
        .collect();
    FlowBatch {
        stream_id,
        account: Some(Account {
            unparsed: reasons.clone(),
            not_inserted: reasons.clone(),
            beside: reasons,
            ..Account::default()
        }),
        ..batch(1, 0)
    }
}

#[test]
fn streams_and_unread_statuses_of_a_few_leave_room_for_those_of_others() {
    const TEST: &str = "agent::streams_and_unread_statuses_of_a_few_leave_room_for_those_of_others";
    /// Of each attacker.
    const STREAMS: u64 = 50;
    const KEPT: usize = 16;
    const CALLS: usize = 8;
    const UNREAD_OF_ONE: usize = 2;
    let folder = tempfile::tempdir().unwrap();
    let Some(mut confined) = Confined::start(TEST, &["--output", &jsonl(folder.path())]) else {
        return;
    };
    let attackers = &ATTACKERS[..6];
    let refused = |codes: &[Option<Code>]| {
        let refused = codes.iter().flatten();
        refused
            .inspect(|code| assert_eq!(**code, Code::ResourceExhausted))
            .count()
    };
    confined.run(async {
        confined.others_are_served(1, 1).await;
        let channel = confined.channel(address(1)).await;
        for name in attackers {
            for stream_id in 1..=STREAMS {
                let batch = with_reasons(stream_id);
                confined.send(&channel, name, vec![batch]).await;
            }
        }
        let request = GetCollectorStatusRequest::default();
        let mut open = Vec::new();
        for (number, name) in attackers.iter().enumerate() {
            let client = confined.client(name, address(2 + number), 0).await;
            // Half a request holds as much as an unread answer.
            let is_half = number == 0;
            let calls = (0..CALLS).map(|_| {
                let (mut client, request) = (client.clone(), &request);
                async move {
                    if !is_half {
                        let begun = client.begin(STATUS, request).await.unwrap();
                        return (begun.refusal().map(|it| it.code), None, Some(begun));
                    }
                    let mut call = client.open(STATUS).await.unwrap();
                    let half = Bytes::from_static(&[0, 0, 0, 255, 255, 0]);
                    call.body.send_data(half, false).unwrap();
                    let Call { body, response } = call;
                    let begun = tokio::time::timeout(Duration::from_secs(15), response).await;
                    let begun = begun.ok().map(|begun| OpenStream(begun.unwrap()));
                    let refusal = begun.as_ref().and_then(OpenStream::refusal);
                    (refusal.map(|it| it.code), Some(body), begun)
                }
            });
            let begun = join_all(calls).await;
            let codes: Vec<_> = begun.iter().map(|(code, ..)| *code).collect();
            assert_eq!(refused(&codes), CALLS - UNREAD_OF_ONE, "{name} {codes:?}");
            open.push((client, begun));
        }
        // Another reader of the status gets all of it.
        let mut client = confined.client(OTHER, address(0), 65_535).await;
        let outcome = client.call(STATUS, &request).await.unwrap();
        assert_eq!(outcome.code, Code::Ok, "{}", outcome.message);
    });
    let status = confined.status();
    let streams = status["streams"].as_array().unwrap();
    let of = |name: &str| {
        let of_it = streams.iter().filter(|stream| stream["identity"] == name);
        of_it.count()
    };
    assert_eq!(of(OTHER), 1);
    for name in attackers {
        assert_eq!(of(name), KEPT, "{name}");
    }
    confined.peak();
}

#[test]
fn whoever_watches_the_health_leaves_room_for_those_who_observe() {
    const TEST: &str = "agent::whoever_watches_the_health_leaves_room_for_those_who_observe";
    const WATCH: &str = "/grpc.health.v1.Health/Watch";
    const CALLS: usize = 20;
    const MOST: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let Some(mut confined) = Confined::start(TEST, &["--output", &jsonl(folder.path())]) else {
        return;
    };
    confined.run(async {
        let client = confined.client(ATTACKER, address(1), 65_535).await;
        let watches = (0..CALLS).map(|_| {
            let mut client = client.clone();
            async move { client.begin(WATCH, &HealthCheckRequest::default()).await }
        });
        let watches = join_all(watches).await;
        let refused = watches.iter().flatten().filter_map(OpenStream::refusal);
        assert_eq!(refused.count(), CALLS - MOST);
        let mut client = confined.client(OTHER, address(0), 65_535).await;
        let begun = client.begin(WATCH, &HealthCheckRequest::default()).await;
        assert!(begun.unwrap().refusal().is_none());
    });
    confined.peak();
}

#[test]
fn a_credential_has_a_share_of_the_connections() {
    const TEST: &str = "agent::a_credential_has_a_share_of_the_connections";
    const CHECK: &str = "/grpc.health.v1.Health/Check";
    /// Also with a credential that may read.
    const MOST: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    let Some(mut confined) = Confined::start(TEST, &["--output", &jsonl(folder.path())]) else {
        return;
    };
    confined.run(async {
        let request = HealthCheckRequest::default();
        let mut open = Vec::new();
        for number in 0..=MOST {
            let mut client = confined.client(ATTACKER, address(1 + number), 65_535).await;
            let outcome = client.call(CHECK, &request).await.unwrap();
            let expected = if number < MOST {
                Code::Ok
            } else {
                Code::ResourceExhausted
            };
            assert_eq!(outcome.code, expected, "{number}");
            open.push(client);
        }
        confined.others_are_served(1, 1).await;
        // A connection that ends gives its place back.
        open.clear();
        let mut client = confined.client(ATTACKER, address(0), 65_535).await;
        while client.call(CHECK, &request).await.unwrap().code != Code::Ok {}
    });
    confined.peak();
}
