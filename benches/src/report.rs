//! The cost per flow behind the hook, from the samples of several rounds, as a run in the format of the live benches
//! and as a readable table.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use anyhow::Result;

use crate::{
    live::{
        reference,
        result::{Figure, Run},
    },
    sample::{Case, Table},
    stage::Figures,
};

/// The arm for figures that belong to no stage.
const PROCESS: &str = "process";

/// Builds the result, one round after the other.
pub struct Report {
    run: Run,
}

impl Report {
    pub fn new(rounds: u32) -> Result<Self> {
        let mut run = Run::new("userspace", false, rounds)?;
        env!("CARGO_PKG_VERSION").clone_into(&mut run.agent_version);
        run.notes = NOTES.map(str::to_owned).to_vec();
        Ok(Self { run })
    }

    pub fn skipped(&mut self, case: &Case, reason: &str) {
        let name = case.name();
        self.run.notes.push(format!("{name}: n/a, it {reason}."));
    }

    /// A stage's figures are named STAGE.FIGURE.
    pub fn add(&mut self, case: &Case, figures: &Figures) {
        let labels = BTreeMap::from([
            ("table".to_owned(), case.table.name().to_owned()),
            ("profile".to_owned(), case.profile.name.to_owned()),
            ("flows".to_owned(), case.profile.flows.to_string()),
        ]);
        self.run
            .add(&labels, "reference", "step_ns", reference::step_ns());
        for (name, &figure) in figures {
            let (stage, measure) = name.split_once('.').unwrap_or((PROCESS, name));
            self.run.add(&labels, stage, measure, figure);
        }
    }

    pub fn into_run(self) -> Run {
        self.run
    }
}

const NOTES: [&str; 5] = [
    "Every sample is a process of its own. CPU is that of its one thread (CLOCK_THREAD_CPUTIME_ID, which \
     is what getrusage(RUSAGE_THREAD) adds up, without its ticks); allocations are those of its heap.",
    "synthetic: entries made up, as a drained page has them; insert is their first scan, update and \
     encode a later one's parts, cycle all of a later scan, sparse the same where about three in ten of \
     the flows have packets. kernel: entries of the table in the \
     kernel; drain takes them out, first_cycle and drain_and_cycle drain, update the replica and encode.",
    "enriched: the kernel's table where every flow has a unit and a process at one end or both (50 units, 200 processes), flows of TCP what TCP \
     and round trips tell, and peers a name each (62,500 with 500k flows), all of which batches say. Messages of the DNS, connections that end, ICMP errors and drops do not come. \
     kernel_memory_bytes lacks what does not depend on flows.",
    "heap_bytes_per_flow is the replica's; resident_bytes_per_flow is what the process has grown by. \
     resident_peak_bytes contains the bench's own input.",
    "probectl is 50 peers on 8 ports in both directions and several sizes, the profile that probectl \
     publishes 1,750 ns a flow for.",
];

const OF_THE_KERNEL: &[&str] = &["drain", "first_cycle", "drain_and_cycle"];

const STAGES: [(Table, &[&str]); 3] = [
    (
        Table::Synthetic,
        &["insert", "update", "encode", "end_scan", "cycle", "sparse"],
    ),
    (Table::Kernel, OF_THE_KERNEL),
    (Table::Enriched, OF_THE_KERNEL),
];

/// Formats a run of this bench as a table.
pub struct Text<'a>(pub &'a Run);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (table, stages) in STAGES {
            for case in Case::all().iter().filter(|case| case.table == table) {
                let of_case = |arm: &str, measure: &str| self.figure(case, arm, measure);
                if of_case("reference", "step_ns").is_some() {
                    write_stages(f, &case.name(), stages, &of_case)?;
                    write_memory(f, &of_case)?;
                    writeln!(f)?;
                }
            }
        }
        for note in &self.0.notes {
            writeln!(f, "{note}")?;
        }
        writeln!(f, "medians of {} rounds", self.0.rounds)
    }
}

impl Text<'_> {
    fn figure(&self, case: &Case, arm: &str, measure: &str) -> Option<Figure> {
        let label = |name: &str, value: &str, labels: &BTreeMap<String, String>| {
            labels.get(name).is_some_and(|other| other == value)
        };
        self.0
            .rows
            .iter()
            .find(|row| {
                row.arm == arm
                    && row.measure == measure
                    && label("table", case.table.name(), &row.scenario)
                    && label("profile", case.profile.name, &row.scenario)
            })?
            .figure()
    }
}

fn write_stages(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    stages: &[&str],
    figure: &impl Fn(&str, &str) -> Option<Figure>,
) -> fmt::Result {
    writeln!(
        f,
        "{name:<18}{:>13}{:>14}{:>21}{:>16}{:>14}",
        "flows/s", "CPU ns/flow", "(low to high)", "CPU µs/scan", "allocs/scan",
    )?;
    for stage in stages {
        let (Some(rate), Some(cpu), Some(scan), Some(allocations)) = (
            figure(stage, "flows_per_second"),
            figure(stage, "cpu_ns_per_flow"),
            figure(stage, "cpu_ns_per_scan"),
            figure(stage, "allocations_per_scan"),
        ) else {
            continue;
        };
        let spread = format!("({:.1} to {:.1})", cpu.low, cpu.high);
        writeln!(
            f,
            "  {stage:<16}{:>13.0}{:>14.1}{spread:>21}{:>16.1}{:>14.1}",
            rate.median,
            cpu.median,
            scan.median / 1e3,
            allocations.median,
        )?;
    }
    Ok(())
}

fn write_memory(
    f: &mut fmt::Formatter<'_>,
    figure: &impl Fn(&str, &str) -> Option<Figure>,
) -> fmt::Result {
    const MIB: f64 = 1_048_576.0;
    for (what, arm, measure, unit, divisor) in [
        (
            "replica, heap",
            PROCESS,
            "heap_bytes_per_flow",
            "bytes/flow",
            1.0,
        ),
        (
            "resident",
            PROCESS,
            "resident_bytes_per_flow",
            "bytes/flow",
            1.0,
        ),
        (
            "resident at most",
            PROCESS,
            "resident_peak_bytes",
            "MiB",
            MIB,
        ),
        ("kernel memory", PROCESS, "kernel_memory_bytes", "MiB", MIB),
        ("grace period", "flip", "wall_ns_per_scan", "ms/scan", 1e6),
        (
            "on the wire",
            PROCESS,
            "encoded_bytes_per_flow",
            "bytes/flow",
            1.0,
        ),
    ] {
        if let Some(figure) = figure(arm, measure) {
            writeln!(f, "  {what:<16}{:>13.1} {unit}", figure.median / divisor)?;
        }
    }
    Ok(())
}
