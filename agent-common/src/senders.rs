//! The senders of a flow's packets: facts about the packets' sockets that the programs store beside the flow table.
//!
//! Only a packet that leaves, or one whose socket the kernel still keeps with it, has a socket. So each direction has a
//! sender of its own, and often one of them has none.

use crate::{Sample, TcpInfo, slots::SLOTS};

/// The cgroups of the sockets that sent a flow's packets, the processes that created these sockets, and the state of
/// their TCP connections. By direction: a → b, b → a. 0 where none was seen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Senders {
    /// The cgroup id (`bpf_skb_cgroup_id`, the inode number of its directory) of the first socket seen.
    /// [`Self::SHARED`] is set if a socket of another cgroup sent as well.
    pub cgroup_ids: [u64; 2],
    /// See [`Process::key`](crate::Process::key). [`Self::SHARED`] is set as above.
    pub process_keys: [u64; 2],
    /// TCP's state at the end that sends in this direction.
    pub tcp: [TcpInfo; 2],
    /// The round trips of this direction's segments.
    pub round_trips: [Sample; 2],
}

/// The kinds of facts that are stored: bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(pub u32);

impl Kinds {
    pub const NONE: Self = Self(0);
    pub const CGROUPS: Self = Self(1);
    pub const PROCESSES: Self = Self(2);
    pub const TCP: Self = Self(4);
    /// Comes from the packets themselves, not from their sockets.
    pub const ROUND_TRIPS: Self = Self(8);
    pub const ALL: Self = Self(15);

    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The kinds that need the packet's socket.
    #[inline(always)]
    #[must_use]
    pub const fn of_sockets(self) -> Self {
        Self(self.0 & 7)
    }

    /// Elements of a page per window of the flow table: one for each kind, and for TCP one per word of [`TcpInfo`].
    #[inline(always)]
    #[must_use]
    pub const fn planes(self) -> u32 {
        self.round_trip_plane() + (self.0 >> 3 & 1)
    }

    /// The plane of the cgroups.
    pub const CGROUP_PLANE: u32 = 0;

    /// The plane of the processes.
    #[inline(always)]
    #[must_use]
    pub const fn process_plane(self) -> u32 {
        self.0 & 1
    }

    /// The plane of TCP's first word. The other words follow it.
    #[inline(always)]
    #[must_use]
    pub const fn tcp_plane(self) -> u32 {
        (self.0 & 1) + (self.0 >> 1 & 1)
    }

    /// The plane of the round trips.
    #[inline(always)]
    #[must_use]
    pub const fn round_trip_plane(self) -> u32 {
        self.tcp_plane() + (self.0 >> 2 & 1) * TcpInfo::WORDS as u32
    }
}

impl Senders {
    /// The same as the default, for a `static`.
    pub const UNKNOWN: Self = Self {
        cgroup_ids: [0; 2],
        process_keys: [0; 2],
        tcp: [TcpInfo::of_words([0; TcpInfo::WORDS]); 2],
        round_trips: [Sample::NONE; 2],
    };

    /// The root of the hierarchy. It contains the kernel's own sockets, which answer for others: for a connection that
    /// is refused or over. So any other cgroup takes precedence over it.
    pub const ROOT: u64 = 1;

    /// Set beside a cgroup id or a process key if a socket of another one sent in the same direction. The bit is free:
    /// the kernel numbers cgroups and processes from 1 on.
    pub const SHARED: u64 = 1 << 63;

    /// How often a direction's sender can change on one page: from none to a socket of the root cgroup, to another one,
    /// to shared.
    pub const MOST_CHANGES: usize = 3;

    /// The direction's sender after `coming` was seen in addition to `known`. `other` is a sender that any other one
    /// replaces, or 0.
    #[inline(always)]
    #[must_use]
    pub const fn after(known: u64, coming: u64, other: u64) -> u64 {
        let shared = (known | coming) & Self::SHARED;
        let (one, two) = (known & !Self::SHARED, coming & !Self::SHARED);
        if one == 0 || one == other && two != 0 {
            two | shared
        } else if two == 0 || two == other || one == two {
            one | shared
        } else {
            one | Self::SHARED
        }
    }

    /// Merges the senders of the same flow from another entry.
    pub fn unite(&mut self, other: &Self) {
        for (ours, theirs) in self.cgroup_ids.iter_mut().zip(other.cgroup_ids) {
            *ours = Self::after(*ours, theirs, Self::ROOT);
        }
        for (ours, theirs) in self.process_keys.iter_mut().zip(other.process_keys) {
            *ours = Self::after(*ours, theirs, 0);
        }
        for (ours, theirs) in self.tcp.iter_mut().zip(&other.tcp) {
            ours.unite(theirs);
        }
        for (ours, theirs) in self.round_trips.iter_mut().zip(other.round_trips) {
            ours.unite(theirs);
        }
    }
}

const _: () = assert!(size_of::<Senders>() == 48 + 2 * size_of::<TcpInfo>());

/// One kind's values for the flows of a window: by slot and direction.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneOfWindow {
    pub slots: [[u64; 2]; SLOTS as usize],
}

const _: () = assert!(size_of::<PlaneOfWindow>() == 128);

/// What to look up for a packet and where to store it, as one function of the programs returns it to another: the
/// sender, for the first packet of a direction, flow and scan, and the round trip. Zero asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question(pub u64);

impl Question {
    pub const NONE: Self = Self(0);

    const PAGE_SHIFT: u32 = 32;
    const DIRECTION_SHIFT: u32 = 33;
    /// The packet is in a flow, whatever it asks for. Set only if DNS messages or ICMP errors are wanted.
    const FLOW_SHIFT: u32 = 34;
    /// Asks for the sender. A question that asks for nothing has no place.
    pub const SENDER: Self = Self(1 << 35);
    /// Asks to update the flow's round trips with the packet.
    pub const ROUND_TRIP: Self = Self(1 << 36);
    /// The width in bits.
    pub const BITS: u32 = 37;
    /// Stands for the map behind the slots; no slot has this number.
    const BEHIND: u32 = u32::MAX;

    /// The same question, for a flow in a slot.
    #[inline(always)]
    #[must_use]
    pub const fn in_slot(self, page: u32, window: u32, slot: u32, direction: u8) -> Self {
        let place = Self::of(page, window.wrapping_mul(SLOTS) + slot + 1, direction);
        self.and(place)
    }

    /// The same question, for a flow in the map behind the slots.
    #[inline(always)]
    #[must_use]
    pub const fn behind(self, page: u32, direction: u8) -> Self {
        self.and(Self::of(page, Self::BEHIND, direction))
    }

    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    pub const fn asks(self, what: Self) -> bool {
        self.0 & what.0 != 0
    }

    #[inline(always)]
    const fn of(page: u32, place: u32, direction: u8) -> Self {
        Self(
            place as u64
                | (page as u64 & 1) << Self::PAGE_SHIFT
                | (direction as u64 & 1) << Self::DIRECTION_SHIFT,
        )
    }

    /// The same question, marked as a packet in a flow.
    #[inline(always)]
    #[must_use]
    pub const fn of_a_flow(self) -> Self {
        Self(self.0 | 1 << Self::FLOW_SHIFT)
    }

    #[inline(always)]
    pub const fn is_of_a_flow(self) -> bool {
        self.0 >> Self::FLOW_SHIFT & 1 != 0
    }

    #[inline(always)]
    pub const fn page(self) -> u32 {
        (self.0 >> Self::PAGE_SHIFT) as u32 & 1
    }

    #[inline(always)]
    pub const fn direction(self) -> u32 {
        (self.0 >> Self::DIRECTION_SHIFT) as u32 & 1
    }

    /// Window and slot, or `None` behind the slots.
    #[inline(always)]
    pub const fn place(self) -> Option<(u32, u32)> {
        let place = self.0 as u32;
        if place == Self::BEHIND {
            return None;
        }
        let place = place.wrapping_sub(1);
        Some((place / SLOTS, place % SLOTS))
    }
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers only, no padding (asserted by size above).
    unsafe impl aya::Pod for super::Senders {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::PlaneOfWindow {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_says_where_and_which_and_is_never_zero() {
        for page in [0, 1] {
            for direction in [0, 1] {
                for (window, slot) in [(0, 0), (0, 7), (1, 3), (16_666_667, 7)] {
                    let question = Question::SENDER.in_slot(page, window, slot, direction);
                    assert!(
                        question.asks(Question::SENDER) && !question.asks(Question::ROUND_TRIP)
                    );
                    assert_eq!(question.place(), Some((window, slot)));
                    assert_eq!(question.page(), page);
                    assert_eq!(question.direction(), u32::from(direction));
                    let of_a_flow = question.of_a_flow();
                    assert!(of_a_flow.0 < 1 << Question::BITS);
                    assert!(of_a_flow.is_of_a_flow() && !question.is_of_a_flow());
                    assert_eq!(of_a_flow.place(), question.place());
                    assert_eq!(of_a_flow.page(), question.page());
                    assert_eq!(of_a_flow.direction(), question.direction());
                    assert!(of_a_flow.asks(Question::SENDER));
                    let of_none = Question::NONE.of_a_flow();
                    let both = Question::SENDER.and(Question::ROUND_TRIP);
                    assert!(!of_none.asks(both) && question.asks(both));
                    assert!(both.in_slot(page, window, slot, direction).0 < 1 << Question::BITS);
                }
                let question = Question::ROUND_TRIP.behind(page, direction);
                assert!(question.asks(Question::ROUND_TRIP) && !question.asks(Question::SENDER));
                assert_eq!(question.place(), None);
                assert_eq!(question.page(), page);
                assert_eq!(question.direction(), u32::from(direction));
                assert!(question.0 < 1 << Question::BITS);
            }
        }
    }

    #[test]
    fn who_is_known_stays_when_two_are_united() {
        let of = |cgroup_ids, process_keys| Senders {
            cgroup_ids,
            process_keys,
            ..Senders::default()
        };
        let mut senders = of([1, 0], [5, 0]);
        senders.unite(&of([2, 3], [6, 7]));
        let shared = Senders::SHARED;
        assert_eq!(senders, of([2, 3], [5 | shared, 7]), "the root gives way");
        senders.unite(&of([2, 1], [0, 7]));
        assert_eq!(senders, of([2, 3], [5 | shared, 7]));
        senders.unite(&of([4, 0], [5, 0]));
        assert_eq!(senders, of([2 | shared, 3], [5 | shared, 7]));
    }

    #[test]
    fn what_is_known_of_a_direction_changes_three_times_at_most() {
        const IDS: u64 = 3;
        const COMING: u32 = 6;
        for other in [Senders::ROOT, 0] {
            let changes = (0..IDS.pow(COMING)).map(|order| {
                let coming = (0..COMING).map(|at| 1 + order / IDS.pow(at) % IDS);
                let (mut known, mut changes) = (0, 0);
                for coming in coming {
                    let after = Senders::after(known, coming, other);
                    changes += usize::from(after != known);
                    known = after;
                }
                changes
            });
            let most = changes.max().unwrap();
            assert_eq!(most, if other == 0 { 2 } else { Senders::MOST_CHANGES });
        }
    }

    #[test]
    fn each_kind_that_is_kept_has_a_plane_of_its_own() {
        let both = Kinds::CGROUPS.and(Kinds::PROCESSES);
        let tcp = TcpInfo::WORDS as u32;
        for (kinds, planes, of_round_trips) in [
            (Kinds::ROUND_TRIPS, 1, 0),
            (Kinds::CGROUPS.and(Kinds::ROUND_TRIPS), 2, 1),
            (Kinds::TCP.and(Kinds::ROUND_TRIPS), tcp + 1, tcp),
            (
                both.and(Kinds::TCP).and(Kinds::ROUND_TRIPS),
                tcp + 3,
                tcp + 2,
            ),
        ] {
            assert_eq!(
                (kinds.planes(), kinds.round_trip_plane()),
                (planes, of_round_trips)
            );
            assert!(!kinds.of_sockets().has(Kinds::ROUND_TRIPS));
        }
        for (kinds, planes, of_processes, of_tcp) in [
            (Kinds::NONE, 0, None, None),
            (Kinds::CGROUPS, 1, None, None),
            (Kinds::PROCESSES, 1, Some(0), None),
            (both, 2, Some(1), None),
            (Kinds::TCP, tcp, None, Some(0)),
            (Kinds::CGROUPS.and(Kinds::TCP), tcp + 1, None, Some(1)),
            (both.and(Kinds::TCP), tcp + 2, Some(1), Some(2)),
        ] {
            assert_eq!(kinds.planes(), planes);
            let has = kinds.has(Kinds::PROCESSES);
            assert_eq!(has.then(|| kinds.process_plane()), of_processes);
            let has = kinds.has(Kinds::TCP);
            assert_eq!(has.then(|| kinds.tcp_plane()), of_tcp);
        }
    }
}
