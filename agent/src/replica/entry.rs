//! One flow of the replica: what the kernel counted comes in, totals, state and records go out.

use agent_common::{FlowCounters, FlowKey, Pair, flow::tcp_flags};

use crate::{
    clock::ScanClock,
    community_id::community_id,
    record::{EndReason, Record},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    Living,
    /// FIN or RST was seen: lingers so that the last ACK opens no new flow.
    Closing,
}

/// Arrays are by direction of the key, as the kernel counts.
pub struct Entry {
    pub key: FlowKey,
    pub total: [Pair; 2],
    pub first_seen_unix_ns: u64,
    pub last_seen_boot_ns: u64,
    pub community_id: [u8; 20],
    /// When the flow became closing.
    pub closing_scan: u32,
    pub tcp_flags: [u8; 2],
    pub initiator: u8,
    pub dscp: u8,
    pub state: State,
}

const _: () = assert!(size_of::<Entry>() <= 144);

impl Entry {
    pub fn new(key: &FlowKey, counters: &FlowCounters, clock: ScanClock) -> Self {
        let initiator = initiator(counters);
        Self {
            key: *key,
            total: [Pair::default(); 2],
            first_seen_unix_ns: clock.unix_ns(counters.first_seen_ns),
            last_seen_boot_ns: counters.first_seen_ns,
            community_id: community_id(key, initiator),
            closing_scan: 0,
            tcp_flags: [0; 2],
            initiator,
            dscp: counters.dscp,
            state: State::Living,
        }
    }

    pub fn is(&self, key: &FlowKey) -> bool {
        self.state != State::Free && self.key == *key
    }

    /// Returns what was added.
    pub fn add(&mut self, counters: &FlowCounters, clock: ScanClock, scan: u32) -> [Pair; 2] {
        let delta = [0, 1].map(|direction| Pair {
            packets: counters.packets[direction],
            bytes: counters.bytes[direction],
        });
        for (direction, &added) in delta.iter().enumerate() {
            self.total[direction] += added;
            self.tcp_flags[direction] |= counters.tcp_flags[direction].union();
        }
        self.last_seen_boot_ns = self
            .last_seen_boot_ns
            .max(clock.last_seen_boot_ns(counters));
        if self.state == State::Living && self.is_over() {
            self.state = State::Closing;
            self.closing_scan = scan;
        }
        delta
    }

    pub fn is_over(&self) -> bool {
        let [flags_a, flags_b] = self.tcp_flags;
        let done = |direction: usize| {
            self.tcp_flags[direction] & tcp_flags::FIN != 0 || self.total[direction].packets == 0
        };
        (flags_a | flags_b) & tcp_flags::RST != 0
            || (flags_a | flags_b) & tcp_flags::FIN != 0 && done(0) && done(1)
    }

    pub fn closed_before(&self, scan: u32) -> bool {
        self.state == State::Closing && self.closing_scan != scan
    }

    pub fn record(
        &self,
        clock: ScanClock,
        delta: [Pair; 2],
        end_reason: Option<EndReason>,
    ) -> Record {
        let forward = usize::from(self.initiator);
        let reverse = 1 - forward;
        Record {
            key: self.key,
            initiator: self.initiator,
            delta: [delta[forward], delta[reverse]],
            total: [self.total[forward], self.total[reverse]],
            first_seen_unix_ns: self.first_seen_unix_ns,
            last_seen_unix_ns: clock.unix_ns(self.last_seen_boot_ns),
            tcp_flags: [self.tcp_flags[forward], self.tcp_flags[reverse]],
            dscp: self.dscp,
            end_reason,
            community_id: self.community_id,
            outer: None,
        }
    }
}

/// The direction that opened the flow: the handshake tells, else the first packet that was seen.
pub fn initiator(counters: &FlowCounters) -> u8 {
    let [a, b] = &counters.tcp_flags;
    match (a.has_syn_without_ack(), b.has_syn_without_ack()) {
        (true, false) => return 0,
        (false, true) => return 1,
        _ => {}
    }
    match (a.has_syn_with_ack(), b.has_syn_with_ack()) {
        (true, false) => 1,
        (false, true) => 0,
        _ => u8::from(counters.first_direction != 0),
    }
}

pub fn opens(counters: &FlowCounters) -> bool {
    let [a, b] = &counters.tcp_flags;
    a.has_syn_without_ack() || b.has_syn_without_ack()
}
