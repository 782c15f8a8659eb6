//! Rotated files: written piece by piece, completed when they are large or old enough, and removed when there are too
//! many.
//!
//! The open file has the path of the settings. On completion it gets a name with the time of its beginning:
//! `flows.jsonl` becomes `flows-20260102T030405Z.jsonl`, or `….jsonl.zst`. Only complete files have such names; a file
//! being compressed ends in `.part`. A killed process may leave half a piece at the end of the open file. The next
//! process cuts it off before it completes the file.
//!
//! Some formats can be read only when the file is complete. They keep their pieces in a hidden file and build the
//! complete file from it at the end.
//!
//! Files that many senders fill are [`shared`].

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use rustix::{
    fs::{Access, AtFlags, CWD, FlockOperation, accessat, flock},
    io::Errno,
};
use sys::own_file;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

mod names;
pub mod parquet;
mod retention;
pub mod shared;
pub mod whole;

pub use names::Owner;
use names::{Complete, Names};

/// When to complete a file, how to compress it, and how many to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    pub bytes: u64,
    pub after: Duration,
    /// How many complete files to keep of the shared file and of each sender with its own, and how many bytes all of
    /// them may take.
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
    const SUFFIXES: [&str; 3] = [
        Self::None.suffix(),
        Self::Gzip.suffix(),
        Self::Zstd.suffix(),
    ];

    /// The suffix it adds to the name of a complete file.
    const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

/// Most rows in a file built from pieces. Each row takes time, however short the pieces are. A single write with more
/// rows makes a file of its own.
const MOST_ROWS: u64 = 1 << 20;

/// Mode of all files, before the umask.
const MODE: u32 = 0o640;

/// Finds where the last whole piece of a file ends. Fails if the file is not in this format.
pub type WholeLen = fn(&mut File) -> io::Result<u64>;

/// How to build a complete file from pieces that are not in its format.
#[derive(Clone, Copy)]
pub struct Made {
    /// The prefix of all file names.
    pub stem: &'static str,
    /// The suffix of complete files' names.
    pub ending: &'static [&'static str; 1],
    pub whole_len: WholeLen,
    /// Reads the pieces and writes the complete file.
    pub make: fn(&mut File, File, Compression) -> Result<File>,
}

/// The open file, and the complete ones beside it.
pub struct Rotated {
    address: PathBuf,
    place: Arc<Place>,
    owner: Option<Owner>,
    open: Option<Open>,
    writing: Option<Writing>,
}

/// An append that runs on a thread. It continues if the caller stops waiting.
struct Writing {
    thread: JoinHandle<Result<Open>>,
    /// Set by whoever claims the pieces: the thread that writes them, or the caller that gives up on them.
    is_taken: Arc<AtomicBool>,
}

/// Where the files are and how they are completed.
struct Place {
    names: Names,
    rotation: Rotation,
    whole_len: WholeLen,
    made: Option<Made>,
    /// Keeps other outputs and processes away. Shared, because a thread may still complete a file after its output is
    /// gone.
    lock: OnceLock<File>,
}

/// The open file.
struct Open {
    place: Arc<Place>,
    path: PathBuf,
    file: File,
    len_bytes: u64,
    /// Rows of the pieces, for a file that is built from them.
    rows: u64,
    /// It has more than the preface that every file begins with.
    has_more: bool,
    /// Its directory entry is synced.
    is_named: bool,
    since: Instant,
    complete: Complete,
}

/// A piece to append.
#[derive(Clone)]
pub struct Piece {
    pub bytes: Bytes,
    /// How many rows it becomes in a file that is built from pieces.
    pub rows: u64,
}

impl Piece {
    /// A piece written by this process's own outputs. It counts no rows.
    fn own(bytes: Bytes) -> Self {
        Self { bytes, rows: 0 }
    }
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Yes,
    /// Nothing was written, but a new file was opened. Write its preface, then try again.
    Anew,
}

impl Rotated {
    /// Writes to this path.
    pub fn new(path: PathBuf, rotation: Rotation, whole_len: WholeLen) -> Self {
        let place = Place {
            names: Names::at(&path),
            rotation,
            whole_len,
            made: None,
            lock: OnceLock::new(),
        };
        Self::at(path, place)
    }

    /// Builds files in this folder.
    pub fn made(folder: PathBuf, rotation: Rotation, made: Made) -> Self {
        let place = Place {
            names: Names::hidden(&folder, made.stem, made.ending),
            rotation,
            whole_len: made.whole_len,
            made: Some(made),
            lock: OnceLock::new(),
        };
        Self::at(folder, place)
    }

    fn at(address: PathBuf, place: Place) -> Self {
        Self {
            address,
            place: Arc::new(place),
            owner: None,
            open: None,
            writing: None,
        }
    }

    /// A file in the same place for one sender alone.
    fn of(&self, owner: Owner) -> Self {
        Self {
            address: self.place.names.open(Some(&owner)),
            place: Arc::clone(&self.place),
            owner: Some(owner),
            open: None,
            writing: None,
        }
    }

    /// The path from the settings, or the path of the sender's open file.
    pub fn address(&self) -> &Path {
        &self.address
    }

    /// The same for all spellings of one place.
    pub(crate) fn lock_path(&self) -> PathBuf {
        let names = &self.place.names;
        let folder = names.folder.canonicalize();
        let name = names.lock.file_name().unwrap_or_default();
        folder.unwrap_or_else(|_| names.folder.clone()).join(name)
    }

    /// Fails if the files cannot be written there. Leaves them as they are.
    pub async fn refuse_unwritable(&self) -> Result<()> {
        let place = Arc::clone(&self.place);
        let looked = blocking(move || place.refuse_unwritable()).await;
        looked.with_context(|| format!("write to {}", self.address.display()))
    }

    /// Appends a piece as a whole or not at all.
    pub async fn write(&mut self, piece: impl Into<Bytes>) -> Result<Written> {
        self.append(vec![Piece::own(piece.into())], true).await
    }

    /// Appends pieces in order, all of them or none.
    pub async fn write_all(&mut self, pieces: Vec<Piece>) -> Result<Written> {
        self.append(pieces, true).await
    }

    /// Appends a piece of the preface that every file begins with. A file with only a preface is never completed.
    /// Otherwise a preface longer than the limit would keep starting new files and nothing else would be written.
    pub async fn write_preface(&mut self, piece: Bytes) -> Result<Written> {
        self.append(vec![Piece::own(piece)], false).await
    }

    async fn append(&mut self, pieces: Vec<Piece>, is_more: bool) -> Result<Written> {
        // Files of single senders are completed one by one elsewhere, since all of them might be old at once.
        let is_old = self.owner.is_none() && self.is_old();
        if is_old || self.is_full(len_bytes(&pieces), rows(&pieces)) {
            self.close().await?;
        }
        let Some(mut open) = self.open.take() else {
            self.open = Some(self.begin().await?);
            return Ok(Written::Anew);
        };
        let is_taken = Arc::new(AtomicBool::new(false));
        let mine = Arc::clone(&is_taken);
        let thread = spawn_blocking(move || {
            if !mine.swap(true, Ordering::Relaxed) {
                open.append(&pieces)?;
                if is_more && !open.has_more {
                    // The age counts from the first piece after the preface.
                    open.since = Instant::now();
                    open.has_more = true;
                }
            }
            Ok(open)
        });
        self.writing = Some(Writing { thread, is_taken });
        self.written().await?;
        Ok(Written::Yes)
    }

    /// Completes the file if it is old or full.
    pub async fn complete_if_due(&mut self) -> Result<()> {
        if self.is_old() || self.is_full(0, 0) {
            self.close().await?;
        }
        Ok(())
    }

    /// Syncs the file. After a failure its contents are unknown, so the next write begins another file.
    pub async fn sync(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        let synced = blocking(move || {
            open.sync()?;
            Ok(open)
        });
        let synced = synced.await;
        let synced =
            synced.with_context(|| format!("bring {} to the disk", self.address.display()));
        self.open = Some(synced?);
        Ok(())
    }

    /// Whether an append that the caller stopped waiting for was written. If it has not begun, it never will.
    pub async fn has_written(&mut self) -> Result<bool> {
        let Some(writing) = &self.writing else {
            return Ok(false);
        };
        let has_begun = writing.is_taken.swap(true, Ordering::Relaxed);
        if has_begun {
            self.written().await?;
        }
        Ok(has_begun)
    }

    /// Waits for the writing thread.
    async fn written(&mut self) -> Result<()> {
        let Some(writing) = &mut self.writing else {
            return Ok(());
        };
        let done = (&mut writing.thread).await;
        self.writing = None;
        let done = joined(done);
        let open = done.with_context(|| format!("write {}", self.address.display()))?;
        self.open = Some(open);
        Ok(())
    }

    /// Whether this many bytes and rows no longer fit.
    fn is_full(&self, more_bytes: u64, more_rows: u64) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let rotation = &self.place.rotation;
            let has_many = self.place.made.is_some() && open.rows + more_rows > MOST_ROWS;
            let is_large = has_many || open.len_bytes + more_bytes > rotation.bytes;
            open.has_more && is_large
        })
    }

    fn is_old(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.has_more && open.since.elapsed() >= self.place.rotation.after)
    }

    /// A piece's share of a file, in bytes: its length, or its share of the most rows if that is larger.
    fn share(&self, piece: &Piece) -> u64 {
        let bytes = piece.bytes.len() as u64;
        if self.place.made.is_none() {
            return bytes;
        }
        let of_rows = u128::from(piece.rows) * u128::from(self.place.rotation.bytes);
        let of_rows = u64::try_from(of_rows / u128::from(MOST_ROWS)).unwrap_or(u64::MAX);
        bytes.max(of_rows)
    }

    /// Whether a sender's file should be completed: when it is nearly full, or after a failed write.
    fn is_due(&self) -> bool {
        let bytes = self.place.rotation.bytes;
        self.open.is_none() || self.is_old() || self.is_full(bytes / 8, MOST_ROWS / 8)
    }

    /// Completes the file, including one left by an earlier process or a failed write.
    async fn end(&mut self) -> Result<()> {
        if self.open.is_some() {
            return self.close().await;
        }
        let (place, owner) = (Arc::clone(&self.place), self.owner.clone());
        let recovered = blocking(move || place.recover(owner.as_ref())).await;
        recovered.with_context(|| format!("complete {}", self.address.display()))
    }

    /// Completes the file at shutdown, and logs if that fails because no caller would.
    pub async fn close_at_the_end(&mut self) {
        if let Err(error) = self.close().await {
            tracing::warn!(
                address = %self.address.display(),
                "cannot complete the last file: {error:#}; the next start completes it"
            );
        }
    }

    /// Completes the open file, if there is one.
    pub async fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let completed = blocking(move || {
            if open.len_bytes == 0 {
                return fs::remove_file(&open.path).context("remove the empty file");
            }
            open.file.sync_all().context("write it to the disk")?;
            let owner = open.complete.owner.as_ref();
            let of_owner = owner.map(|_| open.place.names.complete(SystemTime::now(), owner));
            let name = of_owner.transpose()?;
            open.place.complete(&name.unwrap_or(open.complete))
        });
        let completed = completed.await;
        completed.with_context(|| format!("complete {}", self.address.display()))
    }

    async fn begin(&self) -> Result<Open> {
        let (place, owner) = (Arc::clone(&self.place), self.owner.clone());
        let begun = blocking(move || {
            place.take_lock()?;
            place.recover(owner.as_ref())?;
            let path = place.names.open(owner.as_ref());
            let mut options = OpenOptions::new();
            let file = options.append(true).create_new(true).mode(MODE).open(&path);
            Ok(Open {
                file: file.context("make the file")?,
                len_bytes: 0,
                rows: 0,
                has_more: false,
                is_named: false,
                since: Instant::now(),
                complete: place.names.complete(SystemTime::now(), owner.as_ref())?,
                path,
                place,
            })
        });
        let begun = begun.await;
        begun.with_context(|| format!("begin {}", self.address.display()))
    }
}

impl Open {
    fn append(&mut self, pieces: &[Piece]) -> Result<()> {
        let mut all = pieces.iter();
        let written = all.try_for_each(|piece| self.file.write_all(&piece.bytes));
        if written.is_err() {
            // Part of the piece may be in the file. If it cannot be cut off here, completing the file cuts it off.
            drop(self.file.set_len(self.len_bytes));
        }
        written?;
        self.len_bytes += len_bytes(pieces);
        self.rows += rows(pieces);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync_data()?;
        if !self.is_named {
            let folder = self.path.parent();
            let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))
                .and_then(|folder| folder.sync_all())
                .context("the folder")?;
            self.is_named = true;
        }
        Ok(())
    }
}

fn len_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
}

fn rows(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.rows).sum()
}

/// Locks the files against other outputs and processes. The lock file is never removed.
fn lock(names: &Names) -> Result<File> {
    names.open(None).file_name().context("it names no file")?;
    let lock = &names.lock;
    let mut options = own_file::options();
    let options = options.write(true).create(true).truncate(false);
    let opened = options.mode(MODE).open(lock);
    let file = opened.with_context(|| format!("open {}", lock.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            bail!("another output or another agent writes there: name another path, or end it")
        }
        Err(error) => Err(error).with_context(|| format!("lock {}", lock.display())),
    }
}

impl Place {
    fn take_lock(&self) -> Result<()> {
        if self.lock.get().is_none() {
            // Nobody else can have set it meanwhile: they would hold the lock.
            drop(self.lock.set(lock(&self.names)?));
        }
        Ok(())
    }

    fn refuse_unwritable(&self) -> Result<()> {
        let folder = &self.names.folder;
        let access = Access::WRITE_OK | Access::EXEC_OK;
        accessat(CWD, folder, access, AtFlags::EACCESS)
            .with_context(|| format!("make files in {}", folder.display()))?;
        self.take_lock()?;
        self.left(&self.names.open(None)).map(drop)
    }

    /// The open file that an earlier process or a failed write left, if there is one, and the length of its whole pieces.
    fn left(&self, path: &Path) -> Result<Option<(File, Metadata, u64)>> {
        let mut file = match own_file::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.context("open the file that is there")?,
        };
        let metadata = file.metadata().context("stat the file that is there")?;
        ensure!(
            metadata.is_file(),
            "it exists and is not a regular file: name another path"
        );
        let whole = (self.whole_len)(&mut file).context(
            "there is a file that this output would not have written: name another path, or move it away",
        )?;
        Ok(Some((file, metadata, whole)))
    }

    /// Completes what an earlier process or a failed write left.
    fn recover(&self, owner: Option<&Owner>) -> Result<()> {
        self.names.finish_parts(owner, |part| self.finish(part))?;
        let path = &self.names.open(owner);
        let Some((file, metadata, whole)) = self.left(path)? else {
            return Ok(());
        };
        if whole < metadata.len() {
            tracing::warn!(
                file = %path.display(),
                bytes = metadata.len() - whole,
                "removed a partial write at the end of the file: a process was killed while writing"
            );
            file.set_len(whole).context("cut the file")?;
        }
        if whole == 0 {
            return fs::remove_file(path).context("remove the file without a whole piece");
        }
        if owner.is_some() {
            return self.complete(&self.names.complete(SystemTime::now(), owner)?);
        }
        let began = metadata.created().or_else(|_| metadata.modified());
        let began = began.context("the time of the file that is there")?;
        self.complete(&self.names.recovered(began)?)
    }

    /// Completes the open file and removes the oldest ones. At every moment either the written file or the complete
    /// file has all the data.
    fn complete(&self, name: &Complete) -> Result<()> {
        let (names, rotation) = (&self.names, &self.rotation);
        let open = names.open(name.owner.as_ref());
        if self.made.is_none() && rotation.compression == Compression::None {
            fs::rename(open, names.whole(name, "")).context("rename it")?;
        } else {
            fs::rename(open, names.part(name)).context("rename it")?;
            self.finish(name)?;
        }
        names.remove_the_oldest(rotation)
    }

    /// Builds the complete file from the part, then removes the part.
    fn finish(&self, name: &Complete) -> Result<()> {
        let (names, compression) = (&self.names, self.rotation.compression);
        let part = names.part(name);
        let ending = match self.made {
            Some(Made { ending: [one], .. }) => one,
            None => compression.suffix(),
        };
        let whole = names.whole(name, ending);
        if ending.is_empty() {
            return fs::rename(part, whole).context("rename it");
        }
        // Anyone who may write in the folder could have put a link there.
        let from = own_file::open(&part).context("open it")?;
        let mut from = from.context("it is not a regular file")?;
        let half = names.half(name, ending);
        let to =
            own_file::replace(&half, MODE).with_context(|| format!("make {}", half.display()))?;
        let made = match self.made {
            Some(Made { make, .. }) => make(&mut from, to, compression).context("make it whole"),
            None => compress(&mut from, to, compression).context("compress it"),
        };
        made?.sync_all().context("write it to the disk")?;
        fs::rename(&half, &whole).context("rename the complete file")?;
        fs::remove_file(&part).context("remove the pieces of the complete file")
    }
}

fn compress(from: &mut File, to: File, compression: Compression) -> Result<File> {
    Ok(match compression {
        Compression::None => {
            let mut to = to;
            io::copy(from, &mut to)?;
            to
        }
        Compression::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(to, flate2::Compression::default());
            io::copy(from, &mut gzip)?;
            gzip.finish()?
        }
        Compression::Zstd => {
            let mut zstd = zstd::Encoder::new(to, zstd::DEFAULT_COMPRESSION_LEVEL)?;
            io::copy(from, &mut zstd)?;
            zstd.finish()?
        }
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    joined(spawn_blocking(work).await)
}

/// The result of a writing thread, with advice if the disk is full.
fn joined<T>(done: Result<Result<T>, JoinError>) -> Result<T> {
    let done = done.context("the thread that writes")?;
    done.map_err(|error| {
        if is_no_room(&error) {
            anyhow!("{error:#}: free space there, or let the output keep less (keep_bytes)")
        } else {
            error
        }
    })
}

fn is_no_room(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| {
        matches!(
            error.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        )
    })
}

#[cfg(test)]
mod tests;
