//! Attaches the programs to interfaces: the ones present at the start and the ones that appear later. Each network
//! namespace has its own watch ([`namespace`]). Within it, [`watcher`] decides when and where to attach, [`attacher`]
//! attaches, [`programs`] loads the programs, and [`changes`] follows interfaces that appear and leave. Dropping
//! [`Attachments`] detaches everything.
//!
//! TCX and XDP attachments are BPF links, which the kernel removes with the process, however it ends, unless the service
//! manager has a copy ([`link_store`]): then the next start takes them over ([`takeover`]). Filters on clsact stay
//! until the next start, which replaces them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::RecvTimeoutError,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use agent_common::{Direction, InterfaceId, LinkType, direction::slot_of_hook};
use anyhow::{Context as _, Error, Result, ensure};
use tokio::sync::{mpsc, oneshot};

use super::{
    bpf::LinkPlace,
    carry::{InheritedLinks, Keep},
    links::{Link, tags::TagPlace},
    load::{Kernel, ProgramSet},
};
use crate::{interfaces::Selection, netns::Namespace};

mod alarm;
mod attacher;
mod changes;
mod closer;
mod clsact;
mod held;
mod instance;
mod lines;
mod link_store;
mod namespace;
mod noted;
mod pending;
mod programs;
mod release;
mod slots;
mod stacks;
mod takeover;
mod tc_netlink;
#[cfg(test)]
mod tests;
mod watcher;
mod watching;
mod xdp;

use attacher::Attacher;
use clsact::Clsact;
pub use clsact::StaleFilters;
use namespace::{Attached, Common, Watch};
use noted::Changes;
pub use pending::{Absent, NotCounted, Uncounted};
pub use programs::load_all;
use slots::Place;
pub use slots::{AttachedHook, Left, Slots, Why};
use takeover::Carried;
pub use takeover::TakenOver;
pub use watcher::NameInterface;
pub use xdp::{AtXdp, InsteadOfXdp, at_xdp, cannot_be_asked, warn_of_hidden_tags};

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
    /// The kernel takes a grace period for each.
    Tcx,
    /// Takes no such time, the better choice for thousands of interfaces. Stays when the agent is killed, until the
    /// next start.
    Clsact,
}

/// Where TCX puts the programs among others.
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

impl AttachSettings {
    /// Whether an interface has a hook in this direction. On lo and on VRF devices only ingress is counted: a packet
    /// that a host sends to itself also arrives there, and would count twice.
    pub fn has_hook(self, link: &Link, direction: Direction) -> bool {
        match direction {
            Direction::Ingress => self.directions != Directions::Egress,
            Direction::Egress => {
                self.directions != Directions::Ingress && !link.is_loopback && !link.is_vrf()
            }
        }
    }

    /// Whether ingress may be counted at XDP by a program that asks the driver for VLAN tags.
    pub fn may_ask_drivers(self) -> bool {
        let is_xdp = self.ingress_hook == IngressHook::Xdp && self.directions != Directions::Egress;
        is_xdp && self.xdp_mode != XdpMode::Generic && !self.xdp_without_tags
    }

    pub fn has_hooks(self, link: &Link) -> bool {
        self.has_hook(link, Direction::Ingress) || self.has_hook(link, Direction::Egress)
    }
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
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and any of them may go with any other"
)]
pub struct Hook {
    pub interface: String,
    pub id: InterfaceId,
    /// The interface's frames have no Ethernet header.
    pub is_bare_ip: bool,
    /// All packets of its interface arrive there, so the interface has no egress hook.
    pub is_loopback: bool,
    /// See [`Link::is_vrf`].
    pub is_vrf: bool,
    /// Also the index of its account: [`hook_number`](agent_common::direction::hook_number).
    pub number: u32,
    pub direction: Direction,
    pub mode: Mode,
    pub instead_of_xdp: Option<InsteadOfXdp>,
    /// Set only for XDP programs that do not ask the driver for tags.
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

    /// Whether its program sees a super-frame as one frame.
    pub fn is_inexact(&self) -> bool {
        self.mode == Mode::XdpGeneric
    }

    /// The slot of its interface.
    pub fn slot(&self) -> usize {
        slot_of_hook(self.number) as usize
    }
}

/// The hooks that are attached or being attached. Dropping it stops attaching. It then detaches the hooks or leaves
/// that to the kernel; see [`release`]. [`leave`](Self::leave) leaves them to a successor instead.
pub struct Attachments {
    slots: Slots,
    stop: Arc<AtomicBool>,
    carried: Carried,
    /// By network namespace.
    watches: Vec<Watch>,
    /// The thread that detaches when the agent ends.
    detaching: Option<JoinHandle<()>>,
}

/// What to attach to.
pub struct Interfaces {
    /// The network namespaces with the interfaces present at the start, which are already in the kernel's tables.
    pub selected: Vec<(Namespace, Vec<Link>)>,
    pub slots: Slots,
    /// Chooses among interfaces that appear later.
    pub selection: Selection,
    pub name_interface: NameInterface,
}

/// What predecessors have left attached, and where to store what this process attaches. The default is nothing, and
/// nowhere.
#[derive(Clone, Default)]
pub struct Carry {
    pub inherited: InheritedLinks,
    /// Whether a predecessor has left what its programs count into.
    pub has_maps: bool,
    pub keep: Keep,
}

/// Reports from the threads that attach and follow interfaces.
pub struct Reports {
    /// Resolves when all of the first hooks are attached, or with an error when one fails. Hooks attached by then stay
    /// until the end.
    pub attached: oneshot::Receiver<Result<()>>,
    /// Why the agent can no longer follow interfaces that appear and leave; the agent then has to end.
    pub failed: mpsc::Receiver<Error>,
}

impl Attachments {
    /// Starts attaching the hooks of every selected interface, then those of interfaces that appear later. The hooks of
    /// an interface end when it leaves its network namespace. Takes inherited links over. Those that nobody has taken
    /// over when all first hooks are attached are detached; if the start fails, they stay.
    pub fn start(
        kernel: &mut Kernel,
        interfaces: Interfaces,
        carry: Carry,
        settings: AttachSettings,
    ) -> Result<(Self, Reports)> {
        let Interfaces {
            selected,
            slots,
            selection,
            name_interface,
        } = interfaces;
        let sets = std::mem::take(&mut kernel.sets);
        ensure!(sets.len() == selected.len(), "the programs are taken");
        let stop = Arc::new(AtomicBool::new(false));
        let gate = Arc::new(Mutex::new(()));
        let carried = Carried::new(carry.inherited, carry.keep, carry.has_maps);
        let (attached, outcome) = Attached::in_all(sets.len());
        let (failed, failures) = mpsc::channel(1);
        let reports = Reports {
            attached: outcome,
            failed: failures,
        };
        let common = Common {
            namespaces: sets.len(),
            settings,
            slots: slots.clone(),
            selection,
            name_interface,
            stop: Arc::clone(&stop),
            carried: carried.clone(),
            gate: Arc::clone(&gate),
            attached: Arc::new(attached),
            failed,
        };
        let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let start = |((namespace, links), set): ((Namespace, Vec<Link>), ProgramSet)| {
            Watch::start(&namespace, set, links, common.clone())
        };
        let (watches, failed): (Vec<_>, Vec<_>) = selected
            .into_iter()
            .zip(sets)
            .map(start)
            .partition(Result::is_ok);
        stop.store(!failed.is_empty(), Relaxed);
        drop(closed);
        let attachments = Self {
            slots,
            stop,
            carried,
            watches: watches.into_iter().flatten().collect(),
            detaching: None,
        };
        match failed.into_iter().find_map(Result::err) {
            Some(error) => Err(error),
            None => Ok((attachments, reports)),
        }
    }

    /// The interfaces that have left and that no scan has drained since.
    pub fn left(&self) -> Vec<Left> {
        self.slots.left()
    }

    /// Frees the slots of interfaces that had left before a scan that has finished.
    pub fn settle(&self, drained: &[Left]) {
        if !drained.is_empty() {
            self.slots.settle(drained);
            self.tell_all(Changes::drained);
        }
    }

    /// Detaches from interfaces that are no longer selected, and attaches to newly selected ones. The future resolves
    /// when that is done; it never resolves if the agent ends first.
    pub fn select(&self, selection: &Selection) -> impl Future<Output = ()> + Send + use<> {
        let watches = self.watches.iter();
        let selecting = watches.map(|watch| watch.changes().select(selection.clone()));
        let selecting: Vec<_> = selecting.collect();
        async move {
            for one in selecting {
                one.await;
            }
        }
    }

    fn tell_all(&self, tell: impl Fn(&Changes)) {
        for watch in &self.watches {
            tell(watch.changes());
        }
    }

    /// The interfaces that are selected and not counted.
    pub fn not_counted(&self) -> NotCounted {
        let all = self.watches.iter().map(Watch::not_counted);
        all.fold(NotCounted::default(), NotCounted::and)
    }

    /// The selected names that no interface has.
    pub fn absent(&self) -> Absent {
        // All watches follow the same selection, so the first one's will do.
        let selection = self
            .watches
            .first()
            .map(|watch| watch.changes().selection());
        let selection = selection.unwrap_or_default();
        self.not_counted().absent(&selection, &self.slots.names())
    }

    /// What happened to hooks since the last call, in order.
    pub fn progress(&self) -> Vec<AttachedHook> {
        self.slots.progress()
    }

    /// Stops attaching, and detaches whatever detaches quickly: filters, and links if there are few. Waits at most
    /// `patience`, because detaching needs locks that other processes may hold. Returns whether it is done.
    pub fn detach_few(&mut self, patience: Duration) -> bool {
        self.stop();
        let (give, given) = std::sync::mpsc::channel::<Vec<Watch>>();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let slots = self.slots.clone();
        let detaching = move || {
            if let Ok(mut watches) = given.recv() {
                detach_few_of(&mut watches, &slots);
            }
            drop(done);
        };
        match thread::Builder::new()
            .name("end".to_owned())
            .spawn(detaching)
        {
            Ok(thread) => {
                self.detaching = Some(thread);
                // The thread keeps receiving until it has the watches, so the send cannot fail.
                let _ = give.send(std::mem::take(&mut self.watches));
                is_done.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
            }
            Err(error) => {
                tracing::warn!(%error, "no thread to detach on, so the end waits for it");
                detach_few_of(&mut self.watches, &self.slots);
                true
            }
        }
    }

    /// What was taken over from predecessors so far, and how often packets were not counted meanwhile.
    pub fn taken_over(&self) -> TakenOver {
        self.carried.taken_over()
    }

    /// Whether [`leave`](Self::leave) would leave everything: every link is stored. The kernel itself keeps filters.
    pub fn can_leave(&self) -> bool {
        self.carried.store.is_there() && self.detaching.is_none() && self.slots.are_all_stored()
    }

    /// Stops attaching and following, and leaves every link and filter attached for a successor, who finds the links in
    /// the store, and the filters by their names. The programs go on counting. If that [cannot be](Self::can_leave),
    /// detaches everything and returns `false`.
    pub fn leave(mut self) -> bool {
        self.stop();
        let filters = end_all(&mut self.watches);
        // Hooks that were attached until now count as well.
        if !self.can_leave() {
            return false;
        }
        filters.into_iter().for_each(Clsact::leave);
        for link in self.slots.take_links() {
            link.leave();
        }
        true
    }

    fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.tell_all(Changes::stop);
    }
}

fn detach_few_of(watches: &mut [Watch], slots: &Slots) {
    drop(end_all(watches));
    if slots.links() <= release::FEW {
        drop(slots.take_links());
    }
}

/// Waits until these watches attach and detach nothing more. Returns their filters, which are removed when they are
/// dropped.
fn end_all(watches: &mut [Watch]) -> Vec<Clsact> {
    watches.iter_mut().filter_map(Watch::join).collect()
}

impl Drop for Attachments {
    fn drop(&mut self) {
        self.stop();
        drop(end_all(&mut self.watches));
        if let Some(Err(_)) = self.detaching.take().map(JoinHandle::join) {
            tracing::error!("the thread that detaches failed: filters may stay");
        }
        release::release(self.slots.take_links());
    }
}

/// Leaves out interfaces without a hook in these directions. Fails if none is left in any network namespace and none
/// can appear later.
pub fn with_hooks(
    mut selected: Vec<(Namespace, Vec<Link>)>,
    selection: &Selection,
    settings: AttachSettings,
) -> Result<Vec<(Namespace, Vec<Link>)>> {
    let are_empty =
        |selected: &[(Namespace, Vec<Link>)]| selected.iter().all(|(_, links)| links.is_empty());
    let were_empty = are_empty(&selected);
    for (_, links) in &mut selected {
        links.retain(|link| settings.has_hooks(link));
    }
    ensure!(
        were_empty || !are_empty(&selected) || selection.has_patterns(),
        "nothing to attach: on lo only ingress is seen; choose --direction both or ingress"
    );
    Ok(selected)
}

/// Gives slots to the interfaces present at the start, in their order.
pub fn first_slots(max_interfaces: u32, selected: &[(Namespace, Vec<Link>)]) -> Result<Slots> {
    let count: usize = selected.iter().map(|(_, links)| links.len()).sum();
    ensure!(
        count <= max_interfaces as usize,
        "{count} interfaces are selected, and --max-interfaces is {max_interfaces}: raise it, or choose fewer"
    );
    let slots = Slots::new(max_interfaces, 0);
    let mut next = 0..;
    for (namespace, links) in selected {
        let slots = slots.in_netns(namespace.number());
        for (link, slot) in links.iter().zip(&mut next) {
            let place = slots.take(link.ifindex, link.names());
            ensure!(place == Place::Slot(slot), "{} is listed twice", link.name);
        }
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
