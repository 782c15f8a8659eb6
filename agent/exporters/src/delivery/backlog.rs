//! Holds all unacknowledged batches: the oldest in memory, ready to send, and the rest on disk if there is a spool.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use hub::{OutgoingBatch, Volume};
use proto::{FlowBatch, RecordSum, batch::Head};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};

use super::{
    spool::{Beginning, Latest, Spool, Stand},
    waiting::{Point, Waiting},
};

/// Limits of the batches in memory. Without a spool further batches stay in the queue, which drops the oldest when it
/// is full.
const MOST_BATCHES: usize = 1024;
const MOST_BYTES: usize = 32 << 20;
/// How much is read from disk at once.
const READ_BYTES: usize = 4 << 20;
/// How often written batches are synced.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// A disk that takes longer is given up until the next start, so that a healthy collector keeps getting batches.
const HANGS: Duration = Duration::from_secs(20);

pub(super) struct Backlog {
    stream_id: u64,
    /// The last sequence number assigned.
    last: Point,
    /// Losses of earlier runs' queues, and batches that never got a sequence number.
    lost_before: Volume,
    /// Losses of the queue in this run.
    lost_in_queue: Volume,
    /// What earlier processes have put into the spool.
    earlier: Latest,
    /// The batch before the next one, if the spool has had it, and what the queues had lost by then.
    skipped: Option<(Head, Volume)>,
    /// Oldest first. Lost batches leave gaps in the sequence numbers.
    window: VecDeque<Waiting>,
    window_bytes: usize,
    spool: Option<Arc<Mutex<Spool>>>,
    /// State of the spool after the last operation.
    stand: Stand,
    /// A batch that did not fit in memory and that the disk did not take.
    tail: Option<Waiting>,
    synced: Instant,
    is_synced: bool,
    faults: Faults,
}

/// Faults of the disk.
#[derive(Default)]
struct Faults {
    hangs: Option<String>,
    /// Set until the disk has synced a batch and has room for the longest one that it refused. A nearly full disk still
    /// takes a short batch now and then.
    takes_no_batch: Option<String>,
    refused_bytes: usize,
    has_taken_last: bool,
    cannot_be_read: Option<String>,
    cannot_be_synced: Option<String>,
}

impl Faults {
    fn appended(&mut self, len_bytes: usize, appended: io::Result<()>) {
        self.has_taken_last = appended.is_ok();
        if let Err(error) = appended {
            self.refused_bytes = self.refused_bytes.max(len_bytes);
            self.takes_no_batch = Some(format!("the spool takes no batch: {error}"));
        }
    }

    fn synced(&mut self, synced: anyhow::Result<()>, room_bytes: u64) {
        if synced.is_ok() && self.has_taken_last && room_bytes >= self.refused_bytes as u64 {
            (self.takes_no_batch, self.refused_bytes) = (None, 0);
        }
        self.cannot_be_synced = synced.err().map(|error| format!("{error:#}"));
    }
}

impl Backlog {
    pub(super) fn new(stream_id: u64) -> Self {
        Self {
            stream_id,
            last: Point::default(),
            lost_before: Volume::default(),
            lost_in_queue: Volume::default(),
            earlier: Latest::default(),
            skipped: None,
            window: VecDeque::new(),
            window_bytes: 0,
            spool: None,
            stand: Stand::default(),
            tail: None,
            synced: Instant::now(),
            is_synced: true,
            faults: Faults::default(),
        }
    }

    /// Continues where the spool ended. Must be called before any batch is taken.
    pub(super) fn go_on(&mut self, spool: Spool, beginning: &Beginning) {
        self.stream_id = beginning.stream_id;
        self.last = beginning.last;
        self.lost_before = beginning.lost_in_queue;
        self.earlier = beginning.latest.clone();
        self.stand = spool.stand();
        self.spool = Some(Arc::new(Mutex::new(spool)));
    }

    /// Whether an earlier process has put this batch into the spool, where it waits or from where it was delivered.
    pub(super) fn has_had(&self, batch: &OutgoingBatch) -> bool {
        !self.earlier.is_empty() && batch.head().is_some_and(|head| self.earlier.has(&head))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.window.is_empty() && !self.is_behind()
    }

    /// Whether there are batches outside the window.
    pub(super) fn is_behind(&self) -> bool {
        self.stand.is_ahead || self.tail.is_some()
    }

    /// Whether another batch may be taken.
    pub(super) fn has_room(&self) -> bool {
        self.tail.is_none() && (self.window_has_room() || self.spool.is_some())
    }

    pub(super) fn stream_id(&self) -> u64 {
        self.stream_id
    }

    pub(super) fn has_spool(&self) -> bool {
        self.spool.is_some()
    }

    /// State of the spool after the last operation.
    pub(super) fn stand(&self) -> Stand {
        self.stand
    }

    /// When the oldest batch was queued, in nanoseconds of Unix time; 0 if there is none.
    pub(super) fn oldest_unix_ns(&self) -> u64 {
        let ahead = self.stand.ahead_since_unix_ns;
        self.window.front().map_or(ahead, |oldest| oldest.unix_ns)
    }

    pub(super) fn fault(&self) -> Option<&str> {
        let Faults {
            hangs,
            takes_no_batch,
            cannot_be_read,
            cannot_be_synced,
            ..
        } = &self.faults;
        let faults = [hangs, takes_no_batch, cannot_be_read, cannot_be_synced];
        faults.into_iter().flatten().next().map(String::as_str)
    }

    /// The first batch in memory with a sequence number above this one.
    pub(super) fn after(&self, seq: u64) -> Option<&Waiting> {
        let place = self.window.partition_point(|batch| batch.seq <= seq);
        self.window.get(place)
    }

    /// Assigns the next sequence number and adds the stream fields to the batch.
    pub(super) fn number(&mut self, batch: OutgoingBatch) -> Waiting {
        self.lost_in_queue = batch.lost();
        let own = RecordSum::from(batch.volume());
        let before = self.last;
        self.last = before.with(before.seq + 1, own);
        // The hub already set the sequence number and the losses. Repeat them only if earlier runs changed them.
        let stream_seq = Some(self.last.seq).filter(|seq| *seq != batch.stream_seq());
        let mut lost = self.lost_before;
        lost += self.stand.lost;
        if lost != Volume::default() {
            lost += self.lost_in_queue;
        }
        let parts = batch.with(&FlowBatch {
            stream_id: self.stream_id,
            stream_seq: stream_seq.unwrap_or_default(),
            ..FlowBatch::of_lost(lost.batches, lost.into())
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

    /// Leaves out a batch that the spool [has had](Self::has_had). It may tell of others that the queue has lost.
    pub(super) fn skip(&mut self, batch: &OutgoingBatch) {
        self.lost_in_queue = batch.lost();
        self.skipped = batch.head().map(|head| (head, self.lost_in_queues()));
    }

    /// Counts a batch as lost that never gets a sequence number.
    pub(super) fn loses_unnumbered(&mut self, batch: &OutgoingBatch) {
        self.lost_in_queue = batch.lost();
        self.lost_before += batch.volume();
    }

    /// The disk stopped answering; its contents are left to the next start.
    pub(super) fn hangs(&self) -> bool {
        self.faults.hangs.is_some()
    }

    /// Stores a batch. Call it only if [`has_room`](Self::has_room).
    pub(super) async fn keep(&mut self, mut batch: Waiting) {
        let is_next = !self.stand.is_ahead && self.window_has_room();
        let (point, lost_in_queues) = (self.last, self.lost_in_queues());
        let copy = batch.clone();
        self.is_synced = false;
        let skipped = self.skipped.take();
        let appended = self.on_disk(move |spool| {
            if let Some((head, lost_in_queues)) = skipped {
                spool.note_skipped(&head, lost_in_queues);
            }
            spool.note(point);
            let appended = spool.append(&copy, lost_in_queues);
            if is_next {
                spool.reach(&copy);
            }
            appended
        });
        if let Some(appended) = appended.await {
            batch.is_on_disk = appended.is_ok();
            self.faults.appended(batch.len_bytes(), appended);
        }
        if is_next || self.spool.is_none() {
            self.push(batch);
        } else if !batch.is_on_disk {
            self.tail = Some(batch);
        }
    }

    /// Refills memory from the disk as far as there is room.
    pub(super) async fn refill(&mut self) {
        while self.stand.is_ahead && self.window_has_room() {
            let most = MOST_BATCHES - self.window.len();
            let Some(read) = self
                .on_disk(move |spool| spool.read(most, READ_BYTES))
                .await
            else {
                return;
            };
            match read {
                Ok(batches) => {
                    self.faults.cannot_be_read = None;
                    let is_end = batches.is_empty();
                    for batch in batches {
                        self.push(batch);
                    }
                    if is_end {
                        break;
                    }
                }
                Err(error) => {
                    // Retried when a batch is acknowledged or queued.
                    self.faults.cannot_be_read = Some(format!("the spool cannot be read: {error}"));
                    break;
                }
            }
        }
        if !self.stand.is_ahead
            && self.window_has_room()
            && let Some(tail) = self.tail.take()
        {
            let next = tail.clone();
            let _ = self.on_disk(move |spool| spool.reach(&next)).await;
            self.push(tail);
        }
    }

    /// Removes all batches up to this sequence number from memory. If there were any, returns their totals and the
    /// point for [`forget`](Self::forget).
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

    /// Removes the oldest batch, which every collector rejects. Later batches report it as lost.
    pub(super) fn give_up(&mut self, seq: u64) -> Option<(RecordSum, Point)> {
        let given_up = self.acknowledge(seq)?;
        self.lost_before += Point::default().with(seq, given_up.0).sum;
        Some(given_up)
    }

    /// Batches up to this point are no longer needed on disk.
    pub(super) async fn forget(&mut self, done: Point) {
        self.is_synced = false;
        let _ = self.on_disk(move |spool| spool.acknowledge(done)).await;
    }

    /// When to sync next.
    pub(super) fn sync_at(&self) -> Option<Instant> {
        (self.has_spool() && !self.is_synced).then_some(self.synced + SYNC_INTERVAL)
    }

    /// Syncs the spool. First retries the batch that the disk did not take.
    pub(super) async fn sync(&mut self) {
        self.synced = Instant::now();
        if let Some(tail) = self.tail.take() {
            self.keep(tail).await;
        }
        self.sync_until(None).await;
        self.is_synced &= self.tail.is_none();
    }

    /// Hands the spool over to the next start and reports `only_in_memory` as lost. Returns whether everything is
    /// synced.
    pub(super) async fn leave(&mut self, only_in_memory: Volume) -> bool {
        self.sync_until(Some(only_in_memory)).await;
        self.is_synced
    }

    async fn sync_until(&mut self, end: Option<Volume>) {
        let lost_in_queues = self.lost_in_queues();
        let synced = self.on_disk(move |spool| {
            let synced = spool.sync(lost_in_queues, end);
            (synced, spool.room_bytes())
        });
        if let Some((synced, room_bytes)) = synced.await {
            self.is_synced = synced.is_ok();
            self.faults.synced(synced, room_bytes);
        }
    }

    /// Batches that the next start would not find on disk.
    pub(super) fn only_in_memory(&self) -> Volume {
        let mut volume = Volume::default();
        let is_there = |batch: &Waiting| batch.is_on_disk && batch.seq > self.stand.evicted_seq;
        let all = self.window.iter().chain(&self.tail);
        for batch in all.filter(|batch| !is_there(batch)) {
            volume += Point::default().with(batch.seq, batch.own).sum;
        }
        volume
    }

    /// An empty window takes a batch of any length.
    fn window_has_room(&self) -> bool {
        self.window.len() < MOST_BATCHES && self.window_bytes < MOST_BYTES
    }

    fn push(&mut self, batch: Waiting) {
        self.window_bytes += batch.len_bytes();
        self.window.push_back(batch);
    }

    fn lost_in_queues(&self) -> Volume {
        let mut lost = self.lost_before;
        lost += self.lost_in_queue;
        lost
    }

    /// Runs `work` on a blocking thread. Once started, it finishes even if the caller is cancelled. Returns `None`
    /// without a spool, and after the disk stopped answering.
    async fn on_disk<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Spool) -> T + Send + 'static,
    ) -> Option<T> {
        let spool = Arc::clone(self.spool.as_ref()?);
        let working = spawn_blocking(move || {
            let mut spool = spool.lock().unwrap_or_else(PoisonError::into_inner);
            (work(&mut spool), spool.stand())
        });
        let Ok(done) = timeout(HANGS, working).await else {
            let time = humantime::format_duration(HANGS);
            let fault = format!(
                "the disk has not answered for {time}, so it is not used until the next start"
            );
            self.faults.hangs = Some(fault);
            self.spool = None;
            self.stand = Stand {
                lost: self.stand.lost,
                ..Stand::default()
            };
            return None;
        };
        let (done, stand) = done.expect("the spool does not panic");
        self.stand = stand;
        Some(done)
    }
}

#[cfg(test)]
mod tests;
