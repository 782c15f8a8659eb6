//! Reads the frames of a capture file.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

const MAGIC: u32 = 0xa1b2_c3d4;
const FILE_HEADER_LEN_BYTES: usize = 24;
const FRAME_HEADER_LEN_BYTES: usize = 16;

/// The frames of a little-endian capture in libpcap's format, in order.
pub fn frames(path: &Path) -> Result<Vec<Vec<u8>>> {
    let file = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let number =
        |at: usize| -> Option<u32> { Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?)) };
    ensure!(number(0) == Some(MAGIC), "{}: no capture", path.display());
    let mut frames = Vec::new();
    let mut at = FILE_HEADER_LEN_BYTES;
    while at < file.len() {
        let len_bytes = number(at + 8).context("a frame has a header")? as usize;
        at += FRAME_HEADER_LEN_BYTES;
        let frame = file.get(at..at + len_bytes).context("a frame is whole")?;
        frames.push(frame.to_vec());
        at += len_bytes;
    }
    Ok(frames)
}
