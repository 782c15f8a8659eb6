//! Figures for people: a measure and a value come in, text with a unit goes out.

use crate::live::result::Figure;

/// Unit of a measure, by the end of its name, what a value is divided by, and decimals.
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
    } else if ends("_ratio") {
        ("", 1.0, 2)
    } else if measure.contains("_ms_per_") {
        ("ms", 1.0, 2)
    } else if ends("_us") {
        ("µs", 1.0, 0)
    } else if ends("_ns") || measure.contains("_ns_per_") {
        ("ns", 1.0, 1)
    } else {
        ("", 1.0, 1)
    }
}

/// How many a unit of the measure has, where it is a time.
pub fn nanoseconds(measure: &str) -> Option<f64> {
    match unit(measure).0 {
        "ns" => Some(1.0),
        "µs" => Some(1e3),
        "ms" => Some(1e6),
        _ => None,
    }
}

/// The name in words, with the unit.
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

pub fn scaled(measure: &str, value: f64) -> f64 {
    value / unit(measure).1
}

pub fn number(measure: &str, value: f64) -> String {
    let (_, _, decimals) = unit(measure);
    format!("{:.decimals$}", scaled(measure, value))
}

/// A single figure with its unit.
pub fn with_unit(measure: &str, value: f64) -> String {
    format!("{} {}", number(measure, value), unit(measure).0)
        .trim_end()
        .to_owned()
}

/// The median with the extremes and the unit.
pub fn figure_with_unit(measure: &str, of: Figure) -> String {
    format!("{} {}", figure(measure, of), unit(measure).0)
        .trim_end()
        .to_owned()
}

/// The median with the extremes.
pub fn figure(measure: &str, figure: Figure) -> String {
    format!(
        "{} ({}–{})",
        number(measure, figure.median),
        number(measure, figure.low),
        number(measure, figure.high)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measure_brings_its_unit() {
        assert_eq!(number("resident_bytes", 20.0 * 1_048_576.0), "20.0");
        assert_eq!(number("tcp_bytes_per_second", 1.25e9), "10.0");
        assert_eq!(title("p99_us"), "p99 (µs)");
        assert_eq!(title("program_ns_per_packet"), "program per packet (ns)");
        assert_eq!(title("rounds"), "rounds");
    }
}
