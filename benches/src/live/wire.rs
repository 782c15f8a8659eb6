//! A wire between two namespaces, and frames that a program sends over it, as fast as it can or at a steady rate.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Counters, Generator, Lab, Variety};

use super::{
    affinity::sender_cpu,
    bench::{Labels, labels},
    interrupt::Interrupt,
};

/// Frames per call, few enough that an interrupt is noticed soon.
const CHUNK: u32 = 200_000;

/// A lab whose agent-side end polls, so that it receives the generator's frames.
pub struct Wire {
    pub lab: Lab,
}

/// IPv4 frames, as fast as one CPU can send them.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    pub frame_len_bytes: usize,
    /// The number of source addresses to pick from at random; 0 makes every packet a flow of its own.
    pub flows: u32,
    pub packets: u32,
    /// TCP segments with data instead of UDP.
    pub is_tcp: bool,
}

/// UDP frames over IPv4 at a steady rate.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    pub frame_len_bytes: usize,
    pub flows: u32,
    pub packets_per_second: u32,
}

impl Steady {
    /// The load under which the agent and other agents are compared.
    pub const USUAL: Self = Self {
        frame_len_bytes: 512,
        flows: 10_000,
        packets_per_second: 50_000,
    };

    pub fn labels(self) -> Labels {
        labels([
            ("flows", &self.flows),
            ("packets_per_second", &self.packets_per_second),
            ("frame_bytes", &self.frame_len_bytes),
        ])
    }
}

/// Frames that arrived, and the elapsed time.
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

    /// Frames that find the ring full are lost and not counted.
    pub fn flood(&self, flood: Flood, interrupt: &Interrupt) -> Result<Passage> {
        let frame = self.frame(flood.frame_len_bytes, flood.is_tcp)?;
        self.send(flood.flows, |generator, _| {
            let mut left = flood.packets;
            while left > 0 {
                interrupt.check()?;
                let now = left.min(CHUNK);
                generator.send(&frame, now, sender_cpu())?;
                left -= now;
            }
            Ok(())
        })
    }

    /// Each call of the generator sends all frames that are due, since a call costs the kernel milliseconds.
    pub fn pace(
        &self,
        steady: Steady,
        duration: Duration,
        interrupt: &Interrupt,
    ) -> Result<Passage> {
        const PAUSE: Duration = Duration::from_millis(5);
        let frame = self.frame(steady.frame_len_bytes, false)?;
        self.send(steady.flows, |generator, started| {
            let mut sent = 0;
            loop {
                interrupt.check()?;
                let elapsed = started.elapsed().min(duration);
                let in_all =
                    elapsed.as_micros() * u128::from(steady.packets_per_second) / 1_000_000;
                let due = u32::try_from(in_all).unwrap_or(u32::MAX) - sent;
                if due > 0 {
                    generator.send(&frame, due, sender_cpu())?;
                    sent += due;
                } else if elapsed == duration {
                    return Ok(());
                }
                std::thread::sleep(PAUSE);
            }
        })
    }

    fn send(
        &self,
        flows: u32,
        work: impl FnOnce(&Generator, Instant) -> Result<()>,
    ) -> Result<Passage> {
        let variety = match flows {
            1 => Variety::Same,
            flows => Variety::Sources(flows),
        };
        let generator = self.lab.peer.generator_of(variety)?;
        let before = self.lab.agent.counters()?;
        let started = Instant::now();
        work(&generator, started)?;
        let (counters, elapsed) = self.settle(started)?;
        let packets = (counters - before).rx_packets;
        ensure!(packets > 0, "no frame arrived");
        Ok(Passage { packets, elapsed })
    }

    /// A frame to a port that no enrichment of the agent parses.
    fn frame(&self, len_bytes: usize, is_tcp: bool) -> Result<Vec<u8>> {
        const PORTS: (u16, u16) = (1000, 4000);
        const ACK: u8 = 0x10;
        let header_len_bytes = if is_tcp { 20 } else { 8 };
        let payload_len_bytes = len_bytes
            .checked_sub(14 + 20 + header_len_bytes)
            .context("a frame has room for its headers")?;
        let payload = vec![0; payload_len_bytes];
        let frame = self.lab.peer.frame_v4(&self.lab.agent);
        if is_tcp {
            frame.tcp(PORTS.0, PORTS.1, ACK, &payload)
        } else {
            frame.udp(PORTS.0, PORTS.1, &payload)
        }
    }

    /// Waits until the ring is empty. The elapsed time ends when the counter last changed.
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
