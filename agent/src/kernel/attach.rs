//! Attaches the programs to interfaces, those that are there and those that come. [`watcher`] decides when and
//! where, [`attacher`] does it, [`programs`] loads what is attached, and [`changes`] hears of interfaces that
//! come and leave. Dropping [`Attachments`] detaches everything.
//!
//! TCX and XDP attachments are BPF links, which the kernel removes with the process, however it ends. Filters
//! on clsact stay after a SIGKILL; the next start removes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use agent_common::{Direction, LinkType, direction::slot_of_hook};
use anyhow::{Context as _, Result, ensure};
use tokio::sync::{Notify, oneshot};

use super::{
    bpf::{LinkPlace, create_link},
    links::{
        Link, LinkSocket,
        tags::{Features, TagPlace},
    },
    load::Kernel,
};
use crate::interfaces::Selection;

mod attacher;
mod changes;
mod closer;
mod clsact;
mod held;
mod instance;
mod lines;
mod noted;
mod programs;
mod release;
mod slots;
mod tc_netlink;
#[cfg(test)]
mod tests;
mod watcher;
mod watching;
mod xdp;

use attacher::Attacher;
use closer::Closer;
use clsact::Clsact;
use lines::Lines;
use noted::Changes;
use programs::Programs;
pub use programs::load_all;
use slots::Place;
pub use slots::{AttachedHook, Left, Slots};
pub use watcher::NameInterface;
use watcher::{Watcher, WatcherLog};
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

/// Where TCX puts the programs among those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TcxOrder {
    /// Next to the wire: before others on ingress, behind them on egress.
    First,
    /// Next to the host: behind others on ingress, before them on egress. What others drop, or send elsewhere,
    /// on ingress is not counted.
    Last,
}

#[derive(Clone, Copy, Debug)]
pub struct AttachSettings {
    pub ingress_hook: IngressHook,
    pub xdp_mode: XdpMode,
    /// Attach to XDP even if it may miss VLAN tags.
    pub xdp_without_tags: bool,
    pub directions: Directions,
    pub tc_attach: TcAttach,
    pub tcx_order: TcxOrder,
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
    slots: Slots,
    stop: Arc<AtomicBool>,
    changes: Changes,
    not_counted: Arc<AtomicUsize>,
    attaching: Option<JoinHandle<Option<Clsact>>>,
}

/// What to attach to.
pub struct Interfaces {
    /// Those that are there. The kernel's table has them already.
    pub selected: Vec<Link>,
    pub slots: Slots,
    /// Chooses among those that come later.
    pub selection: Selection,
    pub name_interface: NameInterface,
    /// Notified when a scan should drain interfaces that have left.
    pub scan_wanted: Arc<Notify>,
}

impl Attachments {
    /// Begins to attach the hooks of every interface. The receiver hears when all of them are attached, or
    /// which one failed; hooks that are attached by then stay until the end. From then on interfaces that come
    /// are attached to as well. The hooks of an interface end when it leaves the network namespace.
    pub fn start(
        kernel: &mut Kernel,
        interfaces: Interfaces,
        settings: AttachSettings,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let Interfaces {
            selected,
            slots,
            selection,
            name_interface,
            scan_wanted,
        } = interfaces;
        let stop = Arc::new(AtomicBool::new(false));
        let not_counted = Arc::new(AtomicUsize::new(0));
        let changes = Changes::new(selection.clone());
        let closer = Closer::start(slots.clone(), kernel.interfaces.clone(), changes.clone())?;
        let programs = kernel.programs.take().context("the programs are taken")?;
        let mut watcher = Watcher {
            attacher: Attacher {
                programs: Programs::load(programs, &selected, &selection, settings)?,
                settings,
                slots: slots.clone(),
                counters: LinkSocket::open()?,
                features: Features::open(),
                clsact: None,
                lines: Lines::default(),
            },
            slots: slots.clone(),
            table: kernel.interfaces.clone(),
            links: LinkSocket::open()?,
            name_interface,
            stop: Arc::clone(&stop),
            scan_wanted,
            not_counted: Arc::clone(&not_counted),
            log: WatcherLog::default(),
            pending: BTreeMap::new(),
            routed: BTreeSet::new(),
            changes: changes.clone(),
            closer: closer.clone(),
            selection,
        };
        changes::follow(
            slots.clone(),
            kernel.interfaces.clone(),
            changes.clone(),
            closer,
        )?;
        let (sender, outcome) = oneshot::channel();
        let thread = thread::Builder::new().name("attach".to_owned());
        let attaching = thread.spawn(move || {
            let outcome = watcher.start(&selected);
            let is_attached = outcome.is_ok();
            // The receiver is gone if the agent was told to stop meanwhile.
            let _ = sender.send(outcome);
            if is_attached {
                watcher.follow();
            }
            watcher.attacher.clsact
        });
        let attachments = Self {
            slots,
            stop,
            changes,
            not_counted,
            attaching: Some(attaching.context("start a thread")?),
        };
        Ok((attachments, outcome))
    }

    /// The interfaces that have left, and that no scan has drained since.
    pub fn left(&self) -> Vec<Left> {
        self.slots.left()
    }

    /// Frees the slots of interfaces that left before a scan which is over.
    pub fn settle(&self, drained: &[Left]) {
        if !drained.is_empty() {
            self.slots.settle(drained);
            self.changes.drained();
        }
    }

    /// Detaches from interfaces that are not selected any more, and attaches to those that are.
    pub fn select(&self, selection: Selection) {
        self.changes.select(selection);
    }

    /// How many interfaces are selected and not counted.
    pub fn not_counted(&self) -> usize {
        self.not_counted.load(Relaxed)
    }

    /// What happened to hooks since the last call, in order.
    pub fn progress(&self) -> Vec<AttachedHook> {
        self.slots.progress()
    }

    /// Stops attaching, and detaches what is quick to detach: filters, and links if there are few.
    pub fn detach_few(&mut self) {
        self.stop.store(true, Relaxed);
        self.changes.stop();
        // The filters on clsact are removed when what the thread returns is dropped.
        match self.attaching.take().map(JoinHandle::join) {
            Some(Ok(clsact)) => drop(clsact),
            Some(Err(_)) => tracing::error!("the thread that attaches failed: filters may stay"),
            None => {}
        }
        if self.slots.links() <= release::FEW {
            drop(self.slots.take_links());
        }
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        self.detach_few();
        release::release(self.slots.take_links());
    }
}

/// Leaves out interfaces without a hook in these directions. Fails if none is left, and none can come.
pub fn with_hooks(
    mut selected: Vec<Link>,
    selection: &Selection,
    settings: AttachSettings,
) -> Result<Vec<Link>> {
    let is_empty = selected.is_empty();
    selected.retain(|link| attacher::has_hooks(link, settings));
    ensure!(
        is_empty || !selected.is_empty() || selection.has_patterns(),
        "nothing to attach: on lo only ingress is seen; choose --direction both or ingress"
    );
    Ok(selected)
}

/// Gives slots to the interfaces that are there at the start, in their order.
pub fn first_slots(max_interfaces: u32, selected: &[Link]) -> Result<Slots> {
    ensure!(
        selected.len() <= max_interfaces as usize,
        "{} interfaces are selected, and --max-interfaces is {max_interfaces}: raise it, or choose fewer",
        selected.len()
    );
    let slots = Slots::new(max_interfaces);
    for (slot, link) in (0..).zip(selected) {
        let place = slots.take(link.ifindex, &link.name);
        ensure!(place == Place::Slot(slot), "{} is listed twice", link.name);
    }
    Ok(slots)
}

fn link_type(link: &Link) -> Result<LinkType> {
    link.link_type().with_context(|| {
        format!(
            "{}: hardware type {} carries neither Ethernet nor bare IP",
            link.name, link.hardware_type
        )
    })
}
