//! Formats numbers: the unit of each measure, its decimals, and readable text.

use crate::live::result::Figure;

/// The unit of a measure by its name's suffix, the divisor for its values, and the number of decimals.
fn unit(measure: &str) -> (&'static str, f64, usize) {
    let ends = |suffix: &str| measure.ends_with(suffix);
    if ends("bytes_per_second") {
        ("Gbit/s", 1e9 / 8.0, 1)
    } else if ends("packets_per_second") {
        ("Mpps", 1e6, 2)
    } else if ends("per_second") {
        ("thousand", 1e3, 1)
    } else if ends("_percent") || measure == "percent" {
        ("%", 1.0, 1)
    } else if ends("bytes_per_flow") {
        ("B", 1.0, 0)
    } else if ends("_bytes") {
        ("MiB", 1_048_576.0, 1)
    } else if ends("_packets") || ends("_records") || ends("_requests") {
        ("", 1.0, 0)
    } else if ends("_ratio") {
        ("", 1.0, 2)
    } else if measure.contains("_ms_per_") {
        ("ms", 1.0, 2)
    } else if ends("_us") {
        ("ms", 1e3, 3)
    } else if ends("_ns") || measure.contains("_ns_per_") {
        ("ns", 1.0, 1)
    } else {
        ("", 1.0, 1)
    }
}

/// The nanoseconds in one unit of the measure, if it is a time.
pub fn nanoseconds(measure: &str) -> Option<f64> {
    match unit(measure) {
        ("ns", ..) => Some(1.0),
        ("ms", divisor, _) => Some(1e6 / divisor),
        _ => None,
    }
}

/// The measure's name in words, with its unit.
pub fn title(measure: &str) -> String {
    let (unit, _, _) = unit(measure);
    if unit.is_empty() {
        return measure.replace('_', " ");
    }
    let bare = ["_percent", "_bytes", "_ns", "_us"]
        .iter()
        .find_map(|suffix| measure.strip_suffix(suffix))
        .unwrap_or(measure);
    let words = bare
        .replace("_ns_per_", " per ")
        .replace("_ms_per_", " per ")
        .replace('_', " ");
    format!("{words} ({unit})")
}

/// The unit's name, and the value in that unit.
pub fn scaled(measure: &str, value: f64) -> (&'static str, f64) {
    let (unit, divisor, _) = unit(measure);
    (unit, value / divisor)
}

/// Decimals below 100, none above, and a comma between thousands: `62.2`, `453`, `1,045`.
fn number(measure: &str, value: f64) -> String {
    let (_, divisor, decimals) = unit(measure);
    let scaled = value / divisor;
    if scaled.abs() < 99.95 {
        return format!("{scaled:.decimals$}");
    }
    grouped(&format!("{scaled:.0}"))
}

fn with_its_unit(number: &str, measure: &str) -> String {
    let text = format!("{number} {}", unit(measure).0);
    text.trim_end().to_owned()
}

/// A single value with its unit.
pub fn with_unit(measure: &str, value: f64) -> String {
    with_its_unit(&number(measure, value), measure)
}

/// The median with the extremes and the unit.
pub fn figure_with_unit(measure: &str, of: Figure) -> String {
    with_its_unit(&figure(measure, of), measure)
}

/// The median, with the extremes if they differ from it.
pub fn figure(measure: &str, figure: Figure) -> String {
    let [median, low, high] =
        [figure.median, figure.low, figure.high].map(|value| number(measure, value));
    if low == high {
        return median;
    }
    format!("{median} ({low}–{high})")
}

/// A ratio with the extremes.
pub fn ratio(of: Figure) -> String {
    let Figure { median, low, high } = of;
    format!("**{median:.2}** ({low:.2}–{high:.2})")
}

/// A count in readable form: 1, 1k, 10k, 1M, or 65,536. Text that is not a number stays unchanged.
pub fn count(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(number) if number >= 1_000_000 && number.is_multiple_of(1_000_000) => {
            format!("{}M", number / 1_000_000)
        }
        Ok(number) if number >= 1_000 && number.is_multiple_of(1_000) => {
            format!("{}k", number / 1_000)
        }
        Ok(_) => grouped(text),
        Err(_) => text.to_owned(),
    }
}

/// Inserts a comma before every third digit from the end.
fn grouped(digits: &str) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if left.is_multiple_of(3) && out.ends_with(|last: char| last.is_ascii_digit()) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measure_brings_its_unit_and_a_person_reads_few_digits() {
        for (measure, value, text) in [
            ("program_ns_per_packet", 62.24, "62.2 ns"),
            ("program_ns_per_packet", 99.94, "99.9 ns"),
            ("program_ns_per_packet", 99.96, "100 ns"),
            ("program_ns_per_packet", 1_045.4, "1,045 ns"),
            ("latency_p99_us", 7_753.0, "7.753 ms"),
            ("drain_us", -250_000.0, "-250 ms"),
            ("process_cpu_ms_per_scan", 1.25, "1.25 ms"),
            ("resident_bytes", 20.0 * 1_048_576.0, "20.0 MiB"),
            ("tcp_bytes_per_second", 1.25e9, "10.0 Gbit/s"),
            ("lossless_flows_per_second", 425_300.0, "425 thousand"),
            ("unseen_packets", 1_234_567.0, "1,234,567"),
        ] {
            assert_eq!(with_unit(measure, value), text);
        }
        assert_eq!(title("p99_us"), "p99 (ms)");
        assert_eq!(title("program_ns_per_packet"), "program per packet (ns)");
        assert_eq!(title("rounds"), "rounds");
    }

    #[test]
    fn a_time_is_told_in_nanoseconds_whatever_its_unit() {
        let times = [
            "cpu_ns_per_flow",
            "latency_p99_us",
            "cpu_ms_per_scan",
            "cpu_percent",
        ];
        let expected = [Some(1.0), Some(1e3), Some(1e6), None];
        assert_eq!(times.map(nanoseconds), expected);
    }

    #[test]
    fn a_spread_is_shown_where_there_is_one() {
        let (median, low, high) = (7.3, 6.5, 8.14);
        let of = |high| figure_with_unit("cpu_percent", Figure { median, low, high });
        assert_eq!(of(high), "7.3 (6.5–8.1) %");
        assert_eq!(of(low), "7.3 %");
    }

    #[test]
    fn counts_are_short_where_they_are_round() {
        for (text, short) in [
            ("0", "0"),
            ("1", "1"),
            ("999", "999"),
            ("1000", "1k"),
            ("10000", "10k"),
            ("500000", "500k"),
            ("1000000", "1M"),
            ("1500", "1,500"),
            ("1500000", "1500k"),
            ("65536", "65,536"),
            ("1234567", "1,234,567"),
            ("10s", "10s"),
        ] {
            assert_eq!(count(text), short);
        }
    }
}
