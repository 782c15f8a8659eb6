//! Starts to watch an interface that appeared, and gives up one that should no longer be watched.

use std::io;

use anyhow::{Context as _, Result, bail};

use super::{closer::Detach, pending::Pending, slots::Place, watcher::Watcher};
use crate::{limits, links::Link};

impl Watcher {
    /// Attaches the hooks of an interface that appeared, or returns why not.
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
            bail!(
                "its index does not fit into the programs' table beside the others, which is rare"
            );
        }
        if self.slots.slot_of(link.ifindex) != Some(slot) {
            // It left before it was in the table, so nobody has removed it. Packets of another interface with its index
            // would count for it.
            self.table.forget(link.ifindex);
            let gone = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(gone).context("the interface has left in the meantime");
        }
        self.attacher.interface(link, slot)?;
        Ok(None)
    }

    /// Detaches from an interface and frees its slot. The interface must stay in the table while a program runs there.
    pub(super) fn give_up(&mut self, ifindex: u32) {
        drop(self.slots.take_links_of(ifindex));
        if let Some(clsact) = &mut self.attacher.clsact {
            clsact.detach(ifindex);
        }
        self.table.forget(ifindex);
        // Closes a link that was added meanwhile.
        drop(self.slots.give_up(ifindex));
    }

    /// Gives up an interface on the thread that closes links. The interface is counted until that thread gets to it.
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

    /// Gives up an interface whose programs are not on it: somebody has removed them, or the interface left unnoticed
    /// and another one has its index.
    pub(super) fn leave_if_replaced(&mut self, link: &Link) -> Result<()> {
        if self.slots.slot_of(link.ifindex).is_none() || self.attacher.is_on(link)? {
            return Ok(());
        }
        // Filters at our places that are not ours belong to others, and stay.
        if let Some(clsact) = &mut self.attacher.clsact {
            clsact.remove_rest(link.ifindex)?;
        }
        self.give_up(link.ifindex);
        if let Some(interfaces) = self.log.removed.event() {
            tracing::warn!(
                interface = link.name,
                interfaces,
                "its programs were removed by another process, or its index belongs to a new interface: attaching \
                 again; packets in between are not counted"
            );
        }
        Ok(())
    }
}
