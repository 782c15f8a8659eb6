//! Changes to a running agent. The task that owns the scanner makes one change at a time, between two scans, so that no
//! packet is lost.

use std::time::Duration;

use anyhow::Result;
use kernel::{interfaces::Selection, rule_maps::PlacedRules};
use server::active_rules::Stopping;
use tokio::sync::{mpsc, oneshot};

use crate::scan::Lease;

/// How often the table is drained, and how long flows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub scan_interval: Duration,
    pub idle_timeout: Duration,
    /// How long a closed flow waits for late packets, counted from its last packet.
    pub linger: Duration,
    /// The shortest time between two reports of a living flow; zero reports it in every scan.
    pub report_interval: Duration,
    /// How long the programs count after a scan was due; zero never ends.
    pub lease: Duration,
}

impl Times {
    pub fn lease(&self) -> Lease {
        Lease {
            length: self.lease,
            scan_interval: self.scan_interval,
        }
    }
}

/// A change that the scanning task makes.
pub enum Change {
    /// Switch the programs to rules whose maps are filled.
    Rules(PlacedRules),
    Times(Times),
    /// Change the selection of interfaces.
    Selection(Selection),
}

/// A change, and the sender for its outcome.
pub struct Request {
    pub change: Change,
    pub done: oneshot::Sender<Result<()>>,
}

/// Sends changes to the task that owns the scanner. Clones send to the same task.
#[derive(Clone)]
pub struct Changes(mpsc::Sender<Request>);

impl Changes {
    /// Creates the sender, and the receiver for the task that owns the scanner.
    pub fn channel() -> (Self, mpsc::Receiver<Request>) {
        let (sender, requests) = mpsc::channel(1);
        (Self(sender), requests)
    }

    /// Returns the outcome once the change is made.
    pub async fn make(&self, change: Change) -> Result<Result<()>, Stopping> {
        let (done, outcome) = oneshot::channel();
        let request = Request { change, done };
        self.0.send(request).await.map_err(|_| Stopping)?;
        outcome.await.map_err(|_| Stopping)
    }

    /// The same for a thread outside the runtime.
    pub fn make_blocking(&self, change: Change) -> Result<Result<()>, Stopping> {
        let (done, outcome) = oneshot::channel();
        let request = Request { change, done };
        self.0.blocking_send(request).map_err(|_| Stopping)?;
        outcome.blocking_recv().map_err(|_| Stopping)
    }
}
