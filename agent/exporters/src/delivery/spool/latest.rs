//! The last batch in the spool of each agent process. A process that was killed may have put its last batches there, and
//! the next one sends them again, since it cannot know that.

use std::collections::VecDeque;

use prost::Message as _;
use proto::batch::Head;
use serde::{Deserialize, Serialize};

/// More processes than may be killed one after the other without a scan in between.
const MOST: usize = 16;

/// Ordered by the time of their last batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latest(VecDeque<Last>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    instance_id: String,
    scan_id: u64,
    batch: u32,
}

impl Last {
    /// `None` for a batch that only reports losses.
    fn of(head: &Head) -> Option<Self> {
        let agent = head.agent.as_ref()?;
        (head.scan_id != 0 && !agent.instance_id.is_empty()).then(|| Self {
            instance_id: agent.instance_id.clone(),
            scan_id: head.scan_id,
            batch: head.batch_index,
        })
    }
}

impl Latest {
    /// Notes a batch that is in the spool. A process's batches come in order.
    pub fn note(&mut self, head: &Head) {
        if let Some(last) = Last::of(head) {
            self.0.retain(|other| other.instance_id != last.instance_id);
            self.0.push_back(last);
            if self.0.len() > MOST {
                self.0.pop_front();
            }
        }
    }

    /// Notes an encoded batch of the spool.
    pub fn note_stored(&mut self, body: &[u8]) {
        if let Ok(head) = Head::decode(body) {
            self.note(&head);
        }
    }

    /// Whether the batch noted last is by another process than this one.
    pub fn is_first(&self, head: &Head) -> bool {
        let instance_id = Last::of(head).map(|batch| batch.instance_id);
        let last = self.0.back().map(|last| &last.instance_id);
        instance_id.is_some() && last.is_some() && instance_id.as_ref() != last
    }

    /// Whether the spool has had this batch.
    pub fn has(&self, head: &Head) -> bool {
        let last = Last::of(head).and_then(|batch| {
            let mut all = self.0.iter();
            let last = all.find(|last| last.instance_id == batch.instance_id)?;
            Some((batch.scan_id, batch.batch) <= (last.scan_id, last.batch))
        });
        last.unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proto::AgentIdentity;

    use super::*;

    fn head(instance: &str, scan_id: u64, batch_index: u32) -> Head {
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
    fn what_comes_up_to_the_last_batch_of_a_process_was_there() {
        let mut latest = Latest::default();
        assert!(!latest.has(&head("a", 1, 0)));
        latest.note(&head("a", 7, 1));
        latest.note(&head("b", 1, 0));
        latest.note_stored(&head("a", 7, 2).encode_to_vec());
        for (instance, scan_id, batch, was_there) in [
            ("a", 6, 9, true),
            ("a", 7, 2, true),
            ("a", 7, 3, false),
            ("a", 8, 0, false),
            ("b", 1, 0, true),
            ("b", 2, 0, false),
            ("c", 1, 0, false),
        ] {
            let is_there = latest.has(&head(instance, scan_id, batch));
            assert_eq!(is_there, was_there, "{instance} {scan_id} {batch}");
        }
        // Neither is a batch of a scan.
        latest.note(&head("d", 0, 0));
        assert!(!latest.has(&head("d", 0, 0)));
        assert!(!latest.has(&Head::default()));
    }

    #[test]
    fn the_process_whose_last_batch_is_oldest_is_forgotten_first() {
        let mut latest = Latest::default();
        let instance = |number: usize| format!("process {number}");
        for number in 0..=MOST {
            latest.note(&head(&instance(number), 1, 0));
            latest.note(&head(&instance(0), 1, 0));
        }
        let has = |number| latest.has(&head(&instance(number), 1, 0));
        assert!(has(0) && !has(1) && has(2) && has(MOST));
    }
}
