//! Attaches one hook after another. The kernel takes a grace period for each (`tcx_entry_sync`), and hooks that are
//! already attached count meanwhile.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use agent_common::{Direction, LinkType, direction::hook_number};
use anyhow::{Context as _, Result};

use super::{
    AttachSettings, Hook, IngressHook, LinkPlace, Mode, TcAttach, TcxOrder, XdpMode,
    clsact::Clsact,
    held::HeldLink,
    lines::{Line, Lines},
    link_type,
    programs::{Programs, tc_name},
    slots::{AttachedHook, Slots},
    takeover::Takeover,
};
use crate::links::{AttachedXdp, Link, LinkSocket, driver::Drivers, tags::Features};

pub(super) struct Attacher {
    pub programs: Programs,
    pub settings: AttachSettings,
    pub slots: Slots,
    pub counters: LinkSocket,
    pub features: Features,
    pub drivers: Drivers,
    pub clsact: Option<Clsact>,
    pub takeover: Takeover,
    /// The interfaces selected at the start; empty once they are attached.
    pub first: Vec<Link>,
    pub lines: Lines,
}

impl Attacher {
    /// Attaches the hooks of an interface. Fails with ENODEV if it is gone.
    pub(super) fn interface(&mut self, link: &Link, slot: u32) -> Result<()> {
        let settings = self.settings;
        if settings.has_hook(link, Direction::Ingress) {
            match settings.ingress_hook {
                IngressHook::Tc => {
                    self.warn_of_generic_xdp(link);
                    self.hook(link, slot, Direction::Ingress, |attacher, hook| {
                        attacher.tc(link, Direction::Ingress, hook)
                    })?;
                }
                IngressHook::Xdp => {
                    let plan = self.plan_xdp(link)?;
                    self.hook(link, slot, Direction::Ingress, |attacher, hook| {
                        attacher.xdp_or_tc(link, plan, hook)
                    })?;
                }
            }
        }
        if settings.has_hook(link, Direction::Egress) {
            self.hook(link, slot, Direction::Egress, |attacher, hook| {
                attacher.tc(link, Direction::Egress, hook)
            })?;
        }
        Ok(())
    }

    /// Attaches a hook between two readings of the interface's counters.
    fn hook(
        &mut self,
        link: &Link,
        slot: u32,
        direction: Direction,
        attach: impl FnOnce(&mut Self, &mut Hook) -> Result<()>,
    ) -> Result<()> {
        let before = self.counters.counters(link.ifindex)?;
        let mut hook = self.planned(link, slot, direction);
        self.slots.tell(AttachedHook {
            hook: hook.clone(),
            before_attach: before,
            after_attach: None,
        });
        attach(self, &mut hook)?;
        let after = self.counters.counters(link.ifindex)?;
        if !self.lines.are_limited {
            tracing::info!(
                interface = hook.interface,
                hook = hook.name(),
                mode = ?hook.mode,
                "attached"
            );
        }
        self.slots.tell(AttachedHook {
            hook,
            before_attach: before,
            after_attach: Some(after),
        });
        Ok(())
    }

    /// The hook that packets are accounted to while it is being attached. When in doubt, it claims less exactness than
    /// the attached hook will have.
    pub(super) fn planned(&self, link: &Link, slot: u32, direction: Direction) -> Hook {
        let AttachSettings {
            ingress_hook,
            xdp_mode,
            xdp_without_tags,
            ..
        } = self.settings;
        let is_xdp = direction == Direction::Ingress && ingress_hook == IngressHook::Xdp;
        let mode = match xdp_mode {
            XdpMode::Generic if is_xdp => Mode::XdpGeneric,
            XdpMode::Auto | XdpMode::Native if is_xdp => Mode::XdpNative,
            XdpMode::Auto | XdpMode::Native | XdpMode::Generic => Mode::Tcx,
        };
        Hook {
            interface: link.name.clone(),
            id: self.slots.id(link.ifindex),
            is_bare_ip: link.link_type() == Some(LinkType::Ip),
            is_loopback: link.is_loopback,
            is_vrf: link.is_vrf(),
            number: hook_number(slot, direction as u32),
            direction,
            mode,
            instead_of_xdp: None,
            tag_place: None,
            tags_unknown: is_xdp && xdp_without_tags,
        }
    }

    pub(super) fn tc(&mut self, link: &Link, direction: Direction, hook: &mut Hook) -> Result<()> {
        let how = self.settings.tc_attach;
        let name = tc_name(direction, link_type(link)?);
        let what = || format!("attach tc {} to {}", direction.name(), link.name);
        let tcx = match how {
            TcAttach::Clsact => None,
            TcAttach::Auto | TcAttach::Tcx => match self.tcx(link, direction, name)? {
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
        hook.tags_unknown = false;
        hook.mode = if let Some(tcx) = tcx {
            self.hold(link, tcx);
            Mode::Tcx
        } else {
            if self.clsact.is_none() {
                self.open_clsact()?;
                if self.settings.tcx_order != TcxOrder::First {
                    tracing::warn!(
                        "--tcx-order does nothing here, since this kernel has no TCX (it has it from 6.6): the programs are \
                         attached by clsact"
                    );
                }
            }
            let program = self.programs.get(name)?.try_clone_to_owned();
            let program = program.context("duplicate a program's descriptor")?;
            self.clsact(link, direction, program.as_fd(), name)
                .with_context(what)?;
            Mode::Clsact
        };
        Ok(())
    }

    /// Attaches a program by TCX. The inner result is the kernel's answer.
    fn tcx(
        &mut self,
        link: &Link,
        direction: Direction,
        program: &str,
    ) -> Result<io::Result<HeldLink>> {
        let place = match (self.settings.tcx_order, direction) {
            (TcxOrder::First, Direction::Ingress) | (TcxOrder::Last, Direction::Egress) => {
                LinkPlace::TcxFirst(direction)
            }
            (TcxOrder::First, Direction::Egress) | (TcxOrder::Last, Direction::Ingress) => {
                LinkPlace::TcxLast(direction)
            }
        };
        let to = (self.slots.id(link.ifindex), link);
        let program = self.programs.get(program)?;
        Ok(self.takeover.attach(to, place, program, &mut self.lines))
    }

    pub(super) fn hold(&self, link: &Link, held: HeldLink) {
        // If the interface has left meanwhile, `hold` returns the link, and dropping it detaches.
        drop(self.slots.hold(link.ifindex, held));
    }

    /// Whether the hooks of an interface are really on it. If changes were missed, another interface may have its
    /// index.
    pub(super) fn is_on(&mut self, link: &Link) -> Result<bool> {
        for held in self.slots.links_of(link.ifindex) {
            match held.is_on(link) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(false),
                Err(error) => {
                    let what = format!("ask whether the programs are still on {}", link.name);
                    return Err(error).context(what);
                }
            }
        }
        let clsact = self.clsact.as_mut();
        clsact.map_or(Ok(true), |clsact| clsact.is_on(link.ifindex))
    }

    /// Warns of somebody else's generic XDP program. Seen on 6.18: generic XDP copies an skb that has too little
    /// headroom. The copy's `mac_len` is zero, so TC pushes no Ethernet header back before it runs its programs
    /// (`tc_run`).
    fn warn_of_generic_xdp(&mut self, link: &Link) {
        if link.xdp == AttachedXdp::Generic
            && let Some(interfaces) = self.lines.due(Line::ForeignGenericXdp)
        {
            tracing::warn!(
                interface = link.name,
                interfaces,
                "another owner's generic XDP program is there: behind it TC may see packets without their Ethernet \
                 header, which count as not_ip"
            );
        }
    }

    /// Opens clsact. Checks all first interfaces before a qdisc is added to any, since added qdiscs stay even if the
    /// start fails.
    fn open_clsact(&mut self) -> Result<()> {
        let clsact = self.clsact.insert(Clsact::open()?);
        let settings = self.settings;
        let has_egress = |link: &&Link| settings.has_hook(link, Direction::Egress);
        clsact.ensure_egress_of(self.first.iter().filter(has_egress))
    }

    fn clsact(
        &mut self,
        link: &Link,
        direction: Direction,
        program: BorrowedFd<'_>,
        program_name: &str,
    ) -> Result<()> {
        let clsact = self.clsact.as_mut().context("clsact is not open")?;
        clsact.prepare(link, direction)?;
        let id = self.slots.id(link.ifindex);
        let named = (program, program_name);
        if self
            .takeover
            .replace_filter((id, link), direction, clsact, named, &mut self.lines)
        {
            return Ok(());
        }
        let began = self.takeover.clear(id, link, direction);
        let attached = clsact.attach(link, direction, program, program_name);
        if let Some(began) = began {
            self.takeover.tell_of_gap(link, began, &mut self.lines);
        }
        attached
    }
}
