//! Reads structures of the kernel's that the verifier knows as such.

use core::ffi::c_void;

/// A part of a layout, which userspace completes before the programs are loaded.
#[inline(always)]
pub fn fixed(part: &'static u32) -> u32 {
    // SAFETY: a static lives as long as the program. Volatile, since its value here is not the one that the compiler sees.
    unsafe { (&raw const *part).read_volatile() }
}

/// What a structure has at an offset, which is [`fixed`]. Zeros where the structure is not there.
#[inline(always)]
pub unsafe fn at<T>(structure: *mut c_void, offset_bytes: &'static u32) -> T {
    // SAFETY: the verifier knows that such a structure has the field, and the kernel reads zeros where the pointer leads to none.
    unsafe {
        structure
            .wrapping_byte_add(fixed(offset_bytes) as usize)
            .cast::<T>()
            .read_volatile()
    }
}
