//! Attaches to a link's XDP hook if XDP counts correctly there. Otherwise attaches to TC, and logs why.

use std::{
    fmt::Display,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use agent_common::Direction;
use anyhow::{Result, anyhow};

use super::{Attacher, Hook, LinkPlace, Mode, XdpMode, lines::Line, link_type, programs::xdp_name};
use crate::links::{
    Link,
    driver::Drivers,
    tags::{Features, TagPlace},
};

/// Why ingress is counted at TC although XDP was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsteadOfXdp {
    /// The driver does not accept the program.
    NoNativeMode,
    /// XDP may miss the frames' VLAN tags.
    HiddenTags,
    /// The kernel would put the program on lower devices (`bond_xdp_set`, `netvsc_vf_setxdp`), and packets would arrive
    /// with other indexes than the link's.
    LowerDevices,
    /// Somebody else's XDP program is attached, and an interface takes only one.
    Taken,
    /// The driver runs the program on super-frames, so each of them counts as one frame (`tun_get_user`).
    SuperFrames,
}

/// Where XDP finds the VLAN tags of a link's frames.
#[derive(Debug)]
pub enum AtXdp {
    /// In the frames.
    Counts,
    /// The driver takes them out, and passes them to a program that asks. The text says why they are taken out.
    AsksDriver(String),
    /// Nowhere, or XDP would count wrong in another way. The text says why.
    Miscounts(InsteadOfXdp, String),
}

/// How XDP would count on a link. With `without_tags`, hidden tags are accepted. Generic XDP miscounts on every link,
/// and the account shows that.
pub fn at_xdp(
    (features, drivers): (&mut Features, &mut Drivers),
    link: &Link,
    mode: XdpMode,
    without_tags: bool,
) -> AtXdp {
    if mode != XdpMode::Generic
        && let Some((why, in_words)) = miscounted(link)
    {
        return AtXdp::Miscounts(why, in_words);
    }
    if without_tags {
        return AtXdp::Counts;
    }
    let Some(why) = features.hiding_tags(TagPlace::of(link)) else {
        return AtXdp::Counts;
    };
    // No driver runs a generic program.
    let asked = (mode != XdpMode::Generic).then(|| drivers.of(link.ifindex));
    let (why, in_words) = match asked {
        None => hidden_tags(&why),
        Some(Ok(driver)) if driver.tells_vlan_tags => return AtXdp::AsksDriver(why),
        Some(Ok(_)) => hidden_tags(&format!(
            "{why}, and its driver does not tell them (some do, from kernel 6.8 on)"
        )),
        Some(Err(error)) => cannot_be_asked(&why, &error),
    };
    AtXdp::Miscounts(why, in_words)
}

/// The program to attach to a link's XDP hook.
pub(super) enum Plan {
    /// `None` is the program that such links share, otherwise the link's own program.
    Xdp(Option<Arc<OwnedFd>>),
    /// No program, because TC counts there. The text says why.
    Tc(InsteadOfXdp, String),
}

/// Why XDP would count packets or bytes wrong.
fn miscounted(link: &Link) -> Option<(InsteadOfXdp, String)> {
    lower_devices(link).or_else(|| super_frames(link))
}

fn lower_devices(link: &Link) -> Option<(InsteadOfXdp, String)> {
    let has_lower = link.kind == "bond" || (link.kind.is_empty() && link.has_lower);
    has_lower.then(|| {
        let why = "the kernel puts native XDP on its lower devices; name these to count there";
        (InsteadOfXdp::LowerDevices, why.to_owned())
    })
}

/// A packet written to a tap with a GSO type bypasses the driver's XDP and goes to the kernel's generic XDP.
fn super_frames(link: &Link) -> Option<(InsteadOfXdp, String)> {
    (link.kind == "tun").then(|| {
        let why = "a super-frame (GSO) that a virtual machine sends is one frame to XDP here";
        (InsteadOfXdp::SuperFrames, why.to_owned())
    })
}

fn hidden_tags(why: &str) -> (InsteadOfXdp, String) {
    let in_words =
        format!("XDP may miss VLAN tags: {why}; --xdp-without-tags counts at XDP all the same");
    (InsteadOfXdp::HiddenTags, in_words)
}

/// The reason for a link whose driver does not answer, or whose program the kernel refuses.
pub fn cannot_be_asked(hidden: &str, error: &anyhow::Error) -> (InsteadOfXdp, String) {
    hidden_tags(&format!(
        "{hidden}, and its driver cannot be asked: {error:#}"
    ))
}

impl Attacher {
    /// Decides where ingress is counted, and loads the link's own program if it needs one. The verifier takes its time,
    /// so this comes before the two readings of the counters around attachment.
    pub(super) fn plan_xdp(&mut self, link: &Link) -> Result<Plan> {
        let settings = self.settings;
        let (mode, without_tags) = (settings.xdp_mode, settings.xdp_without_tags);
        let ask = (&mut self.features, &mut self.drivers);
        let hidden = match at_xdp(ask, link, mode, without_tags) {
            AtXdp::Counts => return Ok(Plan::Xdp(None)),
            AtXdp::Miscounts(why, in_words) => return Ok(Plan::Tc(why, in_words)),
            AtXdp::AsksDriver(hidden) => hidden,
        };
        match self.programs.tagged(link.ifindex) {
            Ok(program) => Ok(Plan::Xdp(Some(program))),
            Err(error) => {
                // For an interface that is gone the kernel also answers EINVAL. Reading its counters fails with ENODEV
                // then.
                self.counters.counters(link.ifindex)?;
                let (why, in_words) = cannot_be_asked(&hidden, &error);
                Ok(Plan::Tc(why, in_words))
            }
        }
    }

    /// Attaches to XDP, or to TC if XDP would count wrong. The log and the hook say which.
    pub(super) fn xdp_or_tc(&mut self, link: &Link, plan: Plan, hook: &mut Hook) -> Result<()> {
        let tagged = match plan {
            Plan::Xdp(tagged) => tagged,
            Plan::Tc(why, in_words) => return self.tc_instead(link, hook, (why, &in_words)),
        };
        let settings = self.settings;
        let place = TagPlace::of(link);
        let tags_unknown = settings.xdp_without_tags && self.features.hiding_tags(place).is_some();
        // If the driver passes on the tags, their place needs no watching.
        let tag_place = tagged.is_none().then_some(place);
        let (place, mode) = match settings.xdp_mode {
            XdpMode::Auto | XdpMode::Native => (LinkPlace::XdpNative, Mode::XdpNative),
            XdpMode::Generic => (LinkPlace::XdpGeneric, Mode::XdpGeneric),
        };
        let program = match &tagged {
            Some(program) => program.as_fd(),
            None => self.programs.get(xdp_name(link_type(link)?))?,
        };
        let to = (self.slots.id(link.ifindex), link);
        let lines = &mut self.lines;
        let xdp = self.takeover.attach(to, place, program, lines);
        if xdp.as_ref().is_err_and(is_invalid) {
            // `bpf_xdp_link_attach` answers the same for an interface that is gone. Reading its counters fails with
            // ENODEV then.
            self.counters.counters(link.ifindex)?;
        }
        let mut xdp = match xdp {
            Ok(xdp) => xdp,
            Err(error) if settings.xdp_mode == XdpMode::Auto && is_taken(&error) => {
                let in_words = "another XDP program is there (`ip link` shows it); what it drops, sends \
                                back or redirects is not counted";
                return self.tc_instead(link, hook, (InsteadOfXdp::Taken, in_words));
            }
            Err(error) if settings.xdp_mode == XdpMode::Auto => {
                let in_words = format!("the driver takes no native XDP program ({error})");
                let why = (InsteadOfXdp::NoNativeMode, in_words.as_str());
                return self.tc_instead(link, hook, why);
            }
            Err(error) => return Err(explain(error, link, settings.xdp_mode)),
        };
        if mode == Mode::XdpGeneric
            && let Some(interfaces) = self.lines.due(Line::OurGenericXdp)
        {
            warn_of_our_generic_xdp(link, interfaces);
        }
        if tags_unknown && let Some(interfaces) = self.lines.due(Line::HiddenTags) {
            warn_of_hidden_tags(&link.name, interfaces, "--xdp-without-tags");
        }
        if let Some(program) = tagged {
            xdp.keep(program);
        }
        self.hold(link, xdp);
        hook.mode = mode;
        hook.tag_place = tag_place;
        hook.tags_unknown = tags_unknown;
        Ok(())
    }

    fn tc_instead(
        &mut self,
        link: &Link,
        hook: &mut Hook,
        (why, in_words): (InsteadOfXdp, &str),
    ) -> Result<()> {
        if let Some(interfaces) = self.lines.due(Line::InsteadOfXdp) {
            tracing::warn!(
                interface = link.name,
                interfaces,
                "counting at TC and not at XDP: {in_words}"
            );
        }
        self.tc(link, Direction::Ingress, hook)?;
        hook.instead_of_xdp = Some(why);
        Ok(())
    }
}

/// EBUSY if a program is there in the mode asked for, EEXIST if one is there in the other mode
/// (`dev_xdp_attach`, 6.1).
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

fn explain(error: io::Error, link: &Link, wanted: XdpMode) -> anyhow::Error {
    let why = if is_taken(&error) {
        "another XDP program is there: detach it (`ip link` shows it), or choose --xdp-mode auto or \
         --ingress-hook tc"
    } else if wanted == XdpMode::Native {
        "the driver does not take it in native mode: choose --xdp-mode auto or --ingress-hook tc"
    } else {
        "the kernel refuses it: choose --ingress-hook tc"
    };
    anyhow!(error)
        .context(why)
        .context(format!("attach XDP to {}", link.name))
}

/// GRO comes before generic XDP, and an XDP program cannot read `gso_size`. The kernel copies an skb that has too
/// little headroom. The copy's `mac_len` is zero, so TC pushes no Ethernet header back before it runs its programs
/// (`tc_run`; seen on 6.18).
fn warn_of_our_generic_xdp(link: &Link, interfaces: u64) {
    tracing::warn!(
        interface = link.name,
        interfaces,
        "generic XDP counts a super-frame (GSO, GRO) as one frame, so all that it counts is marked \
         inexact; and TC programs behind it may see packets without their Ethernet header: \
         --ingress-hook tc is exact and changes nothing"
    );
}

/// Logs that the flows of an XDP hook may lack their VLAN tags from now on. The line stands for `interfaces`
/// interfaces.
pub fn warn_of_hidden_tags(interface: &str, interfaces: u64, why: impl Display) {
    tracing::warn!(
        interface,
        interfaces,
        "XDP may miss VLAN tags ({why}): flows of different VLANs may be counted as one, four bytes \
         short a frame and tag; the account counts such packets as tags_unknown"
    );
}
