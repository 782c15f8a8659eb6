//! Copies a packet's bytes into a ring for userspace.

use core::ffi::{c_long, c_void};

use agent_common::Packet;
use aya_ebpf::{
    bindings::{__sk_buff, xdp_md},
    helpers::{bpf_skb_load_bytes, bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
};

/// A packet whose bytes can be copied.
pub trait Bytes {
    fn len_bytes(&self) -> u32;

    /// Copies `len_bytes` bytes from `offset_bytes` on. Returns 0 if the packet has all of them.
    ///
    /// # Safety
    ///
    /// `to` must have room for `len_bytes` bytes.
    unsafe fn load(&self, offset_bytes: u32, to: *mut c_void, len_bytes: u32) -> c_long;
}

pub struct Skb(pub *mut __sk_buff);

impl Skb {
    /// Whether it stands for several frames (GSO, GRO).
    #[inline(always)]
    pub fn is_super_frame(&self) -> bool {
        // SAFETY: the context is valid for the program's run; the verifier checks the field.
        unsafe { (&raw const (*self.0).gso_size).read_volatile() != 0 }
    }
}

impl Bytes for Skb {
    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.0).len).read_volatile() }
    }

    #[inline(always)]
    unsafe fn load(&self, offset_bytes: u32, to: *mut c_void, len_bytes: u32) -> c_long {
        // SAFETY: the helper checks the offset, and the caller promises the room.
        unsafe { bpf_skb_load_bytes(self.0.cast(), offset_bytes, to, len_bytes) }
    }
}

pub struct Frame(pub *mut xdp_md);

impl Bytes for Frame {
    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        // SAFETY: the context is the program's own.
        unsafe { bpf_xdp_get_buff_len(self.0) as u32 }
    }

    #[inline(always)]
    unsafe fn load(&self, offset_bytes: u32, to: *mut c_void, len_bytes: u32) -> c_long {
        // SAFETY: as above.
        unsafe { bpf_xdp_load_bytes(self.0, offset_bytes, to, len_bytes) }
    }
}

/// Where the IP packet ends, or the frame if that ends earlier.
#[inline(always)]
pub fn end_bytes(packet: &Packet, bytes: &impl Bytes) -> u32 {
    let len_bytes = bytes.len_bytes();
    if packet.ip_end_bytes < len_bytes {
        packet.ip_end_bytes
    } else {
        len_bytes
    }
}

/// Copies words one by one, since a copy on the stack would take room there.
///
/// # Safety
///
/// `to` must have room for all words.
#[inline(always)]
pub unsafe fn put_words(to: *mut u64, words: &[u64]) {
    for (index, &word) in words.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(index).write_volatile(word) };
    }
}
