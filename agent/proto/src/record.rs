//! The record that the flow cache makes of one flow after one scan, before it is encoded.

use agent_common::{Counts, Direction, FlowKey, Outer, TcpInfo};

use crate::round_trip::RoundTrip;

/// Why a flow ended: the values of IPFIX element 136, `flowEndReason` (RFC 5102).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// No packet was seen for the idle timeout.
    IdleTimeout = 1,
    /// The record of a continuing flow. Not used, since a continuing flow has no end reason.
    ActiveTimeout = 2,
    /// FIN from both sides (from one side if only that one was seen), or RST.
    EndOfFlow = 3,
    /// The agent stopped, or packets of the flow appeared at a side of the interface that its earlier records
    /// do not name.
    ForcedEnd = 4,
    /// The flow cache was full, and this flow had been quiet for the longest time.
    LackOfResources = 5,
}

/// How a flow failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The initiator's SYN was answered by RST.
    Refused,
    /// Until the idle timeout, the initiator sent only SYNs and no packet came back.
    Unanswered,
    /// The only answer was an ICMP error that quotes a packet of the initiator.
    Unreachable(IcmpError),
    /// One end of a connection sent RST before both had sent FIN, and nothing shows that the other end
    /// ignored it.
    Reset,
}

impl Failure {
    /// The number in the enum in `flow.proto`.
    pub fn number(self) -> u64 {
        match self {
            Self::Refused => 1,
            Self::Unanswered => 2,
            Self::Unreachable(_) => 3,
            Self::Reset => 4,
        }
    }
}

/// The type and code of an ICMP error; of an ICMPv6 error if the flow is IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    pub icmp_type: u8,
    pub code: u8,
}

/// How a name was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameOrigin {
    /// The other end of the flow had queried the DNS for it.
    Dns = 1,
    /// Another client had queried the DNS for it.
    DnsOfAnother = 2,
    /// /etc/hosts has it.
    HostsFile = 3,
}

/// The name of one end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordName {
    /// The `HostName.id` in the batch.
    pub id: u64,
    pub source: NameOrigin,
}

/// One flow after one scan. `[0]` is forward, from the initiator; `[1]` is reverse.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub key: FlowKey,
    /// The endpoint of the key that is the initiator and therefore the record's source: 0 is a, 1 is b.
    pub initiator: u8,
    /// Whether the initiator is unproven. See `initiator_assumed` in `flow.proto`.
    pub initiator_assumed: bool,
    /// The side at which the initiator's packets are seen. Without any, the opposite of the side of the
    /// answers.
    pub direction: Direction,
    /// The side at which the answers are seen: the opposite one, except at a mirror port and on loopback,
    /// where both directions arrive.
    pub reverse_direction: Direction,
    /// Counts since the last record of this flow.
    pub delta: [Counts; 2],
    /// The time from the first to the last packet that `delta` counts; 0 for a single packet.
    pub delta_duration_ns: u64,
    /// Counts since the first packet of this flow.
    pub total: [Counts; 2],
    /// When the first packet was seen, Unix time in nanoseconds.
    pub first_seen_unix_ns: u64,
    /// When the last packet was seen, Unix time in nanoseconds, never before `first_seen_unix_ns`.
    pub last_seen_unix_ns: u64,
    /// The union of the TCP flag bytes since the first packet.
    pub tcp_flags: [u8; 2],
    /// The DSCP of the first packet, six bits (RFC 2474).
    pub dscp: u8,
    /// `None` while the flow continues.
    pub end_reason: Option<EndReason>,
    /// Whether the connection was closed and the flow waits for late packets.
    pub is_closing: bool,
    /// Community ID version 1 with seed 0: the SHA-1 digest, without `1:` and base64.
    pub community_id: [u8; 20],
    /// The endpoints of the tunnel around the flow.
    pub outer: Option<Outer>,
    /// The cgroups of the sockets that sent the packets; 0 if unknown.
    pub cgroup_ids: [u64; 2],
    /// The processes that made these sockets: [`Process::key`](agent_common::Process::key); 0 if unknown.
    pub process_keys: [u64; 2],
    /// Whether sockets of other cgroups or processes have also sent some of the packets.
    pub senders_shared: [bool; 2],
    /// The names of the source and the destination.
    pub names: [Option<RecordName>; 2],
    pub failure: Option<Failure>,
    /// What TCP measured on each side, as of the last packet at which it was read, or at the end of the
    /// connection.
    pub tcp: [TcpInfo; 2],
    /// The time from the interface to each end and back.
    pub round_trips: [RoundTrip; 2],
    /// Packets from each end that the kernel dropped after they had arrived and been counted, since the flow
    /// began.
    pub dropped: [u64; 2],
}
