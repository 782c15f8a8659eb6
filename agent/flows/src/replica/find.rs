//! Finds the slots of flows by their keys.

use std::hash::{BuildHasher as _, Hasher as _};

use agent_common::FlowKey;
use foldhash::fast::SeedableRandomState;

use super::Replica;

/// How many entries are looked up together.
pub const GROUP: usize = 32;

/// The result of a look-up in the index.
#[derive(Clone, Copy)]
pub enum Found {
    Flow(u32),
    /// The same flow on the other side of the interface.
    OtherSide(u32),
    Nothing {
        hash: u64,
    },
}

/// Where the look-up of a group found a flow.
#[derive(Clone, Copy)]
pub enum Guess {
    Slot(u32),
    /// The slot is not known yet; this is the hash of the key.
    Hash(u64),
}

/// For each key of a group, the slot where its flow most likely is.
pub type Slots = [Option<u32>; GROUP];

impl Replica {
    /// Looks up a group of keys.
    ///
    /// A large table does not fit into the CPU caches. Each step runs for the whole group before the next one, so the
    /// CPU waits for many memory reads at once, and the updates find their entries in the cache.
    pub(super) fn look_up(&mut self, keys: &[FlowKey]) -> [Guess; GROUP] {
        let mut slots = Slots::default();
        self.order.find(keys, &self.slab, &mut slots);
        let mut guesses = slots.map(|slot| slot.map_or(Guess::Hash(0), Guess::Slot));
        let found = slots.iter().flatten().count();
        if found < keys.len() {
            self.look_up_by_hash(keys, &mut guesses);
        }
        guesses
    }

    /// Looks up the keys of a group that `order` did not find.
    fn look_up_by_hash(&mut self, keys: &[FlowKey], guesses: &mut [Guess; GROUP]) {
        let mut slots = Slots::default();
        for ((slot, guess), key) in slots.iter_mut().zip(&mut *guesses).zip(keys) {
            if let Guess::Hash(hash) = guess {
                *hash = hash_of(&self.seed, key);
                *slot = self.index.find(*hash, |_| true).copied();
            }
        }
        let mut last = None;
        for ((slot, guess), key) in slots.into_iter().zip(guesses).zip(keys) {
            let Some(slot) = slot.filter(|&slot| self.slab[slot].is(key)) else {
                continue;
            };
            *guess = Guess::Slot(slot);
            if self.slab[slot].scan == self.scan.wrapping_sub(1) {
                last = Some(slot);
            }
        }
        if let Some(slot) = last {
            self.order.go_on_after(slot);
        }
    }

    /// Both sides of a flow have the same hash, so one look-up is enough.
    pub(super) fn find(&self, key: &FlowKey) -> Found {
        self.find_by_hash(hash_of(&self.seed, key), key)
    }

    pub(super) fn find_by_hash(&self, hash: u64, key: &FlowKey) -> Found {
        let mut found = Found::Nothing { hash };
        for &slot in self.index.iter_hash(hash) {
            let entry = &self.slab[slot];
            if entry.is(key) {
                return Found::Flow(slot);
            }
            if entry.is_beside(key) {
                found = Found::OtherSide(slot);
            }
        }
        found
    }
}

/// The hash of a flow, the same for both sides of the interface.
pub fn hash_of(seed: &SeedableRandomState, key: &FlowKey) -> u64 {
    let wide = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let pair = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
    let mut hasher = seed.build_hasher();
    hasher.write_u128(u128::from_ne_bytes(key.addr_a));
    hasher.write_u128(u128::from_ne_bytes(key.addr_b));
    hasher.write_u64(wide(key.netns, key.ifindex));
    let [outer, inner] = key.vlan_ids;
    hasher.write_u64(wide(pair(outer, inner), pair(key.port_a, key.port_b)));
    let l4_kind = key.with_side(0).l4_kind;
    let kinds = [key.ip_version, key.protocol, l4_kind, key.encapsulation];
    hasher.write_u64(wide(key.tunnel_id, u32::from_ne_bytes(kinds)));
    hasher.finish()
}
