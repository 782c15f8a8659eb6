use super::*;
use crate::dns::message::Address;

const SECOND: u64 = 1_000_000_000;

fn realm() -> Realm {
    Realm {
        netns: 7,
        ..Realm::default()
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn learn(names: &mut Names, text: &str, client: &str, of: &[&str], ttl: u64, now_ns: u64) {
    let of: Vec<Address> = of
        .iter()
        .map(|one| Address {
            address: address(one),
            ttl: Duration::from_secs(ttl),
        })
        .collect();
    names.learn(text, (realm(), address(client)), &of, now_ns);
}

fn of(names: &Names, host: &str, client: &str, at_ns: u64) -> Option<(String, NameSource)> {
    let name = names.lookup((realm(), address(host)), address(client), at_ns)?;
    Some((name.text().to_owned(), name.source()))
}

fn dns(text: &str) -> (String, NameSource) {
    (text.to_owned(), NameSource::Dns)
}

#[test]
fn a_name_holds_from_its_answer_on_until_its_time_is_over() {
    let mut names = Names::at_most(100, 7);
    learn(
        &mut names,
        "a",
        "10.0.0.1",
        &["192.0.2.1"],
        30,
        100 * SECOND,
    );
    learn(
        &mut names,
        "zero",
        "10.0.0.1",
        &["192.0.2.2"],
        0,
        100 * SECOND,
    );
    for (at, expected) in [
        (100 * SECOND - 1, None),
        (100 * SECOND, Some(dns("a"))),
        (130 * SECOND, Some(dns("a"))),
        (130 * SECOND + 1, None),
    ] {
        assert_eq!(of(&names, "192.0.2.1", "10.0.0.1", at), expected, "{at}");
    }
    assert_eq!(
        of(&names, "192.0.2.2", "10.0.0.1", 110 * SECOND),
        Some(dns("zero"))
    );
    assert_eq!(of(&names, "192.0.2.2", "10.0.0.1", 110 * SECOND + 1), None);
    let in_tunnel = Realm {
        encapsulation: 3,
        tunnel_id: 1,
        ..realm()
    };
    for elsewhere in [Realm::default(), in_tunnel] {
        let at = (elsewhere, address("192.0.2.1"));
        let name = names.lookup(at, address("10.0.0.1"), 101 * SECOND);
        assert!(name.is_none(), "{elsewhere:?}");
    }
    // Learned again before it expires, a name is valid without a break; learned later, there is a gap.
    learn(
        &mut names,
        "a",
        "10.0.0.1",
        &["192.0.2.1"],
        30,
        120 * SECOND,
    );
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.1", 101 * SECOND),
        Some(dns("a"))
    );
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.1", 149 * SECOND),
        Some(dns("a"))
    );
    learn(
        &mut names,
        "a",
        "10.0.0.1",
        &["192.0.2.1"],
        30,
        200 * SECOND,
    );
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.1", 149 * SECOND),
        Some(dns("a"))
    );
    assert_eq!(of(&names, "192.0.2.1", "10.0.0.1", 160 * SECOND), None);
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.1", 201 * SECOND),
        Some(dns("a"))
    );
}

#[test]
fn of_two_names_the_one_that_was_learned_last_before_the_flow_counts() {
    let mut names = Names::at_most(100, 7);
    learn(&mut names, "a", "10.0.0.1", &["192.0.2.1"], 60, SECOND);
    learn(&mut names, "b", "10.0.0.1", &["192.0.2.1"], 60, 3 * SECOND);
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.1", 2 * SECOND),
        Some(dns("a"))
    );
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.1", 4 * SECOND),
        Some(dns("b"))
    );
    // Learned once more, the first name is the latest.
    learn(&mut names, "a", "10.0.0.1", &["192.0.2.1"], 60, 5 * SECOND);
    for (second, name) in [(2, "a"), (4, "b"), (6, "a")] {
        let at = second * SECOND;
        assert_eq!(
            of(&names, "192.0.2.1", "10.0.0.1", at),
            Some(dns(name)),
            "{second}"
        );
    }
}

#[test]
fn the_name_that_the_client_asked_for_goes_before_the_hosts_file_and_that_before_others() {
    let mut names = Names::at_most(100, 7);
    let at = |names: &Names, client: &str| of(names, "192.0.2.1", client, 2 * SECOND);
    learn(&mut names, "a", "10.0.0.1", &["192.0.2.1"], 60, SECOND);
    assert_eq!(at(&names, "10.0.0.1"), Some(dns("a")));
    let of_another = Some(("a".to_owned(), NameSource::DnsOfAnother));
    assert_eq!(at(&names, "10.0.0.2"), of_another);
    let hosts = HashMap::from([(address("192.0.2.1"), "h".into())]);
    names.set_hosts(hosts.clone());
    assert_eq!(at(&names, "10.0.0.1"), Some(dns("a")));
    assert_eq!(
        at(&names, "10.0.0.2"),
        Some(("h".to_owned(), NameSource::HostsFile))
    );
    let id = |names: &Names| {
        let name = names.lookup(
            (realm(), address("192.0.2.1")),
            address("10.0.0.2"),
            2 * SECOND,
        );
        name.unwrap().id()
    };
    let before = id(&names);
    names.set_hosts(hosts);
    assert_eq!(id(&names), before, "it is still the same");
    let elsewhere = names.lookup(
        (Realm::default(), address("192.0.2.1")),
        address("10.0.0.2"),
        2 * SECOND,
    );
    assert!(elsewhere.is_none(), "it is of the agent's own namespace");
    names.set_hosts(HashMap::new());
    assert_eq!(at(&names, "10.0.0.2"), of_another);
}

#[test]
fn the_addresses_of_one_name_share_it_and_it_keeps_its_id() {
    let mut names = Names::at_most(100, 7);
    let ids = |names: &Names| {
        ["192.0.2.1", "192.0.2.2"].map(|one| {
            let name = names.lookup((realm(), address(one)), address("10.0.0.1"), 2 * SECOND);
            name.unwrap().id()
        })
    };
    learn(&mut names, "a", "10.0.0.1", &["192.0.2.1"], 60, SECOND);
    learn(
        &mut names,
        "a",
        "10.0.0.1",
        &["192.0.2.1", "192.0.2.2"],
        60,
        SECOND,
    );
    assert_eq!(ids(&names), [1, 1]);
    assert_eq!(told(&names, 1), "a");
}

fn told(names: &Names, id: u64) -> String {
    let mut told = Vec::new();
    names.each_name(&[id], |id, text| told.push((id, text.to_owned())));
    let [(same, text)] = told.try_into().unwrap();
    assert_eq!(same, id);
    text
}

#[test]
fn there_is_a_bound_and_what_is_learned_again_stays() {
    let mut names = Names::at_most(100, 7);
    for number in 0..1000_u32 {
        let at = SECOND + u64::from(number);
        learn(&mut names, "kept", "10.0.0.1", &["192.0.2.1"], 60, at);
        let other = IpAddr::from((0x0a00_0000 + number).to_be_bytes()).to_string();
        learn(&mut names, "other", "10.0.0.1", &[&other], 60, at);
        assert!(names.len() <= 100, "{}", names.len());
    }
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.1", SECOND),
        Some(dns("kept"))
    );
    assert_eq!(of(&names, "10.0.0.0", "10.0.0.1", 2 * SECOND), None);
    // Many clients that ask for one address.
    for number in 0..1000_u32 {
        let client = IpAddr::from((0x0b00_0000 + number).to_be_bytes()).to_string();
        learn(&mut names, "kept", &client, &["192.0.2.1"], 60, SECOND);
        assert!(names.len() <= 100, "{}", names.len());
    }
    let known = names.newer.get(&(realm(), address("192.0.2.1")));
    assert_eq!(known.map(Vec::len), Some(MOST_PER_ADDRESS));
    // None of the dropped names had expired.
    let learned = 1000 + 1 + 1000;
    assert_eq!(names.forgotten(), learned - names.len() as u64);
}

#[test]
fn what_is_over_makes_room_first_and_is_not_counted_as_forgotten() {
    let mut names = Names::at_most(100, 7);
    for client in 0..MOST_PER_ADDRESS as u8 {
        // The second client's name expires first.
        let ttl = if client == 1 { 10 } else { 60 };
        let client = IpAddr::from([10, 0, 0, client]).to_string();
        learn(&mut names, "a", &client, &["192.0.2.1"], ttl, SECOND);
    }
    learn(&mut names, "a", "10.0.1.1", &["192.0.2.1"], 60, 20 * SECOND);
    assert_eq!(names.forgotten(), 0);
    assert_eq!(
        of(&names, "192.0.2.1", "10.0.0.0", 20 * SECOND),
        Some(dns("a"))
    );
    learn(&mut names, "a", "10.0.1.2", &["192.0.2.1"], 60, 20 * SECOND);
    assert_eq!(names.forgotten(), 1);
}

#[test]
fn names_that_nobody_uses_are_given_back_and_those_of_flows_are_not() {
    let mut names = Names::at_most(10, 7);
    learn(&mut names, "held", "10.0.0.1", &["192.0.2.1"], 60, SECOND);
    let held = names.lookup((realm(), address("192.0.2.1")), address("10.0.0.1"), SECOND);
    let held = held.unwrap();
    for number in 0..10_000_u32 {
        let other = IpAddr::from((0x0a00_0000 + number).to_be_bytes()).to_string();
        learn(&mut names, &other, "10.0.0.1", &[&other], 60, SECOND);
    }
    assert!(names.issued.by_id.len() <= 2 * 20 + Issued::FEW + 1);
    assert_eq!(of(&names, "192.0.2.1", "10.0.0.1", SECOND), None);
    assert_eq!(told(&names, held.id()), "held");
}

#[test]
fn flows_cannot_hold_more_names_than_there_is_room_for() {
    let mut names = Names::at_most(10, 7);
    let mut held = Vec::new();
    let at = |names: &mut Names, number: u32| {
        let other = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        let text = other.to_string();
        learn(names, &text, "10.0.0.1", &[&text], 60, SECOND);
        names.lookup((realm(), other), address("10.0.0.1"), SECOND)
    };
    for number in 0..30 {
        held.extend(at(&mut names, number));
    }
    assert_eq!(held.len(), 20);
    held.clear();
    assert!(at(&mut names, 30).is_some());
}

#[test]
fn a_client_that_asks_for_two_names_of_an_address_in_turn_leaves_those_of_others_alone() {
    let mut names = Names::at_most(100, 7);
    learn(&mut names, "other", "10.0.0.2", &["192.0.2.1"], 60, SECOND);
    for turn in 0..50 {
        for text in ["a", "b"] {
            learn(
                &mut names,
                text,
                "10.0.0.1",
                &["192.0.2.1"],
                300,
                (2 + turn) * SECOND,
            );
        }
    }
    assert!(names.len() <= 5, "{}", names.len());
    assert_eq!(names.forgotten(), 0);
    let at = 51 * SECOND;
    assert_eq!(of(&names, "192.0.2.1", "10.0.0.2", at), Some(dns("other")));
    assert_eq!(of(&names, "192.0.2.1", "10.0.0.1", at), Some(dns("b")));
}

#[test]
fn a_large_file_of_hosts_takes_no_room_of_other_names() {
    let mut names = Names::at_most(10, 7);
    let hosts = |first: u32| {
        let hosts = (first..first + 1000).map(|number| {
            let address = IpAddr::from((0x0c00_0000 + number).to_be_bytes());
            (address, number.to_string().into())
        });
        hosts.collect::<HashMap<_, Box<str>>>()
    };
    names.set_hosts(hosts(0));
    names.set_hosts(hosts(500));
    let host = |number: u32| {
        let address = IpAddr::from((0x0c00_0000 + number).to_be_bytes());
        of(&names, &address.to_string(), "10.0.0.1", SECOND).map(|(name, _)| name)
    };
    assert_eq!(
        [0, 500, 1499].map(host),
        [None, Some("500".into()), Some("1499".into())]
    );
    learn(&mut names, "a", "10.0.0.1", &["192.0.2.1"], 60, SECOND);
    assert_eq!(of(&names, "192.0.2.1", "10.0.0.1", SECOND), Some(dns("a")));
}
