//! Finds interfaces that appear above or below others, so that a packet passes both.

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

/// Listing all interfaces shows which stands on which. This limits how often they are listed.
const TELL_AT_MOST_EVERY: Duration = Duration::from_secs(10);

/// The pairs of watched interfaces that count the same packets, because patterns choose both.
#[derive(Default)]
pub(super) struct Stacks {
    /// Pairs that were already reported, upper link first.
    known: BTreeSet<[u32; 2]>,
    /// Tunnels that were already reported because they may count packets of other watched interfaces.
    known_tunnels: BTreeSet<u32>,
    /// The interfaces of the start, whose pairs were reported then.
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

    /// An interface appeared, or has another master.
    pub(super) fn have_changed(&mut self) {
        self.have_changed = true;
    }

    /// How long until all of them are due for a look.
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
    /// Where default routes lead, given the existing and the watched links.
    pub(super) fn uplinks(&self, links: &[Link]) -> Uplinks {
        Uplinks::new(links, &self.selection, &self.routed, &self.watched())
    }

    pub(super) fn watched(&self) -> BTreeSet<u32> {
        self.slots.ifindexes().into_iter().collect()
    }

    /// Looks at these interfaces and at all with a default route, since the links under those may have changed. Routes
    /// rarely change, so listing all interfaces is affordable.
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

    /// Gives up interfaces whose packets are also counted at a lower interface that carries a default route.
    pub(super) fn leave_uppers(&mut self, links: &[Link]) {
        if !self.selection.follows_default_routes() {
            return;
        }
        let devices = Devices::new(links);
        for pair in devices.twice(&self.watched()) {
            let stands_on = |upper, lower| devices.stands_on(upper, lower);
            if !stands_on(pair.upper, pair.lower) || stands_on(pair.lower, pair.upper) {
                // The two ends of a cable, or tunnels that stand on each other in a circle.
                continue;
            }
            self.give_up(pair.upper.ifindex);
            tracing::info!(
                interface = pair.upper.name,
                lower = pair.lower.name,
                "no longer counted: its packets are counted at a lower interface that also carries a default route"
            );
        }
    }

    /// Warns of pairs that count the same packets, each pair once. Does so at most every `TELL_AT_MOST_EVERY`.
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
            // `leave_uppers` gives up the upper interface of a pair.
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

    /// Warns of tunnels whose packets may pass another watched interface, each tunnel once.
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
