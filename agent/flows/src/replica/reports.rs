//! Holds back the reports of living flows until the report interval is over. Counts wait here for the next report or
//! for the end of the flow.

use std::time::Duration;

use agent_common::{Counts, Pair};
use sys::clock;

/// Unreported counts by slot. Without a report interval, everything is reported at once and this is empty.
#[derive(Default)]
pub struct Reports {
    interval_ns: u64,
    /// Everything that waits is due.
    is_over: bool,
    waiting: Vec<Waiting>,
    /// The sum of all counts in `waiting`.
    sum: Pair,
    /// How many flows have any.
    flows: usize,
}

/// The counts of a flow since its last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreported {
    pub counts: [Counts; 2],
    /// When the first of these packets came. Meaningless without packets.
    pub began_boot_ns: u64,
}

impl Unreported {
    fn is_empty(&self) -> bool {
        self.counts == [Counts::default(); 2]
    }

    fn add(&mut self, more: Self) {
        if self.is_empty() {
            *self = more;
            return;
        }
        for (sum, added) in self.counts.iter_mut().zip(more.counts) {
            *sum += added;
        }
        self.began_boot_ns = self.began_boot_ns.min(more.began_boot_ns);
    }

    /// The time up to the last packet. That time has the kernel's tick resolution, so a single packet gets 0.
    pub fn duration_ns(&self, last_seen_boot_ns: u64) -> u64 {
        let [forward, reverse] = self.counts.map(|counts| counts.packets);
        match forward.saturating_add(reverse) {
            0 | 1 => 0,
            _ => last_seen_boot_ns.saturating_sub(self.began_boot_ns),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Waiting {
    unreported: Unreported,
    /// When the flow was reported last, or when it began.
    since_boot_ns: u64,
}

/// Packets and bytes of both directions.
fn pair(unreported: &Unreported) -> Pair {
    let mut sum = Pair::default();
    for counts in unreported.counts {
        sum += counts.pair();
    }
    sum
}

impl Reports {
    /// An interval of zero reports everything at once.
    pub fn every(interval: Duration) -> Self {
        let mut reports = Self::default();
        reports.set_interval(interval);
        reports
    }

    /// Returns whether the interval has changed.
    pub fn set_interval(&mut self, interval: Duration) -> bool {
        let before = std::mem::replace(&mut self.interval_ns, clock::nanos(interval));
        before != self.interval_ns
    }

    /// Sets whether everything that waits is due, however short it has waited.
    pub fn set_over(&mut self, is_over: bool) {
        self.is_over = is_over;
    }

    /// A flow begins in this slot.
    pub fn begin(&mut self, slot: u32, now_boot_ns: u64) {
        if self.is_in_use() {
            self.at(slot).since_boot_ns = now_boot_ns;
        }
    }

    /// Adds `more` to the flow's counts. Returns all of them if a report is due.
    #[inline]
    pub fn add(&mut self, slot: u32, more: Unreported, now_boot_ns: u64) -> Option<Unreported> {
        if !self.is_in_use() {
            return Some(more);
        }
        let unreported = &mut self.at(slot).unreported;
        let had_none = unreported.is_empty();
        unreported.add(more);
        let is_more = had_none && !unreported.is_empty();
        self.flows += usize::from(is_more);
        self.sum += pair(&more);
        self.due(slot, now_boot_ns)
    }

    /// Takes the waiting counts of a flow if there are any and a report is due.
    #[inline]
    pub fn due(&mut self, slot: u32, now_boot_ns: u64) -> Option<Unreported> {
        if self.due_ns(slot)? > now_boot_ns {
            return None;
        }
        let waiting = self.at(slot);
        waiting.since_boot_ns = now_boot_ns;
        let due = std::mem::take(&mut waiting.unreported);
        self.leave(&due);
        Some(due)
    }

    /// The boot time at which the flow's waiting counts are due. `None` if nothing waits.
    #[inline]
    pub fn due_ns(&self, slot: u32) -> Option<u64> {
        // Scans are not exact to the nanosecond. One that came slightly early would delay the report by a whole
        // interval.
        let tolerance_ns = self.interval_ns / 20;
        let waiting = self.waiting.get(slot as usize)?;
        (!waiting.unreported.is_empty()).then(|| {
            if self.is_over {
                return 0;
            }
            waiting
                .since_boot_ns
                .saturating_add(self.interval_ns - tolerance_ns)
        })
    }

    /// The counts of a flow that are not reported yet.
    pub fn held(&self, slot: u32) -> [Counts; 2] {
        let waiting = self.waiting.get(slot as usize);
        waiting.map_or_else(Default::default, |waiting| waiting.unreported.counts)
    }

    /// The slots of all flows with unreported counts.
    pub fn all_unreported(&self) -> impl Iterator<Item = (u32, &Unreported)> {
        let waiting = (0..).zip(&self.waiting);
        let held = waiting.map(|(slot, waiting)| (slot, &waiting.unreported));
        held.filter(|(_, unreported)| !unreported.is_empty())
    }

    /// No reported packet came later than this, since boot. `None` if nothing waits.
    pub fn told_until_ns(&self, slot: u32) -> Option<u64> {
        let Waiting {
            unreported,
            since_boot_ns,
        } = self.waiting.get(slot as usize)?;
        (!unreported.is_empty()).then(|| unreported.began_boot_ns.min(*since_boot_ns))
    }

    /// Takes the unreported counts of a flow that ends.
    pub fn take(&mut self, slot: u32) -> Unreported {
        let Some(waiting) = self.waiting.get_mut(slot as usize) else {
            return Unreported::default();
        };
        let taken = std::mem::take(&mut waiting.unreported);
        self.leave(&taken);
        taken
    }

    /// Packets and bytes of all flows that wait.
    pub fn waiting(&self) -> Pair {
        self.sum
    }

    /// How many flows wait.
    pub fn flows(&self) -> usize {
        self.flows
    }

    fn leave(&mut self, unreported: &Unreported) {
        self.flows -= usize::from(!unreported.is_empty());
        let Pair { packets, bytes } = pair(unreported);
        self.sum.packets = self.sum.packets.wrapping_sub(packets);
        self.sum.bytes = self.sum.bytes.wrapping_sub(bytes);
    }

    /// Releases the memory for slots from this one on. None of them has a flow.
    pub fn shrink(&mut self, slots: u32) {
        let waits = |waiting: &Waiting| !waiting.unreported.is_empty();
        if self.interval_ns == 0 && !self.waiting.iter().any(waits) {
            self.waiting = Vec::new();
        }
        if self.waiting.len() > slots as usize {
            self.waiting.truncate(slots as usize);
            self.waiting.shrink_to_fit();
        }
    }

    /// Stays true after the interval was set to zero, as long as something may wait.
    fn is_in_use(&self) -> bool {
        self.interval_ns != 0 || !self.waiting.is_empty()
    }

    #[inline]
    fn at(&mut self, slot: u32) -> &mut Waiting {
        let slot = slot as usize;
        if slot >= self.waiting.len() {
            self.waiting.resize_with(slot + 1, Waiting::default);
        }
        &mut self.waiting[slot]
    }
}
