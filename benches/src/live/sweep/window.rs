//! A stretch of time: a process and a sender come in, CPU time and packets within it go out.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{counter::Tally, sender::Sent};
use crate::live::{
    cost::{ProgramCost, cpu_percent, process_cpu_ns},
    rounds::Interrupt,
};

pub type Measures = Vec<(&'static str, f64)>;

/// Flows from which on a cost a flow says something.
pub const MANY: u64 = 1000;

/// What was read at the two ends of a window.
pub struct Window {
    pub elapsed: Duration,
    sent_packets: u64,
    sender_cpu_ns: u64,
    process_cpu_ns: u64,
}

impl Window {
    pub fn measure(
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

    pub fn measures(&self) -> Measures {
        let rate = self.sent_packets as f64 / self.elapsed.as_secs_f64();
        let sender_ns = self.sender_cpu_ns as f64 / self.sent_packets as f64;
        vec![
            ("sent_packets_per_second", rate),
            ("sender_ns_per_packet", sender_ns),
        ]
    }
}

pub fn process_measures(window: &Window, tally: Tally, scans: f64) -> Measures {
    let a_scan_ns = window.process_cpu_ns as f64 / scans;
    let mut measures = vec![
        (
            "process_cpu_percent",
            cpu_percent(window.process_cpu_ns, window.elapsed),
        ),
        ("process_cpu_ms_per_scan", a_scan_ns / 1e6),
        ("flows_seen", tally.flows as f64),
    ];
    if tally.flows >= MANY {
        measures.push(("process_cpu_ns_per_flow", a_scan_ns / tally.flows as f64));
    }
    measures
}

pub fn program_measures((cost, elapsed): &(ProgramCost, Duration)) -> Measures {
    let cpu = cpu_percent(cost.run_time_ns, *elapsed);
    let mut measures = vec![("programs_cpu_percent", cpu)];
    measures.extend(cost.ns_per_run().map(|ns| ("programs_ns_per_packet", ns)));
    measures
}

/// As many as fill the time.
pub fn whole_intervals(interval: Duration, time: Duration) -> Duration {
    let mut window = interval;
    while window < time {
        window += interval;
    }
    window
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
}
