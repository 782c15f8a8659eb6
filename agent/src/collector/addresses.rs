//! How many calls each address has open.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Clones share them.
#[derive(Clone, Default)]
pub(super) struct Addresses(Arc<Mutex<HashMap<IpAddr, u32>>>);

/// A call of an address, until it is dropped.
pub(super) struct AddressPlace {
    addresses: Addresses,
    address: IpAddr,
}

impl Addresses {
    /// A place for a call of this address, if it has less than `most`.
    pub(super) fn place(&self, address: IpAddr, most: u32) -> Option<AddressPlace> {
        let address = address.to_canonical();
        let mut open = self.open();
        let calls = open.get(&address).copied().unwrap_or_default();
        if calls >= most {
            return None;
        }
        open.insert(address, calls + 1);
        drop(open);
        Some(AddressPlace {
            addresses: self.clone(),
            address,
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        // Nothing under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        if let Entry::Occupied(mut calls) = self.addresses.open().entry(self.address) {
            *calls.get_mut() -= 1;
            if *calls.get() == 0 {
                calls.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_as_many_places_as_it_may_however_it_is_written_and_is_forgotten_with_the_last()
     {
        let addresses = Addresses::default();
        let place = |address: &str| addresses.place(address.parse().unwrap(), 2);
        let first = place("192.0.2.1").unwrap();
        let second = place("::ffff:192.0.2.1").unwrap();
        assert!(place("192.0.2.1").is_none());
        let other = place("192.0.2.2").unwrap();
        drop(first);
        let third = place("192.0.2.1").unwrap();
        assert!(place("192.0.2.1").is_none());
        drop((second, third, other));
        assert!(addresses.open().is_empty());
    }
}
