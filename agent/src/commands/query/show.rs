//! Shows the result of a query.

use std::{
    cmp::Ordering,
    fmt::Write as _,
    io::{self, Write},
    ops::Range,
    time::Duration,
};

use formats::{harmless::harmless, human, time::UtcTime};
use serde_json::{Map, Value, json};
use sys::local_time::{Step, Zone};
use view::{
    query::{By, Group, Missing, Order, Part, QueryResult, StreamLosses, Sums},
    top::rows::sparkline,
};

use super::Form;

const GAP: &str = "  ";

/// Names of a step of time in CSV and JSON.
const STEP: [&str; 2] = ["step_start", "step_end"];

/// Names of the sums in CSV and JSON.
const SUMS: [&str; 7] = [
    "records",
    "packets",
    "bytes",
    "reverse_packets",
    "reverse_bytes",
    "flows_begun",
    "flows_ended",
];

/// What an answer is shown as.
pub(super) struct Shape<'a> {
    pub form: Form,
    pub by: &'a [By],
    /// If each step of time has rows of its own.
    pub step: Option<Step>,
    pub zone: Zone,
    pub order: Order,
    /// Of the terminal, if it is one.
    pub width: Option<usize>,
}

pub(super) fn show(mut out: impl Write, shape: &Shape<'_>, answer: &QueryResult) -> io::Result<()> {
    match shape.form {
        Form::Table => table(&mut out, shape, answer)?,
        Form::Json => json_lines(&mut out, shape, answer)?,
        Form::Csv => csv(&mut out, shape, answer)?,
    }
    out.flush()
}

/// Names in CSV and JSON of the rates, each with the place of its sum.
const RATES: [&str; 4] = [
    "packets_per_second",
    "bits_per_second",
    "reverse_packets_per_second",
    "reverse_bits_per_second",
];

/// Thousandths of packets and bits a second, from each direction as in [`RATES`]. `None` if the answer covers no time.
fn rates(group: &Group, answer: &QueryResult) -> Option<[u64; 4]> {
    let period_us = answer.period_us(group)?;
    let period_us = u128::from(period_us.end.abs_diff(period_us.start));
    let rate = |sum: u64, units: u128| {
        let thousandths = u128::from(sum) * units * 1_000_000_000;
        let rounded = (thousandths + period_us / 2) / period_us;
        u64::try_from(rounded).unwrap_or(u64::MAX)
    };
    let Sums { packets, bytes, .. } = group.sums;
    let [[packets, bits], [reverse_packets, reverse_bits]] =
        [0, 1].map(|end| [rate(packets[end], 1), rate(bytes[end], 8)]);
    Some([packets, bits, reverse_packets, reverse_bits])
}

/// The rates, or `null`.
fn rate_values(group: &Group, answer: &QueryResult) -> [Value; 4] {
    match rates(group, answer) {
        Some(rates) => rates.map(|thousandths| json!(thousandths as f64 / 1000.0)),
        // An empty step.
        None if group.sums == Sums::default() => [0.0; 4].map(|rate| json!(rate)),
        None => [const { Value::Null }; 4],
    }
}

/// What the answer lacks, one sentence each.
pub(super) fn missing(form: Form, answer: &QueryResult) -> Vec<String> {
    let mut texts = Vec::new();
    let shown = answer.groups.len();
    if form == Form::Csv && shown < answer.all_groups {
        texts.push(format!(
            "these are {shown} of {} groups; --top 0 shows all",
            answer.all_groups
        ));
    }
    let StreamLosses { lost, left_out } = answer.missing;
    if lost != Missing::default() {
        texts.push(format!(
            "{} records with {} packets were lost before they reached these files, counted since their streams began",
            lost.records, lost.packets
        ));
    }
    if left_out != Missing::default() {
        texts.push(format!(
            "{} records with {} packets were left out by the settings of the outputs, counted since their streams began",
            left_out.records, left_out.packets
        ));
    }
    if !answer.sample_rates.is_empty() {
        let rates = answer.sample_rates.iter().map(ToString::to_string);
        let whole = if answer.has_whole {
            "of some agents, or for some of the time, "
        } else {
            ""
        };
        texts.push(format!(
            "{whole}only one in {} flows was counted: the sums are of these",
            rates.collect::<Vec<_>>().join(" or ")
        ));
    }
    for (path, bytes) in &answer.damaged {
        texts.push(format!(
            "{bytes} bytes of {} are not whole: they are being written, or damaged",
            path.display()
        ));
    }
    if answer.unsound_records > 0 {
        texts.push(format!(
            "{} records are LEFT OUT: no agent would have sent them",
            answer.unsound_records
        ));
    }
    let groups = answer.groups.iter().map(|group| &group.sums);
    let earlier = answer.before.iter().map(|earlier| &earlier.total);
    let mut all = groups.chain([&answer.total]).chain(earlier);
    if all.any(Sums::is_at_its_bound) {
        texts.push(format!(
            "sums of {} are TOO LOW: the packets or bytes of these records add up to more",
            u64::MAX
        ));
    }
    if answer.gone_files > 0 {
        texts.push(format!(
            "{} files were removed before they could be read",
            answer.gone_files
        ));
    }
    if answer.unmarked_files > 0 {
        texts.push(format!(
            "for {} files of a spool it is unknown which batches a collector has acknowledged (mark.json), so all of them count",
            answer.unmarked_files
        ));
    }
    texts
}

fn values(sums: &Sums) -> [u64; 7] {
    let ([packets, reverse_packets], [bytes, reverse_bytes]) = (sums.packets, sums.bytes);
    [
        sums.records,
        packets,
        bytes,
        reverse_packets,
        reverse_bytes,
        sums.begun,
        sums.ended,
    ]
}

/// Names in CSV and JSON of the values that identify a group.
fn names(shape: &Shape<'_>) -> Vec<&'static str> {
    let step = shape.step.map(|_| STEP).into_iter().flatten();
    let each = shape.by.iter().flat_map(|one| names_of(*one, shape.by));
    step.chain(each.copied()).collect()
}

fn names_of(one: By, by: &[By]) -> &'static [&'static str] {
    match one {
        By::Address => &["address"],
        By::Source => &["src_addr"],
        By::Destination => &["dst_addr"],
        // Only once, even if the protocol was asked for as well.
        By::Port if by.contains(&By::Protocol) => &["dst_port"],
        By::Port => &["protocol", "dst_port"],
        By::Protocol => &["protocol"],
        By::Interface => &["interface"],
        By::Host => &["hostname"],
        By::Unit => &["unit"],
        By::Process => &["process"],
        By::Name => &["name"],
    }
}

/// One value for each name.
fn parts(by: &[By], group: &Group) -> Vec<Value> {
    // The step comes before the others.
    let others = group.parts.len().saturating_sub(by.len());
    let of = |place: usize| place.checked_sub(others).and_then(|place| by.get(place));
    let each = group
        .parts
        .iter()
        .enumerate()
        .flat_map(|(place, part)| match part {
            Part::Step { start_us, end_us } => vec![utc(*start_us), utc(*end_us)],
            Part::Nothing => vec![Value::Null; of(place).map_or(1, |one| names_of(*one, by).len())],
            Part::Address(address) => vec![json!(address)],
            Part::Port(_, port) if by.contains(&By::Protocol) => vec![json!(port)],
            Part::Port(protocol, port) => vec![json!(protocol), json!(port)],
            Part::Protocol(protocol) => vec![json!(protocol)],
            Part::Name(name) => vec![of_a_name(name)],
        });
    each.collect()
}

/// A time as in JSON Lines.
fn utc(unix_us: i64) -> Value {
    let unix_us = u64::try_from(unix_us).unwrap_or_default();
    json!(UtcTime::new(unix_us.saturating_mul(1000)))
}

/// `null` if the name is unknown.
fn of_a_name(name: &str) -> Value {
    if name.is_empty() {
        Value::Null
    } else {
        json!(name)
    }
}

/// The sums of the earlier time, by names of their own.
fn before(sums: &Sums) -> impl Iterator<Item = (String, Value)> {
    let named = SUMS.iter().zip(values(sums));
    named.map(|(name, value)| (before_name(name), json!(value)))
}

fn before_name(name: &str) -> String {
    format!("before_{name}")
}

fn json_lines(out: &mut impl Write, shape: &Shape<'_>, answer: &QueryResult) -> io::Result<()> {
    let sums = |line: &mut Map<String, Value>, sums: &Sums| {
        let named = SUMS.iter().zip(values(sums));
        line.extend(named.map(|(name, value)| ((*name).to_owned(), json!(value))));
    };
    for group in &answer.groups {
        let mut line = Map::new();
        line.insert("type".to_owned(), json!("group"));
        let named = names(shape).into_iter().zip(parts(shape.by, group));
        line.extend(named.map(|(name, value)| (name.to_owned(), value)));
        sums(&mut line, &group.sums);
        let rates = RATES.iter().zip(rate_values(group, answer));
        line.extend(rates.map(|(name, value)| ((*name).to_owned(), value)));
        line.extend(group.before.iter().flat_map(before));
        writeln!(out, "{}", Value::Object(line))?;
    }
    let mut line = Map::new();
    line.insert("type".to_owned(), json!("total"));
    sums(&mut line, &answer.total);
    if let Some(earlier) = &answer.before {
        line.extend(before(&earlier.total));
        let windows_us = earlier.windows_us.as_ref();
        for (name, time_us) in [
            (
                "before_window_start",
                windows_us.map(|windows_us| windows_us.start),
            ),
            (
                "before_window_end",
                windows_us.map(|windows_us| windows_us.end),
            ),
        ] {
            line.insert(name.to_owned(), json!(time_us.map(utc)));
        }
    }
    let windows = answer.windows_us.as_ref();
    let StreamLosses { lost, left_out } = answer.missing;
    let damaged = answer.damaged.iter().map(|(_, bytes)| bytes).sum::<u64>();
    for (name, value) in [
        ("groups", json!(answer.all_groups)),
        (
            "window_start",
            json!(windows.map(|windows| utc(windows.start))),
        ),
        ("window_end", json!(windows.map(|windows| utc(windows.end)))),
        ("files", json!(answer.files)),
        ("gone_files", json!(answer.gone_files)),
        ("unsound_records", json!(answer.unsound_records)),
        ("unmarked_files", json!(answer.unmarked_files)),
        ("unread_bytes", json!(damaged)),
        ("repeated_records", json!(answer.repeated_records)),
        ("lost_records", json!(lost.records)),
        ("lost_packets", json!(lost.packets)),
        ("lost_bytes", json!(lost.bytes)),
        ("left_out_records", json!(left_out.records)),
        ("left_out_packets", json!(left_out.packets)),
        ("left_out_bytes", json!(left_out.bytes)),
        ("sample_rates", json!(answer.sample_rates)),
    ] {
        line.insert(name.to_owned(), value);
    }
    writeln!(out, "{}", Value::Object(line))
}

fn csv(out: &mut impl Write, shape: &Shape<'_>, answer: &QueryResult) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let names = names(shape).into_iter().chain(SUMS).chain(RATES);
    let before = answer.before.iter().flat_map(|_| SUMS.map(before_name));
    writer.write_record(names.map(str::to_owned).chain(before))?;
    for group in &answer.groups {
        let parts = parts(shape.by, group)
            .into_iter()
            .map(|value| match value.as_str() {
                Some(text) => csv_cell(text),
                None if value.is_null() => String::new(),
                None => value.to_string(),
            });
        let sums = values(&group.sums).map(|value| value.to_string());
        let rates = rate_values(group, answer).map(|value| {
            if value.is_null() {
                String::new()
            } else {
                value.to_string()
            }
        });
        let before = group.before.iter().flat_map(values);
        let before = before.map(|value| value.to_string());
        writer.write_record(parts.chain(sums).chain(rates).chain(before))?;
    }
    writer.flush()
}

/// Escapes a text so that it controls no terminal and no spreadsheet takes it for a formula (OWASP, "CSV Injection"). A
/// text that already begins with the escape is escaped as well, so that each cell stands for exactly one text.
fn csv_cell(text: &str) -> String {
    let text = harmless(text);
    if text.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠', '\'']) {
        format!("'{text}")
    } else {
        text.into_owned()
    }
}

/// When a step of time starts, as exactly as its length needs.
fn start(start_us: i64, shape: &Shape<'_>) -> String {
    let unix_ns = u64::try_from(start_us)
        .unwrap_or_default()
        .saturating_mul(1000);
    match shape.step {
        Some(Step::Days(_)) => shape.zone.day(unix_ns).to_string(),
        Some(Step::Months(_)) => shape.zone.month(unix_ns).to_string(),
        Some(Step::Seconds(seconds)) if !seconds.is_multiple_of(60) => {
            shape.zone.seconds(unix_ns).to_string()
        }
        Some(Step::Seconds(_)) | None => shape.zone.minutes(unix_ns).to_string(),
    }
}

/// A summary, the groups, and the number of further groups.
fn table(out: &mut impl Write, shape: &Shape<'_>, answer: &QueryResult) -> io::Result<()> {
    writeln!(out, "{}", summary(answer, shape.zone))?;
    if answer.groups.is_empty() {
        return Ok(());
    }
    let step = shape.step.map(|_| "TIME");
    let names = step.into_iter().chain(shape.by.iter().map(|by| title(*by)));
    let titles: Vec<_> = names.collect();
    let names = titles.len();
    let titles = titles.into_iter().chain(figure_titles(shape, answer));
    let mut rows = vec![titles.map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(
        answer
            .groups
            .iter()
            .map(|group| cells(group, shape, answer)),
    );
    if let Some(earlier) = &answer.before {
        let rest = (1..names).map(|_| String::new());
        let name = std::iter::once("TOTAL".to_owned()).chain(rest);
        let sums = compared(&answer.total, &earlier.total, shape.order);
        rows.push(name.chain(sums).collect());
    }
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let histories = histories(answer, shape, &widths);
    writeln!(out)?;
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                line.push_str(GAP);
            }
            // Figures are aligned to the right.
            let written = if column < names {
                write!(line, "{cell:<width$}")
            } else {
                write!(line, "{cell:>width$}")
            };
            written.map_err(io::Error::other)?;
        }
        if let Some(history) = histories.get(number) {
            line.push_str(GAP);
            line.push_str(history);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    let more = answer.all_groups - answer.groups.len();
    if more > 0 {
        writeln!(
            out,
            "… and {} more; --top 0 shows all",
            human::count(more as u64)
        )?;
    }
    Ok(())
}

fn plural(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {what}{ending}", human::count(number))
}

fn traffic(total: &Sums) -> String {
    format!(
        "{}, {} began, {}, {} in both directions",
        plural(total.records, "record"),
        plural(total.begun, "flow"),
        plural(total.packets(), "packet"),
        human::bytes(total.bytes()),
    )
}

fn summary(answer: &QueryResult, zone: Zone) -> String {
    let files = plural(answer.files as u64, "file");
    let compared = answer.before.as_ref().map(|earlier| {
        let before = match &earlier.windows_us {
            Some(windows_us) if earlier.total.records > 0 => format!(
                "{} to {} ({}): {}",
                time(windows_us.start, zone),
                time(windows_us.end, zone),
                human::duration(length(windows_us)),
                traffic(&earlier.total)
            ),
            Some(_) | None => "a period without records".to_owned(),
        };
        format!("\ncompared with {before}")
    });
    let compared = compared.unwrap_or_default();
    let windows = answer.windows_us.as_ref();
    let Some(windows) = windows.filter(|_| answer.total.records > 0) else {
        return format!("{files}: no record in this period passes the filter{compared}");
    };
    let mut text = format!(
        "{} to {} ({}), {files}: {}",
        time(windows.start, zone),
        time(windows.end, zone),
        human::duration(length(windows)),
        traffic(&answer.total),
    );
    if answer.repeated_records > 0 {
        let repeated = plural(answer.repeated_records, "record");
        text = format!("{text}; {repeated} were repeated and count once");
    }
    text + &compared
}

pub(super) fn time(unix_us: i64, zone: Zone) -> impl std::fmt::Display {
    let unix_us = u64::try_from(unix_us).unwrap_or_default();
    zone.seconds(unix_us.saturating_mul(1000))
}

fn compared_titles(order: Order) -> [&'static str; 4] {
    let figure = match order {
        Order::Bytes => "BYTES",
        Order::Packets => "PKTS",
        Order::Begun => "BEGUN",
    };
    [figure, "BEFORE", "DIFFERENCE", "CHANGE"]
}

/// What the order goes by, in both directions: now, before, and the difference.
fn compared(now: &Sums, before: &Sums, order: Order) -> [String; 4] {
    let figure = match order {
        Order::Bytes => human::bytes,
        Order::Packets | Order::Begun => human::count,
    };
    let [now_figure, before_figure] = [now, before].map(|sums| sums.by(order));
    let sign = match now_figure.cmp(&before_figure) {
        Ordering::Less => "-",
        Ordering::Equal => "",
        Ordering::Greater => "+",
    };
    let difference = now_figure.abs_diff(before_figure);
    let change = match (now.records, before.records) {
        (0, 0) => "-".to_owned(),
        (_, 0) => "new".to_owned(),
        (0, _) => "gone".to_owned(),
        _ if difference == 0 => "0 %".to_owned(),
        _ if before_figure == 0 => "-".to_owned(),
        _ => {
            let percent = difference as f64 / before_figure as f64 * 100.0;
            let digits = usize::from(percent < 9.95);
            format!("{sign}{percent:.digits$} %")
        }
    };
    let difference = format!("{sign}{}", figure(difference));
    [
        figure(now_figure),
        figure(before_figure),
        difference,
        change,
    ]
}

fn length(windows_us: &Range<i64>) -> Duration {
    let us = windows_us.end.saturating_sub(windows_us.start);
    Duration::from_micros(us.try_into().unwrap_or_default())
}

/// `0.3` if it is less than ten.
fn per_second(thousandths: u64) -> String {
    match thousandths {
        0 => "0".to_owned(),
        1..9950 => format!("{:.1}", thousandths.max(100) as f64 / 1000.0),
        _ => human::count(thousandths / 1000 + u64::from(thousandths % 1000 >= 500)),
    }
}

fn title(by: By) -> &'static str {
    match by {
        By::Address => "ADDRESS",
        By::Source => "INITIATOR",
        By::Destination => "RESPONDER",
        By::Port => "PORT",
        By::Protocol => "PROTO",
        By::Interface => "IFACE",
        By::Host => "HOST",
        By::Unit => "UNIT",
        By::Process => "PROCESS",
        By::Name => "NAME",
    }
}

fn figure_titles(shape: &Shape<'_>, answer: &QueryResult) -> Vec<&'static str> {
    if answer.before.is_some() {
        return compared_titles(shape.order).to_vec();
    }
    let has_an_end = [By::Address, By::Unit, By::Process, By::Name]
        .iter()
        .any(|one| shape.by.contains(one));
    let sums = if has_an_end {
        ["TX PKTS", "TX", "RX PKTS", "RX"]
    } else {
        ["PKTS", "BYTES", "REV PKTS", "REV BYTES"]
    };
    sums.into_iter()
        .chain(["BEGUN", "PKT/S", "BIT/S"])
        .collect()
}

/// A title and a sparkline for each group, if the terminal is wide enough for them and the columns.
fn histories(answer: &QueryResult, shape: &Shape<'_>, widths: &[usize]) -> Vec<String> {
    let longest = answer.groups.iter().map(|group| group.history.len()).max();
    let (bars, title) = (longest.unwrap_or_default(), "HISTORY");
    let columns: usize = widths.iter().map(|width| width + GAP.len()).sum();
    let fits = shape
        .width
        .is_some_and(|width| columns + bars.max(title.len()) <= width);
    if bars == 0 || !fits {
        return Vec::new();
    }
    let lines = answer
        .groups
        .iter()
        .map(|group| sparkline(&group.history, bars));
    std::iter::once(title.to_owned()).chain(lines).collect()
}

fn cells(group: &Group, shape: &Shape<'_>, answer: &QueryResult) -> Vec<String> {
    let Sums {
        packets,
        bytes,
        begun,
        ..
    } = group.sums;
    let parts = group.parts.iter().map(|part| match part {
        Part::Step { start_us, .. } => start(*start_us, shape),
        Part::Nothing => "-".to_owned(),
        Part::Address(address) => address.to_string(),
        Part::Port(number, Some(port)) => {
            format!("{port}/{}", human::protocol_of((*number).into()))
        }
        Part::Port(number, None) | Part::Protocol(number) => human::protocol_of((*number).into()),
        Part::Name(name) if name.is_empty() => "?".to_owned(),
        Part::Name(name) => harmless(name).into_owned(),
    });
    if let Some(before) = &group.before {
        let compared = compared(&group.sums, before, shape.order);
        return parts.chain(compared).collect();
    }
    let figures = [
        human::count(packets[0]),
        human::bytes(bytes[0]),
        human::count(packets[1]),
        human::bytes(bytes[1]),
        human::count(begun),
    ];
    let rates = match rates(group, answer) {
        Some([packets, bits, reverse_packets, reverse_bits]) => [
            packets.saturating_add(reverse_packets),
            bits.saturating_add(reverse_bits),
        ]
        .map(per_second),
        None => ["-"; 2].map(str::to_owned),
    };
    parts.chain(figures).chain(rates).collect()
}

#[cfg(test)]
mod tests;
