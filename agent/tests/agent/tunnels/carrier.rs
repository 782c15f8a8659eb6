//! Frames with tunnels, and the expected records of their flows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lab::{Frame, Host};

use crate::support::name;

const UDP: u64 = 17;
pub const INNER_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
pub const INNER_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2),
];
pub const INNER_MACS: [[u8; 6]; 2] = [[0x0a, 0, 0, 0, 0, 1], [0x0a, 0, 0, 0, 0, 2]];

/// A flow's frame, and the flow's record with and without decapsulation.
pub struct Case {
    pub frame: Vec<u8>,
    pub outside: String,
    pub inside: String,
}

/// A record's flow, the headers around it, and the tunnel's endpoints.
pub fn said(flow: &str, encapsulation: &str, id: &str, outer: &str) -> String {
    format!("{flow} | {encapsulation} {id} | {outer}")
}

/// An inner packet without and with an Ethernet header, and the name of its flow.
pub struct Inner {
    pub bare: Vec<u8>,
    pub ethernet: Vec<u8>,
    pub flow: String,
    is_ipv4: bool,
}

pub fn inner(src_port: u16, is_ipv4: bool) -> Inner {
    let ends: [IpAddr; 2] = if is_ipv4 {
        INNER_V4.map(IpAddr::from)
    } else {
        INNER_V6.map(IpAddr::from)
    };
    let udp = |frame: Frame| frame.udp(src_port, 53, &[0; 40]).unwrap();
    let [src, dst] = ends.map(|end| end.to_string());
    Inner {
        bare: udp(Frame::bare(ends[0], ends[1])),
        ethernet: udp(Frame::ethernet(
            INNER_MACS[0],
            INNER_MACS[1],
            ends[0],
            ends[1],
        )),
        flow: name("[]", UDP, (&src, src_port.into()), (&dst, 53)),
        is_ipv4,
    }
}

/// The outer frame and its ends.
pub struct Carrier {
    pub frame: Frame,
    pub src: String,
    pub dst: String,
}

pub fn carriers(from: &Host, to: &Host) -> [Carrier; 2] {
    [
        Carrier {
            frame: from.frame_v4(to),
            src: from.ipv4.to_string(),
            dst: to.ipv4.to_string(),
        },
        Carrier {
            frame: from.frame_v6(to),
            src: from.ipv6.to_string(),
            dst: to.ipv6.to_string(),
        },
    ]
}

impl Carrier {
    pub fn case(
        &self,
        frame: Vec<u8>,
        ends: (u8, u64, u64),
        inner: &Inner,
        within: [&str; 2],
    ) -> Case {
        let (protocol, src_port, dst_port) = ends;
        let outside = name(
            "[]",
            protocol.into(),
            (&self.src, src_port),
            (&self.dst, dst_port),
        );
        let outer = format!("{} > {}", self.src, self.dst);
        Case {
            frame,
            outside: said(&outside, "-", "-", "- > -"),
            inside: said(&inner.flow, within[0], within[1], &outer),
        }
    }

    pub fn udp(&self, ports: (u16, u16), header: &[u8], packet: &[u8]) -> Vec<u8> {
        let payload = [header, packet].concat();
        self.frame.udp(ports.0, ports.1, &payload).unwrap()
    }

    /// Every kind of tunnel around flows whose source ports begin at `port`.
    pub fn every_kind(&self, port: u16) -> Vec<Case> {
        let mut port = port;
        let mut next = |is_ipv4| {
            port += 1;
            inner(port, is_ipv4)
        };
        let mut cases = Vec::new();
        for is_ipv4 in [true, false] {
            let ether_type: [u8; 2] = if is_ipv4 { [8, 0] } else { [0x86, 0xdd] };
            let it = next(is_ipv4);
            let frame = self.udp((40_001, 4789), &[8, 0, 0, 0, 0, 0, 42, 0], &it.ethernet);
            cases.push(self.case(frame, (17, 40_001, 4789), &it, ["vxlan", "42"]));
            let it = next(is_ipv4);
            let frame = self.udp((40_002, 8472), &[8, 0, 0, 0, 1, 0, 0, 0], &it.ethernet);
            cases.push(self.case(frame, (17, 40_002, 8472), &it, ["vxlan", "65536"]));
            let it = next(is_ipv4);
            let options = [&[2, 0, 0x65, 0x58, 0, 0, 7, 0][..], &[0; 8]].concat();
            let frame = self.udp((40_003, 6081), &options, &it.ethernet);
            cases.push(self.case(frame, (17, 40_003, 6081), &it, ["geneve", "7"]));
            let it = next(is_ipv4);
            let header = [&[0, 0][..], &ether_type, &[0, 0, 9, 0]].concat();
            let frame = self.udp((40_004, 6081), &header, &it.bare);
            cases.push(self.case(frame, (17, 40_004, 6081), &it, ["geneve", "9"]));
            let it = next(is_ipv4);
            let header = [&[0xb0, 0][..], &ether_type, &[0; 4], &[0, 0, 0, 5], &[0; 4]].concat();
            let frame = self
                .frame
                .ip(47, &[&header, &it.bare[..]].concat())
                .unwrap();
            cases.push(self.case(frame, (47, 0, 0), &it, ["gre", "5"]));
            let it = next(is_ipv4);
            let header = [0x20, 0, 0x65, 0x58, 0xff, 0xff, 0xff, 0xff];
            let frame = self.frame.ip(47, &[&header, &it.ethernet[..]].concat());
            cases.push(self.case(frame.unwrap(), (47, 0, 0), &it, ["gre", "4294967295"]));
            let it = next(is_ipv4);
            let protocol = if it.is_ipv4 { 4 } else { 41 };
            let frame = self.frame.ip(protocol, &it.bare).unwrap();
            cases.push(self.case(frame, (protocol, 0, 0), &it, ["ip_in_ip", "-"]));
        }
        cases
    }
}

/// Frames of tunnels that cannot be opened, with their own flow's protocol and ports.
pub fn unopened(carrier: &Carrier) -> Vec<(u8, u64, u64, Vec<u8>)> {
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    let it = inner(1000, true);
    let vxlan = [8, 0, 0, 0, 0, 0, 42, 0];
    let first = Carrier {
        frame: carrier.frame.clone().fragment(7, 0, true),
        src: String::new(),
        dst: String::new(),
    };
    vec![
        (17, 41_000, 4789, carrier.udp((41_000, 4789), &vxlan, &arp)),
        (
            17,
            41_001,
            4789,
            carrier.udp((41_001, 4789), &[0; 8], &it.ethernet),
        ),
        (
            17,
            41_002,
            4789,
            carrier.udp((41_002, 4789), &vxlan, &it.ethernet[..41]),
        ),
        (
            17,
            41_003,
            4789,
            first.udp((41_003, 4789), &vxlan, &it.ethernet),
        ),
        (
            17,
            41_004,
            6081,
            carrier.udp((41_004, 6081), &[0x40; 8], &it.ethernet),
        ),
        (47, 0, 0, carrier.frame.ip(47, &[0; 40]).unwrap()),
    ]
}
