//! The part of a batch that is needed to compare agents: the state of the agent after it, and how many packets of each
//! flow passed on which side of its interfaces.

use std::net::IpAddr;

use agent_common::Direction;
use formats::human;
use proto::{Account, AgentIdentity, FlowBatch, FlowRecord, pair};
use tls::identity::Identity;

use super::details::{Details, Names};
use crate::incoming::Incoming;

/// The most interfaces known per agent. Flows at any others are never exact.
pub(super) const MOST_INTERFACES: usize = 4096;

/// A batch, reduced to what comparing agents needs.
pub(crate) struct Sightings {
    pub agent: AgentIdentity,
    /// The sender that is charged for places. For batches from a relay, the sender that the first collector saw.
    pub sender: Identity,
    pub stream_id: u64,
    pub seq: u64,
    /// When the scan's window began and ended, Unix time in nanoseconds. Zero in a batch that only reports losses.
    pub window: [u64; 2],
    pub is_last_of_scan: bool,
    /// How much later than the scan that counted them packets may be reported.
    pub report_interval_ns: u64,
    /// One flow in this many was counted.
    pub sample_rate: u32,
    pub(super) gaps: Gaps,
    pub has_refused: bool,
    pub is_final: bool,
    /// The interfaces where the scan can have seen flows.
    pub(super) interfaces: Vec<(u32, u32)>,
    pub(super) flows: Vec<Sighting>,
    bytes_of_names: usize,
}

/// Causes of incomplete sums, counted since the stream or the agent began. `account` is `None` except in the last
/// batch of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    pub lost_batches: u64,
    pub account: Option<[u64; 4]>,
}

/// The packets of one record.
pub(super) struct Sighting {
    pub flow: FlowId,
    /// Packets from the first end, then from the second.
    pub ways: [Way; 2],
    /// No packet of the record is older.
    pub since: u64,
    pub last_seen: u64,
    /// The network namespace and the index of the interface.
    pub interface: (u32, u32),
    /// Whether the record counts all packets of the flow so far.
    pub is_first: bool,
    /// `None` unless conversations are made.
    pub details: Option<Box<Details>>,
}

/// The packets from one end to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// `None` if the side is unknown.
    pub side: Option<Direction>,
    pub sum: Sum,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub packets: u64,
    pub ip_bytes: u64,
}

/// Identifies a flow at all agents. Includes the ends, since a sender may send the Community ID of a flow between
/// other ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowId {
    pub community_id: [u8; 20],
    pub ends: Ends,
    encapsulation: i32,
    tunnel_id: Option<u32>,
}

/// The two ends, the lower one first, so the order does not depend on the assumed initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    pub protocol: u32,
    pub addr: [IpAddr; 2],
    pub port: [Option<u32>; 2],
}

impl Sightings {
    pub(crate) fn of(incoming: &Incoming, with_details: bool) -> Self {
        let batch = &incoming.batch;
        let names = with_details.then(|| Names::of(batch));
        Self {
            agent: incoming.agent(),
            sender: incoming.sender.of_host().start().clone(),
            stream_id: batch.stream_id,
            seq: batch.stream_seq,
            window: [batch.window_start_unix_ns, batch.window_end_unix_ns],
            is_last_of_scan: batch.last_of_scan,
            report_interval_ns: batch.report_interval_ns,
            sample_rate: batch.sample_rate,
            gaps: Gaps {
                lost_batches: batch.lost_batches,
                account: batch.account.as_ref().map(gaps),
            },
            has_refused: batch.refused_in_window,
            is_final: batch
                .account
                .as_ref()
                .is_some_and(|account| account.r#final),
            interfaces: batch
                .interfaces
                .iter()
                .map(|interface| (interface.netns, interface.ifindex))
                .take(MOST_INTERFACES)
                .collect(),
            flows: batch
                .records
                .iter()
                .filter_map(|record| Sighting::of(record, batch, names.as_ref()))
                .collect(),
            bytes_of_names: names.as_ref().map_or(0, Names::bytes),
        }
    }

    /// The memory it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let details = self.flows.iter().filter(|flow| flow.details.is_some());
        size_of_val(&self.flows[..])
            + size_of_val(&self.interfaces[..])
            + details.count() * size_of::<Details>()
            + self.bytes_of_names
    }
}

/// Packets that passed and are in no record: refused, filtered, counted in super-frames of unknown size, and fragments
/// that are in another flow.
fn gaps(account: &Account) -> [u64; 4] {
    let beside = |name| account.beside.get(name).map_or(0, |count| count.packets);
    [
        account.not_inserted_sum().packets,
        pair(account.filtered).packets,
        beside("inexact"),
        beside("fragments_unmatched"),
    ]
}

/// Whether an address means the same host wherever it is seen, as far as the address shows.
fn is_one_host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified() || v4.is_loopback() || v4.is_link_local() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_loopback() || v6.is_unicast_link_local()),
    }
}

impl Sighting {
    pub(super) fn has_packets(&self) -> bool {
        self.ways.iter().any(|way| way.sum.packets > 0)
    }

    /// Returns `None` if no agent would have made the record, if the address may mean another host on each link, or if
    /// the record says nothing new: it has no packets, and nothing that a conversation needs.
    fn of(record: &FlowRecord, batch: &FlowBatch, names: Option<&Names>) -> Option<Self> {
        let has_packets = record.ends().iter().any(|end| end.delta_packets > 0);
        let is_news = names.is_some() && Details::are_news(record);
        if !has_packets && !is_news {
            return None;
        }
        let addr = [&record.src().addr, &record.dst().addr].map(|bytes| human::address(bytes));
        let [Some(src), Some(dst)] = addr else {
            return None;
        };
        if ![src, dst].into_iter().all(is_one_host) {
            return None;
        }
        let community_id = record.community_id[..].try_into().ok()?;
        let [forward, reverse] = human::directions(record).map(|side| side?.side());
        let mut ends = [(src, record.src().port), (dst, record.dst().port)];
        let mut ways = [
            Way {
                side: forward,
                sum: Sum {
                    packets: record.src().delta_packets,
                    ip_bytes: record.src().delta_ip_bytes,
                },
            },
            Way {
                side: reverse,
                sum: Sum {
                    packets: record.dst().delta_packets,
                    ip_bytes: record.dst().delta_ip_bytes,
                },
            },
        ];
        let is_swapped = ends[1] < ends[0];
        if is_swapped {
            ends.swap(0, 1);
            ways.swap(0, 1);
        }
        let is_first = record.src().total_packets == record.src().delta_packets
            && record.dst().total_packets == record.dst().delta_packets;
        Some(Self {
            flow: FlowId {
                community_id,
                ends: Ends {
                    protocol: record.protocol,
                    addr: ends.map(|(addr, _)| addr),
                    port: ends.map(|(_, port)| port),
                },
                encapsulation: record.encapsulation.unwrap_or_default(),
                tunnel_id: record.tunnel_id,
            },
            ways,
            since: if is_first {
                record.first_seen_unix_ns
            } else {
                let begin = batch.window_start_unix_ns;
                begin.saturating_sub(batch.report_interval_ns)
            },
            // With a later time, a sender could delay the reports of other senders' flows.
            last_seen: record.last_seen_unix_ns.min(batch.window_end_unix_ns),
            interface: (record.netns, record.ifindex),
            is_first,
            details: names.map(|names| Box::new(Details::of(record, names, is_swapped))),
        })
    }
}

impl std::ops::AddAssign for Sum {
    /// Saturates, since a sender may send any number.
    fn add_assign(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.ip_bytes = self.ip_bytes.saturating_add(other.ip_bytes);
    }
}
