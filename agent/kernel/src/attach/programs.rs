//! Loads the programs that hooks need. Programs for the first interfaces, and for the usual kind that may appear later,
//! are loaded before any hook is attached, so that no hook waits for the verifier. Others are loaded when an interface
//! of another kind appears, or one whose driver has to be asked for VLAN tags, which takes its own program.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use agent_common::{Direction, LinkType};
use anyhow::{Context as _, Result};
use aya::{
    Ebpf,
    programs::{Program, ProgramError, ProgramFd, SchedClassifier},
    util::KernelVersion,
};

use super::{AttachSettings, Directions, IngressHook, link_type};
use crate::{
    bound::TaggedPrograms, interfaces::Selection, links::Link, load::ProgramSet, refusal,
    run_times::RunTimes, signals,
};

pub(super) struct Programs {
    ebpf: Ebpf,
    tagged: Option<TaggedPrograms>,
    run_times: RunTimes,
}

impl Programs {
    /// Loads the programs that hooks of these interfaces may need, and those for Ethernet if interfaces may appear
    /// later. An XDP hook may turn out to need TC instead.
    pub(super) fn load(
        set: ProgramSet,
        links: &[Link],
        selection: &Selection,
        settings: AttachSettings,
    ) -> Result<Self> {
        let mut programs = Self {
            ebpf: set.programs,
            tagged: set.tagged,
            run_times: set.run_times,
        };
        let here: Vec<_> = links.iter().map(link_type).collect::<Result<_>>()?;
        let to_come = selection.may_wait().then_some(LinkType::Ethernet);
        for link_type in here.into_iter().chain(to_come) {
            if settings.directions != Directions::Egress {
                programs.get(tc_name(Direction::Ingress, link_type))?;
                if settings.ingress_hook == IngressHook::Xdp {
                    programs.get(xdp_name(link_type))?;
                }
            }
            if settings.directions != Directions::Ingress {
                programs.get(tc_name(Direction::Egress, link_type))?;
            }
        }
        Ok(programs)
    }

    /// The descriptor of a program. Loads the program if it is not loaded.
    pub(super) fn get(&mut self, name: &str) -> Result<BorrowedFd<'_>> {
        let is_first = self
            .ebpf
            .program(name)
            .is_some_and(|program| program.fd().is_err());
        let program = program(&mut self.ebpf, name)?.as_fd();
        if is_first {
            let watched = self.run_times.watch(name, program);
            watched.context("duplicate a program's descriptor")?;
        }
        Ok(program)
    }

    /// Loads the XDP program that asks the driver of this interface for VLAN tags.
    pub(super) fn tagged(&mut self, ifindex: u32) -> Result<Arc<OwnedFd>> {
        let tagged = self.tagged.as_mut();
        let tagged = tagged.context("the programs were loaded without it")?;
        let program = tagged.load(ifindex)?;
        self.run_times
            .watch_while_held(TaggedPrograms::NAME, &program);
        Ok(program)
    }
}

/// Makes the kernel verify every program meant for its version, without attaching any.
pub fn load_all(ebpf: &mut Ebpf) -> Result<()> {
    for name in ["tc_ingress", "tc_ingress_ip", "tc_egress", "tc_egress_ip"] {
        program(ebpf, name)?;
    }
    for link_type in [LinkType::Ethernet, LinkType::Ip] {
        program(ebpf, xdp_name(link_type))?;
    }
    Ok(())
}

pub(super) fn tc_name(direction: Direction, link_type: LinkType) -> &'static str {
    match (direction, link_type) {
        (Direction::Ingress, LinkType::Ethernet) => "tc_ingress",
        (Direction::Ingress, LinkType::Ip) => "tc_ingress_ip",
        (Direction::Egress, LinkType::Ethernet) => "tc_egress",
        (Direction::Egress, LinkType::Ip) => "tc_egress_ip",
    }
}

pub(super) fn xdp_name(link_type: LinkType) -> &'static str {
    match (has_xdp_frags(), link_type) {
        (false, LinkType::Ethernet) => "xdp_ingress",
        (false, LinkType::Ip) => "xdp_ingress_ip",
        (true, LinkType::Ethernet) => "xdp_frags",
        (true, LinkType::Ip) => "xdp_frags_ip",
    }
}

/// The program's descriptor. Loads the program at the first call.
fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a ProgramFd> {
    let program = ebpf
        .program_mut(name)
        .with_context(|| format!("the object has no program {name}"))?;
    if program.fd().is_err() {
        let _held = signals::Held::new();
        load(program).map_err(|error| refusal::explain(name, error))?;
    }
    program.fd().context("a loaded program has a descriptor")
}

fn load(program: &mut Program) -> Result<(), ProgramError> {
    if let Program::Xdp(program) = program {
        return program.load();
    }
    let program: &mut SchedClassifier = program.try_into()?;
    program.load()
}

/// Multi-buffer XDP exists from kernel 5.18; earlier kernels refuse the flag.
pub(super) fn has_xdp_frags() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(5, 18, 0))
}
