//! Counters of each hook, and traffic by direction and protocol.
//!
//! When an interface leaves, its series go. Its counts stay in the families without an interface label.

use std::{collections::BTreeMap, fmt};

use agent_common::{Direction, Pair};
use proto::{Account, Count, Hook, HookStatus, pair};

use super::{
    Shown,
    families::{Families, Help, Labels},
};

/// Follows the description of the packets.
pub(super) const BYTES: &str = "Their layer-2 bytes without FCS";

impl Shown {
    pub(super) fn traffic(&self, families: &mut Families<'_>) -> fmt::Result {
        let traffic = self.status.traffic.clone().unwrap_or_default();
        let mut all = BTreeMap::<Labels, Count>::new();
        for (direction, by_protocol) in [
            (Direction::Ingress, traffic.ingress),
            (Direction::Egress, traffic.egress),
        ] {
            for (protocol, count) in by_protocol {
                all.insert(traffic_labels(Vec::new(), direction, &protocol), count);
            }
        }
        families.traffic(
            Help(
                "flow_agent_traffic_packets",
                "Packets in flows by direction and protocol, of all interfaces, those that have left included",
            ),
            Help("flow_agent_traffic_bytes", BYTES),
            &all,
        )?;

        let mut by_interface = BTreeMap::<Labels, Count>::new();
        for hook in &self.status.hooks {
            let direction = match hook.hook() {
                Hook::TcEgress => Direction::Egress,
                Hook::TcIngress | Hook::Xdp | Hook::Unspecified => Direction::Ingress,
            };
            for (protocol, &count) in &hook.traffic {
                let labels = traffic_labels(interface_labels(hook), direction, protocol);
                let sum = by_interface.entry(labels).or_default();
                *sum = (Pair::from(*sum) + Pair::from(count)).into();
            }
        }
        families.traffic(
            Help(
                "flow_agent_interface_packets",
                "Packets in flows by interface, direction and protocol",
            ),
            Help("flow_agent_interface_bytes", BYTES),
            &by_interface,
        )
    }

    pub(super) fn hooks(&self, families: &mut Families<'_>) -> fmt::Result {
        type Of = fn(&HookStatus) -> u64;
        let all: [(Help<'_>, Of); 5] = [
            (
                Help("flow_agent_hook_seen_packets", "Packets seen at one hook"),
                |hook| seen_at(hook).packets,
            ),
            (
                Help(
                    "flow_agent_hook_seen_bytes",
                    "Their layer-2 bytes without FCS",
                ),
                |hook| seen_at(hook).bytes,
            ),
            (
                Help(
                    "flow_agent_hook_left_out_packets",
                    "Packets seen at one hook that the settings leave out",
                ),
                left_out_at,
            ),
            (
                Help(
                    "flow_agent_hook_unparsed_packets",
                    "Packets seen at one hook that could not be read as part of a flow",
                ),
                |hook| {
                    sum(hook
                        .account
                        .iter()
                        .flat_map(|account| account.unparsed.values()))
                },
            ),
            (
                Help(
                    "flow_agent_hook_lost_packets",
                    "Packets seen at one hook that the flow table did not take",
                ),
                |hook| {
                    sum(hook
                        .account
                        .iter()
                        .flat_map(|account| account.not_inserted.values()))
                },
            ),
        ];
        for (help, of) in all {
            let hooks = self.status.hooks.iter();
            let series = hooks.map(|hook| (hook_labels(hook), of(hook)));
            families.counter(help, summed(series))?;
        }
        Ok(())
    }
}

/// Merges series with the same labels. An interface that was deselected and selected again has old and new hooks until
/// a scan has drained the old ones, and Prometheus rejects a text that has a series twice.
fn summed(series: impl Iterator<Item = (Labels, u64)>) -> BTreeMap<Labels, u64> {
    let mut all = BTreeMap::new();
    for (labels, value) in series {
        *all.entry(labels).or_default() += value;
    }
    all
}

fn seen_at(hook: &HookStatus) -> Pair {
    pair(hook.account.as_ref().and_then(|account| account.seen))
}

fn left_out_at(hook: &HookStatus) -> u64 {
    let left_out = |account: &Account| pair(account.filtered) + pair(account.sampled_out);
    hook.account
        .as_ref()
        .map_or(0, |account| left_out(account).packets)
}

fn sum<'a>(counts: impl Iterator<Item = &'a Count>) -> u64 {
    counts.map(|count| count.packets).sum()
}

fn interface_labels(hook: &HookStatus) -> Labels {
    let interface = hook.interface.clone().unwrap_or_default();
    vec![
        ("netns", interface.netns_name),
        ("interface", interface.name),
        ("ifindex", interface.ifindex.to_string()),
    ]
}

fn traffic_labels(mut labels: Labels, direction: Direction, protocol: &str) -> Labels {
    labels.push(("direction", direction.name().to_owned()));
    labels.push(("protocol", protocol.to_owned()));
    labels
}

/// Labels of one hook. A recreated interface has another index, so no series goes back to 0.
fn hook_labels(hook: &HookStatus) -> Labels {
    let mut labels = interface_labels(hook);
    labels.push(("hook", hook.hook().name().to_owned()));
    labels.push(("mode", hook.mode().name().to_owned()));
    labels
}
