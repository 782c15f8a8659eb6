//! What a running agent is asked to change. The task that owns the scanner makes one change at a time, between
//! two scans, so no packet is lost by it.

use std::time::Duration;

use anyhow::Result;
use kernel::{interfaces::Selection, rule_maps::PlacedRules};
use server::rules_in_force::Stopping;
use tokio::sync::{mpsc, oneshot};

/// How often the table is drained, and how long flows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub scan_interval: Duration,
    pub idle_timeout: Duration,
    /// How long a closed flow waits for late packets after its last one.
    pub linger: Duration,
    /// How often a living flow is reported, at most; zero is with every scan.
    pub report_interval: Duration,
}

/// Whatever else a running agent may change is a variant, and the place where it is done is the task that scans.
pub enum Change {
    /// Turn the programs to rules whose maps are filled.
    Rules(PlacedRules),
    Times(Times),
    /// Choose interfaces in another way.
    Selection(Selection),
}

/// A change, and who waits for it.
pub struct Request {
    pub change: Change,
    pub done: oneshot::Sender<Result<()>>,
}

/// Asks the task that owns the scanner for changes. Clones ask the same task.
#[derive(Clone)]
pub struct Changes(mpsc::Sender<Request>);

impl Changes {
    /// The receiver is for the task that owns the scanner.
    pub fn channel() -> (Self, mpsc::Receiver<Request>) {
        let (sender, requests) = mpsc::channel(1);
        (Self(sender), requests)
    }

    /// Returns the outcome when the change is made.
    pub async fn make(&self, change: Change) -> Result<Result<()>, Stopping> {
        let (done, outcome) = oneshot::channel();
        let request = Request { change, done };
        self.0.send(request).await.map_err(|_| Stopping)?;
        outcome.await.map_err(|_| Stopping)
    }

    /// The same on a thread outside the runtime.
    pub fn make_blocking(&self, change: Change) -> Result<Result<()>, Stopping> {
        let (done, outcome) = oneshot::channel();
        let request = Request { change, done };
        self.0.blocking_send(request).map_err(|_| Stopping)?;
        outcome.blocking_recv().map_err(|_| Stopping)
    }
}
