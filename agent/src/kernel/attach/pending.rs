//! The selected interfaces that are not counted, each with the reason, for the status.

use std::sync::PoisonError;

use super::watcher::Watcher;
use crate::{kernel::links::Link, netns::InterfaceId};

/// Why a selected interface is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// It waits for a scan that drains one that has left or leaves.
    Drain,
    NoSlot,
    /// A hook cannot be attached, or the programs cannot read this link type.
    Refused,
}

impl Pending {
    /// The word for programs.
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
    pub name: String,
    pub why: Pending,
    /// The kernel's answer, if it was refused.
    pub detail: String,
}

/// Selected interfaces that are not counted.
#[derive(Clone, Debug, Default)]
pub struct NotCounted {
    pub interfaces: usize,
    /// The first of them, by index.
    pub first: Vec<Uncounted>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Uncounted {
    pub id: InterfaceId,
    pub name: String,
    pub reason: &'static str,
    /// For people. May be empty.
    pub detail: String,
}

impl NotCounted {
    /// How many are named.
    const NAMED: usize = 20;

    /// Adds those of another network namespace.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.interfaces += other.interfaces;
        self.first.extend(other.first);
        self.first.truncate(Self::NAMED);
        self
    }
}

impl Watcher {
    /// Keeps a selected interface that is not counted, and returns why it was not before.
    pub(super) fn wait(&mut self, link: &Link, why: Pending, detail: String) -> Option<Pending> {
        let name = link.name.clone();
        let waiting = Waiting { name, why, detail };
        let before = self.pending.insert(link.ifindex, waiting);
        before.map(|before| before.why)
    }

    /// Tells of those that no other one will tell of. Each try counted as an event, so those that are not counted are
    /// counted here.
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
            name: one.name.clone(),
            reason: one.why.word(),
            detail: one.detail.clone(),
        });
        let told = NotCounted {
            interfaces: self.pending.len(),
            first: first.collect(),
        };
        let shared = self.not_counted.lock();
        *shared.unwrap_or_else(PoisonError::into_inner) = told;
        self.changes.set_pending(self.pending.keys().copied());
    }
}
