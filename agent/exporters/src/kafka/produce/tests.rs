use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::{
    files::Compression,
    kafka::{Record, connection::tests::connected, group::Group},
};

const TOPIC: &str = "t";

#[test]
fn no_broker_asks_for_a_rest_of_days() {
    assert_eq!(rest(-1), Duration::ZERO);
    assert_eq!(rest(1500), Duration::from_millis(1500));
    assert_eq!(rest(i32::MAX), LONGEST_REST);
}

#[tokio::test]
async fn only_what_a_leader_says_that_all_replicas_have_is_stored() {
    let (connection, peer) = connected().await;
    let settings = Settings {
        brokers: Vec::new(),
        topic: TOPIC.to_owned(),
        creates_topic: false,
        compression: Compression::None,
        login: None,
    };
    let mut cluster = Cluster::of_one_leader(settings, connection, 5);
    // The last partition has no leader.
    cluster.leaders.push(None);
    let records = [Record {
        agent_id: "a",
        hostname: "host",
        identity: "uid:0".to_owned(),
        stream_id: 1,
        stream_seq: 1,
        batch: vec![7].into(),
    }];
    let group = Group::of(&records);
    let batches = (0..6).map(|partition| (partition, group.messages(&[0], Compression::None)));
    // The broker answers for partition 2 of another topic, but not for ours.
    let answers = [
        ("other", vec![(2, 0)]),
        (TOPIC, vec![(0, 0), (1, 7), (3, 10), (4, 19)]),
    ];
    let broker = tokio::spawn(answer(peer, answers));
    let mut told = BTreeMap::new();
    let deadline = Instant::now() + Duration::from_mins(1);
    let throttled = cluster
        .produce(batches.collect(), deadline, |partition, answer| {
            told.insert(partition, shown(&answer));
        })
        .await;
    let expected = ["stored", "failed", "failed", "too long", "failed", "failed"];
    assert_eq!(told.into_values().collect::<Vec<_>>(), expected);
    assert_eq!(throttled, Duration::from_millis(1500));
    assert_eq!(broker.await.unwrap(), ACKS_ALL);
}

fn shown(answer: &Answer) -> &'static str {
    match answer {
        Answer::Stored => "stored",
        Answer::TooLong => "too long",
        Answer::Failed(_) => "failed",
    }
}

/// Answers one request, of version 7, with these errors by topic and partition. Returns how many replicas have to have the
/// messages: all that are in sync are -1.
async fn answer(mut peer: TcpStream, errors: [(&str, Vec<(i32, i16)>); 2]) -> i16 {
    let len = peer.read_i32().await.unwrap();
    let mut request = vec![0; usize::try_from(len).unwrap()];
    peer.read_exact(&mut request).await.unwrap();
    let mut request = &request[..];
    let head = (
        request.read_i16().await.unwrap(),
        request.read_i16().await.unwrap(),
    );
    assert_eq!(head, (0, 7), "the request and its version");
    let correlation_id = request.read_i32().await.unwrap();
    let client_id_len = request.read_i16().await.unwrap();
    request = &request[usize::try_from(client_id_len).unwrap()..];
    assert_eq!(request.read_i16().await.unwrap(), -1, "no transaction");
    let acks = request.read_i16().await.unwrap();
    let mut body = Vec::new();
    body.write_i32(correlation_id).await.unwrap();
    body.write_i32(2).await.unwrap();
    for (topic, errors) in errors {
        body.write_i16(i16::try_from(topic.len()).unwrap())
            .await
            .unwrap();
        body.extend(topic.as_bytes());
        body.write_i32(i32::try_from(errors.len()).unwrap())
            .await
            .unwrap();
        for (partition, error) in errors {
            body.write_i32(partition).await.unwrap();
            body.write_i16(error).await.unwrap();
            // An offset, a time, and the first offset.
            body.extend([0xff; 3 * size_of::<i64>()]);
        }
    }
    body.write_i32(1500).await.unwrap();
    peer.write_i32(i32::try_from(body.len()).unwrap())
        .await
        .unwrap();
    peer.write_all(&body).await.unwrap();
    acks
}
