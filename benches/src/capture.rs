//! Flow counting by packet capture, the approach that the agent replaces: copies every packet to an `AF_PACKET` ring
//! and counts it with the agent's own parser and replica.
//!
//! It is meant to be a good implementation: [`ring`] is mapped memory and needs no system call per packet, the kernel
//! cuts frames to their headers, and the table is a fast hash map. A single thread does all the work, so the ring must
//! hold the packets that arrive during a drain.

use std::{
    collections::BTreeSet,
    collections::HashMap,
    time::{Duration, Instant},
};

use agent_common::{
    FlowCounters, FlowKey, LinkType, Packet,
    flow::{Classes, FlowBits},
    parse_all,
};
use anyhow::Result;
use flows::replica::{Replica, ReplicaSettings};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sys::clock::ScanClock;

use block::Captured;
use ring::Ring;

pub mod block;
pub mod ring;

/// Stands in for the kernel's tick, the unit in which the replica keeps the time of the last packet.
const TICK_NS: u64 = 1_000_000;

/// Entries handed to the replica per call.
const PART: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub ring_bytes: usize,
    pub max_tracked_flows: usize,
    pub idle_timeout: Duration,
    pub linger: Duration,
}

impl Default for Settings {
    /// The agent's default settings, with a ring about as large as its two pages of 500,000 flows.
    fn default() -> Self {
        Self {
            ring_bytes: 128 << 20,
            max_tracked_flows: 1_000_000,
            idle_timeout: Duration::from_mins(1),
            linger: Duration::from_secs(5),
        }
    }
}

/// Totals since the start, as one line of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Drains so far.
    pub scans: u64,
    /// Packets counted in flows. A packet is included once its table has been drained.
    pub packets: u64,
    pub bytes: u64,
    pub unparsed: u64,
    /// Packets dropped because the ring was full.
    pub dropped: u64,
    /// Flows in the last drain.
    pub flows: u64,
    /// Flows in the replica.
    pub tracked: u64,
    pub ring_bytes: u64,
}

/// Counts the flows of one interface.
pub struct Capture {
    ring: Ring,
    table: HashMap<FlowKey, FlowCounters, foldhash::fast::RandomState>,
    replica: Replica,
    unparsed: u64,
    account: Account,
}

impl Capture {
    /// Opens the ring in the calling thread's network namespace.
    pub fn open(interface: &str, settings: Settings) -> Result<Self> {
        let ring = Ring::open(interface, settings.ring_bytes)?;
        let account = Account {
            ring_bytes: ring.len_bytes() as u64,
            ..Account::default()
        };
        Ok(Self {
            ring,
            table: HashMap::default(),
            replica: Replica::new(ReplicaSettings {
                max_flows: settings.max_tracked_flows,
                idle_timeout: settings.idle_timeout,
                linger: settings.linger,
                report_interval: Duration::ZERO,
            }),
            unparsed: 0,
            account,
        })
    }

    /// Counts packets until the deadline.
    pub fn count_until(&mut self, deadline: Instant) -> Result<()> {
        loop {
            // Check the clock here too: under load the ring may never run empty.
            while self.count_block() && Instant::now() < deadline {}
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.ring.wait(left)?;
        }
    }

    /// Returns false if no block is ready.
    fn count_block(&mut self) -> bool {
        let Self {
            ring,
            table,
            unparsed,
            ..
        } = self;
        let boot_to_unix_ns = clock().boot_to_unix_ns;
        ring.take(|frame| {
            if !count(table, &frame, boot_to_unix_ns) {
                *unparsed += 1;
            }
        })
    }

    /// Empties the table into the replica, as a scan of the agent does.
    pub fn drain(&mut self) -> Result<Account> {
        let Self {
            table,
            replica,
            account,
            ..
        } = self;
        let mut sink = |record: &_| {
            std::hint::black_box(record);
        };
        replica.begin_scan(clock());
        account.scans += 1;
        account.flows = table.len() as u64;
        account.unparsed = self.unparsed;
        let (mut keys, mut counters) = (Vec::with_capacity(PART), Vec::with_capacity(PART));
        let mut entries = table.drain();
        loop {
            keys.clear();
            counters.clear();
            for (key, entry) in entries.by_ref().take(PART) {
                account.packets += entry.packets[0] + entry.packets[1];
                account.bytes += entry.bytes[0] + entry.bytes[1];
                keys.push(key);
                counters.push(entry);
            }
            if keys.is_empty() {
                break;
            }
            replica.update(&keys, &counters, &mut sink);
        }
        drop(entries);
        replica.end_scan(&BTreeSet::new(), &mut sink);
        account.tracked = replica.len() as u64;
        account.dropped += self.ring.take_dropped()?;
        Ok(*account)
    }

    /// Counts the packets already in the ring and drains a last time.
    pub fn finish(mut self) -> Result<Account> {
        std::thread::sleep(2 * ring::RETIRE_AFTER);
        // At most once around the ring: packets that arrive from here on are not counted.
        for _ in 0..self.ring.blocks() {
            if !self.count_block() {
                break;
            }
        }
        self.drain()
    }
}

/// Adds a frame to its flow. Returns false if the parser refuses the frame.
fn count(
    table: &mut HashMap<FlowKey, FlowCounters, foldhash::fast::RandomState>,
    frame: &Captured,
    boot_to_unix_ns: i64,
) -> bool {
    let mut packet = Packet::default();
    let tci = frame.vlan_tci;
    if parse_all(&frame.bytes, LinkType::Ethernet, tci, &mut packet).is_err() {
        return false;
    }
    let seen_ns = frame.unix_ns.saturating_add_signed(-boot_to_unix_ns);
    let entry = table.entry(packet.key).or_insert_with(|| FlowCounters {
        first_seen_ns: seen_ns,
        bits: FlowBits::first(packet.direction),
        classes: Classes::first(packet.direction, packet.dscp),
        ..FlowCounters::default()
    });
    let direction = usize::from(packet.direction & 1);
    entry.packets[direction] += 1;
    entry.bytes[direction] += frame.wire_len_bytes();
    entry.last_seen_jiffies = (seen_ns / TICK_NS) as u32;
    entry.classes.0 |= entry.classes.news(packet.direction, packet.dscp).0;
    entry.bits = entry
        .bits
        .and(FlowBits::segment(packet.direction, packet.tcp_flags));
    true
}

fn clock() -> ScanClock {
    let now_ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
    };
    let boot_ns = now_ns(ClockId::Boottime);
    ScanClock {
        boot_ns,
        jiffies: boot_ns / TICK_NS,
        tick_ns: TICK_NS,
        boot_to_unix_ns: now_ns(ClockId::Realtime)
            .wrapping_sub(boot_ns)
            .cast_signed(),
        slept_ns: 0,
    }
}

#[cfg(test)]
mod tests {
    use lab::Lab;

    use super::*;

    /// More in total than the ring holds, so that it wraps around.
    const FRAMES: u32 = 100_000;
    /// Fewer than the ring holds, so that none is lost while the reader gets no CPU.
    const AT_ONCE: usize = 20_000;
    const FLOWS: u32 = 1_000;
    const LEN_BYTES: u64 = 1_024;
    const PATIENCE: Duration = Duration::from_secs(100);

    #[test]
    fn every_frame_is_counted_in_its_flow() {
        if !lab::privilege::is_root_or_skip("benches::every_frame_is_counted_in_its_flow") {
            return;
        }
        let lab = Lab::quiet().unwrap();
        let open = || Capture::open(&lab.agent.interface, Settings::default());
        let mut capture = lab.agent.namespace.enter(open).unwrap();

        let frame = lab.peer.frame_v4(&lab.agent);
        let payload = vec![0; LEN_BYTES as usize - 14 - 20 - 8];
        let frames = (0..FRAMES).map(|number| {
            let port = 1 + (number % FLOWS) as u16;
            frame.udp(port, 53, &payload).unwrap()
        });
        let frames: Vec<_> = frames.collect();
        let socket = lab.peer.frame_socket().unwrap();
        let mut sent = 0;
        for frames in frames.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                scope.spawn(|| socket.send_many(frames).unwrap());
                let deadline = Instant::now() + Duration::from_millis(20);
                capture.count_until(deadline).unwrap();
            });
            sent += frames.len() as u64;
            let give_up = Instant::now() + PATIENCE;
            let counted = |capture: &Capture| {
                let flows = capture.table.values();
                flows
                    .map(|flow| flow.packets[0] + flow.packets[1])
                    .sum::<u64>()
            };
            while counted(&capture) < sent {
                assert!(Instant::now() < give_up, "{} of {sent}", counted(&capture));
                let deadline = Instant::now() + Duration::from_millis(20);
                capture.count_until(deadline).unwrap();
            }
        }
        let first = capture.drain().unwrap();
        let arp = lab.peer.mac;
        let not_ip: Vec<u8> = [&[0xff; 6][..], &arp, &[0x08, 0x06], &[0; 46]].concat();
        socket.send(&not_ip).unwrap();

        let last = capture.finish().unwrap();
        assert_eq!(first.flows.max(last.flows), u64::from(FLOWS));
        assert_eq!(
            (last.packets, last.bytes),
            (u64::from(FRAMES), u64::from(FRAMES) * LEN_BYTES)
        );
        assert_eq!((last.dropped, last.unparsed), (0, 1));
        assert_eq!((last.scans, last.tracked), (2, u64::from(FLOWS)));
    }
}
