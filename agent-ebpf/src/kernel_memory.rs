//! Reads fields of the kernel's own structures, at offsets that userspace found in the kernel's BTF.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;

/// An integer at an offset from `start`; 0 if it cannot be read.
#[inline(always)]
pub fn field<T>(start: usize, offset_bytes: u32) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the helper accepts any address, and writes zeros if it cannot be read
    // (`bpf_probe_read_kernel_common`).
    unsafe {
        bpf_probe_read_kernel(
            value.as_mut_ptr().cast(),
            size_of::<T>() as u32,
            (start + offset_bytes as usize) as *const c_void,
        )
    };
    // SAFETY: the helper wrote the value, and the callers' types are integers.
    unsafe { value.assume_init() }
}
