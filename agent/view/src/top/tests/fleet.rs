//! The hosts of a collector.

use super::{
    super::fleet::{Host, MOST_HOSTS},
    *,
};

/// A batch that a collector streams for an agent.
fn from(host: &str, batch: FlowBatch) -> FlowBatch {
    FlowBatch {
        agent: Some(AgentIdentity {
            agent_id: format!("machine of {host}"),
            hostname: format!("{host}.example"),
            instance_id: "1".to_owned(),
            identity: host.to_owned(),
            ..AgentIdentity::default()
        }),
        stream_id: 1 + u64::from(host.as_bytes()[0]),
        ..batch
    }
}

fn two_hosts() -> Fleet {
    fleet([
        from(
            "web",
            batch(1, vec![flow(1, [4, 400, 0, 0], [9, 900, 0, 0])]),
        ),
        // The flow has the same key there, and its scans take twice as long.
        from(
            "db",
            FlowBatch {
                window_start_unix_ns: 0,
                window_end_unix_ns: 4 * SECOND,
                ..batch(
                    7,
                    vec![
                        flow(1, [8, 800, 4, 40], [8, 800, 4, 40]),
                        flow(2, [2, 200, 0, 0], [2, 200, 0, 0]),
                    ],
                )
            },
        ),
    ])
}

/// The hosts, the name and the bits per second of each row.
fn told(fleet: &Fleet, view: View) -> Vec<(Vec<&str>, String, [u64; 2])> {
    let rows = rows(fleet, view, Sort::Rate, false);
    let told = rows.iter().map(|row| {
        let name = match row.of {
            Of::Flow(key, flow) => {
                assert!(row.host.unwrap().picture.flow(key).is_some());
                flow.endpoints()[0].clone()
            }
            Of::Group(name) => name.to_owned(),
        };
        (row.hosts(), name, row.bits())
    });
    told.collect()
}

#[test]
fn each_host_has_its_own_flows_and_rates_add_up() {
    let fleet = two_hosts();
    let row = |hosts: &[&'static str], name: &str, bits: [u64; 2]| {
        (hosts.to_vec(), name.to_owned(), bits)
    };
    // 400 bytes in two seconds, 800 and 200 in four.
    assert_eq!(
        told(&fleet, View::Flows),
        [
            row(&["db.example"], "10.0.0.1:40000", [1600, 80]),
            row(&["web.example"], "10.0.0.1:40000", [1600, 0]),
            row(&["db.example"], "10.0.0.2:40000", [400, 0]),
        ]
    );
    assert_eq!(
        told(&fleet, View::Hosts),
        [
            row(&["db.example"], "db.example", [2000, 80]),
            row(&["web.example"], "web.example", [1600, 0]),
        ]
    );
    // An interface is one of its host, and a peer or a service one of all.
    assert_eq!(
        told(&fleet, View::Interfaces),
        [
            row(&["db.example"], "eth0", [2000, 80]),
            row(&["web.example"], "eth0", [1600, 0]),
        ]
    );
    let both = ["db.example", "web.example"];
    assert_eq!(
        told(&fleet, View::Peers),
        [row(&both, "10.0.1.1", [3600, 80])]
    );
    assert_eq!(
        told(&fleet, View::Services),
        [row(&both, "443/tcp", [3600, 80])]
    );
    let rows = rows(&fleet, View::Peers, Sort::Rate, false);
    assert_eq!((rows[0].flows, rows[0].window()), (3, None));
    assert_eq!(rows[0].total, traffic([14, 4], [1400, 40]));
    assert_eq!(rows[0].history(), [3600 + 80]);
    assert_eq!(fleet.tracked_flows(), Some(3));
}

#[test]
fn a_scan_is_shown_once_it_is_complete_also_if_others_come_between() {
    let part = |host: &str, scan: u64, index: u32, is_last: bool, source: u8| FlowBatch {
        batch_index: index,
        last_of_scan: is_last,
        ..from(
            host,
            batch(scan, vec![flow(source, [1, 100, 0, 0], [1, 100, 0, 0])]),
        )
    };
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, now);
    let mut take = |batch, expected: [u64; 2]| {
        fleet.take(batch, now);
        let packets = |host: &Host| host.picture.all().total.all_packets();
        let packets: Vec<_> = fleet.hosts().map(packets).collect();
        assert_eq!(packets, expected[..packets.len()]);
    };
    take(part("a", 1, 0, false, 1), [0, 0]);
    take(part("b", 5, 0, false, 1), [0, 0]);
    take(part("a", 1, 1, true, 2), [2, 0]);
    take(part("b", 5, 1, true, 2), [2, 2]);
    // The end of a scan is lost: what came of it is shown with the next one.
    take(part("a", 2, 0, false, 3), [2, 2]);
    take(part("a", 3, 0, false, 4), [3, 2]);
    take(part("a", 3, 1, true, 5), [5, 2]);
}

/// Rounded for each host, a thousand of them would have no packets.
#[test]
fn small_rates_of_many_hosts_add_up() {
    let slow = |number: u64| {
        let mut slow = batch(1, vec![flow(1, [2, 120, 0, 0], [2, 120, 0, 0])]);
        (slow.window_start_unix_ns, slow.window_end_unix_ns) = (0, 10 * SECOND);
        from(&format!("h{number}"), slow)
    };
    let fleet = fleet((0..1_000).map(slow));
    let rows = rows(&fleet, View::Services, Sort::Rate, false);
    assert_eq!(rows[0].packets(), [200, 0]);
    assert_eq!(rows[0].bits(), [96_000, 0]);
}

/// Two agents of one machine are two. One that was started after another takes its place.
#[test]
fn an_agent_that_was_started_again_takes_the_place_of_the_one_before() {
    let mut fleet = two_hosts();
    let start = Instant::now();
    let mut take = |scan: u64, after: u64| {
        let mut again = from(
            "db",
            batch(scan, vec![flow(2, [1, 50, 0, 0], [1, 50, 0, 0])]),
        );
        again.agent.as_mut().unwrap().instance_id = "2".to_owned();
        fleet.take(again, start + Duration::from_secs(after));
        let totals = fleet.hosts().map(|host| host.picture.all().total.bytes[0]);
        totals.collect::<Vec<_>>()
    };
    assert_eq!(take(1, 10), [1000, 50, 400]);
    // The first one would be silent now, as the other host is.
    assert_eq!(take(2, 30), [100, 400]);
    assert_eq!(fleet.silent(), 1);
}

#[test]
fn a_batch_that_comes_again_or_on_two_streams_counts_once() {
    let mut fleet = two_hosts();
    let part = |index: u32, is_last: bool, stream_id: u64| FlowBatch {
        batch_index: index,
        last_of_scan: is_last,
        stream_id,
        ..from("web", batch(2, vec![flow(5, [1, 10, 0, 0], [1, 10, 0, 0])]))
    };
    for (batch, expected) in [
        (
            from(
                "web",
                batch(1, vec![flow(1, [4, 400, 0, 0], [9, 900, 0, 0])]),
            ),
            400,
        ),
        (part(0, false, 7), 400),
        (part(0, false, 7), 400),
        (part(0, false, 8), 400),
        (part(1, true, 8), 400),
        (part(1, true, 7), 420),
        (part(1, true, 8), 420),
    ] {
        fleet.take(batch, Instant::now());
        let web = fleet.hosts().find(|host| host.label == "web.example");
        assert_eq!(web.unwrap().picture.all().total.bytes[0], expected);
    }
}

#[test]
fn a_host_that_is_silent_says_so_and_its_rates_count_no_more() {
    let mut screen = screen();
    *screen.fleet_mut() = two_hosts();
    let start = Instant::now();
    press(&mut screen, KeyCode::Char('8'));
    let lines = shown(&mut screen, 120, 24);
    let head = "flow-agent top  collector  2 hosts  3 flows tracked  rates over each host's last scan, up to 4s";
    assert_eq!(lines[0], head);
    assert_eq!(lines[1], "TX 3.6 kbit/s 5 pkt/s  RX 80 bit/s 1 pkt/s");
    assert!(lines[5].starts_with("db.example "), "{}", lines[5]);
    // Three windows of two seconds and ten seconds, then of four.
    let silent = |after: u64, screen: &mut Screen| {
        let is_news = screen.fleet_mut().tick(start + Duration::from_secs(after));
        (is_news, screen.fleet().silent())
    };
    assert_eq!(silent(15, &mut screen), (false, 0));
    assert_eq!(silent(17, &mut screen), (true, 1));
    let lines = shown(&mut screen, 120, 24);
    assert_eq!(lines[1], "TX 2.0 kbit/s 3 pkt/s  RX 80 bit/s 1 pkt/s");
    assert_eq!(lines[4], "1 hosts are silent, their flows are not shown");
    assert!(
        lines[7].starts_with("web.example: silent for 1"),
        "{}",
        lines[7]
    );
    assert_eq!(told(screen.fleet(), View::Flows).len(), 2);
    assert_eq!(silent(23, &mut screen), (true, 2));
    // One that is heard again is shown again, and one that is gone for good is forgotten.
    let again = from("web", batch(2, Vec::new()));
    screen
        .fleet_mut()
        .take(again, start + Duration::from_secs(700));
    assert_eq!(screen.fleet().silent(), 0);
    assert_eq!(told(screen.fleet(), View::Hosts).len(), 1);
}

#[test]
fn one_sender_with_too_many_hosts_costs_no_other_its_place() {
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, now);
    fleet.take(from("web", batch(1, Vec::new())), now);
    for number in 0..MOST_HOSTS + 10 {
        let mut batch = from("evil", batch(1, Vec::new()));
        batch.agent.as_mut().unwrap().agent_id = number.to_string();
        fleet.take(batch, now + Duration::from_millis(1 + number as u64));
    }
    assert_eq!(fleet.hosts().count(), MOST_HOSTS);
    assert_eq!(fleet.missing.forgotten_hosts, 11);
    let labels = fleet.hosts().filter(|host| host.label == "web.example");
    assert_eq!(labels.count(), 1);
}

#[test]
fn many_hosts_share_the_room_for_rows() {
    let hosts = 50;
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, now);
    let many: Vec<_> = (0..3_000_u32)
        .map(|number| {
            let mut one = flow(1, [1, 60, 0, 0], [1, 60, 0, 0]);
            one.src_mut().addr = number.to_be_bytes().to_vec().into();
            one
        })
        .collect();
    for round in 1..=2 {
        for number in 0..hosts {
            let name = format!("h{number}");
            fleet.take(from(&name, batch(round, many.clone())), now);
        }
    }
    let flows: usize = fleet.hosts().map(|host| host.picture.flows().count()).sum();
    assert_eq!(flows, 5 * MOST_FLOWS);
    assert!(draw::warnings(&fleet).contains("rows with the least are left out"));
}

#[test]
fn a_name_that_its_sender_does_not_have_stands_with_the_identity() {
    let label = |identity: &str, hostname: &str| {
        let mut batch = from("x", batch(1, Vec::new()));
        let agent = batch.agent.as_mut().unwrap();
        (agent.identity, agent.hostname) = (identity.to_owned(), hostname.to_owned());
        fleet([batch]).hosts().next().unwrap().label.clone()
    };
    assert_eq!(label("web", "web.example"), "web.example");
    assert_eq!(label("web.example", "web"), "web");
    assert_eq!(label("uid:0", "web"), "web");
    assert_eq!(label("ip:10.0.0.1", "web"), "web (ip:10.0.0.1)");
    assert_eq!(label("web", "db\u{1b}[2J"), "db\\u{1b}[2J (web)");
}

#[test]
fn lines_of_hosts_say_whose_they_are_and_what_their_rates_are() {
    let fleet = two_hosts();
    let printed = |view: View| -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        print::json(&mut lines, &fleet, (view, Sort::Rate), 50).unwrap();
        let lines = String::from_utf8(lines).unwrap();
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let flows = printed(View::Flows);
    assert_eq!(flows[0]["hostname"], "db.example");
    assert_eq!(flows[0]["window_ns"], 4 * SECOND);
    assert_eq!(flows[0]["bits_per_second"], 1600);
    assert_eq!(flows[1]["hostname"], "web.example");
    let peers = printed(View::Peers);
    assert!(peers[0].get("hostname").is_none(), "{}", peers[0]);
    assert!(peers[0]["window_ns"].is_null());
    assert_eq!(peers[0]["bits_per_second"], 3600);
    assert_eq!(peers[0]["total_bytes"], 1400);
    let total = &peers[1];
    assert!(total["hostname"].is_null() && total["scan_id"].is_null());
    assert_eq!(
        (&total["hosts"], &total["silent_hosts"]),
        (&2.into(), &0.into())
    );
    assert_eq!(total["bits_per_second"], 3600);
    assert_eq!(total["account_closes"], true);
    assert_eq!(printed(View::Hosts)[1]["type"], "host");
}
