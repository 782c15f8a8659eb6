//! Finds the highest rate at which the machine answers every request in time.

use std::time::Duration;

use anyhow::Result;

use super::client::{Outcome, Plan};

/// Requests per second, tried in this order until the machine sustains one.
const RATES: [u32; 9] = [10_000, 8_000, 6_000, 5_000, 4_000, 3_000, 2_000, 1_000, 500];

const WINDOW: Duration = Duration::from_secs(1);

/// Attempts per rate, so that a burst of other work does not lower the result.
const ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub requests_per_second: u32,
    /// `false` if the machine cannot sustain even the lowest rate.
    pub is_held: bool,
}

pub fn find(plan: &Plan, mut load: impl FnMut(&Plan) -> Result<Outcome>) -> Result<Found> {
    for requests_per_second in RATES {
        for _ in 0..ATTEMPTS {
            let outcome = load(&Plan {
                requests_per_second,
                window: WINDOW,
                ..*plan
            })?;
            if is_held(&outcome, requests_per_second) {
                return Ok(Found {
                    requests_per_second,
                    is_held: true,
                });
            }
        }
    }
    Ok(Found {
        requests_per_second: RATES[RATES.len() - 1],
        is_held: false,
    })
}

/// Whether all requests were answered, at the requested rate, 99 % of them within 20 ms. A growing queue exceeds that
/// within a second.
fn is_held(outcome: &Outcome, requests_per_second: u32) -> bool {
    outcome.failed == 0
        && outcome.requests_per_second >= 0.98 * f64::from(requests_per_second)
        && outcome.latency.p99 <= Duration::from_millis(20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::http::latency::Percentiles;

    fn plan() -> Plan {
        Plan {
            server: ([127, 0, 0, 1], 1).into(),
            requests_per_second: 0,
            warm_up: Duration::ZERO,
            window: Duration::ZERO,
            connections: 1,
        }
    }

    /// A machine that can answer `capacity` requests per second.
    fn machine(capacity: u32) -> impl FnMut(&Plan) -> Result<Outcome> {
        move |plan| {
            let offered = plan.requests_per_second;
            Ok(Outcome {
                latency: Percentiles {
                    p99: Duration::from_millis(if offered > capacity { 1000 } else { 6 }),
                    ..Percentiles::default()
                },
                requests_per_second: f64::from(offered.min(capacity)),
                answered: 0,
                failed: 0,
            })
        }
    }

    #[test]
    fn the_highest_rate_that_is_held_is_taken() {
        let found = |capacity| find(&plan(), machine(capacity)).unwrap();
        for (capacity, requests_per_second, is_held) in [
            (20_000, 10_000, true),
            (5_500, 5_000, true),
            (100, 500, false),
        ] {
            let expected = Found {
                requests_per_second,
                is_held,
            };
            assert_eq!(found(capacity), expected);
        }
    }
}
