//! The slots of a page of the flow table, and the protocol by which programs on several CPUs share them.
//!
//! A page is an array of windows of [`SLOTS`] slots. The hash of a key chooses two windows, and in each the slot at which
//! a search begins. It goes round the window until it meets its flow or a slot that is empty; if it meets neither, it
//! goes on in the second window, and then in the page's small hash map.
//!
//! A slot is empty, then taken by one program, then published with a tag, which is a part of the hash. It never goes
//! back while a program may use the page. So a flow is never behind an empty slot, and every packet does exactly one of
//! two things: it adds to a published slot of its key, or it fills a slot that it alone took. Nobody waits: who meets a
//! slot that is taken and not published goes on to the next one. So a flow may stand in two slots, and a reader adds
//! them up.

use crate::{FlowCounters, FlowKey};

/// Slots of a window.
pub const SLOTS: u32 = 8;

/// Windows in which a flow may be.
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

/// An element of a page's array. Behind the windows, elements are bitmaps that have a bit for each window with a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub slots: [Slot; SLOTS as usize],
}

/// Windows that one element of bitmaps stands for.
pub const WINDOWS_A_BITMAP: u32 = size_of::<Window>() as u32 * 8;

/// The state of memory that is zero.
pub const EMPTY: u32 = 0;
/// A program has the slot for itself.
pub const TAKEN: u32 = u32::MAX;

/// How many elements a page's array has.
pub const fn elements(windows: u32) -> u32 {
    windows + windows.div_ceil(WINDOWS_A_BITMAP)
}

/// 64 bits of a key that nobody can tell without the factors.
///
/// Multilinear-HM (Lemire and Kaser, Strongly universal string hashing is fast, 2014) over 32-bit words with random
/// 64-bit factors. Two keys that were chosen without knowing the factors collide in the upper half with probability
/// 2⁻³². A mixer follows, since the lower bits of the sum are weak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u64);

impl Hash {
    /// Two for each word of a key, and the start of the sum.
    pub const FACTORS: usize = 2 * FlowKey::WORDS + 1;

    /// Of a key.
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

    /// For the second window.
    #[inline(always)]
    #[must_use]
    pub const fn again(self) -> Self {
        Self(mix(self.0))
    }

    /// Where a search begins in a page of so many windows.
    ///
    /// Windows come in the order of their flows' hashes, however many there are.
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

/// The slots of a window, as a program with one packet sees them. Others may change their states at any time.
///
/// # Safety
///
/// [`take`](Self::take) returns true to one program alone for each slot that was empty.
pub unsafe trait Slots {
    fn state(&self, slot: u32) -> u32;

    /// Whether a published slot has the packet's key.
    fn has_key(&self, slot: u32) -> bool;

    /// Takes an empty slot. Returns whether it was still empty.
    fn take(&self, slot: u32) -> bool;

    /// Writes the packet's key and what it counts into a slot, all but the state.
    ///
    /// # Safety
    ///
    /// The caller took the slot, and has not published it.
    unsafe fn fill(&self, slot: u32);

    /// Gives a filled slot to all, after everything that was stored before.
    ///
    /// # Safety
    ///
    /// As for [`fill`](Self::fill).
    unsafe fn publish(&self, slot: u32, tag: u32);

    /// The step after this one. The programs' own keeps the compiler from repeating the body of a loop for each step.
    #[inline(always)]
    fn after(step: u64) -> u64 {
        step + 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A slot with the tag of the flow. Whether it has its key remains to be seen; if not, only [`begin`] knows more.
    Tag(u32),
    /// There is no such flow, in this window and beyond.
    Nothing,
    /// All slots are other flows'.
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
    /// The flow was there, and the packet has still to be added to its slot.
    Has(u32),
    /// It begins in this slot, with the packet.
    New(u32),
    /// All slots are other flows'.
    Full,
}

/// Begins a flow with the packet, unless it is there.
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
