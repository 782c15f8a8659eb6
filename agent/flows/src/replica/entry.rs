//! One flow of the replica: its totals, its state and its records.

use agent_common::{
    Counts, Direction, FlowCounters, FlowKey, L4Kind,
    flow::{Classes, tcp_flags},
    protocol::TCP,
};
use proto::{EndReason, Failure, community_id::community_id, record::Record};
use sys::clock::ScanClock;

use super::{
    IcmpError, Lifetimes,
    handshake::{Handshake, opens},
    remembered::Initiator,
    reports::Unreported,
    segments::Segments,
    senders::Sockets,
    waiting::{self, only_direction},
};

mod unreported;

pub use unreported::{Malformed, UNREPORTED_VERSION, UnreportedFlow, read_unreported};

const NOT_IN_AN_OPENING_SYN: u8 = tcp_flags::ACK | tcp_flags::FIN | tcp_flags::RST;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    Living,
    /// FIN or RST was seen. The flow lingers, so that a late ACK or a repeated FIN does not begin another one.
    Closing,
}

impl State {
    /// Why a flow ends that might have gone on. `None` if there is no flow.
    pub fn forced_end(self) -> Option<EndReason> {
        match self {
            Self::Free => None,
            Self::Living => Some(EndReason::ForcedEnd),
            Self::Closing => Some(EndReason::EndOfFlow),
        }
    }
}

/// How the flow's packets are spread over the two sides of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// All packets were seen on the side that the key names.
    One,
    /// Both directions arrive, or both leave. The entry stands for the keys of both sides.
    Joined,
    /// One direction was seen on both sides. Each side has an entry and a record of its own.
    Apart,
}

/// Arrays are indexed by the key's direction, like the kernel's counters.
pub struct Entry {
    /// The key of a joined flow has the side of the initiator's packets.
    pub key: FlowKey,
    pub total: [Counts; 2],
    pub first_seen_unix_ns: u64,
    pub last_seen_boot_ns: u64,
    pub community_id: [u8; 20],
    /// The scan that last counted something.
    pub scan: u32,
    /// The number of the half of this flow that waits in this scan, else `waiting::NONE`.
    pub waiting: u32,
    pub tcp_flags: [u8; 2],
    pub handshake: Handshake,
    pub initiator: u8,
    /// See [`Classes::compact`].
    classes: [u8; 2],
    pub state: State,
    pub sides: Sides,
    /// A record of the flow was emitted.
    pub is_told: bool,
    /// TCP only.
    segments: Segments,
    origin: Origin,
    /// One bit per direction: a socket of this host has sent in it and is not known to be gone. Also holds
    /// [`Entry::WITHOUT_END`] and [`Entry::WAS_COMPLETE`].
    sockets: u8,
}

/// How the initiator is known, apart from the flow's own packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It is not: the initiator is whoever sent the first packet that was seen, and the flow may have begun before it.
    Unseen,
    /// The first packet was seen: the flow had no packet for the idle timeout before it.
    Seen,
    /// Like `Seen`, but the filter rules may leave out the other direction, and with it the real first packet. The
    /// initiator is sure only if both directions are counted.
    SeenIfBothAreCounted,
    /// Taken from what is known about the connection, which is itself an assumption.
    GivenAsAssumed,
    /// Taken from what is known about the connection, which is certain.
    Given,
}

const _: () = assert!(size_of::<Entry>() <= 160);

impl Entry {
    /// A bit of `sockets`: a socket of this host has sent, and its end cannot be reported.
    const WITHOUT_END: u8 = 4;
    /// A bit of `sockets`: before `scan` the flow was already closed or established, so a SYN in that scan begins the
    /// next flow.
    const WAS_COMPLETE: u8 = 8;

    /// A flow that begins with these counters of one scan.
    pub fn new(key: &FlowKey, counters: &FlowCounters, clock: ScanClock, scan: u32) -> Self {
        let handshake = Handshake::of(counters);
        let initiator = handshake.initiator();
        let mut entry = Self {
            key: *key,
            total: [Counts::default(); 2],
            first_seen_unix_ns: clock.unix_ns(counters.first_seen_ns),
            last_seen_boot_ns: counters.first_seen_ns,
            community_id: community_id(key, initiator),
            scan,
            waiting: waiting::NONE,
            tcp_flags: [0; 2],
            handshake,
            initiator,
            classes: [0; 2],
            state: State::Living,
            sides: Sides::One,
            is_told: false,
            segments: Segments::default(),
            origin: Origin::Unseen,
            sockets: 0,
        };
        entry.add(counters, clock, scan);
        entry
    }

    /// The next flow with the same ports.
    pub fn next(&self, counters: &FlowCounters, clock: ScanClock, scan: u32) -> Self {
        let mut next = Self::new(&self.key, counters, clock, scan);
        if self.sides == Sides::Joined {
            next.key = self.key.with_side(self.hook() ^ next.initiator);
        }
        next.sides = self.sides;
        next
    }

    /// Makes this entry one side of a flow whose other side has, or had, its own record with this `initiator`. Both
    /// sides see the same packets, but the agent may have begun to watch one of them later.
    #[must_use]
    pub fn apart(mut self, initiator: Initiator) -> Self {
        self.sides = Sides::Apart;
        self.give(initiator);
        self
    }

    /// Notes that the flow had no packet for the idle timeout before its first one. `is_divided` says that the filter
    /// rules may leave out one direction.
    pub fn begins_here(&mut self, is_divided: bool) {
        self.origin = if is_divided {
            Origin::SeenIfBothAreCounted
        } else {
            Origin::Seen
        };
    }

    /// The filter rules have changed. A direction that was left out so far may be counted from here on, so a flow with
    /// one direction proves nothing about its initiator.
    pub fn note_other_rules(&mut self) {
        if self.origin == Origin::SeenIfBothAreCounted && self.only_direction().is_some() {
            self.origin = Origin::Unseen;
        }
    }

    /// Takes over the initiator, unless the flow's own packets show it.
    pub fn give(&mut self, initiator: Initiator) {
        if self.handshake.opener().is_some() {
            return;
        }
        self.origin = if initiator.is_known {
            Origin::Given
        } else {
            Origin::GivenAsAssumed
        };
        self.set_initiator(initiator.direction);
    }

    /// Takes over the opener that a socket of this host shows.
    pub fn give_opener(&mut self, opener: Option<u8>) {
        if let Some(direction) = opener
            && self.is_tcp()
        {
            self.give(Initiator {
                direction,
                is_known: true,
            });
        }
    }

    fn set_initiator(&mut self, initiator: u8) {
        if self.initiator != initiator {
            self.initiator = initiator;
            self.community_id = community_id(&self.key, initiator);
        }
    }

    pub fn known_initiator(&self) -> Initiator {
        Initiator {
            direction: self.initiator,
            is_known: !self.is_initiator_assumed(),
        }
    }

    pub fn is_tcp(&self) -> bool {
        self.key.protocol == TCP && self.key.kind() == Some(L4Kind::Ports)
    }

    /// Whether the packets show who opened the flow: SYN and SYN with ACK.
    pub fn shows_opener(&self) -> bool {
        self.handshake.opener().is_some()
    }

    fn is_initiator_assumed(&self) -> bool {
        if self.origin == Origin::Given {
            return false;
        }
        if !self.is_tcp() {
            // A flow that has only answers, such as echo replies, does not prove who asked.
            let is_silent = self.total[usize::from(self.initiator)].packets == 0;
            // The type of an echo message tells a request from a reply.
            let is_known = match self.origin {
                Origin::Seen => true,
                Origin::SeenIfBothAreCounted => self.only_direction().is_none(),
                Origin::Unseen | Origin::GivenAsAssumed | Origin::Given => {
                    self.key.kind() == Some(L4Kind::IcmpQuery)
                }
            };
            return !is_known || is_silent;
        }
        let forward = usize::from(self.initiator);
        let goes_on = self.tcp_flags[1 - forward] & (tcp_flags::PSH | tcp_flags::FIN) != 0;
        let is_answered = self.segments.spoke(forward) || goes_on;
        !self.handshake.proves(self.initiator, is_answered)
    }

    /// Whether the connection may go on after its flow has ended, since no FIN closed it. Both ends were seen to
    /// establish it, or its opener was known before.
    pub fn may_resume(&self) -> bool {
        let has_fin = self.tcp_flags[0] & self.tcp_flags[1] & tcp_flags::FIN != 0;
        let is_seen = self.only_direction().is_none() && self.is_established();
        self.is_tcp() && !has_fin && (is_seen || self.goes_on())
    }

    /// Whether the flow continues an older connection. Stray segments that are seen on both sides of the interface do
    /// not.
    fn goes_on(&self) -> bool {
        let is_given = match self.origin {
            Origin::Given => true,
            Origin::GivenAsAssumed => self.sides != Sides::Apart,
            Origin::Unseen | Origin::Seen | Origin::SeenIfBothAreCounted => false,
        };
        let has_syn = (self.tcp_flags[0] | self.tcp_flags[1]) & tcp_flags::SYN != 0;
        is_given && !has_syn
    }

    /// When the flow began, since boot, by this scan's clock.
    #[inline]
    pub fn began_ns(&self, clock: ScanClock) -> u64 {
        clock.boot_of_unix_ns(self.first_seen_unix_ns)
    }

    #[inline]
    pub fn is(&self, key: &FlowKey) -> bool {
        self.state != State::Free && self.key.is(key)
            || self.sides == Sides::Joined && self.is_beside(key)
    }

    /// Whether `key` is the key of the same flow on the other side of the interface.
    pub fn is_beside(&self, key: &FlowKey) -> bool {
        self.state != State::Free
            && self.key.side() != key.side()
            && self.key.with_side(key.side()) == *key
    }

    /// Returns the counts that were added.
    pub fn add(&mut self, counters: &FlowCounters, clock: ScanClock, scan: u32) -> [Counts; 2] {
        if self.scan != scan {
            if self.is_complete() {
                self.sockets |= Self::WAS_COMPLETE;
            } else {
                self.sockets &= !Self::WAS_COMPLETE;
            }
            self.scan = scan;
            self.segments.begin_window();
        }
        let delta = counters.counts();
        for (direction, &added) in delta.iter().enumerate() {
            self.total[direction] += added;
            self.tcp_flags[direction] |= counters.bits.tcp_flags(direction);
        }
        let classes = Classes::expand(self.classes).and_later(counters.classes);
        self.classes = classes.compact();
        self.handshake = self.handshake.with_flags_of(Handshake::of(counters));
        if self.is_tcp() {
            self.segments.add(counters);
            self.segments
                .undo_resets(self.total.map(|total| total.packets != 0));
        }
        self.last_seen_boot_ns = self
            .last_seen_boot_ns
            .max(clock.last_seen_boot_ns(counters));
        self.state = if self.is_over() {
            State::Closing
        } else {
            State::Living
        };
        delta
    }

    /// Adds the other half of a flow that has no record yet. Only both halves together show which packet came first
    /// and who sent the SYN.
    pub fn join(&mut self, half: &FlowCounters, clock: ScanClock) {
        let hook = self.hook();
        let first_seen_unix_ns = clock.unix_ns(half.first_seen_ns);
        if first_seen_unix_ns < self.first_seen_unix_ns {
            self.first_seen_unix_ns = first_seen_unix_ns;
            let classes = half.classes.and_later(Classes::expand(self.classes));
            self.classes = classes.compact();
            self.handshake = Handshake::of(half).with_flags_of(self.handshake);
        }
        self.add(half, clock, self.scan);
        let is_given = matches!(self.origin, Origin::Given | Origin::GivenAsAssumed);
        if !is_given || self.shows_opener() {
            self.set_initiator(self.handshake.initiator());
        }
        self.sides = Sides::Joined;
        self.key = self.key.with_side(self.initiator ^ hook);
    }

    /// The hook that sees the entry's packets if they have one direction, or the initiator's packets of a joined flow:
    /// 0 for ingress, 1 for egress.
    pub fn hook(&self) -> u8 {
        let direction = match self.sides {
            Sides::Joined => self.initiator,
            Sides::One | Sides::Apart => self.only_direction().unwrap_or(self.initiator),
        };
        self.key.side() ^ direction
    }

    /// The direction of its packets, if all have the same.
    pub fn only_direction(&self) -> Option<u8> {
        only_direction(self.total.map(|total| total.packets))
    }

    /// `error` is the ICMP error that quotes a packet of the initiator, if one came.
    fn failure(&self, error: Option<IcmpError>, end: Option<EndReason>) -> Option<Failure> {
        let (forward, reverse) = (usize::from(self.initiator), usize::from(1 - self.initiator));
        let is_answered = self.total[reverse].packets != 0;
        let unreachable = (!is_answered && error.is_some()).then_some(Failure::Unreachable);
        if !self.is_tcp() {
            return unreachable;
        }
        let [sent, answered] = [forward, reverse].map(|direction| self.tcp_flags[direction]);
        let has = |flags: u8, one: u8| flags & one != 0;
        // An initiator that got an answer by another path sends more than a SYN.
        if has(sent, tcp_flags::SYN) && !has(sent, NOT_IN_AN_OPENING_SYN) {
            return if has(answered, tcp_flags::RST) && !has(answered, tcp_flags::SYN) {
                Some(Failure::Refused)
            } else if is_answered {
                None
            } else {
                // An answer may still come to a flow that was ended by force.
                let unanswered = end == Some(EndReason::IdleTimeout);
                unreachable.or(unanswered.then_some(Failure::Unanswered))
            };
        }
        // Until the flow ends, the connection may turn out to have ignored the RST.
        if end.is_none() || !self.segments.is_reset() {
            return None;
        }
        // Each side that was seen must have spoken. A segment that arrives after the close is answered by an RST
        // without ACK, so only one side speaks. A stray RST ends no connection either.
        let were_there = (0..2)
            .all(|direction| self.segments.spoke(direction) || self.total[direction].packets == 0);
        let have_ended = if is_answered { sent & answered } else { sent };
        let is_reset = were_there && !has(have_ended, tcp_flags::FIN);
        is_reset.then_some(Failure::Reset)
    }

    fn is_over(&self) -> bool {
        let [flags_a, flags_b] = self.tcp_flags;
        let done = |direction: usize| {
            self.tcp_flags[direction] & tcp_flags::FIN != 0 || self.total[direction].packets == 0
        };
        self.segments.is_reset() || (flags_a | flags_b) & tcp_flags::FIN != 0 && done(0) && done(1)
    }

    /// Whether each side that was seen has acknowledged something. If only one side was seen, its SYN with ACK
    /// is not enough, since the SYN that it answers may be repeated.
    fn is_established(&self) -> bool {
        let acked = |direction: usize| self.tcp_flags[direction] & tcp_flags::ACK != 0;
        match self.only_direction().map(usize::from) {
            Some(direction) => acked(direction) && !self.handshake.has_syn_ack(direction),
            None => acked(0) && acked(1),
        }
    }

    fn is_complete(&self) -> bool {
        self.state == State::Closing || self.is_established()
    }

    /// Whether what `scan` counted belongs to the next flow with the same ports.
    pub fn is_followed_by(&self, counters: &FlowCounters, scan: u32) -> bool {
        let was_complete = if self.scan == scan {
            self.sockets & Self::WAS_COMPLETE != 0
        } else {
            self.is_complete()
        };
        was_complete && opens(counters)
    }

    /// Returns true for the first socket of the flow whose end cannot be reported.
    #[inline]
    pub fn note_sockets(&mut self, sockets: Sockets) -> bool {
        let [first, second] = sockets.with_end.map(u8::from);
        self.sockets |= first | second << 1;
        let is_first = sockets.is_one_without_end && self.sockets & Self::WITHOUT_END == 0;
        if is_first {
            self.sockets |= Self::WITHOUT_END;
        }
        is_first
    }

    pub fn note_socket_is_gone(&mut self, direction: usize) {
        self.sockets &= !(1 << direction);
    }

    /// Whether only an RST has closed the flow, and the socket that received it still exists.
    fn waits_for_socket(&self) -> bool {
        let has_fin = (self.tcp_flags[0] | self.tcp_flags[1]) & tcp_flags::FIN != 0;
        !has_fin && self.segments.receivers_of_rst() & self.sockets != 0
    }

    /// How long the flow is kept after its last packet. A socket that received an RST and still exists may have
    /// ignored it.
    #[inline]
    fn quiet_ns(&self, lifetimes: Lifetimes) -> u64 {
        match self.state {
            State::Closing if !self.waits_for_socket() => lifetimes.linger_ns,
            State::Closing | State::Living | State::Free => lifetimes.idle_ns,
        }
    }

    /// The eviction rank: the flow with the lowest rank would end first by itself, so it is evicted first. The rank of
    /// a living flow is the boot time at which it was last seen.
    #[inline]
    pub fn rank_ns(&self, lifetimes: Lifetimes) -> u64 {
        match self.state {
            State::Closing => self
                .last_seen_boot_ns
                .saturating_add(self.quiet_ns(lifetimes))
                .saturating_sub(lifetimes.idle_ns),
            State::Living | State::Free => self.last_seen_boot_ns,
        }
    }

    /// The boot time at which the flow ends if no more packets come.
    #[inline]
    pub fn end_ns(&self, lifetimes: Lifetimes) -> u64 {
        self.last_seen_boot_ns
            .saturating_add(self.quiet_ns(lifetimes))
    }

    /// The record, without what the agent knows beyond the flow's packets.
    pub fn record(
        &self,
        clock: ScanClock,
        unreported: Unreported,
        error: Option<IcmpError>,
        end_reason: Option<EndReason>,
    ) -> Record {
        let (forward, reverse) = (usize::from(self.initiator), usize::from(1 - self.initiator));
        let side = Direction::from_bit(self.key.side() ^ self.initiator);
        let mut record = Record::new(self.key, self.initiator);
        let classes = Classes::expand(self.classes);
        for (end, direction) in [
            (&mut record.fields.src, forward),
            (&mut record.fields.dst, reverse),
        ] {
            end.set_counts(unreported.counts[direction], self.total[direction]);
            end.tcp_flags = self.is_tcp().then_some(self.tcp_flags[direction].into());
            end.dscp = classes.dscp(direction as u8).map(u32::from);
            end.dscp_changed = classes.has_changed(direction as u8);
        }
        record.src.direction = side.into();
        record.dst.direction = match self.sides {
            Sides::Joined => side.into(),
            Sides::One | Sides::Apart => side.opposite().into(),
        };
        record.initiator_assumed = self.is_initiator_assumed();
        record.delta_duration_ns = unreported.duration_ns(self.last_seen_boot_ns);
        record.first_seen_unix_ns = self.first_seen_unix_ns;
        // Unix time may have been set back, and two readings of it never agree to the nanosecond.
        record.last_seen_unix_ns = clock
            .unix_ns(self.last_seen_boot_ns)
            .max(self.first_seen_unix_ns);
        record.end_reason = end_reason;
        record.closing = end_reason.is_none() && self.state == State::Closing;
        record.community_id = self.community_id;
        record.failure = self.failure(error, end_reason);
        if let (Some(Failure::Unreachable), Some(error)) = (record.failure, error) {
            record.icmp_error_type = Some(error.icmp_type.into());
            record.icmp_error_code = Some(error.code.into());
        }
        record
    }
}
