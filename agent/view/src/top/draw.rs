//! Draws the screen.

use std::time::Duration;

use formats::{
    cells::{direction, place, protocol, round_trip, state},
    columns::GAP,
    harmless::harmless,
    human, table,
};
use proto::Endpoint;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Wrap},
};

use super::{
    View,
    fleet::{Fleet, Host},
    picture::{Flow, closes},
    rows::{Id, Of, Row, cells, columns, is_sorted_by, row, sparkline},
    screen::{Mode, Places, Screen},
};

/// Kinds of warnings about a host.
const DOUBTS: usize = 7;
/// Characters of a host's name in a warning and in a list, and the most hosts of a list.
const MOST_OF_LABEL: usize = 30;
const MOST_LISTED: usize = 8;
/// The keys, for the line at the bottom.
const KEYS: &str = "q quit  ? help  / filter  s sort  r reverse  space pause  enter detail";

pub(super) const HELP: &str = "\
1 to 8, tab, left, right  flows, peers, processes, units, interfaces, names,
                          services, hosts
up, down, page, home, end choose a row; j, k, g and G do as well
enter                     all that is known of the row
s, S                      sort by the next, or by the previous
r                         the other way round
e                         hide flows that ended, and show them again
/                         filter, as `port 443`, `net 10.0.0.0/8 proto tcp`,
                          or rules of --filter; empty for all
space                     pause, and go on
escape                    close this; choose no row
q, ctrl-c                 quit

The mouse chooses rows and views, a click on a title sorts.

Rates are over the time that the first line says. Bytes are those of frames
since the flow began; of other rows, of the flows that were there at the start
and of all since. TX is what a process or unit sent, what left at an
interface, what was sent to a peer or name.";

#[derive(Clone, Copy)]
struct Theme {
    has_color: bool,
}

impl Theme {
    fn of(self, color: Color) -> Style {
        if self.has_color {
            Style::new().fg(color)
        } else {
            Style::new()
        }
    }

    fn warning(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }
}

/// Two lines: the source of the figures, and their totals.
pub fn summary(fleet: &Fleet) -> [String; 2] {
    let row = Row::of_all(fleet);
    let tracked = match fleet.tracked_flows() {
        (flows, 0) if fleet.shown().next().is_some() => flows.to_string(),
        (0, _) => "?".to_owned(),
        (flows, _) => format!("at least {flows}"),
    };
    let place = if fleet.is_collector() {
        let hosts = human::exact(fleet.shown().count() as u64, "host");
        let window = match fleet.longest_window() {
            Some(length) => format!(
                "rates over each host's last scan, up to {}",
                human::duration(length)
            ),
            None => "waiting for a scan".to_owned(),
        };
        format!("collector  {hosts}  {tracked} flows tracked  {window}")
    } else {
        let picture = fleet.agent().map(|host| &host.picture);
        let name = picture.map_or("", |picture| picture.hostname.as_str());
        let window = match picture.and_then(|picture| Some((picture, picture.length()?))) {
            Some((picture, length)) => format!(
                "scan {}, rates over {}",
                picture.scan_id(),
                human::duration(length)
            ),
            None => "waiting for the next scan, totals until then".to_owned(),
        };
        format!("{}  {tracked} flows tracked  {window}", harmless(name))
    };
    let (bits, packets) = row.map_or_else(Default::default, |row| (row.bits(), row.packets()));
    let rate = |direction: usize| {
        let (bits, packets) = (spaced(bits[direction]), spaced(packets[direction]));
        format!("{bits}bit/s {packets}pkt/s")
    };
    [place, format!("TX {}  RX {}", rate(0), rate(1))]
}

/// A count with a space before its unit: `1.2 M`.
fn spaced(value: u64) -> String {
    let count = human::count(value);
    match count.find(|letter: char| letter.is_ascii_alphabetic()) {
        Some(unit) => format!("{} {}", &count[..unit], &count[unit..]),
        None => format!("{count} "),
    }
}

/// Warnings about misleading figures. Empty if there are none.
pub(super) fn warnings(fleet: &Fleet) -> String {
    let missing = fleet.missing;
    let of_stream = [
        (missing.lost_records, "record", "lost: read too slowly"),
        (missing.gaps, "message", "missing on the stream"),
        (missing.missed_scans, "scan", "missed"),
    ];
    let of_stream = of_stream.into_iter().filter(|(count, ..)| *count > 0);
    let mut said: Vec<String> = of_stream
        .map(|(count, what, how)| format!("{} {how}", human::exact(count, what)))
        .collect();
    if missing.restarts > 0 {
        let who = if fleet.is_collector() {
            "connected to the collector again"
        } else {
            "the agent was restarted"
        };
        let times = human::exact(missing.restarts, "time");
        said.push(format!("{who} ({times}): sums start there"));
    }
    let left_out = fleet.shown();
    let left_out: u64 = left_out
        .map(|host| host.picture.missing.forgotten_rows)
        .sum();
    if left_out > 0 {
        let rows = human::exact(left_out, "row");
        said.push(format!("{rows} with the least left out"));
    }
    for (count, how) in [
        (fleet.silent() as u64, "silent: flows not shown"),
        (fleet.beginning() as u64, "in a first scan: flows not shown"),
        (fleet.left_out() as u64, "too many: flows not shown"),
        (missing.ended, "gone for good: sums left out"),
    ] {
        if count > 0 && fleet.is_collector() {
            said.push(format!("{} {how}", human::exact(count, "host")));
        }
    }
    // The gravest ones first, each with one host that has it.
    let mut doubts: [Option<(String, usize)>; DOUBTS] = Default::default();
    for host in fleet.shown() {
        for (doubt, warning) in doubts.iter_mut().zip(warnings_of(fleet, host)) {
            let Some(warning) = warning else { continue };
            match doubt {
                Some((_, others)) => *others += 1,
                None if fleet.is_collector() => {
                    let label = human::shortened(&host.label, MOST_OF_LABEL).to_string();
                    *doubt = Some((format!("{label}: {warning}"), 0));
                }
                None => *doubt = Some((warning, 0)),
            }
        }
    }
    let doubts = doubts.into_iter().flatten().map(|(warning, others)| {
        if others == 0 {
            return warning;
        }
        format!(
            "{warning} (and {})",
            human::exact(others as u64, "other host")
        )
    });
    doubts.chain(said).collect::<Vec<_>>().join("; ")
}

/// Warnings about the figures of one host, the gravest first.
fn warnings_of(fleet: &Fleet, host: &Host) -> [Option<String>; DOUBTS] {
    let (picture, missing) = (&host.picture, host.picture.missing);
    let account = picture.account.as_ref().filter(|account| !closes(account));
    let interval = human::duration(missing.report_interval);
    let scans = human::exact(host.missing.scans, "scan");
    let parts = human::exact(host.missing.parts, "part");
    let lost = match (host.missing.scans, host.missing.parts) {
        (0, 0) => None,
        (_, 0) => Some(format!("{scans} missing")),
        (0, _) => Some(format!("{parts} of scans missing")),
        _ => Some(format!("{scans} and {parts} of scans missing")),
    };
    [
        account.map(table::closing),
        missing.refused_in_window.then(|| {
            "the kernel's table was full in this window: some flows are counted in part".to_owned()
        }),
        (picture.length() == Some(Duration::ZERO))
            .then(|| "the clock was set back in this window: rates are not known".to_owned()),
        lost,
        fleet.is_behind(host).map(|age| {
            let age = human::duration(age);
            format!("its figures are {age} old: it sends stored flows, or its clock is wrong")
        }),
        (missing.sample_rate > 1).then(|| format!("1 flow in {} is counted", missing.sample_rate)),
        (!missing.report_interval.is_zero()).then(|| {
            format!("a flow is reported every {interval}, so rates come late (--report-interval)")
        }),
    ]
}

pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let theme = Theme {
        has_color: screen.has_color,
    };
    let warning = [screen.trouble.as_str(), &warnings(screen.fleet())]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    let [head, graph, tabs, told, body, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(u16::from(!warning.is_empty())),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, screen, theme, head);
    let width = usize::from(graph.width);
    let history = Row::of_all(screen.fleet()).map_or_else(Vec::new, |row| row.history());
    let line = sparkline(&history, width);
    frame.render_widget(Paragraph::new(line).style(theme.of(Color::Green)), graph);
    let tabs = draw_tabs(frame, screen, theme, tabs);
    let warning = harmless(&warning).into_owned();
    frame.render_widget(Paragraph::new(warning).style(theme.warning()), told);
    let mut places = draw_table(frame, screen, theme, body);
    places.tabs = tabs;
    screen.places = places;
    draw_bottom(frame, screen, theme, keys);
    match screen.mode {
        Mode::Help => {
            let lines = HELP.lines().map(Line::raw).collect();
            popup(frame, theme, "Help", lines);
        }
        Mode::Detail => draw_detail(frame, screen, theme),
        Mode::Table | Mode::Filter { .. } => {}
    }
}

fn draw_head(frame: &mut Frame<'_>, screen: &Screen, theme: Theme, area: Rect) {
    let [place, sums] = summary(screen.fleet());
    let mut first = vec![
        Span::styled(
            "flow-agent top  ",
            theme.of(Color::Cyan).add_modifier(Modifier::BOLD),
        ),
        Span::raw(place),
    ];
    if screen.is_paused() {
        first.push(Span::styled("  PAUSED", theme.warning()));
    }
    let second = vec![
        Span::styled(sums, Style::new().add_modifier(Modifier::BOLD)),
        Span::styled(
            format!("  {}", harmless(&screen.pace)),
            theme.of(Color::DarkGray),
        ),
    ];
    let lines = vec![Line::from(first), Line::from(second)];
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns the position of each view's title.
fn draw_tabs(
    frame: &mut Frame<'_>,
    screen: &Screen,
    theme: Theme,
    area: Rect,
) -> Vec<(Rect, View)> {
    let mut places = Vec::new();
    let mut spans = Vec::new();
    let mut x = area.x;
    // All titles fit into 80 columns.
    let after = if area.width < 84 { "" } else { " " };
    for (view, number) in View::ALL.into_iter().zip(1..) {
        let title = format!(" {number} {}{after}", view.title());
        let style = if view == screen.view {
            theme.of(Color::Cyan).add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        let width = title.len() as u16;
        let place = Rect::new(x, area.y, width, 1).intersection(area);
        places.push((place, view));
        x = x.saturating_add(width);
        spans.push(Span::styled(title, style));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
    places
}

fn draw_table(frame: &mut Frame<'_>, screen: &mut Screen, theme: Theme, area: Rect) -> Places {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let page = usize::from(body.height);
    let (sort, _) = screen.order();
    let rows = screen.rows();
    let first = screen.first.min(rows.len().saturating_sub(page));
    let view = screen.view;
    let chosen = screen.chosen_at(&rows);
    let shown = rows.iter().skip(first).take(page);
    let shown: Vec<_> = shown.map(|row| cells(screen.fleet(), view, row)).collect();
    let is_empty = rows.is_empty();
    drop(rows);
    screen.first = first;
    let (columns, some) = columns(view, &shown);
    let fitted = columns.fit(&shown, some, usize::from(area.width));

    let mut titles = Vec::new();
    for one in &fitted {
        let is_sorted = is_sorted_by(view, one.column, sort);
        let mut style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        if is_sorted {
            style = style.patch(theme.of(Color::Cyan));
        }
        let title = columns.padded(columns.titles[one.column], *one);
        titles.extend([Span::styled(title, style), Span::raw(GAP)]);
    }
    frame.render_widget(Paragraph::new(Line::from(titles)), head);
    let lines = shown.iter().zip(first..).map(|(row, at)| {
        let line = Line::raw(columns.line(&row.0, &fitted));
        if chosen == Some(at) {
            line.style(Style::new().add_modifier(Modifier::REVERSED))
        } else {
            line
        }
    });
    let mut lines: Vec<_> = lines.collect();
    if is_empty {
        lines.push(Line::styled("nothing yet", theme.of(Color::DarkGray)));
    }
    frame.render_widget(Paragraph::new(lines), body);
    Places {
        tabs: Vec::new(),
        head,
        columns: fitted,
        rows: body,
    }
}

fn draw_bottom(frame: &mut Frame<'_>, screen: &Screen, theme: Theme, area: Rect) {
    let line = match &screen.mode {
        Mode::Filter { prompt, fault } => {
            const LABEL: &str = "filter: ";
            let room = usize::from(area.width).saturating_sub(LABEL.len());
            let [before, after] = prompt.sides();
            // The cursor stays in sight.
            let hidden = (before.chars().count() + 1).saturating_sub(room);
            let before: String = before.chars().skip(hidden).collect();
            let mut after = after.chars();
            let at_cursor = after.next().unwrap_or(' ').to_string();
            let cursor = Style::new().add_modifier(Modifier::REVERSED);
            let mut spans = vec![
                Span::styled(LABEL, theme.of(Color::Yellow)),
                Span::raw(before),
                Span::styled(at_cursor, cursor),
                Span::raw(after.as_str().to_owned()),
            ];
            match fault {
                Some(fault) => spans.push(Span::styled(format!("  {fault}"), theme.warning())),
                None => spans.push(Span::styled(
                    "  enter to apply, escape to leave",
                    theme.of(Color::DarkGray),
                )),
            }
            Line::from(spans)
        }
        Mode::Table | Mode::Help | Mode::Detail => {
            let (sort, is_reversed) = screen.order();
            let reversed = if is_reversed { ", reversed" } else { "" };
            let hidden = if screen.hides_ended && screen.view == View::Flows {
                ", without ended"
            } else {
                ""
            };
            let sorted = format!("by {}{reversed}{hidden}  ", sort.title());
            let mut spans = vec![Span::styled(sorted, theme.of(Color::Cyan))];
            if !screen.filter.rules.is_empty() {
                let filter = format!("filter: {}  ", screen.filter.typed);
                spans.push(Span::styled(filter, theme.of(Color::Yellow)));
            }
            spans.push(Span::styled(KEYS, theme.of(Color::DarkGray)));
            Line::from(spans)
        }
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn popup(frame: &mut Frame<'_>, theme: Theme, title: &str, lines: Vec<Line<'_>>) {
    let area = frame.area();
    let width = usize::from(area.width).saturating_sub(2).max(1);
    let heights = lines.iter().map(|line| line.width().div_ceil(width).max(1));
    let height = (heights.sum::<usize>() as u16)
        .saturating_add(2)
        .min(area.height);
    let area = Rect { height, ..area };
    let block = Block::bordered()
        .title(format!(" {title} "))
        .border_style(theme.of(Color::Cyan));
    frame.render_widget(Clear, area);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(text.block(block), area);
}

fn draw_detail(frame: &mut Frame<'_>, screen: &Screen, theme: Theme) {
    let title = match &screen.chosen {
        Some(Id::Flow(..)) => "Flow",
        Some(Id::Group(view, ..)) => view.title(),
        None => "Nothing",
    };
    let chosen = screen.chosen.as_ref();
    let row = chosen.and_then(|id| row(screen.fleet(), screen.view, id));
    let facts = match row.as_ref().map(|row| (row, row.of)) {
        Some((row, Of::Flow(_, flow))) => facts_of_flow(row, flow, screen),
        Some((row, Of::Group(name))) => facts_of_group(row, name, screen),
        None => vec![("", "It is no longer there.".to_owned())],
    };
    let label = theme.of(Color::Cyan);
    let longest = facts.iter().map(|(name, _)| name.len()).max();
    let width = longest.unwrap_or_default() + GAP.len();
    let lines = facts.into_iter().map(|(name, value)| {
        Line::from(vec![
            Span::styled(format!("{name:<width$}"), label),
            Span::raw(value),
        ])
    });
    popup(frame, theme, title, lines.collect());
}

type Facts = Vec<(&'static str, String)>;

fn facts_of_traffic(row: &Row<'_>) -> Facts {
    let rate = |direction: usize| {
        format!(
            "{}bit/s, {}pkt/s",
            spaced(row.bits()[direction]),
            spaced(row.packets()[direction]),
        )
    };
    let sum = |direction: usize| {
        format!(
            "{} packets, {} bytes ({})",
            row.total.packets[direction],
            row.total.bytes[direction],
            human::bytes(row.total.bytes[direction]),
        )
    };
    vec![
        ("sent, last window", rate(0)),
        ("back, last window", rate(1)),
        ("sent in all", sum(0)),
        ("back in all", sum(1)),
    ]
}

fn facts_of_group(row: &Row<'_>, name: &str, screen: &Screen) -> Facts {
    let mut facts = vec![("name", screen.view.shown(name).to_owned())];
    if let Some(called) = row.called {
        facts.push(("called last", called.to_owned()));
    }
    if let Some(host) = row.host.filter(|_| row.is_silent) {
        let silence = human::duration(screen.fleet().silence(host));
        facts.push(("silent for", silence));
    }
    facts.extend(facts_of_traffic(row));
    facts.push(("flows in the window", row.flows.to_string()));
    facts.push(history_of(row));
    facts.extend(facts_of_hosts(row, screen));
    facts
}

/// Which hosts of a collector have it.
fn facts_of_hosts(row: &Row<'_>, screen: &Screen) -> Facts {
    if !screen.fleet().is_collector() {
        return Vec::new();
    }
    let hosts = row.hosts();
    let listed = hosts.iter().take(MOST_LISTED);
    let listed = listed.map(|label| human::shortened(label, MOST_OF_LABEL).to_string());
    let mut listed: Vec<_> = listed.collect();
    let more = hosts.len() - listed.len();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    vec![("at", listed.join(", "))]
}

fn history_of(row: &Row<'_>) -> (&'static str, String) {
    let history = row.history();
    ("history", sparkline(&history, history.len()))
}

fn facts_of_flow(row: &Row<'_>, flow: &Flow, screen: &Screen) -> Facts {
    let record = &flow.record;
    let zone = screen.zone;
    let [src, dst] = record.ends();
    let end = |end, host: &Option<String>| {
        let endpoint = human::end(None, end);
        let called = host.as_ref().map(|host| format!("{endpoint}, {host}"));
        called.unwrap_or(endpoint)
    };
    let [source, destination] = &flow.hosts;
    let mut facts = vec![
        ("initiator", end(src, source)),
        ("responder", end(dst, destination)),
        ("protocol", protocol(record)),
        (
            "interface",
            format!(
                "{} {}",
                place(record, flow.interface.as_ref()),
                direction(record)
            ),
        ),
        ("state", state(record).to_owned()),
        (
            "first packet",
            zone.millis(record.first_seen_unix_ns).to_string(),
        ),
        (
            "last packet",
            zone.millis(record.last_seen_unix_ns).to_string(),
        ),
    ];
    facts.extend(facts_of_hosts(row, screen));
    facts.extend(facts_of_traffic(row));
    let ends = ["of the initiator", "of the responder"];
    for (end, name) in ends.into_iter().enumerate() {
        let process = flow.processes[end].as_deref();
        let unit = flow.units[end].as_deref();
        let known: Vec<_> = [process, unit].into_iter().flatten().collect();
        if !known.is_empty() {
            facts.push((name, known.join(" in ")));
        }
    }
    let tcp = ["TCP of the initiator", "TCP of the responder"];
    for (name, end) in tcp.into_iter().zip([src, dst]) {
        if end.tcp_delivered.is_some() {
            facts.push((name, tcp_of(end)));
        }
    }
    let answers = ["initiator answers in", "responder answers in"];
    for (name, end) in answers.into_iter().zip([src, dst]) {
        if (end.handshake_rtt_us, end.ack_rtt_us) != (None, None) {
            facts.push((name, answer_of(end)));
        }
    }
    let dropped = [src, dst].map(|end| end.total_dropped_packets);
    if dropped != [0; 2] {
        let [forward, reverse] = dropped.map(human::count);
        facts.push(("dropped", format!("{forward} packets and back {reverse}")));
    }
    if record.initiator_assumed {
        facts.push(("initiator", "assumed".to_owned()));
    }
    if let Some(forward) = src.tcp_flags {
        let reverse = dst.tcp_flags.unwrap_or_default();
        let flags = format!("{forward:#04x} and back {reverse:#04x}");
        facts.push(("TCP flags", flags));
    }
    facts.push(history_of(row));
    facts
}

fn answer_of(end: &Endpoint) -> String {
    let told = |us: Option<u32>, what: &str| Some(format!("{} {what}", round_trip(us?)));
    let both = [
        told(end.handshake_rtt_us, "in the handshake"),
        told(end.ack_rtt_us, "at last"),
    ];
    both.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn tcp_of(end: &Endpoint) -> String {
    let mut said = Vec::new();
    if let Some(rtt) = end.tcp_rtt_us {
        said.push(format!("round trip {}", round_trip(rtt)));
    }
    if let Some(least) = end.tcp_min_rtt_us {
        said.push(format!("shortest {}", round_trip(least)));
    }
    if let (Some(again), Some(sent)) = (end.tcp_total_retrans, end.tcp_data_segs_out) {
        said.push(format!(
            "{again} sent again, {sent} segments with data sent"
        ));
    }
    said.join(", ")
}
