//! Bounds how many things each holder has at a time, such as the open calls of an address.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Clones share the counts.
pub struct Counted<K>(Arc<Mutex<HashMap<K, u32>>>);

/// One thing of a holder. Dropping it frees the place.
pub struct CountedPlace<K: Clone + Eq + Hash> {
    counted: Counted<K>,
    holder: K,
}

impl<K> Clone for Counted<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Counted<K> {
    /// A place for this holder, if it has fewer than `most`.
    pub fn place(&self, holder: K, most: u32) -> Option<CountedPlace<K>> {
        let mut counts = self.counts();
        let count = counts.get(&holder).copied().unwrap_or_default();
        if count >= most {
            return None;
        }
        counts.insert(holder.clone(), count + 1);
        drop(counts);
        Some(CountedPlace {
            counted: self.clone(),
            holder,
        })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<K, u32>> {
        // No operation under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> Drop for CountedPlace<K> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.counted.counts().entry(self.holder.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tls::source::Source;

    use super::*;

    #[test]
    fn an_address_has_as_many_places_as_it_may_however_it_is_written_and_is_forgotten_with_the_last()
     {
        let counted = Counted::default();
        let place = |address: &str| counted.place(Source::of_ip(address.parse().unwrap()), 2);
        let first = place("192.0.2.1").unwrap();
        let second = place("::ffff:192.0.2.1").unwrap();
        assert!(place("192.0.2.1").is_none());
        let other = place("192.0.2.2").unwrap();
        drop(first);
        let third = place("192.0.2.1").unwrap();
        assert!(place("192.0.2.1").is_none());
        let network = [place("2001:db8::1").unwrap(), place("2001:db8::2").unwrap()];
        assert!(place("2001:db8::3").is_none());
        drop((second, third, other, network));
        assert!(counted.counts().is_empty());
    }
}
