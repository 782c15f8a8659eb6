//! Changes to the running agent: filter rules come in from consumers and signals, one after the other
//! they go to the task that owns the kernel's half, and what is in force comes back.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{filter::Rule, wire::Filters};

/// Changes that may wait for one that is being made.
const QUEUE: usize = 4;

/// What a set of rules may take as a message: a million IPv6 networks, and room to spare.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ControlError {
    /// The rules before stay in force.
    #[error("{0}")]
    Refused(String),
    #[error("the agent is about to stop")]
    Stopping,
}

/// Asks for changes; clones ask the same agent.
#[derive(Clone)]
pub struct Control {
    changes: mpsc::Sender<Change>,
    in_force: watch::Receiver<Arc<Filters>>,
}

/// What the owner of the kernel's half gets.
pub struct Changes {
    changes: mpsc::Receiver<Change>,
    in_force: watch::Sender<Arc<Filters>>,
}

/// Rules that are to replace those in force.
pub struct Change {
    pub rules: Vec<Rule>,
    done: oneshot::Sender<Result<Changed, ControlError>>,
}

/// What became of a change.
#[derive(Debug)]
pub struct Changed {
    pub in_force: Arc<Filters>,
    /// What in the rules may not be meant.
    pub warnings: Vec<String>,
}

/// `rules` are in force at the start.
pub fn channel(rules: &[Rule]) -> (Control, Changes) {
    let (sender, changes) = mpsc::channel(QUEUE);
    let (publish, in_force) = watch::channel(Arc::new(filters(rules, 1)));
    (
        Control {
            changes: sender,
            in_force,
        },
        Changes {
            changes,
            in_force: publish,
        },
    )
}

fn filters(rules: &[Rule], generation: u64) -> Filters {
    Filters {
        rules: rules.iter().map(ToString::to_string).collect(),
        generation,
        warnings: Vec::new(),
    }
}

impl Control {
    pub fn filters(&self) -> Arc<Filters> {
        Arc::clone(&self.in_force.borrow())
    }

    /// Returns when every packet is held against the new rules.
    pub async fn set_filters(&self, rules: Vec<Rule>) -> Result<Changed, ControlError> {
        let (done, outcome) = oneshot::channel();
        let change = Change { rules, done };
        self.changes
            .send(change)
            .await
            .map_err(|_| ControlError::Stopping)?;
        outcome.await.map_err(|_| ControlError::Stopping)?
    }
}

impl Changes {
    /// The next change; waits for ever where nobody can ask for one any more. Dropping the future
    /// loses nothing.
    pub async fn next(&mut self) -> Change {
        match self.changes.recv().await {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }

    /// Tells who asked how it went; a set that is in force comes with its warnings.
    pub fn end(&self, change: Change, outcome: anyhow::Result<Vec<String>>) {
        let Change { rules, done } = change;
        let answer = match outcome {
            Ok(warnings) => {
                let generation = self.in_force.borrow().generation + 1;
                let filters = Arc::new(filters(&rules, generation));
                self.in_force.send_replace(Arc::clone(&filters));
                tracing::info!(rules = rules.len(), generation, "filter rules are in force");
                Ok(Changed {
                    in_force: filters,
                    warnings,
                })
            }
            Err(error) => {
                tracing::warn!("the filter rules stay as they were: {error:#}");
                Err(ControlError::Refused(format!("{error:#}")))
            }
        };
        // Who asked may have left.
        let _ = done.send(answer);
    }
}
