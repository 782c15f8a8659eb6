//! The messages of `flow.v1`: generated code, and how batches are written, read and checked.
//!
//! [`batch`] writes and reads records without the generated types, and checks what others sent. [`record`] is a record before it is
//! encoded, and [`columns`] are its facts side by side, for all other formats. [`accounts`] are sums of packets by fate;
//! [`mentions`] and [`known_interfaces`] follow what records name. [`community_id`], [`protocols`] and [`dns_codes`] are terms of the field.
//!
//! May depend on: `agent-common`. Knows nothing about aya.

use std::ops::{AddAssign, SubAssign};

use agent_common::{HookAccount, Pair, Reason, dns, protocol};
use bytes::Bytes;
use serde::Serializer;

pub mod accounts;
pub mod batch;
pub mod columns;
pub mod community_id;
pub mod dns_codes;
pub mod known_interfaces;
pub mod limits;
mod losses;
pub mod mentions;
pub mod protocols;
pub mod record;

mod generated {
    #![expect(
        clippy::all,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        unused_qualifications,
        reason = "generated from flow.proto"
    )]
    tonic::include_proto!("flow.v1");
}

pub use generated::*;

/// `flow.proto` as an encoded `FileDescriptorSet`, including its comments.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flow.v1.bin"));

impl From<Pair> for Count {
    fn from(pair: Pair) -> Self {
        Self {
            packets: pair.packets,
            bytes: pair.bytes,
        }
    }
}

impl From<Count> for Pair {
    fn from(count: Count) -> Self {
        Self {
            packets: count.packets,
            bytes: count.bytes,
        }
    }
}

impl From<agent_common::Direction> for Direction {
    fn from(side: agent_common::Direction) -> Self {
        match side {
            agent_common::Direction::Ingress => Self::Ingress,
            agent_common::Direction::Egress => Self::Egress,
        }
    }
}

impl Direction {
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Unspecified => Self::Unspecified,
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }

    pub fn side(self) -> Option<agent_common::Direction> {
        match self {
            Self::Unspecified => None,
            Self::Ingress => Some(agent_common::Direction::Ingress),
            Self::Egress => Some(agent_common::Direction::Egress),
        }
    }
}

impl DnsExchange {
    /// The flow of this exchange, with the fields that filter rules read: both endpoints and a packet in each
    /// direction.
    pub fn flow(&self) -> FlowRecord {
        let end = |addr: &[u8], port: u32| Endpoint {
            addr: Bytes::copy_from_slice(addr),
            port: Some(port),
            total_packets: 1,
            ..Endpoint::default()
        };
        FlowRecord {
            src: Some(end(&self.client_addr, self.client_port)),
            dst: Some(end(&self.server_addr, dns::PORT.into())),
            protocol: protocol::UDP.into(),
            ip_version: if self.client_addr.len() == 4 { 4 } else { 6 },
            ifindex: self.ifindex,
            netns: self.netns,
            ..FlowRecord::default()
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/no_end.rs"));

impl Endpoint {
    /// Packets and bytes that the record reports.
    #[inline]
    pub fn delta(&self) -> Pair {
        Pair {
            packets: self.delta_packets,
            bytes: self.delta_bytes,
        }
    }

    /// Packets and bytes since the flow's first packet.
    #[inline]
    pub fn total(&self) -> Pair {
        Pair {
            packets: self.total_packets,
            bytes: self.total_bytes,
        }
    }

    fn report_total(&mut self) {
        self.delta_packets = self.total_packets;
        self.delta_bytes = self.total_bytes;
        self.delta_ip_bytes = self.total_ip_bytes;
    }
}

impl FlowRecord {
    /// The initiator. Every record of an agent has both ends.
    #[inline]
    pub fn src(&self) -> &Endpoint {
        self.src.as_ref().unwrap_or(&NO_END)
    }

    /// The responder.
    #[inline]
    pub fn dst(&self) -> &Endpoint {
        self.dst.as_ref().unwrap_or(&NO_END)
    }

    #[inline]
    pub fn ends(&self) -> [&Endpoint; 2] {
        [self.src(), self.dst()]
    }

    pub fn src_mut(&mut self) -> &mut Endpoint {
        self.src.get_or_insert_default()
    }

    pub fn dst_mut(&mut self) -> &mut Endpoint {
        self.dst.get_or_insert_default()
    }

    /// Packets and bytes of both directions that the record reports. Wraps like the counters, whatever a
    /// sender claims.
    #[inline]
    pub fn delta(&self) -> Pair {
        let [src, dst] = self.ends();
        Pair {
            packets: src.delta_packets.wrapping_add(dst.delta_packets),
            bytes: src.delta_bytes.wrapping_add(dst.delta_bytes),
        }
    }

    /// Packets and bytes of both directions since the flow's first packet.
    #[inline]
    pub fn total(&self) -> Pair {
        let [src, dst] = self.ends();
        Pair {
            packets: src.total_packets + dst.total_packets,
            bytes: src.total_bytes + dst.total_bytes,
        }
    }

    /// The sides of the interface at which the packets of the source and of the destination were seen. If the record
    /// does not say, ingress, and the opposite of the other side.
    #[inline]
    pub fn directions(&self) -> [Direction; 2] {
        let forward = match self.src().direction() {
            Direction::Egress => Direction::Egress,
            Direction::Ingress | Direction::Unspecified => Direction::Ingress,
        };
        let reverse = match (self.dst().direction(), forward) {
            (Direction::Unspecified, Direction::Ingress) => Direction::Egress,
            (Direction::Unspecified, _) => Direction::Ingress,
            (known, _) => known,
        };
        [forward, reverse]
    }

    /// The ICMP type of the replies. Messages other than queries have the same type in both directions.
    pub fn icmp_type_of_answers(&self) -> u32 {
        let kind = self.icmp_type.unwrap_or_default();
        if self.icmp_identifier.is_none() {
            return kind;
        }
        match (self.ip_version, kind) {
            (4, 8) => 0,
            // Timestamps, information and address masks.
            (4, 13 | 15 | 17) | (6, 128) => kind + 1,
            _ => kind,
        }
    }

    /// Sets the deltas to the totals, so that the record reports its flow from the first packet on.
    pub fn report_total(&mut self) {
        self.src_mut().report_total();
        self.dst_mut().report_total();
        self.delta_duration_ns = match self.total().packets {
            0 | 1 => 0,
            _ => self
                .last_seen_unix_ns
                .saturating_sub(self.first_seen_unix_ns),
        };
    }

    /// When the first and the last packet that the deltas count were seen, Unix time in nanoseconds. The
    /// bytes of the deltas divided by the time between the two are a rate.
    #[inline]
    pub fn delta_times(&self) -> [u64; 2] {
        let (first, last) = (self.first_seen_unix_ns, self.last_seen_unix_ns);
        let total = self.total();
        let is_whole = self.delta() == total && total.packets != 0;
        let start = if is_whole {
            first
        } else {
            last.saturating_sub(self.delta_duration_ns).max(first)
        };
        // The last packet's time is exact to a tick, and that of a single packet, if it is the flow's first, to the nanosecond.
        let end = if self.delta_duration_ns == 0 {
            start
        } else {
            last
        };
        [start, end]
    }
}

impl Account {
    /// Includes every reason, even with a count of zero. The caller sets the sample rate.
    pub fn from_hook(account: &HookAccount, is_final: bool) -> Self {
        let by_reason = |reasons: &[Reason]| {
            reasons
                .iter()
                .map(|&reason| (reason.name().to_owned(), account.get(reason).into()))
                .collect()
        };
        Self {
            r#final: is_final,
            seen: Some(account.get(Reason::Seen).into()),
            flows: Some(account.get(Reason::Flows).into()),
            filtered: Some(account.get(Reason::Filtered).into()),
            sampled_out: Some(account.get(Reason::SampledOut).into()),
            sample_rate: 0,
            unparsed: by_reason(Reason::UNPARSED),
            not_inserted: by_reason(Reason::NOT_INSERTED),
            beside: by_reason(Reason::BESIDE),
        }
    }

    pub fn unparsed_sum(&self) -> Pair {
        self.unparsed.values().map(|&count| Pair::from(count)).sum()
    }

    pub fn not_inserted_sum(&self) -> Pair {
        self.not_inserted
            .values()
            .map(|&count| Pair::from(count))
            .sum()
    }

    /// Packets that were seen and are in no other counter. Anything but zero means that the account is
    /// broken. Wraps if the other counters hold more than was seen.
    pub fn missing(&self) -> Pair {
        let placed = pair(self.flows)
            + pair(self.filtered)
            + pair(self.sampled_out)
            + self.unparsed_sum()
            + self.not_inserted_sum();
        pair(self.seen) - placed
    }

    /// Packets that could not be read as part of a flow, for one reason.
    pub fn unparsed(&self, reason: Reason) -> Pair {
        pair(self.unparsed.get(reason.name()).copied())
    }

    /// A count in `beside`, which is not a term of the sum. Zero if the agent does not report it.
    pub fn beside(&self, reason: Reason) -> Pair {
        pair(self.beside.get(reason.name()).copied())
    }
}

impl AddAssign for RecordSum {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl SubAssign for RecordSum {
    fn sub_assign(&mut self, other: Self) {
        self.records -= other.records;
        self.packets -= other.packets;
        self.bytes -= other.bytes;
    }
}

impl AddAssign<OutputStatus> for DepartedOutputs {
    fn add_assign(&mut self, output: OutputStatus) {
        self.outputs += 1;
        for (sum, more) in [
            (&mut self.queued, output.queued),
            (&mut self.sent, output.sent),
            (&mut self.refused, output.refused),
            (&mut self.lost, output.lost),
            (&mut self.left_out, output.left_out),
        ] {
            *sum.get_or_insert_default() += more.unwrap_or_default();
        }
    }
}

impl Hook {
    /// The name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unknown",
            Self::TcIngress => "tc_ingress",
            Self::TcEgress => "tc_egress",
            Self::Xdp => "xdp",
        }
    }
}

impl AttachMode {
    /// The name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unknown",
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl InsteadOfXdp {
    /// The name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unknown",
            Self::NoNativeMode => "no_native_mode",
            Self::HiddenTags => "hidden_tags",
            Self::LowerDevices => "lower_devices",
            Self::SuperFrames => "super_frames",
            Self::Taken => "taken",
        }
    }

    /// The reason as text to follow "instead of xdp: ".
    pub fn words(self) -> &'static str {
        match self {
            Self::Unspecified => "this flow-agent does not know the reason",
            Self::NoNativeMode => "the driver takes no native XDP program",
            Self::HiddenTags => "VLAN tags may be hidden from it (the log says why)",
            Self::LowerDevices => "the kernel would put it on lower devices",
            Self::SuperFrames => "a super-frame is one frame to it",
            Self::Taken => "another XDP program is there",
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    clippy::ref_option,
    reason = "the signature that serde calls"
)]
fn instead_of_xdp_name<S: Serializer>(why: &Option<i32>, serializer: S) -> Result<S::Ok, S::Error> {
    let name = |why| InsteadOfXdp::try_from(why).unwrap_or_default().name();
    serde::Serialize::serialize(&why.map(name), serializer)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn hook_name<S: Serializer>(hook: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(Hook::try_from(*hook).unwrap_or_default().name())
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn mode_name<S: Serializer>(mode: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(AttachMode::try_from(*mode).unwrap_or_default().name())
}

/// Converts a count from a message. An absent count is zero.
pub fn pair(count: Option<Count>) -> Pair {
    count.unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_the_total_has_the_sums_of_each_direction() {
        let end = |packets, bytes, ip_bytes| Endpoint {
            total_packets: packets,
            total_bytes: bytes,
            total_ip_bytes: ip_bytes,
            ..Endpoint::default()
        };
        let mut record = FlowRecord {
            src: Some(end(1, 60, 46)),
            dst: Some(end(2, 140, 112)),
            ..FlowRecord::default()
        };
        record.report_total();
        let of = |end: &Endpoint| (end.delta(), end.delta_ip_bytes);
        assert_eq!(
            record.ends().map(of),
            record.ends().map(|end| (end.total(), end.total_ip_bytes))
        );
        assert_eq!(
            record.delta(),
            Pair {
                packets: 3,
                bytes: 200
            }
        );
        assert_eq!(record.dst().delta_ip_bytes, 112);
    }

    #[test]
    fn the_times_of_a_record_are_those_of_the_packets_that_it_counts() {
        let record = |packets: [u64; 2], delta_duration_ns| FlowRecord {
            src: Some(Endpoint {
                delta_packets: packets[0],
                total_packets: packets[1],
                ..Endpoint::default()
            }),
            first_seen_unix_ns: 1_000,
            last_seen_unix_ns: 9_000,
            delta_duration_ns,
            ..FlowRecord::default()
        };
        assert_eq!(record([5, 9], 2_000).delta_times(), [7_000, 9_000]);
        assert_eq!(record([9, 9], 8_000).delta_times(), [1_000, 9_000]);
        // Of a single packet, the first one's time is the exact one.
        assert_eq!(record([1, 1], 0).delta_times(), [1_000, 1_000]);
        assert_eq!(record([1, 9], 0).delta_times(), [9_000, 9_000]);
        assert_eq!(record([0, 9], 0).delta_times(), [9_000, 9_000]);
        // The clock was set meanwhile.
        assert_eq!(record([5, 9], 8_500).delta_times(), [1_000, 9_000]);
        let mut total = record([0, 9], 0);
        total.report_total();
        assert_eq!(total.delta_times(), [1_000, 9_000]);
    }

    #[test]
    fn an_account_on_the_wire_closes_when_the_kernels_does() {
        let mut account = HookAccount::default();
        for (number, &reason) in Reason::ALL.iter().enumerate() {
            if reason != Reason::Seen {
                account.add(reason, number as u64, 100 * number as u64);
            }
        }
        let missing = account.missing();
        account.add(
            Reason::Seen,
            0u64.wrapping_sub(missing.packets),
            0u64.wrapping_sub(missing.bytes),
        );
        let message = Account::from_hook(&account, false);
        assert_eq!(message.missing(), Pair::default());
        assert_eq!(message.unparsed_sum(), account.unparsed());
        assert_eq!(message.not_inserted_sum(), account.not_inserted());
        assert_eq!(message.beside(Reason::Short), account.get(Reason::Short));
    }
}
