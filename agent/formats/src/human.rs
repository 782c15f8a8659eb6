//! Short texts for people: counts, bytes, durations and endpoints.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use proto::{Direction, Encapsulation, Endpoint, FlowRecord, protocols};

/// An interface's name, preceded by the name of its network namespace, if that has one: `eth0`, `blue/eth0`.
pub fn interface(netns_name: &str, name: &str) -> String {
    if netns_name.is_empty() {
        return name.to_owned();
    }
    format!("{netns_name}/{name}")
}

/// At most five characters and a unit: `999`, `1.2k`, `34M`.
pub fn count(value: u64) -> String {
    scaled(value, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

/// Every digit of a count, and the noun: `1 flow`, `1234 flows`.
pub fn exact(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}

/// Bytes with binary units: `512 B`, `1.5 KiB`.
pub fn bytes(value: u64) -> String {
    scaled(
        value,
        1024,
        &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"],
    )
}

fn scaled(value: u64, base: u64, units: &[&str]) -> String {
    let mut scaled = value as f64;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // A value that rounds up to a whole `base` is shown in the next unit.
    while scaled >= base as f64 - 0.5 {
        let Some(next) = units.next() else { break };
        scaled /= base as f64;
        unit = next;
    }
    let is_whole = value < base;
    let digits = usize::from(!is_whole && scaled < 9.95);
    format!("{scaled:.digits$}{unit}")
}

/// Rounded: `850ms`, `1.9s`, `12s`, `3m05s`, `2h07m`, `4d03h`.
pub fn duration(duration: Duration) -> String {
    let rounded = |unit_ms: u64| {
        let unit_ns = u128::from(unit_ms) * 1_000_000;
        (duration.as_nanos() + unit_ns / 2) / unit_ns
    };
    let (millis, tenths) = (rounded(1), rounded(100));
    let (seconds, minutes, hours) = (rounded(1000), rounded(60_000), rounded(3_600_000));
    if millis < 1000 {
        format!("{millis}ms")
    } else if tenths < 100 && !tenths.is_multiple_of(10) {
        format!("{}.{}s", tenths / 10, tenths % 10)
    } else if seconds < 60 {
        format!("{seconds}s")
    } else if seconds < 3600 {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    } else if minutes < 24 * 60 {
        format!("{}h{:02}m", minutes / 60, minutes % 60)
    } else {
        format!("{}d{:02}h", hours / 24, hours % 24)
    }
}

/// An address of 4 or 16 bytes.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// `10.0.0.1:443`, `[2001:db8::1]:443`, or the address alone if there is no port.
pub fn endpoint(address_bytes: &[u8], port: Option<u32>) -> String {
    match (address(address_bytes), port) {
        (Some(ip), Some(port)) => SocketAddr::new(ip, port as u16).to_string(),
        (Some(ip), None) => ip.to_string(),
        (None, _) => "?".to_owned(),
    }
}

/// The same with a name instead of the address, if there is one. Names have no colons.
pub fn named_endpoint(name: Option<&str>, address_bytes: &[u8], port: Option<u32>) -> String {
    match (name, port) {
        (None, _) => endpoint(address_bytes, port),
        (Some(name), None) => name.to_owned(),
        (Some(name), Some(port)) => format!("{name}:{port}"),
    }
}

/// The protocol's well-known name, or else its number.
pub fn protocol(record: &FlowRecord) -> String {
    protocol_of(record.protocol)
}

/// The same for IANA's number.
pub fn protocol_of(number: u32) -> String {
    let name = u8::try_from(number).ok().and_then(protocols::name);
    name.map_or_else(|| number.to_string(), str::to_owned)
}

/// The encapsulation of the flow's packets.
pub fn encapsulation(record: &FlowRecord) -> Option<&'static str> {
    let known = Encapsulation::try_from(record.encapsulation?);
    Some(known.unwrap_or_default().name())
}

/// The sides of the interface on which the initiator's and the responder's packets are seen.
pub fn directions(record: &FlowRecord) -> [Option<Direction>; 2] {
    let known = |end: &Endpoint| Some(end.direction()).filter(|one| *one != Direction::Unspecified);
    record.ends().map(known)
}

/// An end with its port, and with its name instead of its address if it has one.
pub fn end(name: Option<&str>, end: &Endpoint) -> String {
    named_endpoint(name, &end.addr, end.port)
}

/// At most `width` characters of the text. The last one is `…` if some are missing.
pub fn shortened(text: &str, width: usize) -> impl fmt::Display {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_two_digits_and_their_unit() {
        let counts = [0, 999, 1000, 1499, 9949, 9950, 999_499, 999_500, u64::MAX];
        let shown = [
            "0", "999", "1.0k", "1.5k", "9.9k", "10k", "999k", "1.0M", "18E",
        ];
        assert_eq!(counts.map(count), shown);
        assert_eq!(
            [0, 1023, 1024, 1536, 10 << 20].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10 MiB"]
        );
    }

    #[test]
    fn durations_are_rounded_to_two_units_at_most() {
        for (millis, shown) in [
            (0, "0ms"),
            (850, "850ms"),
            (1000, "1s"),
            (1920, "1.9s"),
            (1960, "2s"),
            (9949, "9.9s"),
            (9950, "10s"),
            (12_400, "12s"),
            (59_500, "1m00s"),
            (185_000, "3m05s"),
            (3_599_500, "1h00m"),
            (7_620_000, "2h07m"),
            (86_399_000, "1d00h"),
            (356_400_000, "4d03h"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), shown);
        }
        assert_eq!(duration(Duration::from_micros(999_600)), "1s");
        assert_eq!(duration(Duration::MAX), "213503982334601d07h");
    }

    #[test]
    fn an_ipv6_address_is_bracketed_where_a_port_follows() {
        let mut v6 = [0; 16];
        v6[15] = 1;
        assert_eq!(endpoint(&v6, Some(443)), "[::1]:443");
        assert_eq!(endpoint(&v6, None), "::1");
        assert_eq!(endpoint(&[10, 0, 0, 1], Some(80)), "10.0.0.1:80");
        assert_eq!(endpoint(&[10], Some(80)), "?");
        assert_eq!(named_endpoint(None, &v6, Some(443)), "[::1]:443");
        assert_eq!(named_endpoint(Some("a.b"), &v6, Some(443)), "a.b:443");
        assert_eq!(named_endpoint(Some("a.b"), &v6, None), "a.b");
    }
}
