//! Filters on clsact, for kernels without TCX. They are removed when [`Clsact`] is dropped, or [left](Clsact::leave) to
//! a successor.
//!
//! The kernel keeps a filter when its maker is killed. So each of our filters can be recognized by its name, priority
//! and handle, and its name says which instance of the agent made it. Every start replaces or removes the filters of
//! instances that are gone ([`stale`]). It removes nothing else, with one exception: netlink cannot remove or replace a
//! filter by name, so a filter that a stranger puts in the place of ours right after our check is removed.
//!
//! The qdisc stays, even if we added it. The kernel removes a qdisc together with all its filters, and cannot be asked
//! to do so only if there are none. A filter that someone adds after our check would go with it. The kernel does not
//! run a clsact qdisc without filters (`mini_qdisc_pair_swap` leaves no `miniq`, 5.10).

use std::{collections::BTreeSet, os::fd::BorrowedFd, thread};

use agent_common::Direction;
use anyhow::{Context as _, Result, bail, ensure};
use sys::log_limit::LogLimit;

use super::{
    instance::Instance,
    tc_netlink::{Place, TcSocket},
};
use crate::links::{Link, netlink::errno};

mod stale;
#[cfg(test)]
mod tests;

pub(super) use stale::Stale;
pub use stale::StaleFilters;

/// First on ingress and last on egress, so the program sees packets as they are on the wire, before others change or
/// drop them. The kernel itself chooses 49152 and below, and people choose round numbers.
const INGRESS_PRIORITY: u16 = 7;
const EGRESS_PRIORITY: u16 = 0xc0de;
/// The upper half of all our handles. The lower half differs between agents.
const HANDLE_MAJOR: u32 = 0xf10a;
/// A name is `flow-agent:PROGRAM@INSTANCE`.
const NAME_PREFIX: &str = "flow-agent:";
/// How many handles to try.
const MAX_NEIGHBOURS: u16 = 1024;

/// The filters of this process.
pub(super) struct Clsact {
    socket: TcSocket,
    filters: Vec<Place>,
    /// Interfaces to which this process added a clsact qdisc. Kept here because listing qdiscs takes longer the more
    /// interfaces there are.
    prepared: BTreeSet<u32>,
    added: LogLimit,
    kept: LogLimit,
    /// Must be dropped after the filters are removed.
    instance: Instance,
}

impl Clsact {
    pub(super) fn open() -> Result<Self> {
        Ok(Self {
            socket: TcSocket::open()?,
            instance: Instance::new()?,
            filters: Vec::new(),
            prepared: BTreeSet::new(),
            added: LogLimit::default(),
            kept: LogLimit::default(),
        })
    }

    /// Fails if one of these links has a qdisc without an egress side.
    pub(super) fn ensure_egress_of<'a>(
        &mut self,
        links: impl Iterator<Item = &'a Link>,
    ) -> Result<()> {
        let qdiscs = self.socket.filter_qdiscs()?;
        for link in links {
            ensure_egress(qdiscs.get(&link.ifindex))
                .with_context(|| format!("attach tc egress to {}", link.name))?;
        }
        Ok(())
    }

    /// Does everything that [`Self::attach`] needs. Removes a filter of ours that an earlier detach could not remove: two
    /// of them would count every packet twice.
    pub(super) fn prepare(&mut self, link: &Link, direction: Direction) -> Result<()> {
        for place in self.places(link.ifindex) {
            if place.direction == direction {
                self.remove(place)
                    .context("remove the filter that is there")?;
            }
        }
        self.ensure_qdisc(link, direction)
    }

    /// Attaches the program to one direction of an interface.
    pub(super) fn attach(
        &mut self,
        link: &Link,
        direction: Direction,
        program: BorrowedFd<'_>,
        program_name: &str,
    ) -> Result<()> {
        let name = self.name_of(program_name);
        let place = self
            .add(link.ifindex, direction, program, &name)
            .with_context(|| {
                let priority = priority(direction);
                format!(
                    "add a clsact filter at priority {priority} (`tc filter show` lists others)"
                )
            })?;
        self.filters.push(place);
        Ok(())
    }

    /// Puts the program in the place of a filter that another instance has left. Returns whether it is there: the filter
    /// may be gone, or the kernel may refuse.
    pub(super) fn replace(
        &mut self,
        stale: &Stale,
        program: BorrowedFd<'_>,
        program_name: &str,
    ) -> Result<bool> {
        if !stale.is_there(&mut self.socket)? {
            return Ok(false);
        }
        let (place, name) = (stale.place, self.name_of(program_name));
        self.socket.replace(place, program, &name)?;
        self.filters.push(place);
        Ok(true)
    }

    fn name_of(&self, program_name: &str) -> String {
        format!("{NAME_PREFIX}{program_name}@{}", self.instance.number)
    }

    /// Ends and leaves the filters, as a killed process does.
    pub(super) fn leave(mut self) {
        self.filters.clear();
    }

    /// Whether all filters that were added to an interface are still there.
    pub(super) fn is_on(&mut self, ifindex: u32) -> Result<bool> {
        for place in self.places(ifindex) {
            if !self.has(place)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn places(&self, ifindex: u32) -> Vec<Place> {
        let of_it = self.filters.iter().filter(|place| place.ifindex == ifindex);
        of_it.copied().collect()
    }

    /// Whether the filter at a place belongs to this process.
    fn has(&mut self, place: Place) -> Result<bool> {
        has(&mut self.socket, place, self.instance.number)
    }

    /// Removes the remaining filters on an interface after somebody removed others, and forgets all of them.
    pub(super) fn remove_rest(&mut self, ifindex: u32) -> Result<()> {
        for place in self.places(ifindex) {
            self.remove(place)?;
        }
        self.forget(ifindex);
        Ok(())
    }

    /// Removes the filters on an interface.
    pub(super) fn detach(&mut self, ifindex: u32) {
        for place in self.places(ifindex) {
            self.remove_or_tell(place);
        }
    }

    fn remove_or_tell(&mut self, place: Place) {
        if let Err(error) = self.remove(place)
            && let Some(filters) = self.kept.event()
        {
            tracing::warn!(
                ?place,
                filters,
                "a clsact filter stays until its interface is attached to again, this agent ends or another one starts: {error:#}"
            );
        }
    }

    /// Removes the filter at a place and forgets the place. If ours is gone, another program's filter may be there, and
    /// stays. On failure the place is kept, so the call can be repeated.
    fn remove(&mut self, place: Place) -> Result<()> {
        if self.has(place)? {
            remove(&mut self.socket, place, self.instance.number)?;
        }
        self.filters.retain(|other| *other != place);
        Ok(())
    }

    /// Forgets the filters on an interface that has left. The kernel removed them.
    pub(super) fn forget(&mut self, ifindex: u32) {
        self.filters.retain(|place| place.ifindex != ifindex);
        self.prepared.remove(&ifindex);
    }

    /// Forgets filters on interfaces that are gone, and which interfaces have a qdisc, so that the kernel is asked
    /// again.
    pub(super) fn keep(&mut self, here: &BTreeSet<u32>) {
        self.filters.retain(|place| here.contains(&place.ifindex));
        self.prepared.clear();
    }

    /// Adds the filter at the first free handle. Each agent starts at a different handle, so that it does not add a
    /// filter where another one is about to remove a stale one.
    fn add(
        &mut self,
        ifindex: u32,
        direction: Direction,
        program: BorrowedFd<'_>,
        name: &str,
    ) -> Result<Place> {
        let first = self.instance.number as u16;
        let mut place = Place {
            ifindex,
            direction,
            priority: priority(direction),
            handle: 0,
        };
        for neighbour in 0..MAX_NEIGHBOURS {
            place.handle = HANDLE_MAJOR << 16 | u32::from(first.wrapping_add(neighbour));
            match self.socket.add(place, program, name) {
                Err(error) if errno(&error) == Some(libc::EEXIST) => {}
                outcome => return outcome.map(|()| place),
            }
        }
        bail!("{MAX_NEIGHBOURS} handles in a row are taken")
    }

    fn ensure_qdisc(&mut self, link: &Link, direction: Direction) -> Result<()> {
        if self.prepared.contains(&link.ifindex) {
            return Ok(());
        }
        match self.socket.add_clsact(link.ifindex) {
            Ok(()) => {
                if let Some(interfaces) = self.added.event() {
                    tracing::info!(
                        interface = link.name,
                        interfaces,
                        "added a clsact qdisc; it stays when the agent ends"
                    );
                }
                self.prepared.insert(link.ifindex);
                return Ok(());
            }
            Err(error) if errno(&error) == Some(libc::EEXIST) => {}
            Err(error) => return Err(error).context("add a clsact qdisc"),
        }
        let qdiscs = self.socket.filter_qdiscs()?;
        match direction {
            Direction::Ingress => Ok(()),
            Direction::Egress => ensure_egress(qdiscs.get(&link.ifindex)),
        }
    }
}

/// The kernel accepts a filter for the egress side of an ingress qdisc, but runs it on ingress.
fn ensure_egress(qdisc: Option<&String>) -> Result<()> {
    ensure!(
        qdisc.is_none_or(|kind| kind != "ingress"),
        "another program's ingress qdisc is there, which has no egress side: choose --direction ingress, or replace \
         it by clsact"
    );
    Ok(())
}

impl Drop for Clsact {
    fn drop(&mut self) {
        // The next process takes them over.
        if thread::panicking() {
            return;
        }
        for place in self.filters.clone() {
            self.remove_or_tell(place);
        }
    }
}

/// Whether the filter at a place belongs to this instance.
fn has(socket: &mut TcSocket, place: Place, instance: u64) -> Result<bool> {
    let filters = socket.list(place.ifindex, place.direction, place.priority)?;
    let is_it = |(other, name): &(Place, String)| {
        *other == place && instance_number(*other, name) == Some(instance)
    };
    Ok(filters.iter().any(is_it))
}

/// Removes an instance's filter. Returns whether it was there: it may just have gone with its interface or qdisc, and
/// the kernel's error does not say so.
fn remove(socket: &mut TcSocket, place: Place, instance: u64) -> Result<bool> {
    let Err(error) = socket.remove(place) else {
        return Ok(true);
    };
    match has(socket, place, instance) {
        Ok(false) => Ok(false),
        Ok(true) => Err(error),
        Err(unknown) => Err(error.context(format!("list the filters again: {unknown:#}"))),
    }
}

/// The instance whose filter this is; `None` if it is not ours.
fn instance_number(place: Place, name: &str) -> Option<u64> {
    if place.priority != priority(place.direction) || place.handle >> 16 != HANDLE_MAJOR {
        return None;
    }
    let (_, number) = name.strip_prefix(NAME_PREFIX)?.split_once('@')?;
    number.parse().ok()
}

fn priority(direction: Direction) -> u16 {
    match direction {
        Direction::Ingress => INGRESS_PRIORITY,
        Direction::Egress => EGRESS_PRIORITY,
    }
}
