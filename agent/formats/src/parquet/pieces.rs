//! Pieces of an incomplete file: a header of [`HEADER_LEN_BYTES`] with a mark, the body's length and its CRC-32, both
//! little-endian, then the body, a `FlowBatch`.

use std::{
    fs::File,
    io::{self, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom},
};

use prost::Message as _;
use proto::FlowBatch;

pub const MARK: [u8; 4] = *b"FLR2";
const HEADER_LEN_BYTES: usize = 12;

/// Builds a piece. `write` appends the body.
pub(super) fn piece(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut piece = vec![0; HEADER_LEN_BYTES];
    write(&mut piece);
    let (header, body) = piece.split_at_mut(HEADER_LEN_BYTES);
    let len = u32::try_from(body.len()).expect("a batch has a few megabytes at most");
    header[..4].copy_from_slice(&MARK);
    header[4..8].copy_from_slice(&len.to_le_bytes());
    header[8..].copy_from_slice(&checksum(body).to_le_bytes());
    piece
}

fn checksum(body: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(body);
    crc.sum()
}

/// The end of the last intact piece. Fails if the file contains something else.
pub fn whole_len(file: &mut File) -> io::Result<u64> {
    let mut first = Vec::new();
    file.rewind()?;
    file.by_ref()
        .take(MARK.len() as u64)
        .read_to_end(&mut first)?;
    if !MARK.starts_with(&first) {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut pieces = Pieces::new(file)?;
    while pieces.body()?.is_some() {}
    Ok(pieces.read_bytes)
}

/// Reads the pieces of a file, up to the first damaged one.
pub struct Pieces<'a> {
    from: BufReader<&'a mut File>,
    len_bytes: u64,
    read_bytes: u64,
}

impl<'a> Pieces<'a> {
    pub fn new(file: &'a mut File) -> io::Result<Self> {
        let len_bytes = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        Ok(Self {
            from: BufReader::new(file),
            len_bytes,
            read_bytes: 0,
        })
    }

    pub fn next_batch(&mut self) -> io::Result<Option<FlowBatch>> {
        let before = self.read_bytes;
        let Some(body) = self.body()? else {
            return Ok(None);
        };
        let batch = FlowBatch::decode(&body[..]).ok();
        if batch.is_none() {
            self.read_bytes = before;
        }
        Ok(batch)
    }

    /// Bytes after the last readable piece.
    pub fn rest_bytes(&self) -> u64 {
        self.len_bytes - self.read_bytes
    }

    fn body(&mut self) -> io::Result<Option<Vec<u8>>> {
        let rest = self.rest_bytes();
        if rest < HEADER_LEN_BYTES as u64 {
            return Ok(None);
        }
        let mut header = [0; HEADER_LEN_BYTES];
        self.from.read_exact(&mut header)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let piece = HEADER_LEN_BYTES as u64 + u64::from(word(4));
        if header[..4] != MARK || piece > rest {
            return Ok(None);
        }
        let mut body = vec![0; word(4) as usize];
        self.from.read_exact(&mut body)?;
        if checksum(&body) != word(8) {
            return Ok(None);
        }
        self.read_bytes += piece;
        Ok(Some(body))
    }
}
