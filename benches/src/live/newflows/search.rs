//! The search for the highest rate without loss and the lowest one with it.

use anyhow::Result;

/// What happened at a rate that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The rate that the sender reached, in flows a second.
    pub reached: u64,
    /// Packets that are in no flow.
    pub lost: u64,
}

/// Rates that were reached, in flows a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// 0 where every rate lost.
    pub lossless: u64,
    /// `None` where the sender could go no faster.
    pub lossy: Option<u64>,
}

/// The two rates are at most so far apart.
const PRECISION_PERCENT: u64 = 10;
/// A sender that stays under this part of its rate is at its limit.
const REACHED_PERCENT: u64 = 90;
const LOWEST: u64 = 100;

/// Doubles or halves from `first` on until the rate is between two, then halves the gap.
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
            // What lost once and then did not is as near as can be told.
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

    /// Searches with a table that loses above `limit`, and a sender that reaches `most`.
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
