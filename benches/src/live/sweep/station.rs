//! An arm on a wire of its own with a sender: traffic comes in, one turn's measures go out.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lab::Lab;

use super::{
    FRAME_LEN_BYTES, PACKETS_PER_SECOND,
    counter::{Counter, Tally},
    sender::{Sender, Sent},
    window::{MANY, Measures, Window, process_measures, program_measures, whole_intervals},
};
use crate::live::{affinity, cost::programs_during, rounds::Interrupt, wire::sender_cpu};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    Nothing,
    Agent,
    Capture,
}

impl Arm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Agent => "agent",
            Self::Capture => "capture",
        }
    }
}

/// What the arms of a group have in common, and the agent's settings for it.
#[derive(Clone, Copy)]
pub struct Traffic {
    pub section: &'static str,
    pub flows: u32,
    pub table: u32,
    pub interval: Duration,
}

#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub agent: &'a Path,
    pub capture: &'a Path,
    /// CPU time is taken over whole scan intervals that last at least so long.
    pub window: Duration,
}

pub struct Station {
    pub arm: Arm,
    traffic: Traffic,
    window: Duration,
    counter: Counter,
    /// From here on there is a scan at every interval.
    started: Instant,
    sender: Sender,
    sender_cpu: Option<usize>,
    lab: Lab,
    turn: Option<Turn>,
    before: (Tally, u64),
}

/// Of which not all packets need be counted yet.
#[derive(Clone, Copy)]
struct Turn {
    scans_at_end: u64,
    sent_in_all: u64,
}

impl Station {
    pub fn new(
        arm: Arm,
        traffic: Traffic,
        setting: Setting,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let lab = Lab::quiet()?;
        let Traffic {
            table, interval, ..
        } = traffic;
        let mut counter = match arm {
            Arm::Nothing => Counter::Nothing,
            Arm::Agent => Counter::agent(&lab.agent, setting.agent, table, interval, interrupt)?,
            Arm::Capture => Counter::capture(&lab.agent, setting.capture, interval, interrupt)?,
        };
        let started = Instant::now();
        let sender_cpu = sender_cpu();
        if let (Some(pid), Some(cpu)) = (counter.pid(), sender_cpu) {
            affinity::keep_off(pid, cpu)?;
        }
        Ok(Self {
            arm,
            traffic,
            window: whole_intervals(interval, setting.window),
            counter,
            started,
            sender: Sender::new(&lab, traffic.flows)?,
            sender_cpu,
            lab,
            turn: None,
            before: (Tally::default(), 0),
        })
    }

    pub fn labels(&self) -> BTreeMap<String, String> {
        let Traffic {
            section,
            flows,
            table,
            interval,
        } = self.traffic;
        BTreeMap::from([
            ("section".to_owned(), section.to_owned()),
            ("flows".to_owned(), flows.to_string()),
            ("table".to_owned(), table.to_string()),
            (
                "scan_interval".to_owned(),
                humantime::format_duration(interval).to_string(),
            ),
            (
                "packets_per_second".to_owned(),
                PACKETS_PER_SECOND.to_string(),
            ),
            ("frame_bytes".to_owned(), FRAME_LEN_BYTES.to_string()),
        ])
    }

    pub fn describe(&self) -> String {
        let Traffic {
            flows,
            table,
            interval,
            ..
        } = self.traffic;
        let interval = humantime::format_duration(interval);
        let arm = self.arm.name();
        format!("{flows} flows, table of {table}, every {interval}: {arm}")
    }

    /// One turn: the programs' run time over a scan interval, then CPU time over whole intervals.
    /// The turn's losses come with the next [`Station::settle`].
    pub fn measure(&mut self, interrupt: &Interrupt) -> Result<Measures> {
        let interval = self.traffic.interval;
        let is_counted = self.arm != Arm::Nothing;
        if is_counted {
            self.await_phase(interrupt)?;
        }
        let ids = self.counter.program_ids()?;
        let pid = self.counter.pid();
        let counter = &mut self.counter;
        let outcome = under_traffic(&mut self.sender, self.sender_cpu, |sent| {
            let programs = if ids.is_empty() {
                // Nothing has to get into a steady state where nothing counts.
                interrupt.sleep(if is_counted { interval } else { A_MOMENT })?;
                None
            } else {
                let (cost, elapsed, ()) = programs_during(&ids, || interrupt.sleep(interval))?;
                Some((cost, elapsed))
            };
            let window = Window::measure(pid, sent, self.window, interrupt)?;
            Ok((programs, window, counter.memory()?, counter.tally()?))
        });
        let (programs, window, memory, tally) = outcome?;
        self.turn = Some(Turn {
            scans_at_end: tally.scans,
            sent_in_all: self.sent_in_all()?,
        });
        let mut measures = window.measures();
        if pid.is_some() {
            let scans = window.elapsed.as_secs_f64() / interval.as_secs_f64();
            measures.extend(process_measures(&window, tally, scans));
        }
        measures.extend(programs.iter().flat_map(program_measures));
        if let Some(memory) = memory {
            let resident = memory.resident_bytes as f64;
            measures.push(("resident_bytes", resident));
            measures.push(("kernel_memory_bytes", memory.kernel_bytes as f64));
            if tally.tracked >= MANY {
                let per_flow = resident / tally.tracked as f64;
                measures.push(("resident_bytes_per_flow", per_flow));
            }
        }
        Ok(measures)
    }

    /// Waits until the packets of the last turn are counted, and says what was lost.
    pub fn settle(&mut self, interrupt: &Interrupt) -> Result<Measures> {
        let Some(turn) = self.turn.take() else {
            return Ok(Vec::new());
        };
        if self.arm == Arm::Nothing {
            return Ok(Vec::new());
        }
        let tally = loop {
            let tally = self.counter.tally()?;
            let placed = tally.counted + tally.unparsed + tally.refused;
            // The scan that was under way does not count.
            if placed == turn.sent_in_all || tally.scans >= turn.scans_at_end + 2 {
                break tally;
            }
            self.counter.ensure_alive()?;
            interrupt.sleep(Duration::from_millis(100))?;
        };
        let (before, sent_before) = self.before;
        self.before = (tally, turn.sent_in_all);
        let sent = turn.sent_in_all - sent_before;
        // Below zero where more was counted than sent, which is as wrong as a loss.
        let lost = sent.cast_signed() - (tally.counted - before.counted).cast_signed();
        let refused = tally.refused - before.refused;
        let unparsed = tally.unparsed - before.unparsed;
        let unaccounted = lost - (refused + unparsed).cast_signed();
        let mut measures = vec![
            ("lost_packets", lost as f64),
            ("lost_percent", 100.0 * lost as f64 / sent as f64),
            ("unaccounted_packets", unaccounted as f64),
        ];
        if self.arm == Arm::Agent {
            let table_full = tally.table_full - before.table_full;
            measures.push(("table_full_packets", table_full as f64));
        } else {
            measures.push(("dropped_packets", refused as f64));
        }
        Ok(measures)
    }

    fn sent_in_all(&self) -> Result<u64> {
        Ok(self.lab.peer.counters()?.tx_packets)
    }

    /// Waits for a time at which no scan runs, so that a window ends well after one and before the
    /// next.
    fn await_phase(&self, interrupt: &Interrupt) -> Result<()> {
        let interval = self.traffic.interval.as_secs_f64();
        let phase = self.started.elapsed().as_secs_f64() % interval / interval;
        interrupt.sleep(Duration::from_secs_f64(interval * wait_from(phase)))
    }
}

const A_MOMENT: Duration = Duration::from_millis(200);
/// Parts of a scan interval.
const EARLIEST_PHASE: f64 = 0.3;
const LATEST_PHASE: f64 = 0.6;

/// How long until a good phase, in intervals.
fn wait_from(phase: f64) -> f64 {
    if phase < EARLIEST_PHASE {
        EARLIEST_PHASE - phase
    } else if phase <= LATEST_PHASE {
        0.0
    } else {
        1.0 + EARLIEST_PHASE - phase
    }
}

/// Sends while `work` runs.
fn under_traffic<T>(
    sender: &mut Sender,
    cpu: Option<usize>,
    work: impl FnOnce(&Sent) -> Result<T>,
) -> Result<T> {
    /// Also where `work` fails or panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (sent, stop) = (Sent::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let sending = scope.spawn(|| sender.run(cpu, &sent, &stop));
        let end = Stop(&stop);
        let result = work(&sent);
        drop(end);
        match sending.join() {
            Ok(sending) => sending.context("send")?,
            Err(panicked) => std::panic::resume_unwind(panicked),
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_away_from_the_scans() {
        for hundredth in 0..100 {
            let phase = f64::from(hundredth) / 100.0;
            let wait = wait_from(phase);
            assert!((0.0..1.0).contains(&wait), "{phase}");
            let reached = (phase + wait) % 1.0;
            assert!((0.29..0.61).contains(&reached), "{phase}");
        }
    }
}
