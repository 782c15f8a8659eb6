//! The fields of a flow's line about the sender and the name of one end. A line is flat, so each end has its own field
//! names.

use proto::{
    ends::{EndCgroup, EndHost, EndProcess},
    round_trip::RoundTrip,
    tcp::Tcp,
};
use serde::{Serialize, Serializer, ser::SerializeMap as _};

/// In the order of the values.
pub(super) type Names = [&'static str; 6];

pub(super) const SOURCE: Names = [
    "src_cgroup_id",
    "src_cgroup",
    "src_unit",
    "src_slice",
    "src_container_id",
    "src_container_runtime",
];
pub(super) const DESTINATION: Names = [
    "dst_cgroup_id",
    "dst_cgroup",
    "dst_unit",
    "dst_slice",
    "dst_container_id",
    "dst_container_runtime",
];

/// A sender, with the field names of its end.
pub(super) struct OfEnd<'a>(pub Names, pub EndCgroup<'a>);

impl Serialize for OfEnd<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self([id, names @ ..], sender) = self;
        let values = [
            sender.path(),
            sender.unit(),
            sender.slice(),
            sender.container_id(),
            sender.container_runtime(),
        ];
        let mut map = serializer.serialize_map(Some(1 + values.len()))?;
        map.serialize_entry(id, &sender.cgroup_id)?;
        for (name, value) in names.iter().zip(values) {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

/// Name, number, user.
pub(super) type ProcessNames = [&'static str; 3];

pub(super) const SOURCE_PROCESS: ProcessNames = ["src_process", "src_pid", "src_uid"];
pub(super) const DESTINATION_PROCESS: ProcessNames = ["dst_process", "dst_pid", "dst_uid"];

/// A process, with the field names of its end.
pub(super) struct ProcessOfEnd<'a>(pub ProcessNames, pub EndProcess<'a>);

impl Serialize for ProcessOfEnd<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self([name, pid, uid], maker) = self;
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry(name, &maker.name())?;
        map.serialize_entry(pid, &maker.pid())?;
        map.serialize_entry(uid, &maker.uid())?;
        map.end()
    }
}

/// The host's name, and how it was learned.
pub(super) type HostNames = [&'static str; 2];

pub(super) const SOURCE_HOST: HostNames = ["src_host", "src_host_source"];
pub(super) const DESTINATION_HOST: HostNames = ["dst_host", "dst_host_source"];

/// The host name of an end, with the field names of that end.
pub(super) struct HostOfEnd<'a>(pub HostNames, pub EndHost<'a>);

impl Serialize for HostOfEnd<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self([name, source], host) = self;
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(name, &host.name)?;
        map.serialize_entry(source, &host.source())?;
        map.end()
    }
}

/// In the order of the values.
pub(super) type TcpNames = [&'static str; 6];

pub(super) const SOURCE_TCP: TcpNames = [
    "src_tcp_rtt_us",
    "src_tcp_min_rtt_us",
    "src_tcp_total_retrans",
    "src_tcp_delivered",
    "src_tcp_delivered_ce",
    "src_tcp_data_segs_out",
];
pub(super) const DESTINATION_TCP: TcpNames = [
    "dst_tcp_rtt_us",
    "dst_tcp_min_rtt_us",
    "dst_tcp_total_retrans",
    "dst_tcp_delivered",
    "dst_tcp_delivered_ce",
    "dst_tcp_data_segs_out",
];

/// TCP's state, with the field names of its end.
pub(super) struct TcpOfEnd(pub TcpNames, pub Tcp);

impl Serialize for TcpOfEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(names, tcp) = self;
        let values = [
            tcp.rtt_us,
            tcp.min_rtt_us,
            tcp.total_retrans,
            tcp.delivered,
            tcp.delivered_ce,
            tcp.data_segs_out,
        ];
        let mut map = serializer.serialize_map(Some(values.len()))?;
        for (name, value) in names.iter().zip(values) {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

/// In the order of the values.
pub(super) type RoundTripNames = [&'static str; 2];

pub(super) const SOURCE_ROUND_TRIP: RoundTripNames = ["src_handshake_rtt_us", "src_ack_rtt_us"];
pub(super) const DESTINATION_ROUND_TRIP: RoundTripNames =
    ["dst_handshake_rtt_us", "dst_ack_rtt_us"];

/// Round trips, with the field names of the end that answers.
pub(super) struct RoundTripOfEnd(pub RoundTripNames, pub RoundTrip);

impl Serialize for RoundTripOfEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(names, round_trip) = self;
        let mut map = serializer.serialize_map(None)?;
        for (name, us) in names
            .iter()
            .zip([round_trip.handshake_us, round_trip.ack_us])
        {
            if us != 0 {
                map.serialize_entry(name, &us)?;
            }
        }
        map.end()
    }
}
