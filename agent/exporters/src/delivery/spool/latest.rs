//! The latest batches of each agent process that the spool has had. A process that was killed may have put its last
//! batches there, and the next one sends them again, since it cannot know that.

use std::collections::VecDeque;

use proto::batch::Head;
use serde::{Deserialize, Serialize};

/// More processes than may be killed one after the other without a scan in between.
const MOST: usize = 16;

/// Ordered by the time of their last batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latest(VecDeque<Run>);

/// Batches of one process that follow each other without a gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    instance_id: String,
    first: Place,
    last: Place,
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
        let Some((instance_id, place)) = of(head) else {
            return;
        };
        if follows
            && let Some(run) = self.0.back_mut()
            && run.instance_id == instance_id
        {
            run.last = place;
            return;
        }
        self.0.retain(|run| run.instance_id != instance_id);
        self.0.push_back(Run {
            instance_id: instance_id.to_owned(),
            first: place,
            last: place,
        });
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// Notes that a batch came again. What is noted next may follow it.
    pub fn note_skipped(&mut self, head: &Head) {
        let instance_id = of(head).map(|(instance_id, _)| instance_id);
        let mut runs = self.0.iter();
        if let Some(at) = runs.position(|run| Some(&*run.instance_id) == instance_id)
            && let Some(run) = self.0.remove(at)
        {
            self.0.push_back(run);
        }
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
        self.0.back().is_some_and(is_other)
    }

    /// Whether the spool has had this batch.
    pub fn has(&self, head: &Head) -> bool {
        of(head).is_some_and(|(instance_id, place)| {
            let mut runs = self.0.iter();
            let run = runs.find(|run| run.instance_id == instance_id);
            run.is_some_and(|run| (run.first..=run.last).contains(&place))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
