//! Finds out from a flow's TCP segments whether an end has spoken, and whether an RST has ended the connection.
//!
//! The kernel keeps the union of the flags over a scan window, so the order within a window is unknown. Only the order
//! of the windows is known.

use agent_common::{
    FlowCounters,
    flow::tcp_flags::{ACK, FIN, PSH, RST, SYN},
};

/// Bits by direction of the key.
#[derive(Clone, Copy, Default)]
pub struct Segments(u8);

impl Segments {
    /// This end has sent a segment with ACK that is not an RST.
    const SPOKE: u8 = 1;
    /// This end has sent an RST, and nothing shows yet that the other end ignored it.
    const RESET: u8 = 4;
    /// In a window after its RST, this end has sent segments, none of them an RST.
    const WENT_ON: u8 = 16;
    /// The RST came in an earlier window.
    const IS_EARLIER: u8 = 64;

    pub fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    pub fn bits(self) -> u8 {
        self.0
    }

    /// Starts a window later than all before.
    pub fn begin_window(&mut self) {
        if self.is_reset() {
            self.0 |= Self::IS_EARLIER;
        }
    }

    pub fn add(&mut self, counters: &FlowCounters) {
        for direction in [0, 1] {
            let packets = counters.packets[direction];
            if packets == 0 {
                continue;
            }
            let flags = counters.bits.tcp_flags(direction);
            let has_syn = flags & SYN != 0;
            if flags & ACK != 0 && is_more_than_resets(counters, direction) {
                self.0 |= Self::SPOKE << direction;
            }
            if flags & RST != 0 {
                self.0 |= Self::RESET << direction;
                self.0 &= !(Self::WENT_ON << direction);
            } else if self.0 & Self::IS_EARLIER != 0 && !has_syn {
                self.0 |= Self::WENT_ON << direction;
            }
        }
    }

    /// Clears the resets if each end that was seen at all has sent more: an end that sends a real RST has nothing to
    /// add, and an end that accepts it falls silent. `are_seen` says by direction which ends were seen since the flow
    /// began.
    pub fn undo_resets(&mut self, are_seen: [bool; 2]) {
        let went_on = |direction: usize| self.0 & Self::WENT_ON << direction != 0;
        if (0..2).all(|direction| went_on(direction) || !are_seen[direction]) {
            self.0 &= Self::SPOKE | Self::SPOKE << 1;
        }
    }

    pub fn is_reset(self) -> bool {
        self.0 & (Self::RESET | Self::RESET << 1) != 0
    }

    /// The ends that received an RST: bits by the direction in which they send.
    pub fn receivers_of_rst(self) -> u8 {
        let senders = (self.0 / Self::RESET) & 3;
        senders >> 1 | (senders & 1) << 1
    }

    pub fn spoke(self, direction: usize) -> bool {
        self.0 & Self::SPOKE << direction != 0
    }
}

/// Whether a direction that has ACK in this window must have sent a segment with ACK that is not an RST. An RST may
/// carry ACK itself, so the two flags alone prove nothing.
fn is_more_than_resets(counters: &FlowCounters, direction: usize) -> bool {
    let [packets, others] = [direction, 1 - direction].map(|at| counters.packets[at]);
    let flags = counters.bits.tcp_flags(direction);
    if flags & RST == 0 {
        return true;
    }
    if packets == 1 {
        return false;
    }
    if flags & (PSH | FIN) != 0 || counters.bits.has_syn_with_ack(direction) {
        return true;
    }
    // One packet is the SYN, one the RST.
    if flags & SYN != 0 {
        return packets > 2;
    }
    // RSTs that answer segments cannot outnumber them.
    others != 0 && packets > others
}

#[cfg(test)]
mod tests {
    use agent_common::flow::FlowBits;

    use super::*;

    /// A window with a packet for each of these flag bytes in each direction.
    fn window(packets: [&[u8]; 2]) -> FlowCounters {
        let mut counters = FlowCounters::default();
        for (direction, flags) in (0..).zip(packets) {
            counters.packets[usize::from(direction)] = flags.len() as u64;
            for &flags in flags {
                counters.bits = counters.bits.and(FlowBits::segment(direction, flags));
            }
        }
        counters
    }

    fn after(windows: &[[&[u8]; 2]]) -> Segments {
        let (mut segments, mut are_seen) = (Segments::default(), [false; 2]);
        for &packets in windows {
            segments.begin_window();
            segments.add(&window(packets));
            for (is_seen, packets) in are_seen.iter_mut().zip(packets) {
                *is_seen |= !packets.is_empty();
            }
            segments.undo_resets(are_seen);
        }
        segments
    }

    #[test]
    fn an_end_spoke_if_a_segment_with_ack_cannot_have_been_an_rst() {
        for (packets, expected) in [
            ([&[ACK][..], &[][..]], true),
            ([&[SYN], &[]], false),
            ([&[SYN | ACK], &[RST]], true),
            ([&[RST | ACK], &[]], false),
            ([&[PSH | RST | ACK], &[]], false),
            ([&[RST | ACK, RST | ACK], &[]], false),
            ([&[RST | ACK, RST | ACK], &[ACK, ACK]], false),
            ([&[ACK, ACK, RST], &[ACK]], true),
            ([&[PSH | ACK, RST | ACK], &[]], true),
            ([&[SYN, RST | ACK], &[SYN | ACK]], false),
            ([&[SYN, ACK, RST], &[SYN | ACK]], true),
        ] {
            let [forward, reverse] = packets;
            assert_eq!(after(&[packets]).spoke(0), expected, "{packets:?}");
            let swapped = after(&[[reverse, forward]]);
            assert_eq!(swapped.spoke(1), expected, "{packets:?} swapped");
        }
    }

    #[test]
    fn an_rst_stands_until_both_ends_go_on_in_later_windows() {
        const BOTH: [&[u8]; 2] = [&[ACK], &[PSH | ACK]];
        for (windows, expected) in [
            (&[BOTH, [&[ACK], &[ACK, RST]]][..], true),
            // The order within the window of the RST is unknown.
            (&[[&[ACK, RST], &[ACK]]], true),
            // Both the sender and the receiver of the RST go on, at once or one after the other.
            (&[BOTH, [&[RST], &[]], BOTH], false),
            (&[BOTH, [&[RST], &[]], [&[ACK], &[]], [&[], &[ACK]]], false),
            // The receiver has sent more before the RST came, and the answer is another RST.
            (&[BOTH, [&[RST], &[]], [&[], &[ACK]]], true),
            (&[BOTH, [&[RST], &[]], [&[RST], &[ACK]]], true),
            (&[BOTH, [&[RST], &[]], [&[ACK], &[]]], true),
            // Only one direction is seen.
            (&[[&[ACK], &[]], [&[RST], &[]], [&[ACK], &[]]], false),
            // Another RST resets again.
            (&[[&[RST], &[]], BOTH, [&[], &[RST]]], true),
            (&[[&[RST], &[]], BOTH, [&[], &[RST]], BOTH], false),
            // A SYN with ACK belongs to another connection.
            (&[[&[], &[ACK, RST]], [&[], &[SYN | ACK]]], true),
        ] {
            assert_eq!(after(windows).is_reset(), expected, "{windows:?}");
        }
    }
}
