//! Skydive's experiment: the cost to the agent and to a packet capture of one flow to a million, at a fixed packet
//! rate; then table size against scan interval.

use std::time::Duration;

use anyhow::Result;

use self::station::Counted;
use super::{
    bench::{Bench, Group, Labels, Lifetime, Plan, Setup, Station, Turns, labels, names, notes},
    host::Host,
    kernel_time,
};

mod counter;
mod station;

/// A million flows in four seconds, half a million in two.
const PACKETS_PER_SECOND: u32 = 250_000;
const FRAME_LEN_BYTES: usize = 1024;
/// The agent's default for `--max-flows`.
const USUAL_TABLE: u32 = 500_000;
const ARMS: [&str; 3] = ["nothing", "agent", "capture"];

#[derive(Default, clap::Args)]
pub struct Sweep {
    /// Only these sections
    #[arg(value_enum)]
    sections: Vec<Section>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// From one flow to a million
    Flows,
    /// Size of the table against scan interval
    Table,
}

/// Frames of `flows` flows, and the agent's settings for them.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    section: &'static str,
    flows: u32,
    table: u32,
    interval: Duration,
}

impl Load {
    /// Whether the flows take more than a quarter of the agent's table.
    fn fills_table(self) -> bool {
        u64::from(self.flows) * 4 > u64::from(self.table)
    }
}

impl Bench for Sweep {
    const NAME: &'static str = "sweep";

    const IS_URGENT: bool = true;

    type Load = Load;

    fn sections(&self) -> Vec<String> {
        names(&self.sections)
    }

    fn plan(&self, setup: &Setup) -> Result<Plan<Load>> {
        let wants = |section| self.sections.is_empty() || self.sections.contains(&section);
        let mut groups = Vec::new();
        if wants(Section::Flows) {
            groups.extend(groups_of_flows(setup.is_quick));
        }
        if wants(Section::Table) {
            groups.push(tables_by_turns(setup.is_quick));
        }
        Ok(Plan {
            groups,
            notes: notes(&NOTES),
        })
    }

    fn labels(load: &Load) -> Labels {
        labels([
            ("section", &load.section),
            ("flows", &load.flows),
            ("table", &load.table),
            ("scan_interval", &humantime::format_duration(load.interval)),
            ("packets_per_second", &PACKETS_PER_SECOND),
            ("frame_bytes", &FRAME_LEN_BYTES),
        ])
    }

    fn station(&self, arm: &str, &load: &Load, setup: &Setup) -> Result<Box<dyn Station>> {
        Ok(Box::new(Counted::new(arm, load, setup)?))
    }

    fn derive(turns: &Turns, host: &Host) -> Vec<(String, &'static str, f64)> {
        kernel_time::beside_processes(turns, host)
    }
}

fn groups_of_flows(is_quick: bool) -> impl Iterator<Item = Group<Load>> {
    // Long enough for every flow to send a packet.
    let (flows, seconds): (&[u32], _) = if is_quick {
        (&[1, 10_000, 500_000], 2)
    } else {
        (&[1, 1_000, 10_000, 100_000, 500_000, 1_000_000], 4)
    };
    flows.iter().map(move |&flows| {
        let load = Load {
            section: "flows",
            flows,
            table: USUAL_TABLE.max(flows),
            interval: Duration::from_secs(seconds),
        };
        Group::new(Lifetime::Rounds, ARMS, &load)
    })
}

/// The arm `nothing` and the capture have no table size to set, so they run once per interval, beside the usual table.
fn tables_by_turns(is_quick: bool) -> Group<Load> {
    let intervals: &[u64] = if is_quick { &[1] } else { &[1, 10] };
    let mut places = Vec::new();
    for table in [65_536, USUAL_TABLE] {
        for &seconds in intervals {
            let load = Load {
                section: "table",
                flows: 500_000,
                table,
                interval: Duration::from_secs(seconds),
            };
            let arms = ARMS.into_iter();
            let arms = arms.filter(|arm| *arm == "agent" || table == USUAL_TABLE);
            places.extend(Group::new(Lifetime::Rounds, arms, &load).places);
        }
    }
    Group {
        places,
        stations: Lifetime::Rounds,
    }
}

const NOTES: [&str; 12] = [
    "One thread on a CPU of its own sends UDP frames of 1,024 bytes at a steady rate from one \
     namespace to another, the flows' sources in turn. The agent and the capture run on the other \
     CPUs; the programs, and the capture's copy into its ring, run in the sender's soft interrupts. All \
     of them have a nice value of -10.",
    "CPU is in percent of one core. The tables are in a steady state: each flow has been seen before.",
    "The agent has its default settings but table, scan interval and idle timeout, and no consumer; where \
     the flows are more than a quarter of the table, also no early scans, so that its pages have their \
     full size. \
     The capture is a TPACKET_V3 ring with the agent's parser, a hash table and the agent's replica, \
     drained at the same interval; it cuts frames to 192 bytes.",
    "process_cpu_percent is the process over whole scan intervals; process_cpu_ms_per_scan and \
     process_cpu_ns_per_flow are the same over scans and over the flows in a scan.",
    "programs_cpu_percent and programs_ns_per_packet are the kernel's run time of the agent's \
     programs over one scan interval, taken in a window of its own; they contain what the statistics \
     themselves cost.",
    "sender_ns_per_packet is the CPU time of the sending thread with all that the kernel does in its \
     context. sender_added_ns_per_packet, which is also kernel_ns_per_packet, is what an arm adds to that, without \
     statistics: the median over 40 pieces of 50 ms at 50,000 packets a second, each beside one on a wire on which nothing counts. kernel_cpu_percent is the \
     same at the rate that was reached, cpu_percent that and the process together.",
    "resident_bytes is the process without the ring and the maps, which are kernel_memory_bytes although it has mapped \
     some of them; memory_bytes is both. resident_bytes_per_flow and memory_bytes_per_flow are these over the flows in the \
     replica.",
    "flows_seen are those in the last scan of the measurement; sent_packets_per_second is what the \
     sender reached.",
    "lost_packets were sent, by the interface's counter, and are in no flow; lost_percent is of the \
     packets that were sent. table_full_packets were refused by the agent's table, dropped_packets \
     found the capture's ring full.",
    "unaccounted_packets were sent and are neither in a flow nor in a counter that says why not.",
    "kernel_ns_per_packet, kernel_cpu_percent and cpu_percent are n/a where the kernel accounts the \
     time of interrupts apart (CONFIG_IRQ_TIME_ACCOUNTING).",
    "step_ns of the reference is work that never changes: how fast the machine was.",
];
