//! Reads a regular file of bounded length: secrets, certificates and the like, whose path somebody has chosen.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Everybody, in the bits of a file's mode.
const READABLE_BY_OTHERS: u32 = 0o004;

/// What to say of a secret's file with this mode, if it is one that everybody can read.
pub fn open_to_all(path: &Path, what: &str, mode: u32) -> Option<String> {
    let path = path.display();
    (mode & READABLE_BY_OTHERS != 0)
        .then(|| format!("{path}: every user can read {what}: chmod o= {path}"))
}

/// The same of the file as it is now. One that is not there, or cannot be asked for, is told when it is needed.
pub fn open_to_all_now(path: &Path, what: &str) -> Option<String> {
    let mode = fs::metadata(path).ok()?.mode();
    open_to_all(path, what, mode)
}

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
