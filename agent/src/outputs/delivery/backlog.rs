//! All batches that the collector has not acknowledged: the oldest in memory, ready to be sent, and the rest on disk where
//! there is a spool.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{task::spawn_blocking, time::Instant};

use super::{
    spool::{Beginning, Spool},
    waiting::{Point, Waiting},
};
use crate::{
    hub::{OutgoingBatch, Volume},
    outputs::tally::sum_of,
    proto::{FlowBatch, RecordSum},
};

/// Batches, and bytes, of which no more are in memory. Without a spool the rest is left in the queue, where the oldest can
/// make room for others.
const MOST_BATCHES: usize = 1024;
const MOST_BYTES: usize = 32 << 20;
/// So much is read from the disk at once.
const READ_BYTES: usize = 4 << 20;
/// How often what was written is brought to the disk for sure.
pub(super) const SYNC_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Backlog {
    stream_id: u64,
    /// The last number that was given.
    last: Point,
    /// What queues of earlier runs lost.
    lost_before: Volume,
    /// What the queue lost in this run.
    lost_in_queue: Volume,
    /// What the disk lost.
    lost_on_disk: Volume,
    /// From old to new. Numbers may be missing where batches are lost.
    window: VecDeque<Waiting>,
    window_bytes: usize,
    spool: Option<Arc<Mutex<Spool>>>,
    /// Batches are on disk that are not in the window.
    is_ahead: bool,
    /// It has no room in memory, and the disk did not take it.
    tail: Option<Waiting>,
    synced: Instant,
    is_synced: bool,
    /// Why the disk did not take a batch, or could not be read.
    fault: Option<String>,
    spool_bytes: u64,
}

impl Backlog {
    pub(super) fn new(stream_id: u64) -> Self {
        Self {
            stream_id,
            last: Point::default(),
            lost_before: Volume::default(),
            lost_in_queue: Volume::default(),
            lost_on_disk: Volume::default(),
            window: VecDeque::new(),
            window_bytes: 0,
            spool: None,
            is_ahead: false,
            tail: None,
            synced: Instant::now(),
            is_synced: true,
            fault: None,
            spool_bytes: 0,
        }
    }

    /// Goes on where a spool ended. Nothing was taken yet.
    pub(super) fn go_on(&mut self, spool: Spool, beginning: &Beginning) {
        self.stream_id = beginning.stream_id;
        self.last = beginning.last;
        self.lost_before = beginning.lost_in_queue;
        self.is_synced = false;
        self.spool = Some(Arc::new(Mutex::new(spool)));
        self.look();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.window.is_empty() && self.tail.is_none() && !self.is_ahead
    }

    /// Whether one more batch may come.
    pub(super) fn has_room(&self) -> bool {
        self.tail.is_none() && (self.window_has_room() || self.spool.is_some())
    }

    pub(super) fn stream_id(&self) -> u64 {
        self.stream_id
    }

    pub(super) fn has_spool(&self) -> bool {
        self.spool.is_some()
    }

    /// What the spool takes of the disk.
    pub(super) fn spool_bytes(&self) -> u64 {
        self.spool_bytes
    }

    /// When the oldest batch came; 0 where there is none.
    pub(super) fn oldest_unix_ns(&self) -> u64 {
        self.window.front().map_or(0, |oldest| oldest.unix_ns)
    }

    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The first batch in memory with a number above this one.
    pub(super) fn after(&self, seq: u64) -> Option<&Waiting> {
        let place = self.window.partition_point(|batch| batch.seq <= seq);
        self.window.get(place)
    }

    /// Gives a batch its number on the stream, and adds all that names it.
    pub(super) fn number(&mut self, batch: OutgoingBatch) -> Waiting {
        self.lost_in_queue = batch.lost();
        let before = self.last;
        let own = sum_of(batch.volume());
        self.last.seq += 1;
        self.last.sum += own;
        // Where they are as in this run alone, the batch has them.
        let stream_seq = Some(self.last.seq).filter(|seq| *seq != batch.stream_seq());
        let mut lost = self.lost_before;
        lost += self.lost_on_disk;
        if lost != Volume::default() {
            lost += self.lost_in_queue;
        }
        let parts = batch.with(&FlowBatch {
            stream_id: self.stream_id,
            stream_seq: stream_seq.unwrap_or_default(),
            lost_batches: lost.batches,
            lost_records: lost.records,
            lost_packets: lost.packets,
            lost_bytes: lost.bytes,
            ..FlowBatch::default()
        });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix_ns = now.map_or(0, |now| now.as_nanos() as u64);
        Waiting {
            seq: self.last.seq,
            unix_ns,
            own,
            before: before.sum,
            parts: parts.into_parts(),
            is_on_disk: false,
        }
    }

    /// Takes a batch. Returns what was lost to make room for it.
    pub(super) async fn keep(&mut self, mut batch: Waiting) -> RecordSum {
        let mut lost = Volume::default();
        if let Some(spool) = &self.spool {
            let (point, lost_in_queues) = (self.last, self.lost_in_queues());
            let with_batch = batch.clone();
            self.is_synced = false;
            let (appended, evicted) = on_disk(spool, move |spool| {
                let mut evicted = Volume::default();
                spool.note(point);
                let appended = spool.append(&with_batch, lost_in_queues, &mut evicted);
                (appended, evicted)
            })
            .await;
            lost = evicted;
            match appended {
                Ok(()) => {
                    batch.is_on_disk = true;
                    self.fault = None;
                }
                Err(error) => self.fault = Some(format!("the spool takes no batch: {error}")),
            }
        }
        lost += self.place(batch);
        self.look();
        sum_of(lost)
    }

    /// Fills the memory from the disk where there is room. Returns what turned out to be lost.
    pub(super) async fn refill(&mut self) -> RecordSum {
        let mut lost = Volume::default();
        while self.is_ahead && self.window_has_room() {
            let Some(spool) = &self.spool else { break };
            match on_disk(spool, |spool| spool.read(READ_BYTES)).await {
                Ok((batches, missing)) => {
                    lost += missing;
                    let is_end = batches.is_empty();
                    for batch in batches {
                        self.push(batch);
                    }
                    self.look();
                    if is_end {
                        break;
                    }
                }
                Err(error) => {
                    // It is read again once a batch is acknowledged or comes.
                    self.fault = Some(format!("the spool cannot be read: {error}"));
                    break;
                }
            }
        }
        if !self.is_ahead
            && self.window_has_room()
            && let Some(tail) = self.tail.take()
        {
            lost += self.place(tail);
            self.look();
        }
        sum_of(lost)
    }

    /// Takes all batches up to this number out of memory. Returns what they report, if there are any, and the point to
    /// [`forget`](Self::forget) the stream up to.
    pub(super) fn acknowledge(&mut self, seq: u64) -> Option<(RecordSum, Point)> {
        let mut sum: Option<RecordSum> = None;
        let mut done = Point::default();
        while let Some(batch) = self.window.pop_front_if(|batch| batch.seq <= seq) {
            self.window_bytes -= batch.len_bytes();
            *sum.get_or_insert_default() += batch.own;
            done = batch.through();
        }
        sum.map(|sum| (sum, done))
    }

    /// Batches up to here are not needed on disk.
    pub(super) async fn forget(&mut self, done: Point) {
        if let Some(spool) = &self.spool {
            self.is_synced = false;
            on_disk(spool, move |spool| spool.acknowledge(done)).await;
            self.look();
        }
    }

    /// When what was written is to be brought to the disk.
    pub(super) fn sync_at(&self) -> Option<Instant> {
        (self.has_spool() && !self.is_synced).then_some(self.synced + SYNC_INTERVAL)
    }

    /// A batch that the disk did not take is tried again before. Returns what was lost to make room for it.
    pub(super) async fn sync(&mut self, is_last: bool) -> RecordSum {
        self.synced = Instant::now();
        let lost = match self.tail.take() {
            Some(tail) => self.keep(tail).await,
            None => RecordSum::default(),
        };
        let Some(spool) = &self.spool else {
            return lost;
        };
        self.is_synced = true;
        let lost_in_queues = self.lost_in_queues();
        let synced = on_disk(spool, move |spool| spool.sync(lost_in_queues, is_last)).await;
        if let Err(error) = synced {
            self.is_synced = false;
            self.fault = Some(format!("{error:#}"));
        }
        lost
    }

    /// What is nowhere but in memory.
    pub(super) fn only_in_memory(&self) -> RecordSum {
        let mut sum = RecordSum::default();
        let all = self.window.iter().chain(&self.tail);
        for batch in all.filter(|batch| !batch.is_on_disk) {
            sum += batch.own;
        }
        sum
    }

    /// One batch always has room, however long it is.
    fn window_has_room(&self) -> bool {
        self.window.len() < MOST_BATCHES && self.window_bytes < MOST_BYTES
    }

    /// Puts a batch into memory if it is next and has room, or leaves it on disk. Returns what turns out to be missing before
    /// it.
    fn place(&mut self, batch: Waiting) -> Volume {
        let mut missing = Volume::default();
        let is_next = !self.is_ahead;
        if is_next && (self.window_has_room() || self.spool.is_none()) {
            if let Some(spool) = &self.spool {
                missing = lock(spool).reach(&batch);
            }
            self.push(batch);
        } else if !batch.is_on_disk {
            self.tail = Some(batch);
        }
        missing
    }

    fn push(&mut self, batch: Waiting) {
        self.window_bytes += batch.len_bytes();
        self.window.push_back(batch);
    }

    /// Takes in what the disk has.
    fn look(&mut self) {
        if let Some(spool) = &self.spool {
            let spool = lock(spool);
            self.is_ahead = spool.is_ahead();
            self.spool_bytes = spool.bytes();
            self.lost_on_disk = spool.lost();
        }
    }

    fn lost_in_queues(&self) -> Volume {
        let mut lost = self.lost_before;
        lost += self.lost_in_queue;
        lost
    }
}

/// Does this on a thread that may wait for the disk. Once begun it goes on whatever becomes of the caller.
async fn on_disk<T: Send + 'static>(
    spool: &Arc<Mutex<Spool>>,
    work: impl FnOnce(&mut Spool) -> T + Send + 'static,
) -> T {
    let spool = Arc::clone(spool);
    let done = spawn_blocking(move || work(&mut lock(&spool))).await;
    done.expect("the spool does not panic")
}

fn lock(spool: &Mutex<Spool>) -> MutexGuard<'_, Spool> {
    spool.lock().unwrap_or_else(PoisonError::into_inner)
}
