//! Checks whether an agent could have made a batch: no packet has port 70,000, and no correct clock is a year
//! ahead. A batch with a value that no agent sends is refused as a whole, with the name of the field, before
//! any of it is stored, counted or shown.
//!
//! An unknown enum number is valid: a later agent may send it. Readers treat it as unspecified.

use std::fmt;

use agent_common::sample;
use thiserror::Error;

use crate::{Account, Count, DnsExchange, Endpoint, FlowBatch, FlowRecord, limits};

const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 24 * 3600 * SECOND_NS;

/// A spool may have waited this long for its host to be repaired.
const MOST_AGE_NS: u64 = 400 * DAY_NS;
/// A clock may be set to the wrong time zone.
const MOST_AHEAD_NS: u64 = DAY_NS;
/// The longest window (a host may sleep during one), and the longest report interval.
const LONGEST_NS: u64 = limits::MAX_DELTA_DURATION_NS;
/// A batch that another collector has checked may have waited in a topic for as long again.
const MOST_AGE_IN_A_TOPIC_NS: u64 = 2 * MOST_AGE_NS;
/// No flow and no host lasts longer than ten years.
const OLDEST_FLOW_NS: u64 = 3650 * DAY_NS;

/// The parser reads no more tags in front of a packet.
const MOST_VLANS: usize = 8;
const IPV4_BYTES: usize = 4;
const IPV6_BYTES: usize = 16;
const COMMUNITY_ID_BYTES: usize = 20;

/// A value that no agent sends.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    pub field: String,
    why: String,
}

include!(concat!(env!("OUT_DIR"), "/checks.rs"));

/// The message of a batch that has the field, with its index if the message is repeated.
#[derive(Clone, Copy)]
struct Place<'a> {
    of: &'a str,
    number: Option<usize>,
    /// The field of that message which has the field, with a dot; or empty.
    end: &'a str,
}

impl Place<'_> {
    fn refuse(self, name: &str, why: impl fmt::Display) -> Invalid {
        let number = self.number.map(|number| format!("[{number}]"));
        let number = number.unwrap_or_default();
        let dot = if self.of.is_empty() { "" } else { "." };
        Invalid {
            field: format!("{}{number}{dot}{}{name}", self.of, self.end),
            why: why.to_string(),
        }
    }

    /// Checks a list of numbers.
    #[inline]
    fn numbers(self, name: &str, values: &[u32], most: u64) -> Result<(), Invalid> {
        if values.len() > MOST_VLANS {
            return Err(self.refuse(name, format_args!("there are {}", values.len())));
        }
        for &value in values {
            self.at_most(name, value.into(), most)?;
        }
        Ok(())
    }

    #[inline]
    fn at_most(self, name: &str, value: u64, most: u64) -> Result<(), Invalid> {
        if value <= most {
            return Ok(());
        }
        Err(self.refuse(name, format_args!("{value} is more than {most}")))
    }

    #[inline]
    fn number(self, name: &str, value: Option<u32>, most: u64) -> Result<(), Invalid> {
        self.at_most(name, value.unwrap_or_default().into(), most)
    }

    #[inline]
    fn len(self, name: &str, len: usize, may_be: &[usize]) -> Result<(), Invalid> {
        if may_be.contains(&len) {
            return Ok(());
        }
        Err(self.refuse(name, format_args!("it has {len} bytes")))
    }

    /// Checks that a time is within the range for batches that arrive at this moment.
    #[inline]
    fn time(self, name: &str, unix_ns: u64, now: Now) -> Result<(), Invalid> {
        if (now.earliest..=now.latest).contains(&unix_ns) {
            return Ok(());
        }
        Err(self.refuse(
            name,
            format_args!(
                "{unix_ns} is not between {} and {}: set the clock",
                now.earliest, now.latest
            ),
        ))
    }
}

/// The times that a batch may have, in Unix time in nanoseconds.
#[derive(Clone, Copy)]
struct Now {
    earliest: u64,
    latest: u64,
    oldest_flow: u64,
}

/// The sender of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Agent,
    /// Another collector, which has checked the batch some time ago, by its own clock.
    Collector,
}

impl Origin {
    fn times(self, now_unix_ns: u64) -> Now {
        let (age, ahead) = match self {
            Self::Agent => (MOST_AGE_NS, MOST_AHEAD_NS),
            Self::Collector => (MOST_AGE_IN_A_TOPIC_NS, 2 * MOST_AHEAD_NS),
        };
        Now {
            earliest: now_unix_ns.saturating_sub(age),
            latest: now_unix_ns.saturating_add(ahead),
            oldest_flow: now_unix_ns.saturating_sub(age - MOST_AGE_NS + OLDEST_FLOW_NS),
        }
    }
}

/// Fails with the first field that has a value no agent sends. `now_unix_ns` is Unix time in nanoseconds.
pub fn check(batch: &FlowBatch, origin: Origin, now_unix_ns: u64) -> Result<(), Invalid> {
    let now = origin.times(now_unix_ns);
    let place = Place {
        of: "",
        number: None,
        end: "",
    };
    check_window(batch, place, now)?;
    for (name, value) in [
        ("lost_batches", batch.lost_batches),
        ("lost_records", batch.lost_records),
        ("lost_packets", batch.lost_packets),
        ("lost_bytes", batch.lost_bytes),
        ("left_out_records", batch.left_out_records),
        ("left_out_packets", batch.left_out_packets),
        ("left_out_bytes", batch.left_out_bytes),
        ("stream_seq", batch.stream_seq),
        ("scan_id", batch.scan_id),
        ("table_occupancy", batch.table_occupancy.unwrap_or_default()),
        ("table_capacity", batch.table_capacity),
        ("tracked_flows", batch.tracked_flows.unwrap_or_default()),
    ] {
        place.at_most(name, value, limits::MAX_COUNTER)?;
    }
    place.number(
        "sample_rate",
        Some(batch.sample_rate),
        sample::MOST_RATE.into(),
    )?;
    let mut sums = [0_u64; 3];
    for (record, number) in batch.records.iter().zip(0..) {
        let place = Place {
            of: "records",
            number: Some(number),
            end: "",
        };
        check_record(record, place)?;
        check_times(record, place, batch, now)?;
        for (sum, delta) in sums.iter_mut().zip(deltas(record)) {
            *sum = sum.saturating_add(delta);
        }
    }
    let names = ["delta_packets", "delta_bytes", "delta_ip_bytes"];
    for (name, sum) in names.into_iter().zip(sums) {
        let all = Place {
            of: "records",
            number: None,
            end: "",
        };
        all.at_most(name, sum, limits::MAX_COUNTER)?;
    }
    if let Some(account) = &batch.account {
        check_account(account)?;
    }
    for (interface, number) in batch.interfaces.iter().zip(0..) {
        let place = Place {
            of: "interfaces",
            number: Some(number),
            end: "",
        };
        place.number("ifindex", Some(interface.ifindex), limits::MAX_IFINDEX)?;
    }
    for (process, number) in batch.processes.iter().zip(0..) {
        let place = Place {
            of: "processes",
            number: Some(number),
            end: "",
        };
        place.number("pid", Some(process.pid), limits::MAX_PID)?;
    }
    for (exchange, number) in batch.dns_exchanges.iter().zip(0..) {
        let place = Place {
            of: "dns_exchanges",
            number: Some(number),
            end: "",
        };
        check_exchange(exchange, place, now)?;
    }
    Ok(())
}

/// The packets, layer-2 bytes and IP bytes of both directions.
fn deltas(record: &FlowRecord) -> [u64; 3] {
    let [src, dst] = record.ends();
    // Each has 48 bits.
    [
        src.delta_packets + dst.delta_packets,
        src.delta_bytes + dst.delta_bytes,
        src.delta_ip_bytes + dst.delta_ip_bytes,
    ]
}

/// Checks the window. A batch that only reports losses has none.
fn check_window(batch: &FlowBatch, place: Place<'_>, now: Now) -> Result<(), Invalid> {
    let (start, end) = (batch.window_start_unix_ns, batch.window_end_unix_ns);
    place.at_most("report_interval_ns", batch.report_interval_ns, LONGEST_NS)?;
    let has_nothing = batch.records.is_empty() && batch.dns_exchanges.is_empty();
    if start == 0 && end == 0 && has_nothing {
        return Ok(());
    }
    place.time("window_end_unix_ns", end, now)?;
    // A clock may be set back meanwhile.
    if start.abs_diff(end) > LONGEST_NS {
        return Err(place.refuse(
            "window_start_unix_ns",
            format_args!("{start} is more than 400 days from the window's end"),
        ));
    }
    Ok(())
}

/// Whether an agent could have made this record, at any time.
pub fn is_sound(record: &FlowRecord) -> bool {
    let place = Place {
        of: "records",
        number: None,
        end: "",
    };
    check_record(record, place).is_ok()
}

fn check_record(record: &FlowRecord, place: Place<'_>) -> Result<(), Invalid> {
    let addresses: &[usize] = match record.ip_version {
        4 => &[IPV4_BYTES],
        6 => &[IPV6_BYTES],
        other => {
            return Err(place.refuse("ip_version", format_args!("{other} is none of IP")));
        }
    };
    for (end, name) in record.ends().into_iter().zip(["src.", "dst."]) {
        let place = Place { end: name, ..place };
        place.len("addr", end.addr.len(), addresses)?;
        let outer = &[0, IPV4_BYTES, IPV6_BYTES];
        place.len("outer_addr", end.outer_addr.len(), outer)?;
        place.len("nat_addr", end.nat_addr.len(), &[0, addresses[0]])?;
        check_end_numbers(end, place)?;
    }
    for (name, id) in [
        ("community_id", &record.community_id),
        ("nat_community_id", &record.nat_community_id),
    ] {
        place.len(name, id.len(), &[0, COMMUNITY_ID_BYTES])?;
    }
    check_record_numbers(record, place)
}

/// Checks the times of a record. A flow may have begun long before the window, and under another setting of
/// the clock.
fn check_times(
    record: &FlowRecord,
    place: Place<'_>,
    batch: &FlowBatch,
    now: Now,
) -> Result<(), Invalid> {
    let latest = batch.window_end_unix_ns.saturating_add(MOST_AHEAD_NS);
    let latest = latest.min(now.latest);
    for (name, time) in [
        ("first_seen_unix_ns", record.first_seen_unix_ns),
        ("last_seen_unix_ns", record.last_seen_unix_ns),
    ] {
        if !(now.oldest_flow..=latest).contains(&time) {
            let why = format_args!("{time} is more than ten years ago, or after the window");
            return Err(place.refuse(name, why));
        }
    }
    Ok(())
}

fn check_account(account: &Account) -> Result<(), Invalid> {
    let place = Place {
        of: "account",
        number: None,
        end: "",
    };
    place.number(
        "sample_rate",
        Some(account.sample_rate),
        sample::MOST_RATE.into(),
    )?;
    let counts = [
        ("seen", &account.seen),
        ("flows", &account.flows),
        ("filtered", &account.filtered),
        ("sampled_out", &account.sampled_out),
    ];
    for (name, count) in counts {
        if let Some(count) = count {
            check_count(name, count, place)?;
        }
    }
    for (name, reasons) in [
        ("unparsed", &account.unparsed),
        ("not_inserted", &account.not_inserted),
        ("beside", &account.beside),
    ] {
        for count in reasons.values() {
            check_count(name, count, place)?;
        }
    }
    Ok(())
}

/// Checks a count. The limit leaves room for sums of several counts.
fn check_count(name: &str, count: &Count, place: Place<'_>) -> Result<(), Invalid> {
    place.at_most(name, count.packets, limits::MAX_COUNTER >> 8)?;
    place.at_most(name, count.bytes, limits::MAX_COUNTER >> 8)
}

fn check_exchange(exchange: &DnsExchange, place: Place<'_>, now: Now) -> Result<(), Invalid> {
    let ends = [
        ("client_addr", &exchange.client_addr),
        ("server_addr", &exchange.server_addr),
    ];
    for (name, address) in ends {
        place.len(name, address.len(), &[IPV4_BYTES, IPV6_BYTES])?;
    }
    for address in exchange.addrs.iter().take(limits::MAX_DNS_ANSWERS) {
        place.len("addrs", address.len(), &[IPV4_BYTES, IPV6_BYTES])?;
    }
    place.number("ifindex", Some(exchange.ifindex), limits::MAX_IFINDEX)?;
    place.number("client_port", Some(exchange.client_port), limits::MAX_PORT)?;
    place.number("record_type", Some(exchange.record_type), u16::MAX.into())?;
    // With the bits of EDNS (RFC 6891, 6.1.3).
    place.number("code", exchange.code, 4095)?;
    place.time("asked_unix_ns", exchange.asked_unix_ns, now)?;
    let waited = exchange.waited_ns.unwrap_or_default();
    place.at_most("waited_ns", waited, DAY_NS)
}
