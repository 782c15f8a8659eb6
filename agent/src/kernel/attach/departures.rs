//! Watches rtnetlink for interfaces that leave this network namespace, and detaches from them.
//!
//! A TCX or XDP link moves into another namespace with its interface (`__dev_change_net_namespace` shuts down
//! qdiscs, and nothing else). Its program then sees the index that the interface has there. The program is
//! not told the namespace, and would have to read kernel memory three times per packet to find out. So it is
//! detached.

use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use anyhow::{Context as _, Result};

use super::held::{HeldLink, HeldLinks};
use crate::kernel::{
    interface_table::InterfaceTable,
    links::{
        events::{LinkEvent, LinkEvents},
        statistics::Names,
    },
};

/// Watches the interfaces with these indexes for as long as the process runs.
pub(super) fn watch(
    links: HeldLinks,
    interfaces: InterfaceTable,
    ifindexes: Vec<u32>,
) -> Result<()> {
    let departures = Departures {
        events: LinkEvents::open()?,
        names: Names::open()?,
        interfaces,
        ifindexes,
        links,
    };
    let (detach, detached) = mpsc::channel();
    let thread = |name: &str| thread::Builder::new().name(name.to_owned());
    thread("detach")
        .spawn(move || close_each(detached))
        .context("start a thread")?;
    thread("departures")
        .spawn(move || {
            if let Err(error) = departures.follow(&detach) {
                tracing::error!(
                    "interfaces that leave go unnoticed from here on, and count on under their old names: {error:#}"
                );
            }
        })
        .context("start a thread")?;
    Ok(())
}

/// Closes links on a thread of its own, since that waits. Departures meanwhile are still heard of.
fn close_each(links: Receiver<Vec<HeldLink>>) {
    for links in links {
        drop(links);
    }
}

struct Departures {
    events: LinkEvents,
    names: Names,
    interfaces: InterfaceTable,
    ifindexes: Vec<u32>,
    links: HeldLinks,
}

impl Departures {
    fn follow(mut self, detach: &Sender<Vec<HeldLink>>) -> Result<()> {
        loop {
            for event in self.events.next()? {
                match event {
                    LinkEvent::Left(ifindex) => self.leave(ifindex, detach)?,
                    LinkEvent::Missed => {
                        tracing::warn!(
                            "the kernel told of more changes of interfaces than were read in time: \
                             looking for each interface"
                        );
                        for ifindex in self.absent() {
                            self.leave(ifindex, detach)?;
                        }
                    }
                }
            }
        }
    }

    fn absent(&self) -> Vec<u32> {
        let is_absent = |ifindex: &u32| {
            let name = self.names.of(*ifindex);
            name.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
        };
        let ifindexes = self.ifindexes.iter().copied();
        ifindexes.filter(is_absent).collect()
    }

    fn leave(&self, ifindex: u32, detach: &Sender<Vec<HeldLink>>) -> Result<()> {
        if !self.ifindexes.contains(&ifindex) {
            return Ok(());
        }
        // This comes first, since it waits for nothing. Until the links are gone, packets count as those of
        // an unknown interface instead of this one's.
        self.interfaces.forget(ifindex)?;
        let links = self.links.leave(ifindex);
        detach.send(links).context("the thread that detaches ended")
    }
}
