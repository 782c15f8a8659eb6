//! Frames for the parser: one of each kind, by name, or one for each flow of a profile.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent_common::{LinkType, Packet, Reason, flow::tcp_flags, parse, parse_all};
use anyhow::Result;
use lab::{Extension, Frame};

use crate::profile::{Conversation, Profile, UDP};

const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PAYLOAD: [u8; 64] = [0; 64];

/// One frame for each path through the parser, by name.
pub fn kinds() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let v4 = Frame::ethernet(
        HOST_MAC,
        PEER_MAC,
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(10, 0, 0, 2),
    );
    let v6 = v4.clone().between(
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    );
    let extended = v6
        .clone()
        .extension(Extension::HopByHop { length_bytes: 8 })
        .extension(Extension::Routing { length_bytes: 24 })
        .extension(Extension::DestinationOptions { length_bytes: 16 });
    let tcp = |frame: &Frame| frame.tcp(40_000, 443, tcp_flags::ACK, &PAYLOAD);
    let udp = |frame: &Frame| frame.udp(40_000, 53, &PAYLOAD);
    Ok(vec![
        ("tcp_v4", tcp(&v4)?),
        ("udp_v4", udp(&v4)?),
        ("tcp_v6", tcp(&v6)?),
        ("udp_v6", udp(&v6)?),
        ("tcp_v4_vlan", tcp(&v4.clone().vlan(7))?),
        ("tcp_v4_qinq", tcp(&v4.clone().qinq(7, 8))?),
        ("tcp_v4_options", tcp(&v4.clone().ipv4_options(&[1; 8]))?),
        ("tcp_v6_three_extensions", tcp(&extended)?),
        ("icmp_v4", v4.icmp_echo(true, 1, 1, &PAYLOAD)?),
        ("icmp_v6", v6.icmp_echo(true, 1, 1, &PAYLOAD)?),
        (
            "later_fragment_v4",
            v4.clone().fragment(1, 1_480, false).ip(UDP, &PAYLOAD)?,
        ),
        (
            "later_fragment_v6",
            v6.clone().fragment(1, 1_480, false).ip(UDP, &PAYLOAD)?,
        ),
    ])
}

/// One frame for each of the profile's flows, alternately to and from the peer.
pub fn of_profile(profile: Profile) -> Result<Vec<Vec<u8>>> {
    (0..profile.flows)
        .map(|number| of_conversation(Profile::conversation(number), number % 2 == 0))
        .collect()
}

fn of_conversation(conversation: Conversation, to_peer: bool) -> Result<Vec<u8>> {
    let address = |bytes: [u8; 16]| -> IpAddr {
        let [a, b, c, d, ..] = bytes;
        if conversation.ip_version == 4 {
            Ipv4Addr::new(a, b, c, d).into()
        } else {
            Ipv6Addr::from(bytes).into()
        }
    };
    let mut from = (address(conversation.host), conversation.host_port);
    let mut to = (address(conversation.peer), conversation.peer_port);
    if !to_peer {
        (from, to) = (to, from);
    }
    let frame = Frame::ethernet(HOST_MAC, PEER_MAC, from.0, to.0);
    if conversation.protocol == UDP {
        frame.udp(from.1, to.1, &PAYLOAD)
    } else {
        frame.tcp(from.1, to.1, tcp_flags::ACK, &PAYLOAD)
    }
}

/// Parses a frame as the programs do: calls the parser's first entry, and the second if the first gives up.
pub fn read(frame: &[u8], packet: &mut Packet) -> Result<(), Reason> {
    match parse(&frame, LinkType::Ethernet, None, packet) {
        Err(Reason::NotIp) => {
            *packet = Packet::default();
            parse_all(&frame, LinkType::Ethernet, None, packet)
        }
        parsed => parsed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PROBECTL;

    #[test]
    fn the_parser_takes_every_kind() {
        for (name, frame) in kinds().unwrap() {
            let mut packet = Packet::default();
            assert_eq!(read(&frame, &mut packet), Ok(()), "{name}");
        }
    }

    #[test]
    fn frames_have_the_keys_that_the_profile_drains() {
        let frames = of_profile(PROBECTL).unwrap();
        for (number, frame) in (0..).zip(&frames) {
            let mut packet = Packet::default();
            parse(&&frame[..], LinkType::Ethernet, None, &mut packet).unwrap();
            let mut key = Profile::entry(number).0;
            (key.netns, key.ifindex) = (0, 0);
            assert_eq!(packet.key, key, "flow {number}");
        }
    }
}
