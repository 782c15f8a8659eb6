//! Puts ratios and differences into words. The words depend on the figures, so that no sentence claims what the rounds
//! do not show.

use super::units;
use crate::live::{difference::Difference, result::Figure};

/// A ratio to `other`, such as `12 % less than the 20 ns`. Says so if the rounds lie on both sides of 1.
pub fn compared(ratio: Figure, other: &str) -> String {
    let Figure { median, low, high } = ratio;
    let is_in_doubt = low < 1.0 && high > 1.0;
    let percent = 100.0 * (median - 1.0);
    if percent.abs() < if is_in_doubt { 5.0 } else { 0.5 } {
        return format!("about the same as the {other}");
    }
    let doubt = if is_in_doubt {
        " (though not in every round)"
    } else {
        ""
    };
    if median >= 10.0 {
        format!("{median:.0} times{doubt} the {other}")
    } else if median >= 2.0 {
        format!("{median:.1} times{doubt} the {other}")
    } else if median > 1.0 {
        format!("{percent:.0} % more{doubt} than the {other}")
    } else {
        format!("{:.0} % less{doubt} than the {other}", -percent)
    }
}

/// Such as `adds 1.02 ms (0.02 to 4.44 ms with 97 % confidence)`. Says so if the interval contains zero.
pub fn added(measure: &str, difference: Difference) -> String {
    let [median, low, high] = [difference.median, difference.low, difference.high]
        .map(|value| units::scaled(measure, value).1);
    let unit = units::scaled(measure, 0.0).0;
    let percent = difference.coverage_percent;
    let interval = format!("{low:.3} to {high:.3} {unit} with {percent:.0} % confidence");
    if !difference.is_significant() {
        return format!("adds nothing that can be told from chance ({interval})");
    }
    format!("adds {median:.3} {unit} ({interval})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(median: f64, low: f64, high: f64) -> String {
        compared(Figure { median, low, high }, "20 ns")
    }

    #[test]
    fn a_ratio_is_said_as_it_is_below_and_above_one() {
        assert_eq!(said(0.61, 0.55, 0.69), "39 % less than the 20 ns");
        assert_eq!(said(1.36, 1.18, 1.48), "36 % more than the 20 ns");
        assert_eq!(said(2.25, 1.76, 2.77), "2.2 times the 20 ns");
        assert_eq!(said(64.9, 55.9, 68.0), "65 times the 20 ns");
        assert_eq!(said(1.002, 1.001, 1.003), "about the same as the 20 ns");
    }

    #[test]
    fn rounds_on_both_sides_of_one_are_said_with_it() {
        let doubt = "(though not in every round) than the 20 ns";
        assert_eq!(said(0.74, 0.65, 1.15), format!("26 % less {doubt}"));
        assert_eq!(said(1.28, 0.91, 1.31), format!("28 % more {doubt}"));
        assert_eq!(said(1.03, 0.99, 1.10), "about the same as the 20 ns");
        // A round with equal values supports neither side.
        assert_eq!(said(0.96, 0.90, 1.0), "4 % less than the 20 ns");
    }

    #[test]
    fn a_difference_that_may_be_chance_is_not_a_finding() {
        let of = |median, low, high| {
            let coverage_percent = 96.9;
            let difference = Difference {
                median,
                low,
                high,
                coverage_percent,
            };
            added("latency_p99_us", difference)
        };
        let found = "adds 1.020 ms (0.020 to 4.441 ms with 97 % confidence)";
        assert_eq!(of(1020.0, 20.0, 4441.0), found);
        assert!(of(-500.0, -900.0, -10.0).starts_with("adds -0.500 ms"));
        assert!(of(9.0, -1.0, 19.0).starts_with("adds nothing that can be told from chance"));
    }
}
