//! Ctrl-C and its like, heard between two steps of a bench, so that what was made is also taken away.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by Ctrl-C, SIGTERM and a terminal that goes away.
#[derive(Clone, Debug, Default)]
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
