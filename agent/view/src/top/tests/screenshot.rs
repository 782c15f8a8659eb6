//! The documentation's picture of the screen, drawn like the screen.

use std::{fmt::Write as _, fs, path::Path};

use proto::{Endpoint, Failure, HostName, NameSource};
use ratatui::{
    buffer::Cell,
    style::{Color, Modifier},
};

use super::*;

const COLUMNS: u16 = 158;
const ROWS: u16 = 14;
/// The size of a letter.
const WIDTH: u16 = 8;
const HEIGHT: u16 = 17;
const MARGIN: u16 = 12;
const INK: &str = "#d7dae0";
const PAPER: &str = "#16181d";
/// Windows that have passed.
const WINDOWS: u64 = 24;

/// A flow of the picture: who talks, and how much in each window.
struct Talk {
    unit: u64,
    process: u64,
    host: u64,
    address: [u8; 4],
    port: u32,
    protocol: u32,
    /// Bytes in a window, and bytes in the other direction.
    bytes: [u64; 2],
    rtt_us: Option<u32>,
    retrans: u32,
    failure: Option<Failure>,
}

const NAMES: [&str; 7] = [
    "replica2.db.example",
    "cdn.images.example",
    "api.payments.example",
    "deb.debian.org",
    "ns1.provider.example",
    "smtp.mail.example",
    "old.intra.example",
];
const UNITS: [&str; 5] = [
    "postgresql.service",
    "nginx.service",
    "shop.service",
    "apt-daily.service",
    "postfix.service",
];
const PROCESSES: [(&str, u32); 6] = [
    ("postgres", 812),
    ("nginx", 1044),
    ("shop", 2310),
    ("apt", 9127),
    ("systemd-resolve", 604),
    ("smtp", 3391),
];

fn talks() -> Vec<Talk> {
    let talk = |unit, process, host, last, port, bytes| Talk {
        unit,
        process,
        host,
        address: [192, 0, 2, last],
        port,
        protocol: 6,
        bytes,
        rtt_us: Some(230),
        retrans: 0,
        failure: None,
    };
    vec![
        Talk {
            rtt_us: Some(210),
            ..talk(0, 0, 0, 10, 5432, [9_400_000, 210_000])
        },
        Talk {
            rtt_us: Some(18_400),
            retrans: 12,
            ..talk(1, 1, 1, 20, 443, [61_000, 4_100_000])
        },
        Talk {
            rtt_us: Some(31_900),
            ..talk(2, 2, 2, 30, 443, [420_000, 760_000])
        },
        Talk {
            rtt_us: Some(24_100),
            ..talk(3, 3, 3, 40, 80, [9_000, 540_000])
        },
        Talk {
            protocol: 17,
            rtt_us: None,
            ..talk(9, 4, 4, 53, 53, [1_300, 3_900])
        },
        Talk {
            rtt_us: Some(42_700),
            retrans: 2,
            ..talk(4, 5, 5, 25, 25, [64_000, 5_100])
        },
        Talk {
            rtt_us: None,
            failure: Some(Failure::Refused),
            ..talk(2, 2, 6, 77, 8080, [74, 54])
        },
    ]
}

fn record(number: usize, talk: &Talk, window: u64) -> FlowRecord {
    // Not the same each time.
    let wave = 60 + (window * 37 + number as u64 * 53) % 80;
    let [sent, received] = talk.bytes.map(|bytes| bytes * wave / 100);
    let total = |bytes: u64| bytes * window;
    FlowRecord {
        src: Some(Endpoint {
            port: Some(41_872 + 611 * number as u32),
            cgroup_id: (talk.unit < UNITS.len() as u64).then_some(talk.unit + 1),
            process_key: Some(talk.process + 1),
            tcp_rtt_us: talk.rtt_us,
            tcp_total_retrans: talk.rtt_us.map(|_| talk.retrans),
            ..flow(
                1,
                [sent / 900 + 1, sent, received / 900 + 1, received],
                [
                    total(sent) / 900,
                    total(sent),
                    total(received) / 900,
                    total(received),
                ],
            )
            .src()
            .clone()
        }),
        dst: Some(Endpoint {
            addr: talk.address.to_vec().into(),
            port: Some(talk.port),
            host_id: Some(talk.host + 1),
            host_source: NameSource::Dns.into(),
            ..flow(
                1,
                [sent / 900 + 1, sent, received / 900 + 1, received],
                [
                    total(sent) / 900,
                    total(sent),
                    total(received) / 900,
                    total(received),
                ],
            )
            .dst()
            .clone()
        }),
        protocol: talk.protocol,
        failure: talk.failure.map(Into::into),
        first_seen_unix_ns: (2 + 3 * number as u64) * SECOND,
        ..flow(
            1,
            [sent / 900 + 1, sent, received / 900 + 1, received],
            [
                total(sent) / 900,
                total(sent),
                total(received) / 900,
                total(received),
            ],
        )
    }
}

fn scans() -> Vec<FlowBatch> {
    let scan = |window| {
        let records = talks();
        let records = records.iter().enumerate();
        let records = records.map(|(number, talk)| record(number, talk, window));
        let units = UNITS.iter().zip(1..).map(|(unit, id)| Cgroup {
            id,
            unit: (*unit).to_owned(),
            ..Cgroup::default()
        });
        let processes = PROCESSES
            .iter()
            .zip(1..)
            .map(|(&(name, pid), key)| Process {
                key,
                pid,
                name: name.to_owned(),
                ..Process::default()
            });
        let hosts = NAMES.iter().zip(1..).map(|(name, id)| HostName {
            id,
            name: (*name).to_owned(),
        });
        FlowBatch {
            cgroups: units.collect(),
            processes: processes.collect(),
            hosts: hosts.collect(),
            ..batch(window, records.collect())
        }
    };
    (1..=WINDOWS).map(scan).collect()
}

fn color(color: Color, otherwise: &'static str) -> &'static str {
    match color {
        Color::Black | Color::Rgb(..) | Color::Indexed(_) | Color::Reset => otherwise,
        Color::Red | Color::LightRed => "#ef6b73",
        Color::Green | Color::LightGreen => "#8cc265",
        Color::Yellow | Color::LightYellow => "#e2b86b",
        Color::Blue | Color::LightBlue => "#6aa9f4",
        Color::Magenta | Color::LightMagenta => "#c678dd",
        Color::Cyan | Color::LightCyan => "#56b6c2",
        Color::Gray | Color::White => INK,
        Color::DarkGray => "#7d828c",
    }
}

/// Text and paper, as the cell's style has them.
fn colors(cell: &Cell) -> [&'static str; 2] {
    let mut colors = [color(cell.fg, INK), color(cell.bg, PAPER)];
    if cell.modifier.contains(Modifier::REVERSED) {
        colors.reverse();
    }
    if cell.modifier.contains(Modifier::DIM) && colors[0] == INK {
        colors[0] = "#7d828c";
    }
    colors
}

/// What has no two blanks beside each other, with the column where it begins: no font has all letters as wide as another one.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut blanks = 2;
    for (at, letter) in text.chars().enumerate() {
        if letter == ' ' {
            blanks += 1;
            continue;
        }
        match words.last_mut() {
            Some((_, last)) if blanks < 2 => {
                last.extend(std::iter::repeat_n(' ', blanks));
                last.push(letter);
            }
            _ => words.push((at, letter.to_string())),
        }
        blanks = 0;
    }
    words
}

/// Adjacent cells with the same style are one piece.
fn svg(cells: &[Cell]) -> String {
    let (width, height) = (COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <title>flow-agent top</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{PAPER}\"/>\n"
    );
    for (row, line) in (0..).zip(cells.chunks(COLUMNS.into())) {
        let looks = |cell: &Cell| (colors(cell), cell.modifier.contains(Modifier::BOLD));
        let mut column = 0;
        for piece in line.chunk_by(|one, other| looks(one) == looks(other)) {
            let ([ink, paper], is_bold) = looks(&piece[0]);
            let (x, y) = (MARGIN + column * WIDTH, MARGIN + row * HEIGHT);
            let len = piece.len() as u16 * WIDTH;
            column += piece.len() as u16;
            if paper != PAPER {
                writeln!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{len}\" height=\"{HEIGHT}\" fill=\"{paper}\"/>")
                    .unwrap();
            }
            let weight = if is_bold { " font-weight=\"bold\"" } else { "" };
            let text: String = piece.iter().map(Cell::symbol).collect();
            for (at, words) in words(&text) {
                let (x, y) = (x + at as u16 * WIDTH, y + 13);
                let len = words.chars().count() as u16 * WIDTH;
                let words = words.replace('&', "&amp;").replace('<', "&lt;");
                writeln!(
                    svg,
                    "<text x=\"{x}\" y=\"{y}\" fill=\"{ink}\"{weight} textLength=\"{len}\">{words}</text>"
                )
                .unwrap();
            }
        }
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_in_the_documentation_is_what_the_screen_shows() {
    let mut screen = Screen::new(
        fleet(scans()),
        (View::Flows, Sort::Rate),
        Filter::default(),
        true,
    );
    let mut terminal = Terminal::new(TestBackend::new(COLUMNS, ROWS)).unwrap();
    terminal.draw(|frame| draw(frame, &mut screen)).unwrap();
    let drawn = svg(&terminal.backend().buffer().content);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/top.svg");
    if fs::read_to_string(&path).is_ok_and(|there| there == drawn) {
        return;
    }
    let new = std::env::temp_dir().join("flow-agent-top.svg");
    fs::write(&new, drawn).unwrap();
    panic!("the screen has changed: cp {} docs/top.svg", new.display());
}

#[test]
fn a_terminal_of_80_columns_has_room_for_bytes_and_one_of_200_for_everything() {
    let mut screen = Screen::new(
        fleet(scans()),
        (View::Flows, Sort::Rate),
        Filter::default(),
        true,
    );
    let titles = |screen: &mut Screen, width: u16| -> Vec<String> {
        let line = shown(screen, width, ROWS)[4].clone();
        let titles = line.split("  ").map(str::trim);
        let titles = titles.filter(|title| !title.is_empty());
        titles.map(str::to_owned).collect()
    };
    let few = titles(&mut screen, 80);
    assert_eq!(
        few[..6],
        [
            "INITIATOR",
            "RESPONDER",
            "PROTO",
            "BIT/S",
            "REV BIT/S",
            "BYTES"
        ]
    );
    assert_eq!(titles(&mut screen, 200), FLOW_TITLES[1..]);
}

#[test]
fn flows_with_one_name_are_one_row_of_names() {
    let mut picture = Picture::default();
    for scan in scans() {
        picture.add_batch(&scan);
    }
    let names: Vec<_> = picture.groups(View::Names).map(|(name, _)| name).collect();
    assert_eq!(names.len(), NAMES.len());
    let (_, flows, total) = group(&picture, View::Names, NAMES[0]);
    let (_, _, of_peer) = group(&picture, View::Peers, "192.0.2.10");
    assert_eq!((flows, total), (1, of_peer));
}
