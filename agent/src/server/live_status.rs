//! The status at the moment when somebody asks: that of the last scan, and what the server knows itself.

use std::sync::Arc;

use tokio::sync::watch;

use super::{limits::Doors, listen::Listening};
use crate::{
    asks::SnapshotBytes,
    clock,
    hub::Hub,
    outputs::Outputs,
    proto::{AgentStatus, ServerStatus},
};

pub(super) struct LiveStatus {
    hub: Hub,
    outputs: Outputs,
    scanned: watch::Receiver<Arc<AgentStatus>>,
    doors: Arc<Doors>,
    snapshots: SnapshotBytes,
    listening: Vec<Listening>,
    started_boot_ns: u64,
}

impl LiveStatus {
    /// The agent starts now.
    pub(super) fn new(
        hub: Hub,
        outputs: Outputs,
        scanned: watch::Receiver<Arc<AgentStatus>>,
        doors: Arc<Doors>,
        snapshots: SnapshotBytes,
        listening: Vec<Listening>,
    ) -> Self {
        Self {
            hub,
            outputs,
            scanned,
            doors,
            snapshots,
            listening,
            started_boot_ns: clock::boot_now_ns(),
        }
    }

    pub(super) fn now(&self) -> AgentStatus {
        let mut status = AgentStatus::clone(&self.scanned.borrow());
        status.started_unix_ns = clock::unix_of_boot_ns(self.started_boot_ns);
        status.uptime_ns = clock::boot_now_ns().saturating_sub(self.started_boot_ns);
        status.consumers = self.hub.status();
        status.outputs = self.outputs.status();
        status.departed_outputs = Some(self.outputs.departed());
        let fate = self.hub.fate();
        status.server = Some(ServerStatus {
            consumers_left: self.hub.left(),
            held_bytes: self.hub.held_bytes() + self.snapshots.get(),
            delivered_batches: fate.delivered.batches,
            delivered_records: fate.delivered.records,
            lost_batches: fate.lost.batches,
            lost_records: fate.lost.records,
            listeners: self.listening.iter().map(Listening::status).collect(),
            ..self.doors.status()
        });
        status
    }
}
