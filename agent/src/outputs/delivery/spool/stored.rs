//! Reads the segments of a spool beside the agent that writes them, for those who ask what waits there.

use std::{fs::File, io, path::Path};

use prost::Message as _;

#[cfg(test)]
use super::super::waiting::Point;
use super::{
    mark::{self, Mark},
    next_of,
    segment::{Reader, Segment, is_damage},
};
use crate::proto::FlowBatch;

/// Whether a folder is a spool, which may be empty.
pub(crate) fn is_spool(folder: &Path) -> bool {
    folder.join(mark::NAME).is_file()
}

pub(crate) fn is_segment(path: &Path) -> bool {
    Segment::seq_of(path).is_some()
}

/// Up to which number collectors have acknowledged what is in a spool, as of the last second. 0 if that is not known.
pub(crate) fn acknowledged(folder: &Path) -> u64 {
    let mark = Mark::read(folder).ok().flatten();
    mark.and_then(Result::ok).map_or(0, |mark| mark.done.seq)
}

/// The batches of a segment that wait, from front to end.
pub(crate) struct Stored {
    reader: Reader,
    acknowledged_seq: u64,
    len_bytes: u64,
    damaged_bytes: u64,
}

impl Stored {
    /// Of a file that begins with [`super::MAGIC`].
    pub(crate) fn in_file(file: File, acknowledged_seq: u64) -> io::Result<Self> {
        Ok(Self {
            len_bytes: file.metadata()?.len(),
            reader: Reader::of(file),
            acknowledged_seq,
            damaged_bytes: 0,
        })
    }

    /// The next one that is whole. What a disk does not give back is damage, as it is to the agent.
    pub(crate) fn next(&mut self) -> io::Result<Option<FlowBatch>> {
        loop {
            let next = match next_of(&mut self.reader, self.acknowledged_seq) {
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

    /// What could not be read: damaged batches, and what is behind the last one that was found.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.damaged_bytes + self.len_bytes.saturating_sub(self.reader.at())
    }
}

/// A segment with these batches, as the agent writes it.
#[cfg(test)]
pub(crate) fn segment_of(batches: &[FlowBatch]) -> Vec<u8> {
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

/// Notes in a folder that collectors have acknowledged what has numbers up to this one.
#[cfg(test)]
pub(crate) fn acknowledge(folder: &Path, seq: u64) {
    let point = Point {
        seq,
        ..Point::default()
    };
    let mark = Mark {
        done: point,
        last: point,
        ..Mark::default()
    };
    mark.write(folder).unwrap();
}
