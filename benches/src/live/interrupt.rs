//! Ctrl-C and similar signals. A bench checks for them between steps, so that it can clean up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by Ctrl-C, SIGTERM or a hangup of the terminal.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From this call on, these signals set the flag instead of ending the process.
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

    /// Sleeps. Fails as soon as the flag is set.
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
