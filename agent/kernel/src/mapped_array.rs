//! An array map that is mapped into this process, so that an eight-byte number is written in one store. The map needs
//! the flag `BPF_F_MMAPABLE` (5.5). An update through `bpf(2)` copies the value in steps that the kernel does not
//! specify.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

pub(super) struct MappedArray {
    start: NonNull<AtomicU64>,
    numbers: usize,
}

// SAFETY: the memory belongs to this value alone in this process, and is only used by atomic operations.
unsafe impl Send for MappedArray {}
// SAFETY: the same.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps an array whose values together are `numbers` numbers.
    pub(super) fn new(map: BorrowedFd<'_>, numbers: usize) -> io::Result<Self> {
        let start = mapped(map, numbers * size_of::<u64>())?;
        Ok(Self {
            start: start.cast(),
            numbers,
        })
    }

    /// Writes a number.
    pub(super) fn store(&self, index: usize, number: u64) {
        self.place(index).store(number, Release);
    }

    /// Adds to a number, wrapping. Programs may add to it at the same time.
    pub(super) fn add(&self, index: usize, number: u64) {
        self.place(index).fetch_add(number, Relaxed);
    }

    /// Reads a number.
    pub(super) fn load(&self, index: usize) -> u64 {
        self.place(index).load(Relaxed)
    }

    fn place(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.numbers, "{index} of {}", self.numbers);
        // SAFETY: the index is within the memory, as was just checked.
        let place = unsafe { self.start.add(index) };
        // SAFETY: a page begins at a multiple of eight, any bytes are a number, and the memory is mapped until
        // the value is dropped.
        unsafe { place.as_ref() }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        let len_bytes = self.numbers * size_of::<u64>();
        // SAFETY: this unmaps exactly the memory mapped at creation, and nobody has a reference into it any more.
        let refused = unsafe { libc::munmap(self.start.as_ptr().cast(), len_bytes) };
        debug_assert_eq!(refused, 0, "what was mapped can be unmapped");
    }
}

/// Maps `len_bytes` of an array for reading and writing.
pub(super) fn mapped(map: BorrowedFd<'_>, len_bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the kernel chooses an address where nothing is mapped.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            map.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}
