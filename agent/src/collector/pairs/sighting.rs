//! What of a batch it takes to compare agents: what is known of the agent after it, and how many packets of each flow passed
//! on which side of its interfaces.

use std::net::IpAddr;

use crate::{
    collector::incoming::Incoming,
    output::human,
    proto::{Account, AgentIdentity, Direction, FlowRecord, pair},
};

/// A batch, for those who compare agents.
pub(in crate::collector) struct Sightings {
    pub agent: AgentIdentity,
    pub stream_id: u64,
    pub seq: u64,
    /// When the scan's window began and ended, Unix time in nanoseconds. Zero in a batch that only tells of losses.
    pub window: [u64; 2],
    pub is_last_of_scan: bool,
    /// Packets may be reported that much later than the scan that counted them.
    pub report_interval_ns: u64,
    pub(super) gaps: Gaps,
    pub has_refused: bool,
    pub is_final: bool,
    pub(super) flows: Vec<Sighting>,
}

/// What makes sums incomplete, counted since the stream or the agent began. The last three are absent but in the last batch
/// of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    pub lost_batches: u64,
    pub account: Option<[u64; 3]>,
}

/// Packets of one record.
pub(super) struct Sighting {
    pub flow: FlowId,
    pub ends: Ends,
    /// From the first end, then from the second.
    pub ways: [Way; 2],
    /// When the flow began, if this is its first record.
    pub began: Option<u64>,
    pub last_seen: u64,
}

/// The packets from one end to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// Absent if that is not known.
    pub side: Option<Side>,
    pub sum: Sum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Arriving,
    Leaving,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub packets: u64,
    pub ip_bytes: u64,
}

/// What is the same at both agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowId {
    pub community_id: [u8; 20],
    encapsulation: i32,
    tunnel_id: Option<u32>,
}

/// The lower end first, so that it does not depend on who was taken for the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub protocol: u32,
    pub addr: [IpAddr; 2],
    pub port: [Option<u32>; 2],
}

impl Sightings {
    pub(in crate::collector) fn of(incoming: &Incoming) -> Self {
        let batch = &incoming.batch;
        Self {
            agent: incoming.agent(),
            stream_id: batch.stream_id,
            seq: batch.stream_seq,
            window: [batch.window_start_unix_ns, batch.window_end_unix_ns],
            is_last_of_scan: batch.last_of_scan,
            report_interval_ns: batch.report_interval_ns,
            gaps: Gaps {
                lost_batches: batch.lost_batches,
                account: batch.account.as_ref().map(gaps),
            },
            has_refused: batch.refused_in_window,
            is_final: batch
                .account
                .as_ref()
                .is_some_and(|account| account.r#final),
            flows: batch.records.iter().filter_map(Sighting::of).collect(),
        }
    }

    /// What it takes in memory.
    pub(in crate::collector) fn bytes(&self) -> usize {
        self.flows.len() * size_of::<Sighting>()
    }
}

/// Packets that no record has although they passed: refused, filtered, and counted without knowing how many there were.
fn gaps(account: &Account) -> [u64; 3] {
    let inexact = account
        .beside
        .get("inexact")
        .map_or(0, |count| count.packets);
    [
        account.not_inserted_sum().packets,
        pair(account.filtered).packets,
        inexact,
    ]
}

impl Sighting {
    /// Nothing, if no agent would have made the record.
    fn of(record: &FlowRecord) -> Option<Self> {
        let addr = [&record.src_addr, &record.dst_addr].map(|bytes| human::address(bytes));
        let [Some(src), Some(dst)] = addr else {
            return None;
        };
        let community_id = record.community_id[..].try_into().ok()?;
        let forward = side(record.direction());
        let reverse = side(record.reverse_direction()).or(forward.map(Side::opposite));
        let mut ends = [(src, record.src_port), (dst, record.dst_port)];
        let mut ways = [
            Way {
                side: forward,
                sum: Sum {
                    packets: record.delta_packets,
                    ip_bytes: record.delta_ip_bytes,
                },
            },
            Way {
                side: reverse,
                sum: Sum {
                    packets: record.delta_reverse_packets,
                    ip_bytes: record.delta_reverse_ip_bytes,
                },
            },
        ];
        if ends[1] < ends[0] {
            ends.swap(0, 1);
            ways.swap(0, 1);
        }
        let is_first = record.total_packets == record.delta_packets
            && record.total_reverse_packets == record.delta_reverse_packets;
        Some(Self {
            flow: FlowId {
                community_id,
                encapsulation: record.encapsulation.unwrap_or_default(),
                tunnel_id: record.tunnel_id,
            },
            ends: Ends {
                protocol: record.protocol,
                addr: ends.map(|(addr, _)| addr),
                port: ends.map(|(_, port)| port),
            },
            ways,
            began: is_first.then_some(record.first_seen_unix_ns),
            last_seen: record.last_seen_unix_ns,
        })
    }
}

fn side(direction: Direction) -> Option<Side> {
    match direction {
        Direction::Unspecified => None,
        Direction::Ingress => Some(Side::Arriving),
        Direction::Egress => Some(Side::Leaving),
    }
}

impl Side {
    fn opposite(self) -> Self {
        match self {
            Self::Arriving => Self::Leaving,
            Self::Leaving => Self::Arriving,
        }
    }
}

impl std::ops::AddAssign for Sum {
    /// Whoever sends may have made any number of it.
    fn add_assign(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.ip_bytes = self.ip_bytes.saturating_add(other.ip_bytes);
    }
}
