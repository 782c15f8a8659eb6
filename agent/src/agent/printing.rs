//! The agent's own consumer: shows the hub's batches on stdout, as a table or JSON Lines.

use std::{
    future::pending,
    io::{self, IsTerminal as _, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, Result};
use exporters::Outputs;
use formats::{Format, Printer};
use hub::{DEFAULT_DRAIN_TIMEOUT, Subscription};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::stdout;

/// The task that shows every batch on stdout.
pub(super) struct Printing {
    task: JoinHandle<Result<()>>,
    written_bytes: Arc<AtomicU64>,
}

/// Counts the bytes that stdout accepts.
struct Counted {
    stdout: io::Stdout,
    written_bytes: Arc<AtomicU64>,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.stdout.write(bytes)?;
        self.written_bytes.fetch_add(written as u64, Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

impl Printing {
    /// The receiver hears when whoever reads stdout has closed it.
    pub(super) fn start(
        subscription: Subscription,
        format: Format,
    ) -> (Self, oneshot::Receiver<()>) {
        let stdout = io::stdout();
        let in_place = stdout.is_terminal();
        let written_bytes = Arc::<AtomicU64>::default();
        let out = formats::buffered(Counted {
            stdout,
            written_bytes: Arc::clone(&written_bytes),
        });
        let printer = Printer::new(format, out, in_place, None);
        let (closed, is_closed) = oneshot::channel();
        let task = tokio::spawn(async move {
            tokio::select! {
                outcome = print(subscription, printer) => outcome?,
                () = stdout::closed() => {}
            }
            // At the end of the agent, nobody listens.
            let _ = closed.send(());
            Ok(())
        });
        let printing = Self {
            task,
            written_bytes,
        };
        (printing, is_closed)
    }

    /// Call after the hub is closed. Waits until everything is printed or stdout makes no progress: its reader may have
    /// stopped without closing it.
    pub(super) async fn end(mut self) -> Result<()> {
        loop {
            let before = self.written_bytes.load(Relaxed);
            if let Ok(ended) = tokio::time::timeout(DEFAULT_DRAIN_TIMEOUT, &mut self.task).await {
                return ended.context("the printer task")?;
            }
            if self.written_bytes.load(Relaxed) == before {
                tracing::warn!(
                    "stdout did not take the remaining output before the agent stopped: it is lost"
                );
                return Ok(());
            }
        }
    }
}

/// Resolves when stdout is closed and flows go nowhere else. Consumers may still ask for them, but whoever closed stdout has
/// seen enough. A stdout that cannot be written, such as a file on a full disk, ends nothing.
pub(super) async fn was_the_only_output(closed: Option<oneshot::Receiver<()>>, outputs: &Outputs) {
    let Some(closed) = closed else {
        return pending().await;
    };
    if closed.await.is_err() {
        return pending().await;
    }
    if !outputs.is_empty() {
        tracing::warn!("stdout is closed: flows still go to the other outputs");
        pending::<()>().await;
    }
    tracing::info!("stdout is closed, and flows go nowhere else");
}

/// Runs until the hub closes or stdout fails.
async fn print(
    mut subscription: Subscription,
    mut printer: Printer<io::BufWriter<Counted>>,
) -> Result<()> {
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
            Ok(()) => {}
            Err(error) if formats::is_broken_pipe(&error) => return Ok(()),
            Err(error) => {
                tracing::error!(%error, "cannot write to stdout: the agent continues without it");
                return Err(error).context("write to stdout");
            }
        }
    }
    // Whoever has closed stdout does not miss it.
    let _ = tokio::task::spawn_blocking(move || printer.finish()).await;
    Ok(())
}
