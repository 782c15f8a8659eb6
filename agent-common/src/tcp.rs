//! What the kernel's TCP knows of a connection, as the programs note it.

use crate::FlowKey;

/// Of a connection, from the side of one of its sockets: what `ss -ti` shows, by the same names (`struct tcp_info`). All of it is
/// since the connection began.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The smoothed round trip in microseconds; 0 before the first one. The kernel has it in 29 bits. In what the programs note, the
    /// highest two are the [`Role`], and the next one is [`without_end`](Self::without_end); userspace takes them away first.
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

/// Which end of its connection a socket is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Unknown = 0,
    /// It has opened the connection.
    Opened = 1,
    /// It was made for a connection that a listening socket took.
    Accepted = 2,
}

impl Role {
    /// What a socket shows that is or is not one that was accepted, as far as its part for IPv4 says. `came_by_v6` is the interface by
    /// which its connection came by IPv6, 0 for none; `None` if nobody knows.
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

    /// Marks that nobody reports the destruction of the socket.
    #[inline(always)]
    #[must_use]
    pub const fn without_end(mut self) -> Self {
        self.rtt_us |= Self::WITHOUT_END;
        self
    }

    /// Takes away what [`without_end`](Self::without_end) noted, and returns whether it did.
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

    /// Takes away what [`with_role`](Self::with_role) noted.
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

/// Where the running kernel keeps the same in a `tcp_sock`, in bytes. All are known, or the program that reads them is not loaded. Of what
/// shows the [`Role`], each is 0 if it is not known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpLayout {
    pub srtt_us: u32,
    pub rtt_min: u32,
    pub total_retrans: u32,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub data_segs_out: u32,
    /// How many connections may wait for `accept`: of a socket that listens, and of those that are cloned from it.
    pub max_ack_backlog: u32,
    /// The interface for multicasts: of a socket that was accepted, that by which the connection came (`tcp_v4_syn_recv_sock`). A
    /// program can set none for TCP.
    pub multicast_v4: u32,
    /// Leads to the structure that has the same for IPv6 (`tcp_v6_syn_recv_sock`), at `multicast_v6`.
    pub ipv6: u32,
    pub multicast_v6: u32,
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
