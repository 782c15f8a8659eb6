//! Writes IPv6 extension headers.

use anyhow::{Context as _, Result, ensure};

/// An IPv6 extension header. Lengths include the whole header and are multiples of 8; [`Extension::Authentication`]
/// takes multiples of 4, at least 12.
#[derive(Clone, Copy, Debug)]
pub enum Extension {
    HopByHop {
        length_bytes: usize,
    },
    Routing {
        length_bytes: usize,
    },
    DestinationOptions {
        length_bytes: usize,
    },
    Fragment {
        id: u32,
        offset_bytes: u16,
        more: bool,
    },
    Authentication {
        length_bytes: usize,
    },
}

impl Extension {
    /// The next-header value that announces it.
    pub(crate) fn number(&self) -> u8 {
        match self {
            Self::HopByHop { .. } => 0,
            Self::Routing { .. } => 43,
            Self::Fragment { .. } => 44,
            Self::Authentication { .. } => 51,
            Self::DestinationOptions { .. } => 60,
        }
    }

    /// Appends the header, which announces `next`.
    pub(crate) fn write(&self, next: u8, out: &mut Vec<u8>) -> Result<()> {
        match *self {
            Self::HopByHop { length_bytes } | Self::DestinationOptions { length_bytes } => {
                let units = units_after_first(length_bytes, 8)?;
                // One PadN option fills the space after the first two bytes (RFC 8200, 4.2).
                let pad_len = u8::try_from(length_bytes - 4).context("one PadN holds 255 bytes")?;
                out.extend([next, units, 1, pad_len]);
                out.resize(out.len() + usize::from(pad_len), 0);
            }
            Self::Routing { length_bytes } => {
                // The experimental type 253 with no segments left, which every node skips.
                out.extend([next, units_after_first(length_bytes, 8)?, 253, 0]);
                out.resize(out.len() + length_bytes - 4, 0);
            }
            Self::Fragment {
                id,
                offset_bytes,
                more,
            } => {
                ensure!(
                    offset_bytes % 8 == 0,
                    "fragment offsets are multiples of eight"
                );
                let [high, low] = (offset_bytes | u16::from(more)).to_be_bytes();
                out.extend([next, 0, high, low]);
                out.extend(id.to_be_bytes());
            }
            Self::Authentication { length_bytes } => {
                ensure!(
                    length_bytes >= 12,
                    "an authentication header has 12 bytes at least"
                );
                // The length field counts units of four bytes, minus two (RFC 4302, 2.2).
                out.extend([next, units_after_first(length_bytes, 4)? - 1, 0, 0]);
                out.resize(out.len() + length_bytes - 4, 0);
            }
        }
        Ok(())
    }
}

fn units_after_first(length_bytes: usize, unit_bytes: usize) -> Result<u8> {
    ensure!(
        length_bytes >= unit_bytes && length_bytes.is_multiple_of(unit_bytes),
        "an extension header of {length_bytes} bytes"
    );
    u8::try_from(length_bytes / unit_bytes - 1)
        .context("an extension header's length has eight bits")
}
