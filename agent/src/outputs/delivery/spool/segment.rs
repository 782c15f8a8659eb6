//! A file of the spool: batches in the order of their numbers.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;

use super::entry::{HEADER_BYTES, Header};

const MAGIC: [u8; 8] = *b"flowspl1";
/// Magic, then the stream.
const FRONT_BYTES: u64 = 16;
const SUFFIX: &str = "spool";

/// What is known of a file of the spool.
#[derive(Debug)]
pub struct Segment {
    pub path: PathBuf,
    /// The number of its first batch, which is its name.
    pub first_seq: u64,
    /// Its last batch that can be found; `None` where it has none.
    pub last: Option<Header>,
    /// Where the next batch would begin.
    pub end: u64,
}

impl Segment {
    pub fn create(folder: &Path, stream_id: u64, first_seq: u64) -> io::Result<(Self, File)> {
        let path = folder.join(format!("{first_seq:020}.{SUFFIX}"));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(&path)?;
        let front = [MAGIC, stream_id.to_le_bytes()].concat();
        file.write_all_at(&front, 0)?;
        let segment = Self {
            path,
            first_seq,
            last: None,
            end: FRONT_BYTES,
        };
        Ok((segment, file))
    }

    /// The number in the name of a file, if it is one of a spool.
    pub fn seq_of(path: &Path) -> Option<u64> {
        let is_one = path.extension().is_some_and(|suffix| suffix == SUFFIX);
        path.file_stem()?.to_str()?.parse().ok().filter(|_| is_one)
    }

    /// Opens a file whose batches have not been looked for. Returns the number of its stream, too.
    pub fn open(path: PathBuf, first_seq: u64) -> Result<(Self, u64)> {
        let mut file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let mut front = [0; FRONT_BYTES as usize];
        let read = file.read_exact(&mut front);
        read.with_context(|| format!("read {}", path.display()))?;
        let (magic, stream_id) = front.split_at(8);
        if magic != MAGIC {
            bail!("{} does not begin as a segment does", path.display());
        }
        let stream_id = u64::from_le_bytes(stream_id.try_into().expect("eight"));
        let segment = Self {
            path,
            first_seq,
            last: None,
            end: FRONT_BYTES,
        };
        Ok((segment, stream_id))
    }

    /// Looks for its batches, one after the other. Says where that ends if the file goes on.
    pub fn look_through(&mut self, mut found: impl FnMut(&Header)) -> io::Result<Option<Damage>> {
        let mut reader = Reader::open(self)?;
        loop {
            match reader.header()? {
                Next::Batch(header) => {
                    found(&header);
                    reader.skip(&header);
                    self.last = Some(header);
                    self.end = reader.at;
                }
                Next::End => return Ok(None),
                Next::Damage => return Ok(Some(Damage { at: self.end })),
            }
        }
    }

    pub fn last_seq(&self) -> Option<u64> {
        self.last.map(|last| last.seq)
    }
}

/// From here on nothing can be read.
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
        Ok(Self {
            file: File::open(&segment.path)?,
            at: FRONT_BYTES,
        })
    }

    /// The next batch, with its bytes if they are whole. `None` at the end, and where the rest is damaged.
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

    /// The next header, which stays the next one.
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

/// Writes batches behind each other.
pub struct Writer {
    file: File,
}

impl Writer {
    pub fn new(file: File) -> Self {
        Self { file }
    }

    /// What fails leaves nothing that would be taken for a batch.
    pub fn append(&self, segment: &mut Segment, header: Header, parts: &[Bytes]) -> io::Result<()> {
        let whole = [&header.encode()[..], &parts.concat()].concat();
        if let Err(error) = self.file.write_all_at(&whole, segment.end) {
            self.file.set_len(segment.end)?;
            return Err(error);
        }
        segment.end += whole.len() as u64;
        segment.last = Some(header);
        Ok(())
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
