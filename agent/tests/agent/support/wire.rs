//! The frames on the wire, from a veth pair's counters.

use agent_common::Pair;
use lab::Counters;

const ETHERNET_HEADER_LEN_BYTES: u64 = 14;

/// The frames on the wire, both ways, from the counters of the end without offloads. What it sends to an end
/// that polls (`gro`) it counts like that end does; see [`Counters`] for the header.
pub fn on_the_wire(peer: Counters) -> Pair {
    Pair {
        packets: peer.rx_packets + peer.tx_packets,
        bytes: peer.rx_bytes + peer.tx_bytes + ETHERNET_HEADER_LEN_BYTES * peer.tx_packets,
    }
}
