//! Keeps a steady pace: computes how many packets are due.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How a sender paces itself.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The most packets per call, so that the sender soon notices a stop.
    pub most_at_once: usize,
    /// How long to sleep while nothing is due.
    pub pause: Duration,
    /// Packets that became due in a stall longer than this are skipped; sending them would cause a burst at full speed.
    pub longest_stall: Duration,
}

impl Pace {
    /// For traffic in which each packet is a new flow.
    pub const NEW_FLOWS: Self = Self {
        most_at_once: 128,
        pause: Duration::from_micros(500),
        longest_stall: Duration::from_millis(10),
    };
}

pub struct Pacer<'a> {
    packets_per_second: u64,
    pace: Pace,
    started: Instant,
    stop: &'a AtomicBool,
    /// Packets that were handed out or skipped.
    done: u64,
}

impl<'a> Pacer<'a> {
    /// Starts the clock. The pacer ends once `stop` is set.
    pub fn start(packets_per_second: u64, pace: Pace, stop: &'a AtomicBool) -> Self {
        Self {
            packets_per_second,
            pace,
            started: Instant::now(),
            stop,
            done: 0,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn due(&self, elapsed: Duration) -> u64 {
        let packets = elapsed.as_micros() * u128::from(self.packets_per_second) / 1_000_000;
        u64::try_from(packets).unwrap_or(u64::MAX)
    }
}

/// Blocks until packets are due. Each item is the number of packets to send, at least one.
impl Iterator for Pacer<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while !self.stop.load(Ordering::Relaxed) {
            let due = self.due(self.started.elapsed());
            let arrears = self.due(self.pace.longest_stall) + 1;
            self.done = self.done.max(due.saturating_sub(arrears));
            if self.done < due {
                let count = self.pace.most_at_once.min((due - self.done) as usize);
                self.done += count as u64;
                return Some(count);
            }
            thread::sleep(self.pace.pause);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 250_000;
    const PACE: Pace = Pace {
        most_at_once: 100,
        pause: Duration::from_micros(100),
        longest_stall: Duration::from_millis(1),
    };

    #[test]
    fn what_is_due_follows_the_clock() {
        let stop = AtomicBool::new(false);
        let pacer = Pacer::start(RATE, PACE, &stop);
        assert_eq!(pacer.due(Duration::from_secs(4)), 1_000_000);
        assert_eq!(pacer.due(Duration::from_micros(4)), 1);
    }

    #[test]
    fn a_long_stall_is_not_made_up_for() {
        let stop = AtomicBool::new(false);
        let mut pacer = Pacer::start(RATE, PACE, &stop);
        let an_hour = Duration::from_hours(1);
        pacer.started = pacer.started.checked_sub(an_hour).expect("the clock runs");
        assert_eq!(pacer.next(), Some(100));
        let given_up = pacer.due(an_hour) - pacer.due(PACE.longest_stall) - 1;
        assert!(pacer.done >= given_up + 100, "{}", pacer.done);
    }

    #[test]
    fn ends_when_told_to() {
        let stop = AtomicBool::new(true);
        assert_eq!(Pacer::start(RATE, PACE, &stop).next(), None);
    }
}
