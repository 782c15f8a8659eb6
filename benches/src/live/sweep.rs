//! Skydive's experiment: one flow to a million at a fixed rate, and what counting them costs the
//! agent and a packet capture; then the table's size against the scan interval.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};

use self::station::{Arm, Station, Traffic};
use super::{
    affinity, reference,
    result::{Row, Run, names},
    rounds::{Interrupt, Progress, order},
};

mod counter;
mod sender;
mod station;
mod window;

/// A million flows in four seconds, half a million in two.
const PACKETS_PER_SECOND: u32 = 250_000;
const FRAME_LEN_BYTES: usize = 1024;
/// The agent's default for `--max-flows`.
const USUAL_TABLE: u32 = 500_000;
const ARMS: [Arm; 3] = [Arm::Nothing, Arm::Agent, Arm::Capture];

pub struct Settings<'a> {
    pub agent: &'a Path,
    pub rounds: u32,
    pub quick: bool,
    /// CPU time is taken over whole scan intervals that last at least so long.
    pub window: Duration,
    /// Empty for all.
    pub sections: &'a [Section],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// From one flow to a million
    Flows,
    /// Size of the table against scan interval
    Table,
}

impl Settings<'_> {
    fn flows(&self) -> &'static [u32] {
        if self.quick {
            &[1, 10_000, 500_000]
        } else {
            &[1, 1_000, 10_000, 100_000, 500_000, 1_000_000]
        }
    }

    /// Long enough for every flow to send a packet.
    fn interval(&self) -> Duration {
        Duration::from_secs(if self.quick { 2 } else { 4 })
    }

    fn tables(&self) -> Vec<(u32, Duration)> {
        let intervals: &[u64] = if self.quick { &[1] } else { &[1, 10] };
        [65_536, USUAL_TABLE]
            .into_iter()
            .flat_map(|table| intervals.iter().map(move |&secs| (table, secs)))
            .map(|(table, secs)| (table, Duration::from_secs(secs)))
            .collect()
    }

    fn wants(&self, section: Section) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }
}

/// What is measured by turns: arms under the same traffic, or settings of one arm.
struct Group(Vec<(Arm, Traffic)>);

impl Group {
    fn of_flows(flows: u32, interval: Duration) -> Self {
        let traffic = Traffic {
            section: "flows",
            flows,
            table: USUAL_TABLE.max(flows),
            interval,
        };
        Self(ARMS.map(|arm| (arm, traffic)).to_vec())
    }

    /// Nothing and the capture have no table whose size is set: they come once an interval, beside
    /// the usual one.
    fn of_tables(tables: Vec<(u32, Duration)>) -> Self {
        let arms = |(table, interval)| {
            let traffic = Traffic {
                section: "table",
                flows: 500_000,
                table,
                interval,
            };
            ARMS.into_iter()
                .filter(move |arm| *arm == Arm::Agent || table == USUAL_TABLE)
                .map(move |arm| (arm, traffic))
        };
        Self(tables.into_iter().flat_map(arms).collect())
    }
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    let capture = std::env::current_exe()
        .context("find this program")?
        .with_file_name("flow-capture");
    ensure!(
        capture.exists(),
        "there is no {}: cargo build --release --package benches --bins",
        capture.display()
    );
    let _hurry = affinity::Hurry::begin()?;
    let mut groups = Vec::new();
    if settings.wants(Section::Flows) {
        let of_flows = |&flows| Group::of_flows(flows, settings.interval());
        groups.extend(settings.flows().iter().map(of_flows));
    }
    if settings.wants(Section::Table) {
        groups.push(Group::of_tables(settings.tables()));
    }
    let stations: usize = groups.iter().map(|group| group.0.len()).sum();
    let mut bench = Bench {
        run: Run::new("sweep", settings.quick, settings.rounds)?,
        settings,
        capture: &capture,
        progress: Progress::new(settings.rounds as usize * stations),
        interrupt,
    };
    for group in &groups {
        bench.group(group)?;
    }
    let mut run = bench.run;
    run.sections = names(settings.sections);
    arrange(&mut run.rows);
    run.notes.extend(NOTES.map(str::to_owned));
    Ok(run)
}

const NOTES: [&str; 12] = [
    "One thread on a CPU of its own sends UDP frames of 1,024 bytes at a steady rate from one \
     namespace to another, the flows' sources in turn. The agent and the capture run on the other \
     CPUs; the programs, and the capture's copy into its ring, run in the sender's soft interrupts. All \
     of them have a nice value of -10.",
    "CPU is in percent of one core. The tables are in a steady state: each flow has been seen before.",
    "The agent has its default settings but table, scan interval and idle timeout, no early scans and \
     no consumer. \
     The capture is a TPACKET_V3 ring with the agent's parser, a hash table and the agent's replica, \
     drained at the same interval; it cuts frames to 192 bytes.",
    "process_cpu_percent is the process over whole scan intervals; process_cpu_ms_per_scan and \
     process_cpu_ns_per_flow are the same over scans and over the flows in a scan.",
    "programs_cpu_percent and programs_ns_per_packet are the kernel's run time of the agent's \
     programs over one scan interval, taken in a window of its own; they contain what the statistics \
     themselves cost.",
    "sender_ns_per_packet is the CPU time of the sending thread with all that the kernel does in its \
     context. kernel_ns_per_packet is what an arm adds to that of the arm nothing in the same round, \
     without statistics; kernel_cpu_percent is the same at the rate that was reached, \
     cpu_percent that and the process together.",
    "resident_bytes is that of the process, for the capture without its ring; resident_bytes_per_flow \
     is that over the flows in the replica; kernel_memory_bytes are the agent's maps and the \
     capture's ring.",
    "flows_seen are those in the last scan of the measurement; sent_packets_per_second is what the \
     sender reached.",
    "lost_packets were sent, by the interface's counter, and are in no flow; lost_percent is of the \
     packets that were sent. table_full_packets were refused by the agent's table, dropped_packets \
     found the capture's ring full.",
    "unaccounted_packets were sent and are neither in a flow nor in a counter that says why not.",
    "kernel_ns_per_packet, kernel_cpu_percent and cpu_percent are n/a where the kernel accounts the \
     time of interrupts apart (CONFIG_IRQ_TIME_ACCOUNTING), and for tables without an arm nothing.",
    "step_ns of the reference is work that never changes: how fast the machine was.",
];

struct Bench<'a> {
    run: Run,
    settings: &'a Settings<'a>,
    capture: &'a Path,
    progress: Progress,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn group(&mut self, group: &Group) -> Result<()> {
        let setting = station::Setting {
            agent: self.settings.agent,
            capture: self.capture,
            window: self.settings.window,
        };
        let mut stations = group
            .0
            .iter()
            .map(|&(arm, traffic)| Station::new(arm, traffic, setting, self.interrupt))
            .collect::<Result<Vec<_>>>()?;
        for round in 0..self.settings.rounds {
            for labels in labels(&stations) {
                self.run
                    .add(&labels, "reference", "step_ns", reference::step_ns());
            }
            for index in order(stations.len(), round) {
                let station = &mut stations[index];
                self.settle(station)?;
                let what = station.describe();
                self.progress.step(&format!("{what}, round {}", round + 1));
                let measured = station.measure(self.interrupt);
                let measured = measured.with_context(|| format!("measure {what}"))?;
                self.record(station, &measured);
            }
            self.add_kernel_cpu(&stations, round as usize);
        }
        for station in &mut stations {
            self.settle(station)?;
        }
        Ok(())
    }

    /// Takes what became of the packets of the station's last turn, which a scan had to count first.
    fn settle(&mut self, station: &mut Station) -> Result<()> {
        let settled = station.settle(self.interrupt)?;
        self.record(station, &settled);
        Ok(())
    }

    fn record(&mut self, station: &Station, measured: &[(&str, f64)]) {
        for (measure, value) in measured {
            self.run
                .add(&station.labels(), station.arm.name(), measure, *value);
        }
    }

    /// What each arm adds to the sender's time, which needs the turn of the arm nothing.
    fn add_kernel_cpu(&mut self, stations: &[Station], round: usize) {
        // The sender's time then lacks the soft interrupts in which the kernel counts.
        if self.run.host.irq_time_accounting == "y" {
            return;
        }
        for station in stations {
            let (labels, arm) = (station.labels(), station.arm.name());
            let value = |arm: &str, measure| {
                let row = self.run.row(&labels, arm, measure)?;
                row.values.get(round).copied()
            };
            let (Some(sender_ns), Some(alone_ns), Some(rate), Some(process)) = (
                value(arm, "sender_ns_per_packet"),
                value(Arm::Nothing.name(), "sender_ns_per_packet"),
                value(arm, "sent_packets_per_second"),
                value(arm, "process_cpu_percent"),
            ) else {
                continue;
            };
            let kernel_ns = sender_ns - alone_ns;
            let kernel = 100.0 * kernel_ns * rate / 1e9;
            for (measure, value) in [
                ("kernel_ns_per_packet", kernel_ns),
                ("kernel_cpu_percent", kernel),
                ("cpu_percent", kernel + process),
            ] {
                self.run.add(&labels, arm, measure, value);
            }
        }
    }
}

/// Each scenario once.
fn labels(stations: &[Station]) -> Vec<BTreeMap<String, String>> {
    let mut labels: Vec<_> = stations.iter().map(Station::labels).collect();
    labels.dedup();
    labels
}

/// Rows of a scenario together, and within it those of an arm, in the order of their first ones.
fn arrange(rows: &mut [Row]) {
    let mut scenarios = Vec::new();
    let mut arms = Vec::new();
    for row in rows.iter() {
        if !scenarios.contains(&row.scenario) {
            scenarios.push(row.scenario.clone());
        }
        if !arms.contains(&row.arm) {
            arms.push(row.arm.clone());
        }
    }
    rows.sort_by_key(|row| {
        (
            scenarios.iter().position(|other| *other == row.scenario),
            arms.iter().position(|other| *other == row.arm),
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_scenario_and_of_an_arm_come_together() {
        let row = |flows: &str, arm: &str, measure: &str| Row {
            scenario: BTreeMap::from([("flows".to_owned(), flows.to_owned())]),
            arm: arm.to_owned(),
            measure: measure.to_owned(),
            values: Vec::new(),
        };
        let mut rows = [
            row("2", "nothing", "a"),
            row("2", "agent", "a"),
            row("1", "agent", "a"),
            row("2", "nothing", "b"),
            row("1", "nothing", "a"),
        ];
        arrange(&mut rows);
        let order = rows.map(|row| format!("{} {}", row.scenario["flows"], row.arm));
        let expected = ["2 nothing", "2 nothing", "2 agent", "1 nothing", "1 agent"];
        assert_eq!(order, expected);
    }
}
