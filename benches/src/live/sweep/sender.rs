//! A steady sender: a rate and a number of flows come in, frames whose sources take turns leave an
//! interface, none lost, until the end is asked for.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use agent::clock;
use anyhow::{Context as _, Result};
use lab::{FrameSocket, Lab};

use super::{FRAME_LEN_BYTES, PACKETS_PER_SECOND};
use crate::live::{
    affinity,
    pacer::{Pace, Pacer},
};

/// Frames a system call.
const BATCH: usize = 250;
const PACE: Pace = Pace {
    packets_per_second: PACKETS_PER_SECOND as u64,
    most_at_once: BATCH,
    pause: Duration::from_millis(1),
    longest_stall: Duration::from_millis(250),
};
const SOURCE_OFFSET_BYTES: usize = 14 + 12;

/// The sources in turn; the header's checksum is left as it is, which the parser does not look at
/// and the receiver's stack drops the frames for.
pub struct Sender {
    socket: FrameSocket,
    batch: Vec<Vec<u8>>,
    flows: u32,
    next: u32,
}

/// What a sender has done so far.
#[derive(Debug, Default)]
pub struct Sent {
    packets: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Sent {
    /// Packets, and CPU time with what the kernel did in the sender's context.
    pub fn so_far(&self) -> (u64, u64) {
        let packets = self.packets.load(Ordering::Relaxed);
        (packets, self.cpu_ns.load(Ordering::Relaxed))
    }
}

impl Sender {
    pub fn new(lab: &Lab, flows: u32) -> Result<Self> {
        const HEADERS_LEN_BYTES: usize = 14 + 20 + 8;
        let frame = lab.peer.frame_v4(&lab.agent);
        let frame = frame.udp(1000, 53, &[0; FRAME_LEN_BYTES - HEADERS_LEN_BYTES])?;
        Ok(Self {
            socket: lab.peer.frame_socket()?,
            batch: vec![frame; BATCH],
            flows,
            next: 0,
        })
    }

    /// Sends until `stop`, on its own CPU where there is one.
    pub fn run(&mut self, cpu: Option<usize>, sent: &Sent, stop: &AtomicBool) -> Result<()> {
        if let Some(cpu) = cpu {
            affinity::pin(cpu)?;
        }
        let cpu_before = clock::thread_cpu();
        for count in Pacer::start(PACE, stop) {
            self.send(count)?;
            sent.packets.fetch_add(count as u64, Ordering::Relaxed);
            let cpu = clock::thread_cpu().saturating_sub(cpu_before);
            let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
            sent.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        }
        Ok(())
    }

    fn send(&mut self, count: usize) -> Result<()> {
        for frame in &mut self.batch[..count] {
            frame[SOURCE_OFFSET_BYTES..][..4].copy_from_slice(&source(self.next));
            self.next = (self.next + 1) % self.flows;
        }
        self.socket
            .send_many(&self.batch[..count])
            .context("send a batch")?;
        Ok(())
    }
}

/// In 11.0.0.0/8, away from the lab's own addresses.
fn source(number: u32) -> [u8; 4] {
    let [_, high, middle, low] = number.to_be_bytes();
    [11, high, middle, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_flows_have_sources_of_their_own() {
        let all: std::collections::HashSet<_> = (0..1_000_000).map(source).collect();
        assert_eq!(all.len(), 1_000_000);
    }
}
