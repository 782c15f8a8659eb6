//! Sends frames at a steady rate without losing any, cycling through a number of flows, while something is measured.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lab::{FrameSocket, Lab};
use sys::clock;

use super::{
    affinity::{self, sender_cpu},
    pacer::{Pace, Pacer},
};

const SOURCE_OFFSET_BYTES: usize = 14 + 12;
const PORT_OFFSET_BYTES: usize = 14 + 20;

/// The checksums in the header are not updated: the parser ignores them, and because of them the receiver's stack drops
/// the frames.
pub struct Sender {
    socket: FrameSocket,
    pace: Pace,
    batch: Vec<Vec<u8>>,
    /// `None` if no flow repeats.
    flows: Option<u32>,
    next: u64,
}

/// A sender's progress so far.
#[derive(Debug, Default)]
pub struct Sent {
    packets: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Sent {
    /// Packets sent, and the sender's CPU time, including kernel work in its context.
    pub fn so_far(&self) -> (u64, u64) {
        let packets = self.packets.load(Ordering::Relaxed);
        (packets, self.cpu_ns.load(Ordering::Relaxed))
    }
}

/// A sender's totals when it stopped.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    pub packets: u64,
    elapsed: Duration,
}

impl Sending {
    pub fn packets_per_second(self) -> u64 {
        let rate = u128::from(self.packets) * 1_000_000 / self.elapsed.as_micros().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

impl Sender {
    /// Sends UDP frames from the lab's peer to its agent.
    pub fn new(lab: &Lab, frame_len_bytes: usize, flows: Option<u32>, pace: Pace) -> Result<Self> {
        const HEADERS_LEN_BYTES: usize = 14 + 20 + 8;
        let payload = vec![0; frame_len_bytes - HEADERS_LEN_BYTES];
        let frame = lab.peer.frame_v4(&lab.agent).udp(0, 53, &payload)?;
        Ok(Self {
            socket: lab.peer.frame_socket()?,
            pace,
            batch: vec![frame; pace.most_at_once],
            flows,
            next: 0,
        })
    }

    /// Sends while `work` runs, from a dedicated CPU if there are two.
    pub fn during<T>(
        &mut self,
        packets_per_second: u64,
        work: impl FnOnce(&Sent) -> Result<T>,
    ) -> Result<(T, Sending)> {
        /// Stops the sender even if `work` fails or panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }

        let (sent, stop) = (Sent::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let sending = scope.spawn(|| self.run(packets_per_second, &sent, &stop));
            let end = Stop(&stop);
            let result = work(&sent);
            drop(end);
            let elapsed = match sending.join() {
                Ok(elapsed) => elapsed.context("send")?,
                Err(panicked) => std::panic::resume_unwind(panicked),
            };
            let (packets, _) = sent.so_far();
            result.map(|answer| (answer, Sending { packets, elapsed }))
        })
    }

    /// Sends until `stop` is set and returns the elapsed time.
    fn run(&mut self, packets_per_second: u64, sent: &Sent, stop: &AtomicBool) -> Result<Duration> {
        if let Some(cpu) = sender_cpu() {
            affinity::pin(cpu)?;
        }
        let cpu_before = clock::thread_cpu();
        let mut pacer = Pacer::start(packets_per_second, self.pace, stop);
        for count in &mut pacer {
            self.send(count)?;
            sent.packets.fetch_add(count as u64, Ordering::Relaxed);
            let cpu = clock::thread_cpu().saturating_sub(cpu_before);
            let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
            sent.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        }
        Ok(pacer.elapsed())
    }

    fn send(&mut self, count: usize) -> Result<()> {
        for frame in &mut self.batch[..count] {
            let (source, port) = endpoint(self.next);
            frame[SOURCE_OFFSET_BYTES..][..4].copy_from_slice(&source);
            frame[PORT_OFFSET_BYTES..][..2].copy_from_slice(&port);
            self.next += 1;
            if self.flows.is_some_and(|flows| self.next >= flows.into()) {
                self.next = 0;
            }
        }
        self.socket
            .send_many(&self.batch[..count])
            .context("send a batch")?;
        Ok(())
    }
}

/// An address in 11.0.0.0/8, outside the lab's own addresses, and a port that changes every 2^24 flows.
fn endpoint(number: u64) -> ([u8; 4], [u8; 2]) {
    let [.., high, low, a, b, c] = number.to_be_bytes();
    ([11, a, b, c], [high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flow_comes_twice() {
        let some = (0..1_u64 << 26).step_by(101);
        let all: std::collections::HashSet<_> = some.clone().map(endpoint).collect();
        assert_eq!(all.len(), some.count());
    }
}
