//! Follows the kernel's notifications about interfaces. Detaches from those that leave this network namespace,
//! and passes the others on to the thread that attaches.
//!
//! A TCX or XDP link moves into another namespace with its interface (`__dev_change_net_namespace` shuts down
//! qdiscs, and nothing else). Its program then sees the index that the interface has there. The program is
//! not told the namespace, and would have to read kernel memory three times per packet to find out. So it is
//! detached.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use anyhow::{Context as _, Result};

use super::{held::HeldLink, noted::Changes, slots::Slots};
use crate::{
    kernel::{
        interface_table::InterfaceTable,
        links::{
            events::{LinkEvent, LinkEvents},
            statistics::Names,
        },
    },
    log_limit::LogLimit,
};

/// Follows changes for as long as the process runs.
pub(super) fn follow(slots: Slots, interfaces: InterfaceTable, changes: Changes) -> Result<()> {
    let follower = Follower {
        events: LinkEvents::open()?,
        names: Names::open()?,
        interfaces,
        slots,
        missed: LogLimit::default(),
        changes,
    };
    let (detach, detached) = mpsc::channel();
    let thread = |name: &str| thread::Builder::new().name(name.to_owned());
    thread("detach")
        .spawn(move || close_each(detached))
        .context("start a thread")?;
    thread("interfaces")
        .spawn(move || {
            if let Err(error) = follower.run(&detach) {
                tracing::error!(
                    "interfaces that come or leave go unnoticed from here on, and those that leave count on \
                     under their old names: {error:#}"
                );
            }
        })
        .context("start a thread")?;
    Ok(())
}

/// Closes links on a thread of its own, since that waits. Changes meanwhile are still heard of.
fn close_each(links: Receiver<Vec<Arc<HeldLink>>>) {
    for links in links {
        drop(links);
    }
}

struct Follower {
    events: LinkEvents,
    names: Names,
    interfaces: InterfaceTable,
    slots: Slots,
    missed: LogLimit,
    changes: Changes,
}

impl Follower {
    fn run(mut self, detach: &Sender<Vec<Arc<HeldLink>>>) -> Result<()> {
        loop {
            for event in self.events.next()? {
                match event {
                    LinkEvent::Left(ifindex) => self.leave(ifindex, detach)?,
                    LinkEvent::Changed { ifindex, name } => self.changed(ifindex, &name),
                    LinkEvent::DefaultRoute(ifindexes) => self.changes.routed(ifindexes),
                    LinkEvent::Missed => {
                        if let Some(times) = self.missed.event() {
                            tracing::warn!(
                                times,
                                "the kernel told of more changes of interfaces than were read in time: \
                                 looking for each interface"
                            );
                        }
                        for ifindex in self.absent() {
                            self.leave(ifindex, detach)?;
                        }
                        self.changes.missed();
                    }
                }
            }
        }
    }

    fn changed(&self, ifindex: u32, name: &str) {
        if self.slots.slot_of(ifindex).is_none() {
            self.changes.here(ifindex, name);
        } else if !self.slots.is_named(ifindex, name) {
            self.changes.look_at(ifindex);
        }
    }

    fn absent(&self) -> Vec<u32> {
        let is_absent = |ifindex: &u32| {
            let name = self.names.of(*ifindex);
            name.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
        };
        self.slots
            .ifindexes()
            .into_iter()
            .filter(is_absent)
            .collect()
    }

    fn leave(&self, ifindex: u32, detach: &Sender<Vec<Arc<HeldLink>>>) -> Result<()> {
        // This comes first, since it waits for nothing. Until the links are gone, packets count as those of
        // an unknown interface instead of this one's.
        self.interfaces.forget(ifindex)?;
        if let Some(links) = self.slots.leave(ifindex) {
            detach
                .send(links)
                .context("the thread that detaches ended")?;
        }
        self.changes.left(ifindex);
        Ok(())
    }
}
