//! The state that the kernel's TCP keeps for a connection, as the programs store it.

use crate::FlowKey;

/// A connection as one of its sockets sees it: what `struct tcp_info` says, as `ss -ti` shows it. Counts are totals since
/// the connection began.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The smoothed round trip in microseconds; 0 before the first one. The kernel's value fits in 29 bits. The
    /// programs store the [`Role`] in the highest two bits and [`without_end`](Self::without_end) in the next;
    /// userspace removes them.
    pub rtt_us: u32,
    /// The shortest round trip that TCP remembers; [`Self::NO_RTT`] before the first one. 0 means that the whole struct
    /// is unknown, since TCP rounds no round trip down to 0.
    pub min_rtt_us: u32,
    /// Retransmitted segments, SYNs included.
    pub total_retrans: u32,
    /// Segments that the other side has acknowledged.
    pub delivered: u32,
    /// Delivered segments whose acknowledgment reported congestion (ECN). With RFC 3168 ECN these are more than routers
    /// have marked.
    pub delivered_ce: u32,
    /// Segments with data that were sent, retransmissions included.
    pub data_segs_out: u32,
    /// The congestion window in segments.
    pub snd_cwnd: u32,
    /// The bytes of a segment.
    pub mss: u32,
    /// The sample that the kernel keeps of the delivery rate: so many segments in so many microseconds. The two are one
    /// word, so that they belong together.
    pub rate_delivered: u32,
    pub rate_interval_us: u32,
}

/// Which end of its connection a socket is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Unknown = 0,
    /// It opened the connection.
    Opened = 1,
    /// A listening socket accepted the connection and created it.
    Accepted = 2,
}

impl Role {
    /// The role, from the fields that an accepted socket inherits. `was_accepted` comes from the IPv4 fields.
    /// `came_by_v6` is the interface on which an IPv6 connection arrived: 0 for none, `None` if unknown.
    #[inline(always)]
    #[must_use]
    pub const fn shown(was_accepted: bool, came_by_v6: Option<u32>) -> Self {
        match came_by_v6 {
            _ if was_accepted => Self::Accepted,
            Some(0) => Self::Opened,
            Some(_) => Self::Accepted,
            None => Self::Unknown,
        }
    }
}

impl TcpInfo {
    const ROLE_SHIFT: u32 = 30;
    const WITHOUT_END: u32 = 1 << 29;

    /// Marks that no program will report the destruction of the socket.
    #[inline(always)]
    #[must_use]
    pub const fn without_end(mut self) -> Self {
        self.rtt_us |= Self::WITHOUT_END;
        self
    }

    /// Removes the mark of [`without_end`](Self::without_end), and returns whether it was set.
    pub const fn take_without_end(&mut self) -> bool {
        let is_without = self.rtt_us & Self::WITHOUT_END != 0;
        self.rtt_us &= !Self::WITHOUT_END;
        is_without
    }

    #[inline(always)]
    #[must_use]
    pub const fn with_role(mut self, role: Role) -> Self {
        self.rtt_us |= (role as u32) << Self::ROLE_SHIFT;
        self
    }

    /// Removes the role that [`with_role`](Self::with_role) set, and returns it.
    pub const fn take_role(&mut self) -> Role {
        let role = self.rtt_us >> Self::ROLE_SHIFT;
        self.rtt_us &= (1 << Self::ROLE_SHIFT) - 1;
        match role {
            1 => Role::Opened,
            2 => Role::Accepted,
            _ => Role::Unknown,
        }
    }

    pub const NO_RTT: u32 = u32::MAX;
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();

    /// Whether the struct holds the state of a connection.
    #[inline(always)]
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.min_rtt_us != 0
    }

    #[inline(always)]
    #[must_use]
    pub const fn of_words(words: [u64; Self::WORDS]) -> Self {
        // SAFETY: the struct has the size of its words (asserted below), and any bytes are valid integers.
        unsafe { core::mem::transmute(words) }
    }

    #[inline(always)]
    #[must_use]
    pub const fn words(self) -> [u64; Self::WORDS] {
        // SAFETY: as above, and there is no padding.
        unsafe { core::mem::transmute(self) }
    }

    /// The delivery rate in bytes per second, as `tcp_compute_delivery_rate` of the kernel has it. `None` before the
    /// first sample.
    pub fn delivery_rate(&self) -> Option<u64> {
        const US_PER_S: u64 = 1_000_000;
        let bytes = u64::from(self.rate_delivered) * u64::from(self.mss);
        let rate = bytes
            .wrapping_mul(US_PER_S)
            .checked_div(self.rate_interval_us.into())?;
        (rate != 0).then_some(rate)
    }

    /// Takes over `other` unless it is unknown or earlier. Both describe one connection, whose counters only grow; a
    /// socket that its program resets clears them before the kernel destroys it.
    pub fn unite(&mut self, other: &Self) {
        let sent = |info: &Self| (info.data_segs_out, info.delivered, info.total_retrans);
        if other.is_known() && (!self.is_known() || sent(other) >= sent(self)) {
            *self = *other;
        }
    }
}

const _: () = assert!(size_of::<TcpInfo>() == 8 * TcpInfo::WORDS);

/// The last state of a connection, which the programs report when the kernel destroys its socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedConnection {
    /// The flow that last looked up the connection.
    pub key: FlowKey,
    /// The direction that the socket sent in: 0 is a → b.
    pub direction: u64,
    /// Time since boot, suspend included, of that look-up. Flows that began later belong to other connections.
    pub asked_ns: u64,
    pub info: TcpInfo,
}

const _: () =
    assert!(size_of::<EndedConnection>() == size_of::<FlowKey>() + 16 + size_of::<TcpInfo>());

/// Offsets in bytes of the fields in the kernel's structures. If any of `tcp_sock` is unknown, the program that reads
/// them is not loaded. Only the fields that show the [`Role`] may be missing; they are then 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpLayout {
    /// In the order of [`Self::MEMBERS`].
    pub tcp_sock: [u32; Self::MEMBERS.len()],
    /// The length of the `accept` queue of a listening socket. Accepted sockets are its clones and keep the value.
    pub max_ack_backlog: u32,
    /// The outgoing interface for multicast. In an accepted socket, the interface on which the connection arrived
    /// (`tcp_v4_syn_recv_sock`). A program cannot set it for TCP.
    pub multicast_v4: u32,
    /// The pointer to the structure that has the same field for IPv6 (`tcp_v6_syn_recv_sock`), at `multicast_v6`.
    pub ipv6: u32,
    pub multicast_v6: u32,
}

impl TcpLayout {
    /// The members of `struct tcp_sock` that the programs read, with [`Self::SRTT`] and so on as their places.
    pub const MEMBERS: [&str; 10] = [
        "srtt_us",
        "rtt_min",
        "total_retrans",
        "delivered",
        "delivered_ce",
        "data_segs_out",
        "snd_cwnd",
        "rate_delivered",
        "rate_interval_us",
        "mss_cache",
    ];
    pub const SRTT: usize = 0;
    pub const RTT_MIN: usize = 1;
    pub const TOTAL_RETRANS: usize = 2;
    pub const DELIVERED: usize = 3;
    pub const DELIVERED_CE: usize = 4;
    pub const DATA_SEGS_OUT: usize = 5;
    pub const SND_CWND: usize = 6;
    pub const RATE_DELIVERED: usize = 7;
    pub const RATE_INTERVAL_US: usize = 8;
    pub const MSS: usize = 9;
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
            snd_cwnd: 7,
            rate_delivered: 8,
            rate_interval_us: 9,
            mss: 10,
        }
    }

    #[test]
    fn a_rate_is_that_of_its_sample_and_needs_one() {
        let rate = |rate_delivered, rate_interval_us| {
            let info = TcpInfo {
                rate_delivered,
                rate_interval_us,
                mss: 1448,
                ..info(6)
            };
            info.delivery_rate()
        };
        assert_eq!(rate(10, 20_000), Some(724_000));
        assert_eq!(rate(10, 0), None);
        assert_eq!(rate(0, 20_000), None);
    }

    #[test]
    fn a_role_is_taken_away_and_leaves_the_round_trip() {
        for role in [Role::Unknown, Role::Opened, Role::Accepted] {
            for rtt_us in [0, 1, u32::MAX >> 3] {
                let info = TcpInfo { rtt_us, ..info(6) };
                let mut noted = info.with_role(role);
                assert_eq!((noted.take_role(), noted), (role, info));
                assert_eq!((noted.take_role(), noted), (Role::Unknown, info));
            }
        }
    }

    #[test]
    fn that_no_end_is_told_is_taken_away_and_leaves_the_round_trip_and_the_role() {
        for rtt_us in [0, u32::MAX >> 3] {
            let info = TcpInfo { rtt_us, ..info(6) }.with_role(Role::Accepted);
            let mut noted = info.without_end();
            assert!(noted.take_without_end() && !noted.take_without_end());
            assert_eq!(noted, info);
        }
    }

    #[test]
    fn a_socket_whose_part_for_ipv6_is_not_known_shows_nothing_unless_it_was_accepted() {
        for (was_accepted, came_by_v6, expected) in [
            (true, Some(0), Role::Accepted),
            (true, None, Role::Accepted),
            (false, Some(2), Role::Accepted),
            (false, Some(0), Role::Opened),
            (false, None, Role::Unknown),
        ] {
            assert_eq!(Role::shown(was_accepted, came_by_v6), expected);
        }
    }

    #[test]
    fn what_is_known_goes_through_words_unchanged() {
        assert_eq!(TcpInfo::of_words(info(6).words()), info(6));
        assert!(info(6).is_known());
        assert_eq!(TcpInfo::of_words([0; TcpInfo::WORDS]), TcpInfo::default());
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
