//! Checks whether a link's driver has native XDP, by generic netlink's family `netdev` (kernel 6.3).

use anyhow::{Context as _, Result};

use super::Check;
use crate::kernel::{
    attach::{AttachSettings, IngressHook, XdpMode, instead_of_xdp},
    links::{
        AttachedXdp, Link,
        generic::{GenericSocket, attribute},
        netlink::{field, push_attribute},
        tags,
    },
    loaded,
};

// linux/netdev.h.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;

/// What libxdp calls the program that it puts on an interface, to run those of several owners in turn.
const DISPATCHER: &str = "xdp_dispatcher";

/// Asks for the features of links.
pub(super) struct Features {
    /// An error if the kernel does not know the family.
    netdev: Result<GenericSocket>,
    tags: tags::Features,
}

impl Features {
    pub(super) fn open() -> Self {
        Self {
            netdev: GenericSocket::open("netdev"),
            tags: tags::Features::open(),
        }
    }

    fn of(netdev: &mut GenericSocket, ifindex: u32) -> Result<u64> {
        let mut request = Vec::new();
        push_attribute(&mut request, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
        let answer = netdev
            .get(NETDEV_CMD_DEV_GET, &request)
            .context("ask for the XDP features of a link")?;
        let features = attribute(&answer, NETDEV_A_DEV_XDP_FEATURES)?;
        Ok(u64::from_ne_bytes(field(features, 0)?))
    }
}

/// What the driver of a link does with a native XDP program.
enum Driver {
    Takes,
    /// It has no native mode.
    Refuses,
    /// Why it is not known.
    Unknown(String),
}

/// Only asks the driver: attaching in native mode may reset a NIC, and changes a veth peer's offloads.
fn driver(features: &mut Features, link: &Link) -> Driver {
    let features = match &mut features.netdev {
        Ok(netdev) => Features::of(netdev, link.ifindex),
        Err(_) => return Driver::Unknown("the kernel says it from 6.3".to_owned()),
    };
    match features {
        Ok(features) if features & NETDEV_XDP_ACT_BASIC != 0 => Driver::Takes,
        Ok(_) => Driver::Refuses,
        Err(error) => Driver::Unknown(error.root_cause().to_string()),
    }
}

/// By which program the XDP hook is taken.
fn taken(link: &Link) -> Option<String> {
    const LOST: &str = "what it drops, sends back or redirects is not counted";
    if link.xdp == AttachedXdp::None {
        return None;
    }
    let Some(id) = link.xdp_program_id else {
        return Some(format!("several XDP programs are attached already; {LOST}"));
    };
    let name = match loaded::name(id) {
        Ok(name) if name == DISPATCHER => format!(
            "the program '{name}' (id {id}), libxdp's dispatcher, which the agent does not join"
        ),
        Ok(name) => format!("the program '{name}' (id {id})"),
        Err(error) => format!("the program with id {id} (its name: {error:#})"),
    };
    Some(format!("by {name}; {LOST}"))
}

/// How `--ingress-hook xdp` would attach to `link`.
pub(super) fn mode(features: &mut Features, link: &Link) -> Check {
    let name = format!("xdp {}", link.name);
    let remedy = "stay with --ingress-hook tc, the default";
    if let Some(whose) = taken(link) {
        return Check::warn(name, format!("taken: {whose}"), remedy);
    }
    if let Some((_, why)) = instead_of_xdp(&mut features.tags, link, XdpMode::Auto, false) {
        return Check::warn(name, format!("tc: {why}"), remedy);
    }
    match driver(features, link) {
        Driver::Takes => Check::ok(name, "native"),
        Driver::Refuses => Check::warn(name, "tc: the driver has no native XDP", remedy),
        Driver::Unknown(why) => Check::ok(
            name,
            format!("unknown: --xdp-mode auto tries native, then counts at TC ({why})"),
        ),
    }
}

/// The hook at which arriving packets are counted with these settings, and why it is not the one they ask for.
pub(super) fn ingress_hook(
    features: &mut Features,
    link: &Link,
    settings: AttachSettings,
) -> (&'static str, Option<String>) {
    if settings.ingress_hook == IngressHook::Tc {
        return ("tc", None);
    }
    let (mode, without_tags) = (settings.xdp_mode, settings.xdp_without_tags);
    if let Some((_, why)) = instead_of_xdp(&mut features.tags, link, mode, without_tags) {
        return ("tc", Some(why));
    }
    // Modes that are asked for by name end the start where there is no such hook.
    let without = |why: String| match mode {
        XdpMode::Auto => ("tc", Some(why)),
        XdpMode::Native | XdpMode::Generic => ("none", Some(format!("the start fails: {why}"))),
    };
    if let Some(whose) = taken(link) {
        return without(format!("XDP is taken {whose}"));
    }
    if mode == XdpMode::Generic {
        return ("xdp_generic", None);
    }
    match driver(features, link) {
        Driver::Takes => ("xdp_native", None),
        Driver::Refuses => without("the driver has no native XDP".to_owned()),
        Driver::Unknown(why) => ("xdp_native", Some(format!("or TC: {why}"))),
    }
}
