//! Publishes a status after each scan. Adds the drops of the interfaces' qdiscs and the namespaces where IPsec
//! terminates tunnels. Only netlink has these, under a lock that another process may hold, so this task reads them, not
//! the scanner.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use agent_common::InterfaceId;
use anyhow::Result;
use kernel::{ipsec::Ipsec, links::LinkSocket, netns::Namespace};
use proto::AgentStatus;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::status;

/// How long a status waits for the drops. After that it is published without them.
const PATIENCE: Duration = Duration::from_secs(1);

type Drops = BTreeMap<InterfaceId, u64>;

/// Reads how many packets the qdiscs have dropped since this was created, and where IPsec terminates tunnels.
pub(super) struct NetlinkReadings {
    /// Keyed by the number of the network namespace.
    links: Vec<(u32, LinkSocket)>,
    ipsec: Vec<(u32, Ipsec)>,
    before: Drops,
}

impl NetlinkReadings {
    /// Reads these network namespaces.
    pub(super) fn open(namespaces: &[Namespace]) -> Result<Self> {
        let open = |namespace: &Namespace| {
            let links = namespace.enter(LinkSocket::open)?;
            Ok((namespace.number(), links))
        };
        let drops = Self {
            links: namespaces.iter().map(open).collect::<Result<_>>()?,
            ipsec: namespaces
                .iter()
                .map(|namespace| (namespace.number(), Ipsec::of(namespace)))
                .collect(),
            before: Drops::new(),
        };
        // If the drops cannot be read they are unknown; the audit allows for that.
        let (drops, read) = drops.read();
        Ok(Self {
            before: read.drops.unwrap_or_default(),
            ..drops
        })
    }

    fn read(mut self) -> (Self, Read) {
        let read = Read {
            drops: self.drops().ok(),
            ipsec: self.ipsec(),
        };
        (self, read)
    }

    /// The namespaces where IPsec terminates tunnels. A namespace that cannot be read counts as having none; `check`
    /// warns about it.
    fn ipsec(&mut self) -> BTreeSet<u32> {
        let opening = self
            .ipsec
            .iter_mut()
            .filter_map(|(netns, ipsec)| ipsec.has_tunnels().unwrap_or_default().then_some(*netns));
        opening.collect()
    }

    fn drops(&mut self) -> Result<Drops> {
        let mut drops = Drops::new();
        for (netns, links) in &mut self.links {
            let netns = *netns;
            let here = links.qdisc_drops()?.into_iter();
            drops.extend(here.map(|(ifindex, count)| (InterfaceId { netns, ifindex }, count)));
        }
        Ok(drops)
    }
}

/// The result of one reading.
struct Read {
    drops: Option<Drops>,
    /// Network namespaces where IPsec terminates tunnels.
    ipsec: BTreeSet<u32>,
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
        netlink: NetlinkReadings,
    ) -> (Self, watch::Receiver<Arc<AgentStatus>>) {
        let first = Arc::new(first);
        let (scanned, receiver) = watch::channel(Scanned {
            status: Arc::clone(&first),
            is_final: false,
        });
        let (publish, published) = watch::channel(first);
        tokio::spawn(complete(receiver, publish, netlink));
        (Self { scanned }, published)
    }

    /// Never blocks. If a status is still incomplete when the next one comes, it may be skipped. The final one goes
    /// without drops, since a thread blocked in the kernel would delay the end.
    pub(super) fn publish(&self, status: AgentStatus, is_final: bool) {
        let status = Arc::new(status);
        self.scanned.send_replace(Scanned { status, is_final });
    }
}

/// Runs until the final scan.
async fn complete(
    mut scanned: watch::Receiver<Scanned>,
    published: watch::Sender<Arc<AgentStatus>>,
    netlink: NetlinkReadings,
) {
    let mut idle = Some(netlink);
    // A reading that was started for an earlier scan. Its result is too old for this one.
    let mut late: Option<JoinHandle<(NetlinkReadings, Read)>> = None;
    while scanned.changed().await.is_ok() {
        let Scanned { status, is_final } = scanned.borrow_and_update().clone();
        if is_final {
            published.send_replace(status);
            return;
        }
        let mut status = AgentStatus::clone(&status);
        if let Some(reading) = late.take_if(|reading| reading.is_finished()) {
            // If the thread panicked, the log says so, and later statuses have no drops.
            idle = reading.await.ok().map(|(netlink, _)| netlink);
        }
        if let Some(netlink) = idle.take() {
            let mut reading = spawn_blocking(move || netlink.read());
            match timeout(PATIENCE, &mut reading).await {
                Ok(Ok((netlink, read))) => {
                    if let Some(after) = read.drops {
                        status::add_qdisc_drops(&mut status, &netlink.before, &after);
                    }
                    status::add_ipsec(&mut status, &read.ipsec);
                    idle = Some(netlink);
                }
                Ok(Err(_)) => {}
                Err(_) => late = Some(reading),
            }
        }
        published.send_replace(Arc::new(status));
    }
}
