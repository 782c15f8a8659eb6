//! What is kept with a socket. The type of the library has no way to say which sockets inherit it.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::{BPF_SK_STORAGE_GET_F_CREATE, bpf_map_type},
    helpers::generated::bpf_sk_storage_get,
};

#[repr(C)]
pub struct SocketStorage<T, const FLAGS: usize> {
    r#type: *const [i32; bpf_map_type::BPF_MAP_TYPE_SK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; FLAGS],
}

// SAFETY: the pointers say what the map is like. Nobody follows them.
unsafe impl<T, const FLAGS: usize> Sync for SocketStorage<T, FLAGS> {}

impl<T, const FLAGS: usize> SocketStorage<T, FLAGS> {
    pub const fn new() -> Self {
        Self {
            r#type: ptr::null(),
            key: ptr::null(),
            value: ptr::null(),
            max_entries: ptr::null(),
            map_flags: ptr::null(),
        }
    }

    /// What is kept with a socket; null if it is nothing, or this is no whole socket. `socket` is what the program's kind takes: a
    /// socket, or the context.
    #[inline(always)]
    pub unsafe fn get(&self, socket: *mut c_void) -> *mut T {
        let map = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the verifier makes sure of what the helper is given.
        unsafe { bpf_sk_storage_get(map, socket, ptr::null_mut(), 0) }.cast()
    }

    /// The same, and keeps this if it is nothing yet. Null if there is no memory, too.
    #[inline(always)]
    pub unsafe fn get_or_put(&self, socket: *mut c_void, mut first: T) -> *mut T {
        let map = ptr::from_ref(self).cast_mut().cast();
        let flags = BPF_SK_STORAGE_GET_F_CREATE.into();
        // SAFETY: the verifier makes sure of what the helper is given.
        unsafe { bpf_sk_storage_get(map, socket, (&raw mut first).cast(), flags) }.cast()
    }
}
