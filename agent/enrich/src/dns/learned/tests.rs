use std::collections::BTreeMap;

use agent_common::dns::KEPT_LEN;
use proto::NameSource;
use sys::clock::ScanClock;

use super::*;

const CLIENT: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [10, 0, 0, 53];
const SECOND: u64 = 1_000_000_000;

fn key() -> FlowKey {
    let address = |address: [u8; 4]| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&address);
        bytes
    };
    FlowKey {
        addr_a: address(CLIENT),
        addr_b: address(SERVER),
        port_a: 40_000,
        port_b: 53,
        ip_version: 4,
        netns: 7,
        ..FlowKey::default()
    }
}

/// A message as the programs hand it over; `direction` is 0 for the client's.
fn message(direction: u32, seen_ns: u64, bytes: &[u8]) -> DnsMessage {
    let kept = bytes.len().min(KEPT_LEN);
    let mut message = DnsMessage {
        key: key(),
        seen_ns,
        direction,
        is_part: 0,
        len_bytes: bytes.len() as u32,
        kept_bytes: kept as u32,
        payload: [0xff; KEPT_LEN],
    };
    message.payload[..kept].copy_from_slice(&bytes[..kept]);
    message
}

/// A query for the address of `www.example`.
fn query(id: u8) -> Vec<u8> {
    let mut bytes = vec![0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(b"\x03www\x07example\x00\x00\x01\x00\x01");
    bytes
}

/// An answer with this many addresses, from 192.0.2.0 on.
fn answer(id: u8, addresses: u8) -> Vec<u8> {
    let mut bytes = query(id);
    (bytes[2], bytes[3], bytes[7]) = (0x81, 0x80, addresses);
    for host in 0..addresses {
        bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, host]);
    }
    bytes
}

fn learned() -> Learned {
    Learned::new(100, 7, true)
}

fn name_of(learned: &Learned, host: u8, client: [u8; 4], at_ns: u64) -> Option<NameSource> {
    let host = IpAddr::from([192, 0, 2, host]);
    let name = learned
        .names
        .lookup((Realm::of(&key()), host), client.into(), at_ns)?;
    assert_eq!(name.text(), "www.example");
    Some(name.source())
}

#[test]
fn the_client_of_an_answer_learns_what_it_asked_for() {
    let mut learned = learned();
    learned.note(&message(0, SECOND, &query(1)));
    assert_eq!(name_of(&learned, 0, CLIENT, 9 * SECOND), None);
    learned.note(&message(1, 3 * SECOND, &answer(1, 2)));
    for host in [0, 1] {
        assert_eq!(name_of(&learned, host, CLIENT, 2 * SECOND), None);
        let at = 3 * SECOND;
        assert_eq!(name_of(&learned, host, CLIENT, at), Some(NameSource::Dns));
        let other = name_of(&learned, host, SERVER, at);
        assert_eq!(other, Some(NameSource::DnsOfAnother));
    }
    let stats = &learned.stats;
    assert_eq!((stats.queries, stats.answers, stats.unasked), (1, 1, 0));
    assert_eq!(
        stats.answers_by_code,
        BTreeMap::from([("noerror".to_owned(), 1)])
    );
    assert_eq!(stats.waited_ns, 2 * SECOND);
}

#[test]
fn an_exchange_is_told_of_with_its_answer_or_when_it_is_given_up() {
    let mut learned = learned();
    learned.note(&message(0, SECOND, &query(1)));
    learned.note(&message(0, SECOND, &query(2)));
    learned.note(&message(1, 3 * SECOND, &answer(1, 2)));
    for now in [10, 20, 30] {
        learned.give_up(now * SECOND);
    }
    assert_eq!(learned.queries.len(), 0);
    let clock = ScanClock {
        boot_to_unix_ns: 1000,
        ..ScanClock::default()
    };
    let exchanges = learned.exchanges.unwrap().take();
    let told: Vec<_> = exchanges
        .into_iter()
        .map(|one| one.into_message(clock))
        .collect();
    let without_answer = proto::DnsExchange {
        client_addr: CLIENT.to_vec(),
        server_addr: SERVER.to_vec(),
        client_port: 40_000,
        netns: 7,
        name: "www.example".to_owned(),
        record_type: 1,
        asked_unix_ns: SECOND + 1000,
        ..proto::DnsExchange::default()
    };
    let answered = proto::DnsExchange {
        waited_ns: Some(2 * SECOND),
        code: Some(0),
        addrs: vec![vec![192, 0, 2, 0], vec![192, 0, 2, 1]],
        ..without_answer.clone()
    };
    assert_eq!(told, [answered, without_answer]);
    assert_eq!(learned.stats.unanswered, 1);
}

#[test]
fn an_answer_that_comes_twice_or_from_the_client_itself_is_none() {
    let mut learned = learned();
    learned.note(&message(0, SECOND, &query(1)));
    // As if the client were asked.
    learned.note(&message(0, SECOND, &answer(1, 1)));
    assert_eq!(learned.stats.unasked, 1);
    learned.note(&message(1, SECOND, &answer(1, 1)));
    learned.note(&message(1, SECOND, &answer(1, 1)));
    assert_eq!((learned.stats.answers, learned.stats.unasked), (3, 2));
}

/// An attacker that can only send to this host would send both.
#[test]
fn a_query_and_an_answer_that_both_arrive_name_nothing() {
    let mut learned = learned();
    let query = DnsMessage {
        key: key().with_side(1),
        ..message(0, SECOND, &query(1))
    };
    learned.note(&query);
    learned.note(&message(1, SECOND, &answer(1, 1)));
    assert_eq!((learned.stats.unasked, learned.names.len()), (1, 0));
}

#[test]
fn an_answer_with_an_error_names_nothing_and_codes_without_a_name_are_one() {
    let mut learned = learned();
    for (id, code) in [(1, 3), (2, 15), (3, 11)] {
        learned.note(&message(0, SECOND, &query(id)));
        let mut bytes = answer(id, 1);
        bytes[3] |= code;
        learned.note(&message(1, SECOND, &bytes));
    }
    let expected = [("nxdomain", 1), ("other", 2)];
    let expected = expected.map(|(code, count)| (code.to_owned(), count));
    assert_eq!(learned.stats.answers_by_code, BTreeMap::from(expected));
    assert_eq!(learned.names.len(), 0);
}

/// Each query is counted in one of these.
#[test]
fn all_queries_are_accounted_for() {
    let mut learned = learned();
    for id in [1, 1, 2, 3, 4] {
        learned.note(&message(0, SECOND, &query(id)));
    }
    learned.note(&message(1, SECOND, &answer(2, 1)));
    let mut other = query(3);
    other[13] = b'x';
    learned.note(&message(0, 2 * SECOND, &other));
    let accounted = |learned: &Learned| {
        let stats = &learned.stats;
        let answered: u64 = stats.answers_by_code.values().sum();
        let waiting = learned.queries.len() as u64;
        let all = [
            answered,
            stats.repeated,
            stats.not_followed,
            stats.unanswered,
            waiting,
        ];
        assert_eq!(all.iter().sum::<u64>(), stats.queries);
        all
    };
    assert_eq!(accounted(&learned), [1, 1, 1, 0, 3]);
    for now in [10, 20] {
        learned.give_up(now * SECOND);
    }
    assert_eq!(accounted(&learned), [1, 1, 1, 3, 0]);
}

#[test]
fn what_was_kept_of_a_long_answer_is_read_and_so_is_the_first_fragment() {
    let mut learned = learned();
    let long = answer(1, 100);
    assert!(long.len() > KEPT_LEN);
    learned.note(&message(0, SECOND, &query(1)));
    learned.note(&message(1, SECOND, &long));
    assert_eq!(name_of(&learned, 80, CLIENT, SECOND), Some(NameSource::Dns));
    learned.note(&message(0, SECOND, &query(2)));
    let part = DnsMessage {
        is_part: 1,
        ..message(1, SECOND, &answer(2, 3)[..60])
    };
    learned.note(&part);
    assert_eq!(learned.stats.malformed, 0);
    // If it claims to be whole, it is malformed, and the query still waits.
    learned.note(&message(0, SECOND, &query(3)));
    learned.note(&message(1, SECOND, &answer(3, 3)[..60]));
    assert_eq!((learned.stats.malformed, learned.queries.len()), (1, 1));
}

#[test]
fn a_length_that_is_too_long_is_no_way_out_of_the_message() {
    let mut learned = learned();
    let odd = DnsMessage {
        kept_bytes: u32::MAX,
        len_bytes: u32::MAX,
        ..message(0, SECOND, &query(1))
    };
    learned.note(&odd);
    assert_eq!(learned.stats.queries, 1);
}
