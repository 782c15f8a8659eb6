//! Data records of flows: which fields a flow has, and their values.

use proto::{Direction, Encapsulation, EndReason, Endpoint, FlowRecord, NatSide, columns::Row};

use super::{
    elements as ie, enriched,
    fields::{Fields, Length},
};

/// Seconds from 1900, where NTP's time begins, to 1970.
const NTP_TO_UNIX_S: u64 = 2_208_988_800;
/// The VXLAN type in the most significant byte of `layer2SegmentId`.
const VXLAN: u64 = 1 << 56;
/// Values of `biflowDirection` (RFC 5103, section 6.3): the initiator is unknown, or it is the source.
const ARBITRARY: u8 = 0;
const INITIATOR: u8 = 1;

/// The set of fields in a record. Each shape has its own template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape(u8);

/// The transport protocol, as far as it changes a record's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Other = 0,
    Ports = 1,
    Tcp = 2,
    Icmp = 3,
}

impl Shape {
    /// Number of shapes, ignoring annotations.
    pub const COUNT: usize = 1 << 7;

    const IPV6: u8 = 1 << 2;
    /// Where the number of VLAN tags is, or [`Self::TRANSLATED`].
    const TAGS_SHIFT: u32 = 3;
    /// A flow without a tag whose addresses are translated behind the interface.
    const TRANSLATED: u8 = 3;
    const SEGMENT: u8 = 1 << 5;
    const NETNS: u8 = 1 << 6;
    const ENRICHED: u8 = 1 << 7;

    /// `has_netns`: the interfaces are in several network namespaces, so an index alone identifies none of them.
    #[inline]
    pub fn of(flow: &FlowRecord, has_netns: bool) -> Self {
        let transport = if flow.icmp_type.is_some() {
            Transport::Icmp
        } else if flow.src().tcp_flags.is_some() {
            Transport::Tcp
        } else if flow.src().port.is_some() {
            Transport::Ports
        } else {
            Transport::Other
        };
        let tags = match flow.vlan_ids.len() {
            0 if is_translated(flow) => Self::TRANSLATED,
            tags => tags.min(2) as u8,
        };
        let mut bits = transport as u8 | tags << Self::TAGS_SHIFT;
        if flow.ip_version == 6 {
            bits |= Self::IPV6;
        }
        if flow.encapsulation == Some(Encapsulation::Vxlan.into()) {
            bits |= Self::SEGMENT;
        }
        if has_netns {
            bits |= Self::NETNS;
        }
        Self(bits)
    }

    /// The same shape with annotations.
    pub fn enriched(self) -> Self {
        Self(self.0 | Self::ENRICHED)
    }

    pub fn is_enriched(self) -> bool {
        self.has(Self::ENRICHED)
    }

    #[cfg(test)]
    pub fn from_number(number: u8) -> Self {
        Self(number)
    }

    /// The shape's number, ignoring annotations.
    pub fn plain_number(self) -> u8 {
        self.0 & !Self::ENRICHED
    }

    fn transport(self) -> Transport {
        match self.0 & 3 {
            1 => Transport::Ports,
            2 => Transport::Tcp,
            3 => Transport::Icmp,
            _ => Transport::Other,
        }
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    fn tags(self) -> u8 {
        match self.0 >> Self::TAGS_SHIFT & 3 {
            Self::TRANSLATED => 0,
            tags => tags,
        }
    }

    fn is_translated(self) -> bool {
        self.0 >> Self::TAGS_SHIFT & 3 == Self::TRANSLATED
    }
}

/// Whether the source's packets get other addresses behind the interface.
fn is_translated(flow: &FlowRecord) -> bool {
    flow.nat_side == Some(NatSide::Original.into())
        && flow
            .ends()
            .iter()
            .all(|end| end.nat_addr.len() == end.addr.len())
}

/// Settings that change the fields of all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// One record for both directions.
    pub is_biflow: bool,
    /// There is an enterprise number for elements outside IANA's registry.
    pub has_enterprise: bool,
}

/// Record lengths by shape, without annotations.
pub(super) struct Lengths([u16; Shape::COUNT]);

impl Lengths {
    pub fn new(form: Form) -> Self {
        let mut lengths = [0; Shape::COUNT];
        for (length, number) in lengths.iter_mut().zip(0..) {
            let mut sum = Length::default();
            let none = FlowRecord::default();
            Flow::new(&none, Octets::Layer2).walk(Shape(number), form, &mut sum);
            *length = sum.0 as u16;
        }
        Self(lengths)
    }

    #[inline]
    pub fn of(&self, shape: Shape) -> usize {
        usize::from(self.0[usize::from(shape.plain_number())])
    }
}

/// What `octetDeltaCount` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Octets {
    /// Octets from the IP header on, as the element is defined.
    #[default]
    Ip,
    /// Whole frames, like `layer2OctetDeltaCount`.
    Layer2,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy)]
struct Count {
    packets: u64,
    layer2: u64,
    /// The value of `octetDeltaCount`.
    octets: u64,
}

/// A flow as seen from one endpoint.
#[derive(Clone, Copy)]
pub(super) struct Flow<'a> {
    record: &'a FlowRecord,
    /// Source and destination, as seen from this endpoint.
    ends: [&'a Endpoint; 2],
    /// The source is the record's destination.
    is_answer: bool,
    forward: Count,
    reverse: Count,
    direction: u8,
    reverse_direction: u8,
    /// Further facts about the flow.
    row: Option<&'a Row<'a>>,
}

impl<'a> Flow<'a> {
    #[inline]
    pub fn new(record: &'a FlowRecord, octets: Octets) -> Self {
        let count = |end: &Endpoint| Count {
            packets: end.delta_packets,
            layer2: end.delta_bytes,
            octets: match octets {
                Octets::Layer2 => end.delta_bytes,
                Octets::Ip => end.delta_ip_bytes,
            },
        };
        let ends = record.ends();
        let [src, dst] = ends;
        let [direction, reverse_direction] = record.directions();
        let bit = |direction| u8::from(direction == Direction::Egress);
        Self {
            record,
            ends,
            is_answer: false,
            forward: count(src),
            reverse: count(dst),
            direction: bit(direction),
            reverse_direction: bit(reverse_direction),
            row: None,
        }
    }

    /// Adds annotations, for an enriched shape.
    pub fn with(self, row: &'a Row<'a>) -> Self {
        Self {
            row: Some(row),
            ..self
        }
    }

    /// The same flow as seen from its destination.
    pub fn answers(self) -> Self {
        let [src, dst] = self.ends;
        Self {
            ends: [dst, src],
            is_answer: true,
            forward: self.reverse,
            reverse: self.forward,
            direction: self.reverse_direction,
            reverse_direction: self.direction,
            ..self
        }
    }

    pub fn has_packets(&self) -> bool {
        self.forward.packets != 0
    }

    /// Visits the fields of the record.
    ///
    /// Reverse elements come first: nfdump treats unknown reverse elements like the forward ones, and the later field
    /// wins.
    #[inline]
    pub fn walk(&self, shape: Shape, form: Form, out: &mut impl Fields) {
        let record = self.record;
        let is_biflow = form.is_biflow;
        let transport = shape.transport();
        let [source, destination] = self.ends;
        let dscp = |end: &Endpoint| end.dscp.unwrap_or_default() as u8;
        let (dscp, reverse_dscp) = (dscp(source), dscp(destination));
        if is_biflow {
            out.u64(ie::PACKET_DELTA_COUNT.reverse(), self.reverse.packets);
            out.u64(ie::OCTET_DELTA_COUNT.reverse(), self.reverse.octets);
            out.u64(ie::LAYER2_OCTET_DELTA_COUNT.reverse(), self.reverse.layer2);
            out.u8(ie::FLOW_DIRECTION.reverse(), self.reverse_direction);
            out.u8(ie::IP_DIFF_SERV_CODE_POINT.reverse(), reverse_dscp);
            if transport == Transport::Tcp {
                out.u8(ie::TCP_CONTROL_BITS.reverse(), Self::tcp_flags(destination));
            }
        }
        self.addresses(shape, out);
        out.u8(ie::PROTOCOL_IDENTIFIER, record.protocol as u8);
        out.u8(ie::IP_VERSION, record.ip_version as u8);
        self.transport(shape, out);
        out.u64(ie::PACKET_DELTA_COUNT, self.forward.packets);
        out.u64(ie::OCTET_DELTA_COUNT, self.forward.octets);
        out.u64(ie::LAYER2_OCTET_DELTA_COUNT, self.forward.layer2);
        let [ingress, egress] = match self.direction {
            0 => [record.ifindex, 0],
            _ => [0, record.ifindex],
        };
        out.u32(ie::INGRESS_INTERFACE, ingress);
        out.u32(ie::EGRESS_INTERFACE, egress);
        if shape.has(Shape::NETNS) {
            out.u32(ie::INGRESS_VRFID, record.netns);
        }
        out.u8(ie::FLOW_DIRECTION, self.direction);
        if is_biflow {
            let source = if record.initiator_assumed {
                ARBITRARY
            } else {
                INITIATOR
            };
            out.u8(ie::BIFLOW_DIRECTION, source);
        }
        out.u8(ie::IP_CLASS_OF_SERVICE, dscp << 2);
        out.u8(ie::IP_DIFF_SERV_CODE_POINT, dscp);
        // A continuing flow has no end reason, so its records say active timeout. The packetless record with the reason
        // of a closed flow is usually not sent, so its closing record says end of flow.
        let reason = match record.end_reason() as u8 {
            0 if record.closing => EndReason::EndOfFlow as u8,
            0 => EndReason::ActiveTimeout as u8,
            reason => reason,
        };
        out.u8(ie::FLOW_END_REASON, reason);
        self.times(out);
        if form.has_enterprise {
            let first_seen = record.first_seen_unix_ns;
            out.u64(ie::FLOW_FIRST_SEEN_MILLISECONDS, first_seen / 1_000_000);
        }
        self.layer2(shape, out);
        if shape.is_translated() {
            self.behind_translation(shape, out);
        }
        if shape.is_enriched()
            && let Some(&row) = self.row
        {
            let row = if self.is_answer { row.reversed() } else { row };
            enriched::walk(&row, is_biflow, out);
        }
    }

    #[inline]
    fn addresses(&self, shape: Shape, out: &mut impl Fields) {
        let [source, destination] = self.ends;
        if shape.has(Shape::IPV6) {
            out.field::<16>(ie::SOURCE_IPV6_ADDRESS, address(&source.addr));
            out.field::<16>(ie::DESTINATION_IPV6_ADDRESS, address(&destination.addr));
        } else {
            out.field::<4>(ie::SOURCE_IPV4_ADDRESS, address(&source.addr));
            out.field::<4>(ie::DESTINATION_IPV4_ADDRESS, address(&destination.addr));
        }
    }

    #[inline]
    fn transport(&self, shape: Shape, out: &mut impl Fields) {
        let record = self.record;
        match shape.transport() {
            Transport::Other => {}
            Transport::Icmp => {
                let code = record.icmp_code.unwrap_or_default() as u8;
                let kind = if self.is_answer {
                    record.icmp_type_of_answers() as u8
                } else {
                    record.icmp_type.unwrap_or_default() as u8
                };
                let both = u16::from_be_bytes([kind, code]);
                if shape.has(Shape::IPV6) {
                    out.u8(ie::ICMP_TYPE_IPV6, kind);
                    out.u8(ie::ICMP_CODE_IPV6, code);
                    out.u16(ie::ICMP_TYPE_CODE_IPV6, both);
                } else {
                    out.u8(ie::ICMP_TYPE_IPV4, kind);
                    out.u8(ie::ICMP_CODE_IPV4, code);
                    out.u16(ie::ICMP_TYPE_CODE_IPV4, both);
                }
            }
            Transport::Ports | Transport::Tcp => {
                let [source, destination] = self.ends;
                out.u16(
                    ie::SOURCE_TRANSPORT_PORT,
                    source.port.unwrap_or_default() as u16,
                );
                out.u16(
                    ie::DESTINATION_TRANSPORT_PORT,
                    destination.port.unwrap_or_default() as u16,
                );
                if shape.transport() == Transport::Tcp {
                    out.u8(ie::TCP_CONTROL_BITS, Self::tcp_flags(source));
                }
            }
        }
    }

    #[inline]
    fn times(&self, out: &mut impl Fields) {
        let [first, last] = self.record.delta_times();
        out.u64(ie::FLOW_START_MILLISECONDS, first / 1_000_000);
        out.u64(ie::FLOW_END_MILLISECONDS, last / 1_000_000);
        out.u64(ie::FLOW_START_NANOSECONDS, ntp(first));
        out.u64(ie::FLOW_END_NANOSECONDS, ntp(last));
    }

    #[inline]
    fn layer2(&self, shape: Shape, out: &mut impl Fields) {
        let record = self.record;
        let tag = |place: usize| record.vlan_ids.get(place).copied().unwrap_or_default() as u16;
        if shape.tags() > 0 {
            out.u16(ie::VLAN_ID, tag(0));
            out.u16(ie::DOT1Q_VLAN_ID, tag(0));
        }
        if shape.tags() > 1 {
            out.u16(ie::DOT1Q_CUSTOMER_VLAN_ID, tag(1));
        }
        if shape.has(Shape::SEGMENT) {
            let vni = u64::from(record.tunnel_id.unwrap_or_default());
            out.u64(ie::LAYER2_SEGMENT_ID, VXLAN | vni);
        }
    }

    /// The addresses and ports behind the translation. Answers have passed it before the interface, so they keep theirs.
    fn behind_translation(&self, shape: Shape, out: &mut impl Fields) {
        let [source, destination] = self.ends.map(|end| {
            if self.is_answer {
                (&end.addr, end.port)
            } else {
                (&end.nat_addr, end.nat_port)
            }
        });
        if shape.has(Shape::IPV6) {
            out.field::<16>(ie::POST_NAT_SOURCE_IPV6_ADDRESS, address(source.0));
            out.field::<16>(
                ie::POST_NAT_DESTINATION_IPV6_ADDRESS,
                address(destination.0),
            );
        } else {
            out.field::<4>(ie::POST_NAT_SOURCE_IPV4_ADDRESS, address(source.0));
            out.field::<4>(
                ie::POST_NAT_DESTINATION_IPV4_ADDRESS,
                address(destination.0),
            );
        }
        if matches!(shape.transport(), Transport::Ports | Transport::Tcp) {
            let [source, destination] =
                [source.1, destination.1].map(|port| port.unwrap_or_default() as u16);
            out.u16(ie::POST_NAPT_SOURCE_TRANSPORT_PORT, source);
            out.u16(ie::POST_NAPT_DESTINATION_TRANSPORT_PORT, destination);
        }
    }

    /// In one byte, because pmacct reads only the first one.
    fn tcp_flags(end: &Endpoint) -> u8 {
        end.tcp_flags.unwrap_or_default() as u8
    }
}

/// An address of the expected length, or zeros if the length differs.
#[inline]
fn address<const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    bytes.try_into().unwrap_or([0; LEN])
}

/// `dateTimeNanoseconds` (RFC 7011, section 6.1.10): seconds since 1900 modulo 2^32, then fractions of 2^-32 seconds.
#[inline]
fn ntp(unix_ns: u64) -> u64 {
    let seconds = unix_ns / 1_000_000_000 + NTP_TO_UNIX_S;
    let rest_ns = unix_ns % 1_000_000_000;
    // Round up, so that a reader that rounds down gets the same nanosecond.
    let fraction = (rest_ns << 32).div_ceil(1_000_000_000);
    seconds << 32 | fraction
}
