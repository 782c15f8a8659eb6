//! Stores the links for a successor, each under the name of its interface and place, and removes them again.

use std::{
    collections::BTreeMap,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use agent_common::InterfaceId;
use sys::log_limit::LogLimit;

use crate::{bpf::LinkPlace, carry::Keep};

/// How long to leave a service manager alone that does not read its socket. Each attempt takes seconds.
const PAUSE: Duration = Duration::from_secs(10);

/// The key of a stored link.
type Name = (InterfaceId, LinkPlace);

/// Clones store in the same place.
#[derive(Clone, Default)]
pub(super) struct LinkStore(Arc<Shared>);

#[derive(Default)]
struct Shared {
    keep: Keep,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the link that has each name. An interface that left may have its links detached only after another
    /// one has its index.
    stored: BTreeMap<Name, u64>,
    numbered: u64,
    /// When the service manager was last found not to read.
    stuck: Option<Instant>,
    not_stored: LogLimit,
    not_removed: LogLimit,
}

/// A link in the store.
pub(super) struct StoredLink {
    store: LinkStore,
    name: Name,
    number: u64,
}

impl LinkStore {
    pub(super) fn new(keep: Keep) -> Self {
        Self(Arc::new(Shared {
            keep,
            state: Mutex::default(),
        }))
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.keep.is_there()
    }

    /// Stores a link. `None` if there is no store, or if it cannot be reached, which the log says.
    pub(super) fn put(
        &self,
        id: InterfaceId,
        place: LinkPlace,
        link: BorrowedFd<'_>,
    ) -> Option<StoredLink> {
        if !self.is_there() {
            return None;
        }
        let mut state = self.state();
        if state.stored.remove(&(id, place)).is_some() {
            self.remove_name(&mut state, id, place);
        }
        match state.try_send(|| self.0.keep.put_link(id, place, link)) {
            Ok(()) => Some(self.number(&mut state, (id, place))),
            Err(error) => {
                if let Some(links) = state.not_stored.event() {
                    tracing::warn!(
                        links,
                        %error,
                        "cannot store an attached program with the service manager: if this process is killed, \
                         packets until the next start are not counted"
                    );
                }
                None
            }
        }
    }

    /// A link that a predecessor has stored.
    pub(super) fn adopt(&self, id: InterfaceId, place: LinkPlace) -> StoredLink {
        self.number(&mut self.state(), (id, place))
    }

    /// Removes all links that a predecessor has stored by this name. Those of this process must be stored anew.
    pub(super) fn remove(&self, id: InterfaceId, place: LinkPlace) {
        self.remove_name(&mut self.state(), id, place);
    }

    fn number(&self, state: &mut State, name: Name) -> StoredLink {
        state.numbered += 1;
        state.stored.insert(name, state.numbered);
        StoredLink {
            store: self.clone(),
            name,
            number: state.numbered,
        }
    }

    fn remove_name(&self, state: &mut State, id: InterfaceId, place: LinkPlace) {
        let removed = state.try_send(|| self.0.keep.remove_link(id, place));
        if let Err(error) = removed
            && let Some(links) = state.not_removed.event()
        {
            tracing::warn!(
                links,
                %error,
                "cannot remove a detached program from the service manager's store; the next start removes it"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn try_send(&mut self, send: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.stuck.is_some_and(|since| since.elapsed() < PAUSE) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let outcome = send();
        let is_stuck = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.stuck = outcome.as_ref().is_err_and(is_stuck).then(Instant::now);
        outcome
    }
}

impl StoredLink {
    /// Removes it, unless another link has its name by now.
    pub(super) fn remove(&self) {
        let mut state = self.store.state();
        if state.stored.get(&self.name) == Some(&self.number) {
            state.stored.remove(&self.name);
            let (id, place) = self.name;
            self.store.remove_name(&mut state, id, place);
        }
    }
}
