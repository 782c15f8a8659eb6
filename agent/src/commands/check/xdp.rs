//! Checks how XDP would count on a link.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow};
use kernel::{
    attach::{AtXdp, AttachSettings, IngressHook, XdpMode, at_xdp, cannot_be_asked},
    bound::TaggedPrograms,
    links::{AttachedXdp, Link, driver::Drivers, tags::Features},
    loaded,
};

use super::{Check, programs};

/// Queries links in the calling thread's network namespace.
#[derive(Default)]
pub(super) struct Asker {
    features: Option<Features>,
    drivers: Drivers,
    /// Links that would get a program of their own.
    asked: BTreeSet<u32>,
    /// Whether the kernel accepts such a program; the same for all links.
    taken: Option<Result<(), String>>,
}

impl Asker {
    /// How XDP would count on a link, provided that the kernel accepts the program.
    fn at_xdp(&mut self, link: &Link, mode: XdpMode, without_tags: bool) -> AtXdp {
        let features = self.features.get_or_insert_with(Features::open);
        at_xdp((features, &mut self.drivers), link, mode, without_tags)
    }

    /// Why the driver of a link cannot be asked for VLAN tags. For the first link, loads the program that asks, as a
    /// start would, without attaching it.
    fn refusal(&mut self, link: &Link, hidden: &str) -> Option<String> {
        if !self.asked.contains(&link.ifindex) && self.asked.len() >= TaggedPrograms::MOST {
            let error = TaggedPrograms::too_many(TaggedPrograms::MOST);
            return Some(cannot_be_asked(hidden, &error).1);
        }
        self.asked.insert(link.ifindex);
        let load = || load(link.ifindex).map_err(|error| format!("{error:#}"));
        let refusal = self.taken.get_or_insert_with(load).as_ref().err()?;
        Some(cannot_be_asked(hidden, &anyhow!("{refusal}")).1)
    }
}

fn load(ifindex: u32) -> Result<()> {
    let mut kernel = programs::kernel_that_asks()?;
    let set = kernel.sets.first_mut();
    let tagged = set.and_then(|set| set.tagged.as_mut());
    let tagged = tagged.context("the programs were loaded without it")?;
    tagged.load(ifindex).map(drop)
}

/// libxdp's name for the program that it puts on an interface to run those of several owners in turn.
const DISPATCHER: &str = "xdp_dispatcher";

/// How the driver of a link reacts to a native XDP program.
enum Driver {
    Takes,
    /// It has no native mode.
    Refuses,
    /// Why that is unknown.
    Unknown(String),
}

/// Only queries the driver: attaching in native mode may reset a NIC, and changes a veth peer's offloads.
fn driver(asker: &mut Asker, link: &Link) -> Driver {
    match asker.drivers.of(link.ifindex) {
        Ok(driver) if driver.has_native_xdp => Driver::Takes,
        Ok(_) => Driver::Refuses,
        Err(error) => Driver::Unknown(error.root_cause().to_string()),
    }
}

/// Describes the program that occupies the XDP hook.
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
pub(super) fn mode(asker: &mut Asker, link: &Link) -> Check {
    let name = format!("xdp {}", link.name);
    let remedy = "stay with --ingress-hook tc, the default";
    if let Some(whose) = taken(link) {
        return Check::warn(name, format!("taken: {whose}"), remedy);
    }
    let tags = match asker.at_xdp(link, XdpMode::Auto, false) {
        AtXdp::Counts => "",
        AtXdp::AsksDriver(hidden) => {
            if let Some(why) = asker.refusal(link, &hidden) {
                return Check::warn(name, format!("tc: {why}"), remedy);
            }
            ", with the VLAN tags that the driver tells"
        }
        AtXdp::Miscounts(_, why) => {
            return Check::warn(name, format!("tc: {why}"), remedy);
        }
    };
    match driver(asker, link) {
        Driver::Takes => Check::ok(name, format!("native{tags}")),
        Driver::Refuses => Check::warn(name, "tc: the driver has no native XDP", remedy),
        Driver::Unknown(why) => Check::ok(
            name,
            format!("unknown: --xdp-mode auto tries native, then counts at TC ({why})"),
        ),
    }
}

/// The hook that would count arriving packets with these settings, and the reason if it is not the requested one.
pub(super) fn ingress_hook(
    asker: &mut Asker,
    link: &Link,
    settings: AttachSettings,
) -> (&'static str, Option<String>) {
    if settings.ingress_hook == IngressHook::Tc {
        return ("tc", None);
    }
    let (mode, without_tags) = (settings.xdp_mode, settings.xdp_without_tags);
    let at_xdp = asker.at_xdp(link, mode, without_tags);
    if let AtXdp::Miscounts(_, why) = at_xdp {
        return ("tc", Some(why));
    }
    // A mode requested by name fails the start if the hook is not available.
    let without = |why: String| match mode {
        XdpMode::Auto => ("tc", Some(why)),
        XdpMode::Native | XdpMode::Generic => ("none", Some(format!("the start fails: {why}"))),
    };
    if let Some(whose) = taken(link) {
        return without(format!("XDP is taken {whose}"));
    }
    if let AtXdp::AsksDriver(hidden) = at_xdp
        && let Some(why) = asker.refusal(link, &hidden)
    {
        return ("tc", Some(why));
    }
    if mode == XdpMode::Generic {
        return ("xdp_generic", None);
    }
    match driver(asker, link) {
        Driver::Takes => ("xdp_native", None),
        Driver::Refuses => without("the driver has no native XDP".to_owned()),
        Driver::Unknown(why) => ("xdp_native", Some(format!("or TC: {why}"))),
    }
}
