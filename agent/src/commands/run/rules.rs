//! Changes of the filter rules: each is made ready beside the scans, and only its switch goes through
//! the task that scans.

use std::{io, thread};

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, oneshot};

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
        let (back, change, staged) = behind_the_scans(move || {
            let staged = filters.stage(&change.rules);
            (filters, change, staged)
        })
        .await
        .context("make the rules ready")?;
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
                    filters = behind_the_scans(move || {
                        filters.settle(staged);
                        filters
                    })
                    .await
                    .context("free the rules before")?;
                }
                outcome.map(|()| warnings)
            }
            Err(error) => Err(error),
        };
        changes.end(change, outcome);
    }
}

/// Runs `work` on a thread of its own, which gets the CPU when those that scan do not want it.
async fn behind_the_scans<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (sender, outcome) = oneshot::channel();
    let thread = thread::Builder::new().name("rules".to_owned());
    thread
        .spawn(move || {
            give_way();
            // Who waits may have ended.
            let _ = sender.send(work());
        })
        .context("start a thread")?;
    outcome.await.context("the thread has failed")
}

/// To all other threads of the agent, whatever nice value it was started with; the kernel stops at 19.
fn give_way() {
    const NICER_BY: libc::c_int = 5;
    // SAFETY: no pointers; 0 is the calling thread (setpriority(2), "C library/kernel differences"), of
    // which it can always be asked.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: likewise.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, own + NICER_BY) } != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, "a change of rules has the same priority as the scans");
    }
}
