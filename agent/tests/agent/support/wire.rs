//! What a veth pair's counters say about the frames on the wire, which depends on the kernel.

use agent_common::Pair;
use lab::{Counters, kernel};

const ETHERNET_HEADER_LEN_BYTES: u64 = 14;

/// The frames on the wire, both ways, from the counters of the end without offloads. What it sends to an end
/// that polls (`gro`) it counts like that end does; see [`Counters`] for the header.
pub fn on_the_wire(peer: Counters) -> Pair {
    let left_out_bytes = if veth_merges() {
        ETHERNET_HEADER_LEN_BYTES
    } else {
        0
    };
    Pair {
        packets: peer.rx_packets + peer.tx_packets,
        bytes: peer.rx_bytes + peer.tx_bytes + left_out_bytes * peer.tx_packets,
    }
}

/// Whether `gro` makes an end of a veth poll, and merge what arrives.
pub fn veth_merges() -> bool {
    kernel::is_at_least(5, 13)
}
