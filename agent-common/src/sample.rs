//! Flow sampling: decides from a flow's key whether the flow is counted.
//!
//! Only a hash of both endpoints and the protocol decides. So the decision is the same for all packets of a flow, in
//! both directions, at every interface and VLAN and on every host. The hash is compared with a threshold, so a 1 in 100
//! sample is a subset of a 1 in 10 sample.

use crate::{flow::FlowKey, frame::Header as _};

/// The golden ratio as an odd 64-bit fraction: spreads each input bit into the upper half of the product.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The largest rate.
pub const MOST_RATE: u32 = 1_000_000;

/// One flow in `flows` as a rate: 0 for every flow, also for one in one.
pub const fn rate(flows: u32) -> u32 {
    if flows < 2 { 0 } else { flows }
}

/// The threshold that samples one flow in `rate`. A flow is sampled if the upper half of its hash is below the
/// threshold. 0 means every flow.
pub const fn threshold(rate: u32) -> u32 {
    if rate < 2 {
        return 0;
    }
    ((1 << 32) / rate as u64) as u32
}

/// Whether the flow is counted. `threshold` comes from [`threshold`] and must not be 0.
#[inline(always)]
pub fn is_sampled(key: &FlowKey, threshold: u32) -> bool {
    ((hash(key) >> 32) as u32) < threshold
}

#[inline(always)]
fn hash(key: &FlowKey) -> u64 {
    let (a, b) = (halves(&key.addr_a), halves(&key.addr_b));
    let transport =
        u64::from(key.port_a) << 32 | u64::from(key.port_b) << 16 | u64::from(key.protocol);
    let mut hash = 0;
    // Written out, since a loop would put an array on the stack.
    hash = mix(hash, a.0);
    hash = mix(hash, a.1);
    hash = mix(hash, b.0);
    hash = mix(hash, b.1);
    hash = mix(hash, transport);
    mix(hash, 0)
}

#[inline(always)]
pub(crate) fn mix(hash: u64, value: u64) -> u64 {
    let product = (hash ^ value).wrapping_mul(MULTIPLIER);
    product ^ product >> 32
}

/// The bytes as numbers whose value does not depend on the host's byte order.
#[inline(always)]
pub(crate) fn halves(address: &[u8; 16]) -> (u64, u64) {
    (
        u64::from_le(address.ne64::<0>()),
        u64::from_le(address.ne64::<8>()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(client: u32, port: u16) -> FlowKey {
        let mut key = FlowKey {
            port_a: port,
            port_b: 443,
            ip_version: 4,
            protocol: 6,
            ..FlowKey::default()
        };
        key.addr_a[..4].copy_from_slice(&(0x0a00_0000 + client).to_be_bytes());
        key.addr_b[..4].copy_from_slice(&[192, 0, 2, 1]);
        key
    }

    #[test]
    fn one_flow_in_so_many_is_sampled_of_neighbouring_clients_and_ports() {
        for rate in [2, 10, 100] {
            let below = threshold(rate);
            for by_port in [true, false] {
                let flows = 60_000_u32;
                let sampled = (0..flows)
                    .map(|n| {
                        if by_port {
                            key(1, n as u16)
                        } else {
                            key(n, 40_000)
                        }
                    })
                    .filter(|key| is_sampled(key, below))
                    .count();
                let expected = f64::from(flows / rate);
                let sampled = u32::try_from(sampled).map(f64::from).unwrap();
                // Four standard deviations of an unbiased sample.
                assert!(
                    (sampled - expected).abs() < 4.0 * expected.sqrt(),
                    "1 in {rate}: {sampled} of {flows}"
                );
            }
        }
    }

    #[test]
    fn a_higher_rate_samples_some_of_a_lower_ones_flows_wherever_they_are_seen() {
        for port in 0..10_000 {
            let here = key(7, port);
            let elsewhere = FlowKey {
                netns: 1,
                ifindex: 2,
                vlan_ids: [3, 4],
                ..here
            };
            let sampled = |key, rate| is_sampled(key, threshold(rate));
            assert!(!sampled(&here, 1000) || sampled(&here, 10));
            assert_eq!(sampled(&here, 10), sampled(&elsewhere, 10));
        }
    }

    #[test]
    fn a_flow_is_sampled_whose_hash_is_under_the_threshold() {
        for port in 0..100 {
            let key = key(7, port);
            let upper_half = (hash(&key) >> 32) as u32;
            assert!(!is_sampled(&key, upper_half));
            assert!(is_sampled(&key, upper_half + 1));
        }
    }

    #[test]
    fn the_choice_is_the_same_in_every_version_of_the_agent() {
        let sampled: Vec<u16> = (0..300)
            .filter(|&port| is_sampled(&key(7, port), threshold(50)))
            .collect();
        assert_eq!(sampled, [7, 15, 26, 58, 122, 186, 262]);
    }
}
