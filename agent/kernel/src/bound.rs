//! Loads a program that is bound to one interface, so that it may call functions of that interface's driver.
//!
//! aya cannot load such a program. This module uses aya to parse and link the object once more, with the maps of the
//! programs that aya has loaded.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{Arc, Weak},
};

use agent_common::kernel_call::RX_VLAN_TAG;
use anyhow::{Context as _, Error, Result, anyhow, ensure};
use aya::{
    Ebpf,
    maps::{Map, MapData},
};
use aya_obj::{
    Object,
    generated::{BPF_CALL, BPF_JMP, BPF_PSEUDO_KFUNC_CALL, bpf_insn},
};

use super::{
    bpf::{self, BoundProgram},
    layout, refusal, signals,
};

const PROGRAM: &str = TaggedPrograms::NAME;
/// The kernel function that the program calls.
const FUNCTION: &str = "bpf_xdp_metadata_rx_vlan_tag";

/// XDP programs that ask the driver for the VLAN tag that it took out of a frame.
pub struct TaggedPrograms {
    object: &'static [u8],
    maps: HashMap<String, OwnedFd>,
    /// Linked when the first program is needed, or the reason why it cannot be.
    program: Option<Result<BoundProgram, String>>,
    loaded: Vec<Weak<OwnedFd>>,
    most: usize,
}

impl TaggedPrograms {
    /// The program in the object.
    pub const NAME: &str = "xdp_tagged";
    /// Each program is verified separately and takes kernel memory.
    pub const MOST: usize = 64;

    /// The programs will use the maps of `loaded`.
    pub(super) fn new(object: &'static [u8], loaded: &Ebpf) -> Result<Self> {
        let maps = loaded.maps().map(|(name, map)| {
            let map = data(map).with_context(|| format!("map {name} is of another kind"))?;
            let map = map.fd().as_fd().try_clone_to_owned();
            Ok((
                name.to_owned(),
                map.context("duplicate a map's descriptor")?,
            ))
        });
        Ok(Self {
            object,
            maps: maps.collect::<Result<_>>()?,
            program: None,
            loaded: Vec::new(),
            most: Self::MOST,
        })
    }

    /// Loads a program for this interface of the calling thread's network namespace. Fails if [`Self::MOST`] are loaded
    /// already.
    pub fn load(&mut self, ifindex: u32) -> Result<Arc<OwnedFd>> {
        self.loaded.retain(|program| program.strong_count() > 0);
        if self.loaded.len() >= self.most {
            return Err(Self::too_many(self.most));
        }
        let (object, maps) = (self.object, &self.maps);
        let program = self.program.get_or_insert_with(|| {
            let program = linked(object, maps);
            program.map_err(|error| format!("{error:#}"))
        });
        let program = program.as_ref().map_err(|why| anyhow!("{why}"))?;
        let _held = signals::Held::new();
        match program.load(ifindex) {
            Ok(program) => {
                let program = Arc::new(program);
                self.loaded.push(Arc::downgrade(&program));
                Ok(program)
            }
            Err((error, log)) => {
                let error = refusal::explain_log(Self::NAME, error, &log);
                if !log.is_empty() {
                    // The verifier would refuse it for every interface, and takes its time for each.
                    self.program = Some(Err(format!("{error:#}")));
                }
                Err(error)
            }
        }
    }

    /// The error for an interface that gets no program because `most` are loaded.
    pub fn too_many(most: usize) -> Error {
        anyhow!("{most} interfaces have programs of their own already, and no more may")
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the object has no others of the many kinds"
)]
fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::ArrayOfMaps(data)
        | Map::HashMap(data)
        | Map::HashOfMaps(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::PerCpuHashMap(data)
        | Map::RingBuf(data)
        | Map::SkStorage(data) => Some(data),
        _ => None,
    }
}

/// Links the program, so that it can be loaded for any interface.
fn linked(object: &[u8], descriptors: &HashMap<String, OwnedFd>) -> Result<BoundProgram> {
    let mut object = Object::parse(object).context("read the programs")?;
    object.programs.retain(|name, _| name == PROGRAM);
    let types = match aya::features().btf() {
        Some(features) => object.fixup_and_sanitize_btf(features)?,
        None => None,
    };
    let types = types.context("the kernel or the object has no type information (BTF)")?;
    let types = bpf::load_btf(&types.to_bytes()).context("load the programs' types")?;

    let sections = object.functions.keys().map(|(section, _)| *section);
    let sections = sections.collect();
    let maps = std::mem::take(&mut object.maps);
    let maps = maps.iter().map(|(name, map)| {
        let descriptor = descriptors.get(name);
        let descriptor = descriptor.with_context(|| format!("there is no map {name}"))?;
        Ok((name.as_str(), descriptor.as_raw_fd(), map))
    });
    let maps = maps.collect::<Result<Vec<_>>>()?;
    object.relocate_maps(maps.into_iter(), &sections)?;
    object.relocate_calls(&sections)?;

    let program = object.programs.get(PROGRAM);
    let program = program.with_context(|| format!("the object has no program {PROGRAM}"))?;
    let function = object.functions.get(&program.function_key());
    let mut function = function.context("a program has code")?.clone();
    let number = layout::types_of_this_kernel()?.function(FUNCTION)?;
    complete(&mut function.instructions, number)?;
    Ok(BoundProgram {
        name: PROGRAM,
        license: program.license.clone(),
        functions: function.func_info.func_info,
        instructions: function.instructions,
        types,
    })
}

/// Turns the placeholder calls into calls of the kernel function with this BTF id.
fn complete(instructions: &mut [bpf_insn], number: u32) -> Result<()> {
    const CALL: u8 = (BPF_JMP | BPF_CALL) as u8;
    let calls = instructions.iter_mut().filter(|instruction| {
        (instruction.code, instruction.src_reg(), instruction.imm) == (CALL, 0, RX_VLAN_TAG)
    });
    let mut found = 0;
    for call in calls {
        call.set_src_reg(BPF_PSEUDO_KFUNC_CALL as u8);
        call.imm = number.cast_signed();
        found += 1;
    }
    ensure!(found > 0, "{PROGRAM} calls no {FUNCTION}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use lab::{
        Namespace, kernel,
        privilege::{is_root_or_skip, skip},
    };

    use crate::load::{Kernel, LoadSettings};

    #[test]
    fn no_more_programs_are_there_at_a_time_than_may_be() {
        const NAME: &str = "kernel::no_more_programs_are_there_at_a_time_than_may_be";
        if !kernel::is_at_least(6, 8) {
            skip(NAME, "drivers tell XDP the tags from 6.8");
            return;
        }
        if !is_root_or_skip(NAME) {
            return;
        }
        let namespace = Namespace::new("bound").unwrap();
        namespace.add_wire(["here", "there"]).unwrap();
        let ifindexes = ["here", "there"].map(|name| namespace.ifindex(name).unwrap());
        let loads = || {
            let mut kernel = Kernel::load(&LoadSettings {
                asks_drivers: true,
                ..LoadSettings::smallest(vec![1])
            })?;
            let tagged = kernel.sets[0].tagged.as_mut().unwrap();
            tagged.most = 1;
            let first = tagged.load(ifindexes[0])?;
            let refused = tagged.load(ifindexes[1]).unwrap_err().to_string();
            drop(first);
            tagged.load(ifindexes[1])?;
            Ok(refused)
        };
        let refused = namespace.enter(loads).unwrap();
        assert!(refused.starts_with("1 interfaces have"), "{refused}");
    }
}
