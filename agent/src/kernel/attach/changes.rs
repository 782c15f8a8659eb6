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

use super::{held::HeldLink, slots::Slots};
use crate::{
    interfaces::Selection,
    kernel::{
        interface_table::InterfaceTable,
        links::{
            events::{LinkEvent, LinkEvents},
            statistics::Names,
        },
    },
    log_limit::LogLimit,
};

/// What the thread that attaches has to look at.
pub(super) enum Change {
    /// An interface that is new or has another name.
    Interface(u32),
    /// Interfaces over which a default route leads.
    DefaultRoute(Vec<u32>),
    /// An interface that was watched or not has left.
    Left(u32),
    /// Some changes were missed.
    Everything,
    Selection(Selection),
    /// A scan has drained interfaces that had left.
    Drained,
    Stop,
}

/// Follows changes for as long as the process runs.
pub(super) fn follow(
    slots: Slots,
    interfaces: InterfaceTable,
    follows_default_routes: bool,
    changes: Sender<Change>,
) -> Result<()> {
    let follower = Follower {
        events: LinkEvents::open(follows_default_routes)?,
        names: Names::open()?,
        interfaces,
        slots,
        follows_default_routes,
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
    follows_default_routes: bool,
    missed: LogLimit,
    changes: Sender<Change>,
}

impl Follower {
    fn run(mut self, detach: &Sender<Vec<Arc<HeldLink>>>) -> Result<()> {
        loop {
            for event in self.events.next()? {
                match event {
                    LinkEvent::Left(ifindex) => self.leave(ifindex, detach)?,
                    LinkEvent::Changed { ifindex, name } => self.changed(ifindex, &name),
                    LinkEvent::DefaultRoute(ifindexes) => {
                        self.pass_on(Change::DefaultRoute(ifindexes));
                    }
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
                        self.pass_on(Change::Everything);
                    }
                }
            }
        }
    }

    fn changed(&self, ifindex: u32, name: &str) {
        let is_watched = self.slots.slot_of(ifindex).is_some();
        let is_renamed = is_watched && !self.slots.is_named(ifindex, name);
        // Without patterns it is the routes that choose.
        if is_renamed || (!is_watched && !self.follows_default_routes) {
            self.pass_on(Change::Interface(ifindex));
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
        self.pass_on(Change::Left(ifindex));
        Ok(())
    }

    fn pass_on(&self, change: Change) {
        // The thread that attaches has ended if the agent is about to.
        let _ = self.changes.send(change);
    }
}
