//! Shutdown of an output: how long it may still send.

use std::future::{Future, pending};

use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep, sleep_until},
};

#[derive(Clone)]
pub(super) struct Shutdown {
    /// The deadline, set once the output is to end.
    deadline: watch::Receiver<Option<Instant>>,
    /// A pause was skipped since then.
    has_hurried: bool,
}

/// The deadline has passed.
#[derive(Debug)]
pub(super) struct DeadlinePassed;

impl Shutdown {
    pub(super) fn new(deadline: watch::Receiver<Option<Instant>>) -> Self {
        Self {
            deadline,
            has_hurried: false,
        }
    }

    /// The work's result, unless the deadline passes first.
    pub(super) async fn before_deadline<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, DeadlinePassed> {
        let over = async {
            sleep_until(self.deadline().await).await;
        };
        tokio::select! {
            biased;
            () = over => Err(DeadlinePassed),
            done = work => Ok(done),
        }
    }

    /// Waits before a retry. When shutdown starts, one pause is cut short or skipped, since there may be no time for a
    /// later try. Returns whether this was that pause.
    pub(super) async fn pause(&mut self, time: Duration) -> Result<bool, DeadlinePassed> {
        if self.has_hurried {
            return self.before_deadline(sleep(time)).await.map(|()| false);
        }
        tokio::select! {
            biased;
            _ = self.deadline() => {
                self.has_hurried = true;
                Ok(true)
            }
            () = sleep(time) => Ok(false),
        }
    }

    async fn deadline(&mut self) -> Instant {
        match self
            .deadline
            .wait_for(Option::is_some)
            .await
            .map(|set| *set)
        {
            Ok(Some(deadline)) => deadline,
            Ok(None) | Err(_) => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn one_pause_is_cut_short_at_the_end() {
        for is_before in [false, true] {
            let (deadline, until) = watch::channel(None);
            let mut shutdown = Shutdown::new(until);
            assert!(matches!(shutdown.pause(Duration::ZERO).await, Ok(false)));
            let soon = Instant::now() + Duration::from_millis(100);
            let end = async { deadline.send_replace(Some(soon)) };
            let cut = if is_before {
                end.await;
                shutdown.pause(LONG).await
            } else {
                tokio::join!(shutdown.pause(LONG), end).0
            };
            assert!(matches!(cut, Ok(true)));
            assert!(matches!(shutdown.pause(LONG).await, Err(DeadlinePassed)));
            assert!(Instant::now() >= soon);
        }
    }
}
