//! Changes to the running agent: filter rules come in from consumers and signals, one after the other
//! they go to the task that owns the kernel's half, and what is in force comes back.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    filter::{MAX_NETWORKS, Rule, bounds::MAX_RULES},
    wire::Filters,
};

/// Changes that may wait for one that is being made.
const QUEUE: usize = 4;

/// What a set of rules may take as a message: a million IPv6 networks at up to 49 bytes each, and room to
/// spare.
pub const MAX_MESSAGE_BYTES: usize = 48 << 20;
const _: () = {
    let longest = "2001:0db8:0000:0000:0000:ffff:255.255.255.255/128,".len();
    assert!(MAX_NETWORKS * longest + MAX_RULES * 64 <= MAX_MESSAGE_BYTES);
};

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
    in_force: watch::Receiver<Arc<InForce>>,
}

/// What the owner of the kernel's half gets.
pub struct Changes {
    changes: mpsc::Receiver<Change>,
    in_force: watch::Sender<Arc<InForce>>,
}

/// Rules that are to replace those in force.
pub struct Change {
    pub rules: Vec<Rule>,
    done: oneshot::Sender<Result<Changed, ControlError>>,
}

/// What became of a change.
#[derive(Debug)]
pub struct Changed {
    pub in_force: Arc<InForce>,
    /// What in the rules may not be meant.
    pub warnings: Vec<String>,
}

/// `rules` are in force at the start.
pub fn channel(rules: &[Rule]) -> (Control, Changes) {
    let (sender, changes) = mpsc::channel(QUEUE);
    let (publish, in_force) = watch::channel(Arc::new(InForce::new(rules, 1)));
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

/// The rules that packets are held against.
#[derive(Debug)]
pub struct InForce {
    pub rules: usize,
    generation: u64,
    /// An encoded [`Filters`] without warnings, which whoever asks for it shares.
    pub message: Bytes,
}

impl InForce {
    fn new(rules: &[Rule], generation: u64) -> Self {
        let mut message = BytesMut::new();
        let mut append = |fields: &Filters| {
            let appended = fields.encode(&mut message);
            appended.expect("the buffer grows as it is written");
        };
        // What is concatenated is merged: the texts are not all there twice.
        for rule in rules {
            append(&Filters {
                rules: vec![rule.to_string()],
                ..Filters::default()
            });
        }
        append(&Filters {
            generation,
            ..Filters::default()
        });
        Self {
            rules: rules.len(),
            generation,
            message: message.freeze(),
        }
    }
}

impl Control {
    pub fn in_force(&self) -> Arc<InForce> {
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
                let in_force = Arc::new(InForce::new(&rules, generation));
                self.in_force.send_replace(Arc::clone(&in_force));
                tracing::info!(rules = rules.len(), generation, "filter rules are in force");
                Ok(Changed { in_force, warnings })
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
