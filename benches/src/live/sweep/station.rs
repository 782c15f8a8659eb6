//! An arm on its own wire with a sender. Measures the cost of a turn to the process, the programs and the sender, and
//! accounts for the packets.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::Lab;

use super::{
    FRAME_LEN_BYTES, Load, PACKETS_PER_SECOND,
    counter::{Counter, Tally},
};
use crate::live::{
    affinity,
    bench::{Measures, Setup, Station},
    cost::{cpu_percent, process_cpu_ns, programs_during},
    interrupt::Interrupt,
    kernel_time,
    pacer::Pace,
    sender::{Sender, Sent},
};

const PACE: Pace = Pace {
    most_at_once: 250,
    pause: Duration::from_millis(1),
    longest_stall: Duration::from_millis(250),
};

/// The fewest flows for which a cost per flow is meaningful.
const MANY: u64 = 1000;

pub struct Counted {
    interval: Duration,
    /// The time over which to measure CPU, a whole number of scan intervals.
    window: Duration,
    counter: Counter,
    /// The start of the first scan interval.
    started: Instant,
    sender: Sender,
    lab: Lab,
    bare: Bare,
    /// The last turn, some of whose packets may not be counted yet.
    turn: Option<Turn>,
    before: (Tally, u64),
}

/// A wire without a counter, measured in short slices that alternate with those of the counted wire.
struct Bare {
    sender: Sender,
    _lab: Lab,
}

/// Short enough that the machine's speed, which may change within seconds, is the same in two consecutive slices.
const PIECE: Duration = Duration::from_millis(50);
const PIECES: usize = 40;
/// Low enough that the sender's CPU has idle time on any machine. A saturated CPU would spend all of its time, whatever
/// the cost per packet.
const PIECE_PACKETS_PER_SECOND: u64 = 50_000;

#[derive(Clone, Copy)]
struct Turn {
    scans_at_end: u64,
    sent_in_all: u64,
}

impl Counted {
    pub fn new(arm: &str, load: Load, setup: &Setup) -> Result<Self> {
        let lab = Lab::quiet()?;
        let mut counter = Counter::start(arm, &lab.agent, load, setup)?;
        let started = Instant::now();
        if let Some(pid) = counter.pid() {
            affinity::keep_off_sender(pid)?;
        }
        let window = setup.window(Duration::from_secs(2));
        Ok(Self {
            interval: load.interval,
            window: whole_intervals(load.interval, window),
            counter,
            started,
            sender: sender(&lab, load)?,
            lab,
            bare: Bare::new(load)?,
            turn: None,
            before: (Tally::default(), 0),
        })
    }

    /// The time per packet that counting adds to the sender: the median over slices, each compared with a slice on the
    /// bare wire.
    fn added_ns(&mut self, interrupt: &Interrupt) -> Result<f64> {
        let mut added = Vec::with_capacity(PIECES);
        for number in 0..PIECES {
            let is_bare_first = number % 2 == 0;
            let mut bare = 0.0;
            if is_bare_first {
                bare = ns_in_a_piece(&mut self.bare.sender, interrupt)?;
            }
            let counted = ns_in_a_piece(&mut self.sender, interrupt)?;
            if !is_bare_first {
                bare = ns_in_a_piece(&mut self.bare.sender, interrupt)?;
            }
            added.push(counted - bare);
        }
        added.sort_by(f64::total_cmp);
        Ok(f64::midpoint(added[PIECES / 2 - 1], added[PIECES / 2]))
    }

    fn sent_in_all(&self) -> Result<u64> {
        Ok(self.lab.peer.counters()?.tx_packets)
    }

    /// Waits until no scan runs, such that the window ends well after a scan and before the next.
    fn await_phase(&self, interrupt: &Interrupt) -> Result<()> {
        let interval = self.interval.as_secs_f64();
        let phase = self.started.elapsed().as_secs_f64() % interval / interval;
        interrupt.sleep(Duration::from_secs_f64(interval * wait_from(phase)))
    }
}

impl Station for Counted {
    /// Measures the programs' run time over a scan interval, then CPU time over whole intervals.
    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        let Some(pid) = self.counter.pid() else {
            // Without a counter, no steady state has to be reached.
            const A_MOMENT: Duration = Duration::from_millis(200);
            let (window, _) = self.sender.during(PACKETS_PER_SECOND.into(), |sent| {
                setup.interrupt.sleep(A_MOMENT)?;
                Window::measure(None, sent, self.window, &setup.interrupt)
            })?;
            return Ok(window.measures());
        };
        self.await_phase(&setup.interrupt)?;
        let ids = self.counter.program_ids()?;
        let counter = &mut self.counter;
        let (outcome, _) = self.sender.during(PACKETS_PER_SECOND.into(), |sent| {
            let sleep = || setup.interrupt.sleep(self.interval);
            let (programs, ()) = programs_during(&ids, sleep)?;
            let window = Window::measure(Some(pid), sent, self.window, &setup.interrupt)?;
            Ok((programs, window, counter.memory()?, counter.tally()?))
        })?;
        let (programs, window, memory, tally) = outcome;
        let added_ns = self.added_ns(&setup.interrupt)?;
        self.turn = Some(Turn {
            scans_at_end: self.counter.tally()?.scans,
            sent_in_all: self.sent_in_all()?,
        });
        let scans = window.elapsed.as_secs_f64() / self.interval.as_secs_f64();
        let scan_ns = window.process_cpu_ns as f64 / scans;
        let cpu_percent = cpu_percent(window.process_cpu_ns, window.elapsed);
        let resident_bytes = memory.resident_bytes as f64;
        let memory_bytes = resident_bytes + memory.kernel_bytes as f64;
        let mut measures = window.measures();
        measures.extend([
            (kernel_time::ADDED_NS, added_ns),
            ("process_cpu_percent", cpu_percent),
            ("process_cpu_ms_per_scan", scan_ns / 1e6),
            ("flows_seen", tally.flows as f64),
            ("resident_bytes", resident_bytes),
            ("kernel_memory_bytes", memory.kernel_bytes as f64),
            ("memory_bytes", memory_bytes),
        ]);
        if !ids.is_empty() {
            measures.push(("programs_cpu_percent", programs.cpu_percent()));
        }
        let ns = programs.ns_per_run();
        measures.extend(ns.map(|ns| ("programs_ns_per_packet", ns)));
        if tally.flows >= MANY {
            measures.push(("process_cpu_ns_per_flow", scan_ns / tally.flows as f64));
        }
        if tally.tracked >= MANY {
            let flows = tally.tracked as f64;
            measures.push(("resident_bytes_per_flow", resident_bytes / flows));
            measures.push(("memory_bytes_per_flow", memory_bytes / flows));
        }
        Ok(measures)
    }

    /// Waits until the packets of the last turn are counted, and returns the losses.
    fn settle(&mut self, setup: &Setup) -> Result<Measures> {
        let Some(turn) = self.turn.take() else {
            return Ok(Measures::new());
        };
        let tally = loop {
            let tally = self.counter.tally()?;
            let placed = tally.counted + tally.unparsed + tally.refused;
            // The scan that was in progress does not count.
            if placed == turn.sent_in_all || tally.scans >= turn.scans_at_end + 2 {
                break tally;
            }
            self.counter.ensure_alive()?;
            setup.interrupt.sleep(Duration::from_millis(100))?;
        };
        let (before, sent_before) = self.before;
        self.before = (tally, turn.sent_in_all);
        let sent = turn.sent_in_all - sent_before;
        // Negative if more packets were counted than sent, which is as wrong as a loss.
        let lost = sent.cast_signed() - (tally.counted - before.counted).cast_signed();
        let refused = tally.refused - before.refused;
        let unparsed = tally.unparsed - before.unparsed;
        let unaccounted = lost - (refused + unparsed).cast_signed();
        Ok(vec![
            ("lost_packets", lost as f64),
            ("lost_percent", 100.0 * lost as f64 / sent as f64),
            ("unaccounted_packets", unaccounted as f64),
            self.counter.refused_by(tally, before),
        ])
    }
}

impl Bare {
    fn new(load: Load) -> Result<Self> {
        let lab = Lab::quiet()?;
        Ok(Self {
            sender: sender(&lab, load)?,
            _lab: lab,
        })
    }
}

fn sender(lab: &Lab, load: Load) -> Result<Sender> {
    Sender::new(lab, FRAME_LEN_BYTES, Some(load.flows), PACE)
}

/// The sender's CPU time per packet in one slice.
fn ns_in_a_piece(sender: &mut Sender, interrupt: &Interrupt) -> Result<f64> {
    let ((packets, cpu_ns), _) = sender.during(PIECE_PACKETS_PER_SECOND, |sent| {
        interrupt.sleep(PIECE)?;
        Ok(sent.so_far())
    })?;
    ensure!(packets > 0, "nothing was sent for {PIECE:?}");
    Ok(cpu_ns as f64 / packets as f64)
}

/// The difference between the readings at both ends of a window.
struct Window {
    elapsed: Duration,
    sent_packets: u64,
    sender_cpu_ns: u64,
    process_cpu_ns: u64,
}

impl Window {
    fn measure(
        pid: Option<u32>,
        sent: &Sent,
        length: Duration,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let process = || pid.map_or(Ok(0), process_cpu_ns);
        let started = Instant::now();
        let before = (sent.so_far(), process()?);
        interrupt.sleep(length)?;
        let after = (sent.so_far(), process()?);
        Ok(Self {
            elapsed: started.elapsed(),
            sent_packets: after.0.0 - before.0.0,
            sender_cpu_ns: after.0.1 - before.0.1,
            process_cpu_ns: after.1 - before.1,
        })
    }

    /// The sender's measures.
    fn measures(&self) -> Measures {
        let rate = self.sent_packets as f64 / self.elapsed.as_secs_f64();
        let sender_ns = self.sender_cpu_ns as f64 / self.sent_packets as f64;
        vec![
            ("sent_packets_per_second", rate),
            ("sender_ns_per_packet", sender_ns),
        ]
    }
}

/// The smallest number of whole intervals that covers the time.
fn whole_intervals(interval: Duration, time: Duration) -> Duration {
    let mut window = interval;
    while window < time {
        window += interval;
    }
    window
}

/// The part of a scan interval in which no scan runs, as fractions of the interval.
const EARLIEST_PHASE: f64 = 0.3;
const LATEST_PHASE: f64 = 0.6;

/// The wait until that part, in intervals.
fn wait_from(phase: f64) -> f64 {
    if phase < EARLIEST_PHASE {
        EARLIEST_PHASE - phase
    } else if phase <= LATEST_PHASE {
        0.0
    } else {
        1.0 + EARLIEST_PHASE - phase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_whole_scan_intervals() {
        let window = |millis| {
            let interval = Duration::from_millis(millis);
            whole_intervals(interval, Duration::from_secs(2)).as_millis()
        };
        assert_eq!(
            [window(700), window(1000), window(10_000)],
            [2100, 2000, 10_000]
        );
    }

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
