//! Reads structures of the kernel's that the verifier knows as such.

use core::ffi::c_void;

/// What a structure has at an offset, which is a constant of a layout that userspace completes.
#[inline(always)]
pub unsafe fn at<T>(structure: *mut c_void, offset_bytes: *const u32) -> T {
    // SAFETY: a static lives as long as the program. Volatile, since its value here is not the one that the compiler sees. The
    // verifier makes sure that the field is there.
    unsafe {
        structure
            .byte_add(offset_bytes.read_volatile() as usize)
            .cast::<T>()
            .read_volatile()
    }
}
