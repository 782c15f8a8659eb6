//! What the agent knows about a flow beyond its packets, as elements of the enterprise from the settings.
//!
//! A record has either all of these elements or none. Unknown values are empty, or have all bits set.

use formats::json;
use proto::{
    FlowBatch, FlowRecord,
    ends::{EndCgroup, EndHost, EndProcess},
    round_trip::RoundTrip,
    tcp::Tcp,
};

use super::{
    elements::{DROPPED_PACKET_TOTAL_COUNT, Element},
    fields::{Fields, Length},
};

/// Longer names are truncated.
pub(super) const MOST_NAME_BYTES: usize = 120;

/// Element numbers for the source. The destination has the next number. They start far above IANA's numbers because
/// some collectors ignore the enterprise.
const UNIT_NAME: u16 = 1001;
const CONTAINER_ID: u16 = 1003;
const PROCESS_NAME: u16 = 1005;
const PROCESS_ID: u16 = 1007;
const USER_ID: u16 = 1009;
const HOST_NAME: u16 = 1011;
const HOST_NAME_ORIGIN: u16 = 1013;
const TCP_RTT_US: u16 = 1015;
const TCP_MIN_RTT_US: u16 = 1017;
const TCP_TOTAL_RETRANS: u16 = 1019;
const TCP_DELIVERED: u16 = 1021;
const TCP_DELIVERED_CE: u16 = 1023;
const TCP_DATA_SEGS_OUT: u16 = 1025;
const HANDSHAKE_RTT_US: u16 = 1027;
const ACK_RTT_US: u16 = 1029;
/// Elements of the whole flow.
const FAILURE: Element = Element::of_enterprise(1031);
const ICMP_ERROR_TYPE: Element = Element::of_enterprise(1032);
const ICMP_ERROR_CODE: Element = Element::of_enterprise(1033);
/// For the source; the destination has the next number.
const SENDER_SHARED: u16 = 1034;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End<'a> {
    unit: &'a str,
    container_id: &'a str,
    process: &'a str,
    is_shared: bool,
    pid: Option<u32>,
    uid: Option<u32>,
    host: &'a str,
    host_origin: &'a str,
    tcp: Tcp,
    round_trip: RoundTrip,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Enriched<'a> {
    /// Source, then destination.
    ends: [End<'a>; 2],
    dropped_packets: [u64; 2],
    failure: &'a str,
    icmp_error: Option<[u8; 2]>,
}

impl<'a> Enriched<'a> {
    /// `None` if nothing is known about the flow.
    pub fn of(batch: &'a FlowBatch, record: &FlowRecord) -> Option<Self> {
        let senders = EndCgroup::both(batch, record);
        let makers = EndProcess::both(batch, record);
        let hosts = EndHost::both(batch, record);
        let tcp = Tcp::both(record);
        let round_trips = RoundTrip::both(record);
        let end = |number: usize| {
            let sender = senders[number];
            let maker = makers[number];
            let host = hosts[number];
            End {
                unit: cut(sender.and_then(EndCgroup::unit).unwrap_or_default()),
                container_id: cut(sender.and_then(EndCgroup::container_id).unwrap_or_default()),
                process: cut(maker.and_then(EndProcess::name).unwrap_or_default()),
                is_shared: [record.src_sender_shared, record.dst_sender_shared][number],
                pid: maker.map(EndProcess::pid),
                uid: maker.and_then(EndProcess::uid),
                host: cut(host.map_or("", |host| host.name)),
                host_origin: host.map_or("", EndHost::source),
                tcp: tcp[number].unwrap_or_default(),
                round_trip: round_trips[number],
            }
        };
        let byte = |field: Option<u32>| field.unwrap_or(u32::MAX) as u8;
        let enriched = Self {
            ends: [end(0), end(1)],
            dropped_packets: [
                record.total_dropped_packets,
                record.total_reverse_dropped_packets,
            ],
            failure: json::failure(record).unwrap_or_default(),
            icmp_error: (record.icmp_error_type.is_some() || record.icmp_error_code.is_some())
                .then(|| [byte(record.icmp_error_type), byte(record.icmp_error_code)]),
        };
        (enriched != Self::default()).then_some(enriched)
    }

    pub fn len_bytes(&self, is_biflow: bool) -> usize {
        let mut len = Length::default();
        self.walk(false, is_biflow, &mut len);
        len.0
    }

    /// Visits the fields. `is_answer` swaps source and destination.
    pub fn walk(&self, is_answer: bool, is_biflow: bool, out: &mut impl Fields) {
        let (mut ends, mut dropped_packets) = (self.ends.each_ref(), self.dropped_packets);
        if is_answer {
            ends.reverse();
            dropped_packets.reverse();
        }
        for (end, place) in ends.into_iter().zip(0..) {
            let element = |number: u16| Element::of_enterprise(number + place);
            let mut text = |number, value| out.text(element(number), value);
            text(UNIT_NAME, end.unit);
            text(CONTAINER_ID, end.container_id);
            text(PROCESS_NAME, end.process);
            text(HOST_NAME, end.host);
            text(HOST_NAME_ORIGIN, end.host_origin);
            out.u8(element(SENDER_SHARED), end.is_shared.into());
            let mut number = |number, value: Option<u32>| {
                out.u32(element(number), value.unwrap_or(u32::MAX));
            };
            number(PROCESS_ID, end.pid);
            number(USER_ID, end.uid);
            number(TCP_RTT_US, end.tcp.rtt_us);
            number(TCP_MIN_RTT_US, end.tcp.min_rtt_us);
            number(TCP_TOTAL_RETRANS, end.tcp.total_retrans);
            number(TCP_DELIVERED, end.tcp.delivered);
            number(TCP_DELIVERED_CE, end.tcp.delivered_ce);
            number(TCP_DATA_SEGS_OUT, end.tcp.data_segs_out);
            let measured = |us: u32| (us != 0).then_some(us);
            number(HANDSHAKE_RTT_US, measured(end.round_trip.handshake_us));
            number(ACK_RTT_US, measured(end.round_trip.ack_us));
        }
        let [forward, reverse] = dropped_packets;
        if is_biflow {
            out.u64(DROPPED_PACKET_TOTAL_COUNT.reverse(), reverse);
        }
        out.u64(DROPPED_PACKET_TOTAL_COUNT, forward);
        out.text(FAILURE, self.failure);
        let [icmp_type, code] = self.icmp_error.unwrap_or([u8::MAX; 2]);
        out.u8(ICMP_ERROR_TYPE, icmp_type);
        out.u8(ICMP_ERROR_CODE, code);
    }
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(MOST_NAME_BYTES)]
}
