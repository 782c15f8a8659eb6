//! One arm against another: values of both, round by round, come in, the difference with its
//! confidence interval goes out.

use super::result::Figure;

const RESAMPLES: usize = 10_000;

/// The same for every run, so that a result file always gives the same interval.
const SEED: u64 = 0x5EED;

/// The median of the rounds' differences, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Difference {
    /// `None` for fewer than three rounds, which say nothing of chance.
    ///
    /// Each round's two values were taken one after the other, so their difference is what is
    /// resampled (percentile bootstrap). It is the median's interval, since the mean's is too narrow
    /// for few rounds; that of five rounds reaches from the lowest to the highest difference, which
    /// covers the true median in 1 − 2 × ½⁵ = 94 % of runs, and that of three in 75 %.
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let differences: Vec<f64> = ours
            .iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours - theirs)
            .collect();
        if differences.len() < 3 {
            return None;
        }
        let median = Figure::of(&differences)?.median;
        let mut random = SplitMix(SEED);
        let mut resample = vec![0.0; differences.len()];
        let mut medians = Vec::with_capacity(RESAMPLES);
        for _ in 0..RESAMPLES {
            for value in &mut resample {
                *value = differences[random.below(differences.len())];
            }
            medians.push(Figure::of(&resample)?.median);
        }
        medians.sort_unstable_by(f64::total_cmp);
        Some(Self {
            median,
            low: medians[RESAMPLES / 40],
            high: medians[RESAMPLES - 1 - RESAMPLES / 40],
        })
    }

    /// Whether the interval leaves zero out.
    pub fn is_significant(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// `SplitMix64` (Steele, Lea and Flood 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        // The upper half of the product: no remainder, whose low bits would be uneven.
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
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
    fn more_rounds_give_a_narrower_interval() {
        let noise = |rounds: usize| -> Vec<f64> {
            let mut random = SplitMix(1);
            (0..rounds).map(|_| random.below(1000) as f64).collect()
        };
        let width = |rounds: usize| {
            let difference = Difference::of(&noise(rounds), &vec![0.0; rounds]).unwrap();
            difference.high - difference.low
        };
        assert!(width(200) < width(10));
    }

    #[test]
    fn the_same_values_give_the_same_interval_and_too_few_give_none() {
        let (ours, theirs) = ([3.0, 9.0, 4.0, 7.0], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(
            Difference::of(&ours, &theirs),
            Difference::of(&ours, &theirs)
        );
        assert_eq!(Difference::of(&ours[..2], &theirs[..2]), None);
    }
}
