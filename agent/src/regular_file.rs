//! Reads a regular file of bounded length: secrets, certificates and the like, whose path somebody has chosen.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Everybody, in the bits of a file's mode.
pub const READABLE_BY_OTHERS: u32 = 0o004;

/// The contents and the mode. Fails if there are more than `most_bytes`.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<(Vec<u8>, u32)> {
    // A pipe would keep whoever opens it, and could be read only once.
    let mut open = OpenOptions::new();
    let file = open.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut contents = Vec::new();
    let read = file.take(most_bytes + 1).read_to_end(&mut contents)?;
    if read as u64 > most_bytes {
        let message = format!("it has more than {most_bytes} bytes");
        return Err(io::Error::other(message));
    }
    Ok((contents, metadata.mode()))
}
