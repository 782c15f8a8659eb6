//! Stores data with sockets, and bounds how many sockets carry data. aya's own type cannot set the flag for
//! inheritance.

use core::{ffi::c_void, ptr};

use agent_common::process::{KeptWithSockets, SocketBound};
use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_SK_STORAGE_GET_F_CREATE, bpf_map_type},
    btf_maps::Array,
    helpers::generated::{bpf_sk_storage_delete, bpf_sk_storage_get},
    macros::btf_map,
};

use crate::atomic;

/// By kind of data.
#[btf_map]
static SOCKET_BOUNDS: Array<SocketBound, { KeptWithSockets::COUNT }, { BPF_F_MMAPABLE as usize }> =
    Array::new();

/// Reserves a place for one more socket. Several CPUs at once may exceed the limit by a few.
#[inline(always)]
fn has_room(what: KeptWithSockets) -> bool {
    let Some(bound) = SOCKET_BOUNDS.get_ptr_mut(what as u32) else {
        return false;
    };
    // SAFETY: elements of an array stay where they are.
    unsafe {
        let kept = SocketBound::held((&raw const (*bound).kept).read_volatile());
        if kept >= (&raw const (*bound).most).read_volatile() {
            atomic::add(&raw mut (*bound).refused, 1);
            return false;
        }
        atomic::add(&raw mut (*bound).kept, 1);
    }
    true
}

/// Releases the place of one socket.
#[inline(always)]
pub fn leave(what: KeptWithSockets) {
    if let Some(bound) = SOCKET_BOUNDS.get_ptr_mut(what as u32) {
        // SAFETY: as above.
        unsafe { atomic::add(&raw mut (*bound).kept, u64::MAX) };
    }
}

/// Counts a socket while userspace counts all of them. Returns whether it is within the bound. Lasting sockets are
/// counted apart from the others.
#[inline(always)]
fn is_within(what: KeptWithSockets, lasts: bool) -> bool {
    let Some(bound) = SOCKET_BOUNDS.get_ptr_mut(what as u32) else {
        return true;
    };
    // SAFETY: as above. Only one program counts at a time.
    unsafe {
        let most = (&raw const (*bound).most).read_volatile();
        let lasting = (&raw const (*bound).lasting).read_volatile();
        if lasts && lasting < most {
            (&raw mut (*bound).lasting).write_volatile(lasting + 1);
            return true;
        }
        let seen = (&raw const (*bound).seen).read_volatile();
        if seen >= most {
            atomic::add(&raw mut (*bound).refused, 1);
            return false;
        }
        (&raw mut (*bound).seen).write_volatile(seen + 1);
    }
    true
}

/// The context of a program at `iter/bpf_sk_storage_map`: the kernel's `struct bpf_iter__bpf_sk_storage_map`.
#[repr(C)]
pub struct KeptWithSocket {
    meta: *mut c_void,
    map: *mut c_void,
    socket: *mut c_void,
    value: *mut c_void,
}

impl KeptWithSocket {
    /// The socket; null at the end of the iteration.
    #[inline(always)]
    pub unsafe fn socket(kept: *mut Self) -> *mut c_void {
        // SAFETY: the caller's promise.
        unsafe { (*kept).socket }
    }
}

#[repr(C)]
pub struct SocketStorage<T, const FLAGS: usize> {
    r#type: *const [i32; bpf_map_type::BPF_MAP_TYPE_SK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; FLAGS],
}

// SAFETY: the pointers only describe the map. Nothing follows them.
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

    /// The data of a socket; null if it has none, or if this is not a full socket. `socket` is what the helper accepts
    /// in this program type: a socket, or the context.
    #[inline(always)]
    pub unsafe fn get(&self, socket: *mut c_void) -> *mut T {
        let map = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the verifier checks the helper's arguments.
        unsafe { bpf_sk_storage_get(map, socket, ptr::null_mut(), 0) }.cast()
    }

    /// The same, but stores `first` if the socket has no data. Null also if the limit is reached or memory is short.
    #[inline(always)]
    pub unsafe fn get_or_put(
        &self,
        what: KeptWithSockets,
        socket: *mut c_void,
        mut first: T,
    ) -> *mut T {
        // SAFETY: the caller's promise.
        let there = unsafe { self.get(socket) };
        if !there.is_null() {
            return there;
        }
        if !has_room(what) {
            return ptr::null_mut();
        }
        let map = ptr::from_ref(self).cast_mut().cast();
        let flags = BPF_SK_STORAGE_GET_F_CREATE.into();
        // SAFETY: the verifier checks the helper's arguments.
        let kept: *mut T =
            unsafe { bpf_sk_storage_get(map, socket, (&raw mut first).cast(), flags) }.cast();
        if kept.is_null() {
            leave(what);
        }
        kept
    }

    /// Counts a socket that carries data, and deletes the data beyond the bound. The socket must not be null. `lasts`
    /// marks a socket whose data is kept in preference to others.
    #[inline(always)]
    pub fn count(&self, what: KeptWithSockets, socket: *mut c_void, lasts: bool) {
        if !is_within(what, lasts) {
            // SAFETY: the caller's promise.
            unsafe { self.delete(socket) };
        }
    }

    /// Deletes a socket's data.
    #[inline(always)]
    unsafe fn delete(&self, socket: *mut c_void) {
        let map = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the verifier checks the helper's arguments. The helper fails if there is no data.
        unsafe { bpf_sk_storage_delete(map, socket) };
    }
}
