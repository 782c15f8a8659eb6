//! The information elements that we send, most of them by their numbers in IANA's registry.

/// RFC 5103: the enterprise number of elements that belong to the packets from destination to source.
pub const REVERSE_ENTERPRISE: u32 = 29305;

/// The registry that assigned an element's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registry {
    Iana,
    /// IANA's, for packets in the reverse direction.
    Reverse,
    /// The enterprise from the settings.
    Enterprise,
}

/// An information element, or its reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub number: u16,
    pub registry: Registry,
}

impl Element {
    const fn new(number: u16) -> Self {
        Self {
            number,
            registry: Registry::Iana,
        }
    }

    pub const fn reverse(self) -> Self {
        Self {
            registry: Registry::Reverse,
            ..self
        }
    }

    pub const fn of_enterprise(number: u16) -> Self {
        Self {
            number,
            registry: Registry::Enterprise,
        }
    }
}

pub(super) const OCTET_DELTA_COUNT: Element = Element::new(1);
pub(super) const PACKET_DELTA_COUNT: Element = Element::new(2);
pub(super) const PROTOCOL_IDENTIFIER: Element = Element::new(4);
pub(super) const IP_CLASS_OF_SERVICE: Element = Element::new(5);
pub(super) const TCP_CONTROL_BITS: Element = Element::new(6);
pub(super) const SOURCE_TRANSPORT_PORT: Element = Element::new(7);
pub(super) const SOURCE_IPV4_ADDRESS: Element = Element::new(8);
pub(super) const INGRESS_INTERFACE: Element = Element::new(10);
pub(super) const DESTINATION_TRANSPORT_PORT: Element = Element::new(11);
pub(super) const DESTINATION_IPV4_ADDRESS: Element = Element::new(12);
pub(super) const EGRESS_INTERFACE: Element = Element::new(14);
pub(super) const SOURCE_IPV6_ADDRESS: Element = Element::new(27);
pub(super) const DESTINATION_IPV6_ADDRESS: Element = Element::new(28);
/// Type and code combined, which some collectors read instead of the separate elements.
pub(super) const ICMP_TYPE_CODE_IPV4: Element = Element::new(32);
/// Deprecated by IANA, but collectors scale by it. nfdump 1.7.1 expects it without `samplingAlgorithm`.
pub(super) const SAMPLING_INTERVAL: Element = Element::new(34);
pub(super) const EXPORTED_MESSAGE_TOTAL_COUNT: Element = Element::new(41);
pub(super) const EXPORTED_FLOW_RECORD_TOTAL_COUNT: Element = Element::new(42);
pub(super) const VLAN_ID: Element = Element::new(58);
pub(super) const IP_VERSION: Element = Element::new(60);
pub(super) const FLOW_DIRECTION: Element = Element::new(61);
pub(super) const INTERFACE_NAME: Element = Element::new(82);
pub(super) const DROPPED_PACKET_TOTAL_COUNT: Element = Element::new(135);
pub(super) const FLOW_END_REASON: Element = Element::new(136);
pub(super) const ICMP_TYPE_CODE_IPV6: Element = Element::new(139);
pub(super) const EXPORTING_PROCESS_ID: Element = Element::new(144);
pub(super) const OBSERVATION_DOMAIN_ID: Element = Element::new(149);
pub(super) const FLOW_START_MILLISECONDS: Element = Element::new(152);
pub(super) const FLOW_END_MILLISECONDS: Element = Element::new(153);
pub(super) const FLOW_START_NANOSECONDS: Element = Element::new(156);
pub(super) const FLOW_END_NANOSECONDS: Element = Element::new(157);
pub(super) const IGNORED_PACKET_TOTAL_COUNT: Element = Element::new(164);
pub(super) const IGNORED_OCTET_TOTAL_COUNT: Element = Element::new(165);
pub(super) const NOT_SENT_FLOW_TOTAL_COUNT: Element = Element::new(166);
pub(super) const NOT_SENT_PACKET_TOTAL_COUNT: Element = Element::new(167);
pub(super) const NOT_SENT_OCTET_TOTAL_COUNT: Element = Element::new(168);
pub(super) const ICMP_TYPE_IPV4: Element = Element::new(176);
pub(super) const ICMP_CODE_IPV4: Element = Element::new(177);
pub(super) const ICMP_TYPE_IPV6: Element = Element::new(178);
pub(super) const ICMP_CODE_IPV6: Element = Element::new(179);
pub(super) const IP_DIFF_SERV_CODE_POINT: Element = Element::new(195);
pub(super) const POST_NAT_SOURCE_IPV4_ADDRESS: Element = Element::new(225);
pub(super) const POST_NAT_DESTINATION_IPV4_ADDRESS: Element = Element::new(226);
pub(super) const POST_NAPT_SOURCE_TRANSPORT_PORT: Element = Element::new(227);
pub(super) const POST_NAPT_DESTINATION_TRANSPORT_PORT: Element = Element::new(228);
pub(super) const INGRESS_VRFID: Element = Element::new(234);
pub(super) const BIFLOW_DIRECTION: Element = Element::new(239);
pub(super) const DOT1Q_VLAN_ID: Element = Element::new(243);
pub(super) const DOT1Q_CUSTOMER_VLAN_ID: Element = Element::new(245);
pub(super) const POST_NAT_SOURCE_IPV6_ADDRESS: Element = Element::new(281);
pub(super) const POST_NAT_DESTINATION_IPV6_ADDRESS: Element = Element::new(282);
pub(super) const SAMPLING_PROBABILITY: Element = Element::new(311);
pub(super) const LAYER2_SEGMENT_ID: Element = Element::new(351);
pub(super) const LAYER2_OCTET_DELTA_COUNT: Element = Element::new(352);
pub(super) const FLOW_SELECTOR_ALGORITHM: Element = Element::new(390);
/// Start of the whole flow. `flowStartMilliseconds` is the start of the record, and IANA has no element for this.
pub(super) const FLOW_FIRST_SEEN_MILLISECONDS: Element = Element::of_enterprise(1036);
