//! The hosts of a collector.

use super::{
    super::{
        draw::warnings,
        fleet::{Host, MOST_HOSTS},
    },
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
    // An interface belongs to its host, and a peer or a service to all hosts.
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
    // Windows of unequal length have no history.
    assert!(rows[0].history().is_empty());
    assert_eq!(fleet.tracked_flows(), (3, 0));
}

/// A batch of a scan with one packet.
fn part(host: &str, scan: u64, index: u32, is_last: bool) -> FlowBatch {
    let record = flow(index as u8, [1, 100, 0, 0], [1, 100, 0, 0]);
    FlowBatch {
        batch_index: index,
        last_of_scan: is_last,
        ..from(host, batch(scan, vec![record]))
    }
}

fn packets_of(fleet: &Fleet) -> Vec<u64> {
    let packets = |host: &Host| host.picture.all().total.all_packets();
    fleet.hosts().map(packets).collect()
}

#[test]
fn a_scan_is_shown_once_it_is_complete_also_if_others_come_between() {
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, true, now);
    let mut take = |batch, expected: &[u64]| {
        fleet.add_batch(batch, now);
        assert_eq!(packets_of(&fleet), expected);
        (fleet.shown().count(), warnings(&fleet))
    };
    assert_eq!(take(part("a", 1, 0, false), &[0]).0, 0);
    assert_eq!(take(part("b", 5, 0, false), &[0, 0]).0, 0);
    assert_eq!(take(part("a", 1, 1, true), &[2, 0]).0, 1);
    assert_eq!(take(part("b", 5, 1, true), &[2, 2]), (2, String::new()));
}

/// A stream that began in the middle of a scan, or lost batches.
#[test]
fn what_is_missing_of_a_hosts_scans_is_said_with_its_name() {
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, true, now);
    let mut take = |batch| {
        fleet.add_batch(batch, now);
        let packets = packets_of(&fleet).iter().sum::<u64>();
        (packets, warnings(&fleet))
    };
    // Its beginning was before.
    let beginning = "1 host in a first scan: flows not shown";
    assert_eq!(take(part("a", 1, 1, true)), (0, beginning.to_owned()));
    assert_eq!(take(part("a", 2, 0, true)), (1, String::new()));
    // Lost are the end of the third scan, all of the fourth, and the middle of the fifth.
    take(part("a", 3, 0, false));
    take(part("a", 5, 0, false));
    let said = "a.example: 1 scan and 2 parts of scans missing";
    assert_eq!(take(part("a", 5, 2, true)), (4, said.to_owned()));
}

/// If rates were rounded for each host, a thousand of them would show no packets.
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
    // The rates of each host are rounded.
    assert_eq!(rows[0].history(), [96_000]);
}

fn instance(host: &str, instance: &str, scan: u64) -> FlowBatch {
    let record = flow(2, [1, 50, 0, 0], [1, 50, 0, 0]);
    let mut batch = from(host, batch(scan, vec![record]));
    batch.agent.as_mut().unwrap().instance_id = instance.to_owned();
    batch
}

/// Two agents of one machine are two hosts. An agent that started after the other one had ended takes its place.
#[test]
fn an_agent_that_was_started_again_takes_the_place_of_the_one_before() {
    let start = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, true, start);
    let mut take = |batch, after: u64| {
        fleet.add_batch(batch, start + Duration::from_secs(after));
        fleet.tick(start + Duration::from_secs(after + 2), 0);
        (fleet.hosts().count(), fleet.missing.ended)
    };
    assert_eq!(take(instance("db", "1", 1), 0), (1, 0));
    assert_eq!(take(instance("db", "2", 1), 5), (1, 1));
    // The second agent runs beside a third one and dies: the third does not hide that.
    assert_eq!(take(instance("db", "2", 2), 10), (1, 1));
    assert_eq!(take(instance("db", "3", 1), 11), (2, 1));
    assert_eq!(take(instance("db", "2", 3), 15), (2, 1));
    assert_eq!(take(instance("db", "3", 2), 16), (2, 1));
    assert_eq!(take(instance("db", "3", 3), 100), (2, 1));
    assert_eq!(fleet.silent(), 1);
    // The third one says that it ends.
    let mut last = instance("db", "3", 4);
    last.account.as_mut().unwrap().r#final = true;
    fleet.add_batch(last, start + Duration::from_secs(102));
    assert_eq!(fleet.shown().count(), 1);
    fleet.tick(start + Duration::from_secs(106), 0);
    assert_eq!((fleet.shown().count(), fleet.missing.ended), (0, 2));
    let said = "1 host silent: flows not shown; 2 hosts gone for good: sums left out";
    assert_eq!(warnings(&fleet), said);
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
        fleet.add_batch(batch, Instant::now());
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
    let first = "flow-agent top  collector  2 hosts  3 flows tracked  rates over each host's last scan, up to 4s";
    assert_eq!(lines[0], first);
    assert_eq!(lines[1], "TX 3.6 kbit/s 5 pkt/s  RX 80 bit/s 1 pkt/s");
    assert!(lines[5].starts_with("db.example "), "{}", lines[5]);
    let silent = |after: u64, screen: &mut Screen| {
        let now = start + Duration::from_secs(after);
        let is_news = screen.fleet_mut().tick(now, 0);
        (is_news, screen.fleet().silent())
    };
    // With one window of each, nobody counts as silent within a minute.
    assert_eq!(silent(59, &mut screen), (false, 0));
    // Then after three windows, of two and four seconds, and ten seconds.
    for (host, seconds) in [("web", 2), ("db", 4)] {
        let record = flow(1, [4, 400, 0, 0], [13, 1300, 0, 0]);
        let mut second = from(host, batch(8, vec![record]));
        second.window_end_unix_ns = second.window_start_unix_ns + seconds * SECOND;
        let now = start + Duration::from_secs(59);
        screen.fleet_mut().add_batch(second, now);
    }
    assert_eq!(silent(59 + 15, &mut screen), (false, 0));
    assert_eq!(silent(59 + 17, &mut screen), (true, 1));
    let lines = shown(&mut screen, 120, 24);
    assert_eq!(lines[1], "TX 800 bit/s 1 pkt/s  RX 0 bit/s 0 pkt/s");
    let said = &lines[4];
    assert!(said.contains("1 host silent: flows not shown"), "{said}");
    let row = &lines[7];
    assert!(row.starts_with("web.example: silent for 1"), "{row}");
    press(&mut screen, KeyCode::End);
    press(&mut screen, KeyCode::Enter);
    let lines = shown(&mut screen, 120, 24);
    assert!(lines.iter().any(|line| line.starts_with("│silent for ")));
    press(&mut screen, KeyCode::Esc);
    let rows = told(screen.fleet(), View::Flows);
    assert!(rows.iter().all(|(hosts, ..)| hosts == &["db.example"]));
    // It is shown again when it sends again. The other one is forgotten ten minutes after it fell silent.
    let again = from("web", batch(9, Vec::new()));
    let now = start + Duration::from_secs(700);
    screen.fleet_mut().add_batch(again, now);
    assert_eq!(screen.fleet().silent(), 0);
    assert_eq!(told(screen.fleet(), View::Hosts).len(), 1);
}

/// It counts as silent only after a longer time than the one after which silent hosts are forgotten.
#[test]
fn a_host_of_long_windows_is_silent_before_it_is_forgotten() {
    let start = Instant::now();
    let mut fleet = Fleet::new(Duration::from_secs(1), true, start);
    for scan in [1, 2] {
        let mut slow = from("slow", batch(scan, Vec::new()));
        slow.window_end_unix_ns = slow.window_start_unix_ns + 300 * SECOND;
        fleet.add_batch(slow, start);
    }
    for (after, expected) in [(900, (1, 0)), (920, (1, 1)), (1500, (1, 1)), (1520, (0, 0))] {
        fleet.tick(start + Duration::from_secs(after), 0);
        let now = (fleet.hosts().count(), fleet.silent());
        assert_eq!(now, expected, "{after}");
    }
}

fn many_flows() -> Vec<FlowRecord> {
    let flows = (0..3_000_u32).map(|number| {
        let mut one = flow(1, [1, 60, 0, 0], [1, 60, 0, 0]);
        one.src_mut().addr = number.to_be_bytes().to_vec().into();
        one
    });
    flows.collect()
}

#[test]
fn one_sender_with_too_many_hosts_costs_no_other_its_place_or_its_rows() {
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, true, now);
    fleet.add_batch(from("web", batch(1, many_flows())), now);
    for round in 0..2 {
        for number in 0..MOST_HOSTS + 10 {
            let mut batch = from("evil", batch(1 + round, Vec::new()));
            batch.agent.as_mut().unwrap().agent_id = number.to_string();
            let after = Duration::from_millis(1 + 3_000 * round + number as u64);
            fleet.add_batch(batch, now + after);
        }
    }
    assert_eq!(fleet.hosts().count(), MOST_HOSTS);
    // They were left out in turn, so each of them was, but no other host.
    assert_eq!(fleet.left_out(), MOST_HOSTS + 10);
    let web = fleet.hosts().find(|host| host.label == "web.example");
    assert_eq!(web.unwrap().picture.flows().count(), 3_000);
    // One machine has few agents.
    let mut fleet = Fleet::new(Duration::ZERO, true, now);
    for number in 0..100 {
        fleet.add_batch(instance("evil", &number.to_string(), 1), now);
    }
    assert_eq!((fleet.hosts().count(), fleet.left_out()), (4, 96));
}

#[test]
fn many_hosts_share_the_room_for_rows_and_idle_ones_leave_theirs_to_the_busy() {
    let start = Instant::now();
    let rows = |busy: u64, idle: u64| {
        let mut fleet = Fleet::new(Duration::ZERO, true, start);
        for round in 1..=3 {
            for number in 0..busy + idle {
                let is_busy = number < busy;
                let flows = if is_busy { many_flows() } else { Vec::new() };
                let batch = from(&format!("h{number:03}"), batch(round, flows));
                fleet.add_batch(batch, start + Duration::from_secs(round));
            }
        }
        let flows = fleet.hosts().map(|host| host.picture.flows().count());
        let sum = flows.take(busy as usize).sum::<usize>();
        (sum, warnings(&fleet))
    };
    let (sum, said) = rows(50, 0);
    assert!((90_000..=100_000).contains(&sum), "{sum}");
    assert!(said.contains("rows with the least left out"), "{said}");
    let (sum, said) = rows(3, 200);
    assert_eq!((sum, said.as_str()), (9_000, ""));
}

/// Its batches wait forever, at nobody else's expense.
#[test]
fn a_host_that_completes_no_scan_cuts_no_others() {
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, true, now);
    fleet.add_batch(part("good", 1, 0, false), now);
    for index in 0..30 {
        let mut large = part("evil", 1, index, false);
        large.records = std::iter::repeat_n(large.records[0].clone(), 3_000).collect();
        fleet.add_batch(large, now);
    }
    // Too many of them wait, so the scan is shown incomplete.
    assert!(packets_of(&fleet)[0] > 0);
    fleet.add_batch(part("good", 1, 1, true), now);
    fleet.add_batch(part("evil", 1, 30, true), now);
    assert_eq!(packets_of(&fleet), [30 * 3_000 + 1, 2]);
    let missing = fleet.hosts().map(|host| host.missing);
    let missing: Vec<_> = missing.map(|one| (one.scans, one.parts)).collect();
    assert_eq!(missing, [(0, 0); 2]);
}

/// Neither a host without a complete scan nor one that does not report it.
#[test]
fn a_host_hides_nothing_that_others_say() {
    let mut fleet = two_hosts();
    let now = Instant::now();
    fleet.add_batch(part("new", 1, 0, false), now);
    let quiet = FlowBatch {
        tracked_flows: None,
        account: None,
        ..from("quiet", batch(1, Vec::new()))
    };
    fleet.add_batch(quiet, now);
    assert_eq!(fleet.tracked_flows(), (3, 1));
    assert_eq!((fleet.shown().count(), fleet.beginning()), (3, 1));
    let total = |fleet: &Fleet| -> serde_json::Value {
        let mut lines = Vec::new();
        print::json(&mut lines, fleet, (View::Hosts, Sort::Rate), 0, Some(4)).unwrap();
        serde_json::from_slice(&lines).unwrap()
    };
    let told = total(&fleet);
    assert!(told["account_closes"].is_null(), "{told}");
    assert_eq!(told["tracked_flows"], 3);
    assert_eq!(told["hosts_without_tracked_flows"], 1);
    assert_eq!(told["hosts"], 3);
    assert_eq!(told["connected_hosts"], 4);
    let seen = Count {
        packets: 1,
        bytes: 60,
    };
    let account = Account {
        seen: Some(seen),
        ..Account::default()
    };
    let wrong = FlowBatch {
        account: Some(account),
        ..from("wrong", batch(1, Vec::new()))
    };
    fleet.add_batch(wrong, now);
    assert_eq!(total(&fleet)["account_closes"], false);
    let said = warnings(&fleet);
    assert!(
        said.starts_with("wrong.example: ACCOUNT DOES NOT CLOSE"),
        "{said}"
    );
}

#[test]
fn a_row_of_many_hosts_lists_some_of_them_after_its_figures() {
    let hosts = (0..100).map(|number| {
        let record = flow(1, [1, 100, 0, 0], [1, 100, 0, 0]);
        from(&format!("h{number:03}"), batch(1, vec![record]))
    });
    let mut screen = screen();
    *screen.fleet_mut() = fleet(hosts);
    press(&mut screen, KeyCode::Char('7'));
    press(&mut screen, KeyCode::Enter);
    let text = shown(&mut screen, 80, 24).join("\n");
    for part in ["100 packets, 10000 bytes", "h000.example", "and 92 more"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn flows_that_an_agent_had_kept_are_not_taken_for_live_ones() {
    let mut fleet = two_hosts();
    fleet.tick(Instant::now(), 2 * 3600 * SECOND);
    let said = warnings(&fleet);
    let age = "db.example: its figures are 2h00m old";
    assert!(
        said.starts_with(age) && said.ends_with("(and 1 other host)"),
        "{said}"
    );
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
    // A host that claims another's name is shown with its own identity, and so is the other.
    let mut claims = from("uid:7", batch(1, Vec::new()));
    claims.agent.as_mut().unwrap().hostname = "web.example".to_owned();
    let mut fleet = fleet([instance("web", "0123456789", 1), claims]);
    fleet.tick(Instant::now(), 0);
    let labels: Vec<_> = fleet.hosts().map(|host| host.label.as_str()).collect();
    let both = ["web.example (uid:7 1)", "web.example (web 01234567)"];
    assert_eq!(labels, both);
}

#[test]
fn lines_of_hosts_say_whose_they_are_and_what_their_rates_are() {
    let fleet = two_hosts();
    let printed = |view: View| -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        print::json(&mut lines, &fleet, (view, Sort::Rate), 50, None).unwrap();
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
    assert_eq!(flows[0]["identity"], "db");
    assert_eq!(flows[0]["agent_id"], "machine of db");
    assert_eq!(flows[0]["window_end"], "1970-01-01T00:00:04.000000000Z");
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
