mod fleet;
mod screenshot;
mod windows;

use std::time::{Duration, Instant};

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use proto::{
    Account, AgentIdentity, Cgroup, Count, Direction, EndReason, Endpoint, FlowBatch, FlowRecord,
    Interface, Process,
};
use ratatui::{Terminal, backend::TestBackend};

use super::{
    draw::{HELP, draw},
    fleet::Fleet,
    picture::{MOST_FLOWS, Picture, Traffic, rounded},
    prompt::Prompt,
    rows::{FLOW_TITLES, Id, Of, rows, sparkline},
    screen::{Action, Filter, Mode, Screen},
    *,
};

const SECOND: u64 = 1_000_000_000;
const UNIT: u64 = 7;
const PROCESS: u64 = 8;

/// The fleet of these batches, for a consumer without `--every`.
fn fleet(batches: impl IntoIterator<Item = FlowBatch>) -> Fleet {
    let now = Instant::now();
    let mut fleet = Fleet::new(Duration::ZERO, false, now);
    for batch in batches {
        fleet.add_batch(batch, now);
    }
    fleet
}

/// The picture of an agent's own stream.
fn picture_of(screen: &Screen) -> &Picture {
    &screen.fleet().agent().unwrap().picture
}

/// From 10.0.0.x to 10.0.1.1, which leaves at eth0.
fn flow(host: u8, deltas: [u64; 4], totals: [u64; 4]) -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            addr: vec![10, 0, 0, host].into(),
            port: Some(40_000),
            delta_packets: deltas[0],
            delta_bytes: deltas[1],
            total_packets: totals[0],
            total_bytes: totals[1],
            direction: Direction::Egress.into(),
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![10, 0, 1, 1].into(),
            port: Some(443),
            delta_packets: deltas[2],
            delta_bytes: deltas[3],
            total_packets: totals[2],
            total_bytes: totals[3],
            ..Endpoint::default()
        }),
        protocol: 6,
        ip_version: 4,
        ifindex: 2,
        netns: 1,
        ..FlowRecord::default()
    }
}

fn batch(scan_id: u64, records: Vec<FlowRecord>) -> FlowBatch {
    FlowBatch {
        agent: Some(AgentIdentity {
            hostname: "db1".to_owned(),
            ..AgentIdentity::default()
        }),
        scan_id,
        last_of_scan: true,
        window_start_unix_ns: scan_id * 2 * SECOND,
        window_end_unix_ns: (scan_id + 1) * 2 * SECOND,
        tracked_flows: Some(records.len() as u64),
        interfaces: vec![Interface {
            ifindex: 2,
            netns: 1,
            name: "eth0".to_owned(),
            ..Interface::default()
        }],
        cgroups: vec![Cgroup {
            id: UNIT,
            unit: "nginx.service".to_owned(),
            ..Cgroup::default()
        }],
        processes: vec![Process {
            key: PROCESS,
            pid: 12,
            name: "nginx".to_owned(),
            ..Process::default()
        }],
        records,
        account: Some(Account::default()),
        ..FlowBatch::default()
    }
}

fn snapshot(records: Vec<FlowRecord>) -> FlowBatch {
    FlowBatch {
        snapshot: true,
        ..batch(1, records)
    }
}

/// A group's traffic: in the last window, by how many flows, and in total.
fn group(picture: &Picture, view: View, name: &str) -> (Traffic, u64, Traffic) {
    let (_, figures) = picture.groups(view).find(|(one, _)| *one == name).unwrap();
    let (recent, flows) = picture.recent(figures);
    (recent, flows, figures.total)
}

fn traffic(packets: [u64; 2], bytes: [u64; 2]) -> Traffic {
    Traffic { packets, bytes }
}

/// Two earlier flows, and two windows: both continue in the first one, and a new flow appears in the second.
fn batches() -> [FlowBatch; 3] {
    let at_start = vec![
        flow(1, [5, 500, 4, 400], [5, 500, 4, 400]),
        flow(2, [1, 60, 0, 0], [1, 60, 0, 0]),
    ];
    let with_sender = |record: FlowRecord| FlowRecord {
        src: Some(Endpoint {
            cgroup_id: Some(UNIT),
            process_key: Some(PROCESS),
            ..record.src().clone()
        }),
        ..record
    };
    let first = vec![
        with_sender(flow(1, [2, 2000, 1, 100], [7, 2500, 5, 500])),
        flow(2, [1, 60, 1, 1000], [2, 120, 1, 1000]),
    ];
    let arrived = FlowRecord {
        src: Some(Endpoint {
            direction: Direction::Ingress.into(),
            ..flow(9, [3, 300, 2, 200], [3, 300, 2, 200]).src().clone()
        }),
        ..flow(9, [3, 300, 2, 200], [3, 300, 2, 200])
    };
    [snapshot(at_start), batch(2, first), batch(3, vec![arrived])]
}

fn picture() -> Picture {
    let mut picture = Picture::default();
    for batch in batches() {
        assert!(picture.add_batch(&batch));
    }
    picture
}

#[test]
fn windows_add_up_to_the_packet_in_all_views() {
    let picture = picture();
    let zero = Traffic::default();
    assert_eq!(picture.windows(), 2);
    let (all, _) = picture.recent(picture.all());
    // The second value is the traffic that arrived at eth0.
    assert_eq!(all, traffic([2, 3], [200, 300]));
    let sums = traffic([5 + 1 + 2 + 1 + 2, 4 + 1 + 1 + 3], [2820, 1800]);
    assert_eq!(picture.all().total, sums);
    assert_eq!(group(&picture, View::Interfaces, "eth0"), (all, 1, sums));
    // Beyond the interface are the server of all connections, and one client.
    assert_eq!(
        group(&picture, View::Peers, "10.0.1.1"),
        (zero, 0, traffic([9, 6], [2620, 1500]))
    );
    assert_eq!(
        group(&picture, View::Peers, "10.0.0.9"),
        (all, 1, traffic([2, 3], [200, 300]))
    );
    // All connections are to one port, and no name is known.
    assert_eq!(group(&picture, View::Services, "443/tcp"), (all, 1, sums));
    assert_eq!(
        group(&picture, View::Names, ""),
        (all, 1, traffic([11, 9], [2820, 1800]))
    );
    for (view, name) in [
        (View::Units, "nginx.service"),
        (View::Processes, "nginx/12"),
    ] {
        assert_eq!(
            group(&picture, view, name),
            (zero, 0, traffic([2, 1], [2000, 100]))
        );
        // The rest has no known process, and its directions are the interface's.
        assert_eq!(
            group(&picture, view, ""),
            (all, 1, traffic([9, 8], [820, 1700]))
        );
    }
    let totals: Vec<_> = picture
        .flows()
        .map(|(_, flow)| flow.figures.total.all_packets())
        .collect();
    assert_eq!(totals.iter().sum::<u64>(), 12 + 3 + 5);
    assert_eq!(rounded(picture.per_second(301)), 151);
    assert_eq!(picture.history(picture.all()), [3160 * 4, 500 * 4]);
}

#[test]
fn what_a_process_says_to_itself_is_sent_and_received_by_it() {
    let mut picture = Picture::default();
    let record = FlowRecord {
        src: Some(Endpoint {
            process_key: Some(PROCESS),
            ..flow(1, [3, 300, 2, 200], [3, 300, 2, 200]).src().clone()
        }),
        dst: Some(Endpoint {
            process_key: Some(PROCESS),
            ..flow(1, [3, 300, 2, 200], [3, 300, 2, 200]).dst().clone()
        }),
        ..flow(1, [3, 300, 2, 200], [3, 300, 2, 200])
    };
    picture.add_batch(&batch(1, vec![record]));
    let both = traffic([5, 5], [500, 500]);
    assert_eq!(
        group(&picture, View::Processes, "nginx/12"),
        (both, 1, both)
    );
}

#[test]
fn a_flow_is_shown_in_the_window_in_which_it_ended_and_then_goes() {
    let ended = FlowRecord {
        end_reason: Some(EndReason::EndOfFlow.into()),
        ..flow(1, [1, 60, 0, 0], [1, 60, 0, 0])
    };
    let first = batch(1, vec![ended, flow(2, [1, 60, 0, 0], [1, 60, 0, 0])]);
    let before = fleet([first.clone()]);
    assert_eq!(rows(&before, View::Flows, Sort::Rate, false).len(), 2);
    let fleet = fleet([first, batch(2, Vec::new())]);
    let rows = rows(&fleet, View::Flows, Sort::Rate, false);
    assert_eq!(rows.len(), 1);
    // An idle flow has its total and no rate.
    assert_eq!(rows[0].recent, Traffic::default());
    assert_eq!(rows[0].total, traffic([1, 0], [60, 0]));
    assert_eq!(rows[0].history(), [240, 0]);
}

#[test]
fn those_with_the_least_are_left_out_and_counted() {
    let mut picture = Picture::default();
    let many = u32::try_from(MOST_FLOWS).unwrap() + 10;
    let records = (0..many).map(|number| FlowRecord {
        src: Some(Endpoint {
            addr: number.to_be_bytes().to_vec().into(),
            ..flow(
                1,
                [1, u64::from(number), 0, 0],
                [1, u64::from(number), 0, 0],
            )
            .src()
            .clone()
        }),
        ..flow(
            1,
            [1, u64::from(number), 0, 0],
            [1, u64::from(number), 0, 0],
        )
    });
    picture.add_batch(&batch(1, records.collect()));
    assert_eq!(picture.flows().count(), MOST_FLOWS);
    assert_eq!(picture.missing.forgotten_rows, 10);
    let least = picture
        .flows()
        .map(|(_, flow)| flow.record.src().total_bytes)
        .min();
    assert_eq!(least, Some(10));
    // The figures for all do not depend on it.
    let bytes = u64::from(many) * u64::from(many - 1) / 2;
    assert_eq!(picture.all().total.bytes, [bytes, 0]);
}

/// A scan whose first batch is lost still makes a window, and a batch with only losses does not.
#[test]
fn losses_do_not_put_two_windows_into_one() {
    let mut picture = Picture::default();
    picture.add_batch(&batch(1, vec![flow(1, [1, 60, 0, 0], [1, 60, 0, 0])]));
    let mut rest = batch(2, vec![flow(1, [2, 120, 0, 0], [9, 540, 0, 0])]);
    rest.batch_index = 1;
    picture.add_batch(&rest);
    assert_eq!(picture.windows(), 2);
    let (recent, _) = picture.recent(picture.all());
    assert_eq!(recent, traffic([2, 0], [120, 0]));
    let end = FlowBatch {
        lost_records: 7,
        ..FlowBatch::default()
    };
    assert!(picture.add_batch(&end.clone()));
    assert_eq!((picture.windows(), picture.scan_id()), (2, 2));
    assert_eq!(fleet([end]).missing.lost_records, 7);
}

#[test]
fn rows_come_as_they_are_asked_for() {
    let rtt = |record: FlowRecord, us: u32, again: u32| FlowRecord {
        src: Some(Endpoint {
            tcp_rtt_us: Some(us),
            tcp_total_retrans: Some(again),
            ..record.src().clone()
        }),
        ..record
    };
    let records = vec![
        rtt(flow(1, [1, 900, 1, 1], [9, 1000, 0, 0]), 10, 3),
        rtt(flow(2, [5, 500, 0, 0], [5, 9000, 0, 0]), 30, 1),
        FlowRecord {
            first_seen_unix_ns: 5,
            ..flow(3, [2, 100, 1, 90], [2, 100, 0, 0])
        },
    ];
    let fleet = fleet([batch(1, records)]);
    let hosts = |sort: Sort, is_reversed: bool| -> Vec<u8> {
        let rows = rows(&fleet, View::Flows, sort, is_reversed);
        let host = |row: &rows::Row<'_>| match row.of {
            Of::Flow(_, flow) => flow.record.src().addr[3],
            Of::Group(_) => 0,
        };
        rows.iter().map(host).collect()
    };
    assert_eq!(hosts(Sort::Rate, false), [1, 2, 3]);
    assert_eq!(hosts(Sort::Rate, true), [3, 2, 1]);
    assert_eq!(hosts(Sort::Sent, false), [1, 2, 3]);
    assert_eq!(hosts(Sort::Received, false), [3, 1, 2]);
    assert_eq!(hosts(Sort::Packets, false), [2, 3, 1]);
    assert_eq!(hosts(Sort::Bytes, false), [2, 1, 3]);
    assert_eq!(hosts(Sort::Name, false), [1, 2, 3]);
    assert_eq!(hosts(Sort::Rtt, false), [2, 1, 3]);
    assert_eq!(hosts(Sort::Retrans, false), [1, 2, 3]);
    assert_eq!(hosts(Sort::Newest, false), [3, 2, 1]);
}

fn screen() -> Screen {
    Screen::new(
        fleet(batches()),
        (View::Flows, Sort::Rate),
        Filter::default(),
        false,
    )
}

/// The screen at this terminal size.
fn shown(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content.chunks(width.into());
    cells
        .map(|line| {
            let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
            line.trim_end().to_owned()
        })
        .collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> Action {
    screen.event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn press_control(screen: &mut Screen, letter: char) -> Action {
    let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    screen.event(&Event::Key(key))
}

fn type_in(screen: &mut Screen, text: &str) {
    for letter in text.chars() {
        assert_eq!(press(screen, KeyCode::Char(letter)), Action::Nothing);
    }
}

fn click(screen: &mut Screen, column: u16, row: u16) {
    screen.event(&Event::Mouse(MouseEvent {
        kind: MouseEventKind::Down(MouseButton::Left),
        column,
        row,
        modifiers: KeyModifiers::NONE,
    }));
}

#[test]
fn a_terminal_of_80_by_24_shows_what_there_is() {
    let mut screen = screen();
    let lines = shown(&mut screen, 80, 24);
    assert_eq!(
        lines[0],
        "flow-agent top  db1  1 flows tracked  scan 3, rates over 2s"
    );
    assert_eq!(lines[1], "TX 800 bit/s 1 pkt/s  RX 1.2 kbit/s 2 pkt/s");
    assert!(
        lines[3].starts_with(" 1 Flows 2 Peers 3 Processes") && lines[3].ends_with(" 8 Hosts"),
        "{}",
        lines[3]
    );
    assert!(
        lines[4].starts_with("INITIATOR       RESPONDER"),
        "{}",
        lines[4]
    );
    let first = "10.0.0.9:40000  10.0.1.1:443  tcp     1.2k        800    300 B";
    assert!(lines[5].starts_with(first), "{}", lines[5]);
    assert!(lines[23].starts_with("by rate  q quit"), "{}", lines[23]);

    press(&mut screen, KeyCode::Char('2'));
    let lines = shown(&mut screen, 80, 24);
    let first = "10.0.0.9       800      1.2k    200 B    300 B         1         2      1";
    assert!(lines[5].starts_with(first), "{}", lines[5]);
    press(&mut screen, KeyCode::Tab);
    let lines = shown(&mut screen, 80, 24);
    assert!(lines[5].starts_with("? "), "{}", lines[5]);
    assert!(lines[6].starts_with("nginx/12"), "{}", lines[6]);
}

#[test]
fn help_fits_a_terminal_of_80_by_24() {
    let border = 2;
    assert!(HELP.lines().count() + border <= 24);
    for line in HELP.lines() {
        assert!(line.chars().count() + border <= 80, "{line}");
    }
}

#[test]
fn no_size_is_too_small() {
    for (width, height) in [(1, 1), (10, 3), (20, 6), (300, 2), (40, 100)] {
        let mut screen = screen();
        for mode in [
            Mode::Table,
            Mode::Help,
            Mode::Detail,
            Mode::Filter {
                prompt: Prompt::of("port".to_owned()),
                fault: Some("no".to_owned()),
            },
        ] {
            screen.mode = mode;
            shown(&mut screen, width, height);
        }
        press(&mut screen, KeyCode::End);
        press(&mut screen, KeyCode::PageUp);
        shown(&mut screen, width, height);
    }
}

#[test]
fn what_others_chose_moves_nothing() {
    let mut hostile = batch(2, vec![flow(1, [1, 60, 0, 0], [1, 60, 0, 0])]);
    hostile.agent.as_mut().unwrap().hostname = "a\x1b[2Jb\u{202e}".to_owned();
    hostile.interfaces[0].name = "e\x1b[2J\n".to_owned();
    hostile.processes[0].name = "p\x1b]0;x\x07".to_owned();
    hostile.records[0].src_mut().process_key = Some(PROCESS);
    let mut screen = screen();
    *screen.fleet_mut() = fleet([hostile]);
    screen.trouble = "\x1b[2J\u{202e}".to_owned();
    for view in ['1', '3', '5'] {
        press(&mut screen, KeyCode::Char(view));
        for line in shown(&mut screen, 200, 24) {
            assert!(!line.contains(['\x1b', '\u{202e}', '\x07']), "{line:?}");
        }
    }
}

#[test]
fn what_is_missing_is_said() {
    let mut screen = screen();
    let warning = |screen: &mut Screen| {
        let lines = shown(screen, 300, 24);
        lines[4].clone()
    };
    assert!(warning(&mut screen).starts_with("INITIATOR"));
    let broken = FlowBatch {
        lost_records: 3,
        refused_in_window: true,
        sample_rate: 10,
        account: Some(Account {
            seen: Some(Count {
                packets: 1,
                bytes: 60,
            }),
            ..Account::default()
        }),
        ..batch(4, Vec::new())
    };
    screen.fleet_mut().add_batch(broken.clone(), Instant::now());
    screen.fleet_mut().missing.gaps = 2;
    let said = warning(&mut screen);
    for part in [
        "ACCOUNT DOES NOT CLOSE, 1 packets",
        "the kernel's table was full",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let slow = FlowBatch {
        account: Some(Account::default()),
        report_interval_ns: 60 * SECOND,
        refused_in_window: false,
        scan_id: 5,
        ..broken
    };
    screen.fleet_mut().add_batch(slow, Instant::now());
    screen.fleet_mut().missing.restarts = 1;
    let said = warning(&mut screen);
    for part in [
        "3 records lost: read too slowly",
        "2 messages missing on the stream",
        "the agent was restarted (1 time): sums start there",
        "1 flow in 10 is counted",
        "a flow is reported every 1m00s",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_pause_keeps_what_is_shown_and_loses_nothing() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char(' '));
    let before = shown(&mut screen, 80, 24);
    assert!(before[0].ends_with("PAUSED"));
    let more = flow(1, [1, 60, 0, 0], [8, 2560, 5, 500]);
    screen
        .fleet_mut()
        .add_batch(batch(4, vec![more]), Instant::now());
    assert_eq!(shown(&mut screen, 80, 24), before);
    press(&mut screen, KeyCode::Char(' '));
    assert_ne!(shown(&mut screen, 80, 24), before);
    assert_eq!(picture_of(&screen).all().total.packets, [12, 9]);
}

#[test]
fn keys_sort_choose_and_open() {
    let mut screen = screen();
    shown(&mut screen, 80, 24);
    press(&mut screen, KeyCode::Char('s'));
    assert_eq!(screen.order(), (Sort::Sent, false));
    press(&mut screen, KeyCode::Char('S'));
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(screen.order(), (Sort::Rate, true));
    press(&mut screen, KeyCode::Char('r'));
    press(&mut screen, KeyCode::Down);
    let first = screen.chosen.clone();
    press(&mut screen, KeyCode::Down);
    assert!(matches!(screen.chosen, Some(Id::Flow(..))) && screen.chosen != first);
    press(&mut screen, KeyCode::Home);
    assert_eq!(screen.chosen, first);
    press(&mut screen, KeyCode::Enter);
    let lines = shown(&mut screen, 80, 24);
    assert!(lines[0].starts_with("┌ Flow "), "{}", lines[0]);
    let sent = "│sent in all        3 packets, 300 bytes (300 B)";
    assert!(
        lines.iter().any(|line| line.starts_with(sent)),
        "{lines:#?}"
    );
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Action::Nothing);
    assert_eq!(screen.mode, Mode::Table);
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Action::Quit);
    assert_eq!(press_control(&mut screen, 'u'), Action::Nothing);
    assert_eq!(press_control(&mut screen, 'c'), Action::Quit);
}

#[test]
fn a_flow_that_ended_without_packets_has_no_row() {
    let mut screen = screen();
    let ended = FlowRecord {
        end_reason: Some(EndReason::IdleTimeout.into()),
        ..flow(1, [0, 0, 0, 0], [7, 2500, 5, 500])
    };
    let goes_on = flow(2, [1, 60, 0, 0], [3, 180, 1, 1000]);
    screen
        .fleet_mut()
        .add_batch(batch(4, vec![ended, goes_on]), Instant::now());
    let rows = screen.rows();
    assert!(rows.iter().all(|row| !row.has_ended()));
    assert_eq!(rows.len(), 2);
    let mut printed = Vec::new();
    let chosen = (View::Flows, Sort::Rate);
    print::table(&mut printed, screen.fleet(), chosen, (50, 200)).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    assert!(!printed.contains("idle"), "{printed}");
    // Programs get all of them.
    let mut lines = Vec::new();
    print::json(&mut lines, screen.fleet(), chosen, 50, None).unwrap();
    assert_eq!(lines.split(|byte| *byte == b'\n').count(), 3 + 1 + 1);
}

#[test]
fn a_key_hides_flows_that_ended_and_shows_them_again() {
    let mut screen = screen();
    let ended = FlowRecord {
        end_reason: Some(EndReason::EndOfFlow.into()),
        ..flow(9, [1, 60, 0, 0], [4, 360, 2, 200])
    };
    let both = vec![ended, flow(2, [1, 60, 0, 0], [3, 180, 1, 1000])];
    screen.fleet_mut().add_batch(batch(4, both), Instant::now());
    assert_eq!(screen.rows().len(), 4);
    press(&mut screen, KeyCode::Char('e'));
    assert_eq!(screen.rows().len(), 3);
    let lines = shown(&mut screen, 80, 24);
    assert!(
        lines[23].starts_with("by rate, without ended  "),
        "{}",
        lines[23]
    );
    press(&mut screen, KeyCode::Char('e'));
    assert_eq!(screen.rows().len(), 4);
}

#[test]
fn the_row_that_is_chosen_stays_so_where_rows_change_places() {
    let mut screen = screen();
    shown(&mut screen, 80, 24);
    press(&mut screen, KeyCode::End);
    let chosen = screen.chosen.clone();
    let busy = flow(2, [9, 90_000, 0, 0], [11, 90_120, 1, 1000]);
    screen
        .fleet_mut()
        .add_batch(batch(4, vec![busy]), Instant::now());
    assert_eq!(screen.chosen, chosen);
    assert_eq!(screen.chosen_at(&screen.rows()), Some(0));
}

#[test]
fn rows_that_do_not_fit_are_scrolled_to() {
    let mut screen = screen();
    let records = (0..100).map(|host| flow(host, [1, 1000 - u64::from(host), 0, 0], [1, 1, 0, 0]));
    *screen.fleet_mut() = fleet([batch(1, records.collect())]);
    let lines = shown(&mut screen, 80, 24);
    assert!(lines[22].starts_with("10.0.0.17:"), "{}", lines[22]);
    press(&mut screen, KeyCode::End);
    let lines = shown(&mut screen, 80, 24);
    assert!(lines[22].starts_with("10.0.0.99:"), "{}", lines[22]);
    press(&mut screen, KeyCode::PageUp);
    let lines = shown(&mut screen, 80, 24);
    assert!(lines[5].starts_with("10.0.0.81:"), "{}", lines[5]);
}

#[test]
fn the_mouse_turns_sorts_and_opens() {
    let mut screen = screen();
    let lines = shown(&mut screen, 80, 24);
    let bytes = lines[4].find("BYTES").unwrap() as u16;
    click(&mut screen, bytes, 4);
    assert_eq!(screen.order(), (Sort::Bytes, false));
    click(&mut screen, bytes, 4);
    assert_eq!(screen.order(), (Sort::Bytes, true));
    let peers = lines[3].find("Peers").unwrap() as u16;
    click(&mut screen, peers, 3);
    assert_eq!(screen.view, View::Peers);
    shown(&mut screen, 80, 24);
    click(&mut screen, 3, 6);
    assert_eq!(screen.mode, Mode::Table);
    assert_eq!(
        screen.chosen,
        Some(Id::Group(View::Peers, None, "10.0.1.1".to_owned()))
    );
    click(&mut screen, 3, 6);
    assert_eq!(screen.mode, Mode::Detail);
    click(&mut screen, 3, 6);
    assert_eq!(screen.mode, Mode::Table);
}

#[test]
fn rules_that_are_typed_are_asked_for_or_said_to_be_none() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('/'));
    type_in(&mut screen, "prot 1");
    assert_eq!(press(&mut screen, KeyCode::Enter), Action::Nothing);
    let Mode::Filter {
        fault: Some(fault), ..
    } = &screen.mode
    else {
        panic!("{:?}", screen.mode)
    };
    assert!(fault.starts_with("did you mean: proto 1?"), "{fault}");
    let lines = shown(&mut screen, 80, 24);
    let line = "filter: prot 1   did you mean: proto 1? no term begins like this;";
    assert!(lines[23].starts_with(line), "{}", lines[23]);
    press_control(&mut screen, 'w');
    press_control(&mut screen, 'w');
    type_in(&mut screen, "port 443 proto 6");
    let Action::Observe(asked) = press(&mut screen, KeyCode::Enter) else {
        panic!("{:?}", screen.mode)
    };
    let filter = Filter {
        typed: "port 443 proto 6".to_owned(),
        rules: "include port 443 proto tcp; exclude all".to_owned(),
    };
    assert_eq!(asked, filter);
    // A filter that the agent refuses changes nothing; the screen shows the reason.
    screen.refuse(asked.clone(), "no room");
    assert_eq!(picture_of(&screen).flows().count(), 3);
    assert_eq!(screen.filter, Filter::default());
    let lines = shown(&mut screen, 120, 24);
    assert!(lines[23].contains("no room"), "{}", lines[23]);
    // With an accepted filter a new stream begins, and the figures start over.
    screen.begin_with(asked.clone());
    press(&mut screen, KeyCode::Esc);
    assert_eq!(screen.fleet().hosts().count(), 0);
    // It is shown as typed.
    let in_force = "by rate  filter: port 443 proto 6  q quit";
    let lines = shown(&mut screen, 80, 24);
    assert!(lines[23].starts_with(in_force), "{}", lines[23]);
    press(&mut screen, KeyCode::Char('/'));
    let lines = shown(&mut screen, 80, 24);
    assert!(
        lines[23].starts_with("filter: port 443 proto 6 "),
        "{}",
        lines[23]
    );
    press(&mut screen, KeyCode::Esc);
    assert_eq!(screen.filter, asked);
    press(&mut screen, KeyCode::Char('/'));
    press_control(&mut screen, 'u');
    assert_eq!(
        press(&mut screen, KeyCode::Enter),
        Action::Observe(Filter::default())
    );
}

#[test]
fn a_filter_of_the_command_line_is_edited_as_it_was_typed() {
    let typed = ["port https", "exclude 10.0.0.1"].map(|text| text.parse().unwrap());
    let filter = Filter::of(&typed);
    let mut screen = Screen::new(fleet(batches()), (View::Flows, Sort::Rate), filter, false);
    assert_eq!(
        screen.filter.rules,
        "exclude net 10.0.0.1/32; include port 443; exclude all"
    );
    press(&mut screen, KeyCode::Char('/'));
    let lines = shown(&mut screen, 80, 24);
    let prompt = "filter: port https; exclude 10.0.0.1 ";
    assert!(lines[23].starts_with(prompt), "{}", lines[23]);
    // The same filter again is no change.
    assert_eq!(press(&mut screen, KeyCode::Enter), Action::Nothing);
}

#[test]
fn a_filter_longer_than_the_line_is_shown_at_its_cursor() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('/'));
    let text = "net 10.0.0.0/8 port 443";
    type_in(&mut screen, text);
    assert_eq!(shown(&mut screen, 24, 24)[23], "filter: .0.0/8 port 443");
    for _ in text.chars() {
        press(&mut screen, KeyCode::Left);
    }
    assert_eq!(shown(&mut screen, 24, 24)[23], "filter: net 10.0.0.0/8 p");
}

#[test]
fn bars_are_as_high_as_their_share_and_nothing_is_blank() {
    assert_eq!(sparkline(&[0, 1, 50, 100], 6), "   ▁▄█");
    assert_eq!(sparkline(&[9, 8, 8], 2), "██");
    assert_eq!(sparkline(&[], 2), "  ");
    assert_eq!(sparkline(&[u64::MAX, u64::MAX / 2], 2), "█▄");
}
