//! The end of an output: until when it may send what is left.

use std::future::{Future, pending};

use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep, sleep_until},
};

/// When the time is over, once the output is to end.
#[derive(Clone)]
pub(super) struct Ending(watch::Receiver<Option<Instant>>);

/// The time is over.
#[derive(Debug)]
pub(super) struct Over;

impl Ending {
    pub(super) fn new(deadline: watch::Receiver<Option<Instant>>) -> Self {
        Self(deadline)
    }

    /// The work's result, unless the time is over before.
    pub(super) async fn before<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Over> {
        let over = async {
            sleep_until(self.deadline().await).await;
        };
        tokio::select! {
            biased;
            () = over => Err(Over),
            done = work => Ok(done),
        }
    }

    /// Waits until the next try. Where the output is to end meanwhile, that is at once, since there is no time to wait for a
    /// better moment; `true` says so.
    pub(super) async fn pause(&mut self, time: Duration) -> Result<bool, Over> {
        if self.0.borrow().is_some() {
            return self.before(sleep(time)).await.map(|()| false);
        }
        tokio::select! {
            _ = self.deadline() => Ok(true),
            () = sleep(time) => Ok(false),
        }
    }

    async fn deadline(&mut self) -> Instant {
        match self.0.wait_for(Option::is_some).await.map(|set| *set) {
            Ok(Some(deadline)) => deadline,
            Ok(None) | Err(_) => pending().await,
        }
    }
}
