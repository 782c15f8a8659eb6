//! A global allocator that counts what each thread allocates.
//!
//! Each thread has its own counts, so tests that run in parallel still count exactly. If another thread frees a block,
//! the thread that allocated it still counts it as live; no code here does that.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The measuring binary installs it as `#[global_allocator]`.
pub struct CountingAllocator;

/// A thread's allocations so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// Including reallocations.
    pub allocations: u64,
    pub live_bytes: i64,
    /// The maximum of `live_bytes` so far.
    pub peak_bytes: i64,
}

thread_local! {
    // A constant without a destructor: access never allocates and never fails.
    static HEAP: Cell<Heap> = const {
        Cell::new(Heap { allocations: 0, live_bytes: 0, peak_bytes: 0 })
    };
}

/// The calling thread's counts, or zero if the allocator is not installed.
pub fn heap() -> Heap {
    HEAP.get()
}

/// Sets the peak to the bytes that are live at the moment.
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

// SAFETY: every call goes to the system allocator with the caller's own arguments, and the counting does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, len_bytes(layout));
        // SAFETY: the caller guarantees the contract of `GlobalAlloc::alloc`, which is also the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, len_bytes(layout));
        // SAFETY: see `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -len_bytes(layout));
        // SAFETY: see `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_len_bytes: usize) -> *mut u8 {
        count(1, new_len_bytes.cast_signed() as i64 - len_bytes(layout));
        // SAFETY: see `alloc`.
        unsafe { System.realloc(pointer, layout, new_len_bytes) }
    }
}
