//! Access to one window of the page on behalf of a packet.

use agent_common::{
    FlowCounters, FlowKey,
    flow::FlowBits,
    slots::{EMPTY, SLOTS, Slot, Slots, TAKEN, Window},
};

use super::{Counted, Sought, tick};
use crate::{atomic, bounds::masked, clock, pause};

pub struct Visit<'a> {
    first: *mut Slot,
    sought: &'a Sought<'a>,
    size: Counted,
}

impl<'a> Visit<'a> {
    /// `window` comes from a look-up in this program run.
    #[inline(always)]
    pub fn new(window: *mut Window, sought: &'a Sought<'a>, size: Counted) -> Self {
        Self {
            first: window.cast(),
            sought,
            size,
        }
    }

    #[inline(always)]
    fn slot(&self, slot: u32) -> *mut Slot {
        // SAFETY: the mask keeps the slot in the window, and elements of an array stay where they are.
        unsafe { self.first.add(masked::<{ SLOTS as u64 - 1 }>(slot.into())) }
    }

    #[inline(always)]
    pub fn counters(&self, slot: u32) -> *mut FlowCounters {
        // SAFETY: the slot lies in the window.
        unsafe { &raw mut (*self.slot(slot)).counters }
    }
}

// SAFETY: `take` is a compare-exchange.
unsafe impl Slots for Visit<'_> {
    #[inline(always)]
    fn state(&self, slot: u32) -> u32 {
        // SAFETY: the slot lies in the window; volatile, since other CPUs change the state.
        unsafe { (&raw const (*self.slot(slot)).counters.state).read_volatile() }
    }

    /// If a processor sees the state before the key, words of the key read as zeros. The program then skips the slot as
    /// if it belonged to another flow.
    #[inline(always)]
    fn has_key(&self, slot: u32) -> bool {
        let slot = self.slot(slot);
        // SAFETY: the key lies in the window, and does not change once it is published. Read in words, since a copy of
        // the key would not fit on the stack.
        let key = unsafe {
            (&raw const (*slot).key)
                .cast::<[u64; FlowKey::WORDS]>()
                .read()
        };
        let mut differences = 0;
        for (theirs, ours) in key.iter().zip(self.sought.packet.key.words()) {
            differences |= theirs ^ ours;
        }
        differences == 0
    }

    #[inline(always)]
    fn take(&self, slot: u32) -> bool {
        pause::before_it_takes();
        let word = |state| FlowCounters::word(FlowBits::default(), state);
        // SAFETY: the slot lies in the window, and the word is the counters' first.
        unsafe { atomic::swap_if(self.counters(slot).cast(), word(EMPTY), word(TAKEN)) }
    }

    #[inline(always)]
    unsafe fn fill(&self, slot: u32) {
        let slot = self.slot(slot);
        let direction = usize::from(self.sought.packet.direction & 1);
        // SAFETY: the caller's promise, and the fields lie in the slot.
        unsafe {
            let words = (&raw mut (*slot).key).cast::<u64>();
            for (index, &word) in self.sought.packet.key.words().iter().enumerate() {
                words.add(index).write(word);
            }
            let counters = &raw mut (*slot).counters;
            // The other fields of an empty slot are zero.
            (*counters).packets[direction] = self.size.packets;
            (*counters).bytes[direction] = self.size.bytes;
            (*counters).ip_bytes[direction] = self.size.ip_bytes;
            (*counters).first_seen_ns = clock::boot_ns();
            (*counters).last_seen_jiffies = tick();
            (*counters).classes = self.sought.first_class();
        }
    }

    /// Also stores the flow's first bits, which share a word with the tag.
    #[inline(always)]
    unsafe fn publish(&self, slot: u32, tag: u32) {
        pause::before_it_is_published();
        let word = FlowCounters::word(self.sought.first_bits(), tag);
        // SAFETY: the slot lies in the window, and the word is the counters' first.
        unsafe { atomic::swap(self.counters(slot).cast(), word) };
    }

    #[inline(always)]
    fn after(step: u64) -> u64 {
        #[cfg(target_arch = "bpf")]
        {
            let mut step = step;
            // SAFETY: it adds one, hidden from the compiler.
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
