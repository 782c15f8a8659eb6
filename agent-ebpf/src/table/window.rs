//! A window of the page, as a program reaches it.

use agent_common::{
    FlowCounters, Packet,
    flow::FlowBits,
    slots::{EMPTY, SLOTS, Slot, States, TAKEN, Window},
};

use super::{Counted, Words};
use crate::{atomic, bounds::masked, clock, pause};

pub struct Slots<'a> {
    first: *mut Slot,
    words: &'a Words,
}

impl<'a> Slots<'a> {
    /// `window` comes from a look-up in this program run.
    #[inline(always)]
    pub fn new(window: *mut Window, words: &'a Words) -> Self {
        Self {
            first: window.cast(),
            words,
        }
    }

    #[inline(always)]
    fn slot(&self, slot: u32) -> *mut Slot {
        // SAFETY: a window has so many slots, and elements of an array stay where they are.
        unsafe { self.first.add(masked::<{ SLOTS as u64 - 1 }>(slot.into())) }
    }

    #[inline(always)]
    pub fn counters(&self, slot: u32) -> *mut FlowCounters {
        // SAFETY: the slot lies in the window.
        unsafe { &raw mut (*self.slot(slot)).counters }
    }

    /// Writes all of a slot but its bits and its state.
    ///
    /// # Safety
    ///
    /// The program took the slot.
    #[inline(always)]
    pub unsafe fn fill(&self, slot: u32, packet: &Packet, size: Counted) {
        let slot = self.slot(slot);
        let direction = usize::from(packet.direction & 1);
        // SAFETY: the caller's promise, and the fields lie in the slot.
        unsafe {
            let words = (&raw mut (*slot).key).cast::<u64>();
            for (index, &word) in self.words.iter().enumerate() {
                words.add(index).write(word);
            }
            let counters = &raw mut (*slot).counters;
            // What is left out is zero in an empty slot.
            (*counters).packets[direction] = size.packets;
            (*counters).bytes[direction] = size.bytes;
            (*counters).ip_bytes[direction] = size.ip_bytes;
            (*counters).first_seen_ns = clock::boot_ns();
            (*counters).last_seen_jiffies = clock::jiffies();
        }
    }

    /// Gives a filled slot to all, after everything that was stored before.
    #[inline(always)]
    pub fn publish(&self, slot: u32, bits: FlowBits, tag: u32) {
        // SAFETY: the slot lies in the window, and the word is the counters' first.
        unsafe { atomic::swap(self.counters(slot).cast(), FlowCounters::word(bits, tag)) };
    }
}

impl States for Slots<'_> {
    #[inline(always)]
    fn state(&self, slot: u32) -> u32 {
        // SAFETY: the slot lies in the window; volatile, since other CPUs change the state.
        unsafe { (&raw const (*self.slot(slot)).counters.state).read_volatile() }
    }

    /// Where a processor shows the state before the key, words of the key read as zeros: the program goes on to another
    /// slot, as if this one were another flow's.
    #[inline(always)]
    fn has_key(&self, slot: u32) -> bool {
        let slot = self.slot(slot);
        // SAFETY: the key lies in the window, and does not change once it is published.
        let key = unsafe { (&raw const (*slot).key).cast::<Words>().read() };
        let mut difference = 0;
        for (theirs, ours) in key.iter().zip(self.words) {
            difference |= theirs ^ ours;
        }
        difference == 0
    }

    #[inline(always)]
    fn take(&self, slot: u32) -> bool {
        pause::before_it_takes();
        let word = |state| FlowCounters::word(FlowBits::default(), state);
        // SAFETY: the slot lies in the window, and the word is the counters' first.
        unsafe { atomic::swap_if(self.counters(slot).cast(), word(EMPTY), word(TAKEN)) }
    }

    #[inline(always)]
    fn after(step: u64) -> u64 {
        #[cfg(target_arch = "bpf")]
        {
            let mut step = step;
            // SAFETY: it adds one, behind the compiler's back.
            unsafe {
                core::arch::asm!("{0} += 1", inlateout(reg) step, options(pure, nomem, nostack))
            };
            step
        }
        #[cfg(not(target_arch = "bpf"))]
        {
            step + 1
        }
    }
}
