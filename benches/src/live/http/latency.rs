//! Percentiles of latency as users see it, from the time a request was due to its answer.
//!
//! A client that sends the next request only after an answer sends nothing to a stalled server, and so does not measure
//! the stall (coordinated omission). Here requests are due by the clock, whatever happened to earlier ones, and latency
//! counts from the due time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The due times of requests: evenly spaced, at a fixed rate.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub start: Instant,
    pub requests_per_second: u32,
}

impl Schedule {
    pub fn due(&self, number: u64) -> Instant {
        let ns = u128::from(number) * 1_000_000_000 / u128::from(self.requests_per_second);
        self.start + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// The number of requests due within `time`.
    pub fn requests_in(requests_per_second: u32, time: Duration) -> u64 {
        let requests = time.as_micros() * u128::from(requests_per_second) / 1_000_000;
        u64::try_from(requests).unwrap_or(u64::MAX)
    }
}

/// Keeps every latency, so that a percentile is a measured value rather than the bound of a histogram bucket.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<Duration>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: Duration,
    pub p99: Duration,
    pub p999: Duration,
}

impl Latencies {
    pub fn record(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    /// Percentiles by nearest rank, or `None` if nothing was measured.
    pub fn percentiles(mut self) -> Option<Percentiles> {
        self.0.sort_unstable();
        let per_mille = |rank: usize| {
            let index = (self.0.len() * rank).div_ceil(1000).checked_sub(1)?;
            self.0.get(index).copied()
        };
        Some(Percentiles {
            p50: per_mille(500)?,
            p99: per_mille(990)?,
            p999: per_mille(999)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> Schedule {
        Schedule {
            start: Instant::now(),
            requests_per_second: 1000,
        }
    }

    #[test]
    fn requests_are_due_by_the_clock_without_drift() {
        let schedule = Schedule {
            start: Instant::now(),
            requests_per_second: 3,
        };
        let due = |number| schedule.due(number) - schedule.start;
        assert_eq!(due(1), Duration::from_nanos(333_333_333));
        assert_eq!(due(3_000_000), Duration::from_secs(1_000_000));
        assert_eq!(Schedule::requests_in(3, Duration::from_millis(1500)), 4);
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut latencies = Latencies::default();
        for us in (1..=1000).rev() {
            latencies.record(Duration::from_micros(us));
        }
        let percentiles = latencies.percentiles().unwrap();
        let expected = Percentiles {
            p50: Duration::from_micros(500),
            p99: Duration::from_micros(990),
            p999: Duration::from_micros(999),
        };
        assert_eq!(percentiles, expected);
        assert_eq!(Latencies::default().percentiles(), None);
    }

    /// A single server that takes 0.1 ms per request and stalls for one second out of ten.
    #[test]
    fn a_stalled_server_shows_in_the_percentiles() {
        const SERVICE: Duration = Duration::from_micros(100);
        let schedule = schedule();
        let stall =
            schedule.start + Duration::from_secs(5)..schedule.start + Duration::from_secs(6);
        let (mut from_due, mut from_sent) = (Latencies::default(), Latencies::default());
        let mut free = schedule.start;
        for number in 0..10_000 {
            let mut begun = schedule.due(number).max(free);
            // A client that sends its next request only after an answer would see this.
            let sent = begun;
            if stall.contains(&begun) {
                begun = stall.end;
            }
            free = begun + SERVICE;
            from_due.record(free - schedule.due(number));
            from_sent.record(free - sent);
        }
        let due = from_due.percentiles().unwrap();
        let sent = from_sent.percentiles().unwrap();
        assert!(due.p99 > Duration::from_millis(800), "{due:?}");
        assert_eq!((sent.p999, due.p50), (SERVICE, SERVICE));
    }
}
