//! Compares the agent with the flow exporters in Debian: the cost and the losses of softflowd and pmacct for the same
//! traffic, with a thousand to a million flows.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};

use self::{contender::Packages, station::Counted};
use super::{
    bench::{Bench, Group, Labels, Lifetime, Plan, Setup, Station, Turns, labels, notes},
    host::Host,
    kernel_time,
};

mod collector;
mod contender;
mod peer;
mod station;
mod table;

/// The frame length of [`super::wire::Steady::USUAL`]. No contender copies more than the first 128 bytes.
const FRAME_LEN_BYTES: usize = 512;
const ARMS: [&str; 4] = ["nothing", "agent", "softflowd", "pmacct"];

#[derive(clap::Args)]
pub struct Peers {
    /// Where softflowd and pmacct are unpacked; `cargo xtask` sees to it
    #[arg(long, value_name = "FOLDER")]
    packages: PathBuf,
    /// Flows that take turns in the traffic, each number for a measurement of its own
    #[arg(long, value_name = "FLOWS", value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    flows: Vec<u32>,
    // At this rate a million flows all appear within five seconds, a quarter of the usual window, and the sender uses
    // half of a CPU.
    /// Packets a second of all flows together
    #[arg(long, value_name = "PACKETS", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..))]
    packets_per_second: u32,
}

/// UDP frames of `flows` flows at a steady rate.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    flows: u32,
    packets_per_second: u32,
}

impl Load {
    /// How long a turn measures: by default two scans of the agent, but at least twice the time for every flow to
    /// appear.
    fn window(self, setup: &Setup) -> Duration {
        let all_flows = Duration::from_secs(self.flows.into()) / self.packets_per_second;
        setup.window(Duration::from_secs(20)).max(2 * all_flows)
    }
}

impl Bench for Peers {
    const NAME: &'static str = "peers";

    const IS_URGENT: bool = true;

    type Load = Load;

    fn plan(&self, _: &Setup) -> Result<Plan<Load>> {
        ensure!(!self.flows.contains(&0), "--flows 0 sends nothing");
        let group = |&flows: &u32| {
            let load = Load {
                flows,
                packets_per_second: self.packets_per_second,
            };
            Group::new(Lifetime::Turn, ARMS, &load)
        };
        let mut notes = notes(&NOTES);
        notes.insert(0, Packages::new(&self.packages).versions()?);
        Ok(Plan {
            groups: self.flows.iter().map(group).collect(),
            notes,
        })
    }

    fn labels(load: &Load) -> Labels {
        labels([
            ("flows", &load.flows),
            ("packets_per_second", &load.packets_per_second),
            ("frame_bytes", &FRAME_LEN_BYTES),
        ])
    }

    fn station(&self, arm: &str, &load: &Load, setup: &Setup) -> Result<Box<dyn Station>> {
        let packages = Packages::new(&self.packages);
        Ok(Box::new(Counted::new(arm, load, &packages, setup)?))
    }

    /// The CPU time that each arm adds to the sender.
    fn derive(turns: &Turns, host: &Host) -> Vec<(String, &'static str, f64)> {
        kernel_time::beside_processes(turns, host)
    }
}

const NOTES: [&str; 11] = [
    "One thread on a CPU of its own sends UDP frames of 512 bytes at a steady rate over a veth pair. The flows take \
     turns, and each comes at least twice. The contender and the collector run on the other CPUs; where there are \
     two CPUs, the two processes of pmacct share one. All of them have a nice value of -10.",
    "Each turn starts its contender and ends it as an operator would: the agent with SIGTERM, softflowd with \
     `shutdown` on its control socket, pmacctd with SIGINT. The peers first get the time to count what their rings \
     hold.",
    "The agent has its default settings but --max-flows where there are more flows than its default, and an IPFIX \
     output over UDP with a record for each direction: it scans and exports every 10 s.",
    "softflowd exports IPFIX over UDP with its default timeouts. -m has room for two million flows, -B gives its \
     capture a ring of 128 MiB. It takes only full blocks from that ring, so frames of no protocol push out the \
     last one before it is ended.",
    "pmacctd counts by addresses, ports and protocol, and prints CSV into a file every 60 s, which is its default. \
     plugin_buffer_size and plugin_pipe_size are 1 MB and 100 MB, as its documentation advises for 100,000 to \
     250,000 packets a second; above 100,000 flows print_cache_entries is 130,003, half of what it names for two \
     million. pmacctd_pipe_size is 128 MiB, but the ring of its capture keeps the 2 MiB of libpcap.",
    "lost_percent is what is in no report, of the packets that the interface received in the turn. The packets of \
     pmacctd are the sum of the column PACKETS in its file. What the agent and softflowd send is recorded, and \
     nfacctd, pmacct's collector, reads it afterwards; if the recorder or nfacctd loses something, the turn fails.",
    "process_cpu_percent is of the contender's processes from the first packet to the end of the window, in percent \
     of one core. end_cpu is what they take from the last packet until they have ended. The peers' timeouts are \
     longer than the window, so they report nearly everything there; the agent has its last scan left.",
    "sender_ns_per_packet is the CPU time of the sending thread with all that the kernel does in its context: the \
     agent's programs, the copies into the rings of packet sockets. kernel_ns_per_packet is what an arm adds to \
     that of the arm nothing in the same round; kernel_cpu_percent is the same at the rate that was reached, \
     cpu_percent that and the processes together. They are n/a where the kernel accounts the time of interrupts \
     apart (CONFIG_IRQ_TIME_ACCOUNTING).",
    "programs_cpu_percent and programs_ns_per_packet are the kernel's run time of the agent's programs in a second \
     window, and contain what the statistics themselves cost.",
    "resident_bytes is that of all processes of a contender without the ring of its capture, or the agent's maps; a \
     page that they share counts once. kernel_memory_bytes is that ring, or these maps.",
    "sent_packets_per_second is what the sender reached.",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::interrupt::Interrupt;

    #[test]
    fn a_window_has_every_flow_twice() {
        let setup = Setup {
            agent: PathBuf::new(),
            is_quick: true,
            rounds: None,
            duration: None,
            interrupt: Interrupt::default(),
        };
        let window = |flows, packets_per_second| {
            let load = Load {
                flows,
                packets_per_second,
            };
            load.window(&setup).as_millis()
        };
        assert_eq!(window(1_000, 200_000), 2_000);
        assert_eq!(window(1_000_000, 200_000), 10_000);
        assert_eq!(window(1_000, 1), 2_000_000);
    }
}
