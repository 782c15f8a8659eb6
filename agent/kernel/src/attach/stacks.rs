//! Interfaces that come to stand on others, so that a packet passes both.

use std::{
    collections::BTreeSet,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::watcher::Watcher;
use crate::{
    devices::{Devices, Twice},
    interfaces::Uplinks,
    links::Link,
};

/// All interfaces are listed to find out what stands on what, so this is not done for each that comes.
const TELL_AT_MOST_EVERY: Duration = Duration::from_secs(10);

/// The pairs of watched interfaces that count the same packets, because patterns choose both.
#[derive(Default)]
pub(super) struct Stacks {
    /// Those that are known, upper one first.
    known: BTreeSet<[u32; 2]>,
    /// Tunnels of which it is known that they may count packets of other watched interfaces.
    known_tunnels: BTreeSet<u32>,
    /// The interfaces of the start, whose pairs were told of then.
    of_start: BTreeSet<u32>,
    have_changed: bool,
    told: Option<Instant>,
}

impl Stacks {
    pub(super) fn after_start(of_start: BTreeSet<u32>) -> Self {
        Self {
            of_start,
            ..Self::default()
        }
    }

    /// An interface came, or another one is its master.
    pub(super) fn have_changed(&mut self) {
        self.have_changed = true;
    }

    /// When to look at all of them.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.have_changed.then(|| {
            let since = self.told.map(|told| told.elapsed());
            since.map_or(Duration::ZERO, |since| {
                TELL_AT_MOST_EVERY.saturating_sub(since)
            })
        })
    }
}

impl Watcher {
    /// Where default routes lead, given the links that are here and those that are watched.
    pub(super) fn uplinks(&self, links: &[Link]) -> Uplinks {
        Uplinks::new(links, &self.selection, &self.routed, &self.watched())
    }

    pub(super) fn watched(&self) -> BTreeSet<u32> {
        self.slots.ifindexes().into_iter().collect()
    }

    /// Looks at these and at all that carry a default route, since what they stand on may have changed. Routes
    /// change seldom, so all interfaces are listed.
    pub(super) fn look_at_carriers(&mut self, ifindexes: &BTreeSet<u32>) -> Result<()> {
        if ifindexes.is_empty() {
            return Ok(());
        }
        let links = self.links.links()?;
        for ifindex in ifindexes {
            if !links.iter().any(|link| link.ifindex == *ifindex) {
                self.forget(*ifindex);
            }
        }
        let uplinks = self.uplinks(&links);
        let mut outcome = Ok(());
        for link in &links {
            if self.stop.load(Relaxed) {
                return Ok(());
            }
            if ifindexes.contains(&link.ifindex) || self.routed.contains(&link.ifindex) {
                outcome = self.leave_if_replaced(link).and(outcome);
                outcome = self.consider(link, &uplinks).and(outcome);
            }
        }
        self.leave_uppers(&links);
        outcome
    }

    /// Leaves those whose packets are counted under them, where another default route leads.
    pub(super) fn leave_uppers(&mut self, links: &[Link]) {
        if !self.selection.follows_default_routes() {
            return;
        }
        let devices = Devices::new(links);
        for pair in devices.twice(&self.watched()) {
            let stands_on = |upper, lower| devices.stands_on(upper, lower);
            if !stands_on(pair.upper, pair.lower) || stands_on(pair.lower, pair.upper) {
                // The ends of a cable, or tunnels in a circle.
                continue;
            }
            self.give_up(pair.upper.ifindex);
            tracing::info!(
                interface = pair.upper.name,
                lower = pair.lower.name,
                "not counted any more: its packets are counted at an interface under it, over which a \
                 default route leads, too"
            );
        }
    }

    /// Tells, once in a while, of packets that are counted twice, each pair once.
    pub(super) fn tell_of_stacks(&mut self) -> Result<()> {
        if self.stacks.due_in() != Some(Duration::ZERO) {
            return Ok(());
        }
        let links = self.links.links()?;
        self.stacks.have_changed = false;
        self.stacks.told = Some(Instant::now());
        let devices = Devices::new(&links);
        let of_start = std::mem::take(&mut self.stacks.of_start);
        self.tell_of_tunnels(&devices, &of_start);
        if self.selection.follows_default_routes() {
            // The upper one of two is left; see `leave_uppers`.
            return Ok(());
        }
        let of_start = devices.twice(&of_start);
        self.stacks.known.extend(of_start.iter().map(ifindexes));
        let twice = devices.twice(&self.watched());
        let now = twice.iter().map(ifindexes).collect();
        let known = std::mem::replace(&mut self.stacks.known, now);
        for pair in &twice {
            if known.contains(&ifindexes(pair)) {
                continue;
            }
            if let Some(pairs) = self.log.twice.event() {
                tracing::warn!(
                    interface = pair.upper.name,
                    lower = pair.lower.name,
                    pairs,
                    "packets are counted twice: {pair}; {}",
                    pair.remedy()
                );
            }
        }
        Ok(())
    }

    /// Tells of tunnels whose packets may pass another watched interface, each once.
    fn tell_of_tunnels(&mut self, devices: &Devices, of_start: &BTreeSet<u32>) {
        let of_start = devices.may_be_twice(of_start);
        let of_start = of_start.iter().map(|it| it.tunnel.ifindex);
        self.stacks.known_tunnels.extend(of_start);
        let tunnels = devices.may_be_twice(&self.watched());
        let now = tunnels.iter().map(|it| it.tunnel.ifindex).collect();
        let known = std::mem::replace(&mut self.stacks.known_tunnels, now);
        for it in &tunnels {
            if !known.contains(&it.tunnel.ifindex)
                && let Some(tunnels) = self.log.tunnels.event()
            {
                tracing::warn!(
                    interface = it.tunnel.name,
                    tunnels,
                    "packets may be counted twice: {it}; {}",
                    it.remedy()
                );
            }
        }
    }
}

fn ifindexes(pair: &Twice) -> [u32; 2] {
    [pair.upper.ifindex, pair.lower.ifindex]
}
