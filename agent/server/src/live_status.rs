//! The current status: that of the last scan, completed by what only the server knows.

use std::sync::Arc;

use exporters::Outputs;
use hub::Hub;
use proto::{AgentStatus, ServerStatus};
use sys::clock;
use tokio::sync::watch;

use super::{limits::AdmissionControl, listen::Listening};
use crate::scanner_requests::SnapshotBytes;

pub struct LiveStatus {
    hub: Hub,
    outputs: Outputs,
    scanned: watch::Receiver<Arc<AgentStatus>>,
    admission: Arc<AdmissionControl>,
    snapshots: SnapshotBytes,
    listening: Vec<Listening>,
    started_boot_ns: u64,
}

impl LiveStatus {
    /// Call when the agent starts; the uptime counts from here.
    pub fn new(
        hub: Hub,
        outputs: Outputs,
        scanned: watch::Receiver<Arc<AgentStatus>>,
        admission: Arc<AdmissionControl>,
        snapshots: SnapshotBytes,
        listening: Vec<Listening>,
    ) -> Self {
        Self {
            hub,
            outputs,
            scanned,
            admission,
            snapshots,
            listening,
            started_boot_ns: clock::boot_now_ns(),
        }
    }

    pub fn now(&self) -> AgentStatus {
        let mut status = AgentStatus::clone(&self.scanned.borrow());
        status.started_unix_ns = clock::unix_of_boot_ns(self.started_boot_ns);
        status.uptime_ns = clock::boot_now_ns().saturating_sub(self.started_boot_ns);
        status.consumers = self.hub.status();
        status.outputs = self.outputs.status();
        status.departed_outputs = Some(self.outputs.departed());
        let mut server = server_status(&self.hub, &self.admission, &self.listening);
        server.held_bytes += self.snapshots.get();
        status.server = Some(server);
        status
    }
}

/// Figures of the listeners, and the memory held for clients.
pub fn server_status(
    hub: &Hub,
    admission: &AdmissionControl,
    listening: &[Listening],
) -> ServerStatus {
    let fate = hub.fate();
    ServerStatus {
        consumers_left: hub.left(),
        held_bytes: hub.held_bytes(),
        delivered_batches: fate.delivered.batches,
        delivered_records: fate.delivered.records,
        lost_batches: fate.lost.batches,
        lost_records: fate.lost.records,
        listeners: listening.iter().map(Listening::status).collect(),
        ..admission.status()
    }
}
