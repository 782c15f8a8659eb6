//! Stores the waiting batches of all calls together, so that one flush to disk serves all of them.

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
    pairs::{PairFiles, Sightings},
    senders::Held,
    store::{Part, Store},
    streams::{Facts, Streams},
};

/// The most stored at once, in batches and in bytes of one store. A single batch may be larger.
const MOST_BATCHES: usize = 256;
const MOST_BYTES: usize = 8 << 20;
/// The least bytes that a record counts as. It may be encoded in two bytes, and each store makes a row or a line of
/// it.
const BYTES_PER_RECORD: usize = 256;
/// The most batches to wait for, if a store prefers to wait: as many as the queue holds.
const MOST_GATHERED: usize = 1024;

/// How often to check whether an idle file is old enough to complete.
const LOOK: Duration = Duration::from_secs(1);

/// A batch that waits to be stored.
pub(super) struct Entry {
    pub facts: Facts,
    /// The batch in the form of each store.
    pub pieces: Vec<Bytes>,
    /// The batch for observers, if there are any.
    pub shared: Option<Batch>,
    /// The batch for the comparison of agents, if that is configured.
    pub sightings: Option<Sightings>,
    pub call: Arc<CallEnd>,
    pub _room: Held,
}

/// The writer's end of a call.
pub(super) struct CallEnd {
    pub outcomes: mpsc::UnboundedSender<Outcome>,
    /// A batch of the call was not stored. Later ones must not be stored either, since a number acknowledges all
    /// batches before it.
    pub is_broken: AtomicBool,
}

/// The result of storing a batch.
pub(super) enum Outcome {
    /// Every batch up to this number is stored.
    Stored(u64),
    Failed(Arc<str>),
}

pub(super) struct Writer {
    stores: Vec<Store>,
    streams: Streams,
    hub: Hub,
    pairs: Option<PairFiles>,
    entries: mpsc::Receiver<Entry>,
    published: u64,
    /// At shutdown, the batches of calls that have ended cannot be acknowledged. Agents send them again, so storing
    /// them would only take time.
    leaves_out_ended: Arc<AtomicBool>,
}

impl Writer {
    pub(super) fn new(
        stores: Vec<Store>,
        streams: Streams,
        hub: Hub,
        pairs: Option<PairFiles>,
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

    /// Once this is set, the writer skips the batches of calls that have ended.
    pub(super) fn leaves_out_ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leaves_out_ended)
    }

    /// Runs until every batch is stored and the queue is closed.
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

    /// Waits for more batches as long as a store prefers to.
    async fn gather(&mut self, waiting: &mut Vec<Entry>) {
        let until = self.stores.iter().filter_map(Store::gathers_until).max();
        // With nothing to store, there is nothing to gather for.
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

    /// Stores batches, and reports the result of each to its call.
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
            // The same batch came from another call earlier in this group. It is in no store yet, and must not be
            // stored twice.
            let stored_in = if first == place {
                self.streams.stores_with(&entry.facts)
            } else {
                stores
            };
            waiting.push(Waiting {
                entry,
                first,
                stored_in,
                failure: None,
            });
        }
        self.write_to_stores(&mut waiting).await;
        let fates: Vec<_> = waiting.iter().map(Waiting::fate).collect();
        for one in waiting {
            let Entry {
                facts,
                shared,
                sightings,
                call,
                ..
            } = one.entry;
            let (stored_in, failure) = &fates[one.first];
            let is_first = one.stored_in < stores;
            let seq = facts.seq;
            match failure {
                None if is_first => {
                    self.streams.stored(facts, stores);
                    self.publish(shared);
                    if let (Some(pairs), Some(sightings)) = (&mut self.pairs, &sightings) {
                        pairs.add_batch(sightings);
                    }
                }
                None => self.streams.repeated(&facts.stream),
                Some(_) if is_first && *stored_in > one.stored_in => {
                    self.streams.stored_in_part(&facts, *stored_in);
                }
                Some(_) => {}
            }
            // A number acknowledges all batches before it.
            match failure {
                None if !call.is_broken.load(Relaxed) => call.send(Outcome::Stored(seq)),
                None => {}
                Some(why) => {
                    call.is_broken.store(true, Relaxed);
                    call.send(Outcome::Failed(Arc::clone(why)));
                }
            }
        }
    }

    /// Stores in each store the batches that it does not have yet. A batch that one store refuses is not given to the
    /// stores after it.
    async fn write_to_stores(&mut self, waiting: &mut [Waiting]) {
        for (index, store) in self.stores.iter_mut().enumerate() {
            let (mut places, mut parts) = (Vec::new(), Vec::new());
            for (place, one) in waiting.iter().enumerate() {
                if one.stored_in <= index && one.failure.is_none() {
                    places.push(place);
                    parts.push(Part {
                        facts: &one.entry.facts,
                        piece: one.entry.pieces[index].clone(),
                    });
                }
            }
            let results = store.store(&parts).await;
            for (place, result) in places.into_iter().zip(results) {
                waiting[place].failure = result.err().map(|why| (index, why));
            }
        }
    }

    fn publish(&mut self, shared: Option<Batch>) {
        let Some(batch) = shared else { return };
        self.published += 1;
        // Scan numbers are unique only within an agent. This number is unique among all batches of the hub.
        self.hub.publish(&Batch {
            scan_id: self.published,
            ..batch
        });
    }
}

/// A batch that is being stored.
struct Waiting {
    entry: Entry,
    /// The place in the group of the first entry with the same batch.
    first: usize,
    /// How many stores had it before.
    stored_in: usize,
    /// The place of the store that refused it, and why.
    failure: Option<(usize, Arc<str>)>,
}

impl Waiting {
    /// How many stores have it, and why not all.
    fn fate(&self) -> (usize, Option<Arc<str>>) {
        match &self.failure {
            Some((store, why)) => (*store, Some(Arc::clone(why))),
            None => (usize::MAX, None),
        }
    }
}

impl CallEnd {
    fn send(&self, outcome: Outcome) {
        // The call may have ended.
        let _ = self.outcomes.send(outcome);
    }
}

/// The least that the records of a batch count as, in bytes.
pub(super) fn record_bytes(facts: &Facts) -> usize {
    facts.volume.records as usize * BYTES_PER_RECORD
}

/// How many of these are stored together.
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
