//! Detaches on its own thread, since each link takes a grace period under RTNL, so that new interfaces are attached
//! meanwhile. It also looks for links that somebody else has detached.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{held::HeldLink, noted::Changes, slots::Slots};
use crate::interface_table::InterfaceTable;

/// How often to look at links. Asking for one takes RTNL for a moment (`tcx_link_fill_info`).
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// A request to detach. There is at most one per interface.
pub(super) enum Detach {
    /// The links of an interface that has left.
    Links(Vec<Arc<HeldLink>>),
    /// An interface that is no longer selected, but still here.
    Deselected(u32),
}

/// Clones send to the same thread.
#[derive(Clone)]
pub(super) struct Closer(Sender<Detach>);

impl Closer {
    pub(super) fn start(slots: Slots, table: InterfaceTable, changes: Changes) -> Result<Self> {
        let (closer, to_detach) = Self::channel();
        let work = Work {
            slots,
            table,
            changes,
        };
        thread::Builder::new()
            .name("detach".to_owned())
            .spawn(move || work.run(&to_detach))
            .context("start a thread")?;
        Ok(closer)
    }

    pub(super) fn channel() -> (Self, Receiver<Detach>) {
        let (sender, to_detach) = mpsc::channel();
        (Self(sender), to_detach)
    }

    pub(super) fn detach(&self, what: Detach) -> Result<()> {
        let sent = self.0.send(what).ok();
        sent.context("the thread that detaches ended")
    }
}

pub(super) struct Work {
    pub slots: Slots,
    pub table: InterfaceTable,
    pub changes: Changes,
}

impl Work {
    fn run(&self, to_detach: &Receiver<Detach>) {
        let mut next_look = Instant::now() + LOOK_INTERVAL;
        loop {
            let patience = next_look.saturating_duration_since(Instant::now());
            match to_detach.recv_timeout(patience) {
                Ok(Detach::Links(links)) => drop(links),
                Ok(Detach::Deselected(ifindex)) => self.end(ifindex),
                Err(RecvTimeoutError::Timeout) => {
                    self.look();
                    next_look = Instant::now() + LOOK_INTERVAL;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Looks for detached links. Root may detach any link (`BPF_LINK_DETACH`), and the kernel does not report it; the
    /// programs would count nothing from then on.
    fn look(&self) {
        for ifindex in self.slots.ifindexes() {
            let links = self.slots.links_of(ifindex);
            if links.iter().any(|link| link.is_detached()) {
                self.changes.look_at(ifindex);
            }
        }
    }

    /// Detaches from an interface and frees its slot. The interface must stay in the table while a program runs there.
    pub(super) fn end(&self, ifindex: u32) {
        // The links stay in the slot until now, so that the end of the agent finds them.
        drop(self.slots.take_deselected(ifindex));
        // If it has left meanwhile, the index may belong to another interface.
        if self.slots.is_deselected(ifindex) {
            self.table.forget(ifindex);
            self.slots.leave(ifindex);
        }
        self.changes.given_up(ifindex);
    }
}
