//! Where a flow lies: keys come in, the slots of their flows go out.

use std::hash::{BuildHasher as _, Hasher as _};

use agent_common::FlowKey;
use foldhash::fast::SeedableRandomState;

use super::Replica;

/// Entries that are looked up together.
pub const GROUP: usize = 32;

/// What the index has of a key.
#[derive(Clone, Copy)]
pub enum Found {
    Flow(u32),
    /// The flow at the other side of the interface.
    OtherSide(u32),
    Nothing,
}

impl Replica {
    /// The hash and, where the flow is known, most likely the slot, for each of a group.
    ///
    /// A large table is in no cache. One step for all, then the next for all: so the CPU waits for
    /// many reads from memory at once, and the updates find their entries in the cache.
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

    /// Both sides of a flow have one hash, so this is one look-up.
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

/// The same for both sides of the interface.
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
