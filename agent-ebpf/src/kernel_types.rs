//! Reads structures of the kernel's that the verifier knows as such.

use core::ffi::c_void;

/// A part of a layout, which userspace completes before the programs are loaded.
#[inline(always)]
pub fn fixed(part: *const u32) -> u32 {
    // SAFETY: a static lives as long as the program. Volatile, since its value here is not the one that the compiler sees.
    unsafe { part.read_volatile() }
}

/// What a structure has at an offset, which is [`fixed`].
#[inline(always)]
pub unsafe fn at<T>(structure: *mut c_void, offset_bytes: *const u32) -> T {
    // SAFETY: the verifier makes sure that the field is there.
    unsafe {
        structure
            .byte_add(fixed(offset_bytes) as usize)
            .cast::<T>()
            .read_volatile()
    }
}
