//! What the kernel's TCP knows of a connection, as the programs note it.

use crate::FlowKey;

/// Of a connection, from the side of one of its sockets: what `ss -ti` shows, by the same names (`struct tcp_info`). All of it is
/// since the connection began.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The smoothed round trip in microseconds; 0 before the first one.
    pub rtt_us: u32,
    /// The shortest round trip that TCP remembers; [`Self::NO_RTT`] before the first one. 0 says that nothing is known of the
    /// connection, since TCP counts no round trip as less than a microsecond.
    pub min_rtt_us: u32,
    /// Segments that were sent again, SYNs among them.
    pub total_retrans: u32,
    /// Segments that have arrived, as far as the other side has said so.
    pub delivered: u32,
    /// Those of which the acknowledgment reports congestion (ECN): with ECN as of RFC 3168 more than routers have marked.
    pub delivered_ce: u32,
    /// Segments with data that were sent, those that were sent again among them.
    pub data_segs_out: u32,
}

impl TcpInfo {
    pub const NO_RTT: u32 = u32::MAX;
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();

    /// Whether anything is known of the connection.
    #[inline(always)]
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.min_rtt_us != 0
    }

    #[inline(always)]
    #[must_use]
    pub const fn of_words(words: [u64; Self::WORDS]) -> Self {
        // SAFETY: it has the size of its words (asserted below), and any bytes are numbers.
        unsafe { core::mem::transmute(words) }
    }

    #[inline(always)]
    #[must_use]
    pub const fn words(self) -> [u64; Self::WORDS] {
        // SAFETY: as above, and there is no padding.
        unsafe { core::mem::transmute(self) }
    }

    /// Takes over what was noted there, if it is known, and not earlier. Both are of one connection, whose numbers grow. A socket that
    /// its program resets forgets them before it is taken down.
    pub fn unite(&mut self, other: &Self) {
        let sent = |info: &Self| (info.data_segs_out, info.delivered, info.total_retrans);
        if other.is_known() && (!self.is_known() || sent(other) >= sent(self)) {
            *self = *other;
        }
    }
}

const _: () = assert!(size_of::<TcpInfo>() == 24 && size_of::<TcpInfo>() == 8 * TcpInfo::WORDS);

/// What TCP knew of a connection when the kernel took down a socket of it, as the programs tell userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedConnection {
    /// The flow that asked for it last.
    pub key: FlowKey,
    /// That in which the socket sent: 0 is a → b.
    pub direction: u64,
    /// Time since boot, suspend included, when the flow asked. Flows that began later are those of other connections.
    pub asked_ns: u64,
    pub info: TcpInfo,
}

const _: () = assert!(size_of::<EndedConnection>() == size_of::<FlowKey>() + 16 + 24);

/// Where the running kernel keeps the same in a `tcp_sock`, in bytes. All are known, or the program that reads them is not loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpLayout {
    pub srtt_us: u32,
    pub rtt_min: u32,
    pub total_retrans: u32,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub data_segs_out: u32,
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers of one size only.
    unsafe impl aya::Pod for super::TcpInfo {}
    // SAFETY: repr(C), a key and integers, no padding (asserted by size above).
    unsafe impl aya::Pod for super::EndedConnection {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::TcpLayout {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(data_segs_out: u32) -> TcpInfo {
        TcpInfo {
            rtt_us: 1,
            min_rtt_us: 2,
            total_retrans: 3,
            delivered: 4,
            delivered_ce: 5,
            data_segs_out,
        }
    }

    #[test]
    fn what_is_known_goes_through_words_unchanged() {
        assert_eq!(TcpInfo::of_words(info(6).words()), info(6));
        assert!(info(6).is_known());
        assert_eq!(TcpInfo::of_words([0; 3]), TcpInfo::default());
        assert!(!TcpInfo::default().is_known());
    }

    #[test]
    fn the_later_of_two_notes_stays() {
        let mut united = TcpInfo::default();
        for (other, expected) in [
            (TcpInfo::default(), TcpInfo::default()),
            (info(7), info(7)),
            (info(6), info(7)),
            (TcpInfo::default(), info(7)),
            (info(8), info(8)),
        ] {
            united.unite(&other);
            assert_eq!(united, expected);
        }
    }
}
