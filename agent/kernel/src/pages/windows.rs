//! The windows of a page, mapped into this process, so that a scan reads and empties them without a system call. It empties them only when what it read is safe.

use std::{io, os::fd::BorrowedFd, ptr::NonNull};

use agent_common::{
    FlowCounters, FlowKey, Senders,
    slots::{self, EMPTY, SLOTS, Slot, Walk, Window},
};

use super::senders::SendersOfPage;
use crate::mapped_array::mapped;

pub(super) struct MappedWindows {
    start: NonNull<Window>,
    windows: u32,
}

// SAFETY: the memory belongs to this value alone in this process.
unsafe impl Send for MappedWindows {}

impl MappedWindows {
    /// Maps a page's array.
    pub(super) fn new(map: BorrowedFd<'_>, windows: u32) -> io::Result<Self> {
        let start = mapped(map, len_bytes(windows))?.cast();
        Ok(Self { start, windows })
    }

    pub(super) fn windows(&self) -> u32 {
        self.windows
    }

    /// Puts a flow into the first empty slot of a walk, while no program runs. Returns the slot, if there was one.
    pub(super) fn put(
        &mut self,
        walk: Walk,
        key: &FlowKey,
        counters: &FlowCounters,
    ) -> Option<usize> {
        assert!(walk.window < self.windows, "{walk:?} of {}", self.windows);
        // SAFETY: the window lies in the array, as was just checked.
        let mut window = unsafe { self.start.add(walk.window as usize) };
        // SAFETY: no program uses the page, and any bytes are a window.
        let window = unsafe { window.as_mut() };
        let start = walk.start as usize;
        let mut numbers = (start..SLOTS as usize).chain(0..start);
        let number = numbers.find(|&number| window.slots[number].counters.state == EMPTY)?;
        let slot = &mut window.slots[number];
        slot.key = *key;
        slot.counters = FlowCounters {
            state: walk.tag,
            ..*counters
        };
        let word = self.word(walk.window / u64::BITS);
        // SAFETY: as above.
        unsafe { *word.as_ptr() |= 1 << (walk.window % u64::BITS) };
        Some(number)
    }

    /// Passes on the flows of each non-empty window, in the order of the windows, and leaves them there. Each flow comes
    /// with its senders if they are kept. No program may use the page meanwhile.
    pub(super) fn read(
        &self,
        senders: Option<&SendersOfPage>,
        mut each: impl FnMut(&[Slot], &[Senders]),
    ) {
        let mut flows = [Slot::default(); SLOTS as usize];
        let mut of_flows = [Senders::default(); SLOTS as usize];
        for word in 0..self.windows.div_ceil(u64::BITS) {
            // SAFETY: no program uses the page, and any bytes are a number.
            let mut bits = unsafe { self.word(word).read() };
            while bits != 0 {
                let window = word * u64::BITS + bits.trailing_zeros();
                bits &= bits - 1;
                let count = self.read_window(window, &mut flows, |flow, at, slot| {
                    if let Some(senders) = senders {
                        of_flows[at] = if flow.counters.bits.was_asked() {
                            senders.of(window, slot)
                        } else {
                            Senders::default()
                        };
                    }
                });
                let known = if senders.is_some() { count } else { 0 };
                each(&flows[..count], &of_flows[..known]);
            }
        }
    }

    /// Empties each window that is not. No program may use the page meanwhile.
    pub(super) fn clear(&mut self, mut senders: Option<&mut SendersOfPage>) {
        for word in 0..self.windows.div_ceil(u64::BITS) {
            // SAFETY: no program uses the page, and any bytes are a number.
            let mut bits = unsafe { self.word(word).replace(0) };
            while bits != 0 {
                let window = word * u64::BITS + bits.trailing_zeros();
                bits &= bits - 1;
                self.clear_window(window, |slot| {
                    if let Some(senders) = &mut senders {
                        senders.clear(window, slot);
                    }
                });
            }
        }
    }

    /// The place of a word of the bitmaps, which follow the windows.
    fn word(&self, word: u32) -> NonNull<u64> {
        assert!(word < self.windows.div_ceil(u64::BITS));
        // SAFETY: the array has `slots::elements(windows)` elements: the windows, then the bitmaps.
        let bitmaps = unsafe { self.start.add(self.windows as usize) };
        // SAFETY: the bitmaps have a bit for each window, and the word was just checked to be among them.
        unsafe { bitmaps.cast::<u64>().add(word as usize) }
    }

    /// Copies the flows of a window. Returns how many there are. Calls `each` with a flow, its index among the copied
    /// flows, and its slot.
    #[inline]
    fn read_window(
        &self,
        window: u32,
        flows: &mut [Slot; SLOTS as usize],
        mut each: impl FnMut(&Slot, usize, usize),
    ) -> usize {
        let mut count = 0;
        for number in 0..SLOTS as usize {
            // SAFETY: no program uses the page, and any bytes are a slot.
            let flow = unsafe { self.slot(window, number).read() };
            if flow.counters.state != EMPTY {
                each(&flow, count, number);
                flows[count] = flow;
                count += 1;
            }
        }
        count
    }

    /// Empties a window. Calls `each` with each slot whose flow has senders.
    #[inline]
    fn clear_window(&mut self, window: u32, mut each: impl FnMut(usize)) {
        for number in 0..SLOTS as usize {
            let slot = self.slot(window, number);
            // SAFETY: no program uses the page, and any bytes are a slot.
            let counters = unsafe { &slot.as_ref().counters };
            if counters.state != EMPTY {
                if counters.bits.was_asked() {
                    each(number);
                }
                // SAFETY: as above.
                unsafe { slot.write_bytes(0, 1) };
            }
        }
    }

    #[inline]
    fn slot(&self, window: u32, number: usize) -> NonNull<Slot> {
        assert!(window < self.windows, "{window} of {}", self.windows);
        assert!(number < SLOTS as usize, "{number}");
        // SAFETY: the window lies in the array, as was just checked.
        let window = unsafe { self.start.add(window as usize) }.cast::<Slot>();
        // SAFETY: a window has `SLOTS` slots, and the number was just checked.
        unsafe { window.add(number) }
    }
}

impl Drop for MappedWindows {
    fn drop(&mut self) {
        // SAFETY: this unmaps exactly the memory mapped at creation, and nobody has a reference into it any more.
        let refused = unsafe { libc::munmap(self.start.as_ptr().cast(), len_bytes(self.windows)) };
        debug_assert_eq!(refused, 0, "what was mapped can be unmapped");
    }
}

fn len_bytes(windows: u32) -> usize {
    slots::elements(windows) as usize * size_of::<Window>()
}
