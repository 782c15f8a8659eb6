//! The kinds of pages, each with a program that counts into it.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use agent::kernel::{bpf, pages::create_page};
use agent_common::{FlowCounters, FlowKey, Pair};
use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData},
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use lab::Host;

use crate::live::{
    affinity, fdinfo,
    program::{self, Hook, OBJECT},
};

/// What a page may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory for every flow from the start, one table for all CPUs: what the agent has.
    Preallocated,
    /// Memory for a flow when it comes (`BPF_F_NO_PREALLOC`).
    Growing,
    /// A table for each CPU, preallocated.
    ByCpu,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Preallocated => "preallocated",
            Self::Growing => "growing",
            Self::ByCpu => "by_cpu",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Preallocated => "timeless_tc",
            Self::Growing => "growing_tc",
            Self::ByCpu => "by_cpu_tc",
        }
    }
}

/// A program with its page.
pub struct Variant {
    ebpf: Ebpf,
    kind: Kind,
    /// The tables of [`Kind::ByCpu`].
    by_cpu: Vec<MapData>,
}

/// Entries that one system call takes.
const BATCH: usize = 4096;

impl Variant {
    pub fn new(kind: Kind, max_flows: u32) -> Result<Self> {
        let cpus = affinity::cpus() as u32;
        let room = |of| if of == kind { max_flows } else { 1 };
        let ebpf = EbpfLoader::new()
            .map_max_entries("BARE", room(Kind::Preallocated))
            .map_max_entries("GROWING", room(Kind::Growing))
            .map_max_entries("BY_CPU", cpus)
            .load(OBJECT)
            .context("load the reference programs")?;
        let mut by_cpu = Vec::new();
        if kind == Kind::ByCpu {
            let outer = ebpf.map("BY_CPU").context("the object has BY_CPU")?;
            let Map::ArrayOfMaps(outer) = outer else {
                bail!("BY_CPU is of another kind");
            };
            for cpu in 0..cpus {
                let page = create_page("by_cpu", max_flows)?;
                let fd = page.fd().as_fd().as_raw_fd().to_ne_bytes();
                bpf::update(outer.fd().as_fd(), cpu, &fd).context("place a CPU's table")?;
                by_cpu.push(page);
            }
        }
        Ok(Self { ebpf, kind, by_cpu })
    }

    /// Readies the program for [`Variant::run`], on no hook.
    pub fn load_program(&mut self) -> Result<()> {
        let program = self.ebpf.program_mut(self.kind.program());
        let program: &mut SchedClassifier = program.context("the object has it")?.try_into()?;
        Ok(program.load()?)
    }

    /// Hangs the program on the interface's TC ingress; returns its id.
    pub fn attach(&mut self, host: &Host) -> Result<u32> {
        program::attach(&mut self.ebpf, self.kind.program(), host, Hook::Tc)
    }

    /// Runs the program on a frame so many times, on the calling thread's CPU; returns the
    /// nanoseconds that a run took.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<f64> {
        let program = self.ebpf.program(self.kind.program());
        let program: &SchedClassifier = program.context("the object has it")?.try_into()?;
        let result = program.test_run(TestRunOptions {
            data_in: Some(frame),
            repeat,
            ..TestRunOptions::new()
        })?;
        Ok(result.duration.as_nanos() as f64)
    }

    /// Takes every entry out; returns how many there were and what they sum up to.
    pub fn drain(&self) -> Result<(u64, Pair)> {
        let mut keys = vec![FlowKey::default(); BATCH];
        let mut values = vec![FlowCounters::default(); BATCH];
        let (mut entries, mut sum) = (0, Pair::default());
        for map in self.maps()? {
            let mut cursor = None;
            loop {
                let (count, last) = bpf::take_batch(map, &mut cursor, &mut keys, &mut values)?;
                entries += count as u64;
                for counters in &values[..count] {
                    sum.packets += counters.packets[0] + counters.packets[1];
                    sum.bytes += counters.bytes[0] + counters.bytes[1];
                }
                if last {
                    break;
                }
            }
        }
        Ok((entries, sum))
    }

    /// What the kernel charges for the page at the moment.
    pub fn memory_bytes(&self) -> Result<u64> {
        self.maps()?.into_iter().map(fdinfo::memory_bytes).sum()
    }

    fn maps(&self) -> Result<Vec<BorrowedFd<'_>>> {
        let name = match self.kind {
            Kind::Preallocated => "BARE",
            Kind::Growing => "GROWING",
            Kind::ByCpu => return Ok(self.by_cpu.iter().map(|map| map.fd().as_fd()).collect()),
        };
        match self.ebpf.map(name) {
            Some(Map::HashMap(map)) => Ok(vec![map.fd().as_fd()]),
            _ => bail!("the object has no hash map {name}"),
        }
    }
}
