//! The selected interfaces that are not counted, each with its reason, and the selected names that no interface has.
//! Both are shown in the status.

use std::{collections::BTreeSet, sync::PoisonError};

use agent_common::InterfaceId;
use rules::link_names::LinkNames;

use super::watcher::Watcher;
use crate::{interfaces::Selection, links::Link};

/// Why a selected interface is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// It waits for a scan to drain an interface that has left or is leaving.
    Drain,
    NoSlot,
    /// A hook cannot be attached, or the programs cannot read this link type.
    Refused,
}

impl Pending {
    /// The name of the reason in machine-readable output.
    fn word(self) -> &'static str {
        match self {
            Self::Drain => "draining",
            Self::NoSlot => "no_place",
            Self::Refused => "refused",
        }
    }
}

/// A selected interface without hooks.
pub(super) struct Waiting {
    pub names: LinkNames,
    pub why: Pending,
    /// The kernel's error, if a hook was refused.
    pub detail: String,
}

/// Selected interfaces that are not counted.
#[derive(Clone, Debug, Default)]
pub struct NotCounted {
    pub interfaces: usize,
    /// The first of them, by index.
    pub first: Vec<Uncounted>,
    /// The names of all of them.
    names: BTreeSet<String>,
}

/// Selected names that no interface has.
#[derive(Clone, Debug, Default)]
pub struct Absent {
    pub names: usize,
    /// The first of them.
    pub first: Vec<String>,
}

/// A selected interface that is not counted.
#[derive(Clone, Debug)]
pub struct Uncounted {
    pub id: InterfaceId,
    pub name: String,
    pub reason: &'static str,
    /// An explanation for people; may be empty.
    pub detail: String,
}

impl NotCounted {
    /// How many are listed by name.
    const NAMED: usize = 20;

    /// Adds the interfaces of another network namespace.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.interfaces += other.interfaces;
        self.first.extend(other.first);
        self.first.truncate(Self::NAMED);
        self.names.extend(other.names);
        self
    }

    /// The names in this selection that belong neither to one of these interfaces nor to a watched one.
    pub(super) fn absent(&self, selection: &Selection, watched: &BTreeSet<String>) -> Absent {
        let is_here = |name: &str| {
            // lo exists in every network namespace, and has no hook if only egress is counted.
            name == "lo" || watched.contains(name) || self.names.contains(name)
        };
        let mut names = selection.exact_names();
        names.retain(|name| !is_here(name));
        let first = names.iter().take(Self::NAMED);
        Absent {
            names: names.len(),
            first: first.map(ToString::to_string).collect(),
        }
    }
}

impl Watcher {
    /// Records a selected interface that is not counted. Returns the reason recorded before, if any.
    pub(super) fn wait(&mut self, link: &Link, why: Pending, detail: String) -> Option<Pending> {
        let names = link.names();
        let waiting = Waiting { names, why, detail };
        let before = self.pending.insert(link.ifindex, waiting);
        before.map(|before| before.why)
    }

    /// Logs the lines that are due and that no further event would trigger. Every attempt was an event, so the
    /// interfaces that are still not counted are counted here.
    pub(super) fn tell_of_rest(&mut self) {
        if let Some(interfaces) = self.log.came.rest() {
            tracing::info!(interfaces, "counting on interfaces that came");
        }
        let pending = |why| self.pending.values().filter(|one| one.why == why).count();
        let (full, refused) = (pending(Pending::NoSlot), pending(Pending::Refused));
        if self.log.full.rest().is_some() && full > 0 {
            tracing::warn!(
                interfaces = full,
                "not counted, since --max-interfaces are watched already: `flow-agent status` names them"
            );
        }
        if self.log.refused.rest().is_some() && refused > 0 {
            tracing::warn!(
                interfaces = refused,
                "not counted, since a program cannot be attached: `flow-agent status` names them and says why"
            );
        }
    }

    pub(super) fn tell_of_pending(&self) {
        let first = self.pending.iter().take(NotCounted::NAMED);
        let first = first.map(|(&ifindex, one)| Uncounted {
            id: self.slots.id(ifindex),
            name: one.names.name.clone(),
            reason: one.why.word(),
            detail: one.detail.clone(),
        });
        let exact = self.selection.exact_names();
        let names = self.pending.values().flat_map(|one| one.names.all());
        let names = names.filter(|name| exact.contains(name));
        let told = NotCounted {
            interfaces: self.pending.len(),
            first: first.collect(),
            names: names.map(str::to_owned).collect(),
        };
        let shared = self.not_counted.lock();
        *shared.unwrap_or_else(PoisonError::into_inner) = told;
        self.changes.set_pending(self.pending.keys().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_absent_if_no_interface_has_it() {
        let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let selection = Selection {
            include: patterns(&["watched", "refused", "b", "a", "lo", "left-out", "veth*"]),
            exclude: patterns(&["left*"]),
            waits: true,
        };
        let not_counted = NotCounted {
            names: BTreeSet::from(["refused".to_owned()]),
            ..NotCounted::default()
        };
        let watched = BTreeSet::from(["watched".to_owned()]);
        let absent = not_counted.absent(&selection, &watched);
        assert_eq!(absent.first, ["a", "b"]);
        let none = not_counted.absent(&Selection::default(), &watched);
        assert_eq!(none.names, 0);
    }
}
