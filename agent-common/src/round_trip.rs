//! Measures how long TCP segments take to be acknowledged, from the packets at an interface: from there to the receiver
//! and back.
//!
//! Each direction of a flow measures one segment at a time (Karn and Partridge, 1987; RFC 6298 section 3). The sample
//! stores the sequence number after the segment and when the segment passed. The first segment of the other direction
//! that acknowledges that number ends the sample. If a segment with an earlier sequence number passes first, the
//! acknowledgment is ambiguous and the sample is spoiled. The first samples of a connection are its handshake: SYN to
//! SYN with ACK, and SYN with ACK to ACK.

use crate::flow::tcp_flags;

/// The fields of a segment that a sample needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u32,
    pub acknowledgment: u32,
    /// The payload of all segments of a super-frame together.
    pub payload_len_bytes: u32,
    /// The TCP header's flag byte.
    pub flags: u8,
}

impl Segment {
    #[inline(always)]
    const fn is_syn(&self) -> bool {
        self.flags & tcp_flags::SYN != 0
    }

    /// Whether the receiver must acknowledge it. A FIN alone must be acknowledged as well, but is not measured.
    #[inline(always)]
    const fn asks_for_answer(&self) -> bool {
        self.is_syn() || self.payload_len_bytes != 0
    }

    #[inline(always)]
    const fn is_syn_ack(&self) -> bool {
        self.is_syn() && self.flags & tcp_flags::ACK != 0
    }

    #[inline(always)]
    const fn acknowledges(&self) -> bool {
        self.flags & tcp_flags::ACK != 0 && self.flags & tcp_flags::RST == 0
    }
}

/// A sample in one word, which programs on several CPUs change by compare-and-swap.
///
/// The lowest two bits say which acknowledgment an open sample waits for. The other bits of an open sample are the next
/// sequence number (32 bits) and the time in microseconds (30 bits). The time wraps after 18 minutes; a sample that
/// took half of that is spoiled. An ended sample has the time it took in microseconds (32 bits; 0 if spoiled), and
/// whether it belongs to a handshake.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample(pub u64);

impl Sample {
    pub const NONE: Self = Self(0);
    /// Ended without a time.
    pub const SPOILED: Self = Self(Self::ENDED);

    /// The acknowledgment that an open sample waits for; 0 if it has ended.
    const KIND: u64 = 3;
    const ACK: u64 = 1;
    const ACK_OF_SYN: u64 = 2;
    const ACK_OF_SYN_ACK: u64 = 3;
    const TIME_SHIFT: u32 = 2;
    const TIME_MASK: u64 = (1 << 30) - 1;
    /// The longest valid time. A longer one has wrapped, or two CPUs' clocks differ a little.
    const MOST_US: u64 = 1 << 29;
    const NUMBER_SHIFT: u32 = 32;
    /// Set in an ended sample.
    const ENDED: u64 = 1 << 2;
    const OF_HANDSHAKE: u64 = 1 << 3;
    /// The most payload of a SYN that its answer may acknowledge as well.
    const MOST_WITH_SYN: u32 = 0xffff;

    /// Starts a sample with this segment.
    #[inline(always)]
    #[must_use]
    pub const fn begun(by: &Segment, now_ns: u64) -> Self {
        let (next, kind) = if by.is_syn() {
            // The answer need not acknowledge the SYN's payload (RFC 7413).
            let kind = if by.is_syn_ack() {
                Self::ACK_OF_SYN_ACK
            } else {
                Self::ACK_OF_SYN
            };
            (by.sequence.wrapping_add(1), kind)
        } else {
            let next = by.sequence.wrapping_add(by.payload_len_bytes);
            (next, Self::ACK)
        };
        let time = (now_ns / 1000) & Self::TIME_MASK;
        Self((next as u64) << Self::NUMBER_SHIFT | time << Self::TIME_SHIFT | kind)
    }

    #[inline(always)]
    pub const fn waits(self) -> bool {
        self.0 & Self::KIND != 0
    }

    /// Only for an open sample.
    #[inline(always)]
    const fn is_of_syn(self) -> bool {
        self.0 & Self::KIND != Self::ACK
    }

    #[inline(always)]
    const fn next_sequence(self) -> u32 {
        (self.0 >> Self::NUMBER_SHIFT) as u32
    }

    /// Whether this segment of the same direction starts the first sample.
    #[inline(always)]
    #[must_use]
    pub const fn begins_with(self, own: &Segment) -> bool {
        self.0 == Self::NONE.0 && own.asks_for_answer()
    }

    /// Whether this segment of the same direction spoils the sample: a retransmission, another SYN, or anything behind
    /// a SYN whose answer was not seen.
    #[inline(always)]
    #[must_use]
    pub const fn is_spoiled_by(self, own: &Segment) -> bool {
        if !self.waits() {
            return false;
        }
        let behind = own.sequence.wrapping_sub(self.next_sequence());
        let is_earlier = behind.cast_signed() < 0;
        self.is_of_syn() || own.is_syn() || own.payload_len_bytes != 0 && is_earlier
    }

    /// Whether this segment of the other direction ends the sample. Segments of an earlier connection with the same
    /// ports have arbitrary numbers, and half of these are ahead of a SYN's. So a SYN and its answer need a close
    /// match.
    #[inline(always)]
    #[must_use]
    pub const fn is_ended_by(self, other: &Segment) -> bool {
        if !self.waits() || !other.acknowledges() {
            return false;
        }
        let ahead = other.acknowledgment.wrapping_sub(self.next_sequence());
        match self.0 & Self::KIND {
            Self::ACK_OF_SYN => other.is_syn() && ahead <= Self::MOST_WITH_SYN,
            Self::ACK_OF_SYN_ACK => ahead == 0,
            _ => ahead.cast_signed() >= 0,
        }
    }

    /// Ends an open sample.
    #[inline(always)]
    #[must_use]
    pub const fn ended(self, now_ns: u64) -> Self {
        let since = self.0 >> Self::TIME_SHIFT & Self::TIME_MASK;
        let took_us = (now_ns / 1000).wrapping_sub(since) & Self::TIME_MASK;
        if took_us >= Self::MOST_US {
            return Self::SPOILED;
        }
        // 0 means spoiled, so a time under a microsecond becomes 1.
        let took_us = if took_us == 0 { 1 } else { took_us };
        let of_handshake = if self.is_of_syn() {
            Self::OF_HANDSHAKE
        } else {
            0
        };
        Self(took_us << Self::NUMBER_SHIFT | of_handshake | Self::ENDED)
    }

    /// The time it took, in microseconds. `None` if it is open or spoiled.
    pub const fn took_us(self) -> Option<u32> {
        let took_us = self.next_sequence();
        if !self.waits() && took_us != 0 {
            Some(took_us)
        } else {
            None
        }
    }

    /// The same, for a sample of a handshake only.
    pub const fn handshake_us(self) -> Option<u32> {
        if self.0 & Self::OF_HANDSHAKE != 0 {
            self.took_us()
        } else {
            None
        }
    }

    /// Takes over `other` if that has a time and this one has none, or if this one is empty.
    pub fn unite(&mut self, other: Self) {
        if self.took_us().is_none() && (*self == Self::NONE || other.took_us().is_some()) {
            *self = other;
        }
    }
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: an integer.
    unsafe impl aya::Pod for super::Sample {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: u8 = tcp_flags::ACK;
    const SYN: u8 = tcp_flags::SYN;
    const MS: u64 = 1_000_000;

    fn segment(sequence: u32, acknowledgment: u32, payload_len_bytes: u32, flags: u8) -> Segment {
        Segment {
            sequence,
            acknowledgment,
            payload_len_bytes,
            flags,
        }
    }

    #[test]
    fn a_handshake_has_the_times_of_both_sides() {
        let syn = segment(u32::MAX, 0, 0, SYN);
        assert!(Sample::NONE.begins_with(&syn));
        let to_server = Sample::begun(&syn, 5 * MS);
        let syn_ack = segment(7, 0, 0, SYN | ACK);
        assert!(to_server.is_ended_by(&syn_ack));
        let to_server = to_server.ended(25 * MS);
        assert_eq!(to_server.handshake_us(), Some(20_000));
        assert_eq!(to_server.took_us(), Some(20_000));

        let to_client = Sample::begun(&syn_ack, 25 * MS);
        assert!(!to_client.is_ended_by(&segment(0, 7, 0, ACK)));
        assert!(to_client.is_ended_by(&segment(0, 8, 0, ACK)));
        assert_eq!(to_client.ended(25 * MS).handshake_us(), Some(1));
    }

    #[test]
    fn data_is_acknowledged_by_the_first_segment_that_covers_all_of_it() {
        let data = segment(u32::MAX - 9, 1, 100, ACK);
        let sample = Sample::begun(&data, 1 << 40);
        assert!(sample.waits());
        assert!(!sample.is_ended_by(&segment(1, 89, 0, ACK)));
        assert!(!sample.is_ended_by(&segment(1, 90, 0, ACK | tcp_flags::RST)));
        assert!(!sample.is_ended_by(&segment(1, 90, 0, 0)));
        for acknowledgment in [90, 91, 5000] {
            assert!(sample.is_ended_by(&segment(1, acknowledgment, 50, ACK)));
        }
        let ended = sample.ended((1 << 40) + 1_234_567);
        assert!((1234..=1235).contains(&ended.took_us().unwrap()));
        assert_eq!(ended.handshake_us(), None);
        assert!(!ended.waits() && !ended.begins_with(&data));
        assert!(!ended.is_spoiled_by(&data) && !ended.is_ended_by(&segment(1, 90, 0, ACK)));
    }

    #[test]
    fn what_is_sent_again_is_no_sample() {
        let data = segment(1000, 1, 100, ACK);
        let sample = Sample::begun(&data, 0);
        assert!(sample.is_spoiled_by(&data));
        assert!(sample.is_spoiled_by(&segment(1050, 1, 10, ACK)));
        assert!(sample.is_spoiled_by(&segment(5000, 0, 0, SYN)));
        // Later segments, and keep-alives without a byte.
        assert!(!sample.is_spoiled_by(&segment(1100, 1, 100, ACK)));
        assert!(!sample.is_spoiled_by(&segment(999, 1, 0, ACK)));

        let syn = segment(1000, 0, 0, SYN);
        let sample = Sample::begun(&syn, 0);
        assert!(sample.is_spoiled_by(&syn));
        // The SYN's answer took another path.
        assert!(sample.is_spoiled_by(&segment(1001, 1, 0, ACK)));
        assert_eq!(Sample::SPOILED.took_us(), None);
        assert!(!Sample::SPOILED.waits() && !Sample::SPOILED.begins_with(&syn));
    }

    #[test]
    fn what_is_left_of_an_earlier_connection_is_no_answer_to_a_syn() {
        let to_server = Sample::begun(&segment(1000, 0, 0, SYN), 0);
        // An ACK for numbers of the earlier connection (RFC 5961), and a SYN with ACK.
        assert!(!to_server.is_ended_by(&segment(7, 5000, 0, ACK)));
        assert!(!to_server.is_ended_by(&segment(7, 1001, 0, ACK)));
        assert!(!to_server.is_ended_by(&segment(7, 1 << 20, 0, SYN | ACK)));
        assert!(!to_server.is_ended_by(&segment(7, 1000, 0, SYN | ACK)));
        // An acknowledgment of the SYN's payload (RFC 7413).
        assert!(to_server.is_ended_by(&segment(7, 1001 + 500, 0, SYN | ACK)));
        let to_client = Sample::begun(&segment(7, 1001, 0, SYN | ACK), 0);
        assert!(!to_client.is_ended_by(&segment(1001, 9, 0, ACK)));
        assert!(to_client.is_ended_by(&segment(1001, 8, 100, ACK)));
    }

    #[test]
    fn a_time_that_may_have_wrapped_is_none() {
        let data = segment(1, 1, 1, ACK);
        let minutes = |count: u64| count * 60 * 1000 * MS;
        let sample = Sample::begun(&data, minutes(5));
        assert_eq!(sample.ended(minutes(10)).took_us(), Some(300_000_000));
        for later in [minutes(16), minutes(5) - 2000] {
            assert_eq!(sample.ended(later), Sample::SPOILED);
        }
    }

    #[test]
    fn the_time_may_wrap_while_a_sample_waits() {
        let data = segment(1, 1, 1, ACK);
        let wraps_ns = (1 << 30) * 1000;
        let sample = Sample::begun(&data, wraps_ns - 3000);
        assert_eq!(sample.ended(wraps_ns + 4000).took_us(), Some(7));
        assert_eq!(sample.ended(wraps_ns + 4000).handshake_us(), None);
    }

    #[test]
    fn only_what_asks_for_an_answer_begins_a_sample() {
        assert!(!Sample::NONE.begins_with(&segment(1, 1, 0, ACK)));
        assert!(!Sample::NONE.begins_with(&segment(1, 1, 0, ACK | tcp_flags::FIN)));
        assert!(Sample::NONE.begins_with(&segment(1, 1, 1, ACK)));
        assert!(Sample::NONE.begins_with(&segment(0, 0, 0, SYN)));
        assert!(!Sample::NONE.waits());
        assert!(!Sample::NONE.is_spoiled_by(&segment(1, 1, 1, ACK)));
        assert!(!Sample::NONE.is_ended_by(&segment(1, 1, 1, ACK)));
    }

    #[test]
    fn of_two_notes_the_one_with_a_time_stays() {
        let data = segment(1, 1, 1, ACK);
        let (waits, ended) = (Sample::begun(&data, 0), Sample::begun(&data, 0).ended(9000));
        for (one, other, expected) in [
            (Sample::NONE, Sample::NONE, Sample::NONE),
            (Sample::NONE, waits, waits),
            (waits, Sample::NONE, waits),
            (waits, Sample::SPOILED, waits),
            (Sample::SPOILED, ended, ended),
            (ended, waits, ended),
            (ended, Sample::NONE, ended),
        ] {
            let mut united = one;
            united.unite(other);
            assert_eq!(united, expected, "{one:?} {other:?}");
        }
    }
}
