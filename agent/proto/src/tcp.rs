//! The values that TCP measures for a flow's connection, as records report them.

use agent_common::TcpInfo;

use crate::FlowRecord;

/// The values on the side of one end, from `struct tcp_info`. All are `None` if the end is on another host,
/// or no packet of its socket was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// Smoothed round-trip time. This field and the next are `None` before the first measurement.
    pub rtt_us: Option<u32>,
    pub min_rtt_us: Option<u32>,
    pub total_retrans: Option<u32>,
    pub delivered: Option<u32>,
    pub delivered_ce: Option<u32>,
    pub data_segs_out: Option<u32>,
}

impl Tcp {
    pub fn of(info: TcpInfo) -> Self {
        if !info.is_known() {
            return Self::default();
        }
        Self {
            rtt_us: (info.rtt_us != 0).then_some(info.rtt_us),
            min_rtt_us: (info.min_rtt_us != TcpInfo::NO_RTT).then_some(info.min_rtt_us),
            total_retrans: Some(info.total_retrans),
            delivered: Some(info.delivered),
            delivered_ce: Some(info.delivered_ce),
            data_segs_out: Some(info.data_segs_out),
        }
    }

    /// Returns the values of the source and of the destination, `None` for an end without any.
    pub fn both(record: &FlowRecord) -> [Option<Self>; 2] {
        let source = Self {
            rtt_us: record.src_tcp_rtt_us,
            min_rtt_us: record.src_tcp_min_rtt_us,
            total_retrans: record.src_tcp_total_retrans,
            delivered: record.src_tcp_delivered,
            delivered_ce: record.src_tcp_delivered_ce,
            data_segs_out: record.src_tcp_data_segs_out,
        };
        let destination = Self {
            rtt_us: record.dst_tcp_rtt_us,
            min_rtt_us: record.dst_tcp_min_rtt_us,
            total_retrans: record.dst_tcp_total_retrans,
            delivered: record.dst_tcp_delivered,
            delivered_ce: record.dst_tcp_delivered_ce,
            data_segs_out: record.dst_tcp_data_segs_out,
        };
        [source, destination].map(|end| (end != Self::default()).then_some(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_that_was_not_measured_is_not_said() {
        let fresh = TcpInfo {
            min_rtt_us: TcpInfo::NO_RTT,
            ..TcpInfo::default()
        };
        let told = Tcp::of(fresh);
        assert_eq!((told.rtt_us, told.min_rtt_us), (None, None));
        assert_eq!((told.total_retrans, told.delivered), (Some(0), Some(0)));
        assert_eq!(Tcp::of(TcpInfo::default()), Tcp::default());
        assert_eq!(Tcp::both(&FlowRecord::default()), [None; 2]);
    }
}
