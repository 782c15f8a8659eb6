//! Connections that hold a place without an open request. When places run out, one of them gives way: the oldest of the
//! source that has the most. So one source cannot keep others out, and even many sources cannot keep out a client that
//! sends a request at once.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tls::source::Source;

/// Handles of silent connections, for closing them.
pub(crate) struct Silent<H>(Mutex<Inner<H>>);

struct Inner<H> {
    next: u64,
    /// The handles of each source, the oldest first.
    all: HashMap<Source, BTreeMap<u64, H>>,
    /// Each source's number of connections, and its oldest one. The last entry gives way next.
    order: BTreeSet<(usize, Reverse<u64>, Source)>,
}

/// Identifies one of the connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    source: Source,
    number: u64,
}

impl<H> Default for Silent<H> {
    fn default() -> Self {
        Self(Mutex::new(Inner {
            next: 0,
            all: HashMap::new(),
            order: BTreeSet::new(),
        }))
    }
}

impl<H> Silent<H> {
    /// Adds a connection. It may be removed as soon as `handle` has returned.
    pub(crate) fn enter(&self, source: Source, handle: impl FnOnce(Seat) -> H) -> Seat {
        let mut inner = self.inner();
        let seat = Seat {
            source,
            number: inner.next,
        };
        inner.next += 1;
        let handle = handle(seat);
        inner.change(source, |of_source| of_source.insert(seat.number, handle));
        seat
    }

    /// Removes a connection that sends a request, or ends.
    pub(crate) fn leave(&self, seat: Seat) -> Option<H> {
        let mut inner = self.inner();
        inner.change(seat.source, |of_source| of_source.remove(&seat.number))
    }

    /// Removes the connection that gives way.
    pub(crate) fn pop(&self) -> Option<H> {
        let mut inner = self.inner();
        let &(_, _, source) = inner.order.last()?;
        let (_, handle) = inner.change(source, BTreeMap::pop_first)?;
        Some(handle)
    }

    fn inner(&self) -> MutexGuard<'_, Inner<H>> {
        // No operation under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H> Inner<H> {
    fn change<T>(&mut self, source: Source, change: impl FnOnce(&mut BTreeMap<u64, H>) -> T) -> T {
        let of_source = self.all.entry(source).or_default();
        let place = |of_source: &BTreeMap<u64, H>| {
            let (&oldest, _) = of_source.first_key_value()?;
            Some((of_source.len(), Reverse(oldest), source))
        };
        if let Some(before) = place(of_source) {
            self.order.remove(&before);
        }
        let changed = change(of_source);
        match place(of_source) {
            Some(after) => drop(self.order.insert(after)),
            None => drop(self.all.remove(&source)),
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_source_that_has_most_gives_way() {
        let silent = Silent::default();
        let enter = |source, name: &'static str| silent.enter(Source::User(source), |_| name);
        enter(1, "a");
        let seat = enter(2, "b");
        enter(2, "c");
        enter(2, "d");
        enter(1, "e");
        assert_eq!(silent.pop(), Some("b"));
        assert_eq!(silent.leave(seat), None);
        // Both sources have two: the oldest of all goes.
        assert_eq!(silent.pop(), Some("a"));
        assert_eq!(silent.pop(), Some("c"));
        let seat = enter(3, "f");
        assert_eq!(silent.leave(seat), Some("f"));
        assert_eq!(silent.pop(), Some("d"));
        assert_eq!(silent.pop(), Some("e"));
        assert_eq!(silent.pop(), None);
        let inner = silent.inner();
        assert!(inner.all.is_empty() && inner.order.is_empty());
    }
}
