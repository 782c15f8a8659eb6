//! Hangs the programs on interfaces: interfaces and hook settings come in, [`Attachments`] go out,
//! whose end detaches everything. [`attacher`] does the work, [`programs`] loads what it hangs there.
//!
//! TCX and XDP attachments are BPF links: the kernel removes them with the process, whatever ends
//! it. Filters on clsact stay after a SIGKILL; the next start removes them.

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
    /// Native where the driver can, else TC.
    Auto,
    Native,
    /// By the kernel ahead of TC: a super-frame counts as one frame, and programs behind it may see
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
    /// The hooks of an interface.
    pub fn count(self) -> usize {
        match self {
            Self::Both => 2,
            Self::Ingress | Self::Egress => 1,
        }
    }
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
    pub directions: Directions,
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
    /// Also the index of its account: [`hook_number`](agent_common::direction::hook_number).
    pub number: u32,
    pub direction: Direction,
    pub mode: Mode,
    pub instead_of_xdp: Option<InsteadOfXdp>,
    /// Of an XDP program.
    pub tag_place: Option<TagPlace>,
    /// The program may have missed VLAN tags.
    pub tags_unknown: bool,
}

impl Hook {
    /// In logs.
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

/// What is attached by and by; dropping it ends that and detaches, or has the kernel detach: see
/// [`release`].
pub struct Attachments {
    links: HeldLinks,
    progress: Progress,
    stop: Arc<AtomicBool>,
    attaching: Option<JoinHandle<Option<Clsact>>>,
}

impl Attachments {
    /// Begins to attach the hooks of every interface. The receiver hears when all of them are there, or
    /// which one failed; what is there by then stays until the end. Where an interface leaves, its hooks
    /// end.
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
            // Nobody waits for it where the end was asked for meanwhile.
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

    /// What became of hooks since this was asked the last time, in order.
    pub fn progress(&self) -> Vec<AttachedHook> {
        self.progress.take()
    }
}

impl Attachments {
    /// Attaches no more, and detaches what takes no time to speak of: filters, and links where they are
    /// few.
    pub fn detach_few(&mut self) {
        self.stop.store(true, Relaxed);
        // Filters on clsact go with what the thread leaves behind.
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
