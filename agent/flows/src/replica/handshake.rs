//! Finds out from the TCP flags of a scan window which endpoint opened a flow.

use agent_common::FlowCounters;

/// Bits by direction of the key: SYN without ACK, SYN with ACK, and who sent the first packet.
#[derive(Clone, Copy, Default)]
pub struct Handshake(u8);

impl Handshake {
    const SYN: u8 = 1;
    const SYN_ACK: u8 = 4;
    const FIRST_IS_B: u8 = 16;

    pub fn of(counters: &FlowCounters) -> Self {
        let mut bits = if counters.bits.first_direction() == 0 {
            0
        } else {
            Self::FIRST_IS_B
        };
        for direction in [0, 1] {
            let seen = counters.bits;
            bits |= u8::from(seen.has_syn_without_ack(direction)) * (Self::SYN << direction);
            bits |= u8::from(seen.has_syn_with_ack(direction)) * (Self::SYN_ACK << direction);
        }
        Self(bits)
    }

    pub fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    pub fn bits(self) -> u8 {
        self.0
    }

    /// Adds the flags of `other`; the first packet stays the same.
    #[must_use]
    pub fn with_flags_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & !Self::FIRST_IS_B)
    }

    /// The direction that opened the flow: by the handshake, or else by the first packet that was seen.
    pub fn initiator(self) -> u8 {
        self.opener()
            .unwrap_or(u8::from(self.has(Self::FIRST_IS_B)))
    }

    /// The direction that opened the flow, if the flags alone show it.
    pub fn opener(self) -> Option<u8> {
        let sent = |flag: u8| (self.has(flag), self.has(flag << 1));
        match sent(Self::SYN) {
            (true, false) => return Some(0),
            (false, true) => return Some(1),
            _ => {}
        }
        match sent(Self::SYN_ACK) {
            (true, false) => Some(1),
            (false, true) => Some(0),
            _ => None,
        }
    }

    /// Whether the flags prove that this direction opened the flow: it sent a SYN without ACK, or the other one a SYN
    /// with ACK, and only one of the two ends can have opened. A SYN with ACK that nobody asked for proves nothing, so
    /// `is_answered` says whether more followed it.
    pub fn proves(self, opener: u8, is_answered: bool) -> bool {
        self.opener() == Some(opener) && (is_answered || self.has(Self::SYN << opener))
    }

    /// Whether a SYN was seen in this direction, with or without ACK.
    pub fn has_any_syn(self, direction: usize) -> bool {
        self.has((Self::SYN | Self::SYN_ACK) << direction)
    }

    pub fn has_syn_ack(self, direction: usize) -> bool {
        self.has(Self::SYN_ACK << direction)
    }

    fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }
}

/// Whether either end asked for a connection.
pub fn opens(counters: &FlowCounters) -> bool {
    let seen = counters.bits;
    seen.has_syn_without_ack(0) || seen.has_syn_without_ack(1)
}
