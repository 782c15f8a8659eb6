//! The cost per packet on a hook: no program, an empty program, the least that a flow table needs, and the agent.

use std::{collections::BTreeSet, time::Instant};

use anyhow::Result;
use lab::{
    Lab, LabOptions,
    traffic::{self, IpVersion},
};

use super::{
    bench::{
        Bench, Group, Labels, Lifetime, Plan, Setup, Station, Turns, labels, names, notes, station,
    },
    flooded::Flooded,
    host::Host,
    program::{Agent, ENRICH, Hook, Occupant},
    wire::Flood,
};

const ARMS: &[&str] = &["nothing", "empty", "bare", "agent"];
/// `noexist` is the bare program with inserts that fail if the key exists.
const TC_INSERT_ARMS: &[&str] = &["nothing", "empty", "bare", "noexist", "agent"];
const TCP_ARMS: &[&str] = &["nothing", "empty", "agent"];
/// Room for every new flow of a load, so that no packet is refused.
const NEW_FLOWS: u32 = 1_000_000;
/// The agent's default for `--min-flows`.
const LEAST_FLOWS: u32 = 6144;
/// The parts of the bare program, and the agent for comparison. `timeless` is the bare program without its clock.
/// `order` is `parse` and a second search for the canonical order. `plain_adds` and `short_key` are `timeless` with
/// non-atomic adds and with an eight-byte key.
const PARTS: &[&str] = &[
    "empty",
    "clock",
    "coarse_clock",
    "parse",
    "order",
    "timeless",
    "plain_adds",
    "short_key",
    "bare",
    "agent",
];
/// Frame length in bytes, and number of flows.
const HITS: [(usize, u32); 4] = [(64, 1), (1500, 1), (64, 10_000), (64, 500_000)];

/// Memory to walk over between two packets: more than the L1 cache of a CPU holds, and as much as its L2 cache.
const COLD_BYTES: [u32; 2] = [64 << 10, 512 << 10];
const COLD_ARMS: &[&str] = &["empty", "bare", "agent"];
const ENRICHED_ARMS: &[&str] = &["empty", "agent", "enriched"];
/// Numbers of flows, with frames of 64 bytes.
const COLD_FLOWS: [u32; 4] = [1, 10_000, 100_000, 500_000];

#[derive(Default, clap::Args)]
pub struct Overhead {
    /// Only these sections
    #[arg(value_enum)]
    sections: Vec<Section>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// The bare program taken apart
    Parts,
    /// Packets of flows that are in the table
    Hits,
    /// The same with caches that something else takes between two packets
    Cold,
    /// Every packet a new flow
    Inserts,
    /// What everything that the agent can find out adds
    Enriched,
    /// TCP throughput
    Tcp,
}

#[derive(Clone, Copy)]
pub enum Load {
    Frames {
        path: &'static str,
        hook: Hook,
        flood: Flood,
        /// Memory to walk over between two packets; 0 for none.
        walk_bytes: u32,
    },
    TcpStream {
        bytes: u64,
    },
}

impl Bench for Overhead {
    const NAME: &'static str = "overhead";

    type Load = Load;

    fn sections(&self) -> Vec<String> {
        names(&self.sections)
    }

    fn plan(&self, setup: &Setup) -> Result<Plan<Load>> {
        let [hits, cold_hits, inserts, bytes] = if setup.is_quick {
            [300_000, 50_000, 100_000, 200_000_000]
        } else {
            [600_000, 100_000, 400_000, 2_000_000_000]
        };
        let group = |path, arms: &[&str], hook, (frame_len_bytes, flows), packets| {
            let flood = Flood {
                frame_len_bytes,
                flows,
                packets,
                is_tcp: false,
            };
            let stations = match flows {
                // Every turn needs an empty table.
                0 => Lifetime::Turn,
                _ => Lifetime::Rounds,
            };
            let arms = arms.iter().copied();
            let load = Load::Frames {
                path,
                hook,
                flood,
                walk_bytes: 0,
            };
            Group::new(stations, arms, &load)
        };
        let mut groups = Vec::new();
        if self.wants(Section::Parts) {
            groups.push(group("parts", PARTS, Hook::Tc, HITS[0], hits));
        }
        for (hook, insert_arms) in [(Hook::Tc, TC_INSERT_ARMS), (Hook::Xdp, ARMS)] {
            if self.wants(Section::Hits) {
                groups.extend(HITS.map(|traffic| group("hit", ARMS, hook, traffic, hits)));
            }
            if self.wants(Section::Inserts) {
                groups.push(group("insert", insert_arms, hook, (64, 0), inserts));
            }
        }
        if self.wants(Section::Cold) {
            for walk_bytes in COLD_BYTES {
                groups.extend(COLD_FLOWS.map(|flows| cold(walk_bytes, flows, cold_hits)));
            }
        }
        if self.wants(Section::Enriched) {
            groups.push(enriched(10_000, 0, hits));
            let cold = COLD_BYTES[0];
            groups.extend([10_000, 0].map(|flows| enriched(flows, cold, cold_hits)));
        }
        if self.wants(Section::Tcp) {
            let stream = Load::TcpStream {
                bytes: u64::from(bytes),
            };
            let arms = TCP_ARMS.iter().copied();
            groups.push(Group::new(Lifetime::Rounds, arms, &stream));
        }
        Ok(Plan {
            groups,
            notes: notes(&NOTES),
        })
    }

    fn labels(load: &Load) -> Labels {
        match load {
            Load::Frames {
                path,
                hook,
                flood,
                walk_bytes,
            } => {
                let mut labels = labels([
                    ("hook", &hook.name()),
                    ("frame_bytes", &flood.frame_len_bytes),
                    ("path", path),
                    ("flows", &flood.flows),
                ]);
                if *walk_bytes != 0 {
                    labels.insert("walk_bytes".to_owned(), walk_bytes.to_string());
                }
                labels
            }
            Load::TcpStream { .. } => labels([("traffic", &"one TCP stream")]),
        }
    }

    fn station(&self, arm: &str, load: &Load, setup: &Setup) -> Result<Box<dyn Station>> {
        match *load {
            Load::Frames {
                hook,
                flood,
                walk_bytes,
                ..
            } => {
                let table = table_for(flood.flows);
                let mut flooded = Flooded::new(flood, |host| match arm {
                    "nothing" => Ok((Occupant::Nothing, BTreeSet::new())),
                    "agent" => Occupant::agent(host, hook, table, &[], setup),
                    "enriched" => Occupant::agent(host, hook, table, ENRICH, setup),
                    program => Occupant::reference(host, hook, program, table),
                })?;
                flooded.warm_up(&setup.interrupt)?;
                if walk_bytes != 0 {
                    flooded.cool(walk_bytes)?;
                }
                Ok(Box::new(flooded))
            }
            Load::TcpStream { bytes } => tcp_stream(arm, bytes, setup),
        }
    }

    /// The cost of each program in excess of the empty one.
    fn derive(turns: &Turns, _: &Host) -> Vec<(String, &'static str, f64)> {
        const NS: &str = "program_ns_per_packet";
        let Some(empty_ns) = turns.get("empty", NS) else {
            return Vec::new();
        };
        turns
            .of(NS)
            .filter(|(arm, _)| *arm != "empty")
            .map(|(arm, ns)| (arm.to_owned(), "net_ns_per_packet", ns - empty_ns))
            .collect()
    }
}

const NOTES: [&str; 7] = [
    "program_ns_per_packet is the kernel's run_time_ns over run_cnt while BPF_ENABLE_STATS is on; \
     it contains what the statistics themselves cost, which is what the empty program shows. \
     net_ns_per_packet is that over the empty program of the same round, and the honest base for \
     a ratio.",
    "On the path `cold`, a program of the bench reads `walk_bytes` of memory at each packet, so that \
     ours and those beside it find the caches as after other work of the kernel. What it takes is in \
     no figure.",
    "On the paths `enriched`, `enriched cold` and `enriched new`, frames are segments of TCP that arrive, and no socket of the host is theirs: what an agent with \
     all of --enrich but drops takes more is what asking costs. Where every packet begins a flow, each is one that is asked.",
    "packets_per_second is taken with the statistics off: one CPU sends, and the frames that \
     arrived count. The agent runs on the other CPUs.",
    "The TCP stream's ends run where the scheduler puts them; the agent is on both directions, the \
     empty program on arriving packets.",
    "The bare program has the same parser, one clock read and a look-up and add in one hash map; \
     it keeps no account, no pages, no flags and no time of the first packet.",
    "Each table has room for twice the flows, as a page that has grown has, and at least for the agent's default for \
     --min-flows; where every packet begins a flow, for a million.",
];

/// The table's size for this many flows; the notes give the reasons.
fn table_for(flows: u32) -> u32 {
    match flows {
        0 => NEW_FLOWS,
        flows => (2 * flows).max(LEAST_FLOWS),
    }
}

impl Overhead {
    fn wants(&self, section: Section) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }
}

/// Frames of flows that are in the table, with a walk over memory between two frames.
fn cold(walk_bytes: u32, flows: u32, packets: u32) -> Group<Load> {
    let load = Load::Frames {
        path: "cold",
        hook: Hook::Tc,
        flood: Flood {
            frame_len_bytes: 64,
            flows,
            packets,
            is_tcp: false,
        },
        walk_bytes,
    };
    Group::new(Lifetime::Rounds, COLD_ARMS.iter().copied(), &load)
}

/// Segments of flows that are in the table, or of new ones, for an agent with every enrichment.
fn enriched(flows: u32, walk_bytes: u32, packets: u32) -> Group<Load> {
    let load = Load::Frames {
        path: match (walk_bytes, flows) {
            (0, _) => "enriched",
            (_, 0) => "enriched new",
            _ => "enriched cold",
        },
        hook: Hook::Tc,
        flood: Flood {
            frame_len_bytes: 64,
            flows,
            packets,
            is_tcp: true,
        },
        walk_bytes,
    };
    let stations = match flows {
        0 => Lifetime::Turn,
        _ => Lifetime::Rounds,
    };
    Group::new(stations, ENRICHED_ARMS.iter().copied(), &load)
}

/// Real sockets over a wire with offloads. The agent watches both directions, as by default.
fn tcp_stream(arm: &str, bytes: u64, setup: &Setup) -> Result<Box<dyn Station>> {
    let lab = Lab::new(LabOptions {
        addresses: true,
        offloads: true,
        ..LabOptions::default()
    })?;
    let occupant = match arm {
        "nothing" => Occupant::Nothing,
        "agent" => Agent::start(&lab.agent, &[], setup)?.into(),
        program => Occupant::reference(&lab.agent, Hook::Tc, program, 1)?.0,
    };
    Ok(station(move |_| {
        let _hangs = &occupant;
        let started = Instant::now();
        traffic::tcp(&lab.peer, &lab.agent, IpVersion::V4, 5001, bytes)?;
        let rate = bytes as f64 / started.elapsed().as_secs_f64();
        Ok(vec![("tcp_bytes_per_second", rate)])
    }))
}
