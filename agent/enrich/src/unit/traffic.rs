//! Traffic that systemd units and containers have sent and received, for the metrics.
//!
//! A host may run any number of units in its lifetime, but a metric must not have any number of series. So the number
//! of units is bounded, and units that have been quiet for long make room for others.

use std::collections::BTreeMap;

use flows::replica::Exchanged;

use super::cgroups::Cgroups;

/// The most units and containers with series of their own.
pub const MOST: usize = 500;

/// A unit that has been quiet for this long makes room for another one.
const QUIET_NS: u64 = 3_600_000_000_000;

/// Traffic without a known socket, or of a socket outside any unit.
pub const UNKNOWN: &str = "unknown";
/// Traffic of units that found no room.
pub const OTHER: &str = "other";
/// Traffic of units that have made room.
pub const DEPARTED: &str = "departed";

/// Both are empty for a socket outside any unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Unit {
    unit: String,
    container_id: String,
}

struct Traffic {
    exchanged: Exchanged,
    /// Time since boot.
    last_ns: u64,
}

pub struct Units {
    cgroups: Cgroups,
    by_unit: BTreeMap<Unit, Traffic>,
    unknown: Exchanged,
    other: Exchanged,
    departed: Exchanged,
}

impl Units {
    pub fn new(cgroups: Cgroups) -> Self {
        Self {
            cgroups,
            by_unit: BTreeMap::new(),
            unknown: Exchanged::default(),
            other: Exchanged::default(),
            departed: Exchanged::default(),
        }
    }

    /// Adds the traffic that a scan counted, by cgroup id. `now_ns` is the time since boot.
    pub fn add(&mut self, counted: impl Iterator<Item = (u64, Exchanged)>, now_ns: u64) {
        let mut by_id = BTreeMap::new();
        for (id, exchanged) in counted {
            if id == 0 {
                self.unknown += exchanged;
            } else {
                by_id.insert(id, exchanged);
            }
        }
        let mut new = BTreeMap::<Unit, Exchanged>::new();
        let ids: Vec<u64> = by_id.keys().copied().collect();
        for cgroup in self.cgroups.lookup_all(&ids) {
            let exchanged = by_id.get(&cgroup.id).copied().unwrap_or_default();
            let unit = Unit {
                unit: cgroup.unit,
                container_id: cgroup.container_id,
            };
            if unit == Unit::default() {
                self.unknown += exchanged;
            } else if let Some(traffic) = self.by_unit.get_mut(&unit) {
                traffic.exchanged += exchanged;
                traffic.last_ns = now_ns;
            } else {
                *new.entry(unit).or_default() += exchanged;
            }
        }
        // After the loop, when every unit's last traffic is up to date.
        for (unit, exchanged) in new {
            self.begin(unit, exchanged, now_ns);
        }
    }

    fn begin(&mut self, unit: Unit, exchanged: Exchanged, now_ns: u64) {
        if self.by_unit.len() >= MOST && !self.make_room(now_ns) {
            self.other += exchanged;
            return;
        }
        let last_ns = now_ns;
        self.by_unit.insert(unit, Traffic { exchanged, last_ns });
    }

    fn make_room(&mut self, now_ns: u64) -> bool {
        let all = self.by_unit.iter();
        let quietest = all.min_by_key(|(_, traffic)| traffic.last_ns);
        let Some((unit, traffic)) = quietest else {
            return false;
        };
        if now_ns.saturating_sub(traffic.last_ns) < QUIET_NS {
            return false;
        }
        let unit = unit.clone();
        if let Some(traffic) = self.by_unit.remove(&unit) {
            self.departed += traffic.exchanged;
        }
        true
    }

    /// The traffic of all units, then [`UNKNOWN`], [`OTHER`] and [`DEPARTED`].
    pub fn status(&self) -> Vec<proto::UnitTraffic> {
        let of = |unit: &str, container_id: &str, exchanged: Exchanged| proto::UnitTraffic {
            unit: unit.to_owned(),
            container_id: container_id.to_owned(),
            sent: Some(exchanged.sent.into()),
            received: Some(exchanged.received.into()),
        };
        let named = self.by_unit.iter();
        let named =
            named.map(|(unit, traffic)| of(&unit.unit, &unit.container_id, traffic.exchanged));
        let rest = [
            (UNKNOWN, self.unknown),
            (OTHER, self.other),
            (DEPARTED, self.departed),
        ];
        let rest = rest.map(|(name, exchanged)| of(name, "", exchanged));
        named.chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use agent_common::Pair;

    use super::*;

    fn sent(packets: u64) -> Exchanged {
        Exchanged {
            sent: Pair {
                packets,
                bytes: 60 * packets,
            },
            received: Pair {
                packets: 1,
                bytes: 7,
            },
        }
    }

    fn told(units: &Units) -> Vec<(String, u64, u64)> {
        let of = |one: proto::UnitTraffic| {
            let name = format!(
                "{}{}",
                one.unit,
                one.container_id.get(..2).unwrap_or_default()
            );
            (
                name,
                one.sent.unwrap().packets,
                one.received.unwrap().packets,
            )
        };
        units.status().into_iter().map(of).collect()
    }

    #[test]
    fn cgroups_of_one_unit_are_one_and_what_is_of_none_is_said() {
        let id = "ab".repeat(32);
        let container = format!("/system.slice/docker-{id}.scope");
        let cgroups = Cgroups::with_known(&[
            (7, "/system.slice/web.service/one"),
            (8, "/system.slice/web.service/two"),
            (9, "/somewhere"),
            (10, &container),
        ]);
        let mut units = Units::new(cgroups);
        let all = [(7, 1), (8, 2), (9, 4), (0, 8), (11, 16), (10, 32)];
        units.add(all.into_iter().map(|(id, packets)| (id, sent(packets))), 0);
        units.add([(7, sent(64))].into_iter(), 1);
        let docker = format!("docker-{id}.scopeab");
        let expected = [
            (docker.as_str(), 32, 1),
            ("web.service", 67, 3),
            // A cgroup outside any unit, no socket, and an unknown cgroup.
            (UNKNOWN, 28, 3),
            (OTHER, 0, 0),
            (DEPARTED, 0, 0),
        ];
        assert_eq!(
            told(&units),
            expected.map(|(unit, sent, received)| (unit.to_owned(), sent, received))
        );
    }

    #[test]
    fn who_finds_no_room_is_among_the_others_until_somebody_is_quiet() {
        let paths: Vec<_> = (1..=MOST as u64 + 2)
            .map(|id| (id, format!("/system.slice/{id}.service")))
            .collect();
        let cgroups: Vec<_> = paths
            .iter()
            .map(|(id, path)| (*id, path.as_str()))
            .collect();
        let mut units = Units::new(Cgroups::with_known(&cgroups));
        let most = MOST as u64;
        units.add((1..=most).map(|id| (id, sent(1))), 0);
        units.add([(most + 1, sent(5))].into_iter(), QUIET_NS - 1);
        let of = |units: &Units, name: &str| {
            let told = told(units);
            told.iter().find(|one| one.0 == name).map(|one| one.1)
        };
        assert_eq!(of(&units, OTHER), Some(5));
        // All units but the first send again.
        units.add((2..=most).map(|id| (id, sent(1))), QUIET_NS - 1);
        // A unit with traffic in the same scan does not make room.
        let both = [(most + 1, sent(6)), (most + 2, sent(7)), (2, sent(1))];
        units.add(both.into_iter(), 2 * QUIET_NS - 2);
        assert_eq!(of(&units, "1.service"), None);
        assert_eq!(of(&units, "2.service"), Some(3));
        assert_eq!(of(&units, &format!("{}.service", most + 1)), Some(6));
        // No unit was quiet enough to make room for the second one.
        assert_eq!(of(&units, OTHER), Some(12));
        assert_eq!(of(&units, DEPARTED), Some(1));
        let told = told(&units);
        assert_eq!(told.len(), MOST + 3);
        let all: u64 = told.iter().map(|one| one.1).sum();
        assert_eq!(all, most + 5 + (most - 1) + 6 + 7 + 1);
    }
}
