//! Remembers recent failures of the whole cluster or of single partitions. New groups then fail at once instead of
//! waiting, and batches of unaffected partitions go on.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

/// How long after a failure further groups fail immediately, since they have already waited for the previous one.
const FAILS_AT_ONCE: Duration = Duration::from_secs(1);
/// A partition that failed this recently gets a single try per group.
const LATELY: Duration = Duration::from_secs(30);

type Failure = (Instant, Arc<str>);

#[derive(Default)]
pub(super) struct Failures {
    of_all: Option<Failure>,
    /// The topic's number of partitions at the time. If it changes, keys map to other partitions.
    partitions: usize,
    by_partition: BTreeMap<usize, Failure>,
}

impl Failures {
    /// The recent failure that affects everything.
    pub fn of_all(&self, now: Instant) -> Option<&Arc<str>> {
        told_at_once(self.of_all.as_ref()?, now)
    }

    /// The number of partitions at the time, and the recent failures by partition.
    pub fn of_partitions(&self, now: Instant) -> (usize, BTreeMap<usize, Arc<str>>) {
        let told = self
            .by_partition
            .iter()
            .filter_map(|(&partition, failure)| {
                let why = told_at_once(failure, now)?;
                Some((partition, Arc::clone(why)))
            });
        (self.partitions, told.collect())
    }

    /// Whether the partition failed recently.
    pub fn is_known(&self, partition: usize, now: Instant) -> bool {
        let failure = self.by_partition.get(&partition);
        failure.is_some_and(|(at, _)| now.saturating_duration_since(*at) < LATELY)
    }

    pub fn all_failed(&mut self, now: Instant, why: &Arc<str>) {
        self.of_all = Some((now, Arc::clone(why)));
    }

    pub fn failed(&mut self, partition: usize, partitions: usize, now: Instant, why: &Arc<str>) {
        if self.partitions != partitions {
            self.partitions = partitions;
            self.by_partition.clear();
        }
        self.by_partition.insert(partition, (now, Arc::clone(why)));
    }

    /// Clears the failure: the partition has accepted messages.
    pub fn works(&mut self, partition: usize) {
        self.by_partition.remove(&partition);
    }
}

fn told_at_once((at, why): &Failure, now: Instant) -> Option<&Arc<str>> {
    (now.saturating_duration_since(*at) < FAILS_AT_ONCE).then_some(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_to_those_whom_it_is_of_and_for_a_moment() {
        let (start, away) = (Instant::now(), "away".into());
        let later = start + FAILS_AT_ONCE;
        let mut failures = Failures::default();
        failures.failed(1, 3, start, &away);
        assert_eq!(failures.of_all(start), None);
        let (partitions, told) = failures.of_partitions(start);
        assert_eq!((partitions, told.len()), (3, 1));
        assert_eq!(told[&1], away);
        assert_eq!(failures.of_partitions(later).1.len(), 0);
        assert!(failures.is_known(1, later) && !failures.is_known(0, later));
        assert!(!failures.is_known(1, start + LATELY));
        failures.works(1);
        assert!(!failures.is_known(1, start));
        failures.all_failed(start, &away);
        assert_eq!(failures.of_all(start), Some(&away));
        assert_eq!(failures.of_all(later), None);
    }

    #[test]
    fn what_failed_is_forgotten_when_the_topic_gets_more_partitions() {
        let (now, away) = (Instant::now(), "away".into());
        let mut failures = Failures::default();
        failures.failed(1, 2, now, &away);
        failures.failed(2, 4, now, &away);
        assert!(!failures.is_known(1, now) && failures.is_known(2, now));
        assert_eq!(failures.of_partitions(now).0, 4);
    }
}
