//! Rounds: arms come in, each is measured once a round, in an order that turns from round to round.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by Ctrl-C, SIGTERM and a terminal that goes away, so that what was made is also taken away.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// The process no longer ends by itself at these signals.
    pub fn install() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("listen for signals")?;
        }
        Ok(Self(flag))
    }

    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Sleeps, or fails as soon as the interrupt comes.
    pub fn sleep(&self, duration: Duration) -> Result<()> {
        const SLICE: Duration = Duration::from_millis(20);
        let end = Instant::now() + duration;
        loop {
            self.check()?;
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(());
            }
            std::thread::sleep(rest.min(SLICE));
        }
    }
}

/// The arms' indices, another one first in every round.
pub fn order(arms: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..arms).map(move |index| (index + round as usize) % arms)
}

/// What is going on, on stderr: one line that is overwritten on a terminal, a line a step elsewhere.
#[derive(Debug)]
pub struct Progress {
    steps: usize,
    done: usize,
    started: Instant,
}

impl Progress {
    pub fn new(steps: usize) -> Self {
        Self {
            steps,
            done: 0,
            started: Instant::now(),
        }
    }

    /// A step begins.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        let elapsed = self.started.elapsed().as_secs();
        let line = format!("[{}/{} {elapsed}s] {what}", self.done, self.steps);
        let mut stderr = io::stderr();
        // Progress that cannot be shown is no reason to stop.
        let _ = if stderr.is_terminal() {
            write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{line}")
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if io::stderr().is_terminal() {
            eprintln!();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_comes_once_a_round_and_each_is_first_by_turns() {
        let rounds: Vec<Vec<usize>> = (0..3).map(|round| order(3, round).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }
}
