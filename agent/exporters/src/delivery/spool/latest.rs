//! The latest batches of each agent process that the spool has had. A process that was killed may have put its last
//! batches there, and the next one sends them again, since it cannot know that.

use std::collections::VecDeque;

use proto::batch::Head;
use serde::{Deserialize, Serialize};

/// More processes than are killed one after the other before one of them has delivered everything.
const MOST: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latest {
    /// Ordered by the time of their last batch.
    runs: VecDeque<Run>,
    /// Counts the stretches of batches, of all processes, that came without a gap.
    stretch: u64,
}

/// Batches of one process that follow each other without a gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    instance_id: String,
    first: Place,
    last: Place,
    /// The stretch that its last batch was in. Batches of other processes may lie between its own.
    stretch: u64,
}

/// A scan, and the number of the batch in it.
type Place = (u64, u32);

/// Which process's batch this is, and which one. `None` for a batch that only reports losses.
fn of(head: &Head) -> Option<(&str, Place)> {
    let instance_id = &head.agent.as_ref()?.instance_id;
    let is_batch = head.scan_id != 0 && !instance_id.is_empty();
    is_batch.then_some((instance_id, (head.scan_id, head.batch_index)))
}

impl Latest {
    /// Notes a batch that is in the spool now. Unless it `follows` the one noted before, batches may be missing between
    /// them.
    pub fn note(&mut self, head: &Head, follows: bool) {
        self.stretch += u64::from(!follows);
        let Some((instance_id, place)) = of(head) else {
            return;
        };
        let known = self.take_run(instance_id);
        let known = known.filter(|run| run.stretch == self.stretch);
        self.runs.push_back(Run {
            instance_id: instance_id.to_owned(),
            first: known.map_or(place, |run| run.first),
            last: place,
            stretch: self.stretch,
        });
        if self.runs.len() > MOST {
            self.runs.pop_front();
        }
    }

    /// Notes a repeated batch, which the spool already [has](Self::has). The next batch may follow it.
    pub fn note_skipped(&mut self, head: &Head, follows: bool) {
        self.stretch += u64::from(!follows);
        if let Some((instance_id, _)) = of(head)
            && let Some(run) = self.take_run(instance_id)
        {
            self.runs.push_back(Run {
                stretch: self.stretch,
                ..run
            });
        }
    }

    fn take_run(&mut self, instance_id: &str) -> Option<Run> {
        let at = self
            .runs
            .iter()
            .position(|run| run.instance_id == instance_id)?;
        self.runs.remove(at)
    }

    /// Notes the batches from one to another that have no gap between them.
    pub fn note_all(&mut self, first: &Head, last: &Head, follows: bool) {
        self.note(first, follows);
        let are_of_one =
            of(first).map(|(instance, _)| instance) == of(last).map(|(instance, _)| instance);
        self.note(last, are_of_one);
    }

    /// Whether the batch noted last is by another process than this one.
    pub fn is_first(&self, head: &Head) -> bool {
        let is_other =
            |run: &Run| of(head).is_some_and(|(instance, _)| instance != run.instance_id);
        self.runs.back().is_some_and(is_other)
    }

    /// Whether the spool has had this batch.
    pub fn has(&self, head: &Head) -> bool {
        of(head).is_some_and(|(instance_id, place)| {
            let mut runs = self.runs.iter();
            let run = runs.find(|run| run.instance_id == instance_id);
            run.is_some_and(|run| (run.first..=run.last).contains(&place))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proto::AgentIdentity;

    use super::*;

    fn head(instance: &str, (scan_id, batch_index): Place) -> Head {
        Head {
            agent: Some(AgentIdentity {
                instance_id: instance.to_owned(),
                ..AgentIdentity::default()
            }),
            scan_id,
            batch_index,
        }
    }

    #[test]
    fn what_lies_between_the_first_and_the_last_batch_of_a_run_was_there() {
        let mut latest = Latest::default();
        assert!(!latest.has(&head("a", (1, 0))));
        latest.note(&head("a", (6, 3)), true);
        latest.note(&head("a", (7, 1)), true);
        latest.note(&head("b", (1, 0)), true);
        for (instance, place, was_there) in [
            ("a", (6, 2), false),
            ("a", (6, 3), true),
            ("a", (6, 9), true),
            ("a", (7, 1), true),
            ("a", (7, 2), false),
            ("a", (8, 0), false),
            ("b", (1, 0), true),
            ("b", (2, 0), false),
            ("c", (1, 0), false),
        ] {
            let is_there = latest.has(&head(instance, place));
            assert_eq!(is_there, was_there, "{instance} {place:?}");
        }
        // Neither is a batch of a scan.
        latest.note(&head("d", (0, 0)), true);
        assert!(!latest.has(&head("d", (0, 0))));
        assert!(!latest.has(&Head::default()));
    }

    /// A process scans while it attaches, and then sends what earlier ones had not delivered.
    #[test]
    fn batches_of_others_between_those_of_a_process_are_no_gap() {
        let mut latest = Latest::default();
        latest.note(&head("own", (1, 0)), false);
        latest.note(&head("a", (7, 0)), true);
        latest.note_skipped(&head("a", (7, 0)), true);
        latest.note(&head("a", (8, 0)), true);
        latest.note(&head("own", (2, 0)), true);
        assert!(latest.has(&head("own", (1, 0))) && latest.has(&head("a", (7, 0))));
        // The next process.
        latest.note_skipped(&head("own", (1, 0)), false);
        latest.note_skipped(&head("own", (2, 0)), true);
        latest.note(&head("own", (3, 0)), true);
        assert!(latest.has(&head("own", (1, 0))) && latest.has(&head("own", (3, 0))));
        // Nothing tells that this one follows the eighth.
        latest.note(&head("a", (10, 0)), true);
        assert!(!latest.has(&head("a", (8, 0))));
    }

    #[test]
    fn nothing_is_known_of_what_comes_before_a_gap() {
        let mut latest = Latest::default();
        latest.note(&head("a", (1, 0)), true);
        latest.note(&head("a", (3, 0)), false);
        latest.note(&head("a", (4, 0)), true);
        let has = |latest: &Latest, scan_id| latest.has(&head("a", (scan_id, 0)));
        assert_eq!(
            [1, 2, 3, 4].map(|scan| has(&latest, scan)),
            [false, false, true, true]
        );
        latest.note_all(&head("a", (8, 0)), &head("a", (9, 0)), false);
        assert_eq!(
            [4, 7, 8, 9].map(|scan| has(&latest, scan)),
            [false, false, true, true]
        );
        latest.note_all(&head("a", (10, 0)), &head("a", (12, 0)), true);
        assert_eq!(
            [7, 8, 11, 12].map(|scan| has(&latest, scan)),
            [false, true, true, true]
        );
        // Of another process.
        latest.note_all(&head("a", (13, 0)), &head("b", (2, 0)), true);
        assert!(latest.has(&head("b", (2, 0))) && !latest.has(&head("b", (1, 0))));
        assert!(has(&latest, 13));
    }

    #[test]
    fn the_process_whose_last_batch_is_oldest_is_forgotten_first() {
        let mut latest = Latest::default();
        let instance = |number: usize| format!("process {number}");
        for number in 0..=MOST {
            latest.note(&head(&instance(number), (1, 0)), true);
            latest.note(&head(&instance(0), (1, 0)), true);
        }
        let has = |number| latest.has(&head(&instance(number), (1, 0)));
        assert!(has(0) && !has(1) && has(2) && has(MOST));
    }
}
