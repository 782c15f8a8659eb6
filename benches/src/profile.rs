//! Synthetic flows, and the entries that a scan would drain for them, identical in every run.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use agent_common::{
    FlowCounters, FlowKey, L4Kind, Process, Sample, Senders, TcpInfo,
    flow::{Classes, FlowBits, tcp_flags},
    round_trip::Segment,
    slots::{self, Hash, Walk},
};
use enrich::{
    dns::{DEFAULT_NAMES, Dns},
    process::Processes,
    unit::cgroups::Cgroups,
};
use flows::names::Names;

/// A drained page: parallel lists of keys and counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    pub keys: Vec<FlowKey>,
    pub counters: Vec<FlowCounters>,
}

impl Page {
    /// About 30 % of the entries; each `choice` selects different ones.
    #[must_use]
    pub fn thinned(&self, choice: u64) -> Self {
        let entries = self.keys.iter().zip(&self.counters).zip(0..);
        let chosen = entries.filter(|&(_, number)| mix(choice << 32 | number) % 10 < 3);
        let (keys, counters) = chosen.map(|((key, counters), _)| (*key, *counters)).unzip();
        Self { keys, counters }
    }
}

/// A set of flows between one host and its peers, over [`Profile::PORTS`] on each peer.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub name: &'static str,
    pub flows: u32,
}

/// 50 peers with 8 ports each, the set for which probectl publishes its figures.
pub const PROBECTL: Profile = Profile {
    name: "probectl",
    flows: 400,
};

pub const PROFILES: [Profile; 5] = [
    PROBECTL,
    Profile {
        name: "10k",
        flows: 10_000,
    },
    Profile {
        name: "100k",
        flows: 100_000,
    },
    Profile {
        name: "500k",
        flows: 500_000,
    },
    Profile {
        name: "1m",
        flows: 1_000_000,
    },
];

/// The fill levels of the kernel's table.
pub const KERNEL_PROFILES: [Profile; 3] = [
    Profile {
        name: "1",
        flows: 1,
    },
    PROFILES[1],
    PROFILES[3],
];

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

const NETNS: u32 = 4_026_531_840;
const IFINDEX: u32 = 2;
/// Half of the peers have addresses below the host's, so the host is sometimes the first endpoint of the key, sometimes
/// the second.
const HOST_V4: [u8; 4] = [128, 0, 0, 1];
const HOST_V6: u8 = 0x80;
const UNITS: u64 = 50;
const PROCESSES_A_UNIT: u64 = 4;
const FIRST_CGROUP: u64 = 1000;
const FRAME_LENS_BYTES: [u64; 4] = [60, 118, 590, 1_514];

/// The `CLOCK_BOOTTIME` at which the scan drained the entries.
pub const SCAN_BOOT_NS: u64 = 3_600_000_000_000;
/// The tick of a kernel with 250 ticks per second.
pub const TICK_NS: u64 = 4_000_000;
const WINDOW_NS: u64 = 10_000_000_000;

/// The two endpoints of one flow, the host first.
#[derive(Clone, Copy, Debug)]
pub struct Conversation {
    pub ip_version: u8,
    pub protocol: u8,
    pub host: [u8; 16],
    pub peer: [u8; 16],
    pub host_port: u16,
    pub peer_port: u16,
}

impl Profile {
    pub const PORTS: [u16; 8] = [22, 53, 80, 123, 443, 853, 5432, 8080];

    /// A quarter of the peers use IPv6. DNS, NTP and HTTP/3 run over UDP.
    pub fn conversation(number: u32) -> Conversation {
        let ports = Self::PORTS.len() as u32;
        let (peer, port) = (number / ports, (number % ports) as usize);
        let ip_version = if peer % 4 == 3 { 6 } else { 4 };
        let mut conversation = Conversation {
            ip_version,
            protocol: if matches!(port, 1 | 3) || port == 4 && peer % 2 == 1 {
                UDP
            } else {
                TCP
            },
            host: [0; 16],
            peer: [0; 16],
            host_port: 32_768 + (number % 28_232) as u16,
            peer_port: Self::PORTS[port],
        };
        let side = if peer % 2 == 0 { 10 } else { 200 };
        let [_, high, middle, low] = peer.to_be_bytes();
        if ip_version == 4 {
            conversation.host[..4].copy_from_slice(&HOST_V4);
            conversation.peer[..4].copy_from_slice(&[side, high, middle, low]);
        } else {
            (conversation.host[0], conversation.host[15]) = (HOST_V6, 1);
            conversation.peer[0] = if peer % 8 == 3 { 0x20 } else { 0xa0 };
            conversation.peer[13..].copy_from_slice(&[high, middle, low]);
        }
        conversation
    }

    /// The entry of flow `number`: one or both directions, from few packets to many.
    pub fn entry(number: u32) -> (FlowKey, FlowCounters) {
        let bits = mix(u64::from(number));
        let packets = [1 + (bits & 0xff), (bits >> 8 & 0x3ff) * (bits >> 18 & 1)];
        let lens = [bits >> 20 & 3, bits >> 22 & 3].map(|index| FRAME_LENS_BYTES[index as usize]);
        let key = Self::conversation(number).key();
        let seen_ns = [bits >> 24, bits >> 32].map(|age| SCAN_BOOT_NS - 1 - age % WINDOW_NS);
        let mut counters = FlowCounters {
            packets,
            bytes: [packets[0] * lens[0], packets[1] * lens[1]],
            first_seen_ns: seen_ns[0].min(seen_ns[1]),
            last_seen_jiffies: (seen_ns[0].max(seen_ns[1]) / TICK_NS) as u32,
            bits: FlowBits::first((bits >> 19 & 1) as u8),
            classes: Classes::first(
                (bits >> 19 & 1) as u8,
                if bits.is_multiple_of(16) { 46 } else { 0 },
            ),
            ..FlowCounters::default()
        };
        if key.protocol == TCP {
            for (direction, _) in (0..).zip(packets).filter(|(_, packets)| *packets != 0) {
                let segment = FlowBits::segment(direction, tcp_flags::ACK | tcp_flags::PSH);
                counters.bits = counters.bits.and(segment);
            }
        }
        (key, counters)
    }

    /// The same entry with every enrichment, and the senders that the programs recorded.
    pub fn enriched_entry(number: u32) -> (FlowKey, FlowCounters, Senders) {
        let (key, mut counters) = Self::entry(number);
        let asked = FlowBits::asked(0).and(FlowBits::asked(1));
        counters.bits = counters.bits.and(asked);
        (key, counters, Self::senders(number))
    }

    /// The senders of flow `number`, at one end or both, and TCP's state.
    fn senders(number: u32) -> Senders {
        let bits = mix(u64::from(number));
        let unit = |side: u64| (bits >> (8 * side)) % UNITS;
        let both = [Some(unit(0)), (bits >> 40 & 1 == 0).then(|| unit(1))];
        let cgroup_ids = both.map(|unit| unit.map_or(0, |unit| FIRST_CGROUP + unit));
        let number_of = (bits >> 16) % PROCESSES_A_UNIT;
        let process_keys = both.map(|unit| unit.map_or(0, |unit| process(unit, number_of).key()));
        if Self::conversation(number).protocol != TCP {
            return Senders {
                cgroup_ids,
                process_keys,
                ..Senders::default()
            };
        }
        let rtt_us = 100 + (bits >> 20) as u32 % 10_000;
        let tcp = TcpInfo {
            rtt_us,
            min_rtt_us: rtt_us / 2,
            total_retrans: (bits >> 50 & 3) as u32,
            delivered: 1 + (bits & 0xff) as u32,
            data_segs_out: 2 + (bits & 0xff) as u32,
            ..TcpInfo::default()
        };
        let segment = Segment {
            flags: tcp_flags::ACK,
            sequence: number,
            acknowledgment: 0,
            payload_len_bytes: 100,
        };
        let sent_ns = SCAN_BOOT_NS - WINDOW_NS;
        let sample = Sample::begun(&segment, sent_ns).ended(sent_ns + u64::from(rtt_us) * 1000);
        Senders {
            cgroup_ids,
            process_keys,
            tcp: [tcp, TcpInfo::default()],
            round_trips: [sample; 2],
        }
    }

    /// The names of every cgroup, process and host in the records.
    pub fn names(self) -> Names {
        let path = |unit| {
            (
                FIRST_CGROUP + unit,
                format!("/system.slice/worker-{unit}.service"),
            )
        };
        let paths: Vec<_> = (0..UNITS).map(path).collect();
        let paths: Vec<_> = paths
            .iter()
            .map(|(id, path)| (*id, path.as_str()))
            .collect();
        let of_unit = |unit| (0..PROCESSES_A_UNIT).map(move |number| process(unit, number));
        Names {
            cgroups: Some(Arc::new(Cgroups::with_known(&paths))),
            processes: Some(Arc::new(Processes::with_known(
                (0..UNITS).flat_map(of_unit).collect(),
            ))),
            hosts: Some(Arc::new(self.hosts())),
        }
    }

    /// A name for each peer, up to the agent's limit on names. The host looked them up before its flows began.
    fn hosts(self) -> Dns {
        let dns = Dns::with_known(NETNS, &[]);
        let ports = Self::PORTS.len() as u32;
        let peers = self.flows.div_ceil(ports).min(DEFAULT_NAMES);
        for peer in 0..peers {
            let Conversation {
                ip_version,
                host,
                peer: address,
                ..
            } = Self::conversation(peer * ports);
            let text = |bytes: [u8; 16]| {
                let [a, b, c, d, ..] = bytes;
                let address: IpAddr = if ip_version == 4 {
                    Ipv4Addr::new(a, b, c, d).into()
                } else {
                    Ipv6Addr::from(bytes).into()
                };
                address.to_string()
            };
            let (name, client, address) =
                (format!("peer-{peer}.example"), text(host), text(address));
            let asked_ns = SCAN_BOOT_NS - 2 * WINDOW_NS;
            dns.learn_known(NETNS, &[(&name, &client, &address, asked_ns)]);
        }
        dns
    }

    /// All entries in the order in which a scan drains a page: window by window, and by tag within a window. A flow
    /// whose first window is full goes to its second; which flows those are depends on the order of arrival, which
    /// differs by page. Flows whose two windows are both full come last.
    pub fn page(self, page: u32) -> Page {
        let windows = (self.flows * 4 / 3).div_ceil(slots::SLOTS);
        let mut placed = vec![[None; slots::SLOTS as usize]; windows as usize];
        let mut behind = Vec::new();
        let mut arrivals: Vec<u32> = (0..self.flows).collect();
        arrivals.sort_unstable_by_key(|&number| mix(u64::from(page) << 32 | u64::from(number)));
        for number in arrivals {
            let (key, _) = Self::entry(number);
            let first = Hash::of(&key, |index| mix(index as u64));
            let free = [first, first.again()].into_iter().find_map(|hash| {
                let Walk { window, start, tag } = hash.walk(windows);
                let mut slots = (start..start + slots::SLOTS).map(|slot| slot % slots::SLOTS);
                let free = slots.find(|&slot| placed[window as usize][slot as usize].is_none());
                free.map(|slot| (window, slot, tag))
            });
            match free {
                Some((window, slot, tag)) => {
                    placed[window as usize][slot as usize] = Some((tag, number));
                }
                None => behind.push(number),
            }
        }
        for window in &mut placed {
            window.sort_unstable();
        }
        let placed = placed.into_iter().flatten().flatten();
        let order = placed.map(|(_, number)| number).chain(behind);
        let (keys, counters) = order.map(Self::entry).unzip();
        Page { keys, counters }
    }

    pub fn pages(self) -> [Page; 2] {
        [self.page(0), self.page(1)]
    }
}

impl Conversation {
    pub fn key(self) -> FlowKey {
        let (host, peer) = ((self.host, self.host_port), (self.peer, self.peer_port));
        let (a, b) = if host < peer {
            (host, peer)
        } else {
            (peer, host)
        };
        FlowKey {
            addr_a: a.0,
            addr_b: b.0,
            port_a: a.1,
            port_b: b.1,
            netns: NETNS,
            ifindex: IFINDEX,
            ip_version: self.ip_version,
            protocol: self.protocol,
            l4_kind: L4Kind::Ports as u8,
            ..FlowKey::default()
        }
    }
}

/// One of a unit's processes.
fn process(unit: u64, number: u64) -> Process {
    let pid = FIRST_CGROUP + unit * PROCESSES_A_UNIT + number;
    Process {
        name: [u64::from_ne_bytes(*b"worker\0\0"), 0],
        uid: unit as u32,
        pid: pid as u32,
    }
}

/// The finalizer of splitmix64: maps neighbouring numbers to unrelated ones.
fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_flow_of_a_profile_has_a_key_of_its_own() {
        let keys: HashSet<FlowKey> = PROFILES[2].page(0).keys.into_iter().collect();
        assert_eq!(keys.len(), PROFILES[2].flows as usize);
    }

    #[test]
    fn both_pages_hold_the_same_flows_in_other_orders() {
        let [first, second] = PROBECTL.pages();
        assert_ne!(first, second);
        let sorted = |page: Page| {
            let mut entries: Vec<_> = page.keys.into_iter().zip(page.counters).collect();
            entries.sort_unstable_by_key(|&(key, _)| key);
            entries
        };
        assert_eq!(sorted(first), sorted(second));
    }

    #[test]
    fn the_flows_are_mixed() {
        let Page { keys, counters } = PROBECTL.page(0);
        let of_keys = |matches: fn(&FlowKey) -> bool| keys.iter().filter(|k| matches(k)).count();
        let of_counters =
            |matches: fn(&FlowCounters) -> bool| counters.iter().filter(|c| matches(c)).count();
        for mixed in [
            of_keys(|key| key.ip_version == 6),
            of_keys(|key| key.protocol == UDP),
            of_keys(|key| key.addr_a[..4] == HOST_V4),
            of_counters(|counters| counters.packets[1] == 0),
            of_counters(|counters| counters.bits.first_direction() == 1),
        ] {
            assert!((40..360).contains(&mixed), "{mixed} of 400");
        }
    }
}
