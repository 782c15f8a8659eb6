use prost::Message as _;
use proto::{FlowBatch, FlowRecord};
use tls::identity::{Grant, Roles};

use super::*;

const STREAM: u64 = 7;

fn batch(seq: u64) -> FlowBatch {
    FlowBatch {
        agent: Some(AgentIdentity {
            hostname: "one".to_owned(),
            ..AgentIdentity::default()
        }),
        stream_id: STREAM,
        stream_seq: seq,
        records: vec![FlowRecord::default()],
        ..FlowBatch::default()
    }
}

fn incoming(batch: &FlowBatch) -> Incoming {
    from(batch, Identity::User(0))
}

fn from(batch: &FlowBatch, identity: Identity) -> Incoming {
    let caller = Grant {
        identity,
        roles: Roles::all(),
    };
    Incoming::read(&batch.encode_to_vec().into(), &caller).unwrap()
}

fn key(id: u64) -> Key {
    (Identity::User(0), id)
}

fn facts(batch: &FlowBatch, digest: u64) -> Facts {
    Facts::of(&incoming(batch), digest, LostSoFar::default())
}

#[test]
fn a_batch_is_known_by_its_number_and_its_digest_with_the_stores_that_have_it() {
    let streams = Streams::default();
    let kept = |seq, digest| streams.stores_with(&facts(&batch(seq), digest));
    for (seq, digest, stores) in [(1, 1, 1), (2, 1, 2), (1, 2, 3), (1, 1, 4)] {
        streams.stored_in_part(&facts(&batch(seq), digest), stores);
    }
    assert_eq!(
        [kept(1, 1), kept(2, 1), kept(1, 2), kept(2, 2)],
        [4, 2, 3, 0]
    );
    streams.stored(facts(&batch(2), 1), 5);
    assert_eq!((kept(1, 1), kept(2, 1)), (4, 5));
    // Another stream has no known batches.
    let other = FlowBatch {
        stream_id: 8,
        ..batch(1)
    };
    assert_eq!(streams.stores_with(&facts(&other, 1)), 0);
    // The same stream number of another sender has none either.
    let other = from(&batch(1), Identity::named("other").unwrap());
    assert_eq!(
        streams.stores_with(&Facts::of(&other, 1, LostSoFar::default())),
        0
    );
    // A known batch takes no more room, so the oldest is forgotten with the first batch beyond the limit.
    for seq in 3..3 + REMEMBERED as u64 - 3 {
        streams.stored(facts(&batch(seq), 1), 5);
        streams.stored(facts(&batch(seq), 1), 5);
    }
    assert_eq!(kept(1, 1), 4);
    streams.stored(facts(&batch(u64::MAX), 1), 5);
    assert_eq!((kept(1, 1), kept(2, 1)), (0, 5));
}

#[test]
fn a_stream_is_connected_while_it_has_a_call_and_shows_its_last_batch() {
    let streams = Streams::default();
    let of_now = || streams.status().remove(0);
    let (first, _) = streams.begin(&incoming(&batch(1)), "there");
    let (second, _) = streams.begin(&incoming(&batch(1)), "there, too");
    let told = of_now();
    assert!(told.connected && told.since_unix_ns > 0);
    assert_eq!(told.peer, "there, too");
    let scanned = FlowBatch {
        window_end_unix_ns: 9,
        report_interval_ns: 8,
        sample_rate: 7,
        lost_batches: 1,
        lost_packets: 5,
        account: Some(Account::default()),
        ..batch(1)
    };
    streams.stored(facts(&scanned, 1), 1);
    // A batch that only reports losses has no agent, no window and no account.
    let telling = FlowBatch {
        agent: None,
        records: Vec::new(),
        lost_batches: 2,
        lost_packets: 6,
        ..batch(2)
    };
    streams.stored(facts(&telling, 2), 1);
    let told = of_now();
    let told_agent = told.agent.clone().unwrap();
    assert_eq!(
        (&*told_agent.hostname, &*told_agent.identity),
        ("one", "uid:0")
    );
    assert_eq!(
        (
            told.window_end_unix_ns,
            told.report_interval_ns,
            told.sample_rate
        ),
        (9, 8, 7)
    );
    assert!(told.account.is_some());
    assert_eq!((told.stored_seq, told.batches), (2, 2));
    assert_eq!(told.stored.unwrap().records, 1);
    assert_eq!((told.lost_batches, told.lost.unwrap().packets), (2, 6));
    drop(first);
    assert!(of_now().connected);
    drop(second);
    assert!(!of_now().connected);
}

#[test]
fn streams_without_a_call_are_forgotten_after_a_day_and_the_oldest_makes_room() {
    let stream = |last, calls| Stream {
        calls,
        last,
        ..Stream::default()
    };
    let ids = |streams: &BTreeMap<Key, Stream>| {
        let ids = streams.keys().map(|(_, id)| *id);
        ids.collect::<Vec<_>>()
    };
    let sender = Identity::named("another").unwrap();
    let now = 10 * FORGOTTEN_AFTER;
    let a_day_ago = now.checked_sub(FORGOTTEN_AFTER).unwrap();
    let mut streams = BTreeMap::from([
        (key(1), stream(a_day_ago, 0)),
        (key(2), stream(a_day_ago, 1)),
        (key(3), stream(a_day_ago + Duration::from_nanos(1), 0)),
    ]);
    make_room(&mut streams, &sender, now);
    assert_eq!(ids(&streams), [2, 3]);
    // The first is the oldest, and has a call.
    let age = |id| now.checked_sub(Duration::from_secs(MOST as u64 - id));
    let all = 0..MOST as u64 - 1;
    let mut streams: BTreeMap<_, _> = all
        .clone()
        .map(|id| (key(id), stream(age(id).unwrap(), usize::from(id == 0))))
        .collect();
    make_room(&mut streams, &sender, now);
    assert_eq!(streams.len(), MOST - 1);
    streams.insert(key(MOST as u64), stream(now, 0));
    make_room(&mut streams, &sender, now);
    let rest = all.filter(|&id| id != 1).chain([MOST as u64]);
    assert_eq!(ids(&streams), rest.collect::<Vec<_>>());
}

#[test]
fn a_sender_with_as_many_streams_as_it_may_have_forgets_its_own_oldest() {
    for (name, most) in [
        (Identity::named("one").unwrap(), MOST_OF_CREDENTIAL),
        (Identity::User(7), MOST_OF_OTHERS),
    ] {
        let streams = Streams::default();
        let begin = |identity: &Identity, stream_id| {
            let batch = FlowBatch {
                stream_id,
                ..batch(1)
            };
            streams.begin(&from(&batch, identity.clone()), "there").0
        };
        let other = Identity::named("other").unwrap();
        drop(begin(&other, 1));
        let connected = begin(&name, 1);
        for stream_id in 2..=most as u64 + 10 {
            drop(begin(&name, stream_id));
        }
        let all = streams.streams();
        let ids: Vec<_> = all
            .range(of_sender(&name))
            .map(|((_, id), _)| *id)
            .collect();
        let last = most as u64 + 10;
        let expected: Vec<_> = std::iter::once(1)
            .chain(last + 2 - most as u64..=last)
            .collect();
        assert_eq!(ids, expected);
        assert!(all.contains_key(&(other, 1)));
        drop(all);
        drop(connected);
    }
}

#[test]
fn addresses_of_an_ipv6_network_have_their_streams_together() {
    let streams = Streams::default();
    for host in 1..=MOST_OF_OTHERS as u64 + 9 {
        let address = format!("ip:2001:db8::{host:x}");
        let batch = FlowBatch {
            stream_id: host,
            ..batch(1)
        };
        let incoming = from(&batch, Identity::read(&address).unwrap());
        drop(streams.begin(&incoming, "there"));
    }
    assert_eq!(streams.status().len(), MOST_OF_OTHERS);
}

#[test]
fn what_was_held_back_counts_for_its_stream_or_the_last_one_of_the_sender() {
    let streams = Streams::default();
    let second = Duration::from_secs(1);
    streams.last_was_held_back(&Identity::User(0), second);
    let (_call, _) = streams.begin(&incoming(&batch(1)), "there");
    streams.held_back(&key(STREAM), second);
    streams.held_back(&key(8), second);
    streams.last_was_held_back(&Identity::User(0), second);
    streams.last_was_held_back(&Identity::User(1), second);
    streams.repeated(&key(STREAM));
    let told = streams.status().remove(0);
    assert_eq!(
        (told.held_back_ns, told.repeated_batches),
        (2_000_000_000, 1)
    );
}
