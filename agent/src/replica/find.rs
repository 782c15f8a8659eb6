//! Finds the slots of flows by their keys.

use std::hash::{BuildHasher as _, Hasher as _};

use agent_common::FlowKey;
use foldhash::fast::SeedableRandomState;

use super::Replica;

/// How many entries are looked up together.
pub const GROUP: usize = 32;

/// What the index has for a key.
#[derive(Clone, Copy)]
pub enum Found {
    Flow(u32),
    /// The same flow on the other side of the interface.
    OtherSide(u32),
    Nothing,
}

impl Replica {
    /// For each key of a group, the hash and, if the flow is known, most likely the slot.
    ///
    /// A large table fits into no cache. Each step is done for the whole group before the next step. So the
    /// CPU waits for many reads from memory at once, and the updates find their entries in the cache.
    pub(super) fn look_up(&self, keys: &[FlowKey]) -> [(u64, Option<u32>); GROUP] {
        let mut found = [(0, None); GROUP];
        for (found, key) in found.iter_mut().zip(keys) {
            let hash = hash_of(&self.seed, key);
            *found = (hash, self.index.find(hash, |_| true).copied());
        }
        for ((_, slot), key) in found.iter_mut().zip(keys) {
            *slot = slot.filter(|&slot| self.slab[slot].is(key));
        }
        found
    }

    /// Both sides of a flow have the same hash, so one look-up is enough.
    pub(super) fn find(&self, hash: u64, key: &FlowKey) -> Found {
        let mut found = Found::Nothing;
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
