//! Keeps unacknowledged batches on disk, so that they survive a restart of the agent.
//!
//! A spool is a folder of [`segment`]s, written one after the other, and a [`mark`] that records the progress. Each
//! batch header carries the totals of all batches before it, so the size of a damaged, deleted or evicted batch is
//! known from its neighbours.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, ErrorKind},
    mem,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use hub::Volume;
use prost::Message as _;
use proto::{RecordSum, batch::Head};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use sys::own_file;

use super::waiting::{Point, Waiting, larger, without};

mod entry;
mod latest;
mod losses;
mod mark;
mod segment;
mod stored;

pub use segment::MAGIC;
pub use stored::{Acknowledged, Stored, is_segment, is_spool};
pub use stored::{acknowledge, segment_of};

use entry::Header;
pub(super) use latest::Latest;
use losses::Losses;
use mark::Mark;
use segment::{Damage, Reader, Segment, Writer, is_damage};

/// A segment takes a sixteenth of the spool's limit, clamped to these two sizes.
const LONGEST_SEGMENT_BYTES: u64 = 64 << 20;
const SHORTEST_SEGMENT_BYTES: u64 = 1 << 20;
/// Mode of every file. The files hold the traffic of all users of the host, so only the owner may read them even if the
/// folder is open to others.
const MODE: u32 = 0o600;
const WRITABLE_BY_OTHERS: u32 = 0o002;

pub(super) struct Spool {
    folder: PathBuf,
    /// Held for the lifetime of the spool.
    _lock: File,
    most_bytes: u64,
    stream_id: u64,
    /// Oldest first.
    segments: VecDeque<Segment>,
    /// Writes the newest segment.
    writer: Option<Writer>,
    /// The open segment, keyed by its first sequence number.
    reader: Option<(u64, Reader)>,
    /// Everything up to here was read in order, or is lost.
    reached: Point,
    /// Everything up to here was acknowledged, or is lost.
    done: Point,
    losses: Losses,
    /// The last sequence number assigned.
    last: Point,
    /// The last sequence number on disk.
    written_seq: u64,
    /// The last sequence number evicted to make room.
    evicted_seq: u64,
    unsure: Unsure,
    latest: Latest,
    /// The number of the batch noted there last, and what the queue had lost by then.
    noted: Option<(u64, Volume)>,
    /// The mark on disk has `latest`.
    is_latest_marked: bool,
    /// The mark on disk matches this state.
    is_marked: bool,
    /// A warning about a segment that cannot be removed was logged.
    has_told_stays: bool,
}

/// Data that has not been synced yet.
#[derive(Clone, Copy, Debug, Default)]
struct Unsure {
    has_batch: bool,
    /// The directory entry of a segment may be missing.
    has_name: bool,
}

/// Where a reopened spool continues.
pub(super) struct Beginning {
    pub(super) stream_id: u64,
    pub(super) last: Point,
    /// Total lost before it got a sequence number.
    pub(super) lost_in_queue: Volume,
    /// Losses that the previous run did not know of.
    pub(super) lost: Volume,
    /// Stored and unacknowledged batches, including batches that may turn out to be damaged when read.
    pub(super) waits: RecordSum,
    /// Faults to report to the operator.
    pub(super) faults: Vec<String>,
    /// Batches of earlier processes that it has had, as far as that is certain.
    pub(super) latest: Latest,
}

/// State of the spool after an operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stand {
    /// The disk holds batches that have not been read.
    pub(super) is_ahead: bool,
    /// When the first batch of the first unread segment was queued. That batch itself may be read already.
    pub(super) ahead_since_unix_ns: u64,
    /// Total size of the segments.
    pub(super) bytes: u64,
    /// Total lost among batches that had sequence numbers.
    pub(super) lost: Volume,
    /// The last sequence number evicted to make room.
    pub(super) evicted_seq: u64,
}

/// Another output or agent holds the lock of the folder.
#[derive(Debug, thiserror::Error)]
#[error("{} is in use by another output or agent", folder.display())]
pub(super) struct InUse {
    folder: PathBuf,
}

impl Spool {
    /// Opens the spool and locks its folder. A new spool starts the stream `fresh_id`.
    ///
    /// Fails with [`InUse`] if another output or agent holds the lock.
    pub(super) fn open(
        folder: PathBuf,
        most_bytes: u64,
        fresh_id: u64,
    ) -> Result<(Self, Beginning)> {
        let lock = lock_folder(&folder)?;
        let mut faults = Vec::new();
        faults.extend(open_to_others(&folder)?);
        let mark = match Mark::read(&folder)?.transpose() {
            Ok(mark) => mark,
            Err(error) => {
                faults.push(format!("{error:#}, so earlier losses are unknown"));
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
            // No mark and no segments: the spool starts a stream of its own.
            None => segments.is_empty(),
        };
        let fresh = Mark {
            stream_id: stream_id.unwrap_or(fresh_id),
            ..Mark::default()
        };
        let mark = mark.unwrap_or(fresh);
        let mut latest = mark.latest;
        walk.unmarked.add_to(&mut latest, &segments);
        let mut last = mark.last;
        let mut lost_in_queue = mark.lost_in_queue;
        if let Some(found) = found.filter(|found| found.seq > last.seq) {
            last = found.through();
            lost_in_queue = found.lost_in_queue;
        }
        let done = walk.begun.unwrap_or(mark.done);
        // Batches that exist but cannot be read may already be counted as lost.
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
            latest,
            noted: None,
            is_latest_marked: false,
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
            latest: spool.latest.clone(),
        };
        // A killed writer may not have rewritten the segment after a failed sync.
        if !is_intact
            && let Some(newest) = spool.segments.back()
            && let Err(error) = newest.renew()
        {
            let path = newest.path.display();
            beginning.faults.push(format!(
                "cannot rewrite {path}: {error}; a power cut may lose batches whose sync failed before"
            ));
        }
        for segment in &spool.segments {
            let synced = segment.sync();
            synced.with_context(|| format!("write {} to the disk", segment.path.display()))?;
        }
        // From here on sequence numbers are assigned. This mark says that the last one is unknown.
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

    /// Free space of the file system in bytes, or `u64::MAX` if `statvfs` fails.
    pub(super) fn room_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.folder);
        found.map_or(u64::MAX, |found| {
            found.f_bavail.saturating_mul(found.f_frsize)
        })
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end).sum()
    }

    /// Whether the segment holds batches after `reached`.
    fn is_unread(&self, segment: &Segment) -> bool {
        segment
            .last_seq()
            .is_some_and(|last| last > self.reached.seq)
    }

    /// Notes a repeated batch, which an earlier process has stored already. The next batch may follow it.
    pub(super) fn note_skipped(&mut self, head: &Head, lost_in_queue: Volume) {
        let point = Some((self.last.seq, lost_in_queue));
        self.latest.note_skipped(head, self.noted == point);
        self.noted = point;
    }

    /// Records that a sequence number was assigned, whether or not the batch reaches the disk.
    pub(super) fn note(&mut self, last: Point) {
        self.last = last;
        self.is_marked = false;
    }

    /// Writes a batch, evicting the oldest segments if there is no room.
    pub(super) fn append(&mut self, batch: &Waiting, lost_in_queue: Volume) -> io::Result<()> {
        // The first part has fields of the stream alone.
        let [_, body] = &batch.parts;
        let head = Head::decode(&body[..]).unwrap_or_default();
        // The batch is not on disk yet, whatever a mark says meanwhile.
        let last = mem::replace(&mut self.last, batch.preceding());
        // The next start finds the latest batches of the last process in segments, and those of others in the mark.
        let mut appended = Ok(());
        if self.latest.is_first(&head) && !self.is_latest_marked {
            appended = self.mark(lost_in_queue, None).map_err(io::Error::other);
        }
        let appended = appended.and_then(|()| self.try_append(batch, lost_in_queue));
        self.last = last;
        self.is_marked = false;
        if appended.is_ok() {
            let follows = self.noted == Some((batch.seq - 1, lost_in_queue));
            self.latest.note(&head, follows);
            self.noted = Some((batch.seq, lost_in_queue));
            self.is_latest_marked = false;
        }
        appended
    }

    fn try_append(&mut self, batch: &Waiting, lost_in_queue: Volume) -> io::Result<()> {
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
            // Without a mark the next start would count acknowledged batches of an evicted segment as lost. If this
            // fails, the next sync writes it.
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

    /// Returns the next batches: at most `most`, and none after `enough_bytes` are reached.
    pub(super) fn read(&mut self, most: usize, enough_bytes: usize) -> io::Result<Vec<Waiting>> {
        let mut batches = Vec::new();
        let mut bytes = 0;
        while batches.len() < most && bytes < enough_bytes {
            let (header, body) = match self.next() {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // The next call fails with the same error.
                Err(_) if !batches.is_empty() => break,
                Err(error) => return Err(error),
            };
            // A batch with a damaged body is counted as lost when the next one is read.
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

    /// Moves `reached` past this batch and counts a gap before it as lost.
    pub(super) fn reach(&mut self, batch: &Waiting) {
        self.reach_to(batch.preceding());
        self.reached = batch.through();
    }

    /// Moves `reached` to this point. Everything before it that was not read is lost.
    pub(super) fn reach_to(&mut self, point: Point) {
        let missing = point.since(self.reached);
        self.is_marked &= missing == Volume::default();
        self.losses.meet(missing, self.reached, point);
        self.reached = point;
    }

    /// Everything up to this point reached a collector, or is lost.
    pub(super) fn acknowledge(&mut self, through: Point) {
        self.done = through;
        self.losses.acknowledge(through.seq);
        self.is_marked = false;
    }

    /// Syncs everything, writes the mark and removes acknowledged segments. With `end`, the mark says that no sequence
    /// number will follow, and `end` is counted as lost because it exists in memory only.
    pub(super) fn sync(&mut self, lost_in_queue: Volume, end: Option<Volume>) -> Result<()> {
        if self.unsure.has_batch {
            let synced = self.sync_segment(end.is_some());
            if synced.is_err() {
                // The disk may be full.
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
            // The disk may be full.
            self.forget_done();
            self.mark(lost_in_queue, end)?;
        }
        // Sync the mark before removing segments: without it the next start would count them as lost.
        if end.is_some() || self.first_done().is_some() {
            self.sync_folder()?;
        }
        self.forget_done();
        Ok(())
    }

    /// Syncs the segment that is being written, if there is one.
    fn sync_segment(&mut self, is_urgent: bool) -> io::Result<()> {
        let (Some(writer), Some(segment)) = (&mut self.writer, self.segments.back()) else {
            return Ok(());
        };
        if writer.sync(segment, is_urgent)? {
            // The segment is a new file. The reader still has the old one open, where nothing follows.
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
            latest: self.latest.clone(),
            noted: self.noted,
        };
        mark.write(&self.folder)?;
        self.is_marked = true;
        self.is_latest_marked = true;
        Ok(())
    }

    /// Makes created and renamed files survive a power cut.
    fn sync_folder(&self) -> Result<()> {
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.with_context(|| format!("write {} to the disk", self.folder.display()))
    }

    /// Evicts the oldest segments until `more_bytes` fit. Returns whether any held batches.
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

    /// Closes the segment. If the sync fails, the segment stays open.
    fn end_segment(&mut self) -> io::Result<()> {
        self.sync_segment(false)?;
        self.writer = None;
        Ok(())
    }

    /// The oldest segment, if all its batches are acknowledged. A segment that is still written stays.
    fn first_done(&self) -> Option<&Segment> {
        let is_written = self.segments.len() == 1 && self.writer.is_some();
        let is_done =
            |oldest: &&Segment| oldest.last_seq().is_none_or(|last| last <= self.done.seq);
        self.segments
            .front()
            .filter(is_done)
            .filter(|_| !is_written)
    }

    /// Removes acknowledged segments.
    fn forget_done(&mut self) {
        while let Some(oldest) = self.first_done() {
            if let Err(error) = remove(oldest) {
                if !self.has_told_stays {
                    let path = oldest.path.display();
                    tracing::warn!(%path, %error, "cannot remove an acknowledged segment");
                }
                self.has_told_stays = true;
                return;
            }
            self.segments.pop_front();
        }
    }

    /// The next unread batch, with its body if that is intact. What cannot be read counts as lost once a later batch is
    /// read or appended.
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
                    // The newest segment is damaged, so the next batch starts another one. The reader has returned
                    // everything before the damage.
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

/// The next batch with a sequence number above `reached`.
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
    tracing::warn!(segment = first_seq, %error, "a segment of the spool can no longer be read");
}

/// Creates the folder if it is missing, and locks it.
fn lock_folder(folder: &Path) -> Result<File> {
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

/// A warning if every user may write in the folder.
fn open_to_others(folder: &Path) -> Result<Option<String>> {
    let metadata = fs::metadata(folder);
    let mode = metadata.with_context(|| format!("look at {}", folder.display()))?;
    Ok((mode.mode() & WRITABLE_BY_OTHERS != 0).then(|| {
        let folder = folder.display();
        format!("{folder}: every user can remove and add batches: chmod o-w {folder}")
    }))
}

/// The contents of a folder.
struct Found {
    stream_id: Option<u64>,
    segments: VecDeque<Segment>,
    walk: Walk,
    /// The largest sequence number in a file name.
    newest_seq: u64,
}

impl Found {
    fn in_folder(folder: &Path, mark: Option<&Mark>, faults: &mut Vec<String>) -> Result<Self> {
        let mut found = Self {
            stream_id: mark.map(|mark| mark.stream_id),
            segments: VecDeque::new(),
            walk: Walk::new(mark),
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

    /// Returns the fault of a file, if it has one.
    fn take(&mut self, first_seq: u64, path: &Path) -> Result<Option<String>> {
        let reading = || format!("read {}", path.display());
        let opened = Segment::open(path.to_owned(), first_seq).with_context(reading)?;
        let expected = self.stream_id;
        let opened = opened.filter(|(_, of)| expected.is_none_or(|expected| expected == *of));
        let Some((mut segment, stream_id)) = opened else {
            set_aside(path)?;
            return Ok(Some(
                "is not part of this spool: renamed to end in .bad".to_owned(),
            ));
        };
        let walk = &mut self.walk;
        let damage = segment.look_through(|header| walk.pass(header));
        let damage = damage.with_context(reading)?;
        match (segment.last, damage) {
            (None, None) => {
                // The disk was full before the first batch was written.
                remove(&segment).with_context(|| format!("remove {}", path.display()))?;
                Ok(None)
            }
            (None, Some(_)) => {
                set_aside(path)?;
                Ok(Some(
                    "has no readable batch: renamed to end in .bad".to_owned(),
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

/// Renames a file so that an operator can look at it.
fn set_aside(path: &Path) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".bad");
    fs::rename(path, aside).with_context(|| format!("rename {}", path.display()))
}

/// Walks from header to header and sums the gaps.
struct Walk {
    /// The starting point. Without a mark, it precedes the first batch found.
    begun: Option<Point>,
    at: Point,
    /// Total of the gaps.
    missing: Volume,
    unmarked: Unmarked,
}

impl Walk {
    fn new(mark: Option<&Mark>) -> Self {
        let begun = mark.map(|mark| mark.done);
        Self {
            begun,
            at: begun.unwrap_or_default(),
            missing: Volume::default(),
            unmarked: Unmarked::new(mark),
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
        self.unmarked.pass(header);
    }

    /// Total of the gaps if nothing more is found before `last`.
    fn missing_to(mut self, last: Point) -> Volume {
        self.missing += last.since(self.at);
        self.missing
    }
}

/// The batches in the segments that are not in the mark's [`Latest`].
#[derive(Clone, Copy)]
struct Unmarked {
    /// The number of the last batch before them, and what the queue had lost by then.
    before: (u64, Volume),
    seqs: Option<(u64, u64)>,
    /// Whether the first one follows the last batch in the mark.
    follows: bool,
    has_gap: bool,
}

impl Unmarked {
    fn new(mark: Option<&Mark>) -> Self {
        let noted = mark.and_then(|mark| mark.noted);
        let from = mark.map(|mark| (mark.last.seq, mark.lost_in_queue));
        Self {
            // Without a mark, no batch is known to be there.
            before: noted.or(from).unwrap_or((u64::MAX, Volume::default())),
            seqs: None,
            follows: noted.is_some(),
            has_gap: false,
        }
    }

    fn pass(&mut self, header: &Header) {
        let (last_seq, lost_in_queue) = self.before;
        if header.seq <= last_seq {
            return;
        }
        let is_next = header.seq == last_seq + 1 && header.lost_in_queue == lost_in_queue;
        if let Some((_, last)) = &mut self.seqs {
            *last = header.seq;
            self.has_gap |= !is_next;
        } else {
            self.seqs = Some((header.seq, header.seq));
            self.follows &= is_next;
        }
        self.before = (header.seq, header.lost_in_queue);
    }

    /// Adds them as far as it is certain that none is missing between them.
    fn add_to(self, latest: &mut Latest, segments: &VecDeque<Segment>) {
        let Some((first_seq, last_seq)) = self.seqs else {
            return;
        };
        let head = |seq| {
            let mut segments = segments.iter().rev();
            let segment = segments.find(|segment| segment.first_seq <= seq)?;
            let (header, body) = next_of(&mut Reader::open(segment).ok()?, seq - 1).ok()??;
            (header.seq == seq)
                .then(|| Head::decode(body?).ok())
                .flatten()
        };
        let Some(last) = head(last_seq) else {
            return;
        };
        match head(first_seq) {
            Some(first) if !self.has_gap => latest.note_all(&first, &last, self.follows),
            _ => latest.note(&last, false),
        }
    }
}

/// The segment files with the sequence numbers of their names, in ascending order.
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
