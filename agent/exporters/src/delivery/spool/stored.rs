//! Reads the segments of a spool while the agent may be writing them, to show which batches wait.

use std::{fs::File, io, path::Path};

use anyhow::Result;
use prost::Message as _;
use proto::FlowBatch;

use super::{
    super::waiting::Point,
    mark::{self, Mark},
    next_of,
    segment::{self, Reader, Segment, is_damage},
};

/// Whether a folder is a spool. It may be empty.
pub fn is_spool(folder: &Path) -> bool {
    folder.join(mark::NAME).is_file()
}

pub fn is_segment(path: &Path) -> bool {
    Segment::seq_of(path).is_some()
}

/// How far collectors have acknowledged the stream of a spool. At most a second old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    stream_id: u64,
    through_seq: u64,
}

impl Acknowledged {
    /// Reads the mark of a folder. `None` if there is none, or if it is damaged.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>> {
        let mark = Mark::read(folder)?.and_then(Result::ok);
        Ok(mark.map(|mark| Self {
            stream_id: mark.stream_id,
            through_seq: mark.done.seq,
        }))
    }
}

/// The unacknowledged batches of a segment, front to end.
pub struct Stored {
    /// `None` if the file is not a segment.
    reader: Option<Reader>,
    acknowledged_seq: u64,
    len_bytes: u64,
    damaged_bytes: u64,
}

impl Stored {
    pub fn in_file(file: File, acknowledged: Acknowledged) -> io::Result<Self> {
        let len_bytes = file.metadata()?.len();
        let stream_id = segment::stream_of(&file)?;
        let is_its = stream_id == Some(acknowledged.stream_id);
        Ok(Self {
            reader: stream_id.map(|_| Reader::of(file)),
            acknowledged_seq: if is_its { acknowledged.through_seq } else { 0 },
            len_bytes,
            damaged_bytes: 0,
        })
    }

    /// The next intact batch. Read errors of the disk count as damage, as they do for the agent.
    pub fn next_batch(&mut self) -> io::Result<Option<FlowBatch>> {
        let Some(reader) = &mut self.reader else {
            return Ok(None);
        };
        loop {
            let next = match next_of(reader, self.acknowledged_seq) {
                Err(error) if is_damage(&error) => None,
                next => next?,
            };
            let Some((header, body)) = next else {
                return Ok(None);
            };
            let batch = body.and_then(|body| FlowBatch::decode(body).ok());
            if batch.is_some() {
                return Ok(batch);
            }
            self.damaged_bytes += header.stored_bytes();
        }
    }

    /// Bytes that could not be read: damaged batches, and everything after the last readable one.
    pub fn unread_bytes(&self) -> u64 {
        let read_bytes = self.reader.as_ref().map_or(0, Reader::at);
        self.damaged_bytes + self.len_bytes.saturating_sub(read_bytes)
    }
}

/// A segment with these batches, as the agent writes it, for tests.
#[doc(hidden)]
pub fn segment_of(batches: &[FlowBatch]) -> Vec<u8> {
    use super::{entry::Header, segment::front};

    let stream_id = batches.first().map_or(0, |batch| batch.stream_id);
    let mut bytes = front(stream_id).to_vec();
    for batch in batches {
        let body = batch.encode_to_vec();
        let header = Header {
            seq: batch.stream_seq,
            ..Header::default()
        };
        bytes.extend(header.of(&[&body]).encode());
        bytes.extend(body);
    }
    bytes
}

/// Notes in a folder that collectors have acknowledged what has numbers up to this one on this stream, for tests.
#[doc(hidden)]
pub fn acknowledge(folder: &Path, stream_id: u64, seq: u64) {
    let point = Point {
        seq,
        ..Point::default()
    };
    let mark = Mark {
        stream_id,
        done: point,
        last: point,
        ..Mark::default()
    };
    mark.write(folder).expect("the folder is a test's own");
}
