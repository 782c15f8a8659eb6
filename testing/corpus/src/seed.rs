//! Converts a fuzzer's bytes to frames, and frames to bytes.
//!
//! Four bits of the first byte describe the frame: bit 0 is the link type (1 for bare IP), bit 1 says whether two bytes
//! of tag (TCI, big-endian) follow, bit 2 whether tunnels are opened, and bit 3 whether it is a super-frame. The rest
//! is the frame.

use agent_common::LinkType;

use crate::RawFrame;

const BARE_IP: u8 = 1;
const TAGGED: u8 = 2;
const DECAPSULATE: u8 = 4;
const SUPER_FRAME: u8 = 8;

/// `None` if there are too few bytes.
pub fn frame(seed: &[u8]) -> Option<RawFrame> {
    let (&kind, mut bytes) = seed.split_first()?;
    let link_type = if kind & BARE_IP == 0 {
        LinkType::Ethernet
    } else {
        LinkType::Ip
    };
    let mut tag = None;
    if kind & TAGGED != 0 && link_type == LinkType::Ethernet {
        let (tci_be, rest) = bytes.split_first_chunk()?;
        tag = Some(u16::from_be_bytes(*tci_be));
        bytes = rest;
    }
    Some(RawFrame {
        link_type,
        tag,
        decapsulate: kind & DECAPSULATE != 0,
        is_super_frame: kind & SUPER_FRAME != 0,
        bytes: bytes.to_vec(),
    })
}

/// The bytes that [`frame`] converts to this frame.
pub fn seed(frame: &RawFrame) -> Vec<u8> {
    let link = match frame.link_type {
        LinkType::Ethernet => 0,
        LinkType::Ip => BARE_IP,
    };
    let mut seed = vec![link];
    if frame.decapsulate {
        seed[0] |= DECAPSULATE;
    }
    if frame.is_super_frame {
        seed[0] |= SUPER_FRAME;
    }
    if let Some(tci) = frame.tag {
        seed[0] |= TAGGED;
        seed.extend(tci.to_be_bytes());
    }
    seed.extend(&frame.bytes);
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_of_the_corpus_is_a_seed() {
        for entry in crate::entries().unwrap() {
            assert_eq!(
                frame(&seed(&entry.frame)),
                Some(entry.frame),
                "{}",
                entry.name
            );
        }
    }
}
