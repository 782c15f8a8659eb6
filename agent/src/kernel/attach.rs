//! Hangs the programs on interfaces: interfaces and hook settings come in, [`Attachments`] go out,
//! whose end detaches everything.
//!
//! TCX and XDP attachments are BPF links: the kernel removes them with the process, whatever ends
//! it. Filters on clsact stay after a SIGKILL; the next start removes them.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use agent_common::LinkType;
use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf,
    programs::{ProgramFd, SchedClassifier, Xdp},
    util::KernelVersion,
};

use super::{
    bpf::{LinkPlace, create_link},
    interface_table::InterfaceTable,
    links::{
        AttachedXdp, Link,
        tags::{Features, TagPlace},
    },
    refusal, signals,
};

mod clsact;
mod departures;
mod filter;
mod held;
mod instance;
mod release;
mod xdp;

use clsact::Clsact;
use filter::Side;
use held::{HeldLink, HeldLinks};
pub use xdp::{InsteadOfXdp, instead_of_native_xdp, warn_of_hidden_tags};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IngressHook {
    Tc,
    Xdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum XdpMode {
    /// Native where the driver can, else TC.
    Auto,
    Native,
    /// By the kernel ahead of TC: a super-frame counts as one frame, and programs behind it may see
    /// packets without their Ethernet header.
    Generic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    Both,
    Ingress,
    Egress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TcAttach {
    /// TCX links where the kernel has them (6.6), else clsact.
    Auto,
    Tcx,
    Clsact,
}

#[derive(Clone, Copy, Debug)]
pub struct AttachSettings {
    pub ingress_hook: IngressHook,
    pub xdp_mode: XdpMode,
    /// XDP also where it may miss VLAN tags.
    pub xdp_without_tags: bool,
    pub direction: Direction,
    pub tc_attach: TcAttach,
}

/// How a hook came to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Tcx,
    Clsact,
    XdpNative,
    XdpGeneric,
}

/// One attached hook.
#[derive(Clone, Debug)]
pub struct Hook {
    pub interface: String,
    pub ifindex: u32,
    /// Interface slot × 2 + direction: the index of its account.
    pub account_index: u32,
    pub is_egress: bool,
    pub mode: Mode,
    pub instead_of_xdp: Option<InsteadOfXdp>,
    /// Of an XDP program.
    pub tag_place: Option<TagPlace>,
    /// The program may have missed VLAN tags.
    pub tags_unknown: bool,
}

impl Hook {
    /// The number of its interface.
    pub fn slot(&self) -> usize {
        self.account_index as usize / 2
    }
}

/// What is attached; dropping it detaches, or has the kernel detach: see [`release`].
pub struct Attachments {
    pub hooks: Vec<Hook>,
    links: HeldLinks,
    clsact: Option<Clsact>,
    features: Features,
}

impl Attachments {
    /// Attaches the hooks of every interface; where one fails, none stays. First it removes what
    /// killed agents left behind. Where an interface leaves, its hooks end.
    pub fn attach(
        ebpf: &mut Ebpf,
        interfaces: InterfaceTable,
        links: &[Link],
        settings: AttachSettings,
    ) -> Result<Self> {
        let mut attached = Self {
            hooks: Vec::new(),
            links: HeldLinks::default(),
            clsact: None,
            features: Features::open(),
        };
        let ifindexes = links.iter().map(|link| link.ifindex).collect();
        departures::watch(attached.links.clone(), interfaces, ifindexes)?;
        if let Err(error) = clsact::remove_stale() {
            tracing::warn!("cannot look for filters of killed agents: {error:#}");
        }
        for (slot, link) in links.iter().enumerate() {
            let slot = slot as u32;
            if settings.direction != Direction::Egress {
                match settings.ingress_hook {
                    IngressHook::Tc => {
                        warn_of_generic_xdp(link);
                        attached.tc(ebpf, link, slot, Side::Ingress, settings.tc_attach)?;
                    }
                    IngressHook::Xdp => attached.xdp_or_tc(ebpf, link, slot, settings)?,
                }
            }
            // What a host sends to itself arrives on lo as well: one hook counts it once.
            if settings.direction != Direction::Ingress && !link.is_loopback {
                attached.tc(ebpf, link, slot, Side::Egress, settings.tc_attach)?;
            }
        }
        if attached.hooks.is_empty() {
            bail!(
                "nothing to attach: on lo only ingress is seen; choose --direction both or ingress"
            );
        }
        Ok(attached)
    }

    fn tc(
        &mut self,
        ebpf: &mut Ebpf,
        link: &Link,
        slot: u32,
        side: Side,
        how: TcAttach,
    ) -> Result<()> {
        let (name, way, place) = match (side, link_type(link)?) {
            (Side::Ingress, LinkType::Ethernet) => ("tc_ingress", "ingress", INGRESS),
            (Side::Ingress, LinkType::Ip) => ("tc_ingress_ip", "ingress", INGRESS),
            (Side::Egress, LinkType::Ethernet) => ("tc_egress", "egress", EGRESS),
            (Side::Egress, LinkType::Ip) => ("tc_egress_ip", "egress", EGRESS),
        };
        let program = tc_program(ebpf, name)?.as_fd();
        let what = || format!("attach tc {way} to {}", link.name);
        let tcx = match how {
            TcAttach::Clsact => None,
            TcAttach::Auto | TcAttach::Tcx => match create_link(program, link.ifindex, place) {
                Ok(tcx) => Some(tcx),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    if how == TcAttach::Tcx {
                        return Err(error)
                            .context("the kernel refuses TCX (it has it from 6.6): choose --tc-attach clsact")
                            .with_context(what);
                    }
                    None
                }
                Err(error) => return Err(error).with_context(what),
            },
        };
        let mode = if let Some(tcx) = tcx {
            self.hold(link, tcx, false);
            Mode::Tcx
        } else {
            self.clsact(link, side, program, name).with_context(what)?;
            Mode::Clsact
        };
        self.hooks.push(Hook {
            interface: link.name.clone(),
            ifindex: link.ifindex,
            account_index: slot * 2 + u32::from(side == Side::Egress),
            is_egress: side == Side::Egress,
            mode,
            instead_of_xdp: None,
            tag_place: None,
            tags_unknown: false,
        });
        Ok(())
    }

    /// The interfaces that have left.
    pub fn gone(&self) -> BTreeSet<u32> {
        self.links.left()
    }

    fn hold(&self, link: &Link, fd: OwnedFd, is_exclusive: bool) {
        let held = HeldLink { fd, is_exclusive };
        // Where the interface has left meanwhile this is where the link ends.
        drop(self.links.hold(link.ifindex, held));
    }

    fn clsact(
        &mut self,
        link: &Link,
        side: Side,
        program: BorrowedFd<'_>,
        program_name: &str,
    ) -> Result<()> {
        let clsact = match &mut self.clsact {
            Some(clsact) => clsact,
            None => self.clsact.insert(Clsact::open()?),
        };
        clsact.attach(link, side, program, program_name)
    }
}

impl Attachments {
    /// Detaches what takes no time to speak of: filters, and links where they are few.
    pub fn detach_few(&mut self) {
        self.clsact = None;
        if self.links.len() <= release::FEW {
            drop(self.links.take());
        }
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        release::release(self.links.take());
    }
}

/// Has the kernel verify every program that this kernel's version calls for, and attaches none.
pub fn load_all(ebpf: &mut Ebpf) -> Result<()> {
    for name in ["tc_ingress", "tc_ingress_ip", "tc_egress", "tc_egress_ip"] {
        tc_program(ebpf, name)?;
    }
    for link_type in [LinkType::Ethernet, LinkType::Ip] {
        xdp_program(ebpf, xdp_name(link_type))?;
    }
    Ok(())
}

fn xdp_name(link_type: LinkType) -> &'static str {
    match (has_xdp_frags(), link_type) {
        (false, LinkType::Ethernet) => "xdp_ingress",
        (false, LinkType::Ip) => "xdp_ingress_ip",
        (true, LinkType::Ethernet) => "xdp_frags",
        (true, LinkType::Ip) => "xdp_frags_ip",
    }
}

// What others change or drop at the hook is theirs.
const INGRESS: LinkPlace = LinkPlace::TcxIngressFirst;
const EGRESS: LinkPlace = LinkPlace::TcxEgressLast;

/// The program's descriptor; it is loaded where it is wanted for the first time.
fn tc_program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a ProgramFd> {
    let program: &mut SchedClassifier = ebpf
        .program_mut(name)
        .with_context(|| format!("the object has no program {name}"))?
        .try_into()
        .context("a TC program")?;
    if program.fd().is_err() {
        let _held = signals::Held::new();
        program
            .load()
            .map_err(|error| refusal::explain(name, error))?;
    }
    program.fd().context("a loaded program has a descriptor")
}

/// The program's descriptor; it is loaded where it is wanted for the first time.
fn xdp_program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a ProgramFd> {
    let program: &mut Xdp = ebpf
        .program_mut(name)
        .with_context(|| format!("the object has no program {name}"))?
        .try_into()
        .context("an XDP program")?;
    if program.fd().is_err() {
        let _held = signals::Held::new();
        program
            .load()
            .map_err(|error| refusal::explain(name, error))?;
    }
    program.fd().context("a loaded program has a descriptor")
}

/// Seen on 6.18: generic XDP copies an skb that has too little headroom, and the copy's `mac_len` is
/// zero, so that TC pushes no Ethernet header back before it runs its programs (`tc_run`).
fn warn_of_generic_xdp(link: &Link) {
    if link.xdp == AttachedXdp::Generic {
        tracing::warn!(
            interface = link.name,
            "a generic XDP program of somebody else's is there: behind it TC may see packets without \
             their Ethernet header, and they count as not_ip"
        );
    }
}

fn link_type(link: &Link) -> Result<LinkType> {
    link.link_type().with_context(|| {
        format!(
            "{}: hardware type {} carries neither Ethernet nor bare IP",
            link.name, link.hardware_type
        )
    })
}

/// XDP frames of several buffers exist from kernel 5.18; before it, the flag is refused.
fn has_xdp_frags() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(5, 18, 0))
}
