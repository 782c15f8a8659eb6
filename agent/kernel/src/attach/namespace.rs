//! Starts to watch the interfaces of one network namespace: opens its sockets and starts its threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use anyhow::{Error, Result};
use tokio::sync::{mpsc, oneshot};

use super::{
    AttachSettings, NameInterface, Slots, alarm,
    attacher::Attacher,
    changes,
    closer::Closer,
    clsact::Clsact,
    lines::Lines,
    noted::Changes,
    pending::NotCounted,
    programs::Programs,
    stacks::Stacks,
    takeover::{Carried, Takeover},
    watcher::{PROGRESS_INTERVAL, Watcher, WatcherLog},
};
use crate::{
    interfaces::Selection,
    links::{Link, LinkSocket, driver::Drivers, tags::Features},
    load::ProgramSet,
    netns::Namespace,
};

/// Settings and handles that the watches of all namespaces share.
#[derive(Clone)]
pub(super) struct Common {
    /// How many namespaces there are.
    pub namespaces: usize,
    pub settings: AttachSettings,
    pub slots: Slots,
    pub selection: Selection,
    pub name_interface: NameInterface,
    pub stop: Arc<AtomicBool>,
    /// The links of predecessors, and the store for our own.
    pub carried: Carried,
    /// Locked until every namespace is known to be watchable. No hook is attached before that.
    pub gate: Arc<Mutex<()>>,
    pub attached: Arc<Attached>,
    /// Receives an error if the interfaces of a namespace can no longer be followed.
    pub failed: mpsc::Sender<Error>,
}

/// The threads of one namespace.
pub(super) struct Watch {
    changes: Changes,
    not_counted: Arc<Mutex<NotCounted>>,
    attaching: Option<JoinHandle<Option<Clsact>>>,
}

impl Watch {
    /// Starts to attach to `selected`, which must already be in the set's interface table.
    pub(super) fn start(
        namespace: &Namespace,
        set: ProgramSet,
        selected: Vec<Link>,
        common: Common,
    ) -> Result<Self> {
        namespace.enter(|| Self::start_here(namespace.clone(), set, selected, common))
    }

    /// Starts on a thread that is in the namespace.
    fn start_here(
        namespace: Namespace,
        set: ProgramSet,
        selected: Vec<Link>,
        common: Common,
    ) -> Result<Self> {
        let Common {
            namespaces,
            settings,
            slots,
            selection,
            name_interface,
            stop,
            carried,
            gate,
            attached,
            failed,
        } = common;
        let slots = slots.in_netns(namespace.number());
        let not_counted = Arc::<Mutex<NotCounted>>::default();
        let changes = Changes::new(selection.clone());
        let table = set.interfaces.clone();
        let closer = Closer::start(slots.clone(), table.clone(), changes.clone())?;
        let mut watcher = Watcher {
            attacher: Attacher {
                programs: Programs::load(set, &selected, &selection, settings)?,
                settings,
                slots: slots.clone(),
                counters: LinkSocket::open()?,
                features: Features::open(),
                drivers: Drivers::default(),
                clsact: None,
                takeover: Takeover::new(carried.clone()),
                first: Vec::new(),
                lines: Lines::default(),
            },
            slots: slots.clone(),
            table: table.clone(),
            links: LinkSocket::open()?,
            name_interface,
            stop: Arc::clone(&stop),
            not_counted: Arc::clone(&not_counted),
            progress_interval: PROGRESS_INTERVAL,
            log: WatcherLog::default(),
            pending: BTreeMap::new(),
            have_left: false,
            deselected: BTreeSet::new(),
            reselected: None,
            routed: BTreeSet::new(),
            stacks: Stacks::default(),
            changes: changes.clone(),
            closer: closer.clone(),
            selection,
            namespaces,
        };
        changes::follow(
            slots,
            table,
            changes.clone(),
            closer,
            &namespace,
            failed.clone(),
        )?;
        let here = namespace.clone();
        let attaching = alarm::spawn("attach", namespace, failed, move || {
            drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
            let outcome = watcher.start(&selected);
            let is_attached = outcome.is_ok();
            attached.tell(outcome.map_err(|error| here.locate(error)), || {
                // Whoever was asked to stop has not tried to take all of them over.
                if !stop.load(Relaxed) {
                    carried.detach_rest();
                }
            });
            drop(attached);
            if is_attached {
                watcher.follow();
            }
            watcher.attacher.clsact
        })?;
        Ok(Self {
            changes,
            not_counted,
            attaching: Some(attaching),
        })
    }

    /// The queue of changes for the thread that attaches.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(super) fn not_counted(&self) -> NotCounted {
        let not_counted = self.not_counted.lock();
        not_counted.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the thread that attaches has ended. Returns the filters on clsact, which are removed when they are
    /// dropped.
    pub(super) fn join(&mut self) -> Option<Clsact> {
        match self.attaching.take().map(JoinHandle::join) {
            Some(Ok(clsact)) => clsact,
            Some(Err(_)) => {
                tracing::error!("the thread that attaches failed: filters may stay");
                None
            }
            None => None,
        }
    }
}

/// Reports when the first hooks are attached in every namespace, or which one failed first.
pub(super) struct Attached(Mutex<Waiting>);

struct Waiting {
    namespaces: usize,
    outcome: Option<oneshot::Sender<Result<()>>>,
}

impl Attached {
    pub(super) fn in_all(namespaces: usize) -> (Self, oneshot::Receiver<Result<()>>) {
        let (outcome, receiver) = oneshot::channel();
        let waiting = Waiting {
            namespaces,
            outcome: Some(outcome),
        };
        (Self(Mutex::new(waiting)), receiver)
    }

    /// Reports the outcome of one namespace. If all are attached then, calls `finish` before anybody hears of it.
    fn tell(&self, outcome: Result<()>, finish: impl FnOnce()) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.namespaces -= 1;
        if (outcome.is_err() || waiting.namespaces == 0)
            && let Some(sender) = waiting.outcome.take()
        {
            if outcome.is_ok() {
                finish();
            }
            // If the receiver is gone, the agent was asked to stop meanwhile.
            let _ = sender.send(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn all_are_attached_when_the_last_one_is_and_none_when_one_fails() {
        let (attached, mut outcome) = Attached::in_all(2);
        let finished = Cell::new(false);
        let finish = || finished.set(true);
        attached.tell(Ok(()), finish);
        assert!(outcome.try_recv().is_err() && !finished.get());
        attached.tell(Ok(()), finish);
        assert!(outcome.try_recv().unwrap().is_ok() && finished.get());

        let (attached, mut outcome) = Attached::in_all(3);
        let finish = || panic!("not all are attached");
        attached.tell(Err(anyhow!("first")), finish);
        let error = outcome.try_recv().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "first");
        attached.tell(Err(anyhow!("second")), finish);
        attached.tell(Ok(()), finish);
    }
}
