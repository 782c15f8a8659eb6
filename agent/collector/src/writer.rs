//! Stores what waits of all calls at once, so that bringing it to the disk costs once for all of it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use hub::Hub;
use proto::batch::Batch;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use super::{
    pairs::{PairFile, Sightings},
    senders::Held,
    store::{Part, Store},
    streams::{Facts, Streams},
};

/// What is brought to the disk at once, in batches and in bytes of one store. One batch may have more.
const MOST_BATCHES: usize = 256;
const MOST_BYTES: usize = 8 << 20;
/// A record counts as so many bytes at least: it may come in two, and each store makes a row or a line of it.
const BYTES_PER_RECORD: usize = 256;
/// Batches that are waited for, if a store asks for it: as many as have room in the queue.
const MOST_GATHERED: usize = 1024;

/// How often to look whether a file is old enough into which nothing comes.
const LOOK: Duration = Duration::from_secs(1);

/// A batch that waits.
pub(super) struct Entry {
    pub facts: Facts,
    /// What each store keeps of it.
    pub pieces: Vec<Bytes>,
    /// For those who observe, if there are any.
    pub shared: Option<Batch>,
    /// To compare agents, if that is asked for.
    pub sightings: Option<Sightings>,
    pub call: Arc<CallEnd>,
    pub _room: Held,
}

/// The writer's end of a call.
pub(super) struct CallEnd {
    pub outcomes: mpsc::UnboundedSender<Outcome>,
    /// A batch of the call was not stored. Those behind it must not be, since a number stands for all before it.
    pub is_broken: AtomicBool,
}

/// What became of a batch.
pub(super) enum Outcome {
    /// Everything up to this number is stored.
    Stored(u64),
    Failed(Arc<str>),
}

pub(super) struct Writer {
    stores: Vec<Store>,
    streams: Streams,
    hub: Hub,
    pairs: Option<PairFile>,
    entries: mpsc::Receiver<Entry>,
    published: u64,
    /// At the end, nobody is told any more what became of the batches of calls that have ended. Those come again, and to store
    /// them would only take time.
    leaves_out_ended: Arc<AtomicBool>,
}

impl Writer {
    pub(super) fn new(
        stores: Vec<Store>,
        streams: Streams,
        hub: Hub,
        pairs: Option<PairFile>,
        entries: mpsc::Receiver<Entry>,
    ) -> Self {
        Self {
            stores,
            streams,
            hub,
            pairs,
            entries,
            published: 0,
            leaves_out_ended: Arc::default(),
        }
    }

    /// Leaves out the batches of calls that have ended, once it is set.
    pub(super) fn leaves_out_ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leaves_out_ended)
    }

    /// Ends when everything is stored and nothing more will come.
    pub(super) async fn run(mut self) {
        let (mut waiting, mut last_look) = (Vec::new(), Instant::now());
        loop {
            let come = timeout(LOOK, self.entries.recv_many(&mut waiting, MOST_BATCHES)).await;
            if come == Ok(0) {
                break;
            }
            if last_look.elapsed() >= LOOK {
                last_look = Instant::now();
                for store in &mut self.stores {
                    store.look().await;
                }
                if let Some(pairs) = &mut self.pairs {
                    pairs.look().await;
                }
            }
            self.gather(&mut waiting).await;
            let mut rest = std::mem::take(&mut waiting);
            while !rest.is_empty() {
                let later = rest.split_off(together(&rest));
                self.store(rest).await;
                rest = later;
            }
        }
        for store in self.stores {
            store.close().await;
        }
        if let Some(pairs) = self.pairs {
            pairs.close().await;
        }
    }

    /// Waits for more as long as a store asks for it.
    async fn gather(&mut self, waiting: &mut Vec<Entry>) {
        let until = self.stores.iter().filter_map(Store::gathers_until).max();
        // What comes is not looked at once more if there is nothing to store.
        let Some(until) = until.filter(|_| !waiting.is_empty()) else {
            return;
        };
        while waiting.len() < MOST_GATHERED && together(waiting) == waiting.len() {
            let more = self.entries.recv_many(waiting, MOST_BATCHES);
            match timeout_at(until, more).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Stores batches, and tells their calls what became of each.
    async fn store(&mut self, entries: Vec<Entry>) {
        let stores = self.stores.len();
        let mut first = HashMap::new();
        let mut waiting = Vec::new();
        for entry in entries {
            let leaves_out = self.leaves_out_ended.load(Relaxed);
            let is_left_out = leaves_out && entry.call.outcomes.is_closed();
            if entry.call.is_broken.load(Relaxed) || is_left_out {
                continue;
            }
            let Facts {
                stream,
                seq,
                digest,
                ..
            } = &entry.facts;
            let place = waiting.len();
            let name = (stream.clone(), *seq, *digest);
            let first = *first.entry(name).or_insert(place);
            // What another call has in this very group is in no store yet.
            let kept = if first == place {
                self.streams.kept(&entry.facts)
            } else {
                stores
            };
            waiting.push(Waiting {
                entry,
                first,
                kept,
                failure: None,
            });
        }
        self.keep(&mut waiting).await;
        let fates: Vec<_> = waiting.iter().map(Waiting::fate).collect();
        for one in waiting {
            let Entry {
                facts,
                shared,
                sightings,
                call,
                ..
            } = one.entry;
            let (kept, failure) = &fates[one.first];
            let is_first = one.kept < stores;
            let seq = facts.seq;
            match failure {
                None if is_first => {
                    self.streams.stored(facts, stores);
                    self.publish(shared);
                    if let (Some(pairs), Some(sightings)) = (&mut self.pairs, &sightings) {
                        pairs.take(sightings);
                    }
                }
                None => self.streams.repeated(&facts.stream),
                Some(_) if is_first && *kept > one.kept => {
                    self.streams.keeps_in_part(&facts, *kept);
                }
                Some(_) => {}
            }
            // A number stands for all before it.
            match failure {
                None if !call.is_broken.load(Relaxed) => call.tell(Outcome::Stored(seq)),
                None => {}
                Some(why) => {
                    call.is_broken.store(true, Relaxed);
                    call.tell(Outcome::Failed(Arc::clone(why)));
                }
            }
        }
    }

    /// Brings to each store what it has not yet. What one of them does not take, those behind it do not get.
    async fn keep(&mut self, waiting: &mut [Waiting]) {
        for (index, store) in self.stores.iter_mut().enumerate() {
            let (mut places, mut parts) = (Vec::new(), Vec::new());
            for (place, one) in waiting.iter().enumerate() {
                if one.kept <= index && one.failure.is_none() {
                    places.push(place);
                    parts.push(Part {
                        facts: &one.entry.facts,
                        piece: one.entry.pieces[index].clone(),
                    });
                }
            }
            let kept = store.keep(&parts).await;
            for (place, kept) in places.into_iter().zip(kept) {
                waiting[place].failure = kept.err().map(|why| (index, why));
            }
        }
    }

    fn publish(&mut self, shared: Option<Batch>) {
        let Some(batch) = shared else { return };
        self.published += 1;
        // Numbers of scans are those of one agent. This one tells a batch from all others that the hub had.
        self.hub.publish(&Batch {
            scan_id: self.published,
            ..batch
        });
    }
}

/// A batch that is being stored.
struct Waiting {
    entry: Entry,
    /// The place of the first one in the group that is the same batch.
    first: usize,
    /// How many of the stores had it before.
    kept: usize,
    /// The place of the store that did not take it, and why.
    failure: Option<(usize, Arc<str>)>,
}

impl Waiting {
    /// How many of the stores have it, and why not all.
    fn fate(&self) -> (usize, Option<Arc<str>>) {
        match &self.failure {
            Some((store, why)) => (*store, Some(Arc::clone(why))),
            None => (usize::MAX, None),
        }
    }
}

impl CallEnd {
    fn tell(&self, outcome: Outcome) {
        // The call may have ended.
        let _ = self.outcomes.send(outcome);
    }
}

/// What a batch's records count at least.
pub(super) fn record_bytes(facts: &Facts) -> usize {
    facts.volume.records as usize * BYTES_PER_RECORD
}

/// How many of these are brought to the disk together.
fn together(entries: &[Entry]) -> usize {
    let longest = |entry: &Entry| {
        let pieces = entry.pieces.iter().map(Bytes::len);
        let longest = pieces.max().unwrap_or_default();
        longest.max(record_bytes(&entry.facts))
    };
    let mut bytes = 0;
    let fits = entries.iter().take_while(|entry| {
        bytes += longest(entry);
        bytes <= MOST_BYTES
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests;
