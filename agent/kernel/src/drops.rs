//! Counts the packets that the kernel drops, by the kernel's own reasons.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use agent_common::{
    FlowKey,
    drops::{OTHER, REASONS, beside, watched},
};
use anyhow::{Context as _, Result};
use aya::{
    Ebpf,
    maps::{Array, Map, MapData, PerCpuArray},
    programs::{BtfTracePoint, tp_btf::BtfTracePointLink},
};

use super::{bpf, btf, layout, memory::map_memory_bytes, run_times::RunTimes, tracepoint};

/// The program, and the tracepoint it is attached to, which has passed a reason since 5.17.
const DROPS: &str = "kfree_skb";

/// The kernel's enum of reasons, and the prefix of its constants.
const REASON: &str = "skb_drop_reason";
const PREFIX: &str = "SKB_DROP_REASON_";
/// The enum's last constant is not a reason.
const NO_REASON: &str = "max";

/// Flows with dropped packets that a page has room for. The kernel allocates all of it at the start, some 120 bytes per
/// flow.
pub const MOST_FLOWS: u32 = 8192;

/// Names of the drops that belong to no flow, by kind.
const BESIDE: [&str; beside::KINDS as usize] = [
    "elsewhere",
    "unparsed",
    "no_room",
    "not_for_us",
    "unwatched",
    "looped_back",
];

/// The programs' maps.
pub struct Maps {
    pub counts: MapData,
    /// By page.
    pub by_flow: [MapData; 2],
    pub beside: MapData,
    pub watched: Arc<MapData>,
}

/// The interfaces of a network namespace whose drops are counted by flow.
#[derive(Clone)]
pub struct Watching {
    map: Arc<MapData>,
    netns: u32,
}

impl Watching {
    /// `map` is shared by all network namespaces.
    pub fn new(map: Arc<MapData>, netns: u32) -> Self {
        Self { map, netns }
    }

    pub fn begin(&self, ifindex: u32) -> io::Result<()> {
        bpf::update_by_bytes(self.map.fd().as_fd(), &self.key(ifindex), &[0; 4])
    }

    /// Stops watching an interface. Succeeds if it was not watched.
    pub fn end(&self, ifindex: u32) -> io::Result<()> {
        bpf::delete_if_there(self.map.fd().as_fd(), &self.key(ifindex))
    }

    fn key(&self, ifindex: u32) -> [u8; 8] {
        watched(ifindex, self.netns).to_ne_bytes()
    }
}

/// Counters of the packets that the kernel drops.
pub struct Drops {
    counts: PerCpuArray<MapData, u64>,
    by_flow: [MapData; 2],
    beside: Array<MapData, u64>,
    /// Kept because the program needs it to load, even where drops are not counted by flow.
    _watched: Arc<MapData>,
    memory_bytes: u64,
    /// Whether drops are counted by flow.
    tells_flows: bool,
    /// Set while drops are counted.
    counting: Option<Counting>,
}

struct Counting {
    /// Names of the reasons, by number.
    reasons: BTreeMap<u32, String>,
    program: OwnedFd,
    /// The program counts as long as this link exists.
    _link: BtfTracePointLink,
}

/// Drops since counting began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub by_reason: BTreeMap<String, u64>,
    /// Drops that were not counted because another one was being counted on the same CPU.
    pub missed: u64,
    /// Drops that belong to no flow, by why; `None` if drops are not counted by flow.
    pub beside: Option<BTreeMap<String, u64>>,
}

impl Drops {
    pub fn new(maps: Maps, tells_flows: bool) -> Result<Self> {
        let Maps {
            counts,
            by_flow,
            beside,
            watched,
        } = maps;
        let of_flows: u64 = by_flow.iter().map(map_memory_bytes).sum();
        let of_others = [&counts, &beside, &*watched].map(map_memory_bytes);
        let memory_bytes = of_flows + of_others.into_iter().sum::<u64>();
        let counts = PerCpuArray::try_from(Map::PerCpuArray(counts));
        let beside = Array::try_from(Map::Array(beside));
        Ok(Self {
            counts: counts.context("the counts of drops")?,
            by_flow,
            beside: beside.context("the counts of drops of no flow")?,
            _watched: watched,
            memory_bytes,
            tells_flows,
            counting: None,
        })
    }

    /// Starts counting, also by flow if the programs can.
    pub fn count(&mut self, programs: &mut Ebpf, run_times: &RunTimes) -> Result<()> {
        let reasons = reasons(&layout::types_of_this_kernel()?)?;
        let program = load(programs)?;
        let link = tracepoint::attach(program, DROPS, run_times)?;
        let fd = tracepoint::descriptor(program)?.try_clone_to_owned();
        self.counting = Some(Counting {
            reasons,
            program: fd.context("duplicate a program's descriptor")?,
            _link: link,
        });
        Ok(())
    }

    /// Drops so far. `None` if drops are not counted.
    pub fn counted(&self) -> Result<Option<Counted>> {
        let Some(counting) = &self.counting else {
            return Ok(None);
        };
        let of = |place: u32| -> Result<u64> {
            let by_cpu = self.counts.get(&place, 0);
            let by_cpu = by_cpu.context("read the kernel's drops")?;
            Ok(by_cpu.iter().sum())
        };
        let mut by_reason = BTreeMap::new();
        for (&number, name) in &counting.reasons {
            by_reason.insert(name.clone(), of(number)?);
        }
        by_reason.insert("other".to_owned(), of(OTHER)?);
        by_reason.retain(|_, count| *count != 0);
        let beside = self.tells_flows.then(|| self.beside()).transpose()?;
        let missed = bpf::missed_runs(counting.program.as_fd());
        Ok(Some(Counted {
            by_reason,
            missed: missed.context("read how often a program could not run")?,
            beside,
        }))
    }

    fn beside(&self) -> Result<BTreeMap<String, u64>> {
        let of = |(kind, name): (u32, &&str)| Ok(((*name).to_owned(), self.beside.get(&kind, 0)?));
        let all = (0..).zip(&BESIDE).map(of);
        let all: Result<_> = all.collect();
        all.context("read how many drops are of no flow")
    }

    /// Removes and passes on the dropped packets of each flow on a page that no program uses.
    pub fn take(&mut self, page: u32, mut each: impl FnMut(&FlowKey, u64)) -> Result<()> {
        if self.counting.is_none() || !self.tells_flows {
            return Ok(());
        }
        let map = self.by_flow[page as usize & 1].fd().as_fd();
        bpf::take_all(map, |key, &packets| each(key, packets))
            .context("read the flows of dropped packets")
    }

    pub fn kernel_memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Loads the program without attaching it.
pub fn load(programs: &mut Ebpf) -> Result<&mut BtfTracePoint> {
    tracepoint::load(programs, DROPS)
}

/// The reasons of this kernel by their numbers, in lower case.
fn reasons(types: &btf::Btf) -> Result<BTreeMap<u32, String>> {
    let constants = types.constants_of(REASON)?;
    let reasons = constants.into_iter().filter_map(|(name, number)| {
        let name = name.strip_prefix(PREFIX)?.to_ascii_lowercase();
        (number < REASONS - 1 && name != NO_REASON).then_some((number, name))
    });
    Ok(reasons.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::written::Written;

    #[test]
    fn reasons_have_the_names_that_the_kernel_gives_them() {
        let mut types = Written::default();
        types.constants_of(
            REASON,
            &[
                ("SKB_NOT_DROPPED_YET", 0),
                ("SKB_DROP_REASON_NO_SOCKET", 3),
                ("SKB_DROP_REASON_MAX", 90),
                ("SKB_DROP_REASON_SUBSYS_MASK", 0xffff_0000),
            ],
        );
        let types = btf::Btf::parse(types.bytes()).unwrap();
        let expected = BTreeMap::from([(3, "no_socket".to_owned())]);
        assert_eq!(reasons(&types).unwrap(), expected);
    }
}
