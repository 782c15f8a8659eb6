//! Attaches the programs to interfaces. [`attacher`] does the work, and [`programs`] loads what it attaches.
//! Dropping [`Attachments`] detaches everything.
//!
//! TCX and XDP attachments are BPF links, which the kernel removes with the process, however it ends. Filters
//! on clsact stay after a SIGKILL; the next start removes them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use agent_common::{Direction, LinkType, direction::slot_of_hook};
use anyhow::{Context as _, Result, ensure};
use tokio::sync::oneshot;

use super::{
    bpf::{LinkPlace, create_link},
    links::{
        Link, LinkSocket,
        tags::{Features, TagPlace},
    },
    load::Kernel,
};

mod attacher;
mod clsact;
mod departures;
mod held;
mod instance;
mod programs;
mod progress;
mod release;
mod tc_netlink;
mod xdp;

use attacher::Attacher;
use clsact::Clsact;
use held::HeldLinks;
use programs::Programs;
pub use programs::load_all;
pub use progress::AttachedHook;
use progress::Progress;
pub use xdp::{InsteadOfXdp, instead_of_native_xdp, warn_of_hidden_tags};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IngressHook {
    Tc,
    Xdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum XdpMode {
    /// Native if the driver supports it, otherwise TC.
    Auto,
    Native,
    /// Run by the kernel before TC. A super-frame counts as one frame, and programs that run later may see
    /// packets without their Ethernet header.
    Generic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Directions {
    Both,
    Ingress,
    Egress,
}

impl Directions {
    /// How many hooks an interface has.
    pub fn count(self) -> usize {
        match self {
            Self::Both => 2,
            Self::Ingress | Self::Egress => 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TcAttach {
    /// TCX links if the kernel has them (6.6), otherwise clsact.
    Auto,
    Tcx,
    Clsact,
}

#[derive(Clone, Copy, Debug)]
pub struct AttachSettings {
    pub ingress_hook: IngressHook,
    pub xdp_mode: XdpMode,
    /// Attach to XDP even if it may miss VLAN tags.
    pub xdp_without_tags: bool,
    pub directions: Directions,
    pub tc_attach: TcAttach,
}

/// How a hook is attached.
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
    /// Also the index of its account: [`hook_number`](agent_common::direction::hook_number).
    pub number: u32,
    pub direction: Direction,
    pub mode: Mode,
    pub instead_of_xdp: Option<InsteadOfXdp>,
    /// Only an XDP program has one.
    pub tag_place: Option<TagPlace>,
    /// The program may have missed VLAN tags.
    pub tags_unknown: bool,
}

impl Hook {
    /// The name in logs.
    pub fn name(&self) -> &'static str {
        match (self.direction, self.mode) {
            (Direction::Egress, _) => "tc_egress",
            (Direction::Ingress, Mode::XdpNative | Mode::XdpGeneric) => "xdp",
            (Direction::Ingress, Mode::Tcx | Mode::Clsact) => "tc_ingress",
        }
    }

    /// The slot of its interface.
    pub fn slot(&self) -> usize {
        slot_of_hook(self.number) as usize
    }
}

/// The hooks that are attached and being attached. Dropping it stops attaching, and detaches or has the
/// kernel detach: see [`release`].
pub struct Attachments {
    links: HeldLinks,
    progress: Progress,
    stop: Arc<AtomicBool>,
    attaching: Option<JoinHandle<Option<Clsact>>>,
}

impl Attachments {
    /// Begins to attach the hooks of every interface. The receiver hears when all of them are attached, or
    /// which one failed; hooks that are attached by then stay until the end. The hooks of an interface end
    /// when it leaves the network namespace.
    pub fn start(
        kernel: &mut Kernel,
        links: Vec<Link>,
        settings: AttachSettings,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let has_hooks = |link: &Link| {
            settings.directions != Directions::Egress || attacher::has_egress(link, settings)
        };
        ensure!(
            links.iter().any(has_hooks),
            "nothing to attach: on lo only ingress is seen; choose --direction both or ingress"
        );
        let (held, progress) = (HeldLinks::default(), Progress::default());
        let stop = Arc::new(AtomicBool::new(false));
        let mut attacher = Attacher {
            programs: Programs::load(&mut kernel.ebpf, &links, settings)?,
            settings,
            links: held.clone(),
            progress: progress.clone(),
            stop: Arc::clone(&stop),
            counters: LinkSocket::open()?,
            features: Features::open(),
            clsact: None,
        };
        let ifindexes = links.iter().map(|link| link.ifindex).collect();
        departures::watch(held.clone(), kernel.interfaces.clone(), ifindexes)?;
        let (sender, outcome) = oneshot::channel();
        let thread = thread::Builder::new().name("attach".to_owned());
        let attaching = thread.spawn(move || {
            let outcome = attacher.run(&links);
            // The receiver is gone if the agent was told to stop meanwhile.
            let _ = sender.send(outcome);
            attacher.clsact
        });
        let attachments = Self {
            links: held,
            progress,
            stop,
            attaching: Some(attaching.context("start a thread")?),
        };
        Ok((attachments, outcome))
    }

    /// The interfaces that have left.
    pub fn gone(&self) -> BTreeSet<u32> {
        self.links.left()
    }

    /// What happened to hooks since the last call, in order.
    pub fn progress(&self) -> Vec<AttachedHook> {
        self.progress.take()
    }
}

impl Attachments {
    /// Stops attaching, and detaches what is quick to detach: filters, and links if there are few.
    pub fn detach_few(&mut self) {
        self.stop.store(true, Relaxed);
        // The filters on clsact are removed when what the thread returns is dropped.
        match self.attaching.take().map(JoinHandle::join) {
            Some(Ok(clsact)) => drop(clsact),
            Some(Err(_)) => tracing::error!("the thread that attaches failed: filters may stay"),
            None => {}
        }
        if self.links.len() <= release::FEW {
            drop(self.links.take());
        }
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        self.detach_few();
        release::release(self.links.take());
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
