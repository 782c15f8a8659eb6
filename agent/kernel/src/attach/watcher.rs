//! Gives slots to interfaces and attaches their hooks, on its own thread: first the interfaces selected at the start,
//! then each one that appears later and is selected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use rules::link_names::LinkNames;
use sys::log_limit::LogLimit;

use super::{
    attacher::Attacher,
    closer::Closer,
    clsact::StaleFilters,
    noted::{Changes, Noted},
    pending::{NotCounted, Pending, Waiting},
    slots::Slots,
    stacks::Stacks,
};
use crate::{
    interface_table::InterfaceTable,
    interfaces::{Selection, Uplinks},
    links::{Link, LinkSocket, netlink::errno},
};

/// Pause before a failed attempt is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often the log reports progress.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// With more interfaces than this, a start by TCX takes several seconds (`tcx_entry_sync`: some 16 ms per hook on
/// 6.18).
const MANY_INTERFACES: usize = 200;

/// Gives the filter rules the names of the interface in a slot. Returns once the rules use them.
pub type NameInterface = Arc<dyn Fn(u32, &LinkNames) -> Result<()> + Send + Sync>;

pub(super) struct Watcher {
    pub attacher: Attacher,
    pub slots: Slots,
    pub table: InterfaceTable,
    pub changes: Changes,
    pub closer: Closer,
    pub selection: Selection,
    pub links: LinkSocket,
    pub name_interface: NameInterface,
    pub stop: Arc<AtomicBool>,
    /// [`PROGRESS_INTERVAL`], or less in a test.
    pub progress_interval: Duration,
    /// A copy of `pending`, for the status.
    pub not_counted: Arc<Mutex<NotCounted>>,
    pub log: WatcherLog,
    /// Selected interfaces without hooks, by index.
    pub pending: BTreeMap<u32, Waiting>,
    /// Interfaces have left, or were given up, since refused interfaces were last tried.
    pub have_left: bool,
    /// Interfaces that are being given up because they are no longer selected.
    pub deselected: BTreeSet<u32>,
    /// The number of a selection that is not yet in force.
    pub reselected: Option<u64>,
    /// Interfaces with a default route, if default routes select.
    pub routed: BTreeSet<u32>,
    /// How many network namespaces the agent watches.
    pub namespaces: usize,
    pub stacks: Stacks,
}

#[derive(Default)]
pub(super) struct WatcherLog {
    pub came: LogLimit,
    deselected: LogLimit,
    pub full: LogLimit,
    pub refused: LogLimit,
    pub removed: LogLimit,
    failed: LogLimit,
    pub twice: LogLimit,
    pub tunnels: LogLimit,
    /// The log has already recommended clsact.
    advised: bool,
}

/// What to look at next.
#[derive(Default)]
pub(super) struct Look {
    pub at: BTreeSet<u32>,
    pub at_everything: bool,
    pub is_reselected: bool,
}

impl Look {
    fn is_due(&self) -> bool {
        !self.at.is_empty() || self.at_everything
    }
}

impl Watcher {
    /// Attaches the hooks of the interfaces that have slots, and removes the filters of killed agents. Returns early at
    /// the first hook that fails, or when asked to stop. Skips an interface that is gone.
    pub(super) fn start(&mut self, links: &[Link]) -> Result<()> {
        match StaleFilters::find() {
            Ok(filters) => self.attacher.takeover.filters = filters,
            Err(error) => tracing::warn!("cannot look for filters of killed agents: {error:#}"),
        }
        links.clone_into(&mut self.attacher.first);
        let outcome = self.attach_first(links);
        self.attacher.first.clear();
        // Otherwise a successor takes them over, as it does with links.
        if outcome.is_ok() && !self.stop.load(Relaxed) {
            self.attacher.takeover.filters.remove_rest();
        }
        outcome
    }

    fn attach_first(&mut self, links: &[Link]) -> Result<()> {
        let mut told = Instant::now();
        let mut attached = 0;
        for link in links {
            if self.stop.load(Relaxed) {
                return Ok(());
            }
            // An interface that has left has lost its slot.
            let slot = self.slots.slot_of(link.ifindex);
            let outcome = slot.map(|slot| self.attacher.interface(link, slot));
            match outcome {
                Some(Ok(())) => attached += 1,
                Some(Err(error)) if errno(&error) == Some(libc::ENODEV) => {
                    tracing::warn!(
                        interface = link.name,
                        "the interface left before it was attached to: {error:#}"
                    );
                    self.give_up(link.ifindex);
                }
                Some(Err(error)) => return Err(error),
                None => tracing::warn!(
                    interface = link.name,
                    "the interface left before it was attached to"
                ),
            }
            if told.elapsed() >= self.progress_interval {
                told = Instant::now();
                self.tell_progress(attached, links.len());
            }
        }
        if attached == 0 && !links.is_empty() && !self.selection.may_wait() {
            bail!("no interface is left to attach to");
        }
        self.attacher.lines.are_limited = true;
        Ok(())
    }

    pub(super) fn tell_progress(&mut self, attached: usize, interfaces: usize) {
        if !self.log.advised && interfaces > MANY_INTERFACES && self.slots.has_tcx() {
            self.log.advised = true;
            tracing::info!(
                attached,
                interfaces,
                "attaching; with TCX the kernel takes a grace period for each hook: --tc-attach clsact is faster"
            );
        } else {
            tracing::info!(attached, interfaces, "attaching");
        }
    }

    /// Attaches to interfaces that appear, until asked to stop. Repeats failed attempts.
    pub(super) fn follow(&mut self) {
        self.stacks = Stacks::after_start(self.watched());
        // Interfaces may have appeared before the first notification.
        let mut look = Look {
            at_everything: true,
            ..Look::default()
        };
        loop {
            if let Err(error) = self.look(&look) {
                if self.log.failed.event().is_some() {
                    tracing::error!("cannot look for new interfaces, retrying: {error:#}");
                }
            } else {
                look = Look::default();
                self.tell_if_in_force();
            }
            let retry = look.is_due().then_some(RETRY_INTERVAL);
            self.tell_of_rest();
            let log = &self.log;
            let rest = [&log.full, &log.refused, &log.came].map(LogLimit::rest_due_in);
            let to_tell = rest.into_iter().chain([self.stacks.due_in()]);
            let patience = retry.or_else(|| to_tell.flatten().min());
            let noted = self.changes.take(patience);
            if noted.must_stop {
                return;
            }
            self.note(noted, &mut look);
        }
    }

    fn note(&mut self, noted: Noted, look: &mut Look) {
        for &ifindex in &noted.left {
            self.forget(ifindex);
        }
        let is_uncounted = |ifindex: &u32| self.slots.slot_of(*ifindex).is_none();
        if !noted.left.is_empty()
            && self.selection.follows_default_routes()
            && self.routed.iter().any(is_uncounted)
        {
            // Uplinks that stood on the interface that left may have to be counted in its place.
            look.at.extend(&self.routed);
        }
        if let Some((number, selection)) = noted.selection {
            tracing::info!("interfaces are selected anew");
            self.selection = selection;
            self.reselected = Some(number);
            self.pending.clear();
            (look.at_everything, look.is_reselected) = (true, true);
        }
        for ifindex in &noted.given_up {
            self.deselected.remove(ifindex);
        }
        self.have_left |= !noted.left.is_empty() || !noted.given_up.is_empty();
        if noted.has_drained {
            // A refused interface drains its own slot, too. Without this check it would be tried at every scan.
            let tries_refused = std::mem::take(&mut self.have_left);
            for (&ifindex, one) in &self.pending {
                if tries_refused || one.why != Pending::Refused {
                    look.at.insert(ifindex);
                }
            }
        }
        self.routed.extend(&noted.routed);
        look.at.extend(noted.routed);
        look.at.extend(noted.interfaces);
        look.at.extend(noted.given_up);
        look.at_everything |= noted.everything;
    }

    /// Reports that a selection is in force once all interfaces were looked at, deselected ones are given up, and no
    /// interface waits for the slot of one of them.
    fn tell_if_in_force(&mut self) {
        let waits = |one: &Waiting| one.why == Pending::Drain;
        if self.deselected.is_empty()
            && !self.pending.values().any(waits)
            && let Some(number) = self.reselected.take()
        {
            self.changes.is_in_force(number);
        }
    }

    pub(super) fn look(&mut self, look: &Look) -> Result<()> {
        if look.is_reselected {
            self.deselect()?;
        }
        let outcome = if look.at_everything {
            self.look_at_everything()
        } else if self.selection.follows_default_routes() {
            self.look_at_carriers(&look.at)
        } else {
            self.look_at(&look.at)
        };
        let outcome = self.tell_of_stacks().and(outcome);
        self.tell_of_pending();
        outcome
    }

    /// Starts to detach from interfaces that are no longer selected. Does not wait for the detaching.
    fn deselect(&mut self) -> Result<()> {
        if self.selection.follows_default_routes() {
            self.routed = self.links.default_route_ifindexes()?;
        }
        let links = self.links.links()?;
        let uplinks = Uplinks::new(&links, &self.selection, &self.routed, &BTreeSet::new());
        for link in links {
            if self.stop.load(Relaxed) {
                return Ok(());
            }
            let is_watched = self.slots.slot_of(link.ifindex).is_some();
            if is_watched && !self.selection.takes(&link, &uplinks) {
                self.deselect_one(&link)?;
            }
        }
        Ok(())
    }

    fn deselect_one(&mut self, link: &Link) -> Result<()> {
        if self.slots.is_deselected(link.ifindex) {
            return Ok(());
        }
        self.give_up_soon(link.ifindex)?;
        if let Some(interfaces) = self.log.deselected.event() {
            tracing::info!(
                interface = link.name,
                interfaces,
                "not selected any more: detaching"
            );
        }
        Ok(())
    }

    fn look_at_everything(&mut self) -> Result<()> {
        if self.selection.follows_default_routes() {
            self.routed = self.links.default_route_ifindexes()?;
        }
        let links = self.links.links()?;
        let here: BTreeSet<u32> = links.iter().map(|link| link.ifindex).collect();
        self.pending.retain(|ifindex, _| here.contains(ifindex));
        self.routed.retain(|ifindex| here.contains(ifindex));
        if let Some(clsact) = &mut self.attacher.clsact {
            clsact.keep(&here);
        }
        let uplinks = self.uplinks(&links);
        // A failing interface must not keep the others waiting.
        let mut outcome = Ok(());
        for link in &links {
            if self.stop.load(Relaxed) {
                return Ok(());
            }
            outcome = self.leave_if_replaced(link).and(outcome);
            outcome = self.consider(link, &uplinks).and(outcome);
        }
        self.leave_uppers(&links);
        outcome
    }

    /// Asks the kernel for these interfaces only, since there may be thousands.
    fn look_at(&mut self, ifindexes: &BTreeSet<u32>) -> Result<()> {
        let mut outcome = Ok(());
        for &ifindex in ifindexes {
            if self.stop.load(Relaxed) {
                return Ok(());
            }
            let considered = match self.links.link(ifindex) {
                Ok(link) => {
                    let left = self.leave_if_replaced(&link);
                    self.consider(&link, &Uplinks::default()).and(left)
                }
                Err(error) if errno(&error) == Some(libc::ENODEV) => {
                    self.forget(ifindex);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            outcome = considered.and(outcome);
        }
        outcome
    }

    pub(super) fn consider(&mut self, link: &Link, uplinks: &Uplinks) -> Result<()> {
        if let Some(slot) = self.slots.slot_of(link.ifindex) {
            self.stacks.have_changed();
            let names = link.names();
            if !self.slots.is_named(link.ifindex, &names) {
                (self.name_interface)(slot, &names)?;
                self.slots.rename(link.ifindex, names);
            }
            if self.selection.excluding(link).is_some() {
                return self.deselect_one(link);
            }
            return Ok(());
        }
        let has_hooks = self.attacher.settings.has_hooks(link);
        if !has_hooks || !self.selection.takes(link, uplinks) {
            self.pending.remove(&link.ifindex);
            return Ok(());
        }
        match self.watch(link) {
            Ok(None) => {
                self.pending.remove(&link.ifindex);
                self.stacks.have_changed();
                if let Some(interfaces) = self.log.came.event() {
                    tracing::info!(
                        interface = link.name,
                        interfaces,
                        "counting on an interface that came"
                    );
                }
            }
            Ok(Some(why)) => {
                self.wait(link, why, String::new());
            }
            Err(error) if errno(&error) == Some(libc::ENODEV) => self.give_up(link.ifindex),
            Err(error) => {
                self.give_up(link.ifindex);
                let before = self.wait(link, Pending::Refused, format!("{error:#}"));
                if before != Some(Pending::Refused)
                    && let Some(interfaces) = self.log.refused.event()
                {
                    tracing::warn!(
                        interface = link.name,
                        interfaces,
                        "not counted, and tried again when it is set up anew or another one leaves: {error:#}"
                    );
                }
            }
        }
        Ok(())
    }
}
