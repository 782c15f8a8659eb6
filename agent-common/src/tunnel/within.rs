//! Limits a frame to the bytes of a tunnel's packet.

use crate::frame::Frame;

/// A frame that ends at an offset: bytes behind an IP packet are padding.
pub struct Within<'a, F> {
    pub frame: &'a F,
    pub end_bytes: u32,
}

impl<F: Frame> Frame for Within<'_, F> {
    type Header<const N: usize> = F::Header<N>;

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<F::Header<N>> {
        if offset_bytes + N as u32 > self.end_bytes {
            return None;
        }
        self.frame.header(offset_bytes)
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        self.frame.len_bytes().min(self.end_bytes)
    }

    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        self.frame.is_super_frame()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_within_another_ends_where_its_packet_or_the_other_one_does() {
        let outer = &[0_u8; 10][..];
        let len = |end_bytes| {
            let frame = &outer;
            Within { frame, end_bytes }.len_bytes()
        };
        assert_eq!((len(4), len(10), len(u32::MAX)), (4, 10, 10));
    }
}
