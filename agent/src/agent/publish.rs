//! The status on its way from the scan to whoever asks: it gets what interfaces' qdiscs dropped, which
//! netlink alone tells, under a lock that another process may hold.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Result;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::{kernel::links::LinkSocket, proto::AgentStatus, status};

/// A status whose drops are not known after this time goes without.
const PATIENCE: Duration = Duration::from_secs(1);

type Drops = BTreeMap<u32, u64>;

/// What qdiscs have dropped since this was made.
pub(super) struct QdiscDrops {
    links: LinkSocket,
    before: Drops,
}

impl QdiscDrops {
    /// For the network namespace of the calling thread.
    pub(super) fn open() -> Result<Self> {
        let mut links = LinkSocket::open()?;
        // Where they cannot be read they are unknown, which the audit can live with.
        let before = links.qdisc_drops().unwrap_or_default();
        Ok(Self { links, before })
    }

    fn read(mut self) -> (Self, Option<Drops>) {
        let after = self.links.qdisc_drops().ok();
        (self, after)
    }
}

/// Takes a status after each scan.
pub(super) struct Publisher {
    scanned: watch::Sender<Scanned>,
}

#[derive(Clone)]
struct Scanned {
    status: Arc<AgentStatus>,
    is_final: bool,
}

impl Publisher {
    /// Starts the task; what it publishes begins with `first`.
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

    /// Never waits: where the next one comes before a status is complete, that one is passed over. The
    /// final one goes without drops, since a thread that waits for the kernel holds up the end.
    pub(super) fn publish(&self, status: AgentStatus, is_final: bool) {
        let status = Arc::new(status);
        self.scanned.send_replace(Scanned { status, is_final });
    }
}

/// Ends with the last scan.
async fn complete(
    mut scanned: watch::Receiver<Scanned>,
    published: watch::Sender<Arc<AgentStatus>>,
    qdiscs: QdiscDrops,
) {
    let mut idle = Some(qdiscs);
    // Begun for an earlier scan, so what it finds is not this one's.
    let mut late: Option<JoinHandle<(QdiscDrops, Option<Drops>)>> = None;
    while scanned.changed().await.is_ok() {
        let Scanned { status, is_final } = scanned.borrow_and_update().clone();
        if is_final {
            published.send_replace(status);
            return;
        }
        let mut status = AgentStatus::clone(&status);
        if let Some(reading) = late.take_if(|reading| reading.is_finished()) {
            // One that panicked is in the log, and every status goes without from then on.
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
