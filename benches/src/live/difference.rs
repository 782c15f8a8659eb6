//! The difference between two arms, round by round, with its confidence interval.

use super::result::{Figure, Row};

/// The coverage to aim for. It takes at least six rounds.
const COVERAGE: f64 = 0.95;

/// The median of the rounds' differences, with a confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// The percentage of such intervals that contain the true median.
    pub coverage_percent: f64,
}

impl Difference {
    /// `None` for fewer than three rounds, which are too few to rule out chance.
    ///
    /// The two values of a round were measured one after the other, so their difference is what counts. The interval is
    /// that of the sign test, from the k-th lowest to the k-th highest difference. It assumes nothing about their
    /// distribution. Fewer than six rounds do not reach 95 %: five cover 94 %, three 75 %.
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let rounds = ours.iter().zip(theirs);
        let mut sorted: Vec<f64> = rounds.map(|(ours, theirs)| ours - theirs).collect();
        if sorted.len() < 3 {
            return None;
        }
        sorted.sort_unstable_by(f64::total_cmp);
        let mut left_out = 0;
        while coverage(sorted.len(), left_out + 1) >= COVERAGE {
            left_out += 1;
        }
        Some(Self {
            median: Figure::of(&sorted)?.median,
            low: sorted[left_out],
            high: sorted[sorted.len() - 1 - left_out],
            coverage_percent: 100.0 * coverage(sorted.len(), left_out),
        })
    }

    /// The differences between two rows, round by round.
    pub fn between(ours: &Row, theirs: &Row) -> Option<Self> {
        Self::of(&ours.values, &theirs.values)
    }

    /// Whether the interval excludes zero.
    pub fn is_significant(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// The coverage of the interval that leaves out `left_out` values at each end. It misses the true median if at most
/// `left_out` values lie on one side of the median.
fn coverage(values: usize, left_out: usize) -> f64 {
    let mut ways = 1.0;
    let mut outside = ways;
    for k in 1..=left_out {
        ways *= (values - k + 1) as f64 / k as f64;
        outside += ways;
    }
    1.0 - 2.0 * outside / 2.0_f64.powf(values as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_in_every_round_is_significant_however_the_machine_swings() {
        let without = [100.0, 180.0, 95.0, 240.0, 130.0];
        let with: Vec<f64> = without.iter().map(|value| value + 10.0).collect();
        let difference = Difference::of(&with, &without).unwrap();
        assert_eq!(
            (difference.median, difference.low, difference.high),
            (10.0, 10.0, 10.0)
        );
        assert!(difference.is_significant());
    }

    #[test]
    fn noise_of_either_sign_is_not_significant() {
        let without = [100.0; 5];
        let with = [104.0, 97.0, 101.0, 95.0, 103.0];
        let difference = Difference::of(&with, &without).unwrap();
        assert!(!difference.is_significant());
        assert_eq!((difference.low, difference.high), (-5.0, 4.0));
    }

    #[test]
    fn the_interval_says_how_much_it_covers() {
        let of = |rounds: usize| {
            let ours: Vec<f64> = (0..rounds).map(|round| round as f64).collect();
            Difference::of(&ours, &vec![0.0; rounds]).unwrap()
        };
        let percent = |rounds| format!("{:.0}", of(rounds).coverage_percent);
        assert_eq!([3, 5, 6].map(percent), ["75", "94", "97"]);
        // The interval of twenty values is from the sixth to the fifteenth (Conover 1999, table A3).
        let twenty = of(20);
        assert_eq!((twenty.low, twenty.high), (5.0, 14.0));
        assert_eq!(Difference::of(&[3.0, 9.0], &[1.0, 2.0]), None);
    }
}
