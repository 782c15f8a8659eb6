//! A flow as both the agent's records and tshark's frames can name it, and sums over flows.

use std::{collections::BTreeMap, net::IpAddr};

use agent_common::Pair;
use serde_json::Value;

/// What distinguishes flows of the same protocol between the same hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    None,
    /// Source, destination.
    Ports(u16, u16),
    /// Type and code.
    Icmp(u8, u8),
    /// Type and code of the request, identifier.
    IcmpQuery(u8, u8, u16),
    LaterFragment,
}

/// One direction of a flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    pub vlan_ids: Vec<u64>,
    /// What carried it, named as by the agent, and the number of the session or tunnel; 0 if there is none.
    pub within: Option<(String, u64)>,
    pub protocol: u8,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub selector: Selector,
}

/// Packets and bytes of each direction of each flow.
pub type Sums = BTreeMap<Flow, Pair>;

impl Flow {
    pub fn reversed(&self) -> Self {
        let selector = if let Selector::Ports(src, dst) = self.selector {
            Selector::Ports(dst, src)
        } else {
            self.selector
        };
        Self {
            src: self.dst,
            dst: self.src,
            selector,
            ..self.clone()
        }
    }

    fn of_record(record: &Value) -> Self {
        let number = |name: &str| record[name].as_u64();
        let small = |name: &str| number(name).unwrap() as u8;
        let address = |name: &str| record[name].as_str().unwrap().parse().unwrap();
        let selector = if record["later_fragment"] == true {
            Selector::LaterFragment
        } else if let (Some(src), Some(dst)) = (number("src_port"), number("dst_port")) {
            Selector::Ports(src as u16, dst as u16)
        } else if let Some(identifier) = number("icmp_identifier") {
            let (icmp_type, code) = (small("icmp_type"), small("icmp_code"));
            Selector::IcmpQuery(icmp_type, code, identifier as u16)
        } else if number("icmp_type").is_some() {
            Selector::Icmp(small("icmp_type"), small("icmp_code"))
        } else {
            Selector::None
        };
        let within = record["encapsulation"].as_str();
        let vlan_ids = record["vlan_ids"].as_array().unwrap();
        Self {
            vlan_ids: vlan_ids.iter().map(|id| id.as_u64().unwrap()).collect(),
            within: within.map(|name| (name.to_owned(), number("tunnel_id").unwrap_or(0))),
            protocol: small("protocol"),
            src: address("src_addr"),
            dst: address("dst_addr"),
            selector,
        }
    }
}

/// The sums of the agent's records, without the directions that have no packets.
pub fn of_records(records: &[Value]) -> Sums {
    let mut sums = Sums::new();
    for record in records {
        let number = |name: &str| record[name].as_u64().unwrap();
        let flow = Flow::of_record(record);
        let both = [
            (flow.clone(), "packets", "bytes"),
            (flow.reversed(), "reverse_packets", "reverse_bytes"),
        ];
        for (flow, packets, bytes) in both {
            let pair = Pair {
                packets: number(packets),
                bytes: number(bytes),
            };
            if pair.packets > 0 {
                *sums.entry(flow).or_default() += pair;
            }
        }
    }
    sums
}
