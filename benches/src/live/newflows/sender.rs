//! A sender of new flows: a rate comes in, frames none of which has the flow of an earlier one leave
//! an interface until the end is asked for.

use std::{sync::atomic::AtomicBool, time::Duration};

use anyhow::{Context as _, Result};
use lab::{FrameSocket, Lab};

use crate::live::{
    affinity,
    pacer::{Pace, Pacer},
};

/// Frames a system call.
const BATCH: usize = 128;
const PAUSE: Duration = Duration::from_micros(500);
const LONGEST_STALL: Duration = Duration::from_millis(10);
const FRAME_LEN_BYTES: usize = 64;
const SOURCE_OFFSET_BYTES: usize = 14 + 12;
const PORT_OFFSET_BYTES: usize = 14 + 20;

pub struct Sender {
    socket: FrameSocket,
    batch: Vec<Vec<u8>>,
    next: u64,
}

/// What one call of [`Sender::run`] did.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub packets: u64,
    elapsed: Duration,
}

impl Sent {
    pub fn packets_per_second(self) -> u64 {
        let rate = u128::from(self.packets) * 1_000_000 / self.elapsed.as_micros().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

impl Sender {
    pub fn new(lab: &Lab) -> Result<Self> {
        const HEADERS_LEN_BYTES: usize = 14 + 20 + 8;
        let frame = lab.peer.frame_v4(&lab.agent);
        let frame = frame.udp(0, 53, &[0; FRAME_LEN_BYTES - HEADERS_LEN_BYTES])?;
        Ok(Self {
            socket: lab.peer.frame_socket()?,
            batch: vec![frame; BATCH],
            next: 0,
        })
    }

    /// Sends until `stop`, on its own CPU where there is one.
    pub fn run(
        &mut self,
        flows_per_second: u64,
        cpu: Option<usize>,
        stop: &AtomicBool,
    ) -> Result<Sent> {
        if let Some(cpu) = cpu {
            affinity::pin(cpu)?;
        }
        let pace = Pace {
            packets_per_second: flows_per_second,
            most_at_once: BATCH,
            pause: PAUSE,
            longest_stall: LONGEST_STALL,
        };
        let mut pacer = Pacer::start(pace, stop);
        let mut packets = 0;
        for count in &mut pacer {
            self.send(count)?;
            packets += count as u64;
        }
        Ok(Sent {
            packets,
            elapsed: pacer.elapsed(),
        })
    }

    /// The checksums are left as they are: the parser does not look at them.
    fn send(&mut self, count: usize) -> Result<()> {
        for frame in &mut self.batch[..count] {
            let (source, port) = endpoint(self.next);
            frame[SOURCE_OFFSET_BYTES..][..4].copy_from_slice(&source);
            frame[PORT_OFFSET_BYTES..][..2].copy_from_slice(&port);
            self.next += 1;
        }
        self.socket
            .send_many(&self.batch[..count])
            .context("send a batch")?;
        Ok(())
    }
}

/// In 11.0.0.0/8, away from the lab's own addresses, with another port for each 2^24 flows.
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
