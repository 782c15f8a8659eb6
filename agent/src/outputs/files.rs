//! Files that are written piece by piece, completed when they are large or old enough, and removed when there are too
//! many.
//!
//! The file that is written has the path of the settings. When it is complete it gets a name of its own, with the time
//! of its beginning: `flows.jsonl` becomes `flows-20260102T030405Z.jsonl`, or `….jsonl.zst`. Only whole files have such
//! names: what is being compressed ends in `.part`. A process that was killed may leave half a piece at the end of a
//! file; the next one takes it off before it completes the file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tokio::task::spawn_blocking;

mod names;
pub mod whole;

/// When a file is complete, what becomes of it, and how many there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    pub bytes: u64,
    pub after: Duration,
    /// How many complete files are kept, and how many bytes they may have together.
    pub files: u32,
    pub total_bytes: u64,
    pub compression: Compression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// How the name of a complete file ends.
    fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

/// Finds where the last whole piece of a file ends. Fails if the file is not of the format.
pub type WholeLen = fn(&mut File) -> io::Result<u64>;

/// A file at a path, and the complete ones beside it.
pub struct Rotated {
    path: PathBuf,
    rotation: Rotation,
    whole_len: WholeLen,
    open: Option<Open>,
    /// Held as long as files are written here, so that nobody else does.
    lock: Option<File>,
}

/// The file that is written.
struct Open {
    file: File,
    len_bytes: u64,
    since: Instant,
    complete: PathBuf,
}

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Yes,
    /// Nothing was written: another file begins, with whatever the format needs at the beginning.
    Anew,
}

impl Rotated {
    pub fn new(path: PathBuf, rotation: Rotation, whole_len: WholeLen) -> Self {
        Self {
            path,
            rotation,
            whole_len,
            open: None,
            lock: None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a piece, all of it or nothing.
    pub async fn write(&mut self, piece: &[u8]) -> Result<Written> {
        if self.is_complete(piece.len() as u64) {
            self.close().await?;
        }
        let Some(mut open) = self.open.take() else {
            if self.lock.is_none() {
                let lock = lock(&self.path);
                self.lock = Some(lock.with_context(|| format!("begin {}", self.path.display()))?);
            }
            self.open = Some(self.begin().await?);
            return Ok(Written::Anew);
        };
        let piece = piece.to_vec();
        let appended = blocking(move || {
            open.append(&piece)?;
            Ok(open)
        });
        let appended = appended.await;
        self.open = Some(appended.with_context(|| format!("write {}", self.path.display()))?);
        Ok(Written::Yes)
    }

    /// Whether the file takes no more of this length.
    fn is_complete(&self, more_bytes: u64) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let is_large = open.len_bytes + more_bytes > self.rotation.bytes;
            open.len_bytes > 0 && (is_large || open.since.elapsed() >= self.rotation.after)
        })
    }

    /// Completes the file, if there is one.
    pub async fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let (path, rotation) = (self.path.clone(), self.rotation.clone());
        let completed = blocking(move || {
            if open.len_bytes == 0 {
                return fs::remove_file(&path).context("remove the empty file");
            }
            open.file.sync_all().context("write it to the disk")?;
            complete(&path, &open.complete, rotation.compression)?;
            names::remove_the_oldest(&path, &rotation)
        });
        let completed = completed.await;
        completed.with_context(|| format!("complete {}", self.path.display()))
    }

    async fn begin(&self) -> Result<Open> {
        let (path, rotation) = (self.path.clone(), self.rotation.clone());
        let whole_len = self.whole_len;
        let begun = blocking(move || {
            recover(&path, &rotation, whole_len)?;
            let file = OpenOptions::new().append(true).create_new(true).open(&path);
            Ok(Open {
                file: file.context("make the file")?,
                len_bytes: 0,
                since: Instant::now(),
                complete: names::complete(&path, SystemTime::now()),
            })
        });
        let begun = begun.await;
        begun.with_context(|| format!("begin {}", self.path.display()))
    }
}

impl Open {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        let written = self.file.write_all(piece);
        if written.is_err() {
            // A part of the piece may be there. If it stays, whoever completes the file takes it off.
            drop(self.file.set_len(self.len_bytes));
        }
        written?;
        self.len_bytes += piece.len() as u64;
        Ok(())
    }
}

/// Keeps other outputs and other processes away from the files at this path. The file of the lock stays there.
fn lock(path: &Path) -> Result<File> {
    let name = path.file_name().context("it names no file")?;
    let name = format!(".{}.lock", name.to_string_lossy());
    let lock = path.with_file_name(name);
    let mut options = OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&lock);
    let file = opened.with_context(|| format!("open {}", lock.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            bail!("another output or another agent writes there: name another path, or end it")
        }
        Err(error) => Err(error).with_context(|| format!("lock {}", lock.display())),
    }
}

/// Completes what a process before this one left behind.
fn recover(path: &Path, rotation: &Rotation, whole_len: WholeLen) -> Result<()> {
    names::finish_parts(path, |part, whole| {
        compress(part, whole, rotation.compression)
    })?;
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.context("open the file that is there")?,
    };
    let metadata = file.metadata().context("stat the file that is there")?;
    ensure!(
        metadata.is_file(),
        "it is there, and no regular file: name another path"
    );
    let whole = whole_len(&mut file).context(
        "there is a file that this output would not have written: name another path, or move it away",
    )?;
    if whole < metadata.len() {
        tracing::warn!(
            file = %path.display(),
            bytes = metadata.len() - whole,
            "half a piece at the end of the file is removed: a process was killed while it wrote"
        );
        file.set_len(whole).context("cut the file")?;
    }
    if whole == 0 {
        return fs::remove_file(path).context("remove the file without a whole piece");
    }
    let began = metadata.created().or_else(|_| metadata.modified());
    let began = began.context("the time of the file that is there")?;
    complete(path, &names::complete(path, began), rotation.compression)?;
    names::remove_the_oldest(path, rotation)
}

/// Gives a file its complete name. At every moment either the one or the other has all that was written.
fn complete(path: &Path, complete: &Path, compression: Compression) -> Result<()> {
    if compression == Compression::None {
        return fs::rename(path, complete).context("rename it");
    }
    let part = names::with(complete, names::PART);
    fs::rename(path, &part).context("rename it")?;
    compress(&part, complete, compression)
}

/// Makes the compressed file `complete` of `part`, and removes `part`.
fn compress(part: &Path, complete: &Path, compression: Compression) -> Result<()> {
    let whole = names::with(complete, compression.suffix());
    let half = names::with(&whole, names::PART);
    let create = || File::create(&half).with_context(|| format!("make {}", half.display()));
    let mut from = File::open(part).context("open it")?;
    let to = match compression {
        Compression::None => return fs::rename(part, complete).context("rename it"),
        Compression::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(create()?, flate2::Compression::default());
            io::copy(&mut from, &mut gzip).context("compress it")?;
            gzip.finish().context("compress it")?
        }
        Compression::Zstd => {
            let mut zstd = zstd::Encoder::new(create()?, zstd::DEFAULT_COMPRESSION_LEVEL)
                .context("compress it")?;
            io::copy(&mut from, &mut zstd).context("compress it")?;
            zstd.finish().context("compress it")?
        }
    };
    to.sync_all().context("write it to the disk")?;
    fs::rename(&half, &whole).context("rename what is compressed")?;
    fs::remove_file(part).context("remove what is compressed")
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    spawn_blocking(work)
        .await
        .context("the thread that writes")?
}

#[cfg(test)]
mod tests;
