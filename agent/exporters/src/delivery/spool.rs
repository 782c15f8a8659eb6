//! Batches on disk that no collector has acknowledged, so that they survive the agent.
//!
//! A spool is a folder with [`segment`]s, which are written one after the other, and a [`mark`] that says how far it has come.
//! Each batch says what all before it report. So what a damaged, a deleted or an evicted one reported is known from those
//! around it.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use hub::Volume;
use proto::RecordSum;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use sys::own_file;

use super::waiting::{Point, Waiting, larger, without};

mod entry;
mod losses;
mod mark;
mod segment;
mod stored;

pub use segment::MAGIC;
pub use stored::{Acknowledged, Stored, is_segment, is_spool};
pub use stored::{acknowledge, segment_of};

use entry::Header;
use losses::Losses;
use mark::Mark;
use segment::{Damage, Reader, Segment, Writer, is_damage};

/// A segment has a sixteenth of what the spool may have, but no more than this and no less than the next one.
const LONGEST_SEGMENT_BYTES: u64 = 64 << 20;
const SHORTEST_SEGMENT_BYTES: u64 = 1 << 20;
/// Of all files. They have what all users of the host send, whoever may enter the folder.
const MODE: u32 = 0o600;
const WRITABLE_BY_OTHERS: u32 = 0o002;

pub(super) struct Spool {
    folder: PathBuf,
    /// Held as long as this is used.
    _lock: File,
    most_bytes: u64,
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
    /// The last number that was removed to make room.
    evicted_seq: u64,
    unsure: Unsure,
    /// The mark says how far it has come.
    is_marked: bool,
    /// It has been told that a segment cannot be removed.
    has_told_stays: bool,
}

/// What is not on disk for sure.
#[derive(Clone, Copy, Debug, Default)]
struct Unsure {
    has_batch: bool,
    /// A segment may not be in its folder.
    has_name: bool,
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

/// How a spool stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stand {
    /// Something is on disk that was not taken out.
    pub(super) is_ahead: bool,
    /// When the first of that came, or one before it.
    pub(super) ahead_since_unix_ns: u64,
    /// What the segments take.
    pub(super) bytes: u64,
    /// What is missing among batches that had numbers.
    pub(super) lost: Volume,
    /// The last number that was removed to make room.
    pub(super) evicted_seq: u64,
}

/// The folder is in use.
#[derive(Debug, thiserror::Error)]
#[error("{} is in use by another output or agent", folder.display())]
pub(super) struct InUse {
    folder: PathBuf,
}

impl Spool {
    /// Fails with [`InUse`] if another one has the folder. A new spool begins the stream that `fresh_id` names.
    pub(super) fn open(
        folder: PathBuf,
        most_bytes: u64,
        fresh_id: u64,
    ) -> Result<(Self, Beginning)> {
        let lock = take(&folder)?;
        let mut faults = Vec::new();
        faults.extend(open_to_others(&folder)?);
        let mark = match Mark::read(&folder)?.transpose() {
            Ok(mark) => mark,
            Err(error) => {
                faults.push(format!("{error:#}, so earlier losses are not known"));
                None
            }
        };
        let Found {
            stream_id,
            segments,
            walk,
            newest_seq,
        } = Found::in_folder(&folder, mark.as_ref(), &mut faults)?;
        let found = segments.back().and_then(|segment| segment.last);
        let is_intact = match &mark {
            Some(mark) => mark.is_last,
            // A stream of its own.
            None => segments.is_empty(),
        };
        let fresh = Mark {
            stream_id: stream_id.unwrap_or(fresh_id),
            ..Mark::default()
        };
        let mark = mark.unwrap_or(fresh);
        let mut last = mark.last;
        let mut lost_in_queue = mark.lost_in_queue;
        if let Some(found) = found.filter(|found| found.seq > last.seq) {
            last = found.through();
            lost_in_queue = found.lost_in_queue;
        }
        let done = walk.begun.unwrap_or(mark.done);
        // What is there but cannot be read may have been told, too.
        let told_ahead = without(mark.lost, mark.lost_done);
        let ahead = larger(walk.missing_to(last), told_ahead);
        let losses = Losses::new(mark.lost_done, ahead);
        let waits = without(last.since(done), ahead);
        if !is_intact {
            last.seq = last.seq.max(newest_seq);
            last = last.leap();
        }
        let mut spool = Self {
            folder,
            _lock: lock,
            most_bytes,
            stream_id: mark.stream_id,
            segments,
            writer: None,
            reader: None,
            reached: done,
            done,
            losses,
            last,
            written_seq: found.map_or(0, |found| found.seq),
            evicted_seq: 0,
            unsure: Unsure::default(),
            is_marked: false,
            has_told_stays: false,
        };
        let mut beginning = Beginning {
            stream_id: spool.stream_id,
            last,
            lost_in_queue,
            lost: without(spool.losses.all(), mark.lost),
            waits: RecordSum::from(waits),
            faults,
        };
        // Whoever wrote them may have been killed before that.
        if !is_intact
            && let Some(newest) = spool.segments.back()
            && let Err(error) = newest.renew()
        {
            let path = newest.path.display();
            beginning.faults.push(format!(
                "{path} could not be written anew: {error}; a power cut may take what the disk refused before"
            ));
        }
        for segment in &spool.segments {
            let synced = segment.sync();
            synced.with_context(|| format!("write {} to the disk", segment.path.display()))?;
        }
        // Numbers are given from here on, and this says that the last one is not known.
        spool.mark(lost_in_queue, None)?;
        spool.sync_folder()?;
        spool.forget_done();
        Ok((spool, beginning))
    }

    pub(super) fn stand(&self) -> Stand {
        let is_ahead = self.written_seq > self.reached.seq;
        let first_ahead = self.segments.iter().find(|segment| self.is_unread(segment));
        Stand {
            is_ahead,
            ahead_since_unix_ns: first_ahead.map_or(0, |segment| segment.first_unix_ns),
            bytes: self.bytes(),
            lost: self.losses.all(),
            evicted_seq: self.evicted_seq,
        }
    }

    /// What the file system has left, if it says so.
    pub(super) fn room_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.folder);
        found.map_or(u64::MAX, |found| {
            found.f_bavail.saturating_mul(found.f_frsize)
        })
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end).sum()
    }

    /// It has batches behind those that were reached.
    fn is_unread(&self, segment: &Segment) -> bool {
        segment
            .last_seq()
            .is_some_and(|last| last > self.reached.seq)
    }

    /// A number was given, whether or not the batch gets to the disk.
    pub(super) fn note(&mut self, last: Point) {
        self.last = last;
        self.is_marked = false;
    }

    /// Writes a batch, and gives up the oldest segments if there is no room.
    pub(super) fn append(&mut self, batch: &Waiting, lost_in_queue: Volume) -> io::Result<()> {
        let header = Header {
            seq: batch.seq,
            unix_ns: batch.unix_ns,
            own: batch.own,
            before: batch.before,
            lost_in_queue,
            ..Header::default()
        };
        let header = header.of(&batch.parts);
        if self.make_room(header.stored_bytes())? {
            // Else the next start would take what was acknowledged for a loss. If this fails, the next sync tries.
            let _ = self.mark(lost_in_queue, None);
        }
        let is_full = |segment: &Segment| segment.end >= self.segment_bytes();
        if self.segments.back().is_none_or(is_full) {
            self.end_segment()?;
        }
        if self.writer.is_none() {
            let created = Segment::create(&self.folder, self.stream_id, batch.seq);
            let (segment, file) = created?;
            self.segments.push_back(segment);
            self.unsure.has_name = true;
            self.writer = Some(Writer::new(file));
        }
        let (Some(writer), Some(segment)) = (&self.writer, self.segments.back_mut()) else {
            return Err(io::Error::other("there is no segment"));
        };
        writer.append(segment, header, &batch.parts)?;
        self.written_seq = batch.seq;
        self.unsure.has_batch = true;
        Ok(())
    }

    /// The next batches, up to so many, and once they have so many bytes no more.
    pub(super) fn read(&mut self, most: usize, enough_bytes: usize) -> io::Result<Vec<Waiting>> {
        let mut batches = Vec::new();
        let mut bytes = 0;
        while batches.len() < most && bytes < enough_bytes {
            let (header, body) = match self.next() {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // It fails again.
                Err(_) if !batches.is_empty() => break,
                Err(error) => return Err(error),
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
            self.reach(&batch);
            batches.push(batch);
        }
        Ok(batches)
    }

    /// A batch follows those that were taken out.
    pub(super) fn reach(&mut self, batch: &Waiting) {
        self.reach_to(batch.preceding());
        self.reached = batch.through();
    }

    /// Nothing more can be read before this.
    pub(super) fn reach_to(&mut self, point: Point) {
        let missing = point.since(self.reached);
        self.is_marked &= missing == Volume::default();
        self.losses.meet(missing, self.reached, point);
        self.reached = point;
    }

    /// Batches up to this one are at a collector, or are lost.
    pub(super) fn acknowledge(&mut self, through: Point) {
        self.done = through;
        self.losses.acknowledge(through.seq);
        self.is_marked = false;
    }

    /// Brings everything to the disk for sure, says how far it has come, and removes what is not needed. With `end`, no number
    /// is given afterwards, and so much is told to be lost that is in memory alone.
    pub(super) fn sync(&mut self, lost_in_queue: Volume, end: Option<Volume>) -> Result<()> {
        if self.unsure.has_batch {
            let synced = self.sync_segment(end.is_some());
            if synced.is_err() {
                // It may be room that is missing.
                if !self.is_marked {
                    let _ = self.mark(lost_in_queue, None);
                }
                self.forget_done();
            }
            synced.context("write a segment to the disk")?;
        }
        if self.unsure.has_name {
            self.sync_folder()?;
            self.unsure.has_name = false;
        }
        if self.is_marked && end.is_none() {
            return Ok(());
        }
        if self.mark(lost_in_queue, end).is_err() {
            // It may be room that is missing.
            self.forget_done();
            self.mark(lost_in_queue, end)?;
        }
        // What is removed and not marked would be taken for a loss.
        if end.is_some() || self.first_done().is_some() {
            self.sync_folder()?;
        }
        self.forget_done();
        Ok(())
    }

    /// The newest one, if it is written.
    fn sync_segment(&mut self, is_urgent: bool) -> io::Result<()> {
        let (Some(writer), Some(segment)) = (&mut self.writer, self.segments.back()) else {
            return Ok(());
        };
        if writer.sync(segment, is_urgent)? {
            // In the file that is open for it, nothing follows.
            self.reader = None;
            self.unsure.has_name = true;
        }
        self.unsure.has_batch = false;
        Ok(())
    }

    /// See [`Self::sync`].
    fn mark(&mut self, lost_in_queue: Volume, end: Option<Volume>) -> Result<()> {
        let mut lost = self.losses.all();
        lost += end.unwrap_or_default();
        let mark = Mark {
            stream_id: self.stream_id,
            done: self.done,
            last: self.last,
            lost_in_queue,
            lost,
            lost_done: self.losses.done(),
            is_last: end.is_some(),
        };
        mark.write(&self.folder)?;
        self.is_marked = true;
        Ok(())
    }

    /// So that files that were made or renamed are there, too, after the system has ended.
    fn sync_folder(&self) -> Result<()> {
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.with_context(|| format!("write {} to the disk", self.folder.display()))
    }

    /// Gives up the oldest segments until so many bytes have room. Returns whether there were any.
    fn make_room(&mut self, more_bytes: u64) -> io::Result<bool> {
        let mut has_removed = false;
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
            let Some(last) = oldest.last.map(|last| last.through()) else {
                continue;
            };
            has_removed = true;
            self.evicted_seq = last.seq;
            if last.seq > self.reached.seq {
                self.reach_to(last);
            }
        }
        Ok(has_removed)
    }

    fn segment_bytes(&self) -> u64 {
        (self.most_bytes / 16).clamp(SHORTEST_SEGMENT_BYTES, LONGEST_SEGMENT_BYTES)
    }

    /// If this fails, the segment goes on.
    fn end_segment(&mut self) -> io::Result<()> {
        self.sync_segment(false)?;
        self.writer = None;
        Ok(())
    }

    /// The oldest segment, if nothing of it is needed. The newest one is as long as it is written.
    fn first_done(&self) -> Option<&Segment> {
        let is_written = self.segments.len() == 1 && self.writer.is_some();
        let is_done =
            |oldest: &&Segment| oldest.last_seq().is_none_or(|last| last <= self.done.seq);
        self.segments
            .front()
            .filter(is_done)
            .filter(|_| !is_written)
    }

    /// Removes segments of which nothing is needed.
    fn forget_done(&mut self) {
        while let Some(oldest) = self.first_done() {
            if let Err(error) = remove(oldest) {
                if !self.has_told_stays {
                    let path = oldest.path.display();
                    tracing::warn!(%path, %error, "a segment that is not needed any more stays");
                }
                self.has_told_stays = true;
                return;
            }
            self.segments.pop_front();
        }
    }

    /// The next batch behind those that were reached, with its bytes if they are whole. What cannot be read of a segment is
    /// found to be missing before the next one, or when another batch comes.
    fn next(&mut self) -> io::Result<Option<(Header, Option<Bytes>)>> {
        loop {
            let reached = self.reached.seq;
            let behind = self.reader.as_ref().map_or(0, |(first_seq, _)| *first_seq);
            let read = match &mut self.reader {
                Some((_, reader)) => next_of(reader, reached),
                None => Ok(None),
            };
            match read {
                Ok(None) => {}
                Err(error) if !is_damage(&error) => return Err(error),
                Err(error) => tell_unreadable(behind, &error),
                found => return found,
            }
            let mut segments = self.segments.iter();
            let is_next =
                |segment: &&Segment| segment.first_seq > behind && self.is_unread(segment);
            let Some(next) = segments.find(is_next) else {
                if self.written_seq > reached {
                    // The newest one is damaged: the next batch begins another one. Of those before the damage all that matters
                    // is with the reader.
                    let _ = self.sync_segment(true);
                    self.reader = None;
                    self.writer = None;
                    self.written_seq = reached;
                }
                return Ok(None);
            };
            let first_seq = next.first_seq;
            match Reader::open(next) {
                Ok(reader) => self.reader = Some((first_seq, reader)),
                Err(error) if !is_damage(&error) => return Err(error),
                Err(error) => {
                    tell_unreadable(first_seq, &error);
                    self.segments
                        .retain(|segment| segment.first_seq != first_seq);
                    if self
                        .segments
                        .back()
                        .is_none_or(|newest| newest.first_seq < first_seq)
                    {
                        self.writer = None;
                    }
                }
            }
        }
    }
}

/// The next batch with a number above this.
fn next_of(reader: &mut Reader, reached: u64) -> io::Result<Option<(Header, Option<Bytes>)>> {
    while let Some(header) = reader.peek()? {
        if header.seq > reached {
            return reader.next();
        }
        reader.skip(&header);
    }
    Ok(None)
}

fn tell_unreadable(first_seq: u64, error: &io::Error) {
    tracing::warn!(segment = first_seq, %error, "a segment of the spool cannot be read any more");
}

/// Makes a folder that is not there, and locks it.
fn take(folder: &Path) -> Result<File> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("make {}", folder.display()))?;
    let path = folder.join("lock");
    let mut options = own_file::options();
    let options = options.write(true).create(true).truncate(false);
    let lock = options.mode(MODE).open(&path);
    let lock = lock.with_context(|| format!("open {}", path.display()))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => bail!(InUse {
            folder: folder.to_owned()
        }),
        Err(error) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

/// What to say of a folder where every user may write.
fn open_to_others(folder: &Path) -> Result<Option<String>> {
    let metadata = fs::metadata(folder);
    let mode = metadata.with_context(|| format!("look at {}", folder.display()))?;
    Ok((mode.mode() & WRITABLE_BY_OTHERS != 0).then(|| {
        let folder = folder.display();
        format!("{folder}: every user can remove what waits, and put in other batches: chmod o-w {folder}")
    }))
}

/// What a folder has.
struct Found {
    stream_id: Option<u64>,
    segments: VecDeque<Segment>,
    walk: Walk,
    /// The largest number in a name.
    newest_seq: u64,
}

impl Found {
    fn in_folder(folder: &Path, mark: Option<&Mark>, faults: &mut Vec<String>) -> Result<Self> {
        let mut found = Self {
            stream_id: mark.map(|mark| mark.stream_id),
            segments: VecDeque::new(),
            walk: Walk::from(mark.map(|mark| mark.done)),
            newest_seq: 0,
        };
        for (first_seq, path) in segment_files(folder)? {
            found.newest_seq = first_seq;
            let named = path.display().to_string();
            if let Some(fault) = found.take(first_seq, &path)? {
                faults.push(format!("{named} {fault}"));
            }
        }
        Ok(found)
    }

    /// Returns what is wrong with a file.
    fn take(&mut self, first_seq: u64, path: &Path) -> Result<Option<String>> {
        let reading = || format!("read {}", path.display());
        let opened = Segment::open(path.to_owned(), first_seq).with_context(reading)?;
        let expected = self.stream_id;
        let opened = opened.filter(|(_, of)| expected.is_none_or(|expected| expected == *of));
        let Some((mut segment, stream_id)) = opened else {
            set_aside(path)?;
            return Ok(Some(
                "is no part of this spool: it has got the ending .bad".to_owned(),
            ));
        };
        let walk = &mut self.walk;
        let damage = segment.look_through(|header| walk.pass(header));
        let damage = damage.with_context(reading)?;
        match (segment.last, damage) {
            (None, None) => {
                // The disk had no room for its first batch.
                remove(&segment).with_context(|| format!("remove {}", path.display()))?;
                Ok(None)
            }
            (None, Some(_)) => {
                set_aside(path)?;
                Ok(Some(
                    "has no batch that can be read: it has got the ending .bad".to_owned(),
                ))
            }
            (Some(_), damage) => {
                self.stream_id = Some(stream_id);
                self.segments.push_back(segment);
                Ok(damage.map(|Damage { at }| format!("is damaged from byte {at} on")))
            }
        }
    }
}

/// For somebody to look at.
fn set_aside(path: &Path) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".bad");
    fs::rename(path, aside).with_context(|| format!("rename {}", path.display()))
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
        let before = header.preceding();
        if self.begun.is_none() {
            self.begun = Some(before);
            self.at = before;
        }
        if header.seq > self.at.seq {
            self.missing += before.since(self.at);
            self.at = header.through();
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
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
