//! Places shared by senders, so that no sender can use up the places of others.

use std::collections::HashMap;

use tls::identity::Identity;

/// A sender may take a place while it holds fewer places than are free. So a single sender gets half of them, and n
/// greedy ones leave the (n + 1)th part free for others (Choudhury and Hahne, "Dynamic Queue Length Thresholds for
/// Shared-Memory Packet Switches", 1998).
pub(super) struct Room {
    free: usize,
    held: HashMap<Identity, usize>,
}

impl Room {
    pub(super) fn new(places: usize) -> Self {
        Self {
            free: places,
            held: HashMap::new(),
        }
    }

    pub(super) fn has_place(&self, sender: &Identity) -> bool {
        self.held.get(sender).copied().unwrap_or_default() < self.free
    }

    /// Takes a place for the sender. Returns whether there was one.
    pub(super) fn take(&mut self, sender: &Identity) -> bool {
        if !self.has_place(sender) {
            return false;
        }
        self.free -= 1;
        *self.held.entry(sender.clone()).or_default() += 1;
        true
    }

    /// Returns `places` places that the sender holds.
    pub(super) fn give_back(&mut self, sender: &Identity, places: usize) {
        self.free += places;
        if let Some(held) = self.held.get_mut(sender) {
            *held -= places;
            if *held == 0 {
                self.held.remove(sender);
            }
        }
    }

    /// Whether more than half of all places are taken.
    pub(super) fn is_more_than_half_full(&self) -> bool {
        self.held.values().sum::<usize>() > self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(room: &mut Room, sender: &Identity) -> usize {
        (0..1000).take_while(|_| room.take(sender)).count()
    }

    #[test]
    fn one_sender_gets_half_and_further_ones_as_much_as_is_left_to_each() {
        let mut room = Room::new(120);
        let [one, two, three] = ["one", "two", "three"].map(|it| Identity::named(it).unwrap());
        assert_eq!(takes(&mut room, &one), 60);
        assert!(!room.is_more_than_half_full());
        assert_eq!(takes(&mut room, &two), 30);
        assert_eq!(takes(&mut room, &three), 15);
        assert!(room.is_more_than_half_full());
        room.give_back(&one, 60);
        assert_eq!(takes(&mut room, &two), 23);
        room.give_back(&two, 53);
        room.give_back(&three, 15);
        assert_eq!((room.free, room.held.len()), (120, 0));
    }

    #[test]
    fn a_hundred_equal_senders_use_nearly_all() {
        let mut room = Room::new(10_000);
        let senders = (0..100).map(|number| Identity::named(&format!("h{number}")).unwrap());
        let senders: Vec<_> = senders.collect();
        for _ in 0..99 {
            assert!(senders.iter().all(|sender| room.take(sender)));
        }
        assert_eq!(room.free, 100);
    }
}
