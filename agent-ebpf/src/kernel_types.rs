//! Reads kernel structures whose types the verifier knows.

use core::ffi::c_void;

/// A field of a layout, which userspace fills in before the programs are loaded.
#[inline(always)]
pub fn fixed(part: &'static u32) -> u32 {
    // SAFETY: a static lives as long as the program. Volatile, since userspace replaces the value that the compiler
    // sees.
    unsafe { (&raw const *part).read_volatile() }
}

/// The field of a structure at a [`fixed`] offset. Zeros if the pointer leads to no structure.
#[inline(always)]
pub unsafe fn at<T>(structure: *mut c_void, offset_bytes: &'static u32) -> T {
    // SAFETY: the verifier checks that the structure has the field, and the kernel reads zeros if the pointer is
    // invalid.
    unsafe {
        structure
            .wrapping_byte_add(fixed(offset_bytes) as usize)
            .cast::<T>()
            .read_volatile()
    }
}
