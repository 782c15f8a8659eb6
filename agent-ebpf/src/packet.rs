//! Readers of packet memory for the parser. They check bounds once for each header.

use core::{
    ffi::{c_long, c_void},
    mem::MaybeUninit,
};

use agent_common::{Frame, Header};
use aya_ebpf::{
    bindings::{__sk_buff, xdp_md},
    helpers::{bpf_skb_load_bytes, bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
};

/// The verifier needs a limit on variable offsets. No header that the parser reads lies beyond this one. All its bits
/// are ones, since it also serves as a mask.
const MAX_OFFSET_BYTES: usize = 0x3fff;

/// Memory between `data` and `data_end`: all of an XDP buffer, or the linear part of an skb.
pub struct Linear {
    pub data: usize,
    pub data_end: usize,
}

impl Linear {
    /// The only buffer of an XDP frame, or the first one.
    #[inline(always)]
    pub fn of(frame: *mut xdp_md) -> Self {
        // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
        let frame = unsafe { &*frame };
        Self {
            data: frame.data as usize,
            data_end: frame.data_end as usize,
        }
    }
}

impl Frame for Linear {
    type Header<const N: usize> = LinearHeader<N>;

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<LinearHeader<N>> {
        let offset = offset_bytes as usize;
        if offset > MAX_OFFSET_BYTES {
            return None;
        }
        let start = checkable_sum(self.data, offset);
        if start + N > self.data_end {
            return None;
        }
        Some(LinearHeader { start })
    }

    /// Hides the subtraction from the compiler. Otherwise it would compare `data` plus a length from the packet with
    /// `data_end`, and the verifier (6.1) refuses to add a byte-swapped number to a pointer.
    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        #[allow(unused_mut, reason = "only the programs change it")]
        let mut len = self.data_end - self.data;
        #[cfg(target_arch = "bpf")]
        // SAFETY: the code touches one register only, and no length has the bits that the mask clears.
        unsafe {
            core::arch::asm!("{0} &= 0x7fffffff", inout(reg) len, options(pure, nomem, nostack, preserves_flags));
        }
        len as u32
    }

    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        self.len_bytes() > LONGEST_FRAME
    }
}

/// `data + offset`, where the offset is at most [`MAX_OFFSET_BYTES`].
///
/// Written in assembly so that the offset is limited right where it is added. Otherwise the compiler drops a check that
/// never fails, or spills the offset to memory between the check and the sum, and the verifier (6.18) considers the sum
/// outside the packet.
#[inline(always)]
fn checkable_sum(data: usize, offset: usize) -> usize {
    #[cfg(target_arch = "bpf")]
    if !core::intrinsics::is_val_statically_known(offset) {
        let sum;
        // SAFETY: the code touches two registers only, and the mask keeps all bits of the offset.
        unsafe {
            core::arch::asm!(
                "{offset} &= {mask}",
                "{offset} += {data}",
                offset = inout(reg) offset => sum,
                data = in(reg) data,
                mask = const MAX_OFFSET_BYTES,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        return sum;
    }
    data + offset
}

/// `N` bytes from `start` that were checked to lie before `data_end`.
pub struct LinearHeader<const N: usize> {
    start: usize,
}

impl<const N: usize> LinearHeader<N> {
    /// Reads a `T` at `AT`. Every architecture that runs these programs reads unaligned packet
    /// memory; the type's own alignment would make the compiler read byte by byte.
    #[inline(always)]
    fn read<T: Copy, const AT: usize>(&self) -> T {
        const { assert!(AT + size_of::<T>() <= N) }
        // SAFETY: `AT + size_of::<T>() <= N`, and `N` bytes from `start` are in the packet (checked
        // by `Linear::header` and again by the verifier).
        unsafe { ((self.start + AT) as *const T).read() }
    }
}

impl<const N: usize> Header for LinearHeader<N> {
    #[inline(always)]
    fn u8<const AT: usize>(&self) -> u8 {
        self.read::<u8, AT>()
    }

    #[inline(always)]
    fn be16<const AT: usize>(&self) -> u16 {
        u16::from_be(self.read::<u16, AT>())
    }

    #[inline(always)]
    fn ne32<const AT: usize>(&self) -> u32 {
        self.read::<u32, AT>()
    }

    #[inline(always)]
    fn ne64<const AT: usize>(&self) -> u64 {
        self.read::<u64, AT>()
    }
}

/// The longest frame whose IP header can give its length. A longer frame is a super-frame, which generic XDP receives
/// as one frame.
const LONGEST_FRAME: u32 = 0xffff;

/// The front of a packet: the linear part of an skb, or the first of several XDP buffers.
pub struct Front<F> {
    pub linear: Linear,
    pub whole: F,
}

impl<F: Frame> Frame for Front<F> {
    type Header<const N: usize> = LinearHeader<N>;

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<LinearHeader<N>> {
        self.linear.header(offset_bytes)
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        self.linear.len_bytes()
    }

    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        self.whole.is_super_frame()
    }
}

/// An skb. Its headers may lie beyond the linear part.
#[derive(Clone, Copy)]
pub struct Paged(pub *mut __sk_buff);

impl Paged {
    /// The linear part.
    #[inline(always)]
    pub fn front(self) -> Front<Self> {
        // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
        let skb = unsafe { &*self.0 };
        Front {
            linear: Linear {
                data: skb.data as usize,
                data_end: skb.data_end as usize,
            },
            whole: self,
        }
    }

    /// The payload of one segment of a super-frame; 0 for a single frame. Read wherever it is needed, since the stack
    /// has no room for it.
    #[inline(always)]
    pub fn gso_size_bytes(self) -> u32 {
        // SAFETY: the context pointer is valid for the program's run.
        let field = unsafe { &raw const (*self.0).gso_size };
        // SAFETY: the verifier checks the field. The read is volatile only to keep the compiler from
        // reading early.
        unsafe { field.read_volatile() }
    }

    /// The VLAN tag that was removed from the frame.
    #[inline(always)]
    pub fn tci(self) -> Option<u16> {
        // SAFETY: see `front`.
        let skb = unsafe { &*self.0 };
        (skb.vlan_present != 0).then_some(skb.vlan_tci as u16)
    }

    /// Whether the VLAN tag was removed from the frame. Read wherever it is needed, like `gso_size_bytes`.
    #[inline(always)]
    pub fn lacks_tag(self) -> bool {
        // SAFETY: the context pointer is valid for the program's run.
        let field = unsafe { &raw const (*self.0).vlan_present };
        // SAFETY: as above.
        unsafe { field.read_volatile() != 0 }
    }
}

impl Frame for Paged {
    type Header<const N: usize> = [u8; N];

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<[u8; N]> {
        loaded(|bytes, len_bytes| {
            // SAFETY: the helper checks the offset against `skb->len` and writes `len_bytes` bytes, for
            // which `bytes` has room.
            unsafe { bpf_skb_load_bytes(self.0.cast(), offset_bytes, bytes, len_bytes) }
        })
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        // SAFETY: the context pointer is valid for the program's run; the verifier checks the field.
        unsafe { (*self.0).len }
    }

    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        self.gso_size_bytes() != 0
    }
}

/// An XDP frame in one buffer, which [`Linear`] reads.
pub struct OneBuffer(pub *mut xdp_md);

/// An XDP frame in several buffers.
#[derive(Clone, Copy)]
pub struct Fragmented(pub *mut xdp_md);

impl Fragmented {
    /// The first buffer.
    #[inline(always)]
    pub fn front(self) -> Front<Self> {
        Front {
            linear: Linear::of(self.0),
            whole: self,
        }
    }
}

impl Frame for Fragmented {
    type Header<const N: usize> = [u8; N];

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<[u8; N]> {
        loaded(|bytes, len_bytes| {
            // SAFETY: the helper checks the offset against the length of all buffers and writes
            // `len_bytes` bytes, for which `bytes` has room.
            unsafe { bpf_xdp_load_bytes(self.0, offset_bytes, bytes, len_bytes) }
        })
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        // SAFETY: the context pointer is the program's own.
        unsafe { bpf_xdp_get_buff_len(self.0) as u32 }
    }

    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        self.len_bytes() > LONGEST_FRAME
    }
}

/// An XDP frame in several buffers, whose VLAN tag the driver may have removed.
#[derive(Clone, Copy)]
pub struct Tagged(pub *mut xdp_md);

/// The bytes that `load` writes, without zeroing them first.
#[inline(always)]
fn loaded<const N: usize>(load: impl FnOnce(*mut c_void, u32) -> c_long) -> Option<[u8; N]> {
    let mut bytes = MaybeUninit::<[u8; N]>::uninit();
    if load(bytes.as_mut_ptr().cast(), N as u32) != 0 {
        return None;
    }
    // SAFETY: both helpers return 0 only after they have written all N bytes.
    Some(unsafe { bytes.assume_init() })
}
