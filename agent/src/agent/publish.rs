//! Publishes a status after each scan, and adds to it what the interfaces' qdiscs dropped. Only netlink tells
//! that, under a lock that another process may hold, so a task apart from the scanner asks.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Result;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::{kernel::links::LinkSocket, proto::AgentStatus, status};

/// How long a status waits for the drops. It is published without them after this time.
const PATIENCE: Duration = Duration::from_secs(1);

type Drops = BTreeMap<u32, u64>;

/// Packets that qdiscs have dropped since this was made.
pub(super) struct QdiscDrops {
    links: LinkSocket,
    before: Drops,
}

impl QdiscDrops {
    /// Reads the network namespace of the calling thread.
    pub(super) fn open() -> Result<Self> {
        let mut links = LinkSocket::open()?;
        // If the drops cannot be read they are unknown, which the audit can handle.
        let before = links.qdisc_drops().unwrap_or_default();
        Ok(Self { links, before })
    }

    fn read(mut self) -> (Self, Option<Drops>) {
        let after = self.links.qdisc_drops().ok();
        (self, after)
    }
}

/// Accepts a status after each scan.
pub(super) struct Publisher {
    scanned: watch::Sender<Scanned>,
}

#[derive(Clone)]
struct Scanned {
    status: Arc<AgentStatus>,
    is_final: bool,
}

impl Publisher {
    /// Starts the task. The first status that it publishes is `first`.
    pub(super) fn start(
        first: AgentStatus,
        qdiscs: QdiscDrops,
    ) -> (Self, watch::Receiver<Arc<AgentStatus>>) {
        let first = Arc::new(first);
        let (scanned, receiver) = watch::channel(Scanned {
            status: Arc::clone(&first),
            is_final: false,
        });
        let (publish, published) = watch::channel(first);
        tokio::spawn(complete(receiver, publish, qdiscs));
        (Self { scanned }, published)
    }

    /// Never waits. A status that is not complete when the next one comes may be skipped. The final one goes
    /// without drops, since a thread that waits for the kernel would delay the end.
    pub(super) fn publish(&self, status: AgentStatus, is_final: bool) {
        let status = Arc::new(status);
        self.scanned.send_replace(Scanned { status, is_final });
    }
}

/// Runs until the final scan.
async fn complete(
    mut scanned: watch::Receiver<Scanned>,
    published: watch::Sender<Arc<AgentStatus>>,
    qdiscs: QdiscDrops,
) {
    let mut idle = Some(qdiscs);
    // A reading that was begun for an earlier scan. Its result is too old for this one.
    let mut late: Option<JoinHandle<(QdiscDrops, Option<Drops>)>> = None;
    while scanned.changed().await.is_ok() {
        let Scanned { status, is_final } = scanned.borrow_and_update().clone();
        if is_final {
            published.send_replace(status);
            return;
        }
        let mut status = AgentStatus::clone(&status);
        if let Some(reading) = late.take_if(|reading| reading.is_finished()) {
            // If the thread panicked, the log says so, and no status has drops from then on.
            idle = reading.await.ok().map(|(qdiscs, _)| qdiscs);
        }
        if let Some(qdiscs) = idle.take() {
            let mut reading = spawn_blocking(move || qdiscs.read());
            match timeout(PATIENCE, &mut reading).await {
                Ok(Ok((qdiscs, after))) => {
                    if let Some(after) = after {
                        status::add_qdisc_drops(&mut status, &qdiscs.before, &after);
                    }
                    idle = Some(qdiscs);
                }
                Ok(Err(_)) => {}
                Err(_) => late = Some(reading),
            }
        }
        published.send_replace(Arc::new(status));
    }
}
