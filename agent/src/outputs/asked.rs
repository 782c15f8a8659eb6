//! How often collectors want reports of flows that go on. The longest of their intervals counts, since a report reaches all
//! outputs.

use std::{collections::BTreeMap, time::Duration};

use tokio::sync::watch;

/// What is asked of the agent. Clones share it.
#[derive(Clone, Default)]
pub(super) struct ReportIntervals(watch::Sender<BTreeMap<u64, Duration>>);

/// What the collector of one output asks for, until it is dropped.
pub(super) struct AskedInterval {
    all: ReportIntervals,
    id: u64,
    /// The longest that the output's settings allow.
    most: Duration,
}

/// Sees the longest interval that is asked for.
#[derive(Clone)]
pub struct LongestAsked(watch::Receiver<BTreeMap<u64, Duration>>);

impl ReportIntervals {
    pub fn of_output(&self, most: Duration) -> AskedInterval {
        let mut id = 0;
        self.0.send_if_modified(|all| {
            id = all.last_key_value().map_or(0, |(id, _)| id + 1);
            all.insert(id, Duration::ZERO);
            false
        });
        AskedInterval {
            all: self.clone(),
            id,
            most,
        }
    }

    pub fn longest(&self) -> LongestAsked {
        LongestAsked(self.0.subscribe())
    }
}

impl AskedInterval {
    /// Zero asks for nothing. Returns what is asked for now.
    pub fn set(&self, asked: Duration) -> Duration {
        let asked = asked.min(self.most);
        self.all.0.send_if_modified(|all| {
            let before = all.insert(self.id, asked);
            before != Some(asked)
        });
        asked
    }
}

impl Drop for AskedInterval {
    fn drop(&mut self) {
        self.all.0.send_if_modified(|all| {
            let before = all.remove(&self.id);
            before.is_some_and(|before| !before.is_zero())
        });
    }
}

impl LongestAsked {
    /// Zero if nobody asks.
    pub fn get(&self) -> Duration {
        self.0.borrow().values().max().copied().unwrap_or_default()
    }

    /// Waits until somebody asks for something else. Never returns once there are no outputs. Cancel safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn the_longest_interval_counts_within_what_the_output_allows_and_as_long_as_the_output_is_there()
     {
        let all = ReportIntervals::default();
        let mut longest = all.longest();
        let told = |longest: &mut LongestAsked| {
            let is_told = longest.changed().now_or_never().is_some();
            (is_told, longest.get())
        };
        let first = all.of_output(5 * MINUTE);
        assert_eq!(told(&mut longest), (false, Duration::ZERO));
        assert_eq!(first.set(MINUTE), MINUTE);
        assert_eq!(told(&mut longest), (true, MINUTE));
        // As each acknowledgement says it again.
        first.set(MINUTE);
        assert_eq!(told(&mut longest), (false, MINUTE));

        let second = all.of_output(3 * MINUTE);
        assert_eq!(second.set(10 * MINUTE), 3 * MINUTE);
        assert_eq!(told(&mut longest), (true, 3 * MINUTE));
        let deaf = all.of_output(Duration::ZERO);
        assert_eq!(deaf.set(10 * MINUTE), Duration::ZERO);
        assert_eq!(told(&mut longest), (false, 3 * MINUTE));
        drop(second);
        assert_eq!(told(&mut longest), (true, MINUTE));
        let third = all.of_output(5 * MINUTE);
        third.set(2 * MINUTE);
        first.set(Duration::ZERO);
        assert_eq!(told(&mut longest), (true, 2 * MINUTE));
        drop((first, third, deaf));
        assert_eq!(told(&mut longest), (true, Duration::ZERO));
    }
}
