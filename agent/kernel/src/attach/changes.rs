//! Follows the kernel's notifications about interfaces. Detaches from those that leave this network namespace,
//! and passes the others on to the thread that attaches.
//!
//! A TCX or XDP link moves into another namespace with its interface (`__dev_change_net_namespace` shuts down
//! qdiscs, and nothing else). Its program then sees the index that the interface has there. The program is
//! not told the namespace, and would have to read kernel memory three times per packet to find out. So it is
//! detached.

use std::collections::BTreeMap;

use anyhow::{Error, Result};
use rules::link_names::LinkNames;
use sys::log_limit::LogLimit;
use tokio::sync::mpsc;

use super::{
    alarm,
    closer::{Closer, Detach},
    noted::Changes,
    slots::Slots,
};
use crate::{
    interface_table::InterfaceTable,
    links::{
        events::{LinkEvent, LinkEvents},
        statistics::Names,
    },
    netns::Namespace,
};

/// Follows the changes of a network namespace, in which the calling thread is, for as long as the process runs.
/// `failed` hears why it cannot any more: packets of interfaces that come would go uncounted, and those of an interface
/// with the index of one that has left would count as that one's.
pub(super) fn follow(
    slots: Slots,
    interfaces: InterfaceTable,
    changes: Changes,
    closer: Closer,
    namespace: &Namespace,
    failed: mpsc::Sender<Error>,
) -> Result<()> {
    let follower = Follower {
        events: LinkEvents::open()?,
        names: Names::open()?,
        interfaces,
        slots,
        masters: BTreeMap::new(),
        missed: LogLimit::default(),
        changes,
        closer,
    };
    let (namespace, alarmed) = (namespace.clone(), failed.clone());
    alarm::spawn("interfaces", namespace.clone(), alarmed, move || {
        if let Err(error) = follower.run() {
            let error = error.context("follow the interfaces that come and leave");
            // If it is full, that of another namespace has failed. If nobody listens, the agent is ending.
            let _ = failed.try_send(namespace.locate(error));
        }
    })?;
    Ok(())
}

struct Follower {
    events: LinkEvents,
    names: Names,
    interfaces: InterfaceTable,
    slots: Slots,
    /// Of watched interfaces that had one when they last changed.
    masters: BTreeMap<u32, u32>,
    missed: LogLimit,
    changes: Changes,
    closer: Closer,
}

impl Follower {
    fn run(mut self) -> Result<()> {
        loop {
            for event in self.events.next()? {
                match event {
                    LinkEvent::Left(ifindex) => self.leave(ifindex)?,
                    LinkEvent::Changed {
                        ifindex,
                        names,
                        master,
                    } => self.changed(ifindex, &names, master),
                    LinkEvent::TcRemoved(ifindex) => {
                        // It may have been ours, or had ours in it.
                        if self.slots.slot_of(ifindex).is_some() {
                            self.changes.look_at(ifindex);
                        }
                    }
                    LinkEvent::DefaultRoute(ifindexes) => self.changes.routed(ifindexes),
                    LinkEvent::DefaultRouteByNexthop => self.changes.routed_by_nexthop(),
                    LinkEvent::Missed => {
                        if let Some(times) = self.missed.event() {
                            tracing::warn!(
                                times,
                                "the kernel told of more changes of interfaces than were read in time: \
                                 looking for each interface"
                            );
                        }
                        for ifindex in self.absent() {
                            self.leave(ifindex)?;
                        }
                        self.changes.missed();
                    }
                }
            }
        }
    }

    fn changed(&mut self, ifindex: u32, names: &LinkNames, master: Option<u32>) {
        if self.slots.slot_of(ifindex).is_none() {
            self.changes.here(ifindex, names);
            return;
        }
        let before = match master {
            Some(master) => self.masters.insert(ifindex, master),
            None => self.masters.remove(&ifindex),
        };
        if before != master || !self.slots.is_named(ifindex, names) {
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

    fn leave(&mut self, ifindex: u32) -> Result<()> {
        // This comes first, since it waits for nothing. Until the links are gone, packets count as those of
        // an unknown interface instead of this one's.
        self.interfaces.forget(ifindex);
        self.masters.remove(&ifindex);
        if let Some(links) = self.slots.leave(ifindex) {
            self.closer.detach(Detach::Links(links))?;
        }
        self.changes.left(ifindex);
        Ok(())
    }
}
