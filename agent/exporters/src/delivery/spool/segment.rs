//! A segment: one file of the spool, with batches in ascending order of sequence numbers.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::io::Errno;
use sys::own_file;

use super::{
    MODE,
    entry::{HEADER_BYTES, Header, SEQS},
};
use crate::backoff::Backoff;

pub const MAGIC: [u8; 8] = *b"flowspl2";
/// Magic, stream ID, and a checksum of both.
const FRONT_BYTES: usize = 20;
const SUFFIX: &str = "spool";

/// A segment as far as its headers describe it.
#[derive(Debug)]
pub struct Segment {
    pub path: PathBuf,
    /// Sequence number of its first batch, which is also the file name.
    pub first_seq: u64,
    /// When its first batch was queued.
    pub first_unix_ns: u64,
    /// Header of its last readable batch; `None` if it has none.
    pub last: Option<Header>,
    /// Offset where the next batch goes.
    pub end: u64,
}

impl Segment {
    /// Creates the file. Fails if it exists.
    pub fn create(folder: &Path, stream_id: u64, first_seq: u64) -> io::Result<(Self, File)> {
        let path = folder.join(format!("{first_seq:020}.{SUFFIX}"));
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(&path)?;
        if let Err(error) = file.write_all_at(&front(stream_id), 0) {
            // A segment without a front is useless.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok((Self::new(path, first_seq), file))
    }

    fn new(path: PathBuf, first_seq: u64) -> Self {
        Self {
            path,
            first_seq,
            first_unix_ns: 0,
            last: None,
            end: FRONT_BYTES as u64,
        }
    }

    /// The sequence number in a file name, if the file is a segment.
    pub fn seq_of(path: &Path) -> Option<u64> {
        let is_one = path.extension().is_some_and(|suffix| suffix == SUFFIX);
        let seq = path.file_stem()?.to_str()?.parse().ok()?;
        (is_one && SEQS.contains(&seq)).then_some(seq)
    }

    /// Opens a segment without scanning its batches. Also returns its stream ID. `None` if the file is not a segment.
    pub fn open(path: PathBuf, first_seq: u64) -> io::Result<Option<(Self, u64)>> {
        let Some(file) = own_file::open(&path)? else {
            return Ok(None);
        };
        let stream_id = stream_of(&file)?;
        Ok(stream_id.map(|stream_id| (Self::new(path, first_seq), stream_id)))
    }

    /// Scans the headers one after the other. Returns the damage if the file continues after the last readable one.
    pub fn look_through(&mut self, mut found: impl FnMut(&Header)) -> io::Result<Option<Damage>> {
        let mut reader = Reader::open(self)?;
        loop {
            let least_seq = self.last_seq().map_or(self.first_seq, |last| last + 1);
            let next = match reader.header() {
                Err(error) if is_damage(&error) => Next::Damage,
                next => next?,
            };
            match next {
                Next::Batch(header) if header.seq >= least_seq => {
                    found(&header);
                    reader.skip(&header);
                    self.took(header, reader.at);
                }
                Next::End => return Ok(None),
                Next::Batch(_) | Next::Damage => return Ok(Some(Damage { at: self.end })),
            }
        }
    }

    /// Syncs what earlier processes wrote.
    pub fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    /// Writes the segment anew, because an earlier sync may have failed: the kernel reports that only to the files open
    /// at the time.
    pub fn renew(&self) -> io::Result<()> {
        self.copied(&self.file()?).map(drop)
    }

    fn file(&self) -> io::Result<File> {
        let file = own_file::open(&self.path)?;
        file.ok_or_else(|| io::Error::other("it is no longer a regular file"))
    }

    /// Copies the segment to a new file, syncs it, and renames it into place.
    fn copied(&self, file: &File) -> io::Result<File> {
        let new = self.path.with_file_name("segment.new");
        let copied = own_file::replace(&new, MODE).and_then(|copy| {
            copy_pieces(file, &copy, self.end)?;
            copy.sync_data()?;
            fs::rename(&new, &self.path)?;
            Ok(copy)
        });
        if copied.is_err() {
            // The copy takes space that the spool may not have.
            let _ = fs::remove_file(&new);
        }
        copied
    }

    pub fn last_seq(&self) -> Option<u64> {
        self.last.map(|last| last.seq)
    }

    fn took(&mut self, header: Header, end: u64) {
        if self.last.is_none() {
            self.first_unix_ns = header.unix_ns;
        }
        self.last = Some(header);
        self.end = end;
    }
}

/// The stream ID at the front of a file; `None` if the file is not a segment.
pub fn stream_of(file: &File) -> io::Result<Option<u64>> {
    let mut read = [0; FRONT_BYTES];
    match file.read_exact_at(&mut read, 0) {
        Err(error) if is_damage(&error) => return Ok(None),
        done => done?,
    }
    let stream_id = u64::from_le_bytes(read[8..16].try_into().expect("eight"));
    Ok((read == front(stream_id)).then_some(stream_id))
}

/// Whether an error is permanent, so that a retry is pointless.
pub fn is_damage(error: &io::Error) -> bool {
    let passes = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    let passes = passes.map(Errno::raw_os_error);
    !error
        .raw_os_error()
        .is_some_and(|error| passes.contains(&error))
}

pub fn front(stream_id: u64) -> [u8; FRONT_BYTES] {
    let mut front = [0; FRONT_BYTES];
    front[..8].copy_from_slice(&MAGIC);
    front[8..16].copy_from_slice(&stream_id.to_le_bytes());
    let crc = crc32fast::hash(&front[..16]);
    front[16..].copy_from_slice(&crc.to_le_bytes());
    front
}

/// Copies through the page cache, which most likely still has the data; `copy_file_range` could copy what is on disk
/// instead. Unreadable pieces become zeros, and the checksums show the damage when the batch is read.
fn copy_pieces(from: &File, to: &File, len: u64) -> io::Result<()> {
    const PIECE_BYTES: u64 = 64 << 10;
    let mut piece = vec![0; PIECE_BYTES as usize];
    for at in (0..len).step_by(PIECE_BYTES as usize) {
        let piece = &mut piece[..PIECE_BYTES.min(len - at) as usize];
        match from.read_exact_at(piece, at) {
            Err(error) if is_damage(&error) => piece.fill(0),
            read => read?,
        }
        to.write_all_at(piece, at)?;
    }
    Ok(())
}

/// Nothing can be read from this offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    pub at: u64,
}

/// Reads a segment from front to end.
pub struct Reader {
    file: File,
    at: u64,
}

enum Next {
    Batch(Header),
    End,
    Damage,
}

impl Reader {
    pub fn open(segment: &Segment) -> io::Result<Self> {
        Ok(Self::of(segment.file()?))
    }

    pub fn of(file: File) -> Self {
        let at = FRONT_BYTES as u64;
        Self { file, at }
    }

    /// Offset of the next batch.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next batch, with its body if that is intact. `None` at the end and where the rest is damaged.
    pub fn next(&mut self) -> io::Result<Option<(Header, Option<Bytes>)>> {
        let Next::Batch(header) = self.header()? else {
            return Ok(None);
        };
        let mut bytes = vec![0; header.len_bytes as usize];
        let from = self.at + HEADER_BYTES as u64;
        self.file.read_exact_at(&mut bytes, from)?;
        self.skip(&header);
        let bytes = header.fits(&bytes).then(|| Bytes::from(bytes));
        Ok(Some((header, bytes)))
    }

    /// The next header, without advancing.
    pub fn peek(&mut self) -> io::Result<Option<Header>> {
        Ok(match self.header()? {
            Next::Batch(header) => Some(header),
            Next::End | Next::Damage => None,
        })
    }

    pub fn skip(&mut self, header: &Header) {
        self.at += header.stored_bytes();
    }

    fn header(&self) -> io::Result<Next> {
        let len = self.file.metadata()?.len();
        if len == self.at {
            return Ok(Next::End);
        }
        if len < self.at + HEADER_BYTES as u64 {
            return Ok(Next::Damage);
        }
        let mut bytes = [0; HEADER_BYTES];
        self.file.read_exact_at(&mut bytes, self.at)?;
        let header = Header::decode(&bytes);
        let header = header.filter(|header| self.at + header.stored_bytes() <= len);
        Ok(header.map_or(Next::Damage, Next::Batch))
    }
}

/// Appends batches to a segment.
pub struct Writer {
    file: File,
    refused: Option<Refused>,
}

/// The state after a failed sync.
struct Refused {
    again_at: Instant,
    backoff: Backoff,
}

/// Least time between copies, since each one rewrites a whole segment.
const PAUSE: Duration = Duration::from_secs(1);

impl Writer {
    pub fn new(file: File) -> Self {
        Self {
            file,
            refused: None,
        }
    }

    /// Appends a batch. After a failure the file is cut back to its previous end.
    pub fn append(&self, segment: &mut Segment, header: Header, parts: &[Bytes]) -> io::Result<()> {
        let whole = [&header.encode()[..], &parts.concat()].concat();
        if let Err(error) = self.file.write_all_at(&whole, segment.end) {
            self.file.set_len(segment.end)?;
            return Err(error);
        }
        segment.took(header, segment.end + whole.len() as u64);
        Ok(())
    }

    /// Syncs everything. The kernel reports a failed write only once and then considers the page clean (`fsync`(2)). So
    /// after a failure the whole segment is copied to a new file: at once with `is_urgent`, otherwise after a pause.
    /// Returns whether the new file replaced the old one.
    pub fn sync(&mut self, segment: &Segment, is_urgent: bool) -> io::Result<bool> {
        let Some(refused) = &mut self.refused else {
            let synced = self.file.sync_data();
            if synced.is_err() {
                self.refused = Some(Refused {
                    again_at: Instant::now(),
                    backoff: Backoff::default(),
                });
            }
            return synced.map(|()| false);
        };
        if !is_urgent && Instant::now() < refused.again_at {
            return Err(io::Error::other("the disk has not taken all of it"));
        }
        let copied = segment.copied(&self.file);
        refused.again_at = Instant::now() + refused.backoff.next(Some(PAUSE));
        self.file = copied?;
        self.refused = None;
        Ok(true)
    }
}
