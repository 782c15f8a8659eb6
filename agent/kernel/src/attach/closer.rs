//! Detaches on a thread of its own, since each link takes a grace period under RTNL. Interfaces that come are
//! attached to meanwhile. Looks for links that somebody else has detached, too.

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

/// How often links are looked at. Asking for one takes RTNL for a moment (`tcx_link_fill_info`).
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What is to be detached. There is at most one for each interface.
pub(super) enum Detach {
    /// The links of an interface that has left.
    Links(Vec<Arc<HeldLink>>),
    /// An interface that is not selected any more, and still here.
    Deselected(u32),
}

/// Clones use the same thread.
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

    /// Root may detach any link (`BPF_LINK_DETACH`), and the kernel tells nobody. The programs would count nothing from
    /// then on.
    fn look(&self) {
        for ifindex in self.slots.ifindexes() {
            let links = self.slots.links_of(ifindex);
            if links.iter().any(|link| link.is_detached()) {
                self.changes.look_at(ifindex);
            }
        }
    }

    /// Detaches, and gives the slot back. While a program runs there, the table must have the interface.
    pub(super) fn end(&self, ifindex: u32) {
        // Its links stay with its slot until now, so that the end of the agent finds them.
        drop(self.slots.take_deselected(ifindex));
        // If it has left meanwhile, another interface may have its index.
        if self.slots.is_deselected(ifindex) {
            self.table.forget(ifindex);
            self.slots.leave(ifindex);
        }
        self.changes.given_up(ifindex);
    }
}
