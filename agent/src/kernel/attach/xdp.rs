//! Attaches to a link's XDP hook if XDP counts right there. Otherwise attaches to TC, and says why.

use std::{fmt::Display, io};

use agent_common::Direction;
use anyhow::{Result, anyhow};

use super::{
    Attacher, Hook, LinkPlace, Mode, XdpMode, create_link, held::HeldLink, lines::Line, link_type,
    programs::xdp_name,
};
use crate::kernel::links::{
    Link,
    tags::{Features, TagPlace},
};

/// Why arriving packets are counted at TC although XDP was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsteadOfXdp {
    /// The driver does not take the program.
    NoNativeMode,
    /// XDP may miss the frames' VLAN tags.
    HiddenTags,
    /// The kernel would put the program on lower devices (`bond_xdp_set`, `netvsc_vf_setxdp`), and packets
    /// would come with other indexes than the link's.
    LowerDevices,
    /// Somebody else's XDP program is there, and an interface takes one.
    Taken,
    /// The driver runs the program on super-frames, and each of them is one frame to it (`tun_get_user`).
    SuperFrames,
}

/// Why XDP would count wrong on a link, with the reason in words, unless `without_tags` says to bear with hidden
/// tags. Generic XDP miscounts on every link, and the account says so.
pub fn instead_of_xdp(
    features: &mut Features,
    link: &Link,
    mode: XdpMode,
    without_tags: bool,
) -> Option<(InsteadOfXdp, String)> {
    let miscounted = miscounted(link).filter(|_| mode != XdpMode::Generic);
    if miscounted.is_some() || without_tags {
        return miscounted;
    }
    hidden_tags(features, link)
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

/// A packet that is written to a tap with a GSO type bypasses the driver's own XDP and goes to the kernel's.
fn super_frames(link: &Link) -> Option<(InsteadOfXdp, String)> {
    (link.kind == "tun").then(|| {
        let why = "a super-frame (GSO) that a virtual machine sends is one frame to XDP here";
        (InsteadOfXdp::SuperFrames, why.to_owned())
    })
}

fn hidden_tags(features: &mut Features, link: &Link) -> Option<(InsteadOfXdp, String)> {
    let why = features.hiding_tags(TagPlace::of(link))?;
    let why =
        format!("XDP may miss VLAN tags: {why}; --xdp-without-tags counts at XDP all the same");
    Some((InsteadOfXdp::HiddenTags, why))
}

impl Attacher {
    /// Attaches to XDP, or to TC if XDP would not count right. The log and the hook say which it is.
    pub(super) fn xdp_or_tc(&mut self, link: &Link, hook: &mut Hook) -> Result<()> {
        let settings = self.settings;
        let (mode, without_tags) = (settings.xdp_mode, settings.xdp_without_tags);
        if let Some((why, in_words)) = instead_of_xdp(&mut self.features, link, mode, without_tags)
        {
            return self.tc_instead(link, hook, (why, &in_words));
        }
        let tags_unknown = without_tags && hidden_tags(&mut self.features, link).is_some();
        let name = xdp_name(link_type(link)?);
        let (place, mode) = match settings.xdp_mode {
            XdpMode::Auto | XdpMode::Native => (LinkPlace::XdpNative, Mode::XdpNative),
            XdpMode::Generic => (LinkPlace::XdpGeneric, Mode::XdpGeneric),
        };
        let xdp = create_link(self.programs.get(name)?, link.ifindex, place);
        if xdp.as_ref().is_err_and(is_invalid) {
            // `bpf_xdp_link_attach` answers so for an interface that is gone, too. This says ENODEV then.
            self.counters.counters(link.ifindex)?;
        }
        let xdp = match xdp {
            Ok(fd) => HeldLink { fd, place },
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
        self.hold(link, xdp);
        hook.mode = mode;
        hook.tag_place = Some(TagPlace::of(link));
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

/// GRO comes before generic XDP, and an XDP program cannot read `gso_size`. An skb with too little headroom
/// is copied. The copy's `mac_len` is zero, so TC pushes no Ethernet header back before it runs its programs
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

/// Logs that an XDP hook's flows may lack their VLAN tags from then on. The line stands for this many interfaces.
pub fn warn_of_hidden_tags(interface: &str, interfaces: u64, why: impl Display) {
    tracing::warn!(
        interface,
        interfaces,
        "XDP may miss VLAN tags ({why}): flows of different VLANs may be counted as one, four bytes \
         short a frame and tag; the account counts such packets as tags_unknown"
    );
}
