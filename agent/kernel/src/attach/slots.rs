//! Which interface has which slot, the links of its hooks, and the changes that scans have yet to hear of.
//!
//! A slot passes from one interface to the next. When an interface leaves, its slot becomes free after a scan that
//! began later, since that scan drains everything that was counted there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agent_common::InterfaceId;
use rules::link_names::LinkNames;
use tokio::sync::Notify;

use super::{Hook, held::HeldLink};
use crate::links::Counters;

/// A hook, with its interface's own counters before and after attachment.
#[derive(Clone, Debug)]
pub struct AttachedHook {
    pub hook: Hook,
    pub before_attach: Counters,
    /// `None` until the hook is attached. It may count before that.
    pub after_attach: Option<Counters>,
}

/// An interface that is no longer counted, and that no program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub slot: u32,
    pub id: InterfaceId,
    pub why: Why,
}

/// Why an interface is no longer counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It left this network namespace.
    Gone,
    /// It is no longer selected.
    Deselected,
    /// Its programs were removed or could not be attached, or its packets are counted at another interface.
    GivenUp,
}

impl Left {
    fn is(&self, slot: u32, id: InterfaceId) -> bool {
        (self.slot, self.id) == (slot, id)
    }
}

/// The answer to an interface that wants a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Slot(u32),
    /// An interface with this index has left, and a scan has to drain it first.
    Draining,
    /// All slots are taken, some by interfaces that have left or are being detached. A scan is requested when it can
    /// free one.
    NoneYet,
    /// All slots are taken.
    NoneFree,
}

/// Clones share the same slots. Indexes belong to one network namespace; see [`Slots::in_netns`].
#[derive(Clone)]
pub struct Slots {
    state: Arc<Mutex<State>>,
    scan_wanted: Arc<Notify>,
    netns: u32,
}

struct State {
    watched: BTreeMap<InterfaceId, Watched>,
    left: Vec<Left>,
    free: BTreeSet<u32>,
    /// An interface found no slot since a scan last freed some.
    is_waited_for: bool,
    /// At most two entries per hook.
    progress: Vec<AttachedHook>,
}

struct Watched {
    slot: u32,
    names: LinkNames,
    links: Vec<Arc<HeldLink>>,
    is_deselected: bool,
}

impl Slots {
    /// Slots for `count` interfaces, seen from this network namespace.
    pub fn new(count: u32, netns: u32) -> Self {
        let state = State {
            watched: BTreeMap::new(),
            left: Vec::new(),
            free: (0..count).collect(),
            is_waited_for: false,
            progress: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            scan_wanted: Arc::default(),
            netns,
        }
    }

    /// The same slots, for the interfaces of another network namespace.
    #[must_use]
    pub fn in_netns(&self, netns: u32) -> Self {
        Self {
            netns,
            ..self.clone()
        }
    }

    /// Notified when a scan should drain interfaces that have left because others wait for their slots.
    pub fn scan_wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.scan_wanted)
    }

    pub(super) fn id(&self, ifindex: u32) -> InterfaceId {
        let netns = self.netns;
        InterfaceId { netns, ifindex }
    }

    /// Gives the lowest free slot to an interface that has none.
    pub(super) fn take(&self, ifindex: u32, names: impl Into<LinkNames>) -> Place {
        let id = self.id(ifindex);
        let mut state = self.state();
        if state.left.iter().any(|left| left.id == id) {
            self.scan_wanted.notify_one();
            return Place::Draining;
        }
        let Some(slot) = state.free.pop_first() else {
            state.is_waited_for = true;
            if !state.left.is_empty() {
                self.scan_wanted.notify_one();
                return Place::NoneYet;
            }
            let mut watched = state.watched.values();
            return if watched.any(|watched| watched.is_deselected) {
                Place::NoneYet
            } else {
                Place::NoneFree
            };
        };
        let watched = Watched {
            slot,
            names: names.into(),
            links: Vec::new(),
            is_deselected: false,
        };
        state.watched.insert(id, watched);
        Place::Slot(slot)
    }

    /// Keeps a link. Returns it if the interface has left meanwhile.
    pub(super) fn hold(&self, ifindex: u32, link: HeldLink) -> Option<HeldLink> {
        match self.state().watched.get_mut(&self.id(ifindex)) {
            Some(watched) => {
                watched.links.push(Arc::new(link));
                None
            }
            None => Some(link),
        }
    }

    /// Ends an interface that has left and returns its links. The programs must no longer know it. `None` if it is not
    /// watched.
    pub(super) fn leave(&self, ifindex: u32) -> Option<Vec<Arc<HeldLink>>> {
        self.end(ifindex, Why::Gone)
    }

    /// Ends an interface that is still here and returns its links.
    pub(super) fn give_up(&self, ifindex: u32) -> Option<Vec<Arc<HeldLink>>> {
        self.end(ifindex, Why::GivenUp)
    }

    fn end(&self, ifindex: u32, why: Why) -> Option<Vec<Arc<HeldLink>>> {
        let id = self.id(ifindex);
        let mut state = self.state();
        let watched = state.watched.remove(&id)?;
        let why = if watched.is_deselected {
            Why::Deselected
        } else {
            why
        };
        state.left.push(Left {
            slot: watched.slot,
            id,
            why,
        });
        if state.is_waited_for {
            self.scan_wanted.notify_one();
        }
        Some(watched.links)
    }

    /// Marks a watched interface as no longer selected. Returns whether it was not marked before.
    pub(super) fn deselect(&self, ifindex: u32) -> bool {
        let mut state = self.state();
        let watched = state.watched.get_mut(&self.id(ifindex));
        watched.is_some_and(|watched| !std::mem::replace(&mut watched.is_deselected, true))
    }

    /// Takes the links of an interface that is marked as no longer selected.
    pub(super) fn take_deselected(&self, ifindex: u32) -> Vec<Arc<HeldLink>> {
        let mut state = self.state();
        match state.watched.get_mut(&self.id(ifindex)) {
            Some(watched) if watched.is_deselected => std::mem::take(&mut watched.links),
            _ => Vec::new(),
        }
    }

    pub(super) fn is_deselected(&self, ifindex: u32) -> bool {
        let state = self.state();
        let watched = state.watched.get(&self.id(ifindex));
        watched.is_some_and(|watched| watched.is_deselected)
    }

    pub(super) fn left(&self) -> Vec<Left> {
        self.state().left.clone()
    }

    /// Frees the slots of interfaces that had left before a scan that has finished.
    pub(super) fn settle(&self, drained: &[Left]) {
        let mut state = self.state();
        state.left.retain(|left| !drained.contains(left));
        // Progress that was reported too late for the scan.
        state.progress.retain(|told| {
            let (slot, id) = (told.hook.slot() as u32, told.hook.id);
            !drained.iter().any(|left| left.is(slot, id))
        });
        state.free.extend(drained.iter().map(|left| left.slot));
        // Interfaces that wait for a slot are tried again after each scan.
        state.is_waited_for = false;
    }

    pub(super) fn slot_of(&self, ifindex: u32) -> Option<u32> {
        self.state()
            .watched
            .get(&self.id(ifindex))
            .map(|watched| watched.slot)
    }

    pub(super) fn is_named(&self, ifindex: u32, names: &LinkNames) -> bool {
        let state = self.state();
        let watched = state.watched.get(&self.id(ifindex));
        watched.is_some_and(|watched| watched.names == *names)
    }

    /// The names of all watched interfaces, in every network namespace.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let state = self.state();
        let watched = state.watched.values();
        let names = watched.flat_map(|watched| watched.names.all());
        names.map(str::to_owned).collect()
    }

    pub(super) fn rename(&self, ifindex: u32, names: LinkNames) {
        if let Some(watched) = self.state().watched.get_mut(&self.id(ifindex)) {
            watched.names = names;
        }
    }

    pub(super) fn ifindexes(&self) -> Vec<u32> {
        let state = self.state();
        let here = state.watched.keys().filter(|id| id.netns == self.netns);
        here.map(|id| id.ifindex).collect()
    }

    /// Reports a hook to the next scan, unless the scans are done with its interface.
    pub(super) fn tell(&self, hook: AttachedHook) {
        let (slot, id) = (hook.hook.slot() as u32, hook.hook.id);
        let mut state = self.state();
        let is_watched = state
            .watched
            .get(&id)
            .is_some_and(|watched| watched.slot == slot);
        if is_watched || state.left.iter().any(|left| left.is(slot, id)) {
            state.progress.push(hook);
        }
    }

    /// Changes of hooks since the last call, in order.
    pub(super) fn progress(&self) -> Vec<AttachedHook> {
        std::mem::take(&mut self.state().progress)
    }

    pub(super) fn links(&self) -> usize {
        let state = self.state();
        state
            .watched
            .values()
            .map(|watched| watched.links.len())
            .sum()
    }

    /// Whether a successor would find every link.
    pub(super) fn are_all_stored(&self) -> bool {
        let state = self.state();
        let mut links = state.watched.values().flat_map(|watched| &watched.links);
        links.all(|link| link.is_stored())
    }

    pub(super) fn take_links(&self) -> Vec<Arc<HeldLink>> {
        let mut state = self.state();
        let links = state.watched.values_mut();
        links
            .flat_map(|watched| std::mem::take(&mut watched.links))
            .collect()
    }

    /// Whether a hook is attached by TCX.
    pub(super) fn has_tcx(&self) -> bool {
        let state = self.state();
        let mut links = state.watched.values().flat_map(|watched| &watched.links);
        links.any(|link| !link.is_exclusive())
    }

    /// The links of an interface, to look at. If it leaves meanwhile, the last one to drop them closes them.
    pub(super) fn links_of(&self, ifindex: u32) -> Vec<Arc<HeldLink>> {
        let state = self.state();
        let watched = state.watched.get(&self.id(ifindex));
        watched.map_or_else(Vec::new, |watched| watched.links.clone())
    }

    /// Takes the links of an interface that is still watched.
    pub(super) fn take_links_of(&self, ifindex: u32) -> Vec<Arc<HeldLink>> {
        let mut state = self.state();
        let watched = state.watched.get_mut(&self.id(ifindex));
        watched.map_or_else(Vec::new, |watched| std::mem::take(&mut watched.links))
    }

    /// Locked only for short changes in memory, never while a link is dropped.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use agent_common::{Direction, direction::hook_number};
    use futures_util::FutureExt as _;

    use super::{super::Mode, *};
    use crate::bpf::LinkPlace;

    fn hook(ifindex: u32, slot: u32) -> AttachedHook {
        AttachedHook {
            hook: Hook {
                interface: String::new(),
                id: InterfaceId { netns: 1, ifindex },
                is_bare_ip: false,
                is_loopback: false,
                is_vrf: false,
                number: hook_number(slot, 0),
                direction: Direction::Ingress,
                mode: Mode::Tcx,
                instead_of_xdp: None,
                tag_place: None,
                tags_unknown: false,
            },
            before_attach: Counters::default(),
            after_attach: None,
        }
    }

    #[test]
    fn a_slot_is_given_again_only_when_its_last_interface_is_drained() {
        let slots = Slots::new(2, 1);
        assert_eq!(slots.take(7, "a"), Place::Slot(0));
        assert_eq!(slots.take(8, "b"), Place::Slot(1));
        assert_eq!(slots.take(9, "c"), Place::NoneFree);
        assert!(slots.leave(7).unwrap().is_empty());
        assert!(slots.leave(7).is_none());
        assert_eq!(slots.take(9, "c"), Place::NoneYet);
        assert_eq!(slots.take(7, "a"), Place::Draining);

        let left = slots.left();
        assert_eq!(
            left,
            [Left {
                slot: 0,
                id: slots.id(7),
                why: Why::Gone,
            }]
        );
        // An interface that leaves during a scan waits for the next one.
        slots.leave(8).unwrap();
        slots.settle(&left);
        assert_eq!(slots.left().len(), 1);
        assert_eq!(slots.take(7, "a"), Place::Slot(0));
        assert_eq!(slots.take(8, "b"), Place::Draining);
    }

    #[test]
    fn whoever_waits_for_a_slot_asks_for_a_scan_when_one_can_be_freed() {
        let slots = Slots::new(2, 1);
        let is_scan_wanted = || {
            let wanted = slots.scan_wanted.notified();
            wanted.now_or_never().is_some()
        };
        slots.take(7, "a");
        slots.in_netns(2).take(7, "b");
        // Nobody waits.
        slots.leave(7);
        assert!(!is_scan_wanted());
        slots.settle(&slots.left());
        slots.take(7, "a");

        assert_eq!(slots.take(9, "c"), Place::NoneFree);
        assert!(!is_scan_wanted());
        assert!(slots.deselect(7));
        assert_eq!(slots.take(9, "c"), Place::NoneYet);
        // The waiting interface and the deselected one may be in different namespaces.
        assert_eq!(slots.in_netns(2).take(9, "d"), Place::NoneYet);
        assert!(!is_scan_wanted(), "it would free nothing");
        slots.leave(7);
        assert!(is_scan_wanted());
        slots.settle(&slots.left());
        assert!(matches!(slots.take(9, "c"), Place::Slot(_)));
        slots.leave(9);
        assert!(!is_scan_wanted());
    }

    #[test]
    fn one_index_in_two_network_namespaces_is_two_interfaces() {
        let here = Slots::new(2, 1);
        let there = here.in_netns(2);
        assert_eq!(here.take(7, "a"), Place::Slot(0));
        assert_eq!(there.slot_of(7), None);
        assert_eq!(there.take(7, "b"), Place::Slot(1));
        assert_eq!((here.slot_of(7), there.slot_of(7)), (Some(0), Some(1)));
        assert!(here.is_named(7, &"a".into()) && there.is_named(7, &"b".into()));
        assert!(here.leave(7).is_some());
        assert_eq!((here.ifindexes(), there.ifindexes()), (vec![], vec![7]));
        assert_eq!(here.take(7, "a"), Place::Draining);
        there.settle(&there.left());
        assert_eq!(here.take(7, "a"), Place::Slot(0));
        assert_eq!(there.take(8, "c"), Place::NoneFree);
    }

    #[test]
    fn nobody_hears_of_a_hook_whose_interface_is_drained() {
        let slots = Slots::new(2, 1);
        slots.take(7, "a");
        slots.tell(hook(7, 0));
        slots.leave(7);
        slots.tell(hook(7, 0));
        assert_eq!(slots.progress().len(), 2);
        slots.tell(hook(7, 0));
        slots.settle(&slots.left());
        slots.tell(hook(7, 0));
        slots.take(9, "c");
        slots.tell(hook(7, 0));
        assert!(slots.progress().is_empty());
    }

    #[test]
    fn a_link_whose_interface_has_left_comes_back() {
        let slots = Slots::new(1, 1);
        let link = || {
            let fd = std::fs::File::open("/dev/null").unwrap();
            HeldLink::new(fd.into(), LinkPlace::TcxFirst(Direction::Ingress), None)
        };
        slots.take(7, "a");
        assert!(slots.hold(7, link()).is_none());
        assert_eq!(slots.links(), 1);
        assert_eq!(slots.leave(7).unwrap().len(), 1);
        assert!(slots.hold(7, link()).is_some());
        assert_eq!(slots.links(), 0);
    }
}
