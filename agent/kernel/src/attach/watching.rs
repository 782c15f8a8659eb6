//! Begins to watch an interface that came, and gives up one that is not to be watched any more.

use std::io;

use anyhow::{Context as _, Result, bail};

use super::{closer::Detach, pending::Pending, slots::Place, watcher::Watcher};
use crate::{limits, links::Link};

impl Watcher {
    /// Attaches the hooks of an interface that came, or says why not.
    pub(super) fn watch(&mut self, link: &Link) -> Result<Option<Pending>> {
        super::link_type(link)?;
        let settings = self.attacher.settings;
        let hooks = self.slots.links() + settings.directions.count();
        limits::ensure_open_files(hooks, self.namespaces, settings.may_ask_drivers())?;
        let slot = match self.slots.take(link.ifindex, link.names()) {
            Place::Slot(slot) => slot,
            Place::Draining | Place::NoneYet => return Ok(Some(Pending::Drain)),
            Place::NoneFree => {
                if let Some(interfaces) = self.log.full.event() {
                    tracing::warn!(
                        interface = link.name,
                        interfaces,
                        "not counted, since --max-interfaces are watched already: raise it, or choose fewer \
                         with --interface or --exclude-interface"
                    );
                }
                return Ok(Some(Pending::NoSlot));
            }
        };
        (self.name_interface)(slot, &link.names())?;
        if !self.table.enter(link.ifindex, slot) {
            bail!("its index has no place in the programs' table beside the others, which is rare");
        }
        if self.slots.slot_of(link.ifindex) != Some(slot) {
            // It left before the table had it, so nobody has removed it from there. Packets of another interface
            // with its index would count as its own.
            self.table.forget(link.ifindex);
            let gone = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(gone).context("the interface has left meanwhile");
        }
        self.attacher.interface(link, slot)?;
        Ok(None)
    }

    /// Detaches from an interface and gives its slot back. While a program runs there, the table must have the
    /// interface.
    pub(super) fn give_up(&mut self, ifindex: u32) {
        drop(self.slots.take_links_of(ifindex));
        if let Some(clsact) = &mut self.attacher.clsact {
            clsact.detach(ifindex);
        }
        self.table.forget(ifindex);
        // A link that came meanwhile is closed here.
        drop(self.slots.give_up(ifindex));
    }

    /// The same on the thread that closes. Until its turn comes, the interface is counted.
    pub(super) fn give_up_soon(&mut self, ifindex: u32) -> Result<()> {
        if !self.slots.deselect(ifindex) {
            return Ok(());
        }
        if let Some(clsact) = &mut self.attacher.clsact {
            clsact.detach(ifindex);
        }
        self.deselected.insert(ifindex);
        self.closer.detach(Detach::Deselected(ifindex))
    }

    pub(super) fn forget(&mut self, ifindex: u32) {
        self.pending.remove(&ifindex);
        self.routed.remove(&ifindex);
        if let Some(clsact) = &mut self.attacher.clsact {
            clsact.forget(ifindex);
        }
    }

    /// Gives up an interface whose programs are not on it: somebody has removed them, or it left without being heard of
    /// and another one has come with its index.
    pub(super) fn leave_if_replaced(&mut self, link: &Link) -> Result<()> {
        if self.slots.slot_of(link.ifindex).is_none() || self.attacher.is_on(link)? {
            return Ok(());
        }
        // Whatever else is at the places of ours belongs to others.
        if let Some(clsact) = &mut self.attacher.clsact {
            clsact.remove_rest(link.ifindex)?;
        }
        self.give_up(link.ifindex);
        if let Some(interfaces) = self.log.removed.event() {
            tracing::warn!(
                interface = link.name,
                interfaces,
                "its programs were removed by somebody else, or another interface came under its index: attaching \
                 again; packets in between are not counted"
            );
        }
        Ok(())
    }
}
