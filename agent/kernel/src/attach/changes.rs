//! Follows the kernel's notifications about interfaces. Detaches from interfaces that leave this network namespace, and
//! passes all other changes to the thread that attaches.
//!
//! A TCX or XDP link moves into another namespace with its interface (`__dev_change_net_namespace` shuts down qdiscs
//! and nothing else). Its program then sees the index that the interface has there. The program does not see the
//! namespace: finding it would take three reads of kernel memory per packet. So the link is detached.

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

/// Follows the changes of the calling thread's network namespace for as long as the process runs. Sends the error to
/// `failed` if it cannot go on: interfaces that appear would go uncounted, and packets of an interface that reuses an
/// index would count for the interface that had it before.
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
            // If the channel is full, another namespace has failed already. If it is closed, the agent is ending.
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
    /// The masters of watched interfaces, as of their last change.
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
                        // The filter may have been ours, or the qdisc may have held ours.
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
                                "missed interface changes, which the kernel sent faster than they were read: \
                                 checking every interface"
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
        // This comes first because it waits for nothing. Until the links are gone, packets count for the unknown
        // interface instead of this one.
        self.interfaces.forget(ifindex);
        self.masters.remove(&ifindex);
        if let Some(links) = self.slots.leave(ifindex) {
            self.closer.detach(Detach::Links(links))?;
        }
        self.changes.left(ifindex);
        Ok(())
    }
}
