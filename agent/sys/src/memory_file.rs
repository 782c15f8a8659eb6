//! A file in memory (`memfd_create(2)`) that this process writes through a mapping. It outlives the process if another one
//! keeps its descriptor.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create},
    io::retry_on_intr,
    mm::{MapFlags, MremapFlags, ProtFlags, mmap, mremap, munmap},
};

pub struct MemoryFile {
    file: File,
    start: NonNull<u8>,
    mapped_bytes: usize,
    len_bytes: usize,
}

// SAFETY: nobody else in this process has the memory.
unsafe impl Send for MemoryFile {}

impl MemoryFile {
    /// What is mapped first. All sizes are multiples of it.
    const STEP_BYTES: usize = 1 << 16;

    /// Makes an empty file. `name` is what `/proc/<pid>/fd` shows.
    pub fn create(name: &str) -> io::Result<Self> {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            let none = ptr::null_mut();
            mmap(none, Self::STEP_BYTES, protection, flags, &file, 0)
        };
        Ok(Self {
            file,
            start: non_null(start?)?,
            mapped_bytes: Self::STEP_BYTES,
            len_bytes: 0,
        })
    }

    /// The first bytes of the file, to write. The file is as long as [`len_for`] says.
    pub fn first(&mut self, bytes: usize) -> io::Result<&mut [u8]> {
        let len_bytes = len_for(bytes, self.len_bytes).next_multiple_of(Self::STEP_BYTES);
        if len_bytes > self.len_bytes {
            // A store to memory that the system does not have would kill the process.
            let more = (len_bytes - self.len_bytes) as u64;
            retry_on_intr(|| {
                let none = FallocateFlags::empty();
                fallocate(&self.file, none, self.len_bytes as u64, more)
            })?;
        } else if len_bytes < self.len_bytes {
            self.file.set_len(len_bytes as u64)?;
        }
        self.len_bytes = len_bytes;
        if self.len_bytes > self.mapped_bytes {
            self.map_more()?;
        }
        // SAFETY: the memory is mapped, the file is that long, any bytes are valid, and the borrow of `self` is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), bytes) })
    }

    fn map_more(&mut self) -> io::Result<()> {
        let wanted = self.len_bytes.next_power_of_two();
        let (start, mapped) = (self.start.as_ptr().cast(), self.mapped_bytes);
        // SAFETY: this moves exactly what is mapped, and `self` is borrowed exclusively, so nobody has a reference into it.
        let moved = unsafe { mremap(start, mapped, wanted, MremapFlags::MAYMOVE) }?;
        self.start = non_null(moved)?;
        self.mapped_bytes = wanted;
        Ok(())
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // SAFETY: exactly this is mapped, and nobody has a reference into it any more.
        let refused = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(refused.is_ok(), "what was mapped can be unmapped");
    }
}

/// How long a file in memory should be that has `len_bytes` and needs `bytes`. If it needs far less, it gets shorter, but
/// slowly: what goes back to the kernel may be needed again soon, and costs as much to get as to write.
pub fn len_for(bytes: usize, len_bytes: usize) -> usize {
    if bytes < len_bytes / 2 {
        bytes.max(len_bytes - len_bytes / 64)
    } else {
        bytes.max(len_bytes)
    }
}

fn non_null<T>(address: *mut T) -> io::Result<NonNull<u8>> {
    NonNull::new(address.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn len(file: &MemoryFile) -> u64 {
        file.file.metadata().unwrap().len()
    }

    #[test]
    fn what_is_written_is_in_the_file_however_it_grows() {
        let mut written = MemoryFile::create("test").unwrap();
        for len in [1, 100, 70_000, 5 << 20, 3] {
            let bytes = written.first(len).unwrap();
            assert_eq!(bytes.len(), len);
            bytes.fill(len as u8);
            let mut found = vec![0; len];
            written.file.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, vec![len as u8; len]);
        }
        // The first bytes stay as they are while more are mapped.
        written.first(3).unwrap().copy_from_slice(b"abc");
        assert_eq!(written.first(20 << 20).unwrap()[..3], *b"abc");
    }

    #[test]
    fn memory_goes_back_slowly_where_less_is_needed() {
        let mut file = MemoryFile::create("test").unwrap();
        file.first(32 << 20).unwrap();
        let most = len(&file);
        assert_eq!(most, 32 << 20);
        // A little less changes nothing.
        file.first(31 << 20).unwrap();
        assert_eq!(len(&file), most);
        file.first(0).unwrap();
        assert!((most / 2..most).contains(&len(&file)));
        for _ in 0..1000 {
            file.first(0).unwrap();
        }
        assert!(len(&file) <= 4 << 20, "{}", len(&file));
    }
}
