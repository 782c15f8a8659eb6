//! A turn: runs a contender on its own wire, measures its cost and the sender's, and accounts for the packets.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use lab::Lab;

use super::{
    FRAME_LEN_BYTES, Load,
    contender::{Contender, Packages},
};
use crate::live::{
    bench::{Measures, Setup, Station},
    cost::{CpuMeter, cpu_ns, ended_children_cpu_ns, programs_during},
    memory::Memory,
    pacer::Pace,
    sender::{Sender, Sent},
};

const PACE: Pace = Pace {
    most_at_once: 250,
    pause: Duration::from_millis(1),
    longest_stall: Duration::from_millis(250),
};

pub struct Counted {
    load: Load,
    contender: Option<Contender>,
    sender: Sender,
    lab: Lab,
}

impl Counted {
    pub fn new(arm: &str, load: Load, packages: &Packages, setup: &Setup) -> Result<Self> {
        let lab = Lab::quiet()?;
        Ok(Self {
            load,
            contender: Contender::start(arm, &lab, load, packages, setup)?,
            sender: Sender::new(&lab, FRAME_LEN_BYTES, Some(load.flows), PACE)?,
            lab,
        })
    }
}

impl Station for Counted {
    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        let window = self.load.window(setup);
        let rate = self.load.packets_per_second.into();
        let Some(mut contender) = self.contender.take() else {
            let (measures, _) = self.sender.during(rate, |sent| {
                setup.interrupt.sleep(window)?;
                Ok(of_sender(sent, window))
            })?;
            return Ok(measures);
        };
        let (mut measures, _) = self.sender.during(rate, |sent| {
            measure_processes(&mut contender, sent, window, setup)
        })?;
        let received = self.lab.agent.counters()?.rx_packets;
        let before_end_ns = cpu_ns(&contender.processes()?);
        let others_ns = ended_children_cpu_ns()?;
        let reports = contender.end(&self.lab, &setup.interrupt)?;
        let in_all_ns = ended_children_cpu_ns()? - others_ns;
        let end_ns = in_all_ns.saturating_sub(before_end_ns);
        let reported = reports.packets(&self.lab.agent, &setup.interrupt)?;
        measures.push(("end_cpu_us", end_ns as f64 / 1e3));
        measures.push(("lost_percent", lost_percent(received, reported)?));
        Ok(measures)
    }
}

/// From the first packet on, measures the CPU over the window, then memory, then the programs' run time over another
/// window.
fn measure_processes(
    contender: &mut Contender,
    sent: &Sent,
    window: Duration,
    setup: &Setup,
) -> Result<Measures> {
    let meter = CpuMeter::start(contender.processes()?)?;
    setup.interrupt.sleep(window)?;
    let processes = contender.processes()?;
    let mut measures = of_sender(sent, window);
    measures.push(("process_cpu_percent", meter.percent_of(&processes)));
    let memory = Memory::of_all(&processes);
    measures.push(("resident_bytes", memory.resident_bytes as f64));
    measures.push(("kernel_memory_bytes", memory.kernel_bytes as f64));
    let programs: BTreeSet<u32> = contender.program_ids()?;
    if !programs.is_empty() {
        let (cost, ()) = programs_during(&programs, || setup.interrupt.sleep(window))?;
        measures.push(("programs_cpu_percent", cost.cpu_percent()));
        let ns = cost.ns_per_run();
        measures.extend(ns.map(|ns| ("programs_ns_per_packet", ns)));
    }
    Ok(measures)
}

/// The sender's rate and CPU time since it began.
fn of_sender(sent: &Sent, elapsed: Duration) -> Measures {
    let (packets, cpu_ns) = sent.so_far();
    vec![
        (
            "sent_packets_per_second",
            packets as f64 / elapsed.as_secs_f64(),
        ),
        ("sender_ns_per_packet", cpu_ns as f64 / packets as f64),
    ]
}

/// The percentage of packets that the interface received and no report contains.
fn lost_percent(received: u64, reported: u64) -> Result<f64> {
    ensure!(received > 0, "no packet arrived");
    ensure!(
        reported <= received,
        "{reported} packets were reported, and only {received} arrived"
    );
    Ok(100.0 * (received - reported) as f64 / received as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_of_what_arrived() {
        assert!(lost_percent(200, 200).unwrap().abs() < f64::EPSILON);
        assert!((lost_percent(200, 150).unwrap() - 25.0).abs() < f64::EPSILON);
        assert!((lost_percent(200, 0).unwrap() - 100.0).abs() < f64::EPSILON);
    }

    #[test]
    fn more_reports_than_packets_are_a_fault_and_no_gain() {
        let error = lost_percent(200, 201).unwrap_err().to_string();
        assert!(error.contains("only 200 arrived"), "{error}");
        assert!(lost_percent(0, 0).is_err());
    }
}
