//! Filters of killed agents. They count until they are removed, so each stays until ours is about to take its place.

use agent_common::Direction;
use anyhow::{Context as _, Error, Result};

use super::{instance_number, priority};
use crate::attach::{
    instance::Living,
    tc_netlink::{Place, TcSocket},
};

/// The filters that killed agents have left in one network namespace.
#[derive(Default)]
pub struct StaleFilters {
    filters: Vec<Stale>,
    /// Open if there are filters.
    socket: Option<TcSocket>,
}

pub(in crate::attach) struct Stale {
    pub(super) place: Place,
    name: String,
    instance: u64,
}

impl StaleFilters {
    /// Looks on every interface of the calling thread's network namespace.
    pub fn find() -> Result<Self> {
        let mut socket = TcSocket::open()?;
        let (mut ours, mut failed) = (Vec::new(), Vec::new());
        for ifindex in socket.filter_qdiscs()?.into_keys() {
            for direction in [Direction::Ingress, Direction::Egress] {
                // A failure must not keep the other filters from being removed.
                match socket.list(ifindex, direction, priority(direction)) {
                    Ok(listed) => ours.extend(listed.into_iter().filter_map(ours_of)),
                    Err(error) => failed.push(error),
                }
            }
        }
        warn_of(&failed);
        // Read after the filters: an agent opens its socket before it adds its first filter, so a living agent is found.
        let mut living = Living::default();
        let mut filters = Vec::new();
        for filter in ours {
            if !living.has(filter.instance)? {
                filters.push(filter);
            }
        }
        Ok(Self {
            socket: (!filters.is_empty()).then_some(socket),
            filters,
        })
    }

    pub fn count(&self) -> usize {
        self.filters.len()
    }

    /// Removes all of them. Returns the first error.
    pub fn remove_all(mut self) -> Result<()> {
        self.remove(|_| true).into_iter().next().map_or(Ok(()), Err)
    }

    pub(in crate::attach) fn are_on(&self, ifindex: u32, direction: Direction) -> bool {
        let mut filters = self.filters.iter();
        filters.any(|stale| stale.is_on(ifindex, direction))
    }

    /// Takes one of those in one direction of an interface, to be [replaced](super::Clsact::replace). Removes the others
    /// there: each of them counts every packet.
    pub(in crate::attach) fn take_one_on(
        &mut self,
        ifindex: u32,
        direction: Direction,
    ) -> Option<Stale> {
        let mut filters = self.filters.iter();
        let at = filters.position(|stale| stale.is_on(ifindex, direction))?;
        let taken = self.filters.swap_remove(at);
        self.remove_on(ifindex, direction);
        Some(taken)
    }

    /// Takes one back that was not replaced.
    pub(in crate::attach) fn give_back(&mut self, stale: Stale) {
        self.filters.push(stale);
    }

    /// Removes those in one direction of an interface.
    pub(in crate::attach) fn remove_on(&mut self, ifindex: u32, direction: Direction) {
        warn_of(&self.remove(|stale| stale.is_on(ifindex, direction)));
    }

    /// Removes all that are still there.
    pub(in crate::attach) fn remove_rest(&mut self) {
        warn_of(&self.remove(|_| true));
        self.socket = None;
    }

    /// Removes the filters that are `meant`, and returns the errors. A filter that cannot be removed is not tried again.
    fn remove(&mut self, meant: impl Fn(&Stale) -> bool) -> Vec<Error> {
        let Some(socket) = &mut self.socket else {
            return Vec::new();
        };
        let removed = self.filters.extract_if(.., |stale| meant(stale));
        removed
            .filter_map(|stale| stale.remove(socket).err())
            .collect()
    }
}

impl Stale {
    fn is_on(&self, ifindex: u32, direction: Direction) -> bool {
        self.place.ifindex == ifindex && self.place.direction == direction
    }

    /// Whether it is still at its place.
    pub(super) fn is_there(&self, socket: &mut TcSocket) -> Result<bool> {
        super::has(socket, self.place, self.instance)
    }

    /// Removes it, unless it is gone or another filter has its place by now.
    fn remove(&self, socket: &mut TcSocket) -> Result<()> {
        let Self {
            place,
            name,
            instance,
        } = self;
        let what = || format!("remove {name} from interface index {}", place.ifindex);
        let was_there = self.is_there(socket).with_context(what)?
            && super::remove(socket, *place, *instance).with_context(what)?;
        if was_there {
            tracing::info!(
                ifindex = place.ifindex,
                side = ?place.direction,
                name,
                "removed a filter that a killed agent left behind"
            );
        }
        Ok(())
    }
}

/// A filter, if an agent made it.
fn ours_of((place, name): (Place, String)) -> Option<Stale> {
    let instance = instance_number(place, &name)?;
    Some(Stale {
        place,
        name,
        instance,
    })
}

fn warn_of(failed: &[Error]) {
    if let Some(error) = failed.first() {
        let failures = failed.len();
        tracing::warn!(failures, "filters of killed agents may stay: {error:#}");
    }
}
