//! A wire between two namespaces: frames come in, the time until the last one is through and how
//! many there were go out.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Counters, Lab, Variety};

use super::{affinity, rounds::Interrupt};

/// Frames that one call sends: short enough for an interrupt to be heard.
const CHUNK: u32 = 200_000;

/// A lab whose agent's end polls, so that it takes what the generator sends.
pub struct Wire {
    pub lab: Lab,
}

/// Frames that arrived, in how much time.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    pub packets: u64,
    pub elapsed: Duration,
}

impl Passage {
    pub fn packets_per_second(self) -> f64 {
        self.packets as f64 / self.elapsed.as_secs_f64()
    }
}

impl Wire {
    pub fn new() -> Result<Self> {
        let lab = Lab::quiet()?;
        lab.agent.set_offloads(&["gro"], true)?;
        Ok(Self { lab })
    }

    /// A UDP frame over IPv4 of so many bytes.
    pub fn frame(&self, len_bytes: usize) -> Result<Vec<u8>> {
        const HEADERS_LEN_BYTES: usize = 14 + 20 + 8;
        let payload_len_bytes = len_bytes
            .checked_sub(HEADERS_LEN_BYTES)
            .context("a frame has room for its headers")?;
        let frame = self.lab.peer.frame_v4(&self.lab.agent);
        frame.udp(1000, 53, &vec![0; payload_len_bytes])
    }

    /// Sends as fast as one CPU can; frames that find the ring full are lost and not counted.
    pub fn flood(
        &self,
        frame: &[u8],
        variety: Variety,
        count: u32,
        interrupt: &Interrupt,
    ) -> Result<Passage> {
        let generator = self.lab.peer.generator_of(variety)?;
        let before = self.lab.agent.counters()?;
        let started = Instant::now();
        let mut left = count;
        while left > 0 {
            interrupt.check()?;
            let now = left.min(CHUNK);
            generator.send(frame, now, sender_cpu())?;
            left -= now;
        }
        let (counters, elapsed) = self.settle(started)?;
        let packets = (counters - before).rx_packets;
        ensure!(packets > 0, "no frame arrived");
        Ok(Passage { packets, elapsed })
    }

    /// Sends at a steady rate: each call sends what is due, since starting one takes the kernel
    /// milliseconds.
    pub fn pace(
        &self,
        frame: &[u8],
        variety: Variety,
        packets_per_second: u32,
        duration: Duration,
        interrupt: &Interrupt,
    ) -> Result<Passage> {
        const PAUSE: Duration = Duration::from_millis(5);
        let generator = self.lab.peer.generator_of(variety)?;
        let before = self.lab.agent.counters()?;
        let started = Instant::now();
        let mut sent = 0;
        loop {
            interrupt.check()?;
            let elapsed = started.elapsed().min(duration);
            let in_all = elapsed.as_micros() * u128::from(packets_per_second) / 1_000_000;
            let due = u32::try_from(in_all).unwrap_or(u32::MAX) - sent;
            if due > 0 {
                generator.send(frame, due, sender_cpu())?;
                sent += due;
            } else if elapsed == duration {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let (counters, elapsed) = self.settle(started)?;
        let packets = (counters - before).rx_packets;
        ensure!(packets > 0, "no frame arrived");
        Ok(Passage { packets, elapsed })
    }

    /// Waits for the frames in the ring. The clock stops where the counter last moved.
    fn settle(&self, started: Instant) -> Result<(Counters, Duration)> {
        let mut last = self.lab.agent.counters()?;
        let mut moved = started.elapsed();
        loop {
            std::thread::sleep(Duration::from_millis(2));
            let elapsed = started.elapsed();
            let counters = self.lab.agent.counters()?;
            if counters == last {
                return Ok((counters, moved));
            }
            (last, moved) = (counters, elapsed);
        }
    }
}

/// The last CPU, where there are two: the first ones take interrupts.
pub fn sender_cpu() -> Option<usize> {
    let cpus = affinity::cpus();
    (cpus > 1).then(|| cpus - 1)
}
