//! What tells the flows of a table apart.

use bytes::Bytes;
use proto::FlowRecord;

/// Identifies a flow among those that exist at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    place: [u32; 2],
    protocol: u32,
    addresses: [Bytes; 4],
    ports: [Option<u32>; 2],
    icmp: [Option<u32>; 3],
    is_later_fragment: bool,
    tunnel: [Option<u32>; 3],
    vlan_ids: [Vec<u32>; 2],
    direction: i32,
}

impl FlowKey {
    pub fn of(record: &FlowRecord) -> Self {
        Self {
            place: [record.netns, record.ifindex],
            protocol: record.protocol,
            addresses: [
                record.src().addr.clone(),
                record.dst().addr.clone(),
                record.src().outer_addr.clone(),
                record.dst().outer_addr.clone(),
            ],
            ports: [record.src().port, record.dst().port],
            icmp: [record.icmp_type, record.icmp_code, record.icmp_identifier],
            is_later_fragment: record.later_fragment,
            tunnel: [
                record.encapsulation.map(i32::cast_unsigned),
                record.tunnel_id,
                record.outer_pppoe_session,
            ],
            vlan_ids: [record.vlan_ids.clone(), record.outer_vlan_ids.clone()],
            direction: record.src().direction,
        }
    }
}
