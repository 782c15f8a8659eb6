//! The agent's own consumer: shows the hub's batches on stdout, as a table or JSON Lines.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use anyhow::{Context as _, Result};
use tokio::task::JoinHandle;

use crate::{
    hub::Subscription,
    output::{self, Format, Printer},
    server::DEFAULT_DRAIN_TIMEOUT,
};

/// The task that shows every batch on stdout.
pub(super) struct Printing {
    task: JoinHandle<Result<()>>,
    batches: Arc<AtomicU64>,
}

impl Printing {
    pub(super) fn start(subscription: Subscription, format: Format) -> Self {
        let batches = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(print(subscription, format, Arc::clone(&batches)));
        Self { task, batches }
    }

    /// Waits, after the hub is closed, until everything is shown or stdout makes no progress: whoever reads
    /// it may have stopped without closing it.
    pub(super) async fn end(mut self) -> Result<()> {
        loop {
            let before = self.batches.load(Relaxed);
            if let Ok(ended) = tokio::time::timeout(DEFAULT_DRAIN_TIMEOUT, &mut self.task).await {
                return ended.context("the printer task")?;
            }
            if self.batches.load(Relaxed) == before {
                tracing::warn!(
                    "stdout did not take what was left to print before the agent stopped: it is lost"
                );
                return Ok(());
            }
        }
    }
}

/// Runs until the hub closes or stdout fails. A failing stdout ends nothing but this task.
async fn print(
    mut subscription: Subscription,
    format: Format,
    batches: Arc<AtomicU64>,
) -> Result<()> {
    let mut printer = Printer::on_stdout(format, None);
    while let Some(batch) = subscription.next().await {
        let batch = batch.decode().context("decode our own batch")?;
        let (back, written) = tokio::task::spawn_blocking(move || {
            let written = printer.batch(&batch);
            (printer, written)
        })
        .await
        .context("write to stdout")?;
        printer = back;
        match written {
            Ok(()) => batches.fetch_add(1, Relaxed),
            Err(error) if output::is_broken_pipe(&error) => {
                tracing::warn!("nobody reads stdout any more: the agent goes on without it");
                return Ok(());
            }
            Err(error) => {
                tracing::error!(%error, "cannot write to stdout: the agent goes on without it");
                return Err(error).context("write to stdout");
            }
        };
    }
    Ok(())
}
