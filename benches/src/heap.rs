//! A global allocator that counts what each thread allocates.
//!
//! Counts are the calling thread's own, so that tests in parallel count exactly. What is freed by
//! another thread than the one that allocated it is counted as live there; nothing here does that.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The binary that measures installs it as `#[global_allocator]`.
pub struct CountingAllocator;

/// What a thread has allocated so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// A reallocation is one too.
    pub allocations: u64,
    pub live_bytes: i64,
    /// The most that was live at once.
    pub peak_bytes: i64,
}

thread_local! {
    // Constant and without a destructor: an access never allocates and never fails.
    static HEAP: Cell<Heap> = const {
        Cell::new(Heap { allocations: 0, live_bytes: 0, peak_bytes: 0 })
    };
}

/// The calling thread's counts; zero where the allocator is not installed.
pub fn heap() -> Heap {
    HEAP.get()
}

/// Lets the peak start anew from what is live.
pub fn reset_peak() {
    let mut heap = HEAP.get();
    heap.peak_bytes = heap.live_bytes;
    HEAP.set(heap);
}

fn count(allocations: u64, grown_bytes: i64) {
    let mut heap = HEAP.get();
    heap.allocations += allocations;
    heap.live_bytes += grown_bytes;
    heap.peak_bytes = heap.peak_bytes.max(heap.live_bytes);
    HEAP.set(heap);
}

fn len_bytes(layout: Layout) -> i64 {
    layout.size().cast_signed() as i64
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments; what is
// counted beside it does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, len_bytes(layout));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, len_bytes(layout));
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -len_bytes(layout));
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_len_bytes: usize) -> *mut u8 {
        count(1, new_len_bytes.cast_signed() as i64 - len_bytes(layout));
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(pointer, layout, new_len_bytes) }
    }
}
