//! How many of a frame's bytes come before its IP header.

use crate::proto::{Encapsulation, FlowRecord};

const ETHERNET_LEN_BYTES: u64 = 14;
const TAG_LEN_BYTES: u64 = 4;
const LABEL_LEN_BYTES: u64 = 4;
/// PPPoE's header and the number of the protocol in it.
const SESSION_LEN_BYTES: u64 = 8;

/// What comes before the outermost IP header of each packet. A record does not say everything: of MPLS there is one
/// label at least, and padding behind a short packet is not known at all.
#[inline]
pub(super) fn link_len_bytes(flow: &FlowRecord, is_bare_ip: bool) -> u64 {
    let ethernet = if is_bare_ip { 0 } else { ETHERNET_LEN_BYTES };
    let Some(encapsulation) = flow.encapsulation else {
        return ethernet + TAG_LEN_BYTES * flow.vlan_ids.len() as u64;
    };
    let (tags, more) = match Encapsulation::try_from(encapsulation).unwrap_or_default() {
        Encapsulation::Pppoe => (&flow.vlan_ids, SESSION_LEN_BYTES),
        Encapsulation::Mpls => (&flow.vlan_ids, LABEL_LEN_BYTES),
        Encapsulation::Unspecified
        | Encapsulation::Vxlan
        | Encapsulation::Geneve
        | Encapsulation::Gre
        | Encapsulation::IpInIp => {
            let session = flow.outer_pppoe_session.map_or(0, |_| SESSION_LEN_BYTES);
            (&flow.outer_vlan_ids, session)
        }
    };
    ethernet + TAG_LEN_BYTES * tags.len() as u64 + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_ip_follows_from_the_record() {
        let plain = FlowRecord::default();
        assert_eq!(link_len_bytes(&plain, false), 14);
        assert_eq!(link_len_bytes(&plain, true), 0);
        let tagged = FlowRecord {
            vlan_ids: vec![7, 8],
            ..FlowRecord::default()
        };
        assert_eq!(link_len_bytes(&tagged, false), 22);
        let inside = |encapsulation: Encapsulation| FlowRecord {
            encapsulation: Some(encapsulation.into()),
            outer_vlan_ids: vec![9],
            outer_pppoe_session: Some(1),
            ..tagged.clone()
        };
        assert_eq!(link_len_bytes(&inside(Encapsulation::Pppoe), false), 30);
        assert_eq!(link_len_bytes(&inside(Encapsulation::Mpls), false), 26);
        // Tags inside a tunnel come behind the outermost IP header.
        assert_eq!(link_len_bytes(&inside(Encapsulation::Vxlan), false), 26);
    }
}
