//! Bounds-checked access to the bytes of a frame.
//!
//! The parser is generic over [`Frame`], so one source reads packet memory in an XDP program, an
//! skb in a TC program, and a byte slice on the host.

/// A frame whose first byte is at offset 0.
pub trait Frame {
    /// `N` bytes of the frame that are known to be there.
    type Header<const N: usize>: Header;

    /// The `N` bytes at `offset_bytes`, or `None` if the frame ends before. A reader of linear memory alone also
    /// returns `None` if they lie outside that memory.
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<Self::Header<N>>;

    /// The length of the frame. A reader of linear memory alone returns the length of that memory.
    fn len_bytes(&self) -> u32;

    /// Whether the frame stands for many on the wire (GSO, GRO). Only such a frame may have an IP length of 0, which
    /// means that the frame is longer than the field can say (BIG TCP).
    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        false
    }
}

/// Fields of a header. `AT + size <= N` is checked at compile time, by the reader in the kernel and by `const`
/// assertions on the host.
///
/// Multi-byte fields are in network byte order. [`Header::ne32`] and [`Header::ne64`] return the bytes as they lie in
/// memory, for fields that are only copied.
pub trait Header {
    fn u8<const AT: usize>(&self) -> u8;
    /// A big-endian 16-bit field, in host order.
    fn be16<const AT: usize>(&self) -> u16;
    /// Four bytes in memory order.
    fn ne32<const AT: usize>(&self) -> u32;
    /// Eight bytes in memory order.
    fn ne64<const AT: usize>(&self) -> u64;
}

impl<const N: usize> Header for [u8; N] {
    #[inline(always)]
    fn u8<const AT: usize>(&self) -> u8 {
        const { assert!(AT < N) }
        self[AT]
    }

    #[inline(always)]
    fn be16<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 2 <= N) }
        u16::from_be_bytes([self[AT], self[AT + 1]])
    }

    #[inline(always)]
    fn ne32<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 4 <= N) }
        u32::from_ne_bytes([self[AT], self[AT + 1], self[AT + 2], self[AT + 3]])
    }

    #[inline(always)]
    fn ne64<const AT: usize>(&self) -> u64 {
        const { assert!(AT + 8 <= N) }
        u64::from_ne_bytes([
            self[AT],
            self[AT + 1],
            self[AT + 2],
            self[AT + 3],
            self[AT + 4],
            self[AT + 5],
            self[AT + 6],
            self[AT + 7],
        ])
    }
}

impl Frame for &[u8] {
    type Header<const N: usize> = [u8; N];

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<[u8; N]> {
        self.get(offset_bytes as usize..)?
            .first_chunk::<N>()
            .copied()
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        self.len() as u32
    }
}
