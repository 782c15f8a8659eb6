//! Batches on disk that no collector has acknowledged, so that they survive the agent.
//!
//! A spool is a folder with [`segment`]s, which are written one after the other, and a [`mark`] that says how far it has come.
//! Each batch says what all before it report. So what a damaged, a deleted or an evicted one reported is known from those
//! around it.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};

use super::waiting::{Point, Waiting};
use crate::{hub::Volume, outputs::tally::sum_of, proto::RecordSum};

mod entry;
mod losses;
mod mark;
mod segment;

use entry::Header;
use losses::{Losses, without};
use mark::{Mark, Sum};
use segment::{Damage, Reader, Segment, Writer};

pub(super) struct Spool {
    folder: PathBuf,
    /// Held as long as this is used.
    _lock: File,
    most_bytes: u64,
    boot_id: String,
    stream_id: u64,
    /// From old to new.
    segments: VecDeque<Segment>,
    /// Of the newest one.
    writer: Option<Writer>,
    /// With the first number of its segment.
    reader: Option<(u64, Reader)>,
    /// Up to here everything was taken out in order, or is lost.
    reached: Point,
    /// Up to here everything was acknowledged, or is lost.
    done: Point,
    losses: Losses,
    /// The last number that was given.
    last: Point,
    /// The last number that is on disk.
    written_seq: u64,
    /// Something is not on disk for sure.
    is_dirty: bool,
    /// The mark is behind.
    is_marked: bool,
}

/// Where a spool goes on.
pub(super) struct Beginning {
    pub(super) stream_id: u64,
    pub(super) last: Point,
    /// What was lost so far before it had a number.
    pub(super) lost_in_queue: Volume,
    /// What is missing that the run before did not know.
    pub(super) lost: Volume,
    /// What waits in it, or turns out to be damaged when it is read.
    pub(super) waits: RecordSum,
    /// What an operator should know of it.
    pub(super) faults: Vec<String>,
}

/// The folder is in use.
#[derive(Debug, thiserror::Error)]
#[error("{} is in use by another output or agent", folder.display())]
pub(super) struct InUse {
    folder: PathBuf,
}

impl Spool {
    /// Fails with [`InUse`] where another one has the folder. A new spool begins the stream that `fresh_id` names.
    pub(super) fn open(
        folder: PathBuf,
        most_bytes: u64,
        fresh_id: u64,
        boot_id: &str,
    ) -> Result<(Self, Beginning)> {
        let lock = take(&folder)?;
        let mut faults = Vec::new();
        let mark = Mark::read(&folder).unwrap_or_else(|error| {
            faults.push(format!("{error:#}, so what was lost before is not known"));
            None
        });
        let mut stream_id = mark.as_ref().map(|mark| mark.stream_id);
        let mut walk = Walk::from(mark.as_ref().map(Mark::done));
        let mut segments = VecDeque::new();
        for (first_seq, path) in segment_files(&folder)? {
            let named = path.display().to_string();
            let opened = Segment::open(path.clone(), first_seq).and_then(|(mut segment, of)| {
                if *stream_id.get_or_insert(of) != of {
                    bail!("{named} is of another spool");
                }
                let damage = segment.look_through(|header| walk.pass(header));
                let damage = damage.with_context(|| format!("read {named}"))?;
                Ok((segment, damage))
            });
            match opened {
                Ok((segment, damage)) => {
                    if let Some(Damage { at }) = damage {
                        faults.push(format!("{named} is damaged from byte {at} on"));
                    }
                    segments.push_back(segment);
                }
                Err(error) => {
                    faults.push(format!("{error:#}; it is removed"));
                    fs::remove_file(path).context("remove a segment")?;
                }
            }
        }
        let found = segments.iter().rev().find_map(|segment| segment.last);
        let is_intact = mark
            .as_ref()
            .is_some_and(|mark| mark.is_last || (mark.boot_id == boot_id && faults.is_empty()));
        let is_new = mark.is_none() && segments.is_empty();
        let mark = mark.unwrap_or_default();
        let mut last = Point {
            seq: mark.last_seq,
            sum: mark.all.into(),
        };
        let mut lost_in_queue = mark.lost_in_queue;
        if let Some(found) = found.filter(|found| found.seq > last.seq) {
            last = through(&found);
            lost_in_queue = found.lost_in_queue;
        }
        let done = walk.begun.unwrap_or_else(|| mark.done());
        let missing = walk.missing_to(last);
        let losses = Losses::new(mark.lost_done, missing);
        let news = without(losses.all(), mark.lost);
        let waits = without(last.since(done), missing);
        if !is_intact && !is_new {
            last = last.leap();
        }
        let mut spool = Self {
            folder,
            _lock: lock,
            most_bytes,
            boot_id: boot_id.to_owned(),
            stream_id: stream_id.unwrap_or(fresh_id),
            segments,
            writer: None,
            reader: None,
            reached: done,
            done,
            losses,
            last,
            written_seq: found.map_or(0, |found| found.seq),
            is_dirty: false,
            is_marked: false,
        };
        spool.forget_done();
        let beginning = Beginning {
            stream_id: spool.stream_id,
            last,
            lost_in_queue,
            lost: news,
            waits: sum_of(waits),
            faults,
        };
        Ok((spool, beginning))
    }

    /// Something is on disk that was not taken out.
    pub(super) fn is_ahead(&self) -> bool {
        self.written_seq > self.reached.seq
    }

    /// What the segments take.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end).sum()
    }

    /// A number was given, whether or not the batch gets to the disk.
    pub(super) fn note(&mut self, last: Point) {
        self.last = last;
        self.is_marked = false;
    }

    /// What is missing among batches that had numbers.
    pub(super) fn lost(&self) -> Volume {
        self.losses.all()
    }

    /// Writes a batch. `evicted` becomes what was lost to make room for it, whether it is written or not.
    pub(super) fn append(
        &mut self,
        batch: &Waiting,
        lost_in_queue: Volume,
        evicted: &mut Volume,
    ) -> io::Result<()> {
        let header = Header {
            seq: batch.seq,
            unix_ns: batch.unix_ns,
            own: batch.own,
            before: batch.before,
            lost_in_queue,
            ..Header::default()
        };
        let header = header.of(&batch.parts);
        *evicted = Volume::default();
        self.make_room(header.stored_bytes(), evicted)?;
        let is_full = |segment: &Segment| segment.end >= self.segment_bytes();
        if self.segments.back().is_none_or(is_full) {
            self.end_segment()?;
        }
        if self.writer.is_none() {
            let created = Segment::create(&self.folder, self.stream_id, batch.seq);
            let (segment, file) = created?;
            self.segments.push_back(segment);
            self.writer = Some(Writer::new(file));
        }
        let (Some(writer), Some(segment)) = (&self.writer, self.segments.back_mut()) else {
            return Err(io::Error::other("there is no segment"));
        };
        writer.append(segment, header, &batch.parts)?;
        self.written_seq = batch.seq;
        self.is_dirty = true;
        Ok(())
    }

    /// The next batches, of so many bytes at least unless there are no more, and what turns out to be lost before and between
    /// them.
    pub(super) fn read(&mut self, least_bytes: usize) -> io::Result<(Vec<Waiting>, Volume)> {
        let mut batches = Vec::new();
        let mut lost = Volume::default();
        let mut bytes = 0;
        while bytes < least_bytes {
            let Some((header, body)) = self.next()? else {
                break;
            };
            // Without its bytes it is seen to be missing before the next one.
            let Some(body) = body else { continue };
            let batch = Waiting {
                seq: header.seq,
                unix_ns: header.unix_ns,
                own: header.own,
                before: header.before,
                parts: [Bytes::new(), body],
                is_on_disk: true,
            };
            bytes += batch.len_bytes();
            lost += self.reach(&batch);
            batches.push(batch);
        }
        Ok((batches, lost))
    }

    /// A batch follows those that were taken out. Returns what is missing before it and was not known.
    pub(super) fn reach(&mut self, batch: &Waiting) -> Volume {
        let news = self.reach_to(batch.preceding());
        self.reached = batch.through();
        news
    }

    /// Nothing more can be read before this. Returns what is missing and was not known.
    pub(super) fn reach_to(&mut self, point: Point) -> Volume {
        let missing = point.since(self.reached);
        let news = self.losses.meet(missing, self.reached, point);
        self.reached = point;
        news
    }

    /// Batches up to this one are at a collector, or are lost.
    pub(super) fn acknowledge(&mut self, through: Point) {
        self.done = through;
        self.losses.acknowledge(through.seq);
        self.is_marked = false;
        self.forget_done();
    }

    /// Brings everything to the disk for sure, and says how far it has come.
    pub(super) fn sync(&mut self, lost_in_queue: Volume, is_last: bool) -> Result<()> {
        if self.is_dirty
            && let Some(writer) = &self.writer
        {
            writer.sync().context("write a segment to the disk")?;
            self.is_dirty = false;
        }
        if self.is_marked && !is_last {
            return Ok(());
        }
        let mark = Mark {
            stream_id: self.stream_id,
            done_seq: self.done.seq,
            done: self.done.sum.into(),
            last_seq: self.last.seq,
            all: self.last.sum.into(),
            lost_in_queue,
            lost: self.losses.all(),
            lost_done: self.losses.done(),
            boot_id: self.boot_id.clone(),
            is_last,
        };
        mark.write(&self.folder)?;
        self.is_marked = true;
        Ok(())
    }

    /// Gives up the oldest segments until so many bytes have room, and adds what is lost by that.
    fn make_room(&mut self, more_bytes: u64, lost: &mut Volume) -> io::Result<()> {
        while self.bytes() + more_bytes > self.most_bytes
            && let Some(oldest) = self.segments.front()
        {
            remove(oldest)?;
            let Some(oldest) = self.segments.pop_front() else {
                break;
            };
            if self.segments.is_empty() {
                self.writer = None;
            }
            if let Some(last) = oldest.last.map(|last| through(&last))
                && last.seq > self.reached.seq
            {
                *lost += self.reach_to(last);
            }
        }
        Ok(())
    }

    fn segment_bytes(&self) -> u64 {
        (self.most_bytes / 8).clamp(1 << 20, 64 << 20)
    }

    fn end_segment(&mut self) -> io::Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.sync()?;
        }
        Ok(())
    }

    /// Removes segments of which nothing is needed. The newest one stays as long as it is written.
    fn forget_done(&mut self) {
        while let Some(oldest) = self.segments.front() {
            let is_written = self.segments.len() == 1 && self.writer.is_some();
            let is_done = oldest.last_seq().is_none_or(|last| last <= self.done.seq);
            if is_written || !is_done {
                return;
            }
            if let Err(error) = remove(oldest) {
                tracing::warn!(path = %oldest.path.display(), %error, "a segment that is not needed any more stays");
            }
            self.segments.pop_front();
        }
    }

    /// The next batch behind those that were reached, with its bytes if they are whole.
    fn next(&mut self) -> io::Result<Option<(Header, Option<Bytes>)>> {
        loop {
            let reached = self.reached.seq;
            let is_ahead =
                |segment: &&Segment| segment.last_seq().is_some_and(|last| last > reached);
            let Some((first_seq, reader)) = &mut self.reader else {
                let Some(segment) = self.segments.iter().find(is_ahead) else {
                    return Ok(None);
                };
                self.reader = Some((segment.first_seq, Reader::open(segment)?));
                continue;
            };
            while let Some(header) = reader.peek()? {
                if header.seq > reached {
                    return reader.next();
                }
                reader.skip(&header);
            }
            let first_seq = *first_seq;
            // What is behind damage is found to be missing before the next segment, or at the end.
            let mut later = self.segments.iter().filter(is_ahead);
            let Some(next) = later.find(|segment| segment.first_seq > first_seq) else {
                let is_damaged = self.written_seq > reached;
                if is_damaged {
                    self.reader = None;
                    self.writer = None;
                    self.written_seq = reached;
                }
                return Ok(None);
            };
            self.reader = Some((next.first_seq, Reader::open(next)?));
        }
    }
}

/// Makes a folder that is not there, and locks it.
fn take(folder: &Path) -> Result<File> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("make {}", folder.display()))?;
    let path = folder.join("lock");
    let mut options = File::options();
    let lock = options.write(true).create(true).truncate(false).open(&path);
    let lock = lock.with_context(|| format!("open {}", path.display()))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => bail!(InUse {
            folder: folder.to_owned()
        }),
        Err(error) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

/// A way from header to header.
struct Walk {
    /// Where it began; without a mark before the first batch that is found.
    begun: Option<Point>,
    at: Point,
    /// What is missing on the way.
    missing: Volume,
}

impl Walk {
    fn from(begun: Option<Point>) -> Self {
        Self {
            begun,
            at: begun.unwrap_or_default(),
            missing: Volume::default(),
        }
    }

    fn pass(&mut self, header: &Header) {
        let before = Point {
            seq: header.seq - 1,
            sum: header.before,
        };
        if self.begun.is_none() {
            self.begun = Some(before);
            self.at = before;
        }
        if header.seq > self.at.seq {
            self.missing += before.since(self.at);
            self.at = through(header);
        }
    }

    /// What is missing if there is no more than that until here.
    fn missing_to(mut self, last: Point) -> Volume {
        self.missing += last.since(self.at);
        self.missing
    }
}

/// With the numbers in their names, in that order.
fn segment_files(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("read {}", folder.display()))?;
        let path = path.path();
        files.extend(Segment::seq_of(&path).map(|seq| (seq, path)));
    }
    files.sort_unstable();
    Ok(files)
}

fn remove(segment: &Segment) -> io::Result<()> {
    match fs::remove_file(&segment.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn through(header: &Header) -> Point {
    let mut sum = header.before;
    sum += header.own;
    Point {
        seq: header.seq,
        sum,
    }
}

impl From<Sum> for RecordSum {
    fn from(sum: Sum) -> Self {
        let Sum {
            records,
            packets,
            bytes,
        } = sum;
        Self {
            records,
            packets,
            bytes,
        }
    }
}

impl From<RecordSum> for Sum {
    fn from(sum: RecordSum) -> Self {
        let RecordSum {
            records,
            packets,
            bytes,
        } = sum;
        Self {
            records,
            packets,
            bytes,
        }
    }
}

#[cfg(test)]
mod tests;
