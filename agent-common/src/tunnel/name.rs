//! Names tunnels that have no number by a 32-bit hash.

use crate::{
    flow::FlowKey,
    sample::{halves, mix},
};

/// The tunnel id of such a tunnel in a key. It hashes the key of the tunnel's packet: its endpoints, and the tags and
/// the session or the tunnel around it. Both directions have the same name. Two tunnels share a name by chance once in
/// 2^32, and an attacker who can choose endpoints can find such a pair.
#[inline(always)]
pub fn name(key: &FlowKey) -> u32 {
    let (a, b) = (halves(&key.addr_a), halves(&key.addr_b));
    let [outer, inner] = key.vlan_ids;
    let around = u64::from(outer) << 48 | u64::from(inner) << 32 | u64::from(key.tunnel_id);
    let kinds = u64::from(key.encapsulation) << 8 | u64::from(key.ip_version);
    let mut hash = mix(0, a.0);
    hash = mix(hash, a.1);
    hash = mix(hash, b.0);
    hash = mix(hash, b.1);
    hash = mix(hash, around);
    hash = mix(hash, kinds);
    (mix(hash, 0) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_all_that_is_around_a_tunnel() {
        let mut key = FlowKey::default();
        key.addr_a[..4].copy_from_slice(&[192, 0, 2, 1]);
        key.addr_b[..4].copy_from_slice(&[192, 0, 2, 2]);
        key.ip_version = 4;
        let mut names = vec![name(&key)];
        let mut other = |change: fn(&mut FlowKey)| {
            let mut key = key;
            change(&mut key);
            names.push(name(&key));
        };
        other(|key| key.addr_a[3] = 3);
        other(|key| key.addr_a[15] = 1);
        other(|key| key.addr_b[3] = 3);
        other(|key| key.addr_b[15] = 1);
        other(|key| core::mem::swap(&mut key.addr_a, &mut key.addr_b));
        other(|key| key.ip_version = 6);
        other(|key| key.vlan_ids[0] = 7);
        other(|key| key.vlan_ids[1] = 7);
        other(|key| key.encapsulation = 1);
        other(|key| key.tunnel_id = 7);
        // Ports and the interface do not matter, since the flow's own key has them.
        let same = FlowKey {
            port_a: 1,
            l4_kind: 1,
            ifindex: 2,
            netns: 3,
            ..key
        };
        assert_eq!(name(&same), names[0]);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn neighbouring_tunnels_have_names_as_far_apart_as_chance_would() {
        let mut names: Vec<u32> = (0..100_000_u32)
            .map(|number| {
                let mut key = FlowKey::default();
                key.addr_a[..4].copy_from_slice(&0x0a00_0001_u32.to_be_bytes());
                key.addr_b[..4].copy_from_slice(&(0x0a00_0002 + number).to_be_bytes());
                name(&key)
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        // With this many random numbers, one pair is equal on average.
        assert!(names.len() > 99_990, "{}", names.len());
    }
}
