//! All batches that the collector has not acknowledged: the oldest in memory, ready to be sent, and the rest on disk if there
//! is a spool.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use hub::{OutgoingBatch, Volume};
use proto::{FlowBatch, RecordSum};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};

use super::{
    spool::{Beginning, Spool, Stand},
    waiting::{Point, Waiting},
};

/// Batches, and bytes, of which no more are in memory. Without a spool the rest is left in the queue, where the oldest can
/// make room for others.
const MOST_BATCHES: usize = 1024;
const MOST_BYTES: usize = 32 << 20;
/// So much is read from the disk at once.
const READ_BYTES: usize = 4 << 20;
/// How often what was written is brought to the disk for sure.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// A disk that takes longer is left alone, so that a collector that is well has its batches.
const HANGS: Duration = Duration::from_secs(20);

pub(super) struct Backlog {
    stream_id: u64,
    /// The last number that was given.
    last: Point,
    /// What queues of earlier runs lost, and what never got a number.
    lost_before: Volume,
    /// What the queue lost in this run.
    lost_in_queue: Volume,
    /// From old to new. Numbers may be missing where batches are lost.
    window: VecDeque<Waiting>,
    window_bytes: usize,
    spool: Option<Arc<Mutex<Spool>>>,
    /// How the spool stood after what was done last.
    stand: Stand,
    /// It has no room in memory, and the disk did not take it.
    tail: Option<Waiting>,
    synced: Instant,
    is_synced: bool,
    faults: Faults,
}

/// What is wrong with the disk.
#[derive(Default)]
struct Faults {
    hangs: Option<String>,
    /// Until it has taken a batch for sure, and has room for the longest that it refused: one that is nearly full takes a short one
    /// now and then.
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

    /// Goes on where a spool ended. Nothing was taken yet.
    pub(super) fn go_on(&mut self, spool: Spool, beginning: &Beginning) {
        self.stream_id = beginning.stream_id;
        self.last = beginning.last;
        self.lost_before = beginning.lost_in_queue;
        self.stand = spool.stand();
        self.spool = Some(Arc::new(Mutex::new(spool)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.window.is_empty() && !self.is_behind()
    }

    /// There are batches that are not in the window.
    pub(super) fn is_behind(&self) -> bool {
        self.stand.is_ahead || self.tail.is_some()
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

    /// How the spool stood after what was done last.
    pub(super) fn stand(&self) -> Stand {
        self.stand
    }

    /// When the oldest batch came; 0 if there is none.
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

    /// The first batch in memory with a number above this one.
    pub(super) fn after(&self, seq: u64) -> Option<&Waiting> {
        let place = self.window.partition_point(|batch| batch.seq <= seq);
        self.window.get(place)
    }

    /// Gives a batch its number on the stream, and adds all that names it.
    pub(super) fn number(&mut self, batch: OutgoingBatch) -> Waiting {
        self.lost_in_queue = batch.lost();
        let own = RecordSum::from(batch.volume());
        let before = self.last;
        self.last = before.with(before.seq + 1, own);
        // The batch has its number and its losses already if this run's are all there are.
        let stream_seq = Some(self.last.seq).filter(|seq| *seq != batch.stream_seq());
        let mut lost = self.lost_before;
        lost += self.stand.lost;
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

    /// This one is lost, and gets no number.
    pub(super) fn loses_unnumbered(&mut self, batch: &OutgoingBatch) {
        self.lost_in_queue = batch.lost();
        self.lost_before += batch.volume();
    }

    /// The disk did not answer, and what is there is left to the next start.
    pub(super) fn hangs(&self) -> bool {
        self.faults.hangs.is_some()
    }

    /// Takes a batch, which has room.
    pub(super) async fn keep(&mut self, mut batch: Waiting) {
        let is_next = !self.stand.is_ahead && self.window_has_room();
        let (point, lost_in_queues) = (self.last, self.lost_in_queues());
        let copy = batch.clone();
        self.is_synced = false;
        let appended = self.on_disk(move |spool| {
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

    /// Fills the memory from the disk where there is room.
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
                    // It is read again once a batch is acknowledged or comes.
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

    /// Takes the oldest batch out of memory, which no collector takes. The batches that come say that it is lost.
    pub(super) fn give_up(&mut self, seq: u64) -> Option<(RecordSum, Point)> {
        let given_up = self.acknowledge(seq)?;
        self.lost_before += Point::default().with(seq, given_up.0).sum;
        Some(given_up)
    }

    /// Batches up to here are not needed on disk.
    pub(super) async fn forget(&mut self, done: Point) {
        self.is_synced = false;
        let _ = self.on_disk(move |spool| spool.acknowledge(done)).await;
    }

    /// When what was written is to be brought to the disk.
    pub(super) fn sync_at(&self) -> Option<Instant> {
        (self.has_spool() && !self.is_synced).then_some(self.synced + SYNC_INTERVAL)
    }

    /// Brings what was written to the disk. A batch that the disk did not take is tried again before.
    pub(super) async fn sync(&mut self) {
        self.synced = Instant::now();
        if let Some(tail) = self.tail.take() {
            self.keep(tail).await;
        }
        self.sync_until(None).await;
        self.is_synced &= self.tail.is_none();
    }

    /// Leaves the spool to the next start, with so much that is in memory alone. Returns whether it is there for sure.
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

    /// What would not be there at the next start.
    pub(super) fn only_in_memory(&self) -> Volume {
        let mut volume = Volume::default();
        let is_there = |batch: &Waiting| batch.is_on_disk && batch.seq > self.stand.evicted_seq;
        let all = self.window.iter().chain(&self.tail);
        for batch in all.filter(|batch| !is_there(batch)) {
            volume += Point::default().with(batch.seq, batch.own).sum;
        }
        volume
    }

    /// One batch always has room, however long it is.
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

    /// Does this on a thread that may wait for the disk. Once begun it goes on whatever becomes of the caller. `None` if there
    /// is no spool, or none any more because the disk hangs.
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
                "the disk has not answered for {time}, so it is left alone until the next start"
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
