//! The flow record: what the replica reports about one flow after one scan, before it is encoded.

use agent_common::{Counts, Direction, FlowKey, Outer, TcpInfo};

use crate::round_trip::RoundTrip;

/// Why a flow ended: the values of IPFIX element 136, `flowEndReason` (RFC 5102).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// No packet for the idle timeout.
    IdleTimeout = 1,
    /// A record of a flow that goes on. Not used, since a living flow has no end reason.
    ActiveTimeout = 2,
    /// FIN from both sides (from one side if only that one was seen), or RST.
    EndOfFlow = 3,
    /// The agent stopped, or the flow's packets were seen on sides of the interface that do not fit its earlier
    /// records.
    ForcedEnd = 4,
    /// The replica was full, and this flow had been quiet for the longest time.
    LackOfResources = 5,
}

/// What came of the flow's connection, if it did not do what it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The initiator's SYN was answered by RST.
    Refused,
    /// The initiator sent nothing but SYN, and nothing was seen to come back, until the idle timeout.
    Unanswered,
    /// Nothing came back but an ICMP error that quotes a packet of the initiator.
    Unreachable(IcmpError),
    /// One end of a connection sent RST before both had sent FIN, and nothing showed that the other one ignored it.
    Reset,
}

impl Failure {
    /// As the enum in `flow.proto` numbers it.
    pub fn number(self) -> u64 {
        match self {
            Self::Refused => 1,
            Self::Unanswered => 2,
            Self::Unreachable(_) => 3,
            Self::Reset => 4,
        }
    }
}

/// Type and code, of ICMP or ICMPv6 as the flow's IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    pub icmp_type: u8,
    pub code: u8,
}

/// How a name was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameOrigin {
    /// The other end of the flow asked for it before.
    Dns = 1,
    /// Somebody else did.
    DnsOfAnother = 2,
    /// The file of hosts has it.
    HostsFile = 3,
}

/// What one end of a flow is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordName {
    /// By which the batch says what the name is.
    pub id: u64,
    pub source: NameOrigin,
}

/// One flow after one scan. `[0]` is forward, from the initiator; `[1]` is reverse.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub key: FlowKey,
    /// Which endpoint of the key is the initiator and thus the record's source: 0 is a, 1 is b.
    pub initiator: u8,
    /// Whether that is not known. See `initiator_assumed` in `flow.proto`.
    pub initiator_assumed: bool,
    /// Where the initiator's packets are seen. If there were none, the opposite of where the answers are seen.
    pub direction: Direction,
    /// Where the answers are seen: on the opposite side, except at a mirror port and on loopback, where both
    /// directions arrive.
    pub reverse_direction: Direction,
    /// Since the last record of this flow.
    pub delta: [Counts; 2],
    /// From the first to the last packet that `delta` counts; 0 of a single one.
    pub delta_duration_ns: u64,
    /// Since the first packet of this flow.
    pub total: [Counts; 2],
    /// Unix time in nanoseconds.
    pub first_seen_unix_ns: u64,
    /// Unix time in nanoseconds, never before `first_seen_unix_ns`.
    pub last_seen_unix_ns: u64,
    /// The union of the TCP flag bytes since the first packet.
    pub tcp_flags: [u8; 2],
    /// DSCP of the first packet, six bits.
    pub dscp: u8,
    /// Absent while the flow lives.
    pub end_reason: Option<EndReason>,
    /// The connection was closed, and the flow waits for late packets.
    pub is_closing: bool,
    /// Community ID version 1 with seed 0: the SHA-1 digest, without the `1:` and base64.
    pub community_id: [u8; 20],
    /// The endpoints of the tunnel that the flow came through.
    pub outer: Option<Outer>,
    /// The cgroups of the sockets that sent the packets; 0 where none is known.
    pub cgroup_ids: [u64; 2],
    /// The processes that made them: [`Process::key`](agent_common::Process::key); 0 where none is known.
    pub process_keys: [u64; 2],
    /// Whether sockets of others have sent some of the packets.
    pub senders_shared: [bool; 2],
    /// What the source and the destination are called.
    pub names: [Option<RecordName>; 2],
    pub failure: Option<Failure>,
    /// What TCP knows on their sides of the connection, as of the last packet that was asked, or at the end.
    pub tcp: [TcpInfo; 2],
    /// How long they take to answer what passes the interface.
    pub round_trips: [RoundTrip; 2],
    /// Packets of theirs that the kernel has dropped after they had arrived and were counted, since the flow began.
    pub dropped: [u64; 2],
}
