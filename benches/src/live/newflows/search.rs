//! Searches for the highest rate without loss and the lowest rate with loss.

use anyhow::Result;

/// The outcome of sending at a requested rate.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The rate that the sender reached, in flows a second.
    pub reached: u64,
    /// Packets that are in no flow.
    pub lost: u64,
}

/// Rates that the sender reached, in flows per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// 0 if flows were lost at every rate.
    pub lossless: u64,
    /// `None` if the sender could not send fast enough to cause a loss.
    pub lossy: Option<u64>,
}

/// The search ends when the two rates differ by at most this much.
const PRECISION_PERCENT: u64 = 10;
/// A sender that reaches less than this percentage of the requested rate is at its limit.
const REACHED_PERCENT: u64 = 90;
const LOWEST: u64 = 100;

/// Doubles or halves the rate, starting at `first`, until the limit lies between two rates, then bisects.
pub fn search(first: u64, mut step: impl FnMut(u64) -> Result<Step>) -> Result<Found> {
    let mut found = Found {
        lossless: 0,
        lossy: None,
    };
    let mut rate = first;
    while rate >= LOWEST {
        let Step { reached, lost } = step(rate)?;
        if lost == 0 {
            found.lossless = found.lossless.max(reached);
        } else {
            found.lossy = Some(found.lossy.map_or(reached, |lossy| lossy.min(reached)));
        }
        let is_limit = 100 * reached < REACHED_PERCENT * rate;
        rate = match found.lossy {
            None if is_limit => break,
            None => 2 * rate,
            Some(lossy) if found.lossless == 0 => lossy / 2,
            // Also true if flows were lost at a rate but not at a higher one: the search cannot get closer.
            Some(lossy) if is_near(lossy, found.lossless) => break,
            Some(lossy) => (lossy * found.lossless).isqrt(),
        };
    }
    Ok(found)
}

fn is_near(lossy: u64, lossless: u64) -> bool {
    100 * lossy <= (100 + PRECISION_PERCENT) * lossless
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIRELESS: u64 = 1_000_000_000;

    /// Searches with a table that loses flows above `limit` and a sender that reaches at most `most`.
    fn steps(limit: u64, most: u64) -> (Found, Vec<u64>) {
        let mut rates = Vec::new();
        let found = search(1000, |rate| {
            rates.push(rate);
            let reached = rate.min(most);
            let lost = u64::from(reached > limit);
            Ok(Step { reached, lost })
        });
        (found.unwrap(), rates)
    }

    #[test]
    fn the_limit_lies_between_the_two_rates() {
        for limit in [150, 999, 1000, 5_432, 1_234_567] {
            let (found, rates) = steps(limit, TIRELESS);
            let lossy = found.lossy.unwrap();
            assert!(found.lossless <= limit && limit < lossy, "{found:?}");
            assert!(is_near(lossy, found.lossless), "{found:?} after {rates:?}");
            assert!(rates.len() <= 16, "{rates:?}");
        }
    }

    #[test]
    fn a_sender_at_its_limit_ends_the_search() {
        let (found, rates) = steps(TIRELESS, 3000);
        assert_eq!((found.lossless, found.lossy), (3000, None));
        assert_eq!(rates, [1000, 2000, 4000]);
    }

    #[test]
    fn where_all_is_lost_the_search_ends() {
        assert_eq!(steps(0, TIRELESS).0.lossless, 0);
    }
}
