//! Changes of the filter rules: each is made ready beside the scans, and only its switch goes through
//! the task that scans.

use anyhow::{Context as _, Result};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
};

use crate::{
    control::Changes,
    kernel::filters::{Filters, RuleSet},
};

/// A set that is in its place, for the owner of the switch.
pub(super) struct Switch {
    pub(super) set: RuleSet,
    pub(super) done: oneshot::Sender<Result<()>>,
}

/// Where sets become ready; the task ends with the agent.
pub(super) fn start(filters: Filters, changes: Changes) -> mpsc::Receiver<Switch> {
    let (sender, switches) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(error) = serve(filters, changes, sender).await {
            tracing::error!("filter rules cannot be changed any more: {error:#}");
        }
    });
    switches
}

async fn serve(
    mut filters: Filters,
    mut changes: Changes,
    switches: mpsc::Sender<Switch>,
) -> Result<()> {
    loop {
        let change = changes.next().await;
        let (back, change, staged) = spawn_blocking(move || {
            let staged = filters.stage(&change.rules);
            (filters, change, staged)
        })
        .await
        .context("the task that makes the rules ready")?;
        filters = back;
        let outcome = match staged {
            Ok(staged) => {
                let (done, outcome) = oneshot::channel();
                let (set, warnings) = (staged.set(), staged.warnings().to_vec());
                if switches.send(Switch { set, done }).await.is_err() {
                    // The agent is about to stop: who asked is told by the change's end.
                    return Ok(());
                }
                let Ok(outcome) = outcome.await else {
                    return Ok(());
                };
                if outcome.is_ok() {
                    filters = spawn_blocking(move || {
                        filters.settle(staged);
                        filters
                    })
                    .await
                    .context("the task that frees the rules before")?;
                }
                outcome.map(|()| warnings)
            }
            Err(error) => Err(error),
        };
        changes.end(change, outcome);
    }
}
