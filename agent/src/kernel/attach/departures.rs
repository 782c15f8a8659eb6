//! Interfaces that leave this network namespace: rtnetlink tells of them, and what we have there ends.
//!
//! A TCX or XDP link goes along into another namespace (`__dev_change_net_namespace` shuts qdiscs down,
//! and nothing else), where its program meets the interface's index of there. The program is not told the
//! namespace, and would have to read the kernel's memory three times a packet to know it; so it is taken off.

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

/// Watches over the interfaces of these indexes for as long as the process runs.
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
                    "an interface that leaves is counted on under its old name from here on: {error:#}"
                );
            }
        })
        .context("start a thread")?;
    Ok(())
}

/// Here the waiting is done, so that an interface that leaves meanwhile is heard of.
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
        // First, since it waits for nothing: what passes until the links are gone is of an unknown
        // interface, and no longer of this one.
        self.interfaces.forget(ifindex)?;
        let links = self.links.leave(ifindex);
        detach.send(links).context("the thread that detaches ended")
    }
}
