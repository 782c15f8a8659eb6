//! The changes that the thread that attaches has yet to look at. Changes of the same interface merge, so memory stays
//! within the number of interfaces, however long that thread is busy.

use std::{
    collections::BTreeSet,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rules::link_names::LinkNames;
use tokio::sync::watch;

use crate::interfaces::Selection;

/// If more interfaces than this have left, looking at all that remain is cheaper.
const MOST_LEFT: usize = 10_000;

/// Changes since the last look.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Interfaces that have left. The same index in another set means an interface that appeared later.
    pub left: BTreeSet<u32>,
    /// Interfaces that are new, have another name or master, or have to be checked again.
    pub interfaces: BTreeSet<u32>,
    /// Interfaces that a default route leads over.
    pub routed: BTreeSet<u32>,
    /// Some changes were missed, so every interface has to be looked at.
    pub everything: bool,
    /// The latest selection that was requested, and its number.
    pub selection: Option<(u64, Selection)>,
    /// Interfaces that are no longer watched because they were deselected. They may be selected again by now.
    pub given_up: BTreeSet<u32>,
    /// A scan has drained interfaces that had left.
    pub has_drained: bool,
    pub must_stop: bool,
}

/// Clones share the same changes.
#[derive(Clone)]
pub(super) struct Changes(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    is_noted: Condvar,
    /// The number of the selection that the watched interfaces follow.
    in_force: watch::Sender<u64>,
}

struct State {
    noted: Option<Noted>,
    /// The latest selection.
    selection: Selection,
    /// How many selections there have been.
    selections: u64,
    /// Selected interfaces that are not counted.
    pending: BTreeSet<u32>,
}

impl Changes {
    pub(super) fn new(selection: Selection) -> Self {
        let state = State {
            noted: None,
            selection,
            selections: 0,
            pending: BTreeSet::new(),
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            is_noted: Condvar::new(),
            in_force: watch::Sender::default(),
        }))
    }

    /// Reports an interface that is not watched, with its names, which may have changed.
    pub(super) fn here(&self, ifindex: u32, names: &LinkNames) {
        let mut state = self.state();
        if state.selection.takes_names(names) || state.pending.contains(&ifindex) {
            self.note(&mut state).interfaces.insert(ifindex);
        }
    }

    /// Requests a look at this interface.
    pub(super) fn look_at(&self, ifindex: u32) {
        self.note(&mut self.state()).interfaces.insert(ifindex);
    }

    /// Reports a default route over these interfaces.
    pub(super) fn routed(&self, ifindexes: Vec<u32>) {
        let mut state = self.state();
        if state.selection.follows_default_routes() {
            self.note(&mut state).routed.extend(ifindexes);
        }
    }

    /// Reports a default route over a nexthop object, whose interfaces the kernel has to be asked for.
    pub(super) fn routed_by_nexthop(&self) {
        let mut state = self.state();
        if state.selection.follows_default_routes() {
            self.note(&mut state).everything = true;
        }
    }

    pub(super) fn left(&self, ifindex: u32) {
        let mut state = self.state();
        let noted = self.note(&mut state);
        noted.interfaces.remove(&ifindex);
        noted.routed.remove(&ifindex);
        noted.left.insert(ifindex);
        if noted.left.len() > MOST_LEFT {
            noted.left.clear();
            noted.everything = true;
        }
    }

    pub(super) fn missed(&self) {
        self.note(&mut self.state()).everything = true;
    }

    /// The latest selection.
    pub(super) fn selection(&self) -> Selection {
        self.state().selection.clone()
    }

    /// Changes the selection. The future resolves when the watched interfaces follow it, or a later one.
    pub(super) fn select(&self, selection: Selection) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state();
        state.selection = selection.clone();
        state.selections += 1;
        let number = state.selections;
        self.note(&mut state).selection = Some((number, selection));
        let mut in_force = self.0.in_force.subscribe();
        async move {
            if in_force.wait_for(|&latest| latest >= number).await.is_err() {
                // The watch has ended, so the agent is about to end.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reports that the watched interfaces follow the selection with this number.
    pub(super) fn is_in_force(&self, number: u64) {
        self.0.in_force.send_replace(number);
    }

    /// Reports that a deselected interface is no longer watched.
    pub(super) fn given_up(&self, ifindex: u32) {
        self.note(&mut self.state()).given_up.insert(ifindex);
    }

    pub(super) fn drained(&self) {
        self.note(&mut self.state()).has_drained = true;
    }

    pub(super) fn stop(&self) {
        self.note(&mut self.state()).must_stop = true;
    }

    /// Sets the interfaces that are selected but not counted. A new name of theirs matters even if it is not selected.
    pub(super) fn set_pending(&self, pending: impl Iterator<Item = u32>) {
        self.state().pending = pending.collect();
    }

    /// Waits for changes and takes them. Returns none if `patience` runs out first.
    pub(super) fn take(&self, patience: Option<Duration>) -> Noted {
        let is_empty = |state: &mut State| state.noted.is_none();
        let (state, is_noted) = (self.state(), &self.0.is_noted);
        let mut state = match patience {
            None => is_noted
                .wait_while(state, is_empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = is_noted.wait_timeout_while(state, patience, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.noted.take().unwrap_or_default()
    }

    fn note<'a>(&self, state: &'a mut State) -> &'a mut Noted {
        self.0.is_noted.notify_one();
        state.noted.get_or_insert_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(include: &[&str]) -> Changes {
        let include = include.iter().map(|pattern| pattern.parse().unwrap());
        Changes::new(Selection {
            include: include.collect(),
            exclude: vec!["veth9".parse().unwrap()],
            waits: false,
        })
    }

    fn taken(changes: &Changes) -> Noted {
        changes.take(Some(Duration::ZERO))
    }

    #[test]
    fn only_an_interface_that_may_be_selected_is_noted() {
        let changes = changes(&["veth*"]);
        changes.here(7, &"veth7".into());
        changes.here(8, &"docker0".into());
        changes.here(9, &"veth9".into());
        changes.routed(vec![8]);
        let noted = taken(&changes);
        assert_eq!(noted.interfaces, BTreeSet::from([7]));
        assert!(noted.routed.is_empty());
        // A pending interface that is renamed so that it is no longer selected.
        changes.set_pending([8].into_iter());
        changes.here(8, &"docker1".into());
        assert_eq!(taken(&changes).interfaces, BTreeSet::from([8]));
        drop(changes.select(Selection::default()));
        changes.here(7, &"veth7".into());
        changes.routed(vec![5]);
        let noted = taken(&changes);
        assert!(noted.selection.is_some() && noted.interfaces.is_empty());
        assert_eq!(noted.routed, BTreeSet::from([5]));
    }

    #[test]
    fn an_index_that_left_and_came_back_is_both() {
        let changes = changes(&["*"]);
        changes.here(7, &"a".into());
        changes.left(7);
        let noted = taken(&changes);
        assert!(noted.interfaces.is_empty() && noted.left.contains(&7));
        changes.left(7);
        changes.here(7, &"b".into());
        let noted = taken(&changes);
        assert!(noted.interfaces.contains(&7) && noted.left.contains(&7));
    }

    #[test]
    fn a_million_that_come_and_leave_take_little_memory() {
        let changes = changes(&["veth*"]);
        for ifindex in 0..1_000_000 {
            changes.here(ifindex, &"veth0".into());
            changes.left(ifindex);
        }
        let noted = taken(&changes);
        assert!(noted.everything && noted.interfaces.is_empty());
        assert!(noted.left.len() <= MOST_LEFT);
        assert!(!taken(&changes).everything);
    }
}
