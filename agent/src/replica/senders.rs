//! Who sent the flows' packets, as the scans have seen it.

use agent_common::Senders;

/// What is known of the flow in each slot. Nothing is kept as long as no scan brings any.
#[derive(Default)]
pub struct KnownSenders {
    by_slot: Vec<Senders>,
    /// Those that came with the entry that is being taken in.
    coming: Senders,
}

impl KnownSenders {
    /// The next flow that `begin` or `note` is called for has these.
    pub fn come(&mut self, senders: Senders) {
        self.coming = senders;
    }

    /// Takes back those of the last `come`, if no flow has taken them.
    pub fn take_coming(&mut self) -> Senders {
        std::mem::take(&mut self.coming)
    }

    /// A flow begins in this slot.
    pub fn begin(&mut self, slot: u32, senders: Senders) {
        if senders == Senders::default() && self.by_slot.len() <= slot as usize {
            return;
        }
        *self.at(slot) = senders;
    }

    /// More of the flow in this slot has come.
    pub fn note(&mut self, slot: u32) {
        let coming = self.take_coming();
        if coming == Senders::default() {
            return;
        }
        let known = self.at(slot);
        for (known, coming) in known.cgroup_ids.iter_mut().zip(coming.cgroup_ids) {
            if coming != 0 && (coming != Senders::ROOT || *known == 0) {
                *known = coming;
            }
        }
        for (known, coming) in known.process_keys.iter_mut().zip(coming.process_keys) {
            if coming != 0 {
                *known = coming;
            }
        }
    }

    pub fn of(&self, slot: u32) -> Senders {
        self.by_slot.get(slot as usize).copied().unwrap_or_default()
    }

    /// No slot from this one on has a flow.
    pub fn shrink(&mut self, slots: u32) {
        if self.by_slot.len() > slots as usize {
            self.by_slot.truncate(slots as usize);
            self.by_slot.shrink_to_fit();
        }
    }

    /// For how many slots.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.by_slot.len()
    }

    fn at(&mut self, slot: u32) -> &mut Senders {
        let slot = slot as usize;
        if slot >= self.by_slot.len() {
            self.by_slot.resize_with(slot + 1, Senders::default);
        }
        &mut self.by_slot[slot]
    }
}
