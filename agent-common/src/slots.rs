//! The slots of a page of the flow table, and how programs on several CPUs share them.
//!
//! A page is an array of windows of [`SLOTS`] slots. The hash of a key selects two windows, and in each the slot where
//! the search begins. The search goes round the window until it finds its flow or an empty slot. If it finds neither,
//! it goes on in the second window, and then in the page's small hash map.
//!
//! A slot is empty, then taken by one program, then published with a tag, which is a part of the hash. It never goes
//! back while a program may use the page. So a flow is never behind an empty slot, and every packet does exactly one of
//! two things: it adds to a published slot of its key, or it fills a slot that it alone took. No program waits: it
//! skips a slot that is taken and not yet published. So a flow may be in two slots, and a reader adds them up.

use crate::{FlowCounters, FlowKey};

/// Slots of a window.
pub const SLOTS: u32 = 8;

/// How many windows a flow may be in.
pub const TRIES: u64 = 2;

/// Two cache lines: the key with what rarely changes, and what each packet adds to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub key: FlowKey,
    /// `counters.state` is the slot's state: [`EMPTY`], [`TAKEN`], or the tag of its flow.
    pub counters: FlowCounters,
}

const _: () = assert!(size_of::<Slot>() == 128);
const _: () = assert!(core::mem::offset_of!(Slot, counters.packets) == 64);

/// An element of a page's array. The elements behind the windows are bitmaps with one bit per window, set if the window
/// has a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub slots: [Slot; SLOTS as usize],
}

/// Windows that one bitmap element covers.
pub const WINDOWS_A_BITMAP: u32 = size_of::<Window>() as u32 * 8;

/// The state of zeroed memory.
pub const EMPTY: u32 = 0;
/// One program owns the slot.
pub const TAKEN: u32 = u32::MAX;

/// How many elements a page's array has.
pub const fn elements(windows: u32) -> u32 {
    windows + windows.div_ceil(WINDOWS_A_BITMAP)
}

/// A 64-bit hash of a key, which is unpredictable without the factors.
///
/// Multilinear-HM (Lemire and Kaser, Strongly universal string hashing is fast, 2014) over 32-bit words with random
/// 64-bit factors. Two keys that were chosen without knowing the factors collide in the upper half with probability
/// 2⁻³². A mixer follows, since the lower bits of the sum are weak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u64);

impl Hash {
    /// Two for each word of a key, and one for the start of the sum.
    pub const FACTORS: usize = 2 * FlowKey::WORDS + 1;

    #[inline(always)]
    pub fn of(key: &FlowKey, factor: impl Fn(usize) -> u64) -> Self {
        let mut sum = factor(2 * FlowKey::WORDS);
        let (pairs, _) = key.halves().as_chunks();
        for (index, &[one, other]) in pairs.iter().enumerate() {
            let one = factor(2 * index).wrapping_add(one.into());
            let other = factor(2 * index + 1).wrapping_add(other.into());
            sum = sum.wrapping_add(one.wrapping_mul(other));
        }
        Self(mix(sum))
    }

    /// The hash for the second window.
    #[inline(always)]
    #[must_use]
    pub const fn again(self) -> Self {
        Self(mix(self.0))
    }

    /// Where a search begins in a page of `windows` windows.
    ///
    /// A larger hash leads to a later window, for any number of windows.
    #[inline(always)]
    pub const fn walk(self, windows: u32) -> Walk {
        let (high, low) = ((self.0 >> 32), self.0 as u32);
        Walk {
            // Scales 32 bits to the number of windows, which need not be a power of two.
            window: ((high * windows as u64) >> 32) as u32,
            // The lower bits, which hardly matter for the window.
            start: high as u32 % SLOTS,
            tag: if low == EMPTY || low == TAKEN { 1 } else { low },
        }
    }
}

/// A round of `MurmurHash3`'s 64-bit finaliser.
#[inline(always)]
const fn mix(bits: u64) -> u64 {
    let mixed = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

/// A search in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    pub window: u32,
    pub start: u32,
    pub tag: u32,
}

impl Walk {
    #[inline(always)]
    const fn slot(self, step: u64) -> u32 {
        (self.start + step as u32) % SLOTS
    }
}

/// The slots of a window, as a program with one packet sees them. Other programs may change their states at any time.
///
/// # Safety
///
/// For each empty slot, [`take`](Self::take) returns true to one program only.
pub unsafe trait Slots {
    fn state(&self, slot: u32) -> u32;

    /// Whether a published slot has the packet's key.
    fn has_key(&self, slot: u32) -> bool;

    /// Takes an empty slot. Returns whether it was still empty.
    fn take(&self, slot: u32) -> bool;

    /// Writes the packet's key and counts into a slot, all but the state.
    ///
    /// # Safety
    ///
    /// The caller took the slot, and has not published it.
    unsafe fn fill(&self, slot: u32);

    /// Publishes a filled slot, after all earlier stores.
    ///
    /// # Safety
    ///
    /// As for [`fill`](Self::fill).
    unsafe fn publish(&self, slot: u32, tag: u32);

    /// The step after this one. The programs override it to keep the compiler from unrolling the loop.
    #[inline(always)]
    fn after(step: u64) -> u64 {
        step + 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A slot with the flow's tag. The caller has to compare the key; if that differs, only [`begin`] searches on.
    Tag(u32),
    /// No such flow, neither in this window nor beyond it.
    Nothing,
    /// Other flows fill all slots.
    Full,
}

/// Searches for a flow.
#[inline(always)]
pub fn find<W: Slots>(window: &W, walk: Walk) -> Found {
    let mut step = 0;
    while step < u64::from(SLOTS) {
        let slot = walk.slot(step);
        let state = window.state(slot);
        if state == walk.tag {
            return Found::Tag(slot);
        }
        if state == EMPTY {
            return Found::Nothing;
        }
        step = W::after(step);
    }
    Found::Full
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The flow exists in this slot. The caller has to add the packet to it.
    Has(u32),
    /// The flow begins in this slot; the packet is already counted.
    New(u32),
    /// Other flows fill all slots.
    Full,
}

/// Inserts a flow with the packet, unless the flow exists.
#[inline(always)]
pub fn begin<W: Slots>(window: &W, walk: Walk) -> Begun {
    let mut step = 0;
    while step < u64::from(SLOTS) {
        let slot = walk.slot(step);
        let state = window.state(slot);
        if state == walk.tag && window.has_key(slot) {
            return Begun::Has(slot);
        }
        if state == EMPTY && window.take(slot) {
            // SAFETY: it was just taken.
            unsafe { window.fill(slot) };
            // SAFETY: it was taken, and is filled.
            unsafe { window.publish(slot, walk.tag) };
            return Begun::New(slot);
        }
        step = W::after(step);
    }
    Begun::Full
}

#[cfg(test)]
mod tests;
