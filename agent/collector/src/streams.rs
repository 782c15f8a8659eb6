//! Tracks what each agent has sent: a table for the status, and the last batches of each stream, to recognize repeated
//! ones.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use formats::LostSoFar;
use hub::Volume;
use proto::{Account, AgentIdentity, CollectedStream, RecordSum};
use server::metrics::collector::StreamSums;
use sys::clock;
use tls::identity::Identity;

use super::incoming::{Incoming, is_named};

/// Limits on streams without a connection: of all senders, of a sender with a credential, and of a user or an address
/// without one, behind which there may be many hosts. An agent begins a stream at each start.
const MOST: usize = 5_000;
const MOST_OF_CREDENTIAL: usize = 16;
const MOST_OF_OTHERS: usize = 256;
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24);

/// How many batches of a stream are remembered. An agent has at most this many in memory, and repeats no others.
const REMEMBERED: usize = 1024;

/// Clones share the streams.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<BTreeMap<Key, Stream>>>);

/// A stream number belongs to its sender: another sender that uses it has another stream.
pub(super) type Key = (Identity, u64);

#[derive(Default)]
struct Stream {
    /// The status of the stream, without the fields that are kept elsewhere.
    told: CollectedStream,
    calls: usize,
    stored: Volume,
    /// Unix time at which a call last began or ended, or a batch came.
    last: Duration,
    lost: LostSoFar,
    stored_batches: VecDeque<StoredBatch>,
}

/// A batch that some or all of the stores have.
struct StoredBatch {
    seq: u64,
    digest: u64,
    /// How many stores have it, counted in their order.
    stores: usize,
}

/// The data of a batch for the table.
pub(super) struct Facts {
    pub stream: Key,
    pub seq: u64,
    /// Tells apart batches with the same number. Without it, an agent that is cloned with its spool would keep the
    /// other one's batches from being stored.
    pub digest: u64,
    pub volume: Volume,
    /// The cost of writing the batch to a file, in rows.
    pub rows: u64,
    pub agent: AgentIdentity,
    window_end_unix_ns: u64,
    lost: (u64, RecordSum),
    /// The losses reported on the stream, including this batch.
    told: LostSoFar,
    account: Option<Account>,
    report_interval_ns: u64,
    sample_rate: u32,
}

impl Facts {
    /// `told` is the losses reported before this batch.
    pub(super) fn of(incoming: &Incoming, digest: u64, mut told: LostSoFar) -> Self {
        let batch = &incoming.batch;
        told.growth(batch);
        Self {
            stream: incoming.stream(),
            seq: batch.stream_seq,
            digest,
            volume: incoming.volume(),
            rows: incoming.rows(),
            agent: incoming.agent(),
            window_end_unix_ns: batch.window_end_unix_ns,
            lost: incoming.lost(),
            told,
            account: batch.account.clone(),
            report_interval_ns: batch.report_interval_ns,
            sample_rate: batch.sample_rate,
        }
    }

    pub(super) fn told(&self) -> LostSoFar {
        self.told
    }
}

/// A call on a stream, which is open until this is dropped.
pub(super) struct OpenCall {
    streams: Streams,
    stream: Key,
}

impl Streams {
    /// Notes the start of a call. Also returns the losses reported on its stream so far.
    pub(super) fn begin(&self, incoming: &Incoming, peer: &str) -> (OpenCall, LostSoFar) {
        let key = incoming.stream();
        let now = unix_now();
        let mut streams = self.streams();
        let stream = entry(&mut streams, &key, now);
        stream.calls += 1;
        stream.last = now;
        stream.told.stream_id = key.1;
        stream.told.identity = key.0.to_string();
        if let Some(agent) = incoming.named_agent() {
            stream.told.agent = Some(agent.clone());
        }
        peer.clone_into(&mut stream.told.peer);
        stream.told.since_unix_ns = clock::nanos(now);
        let call = OpenCall {
            streams: self.clone(),
            stream: key,
        };
        (call, stream.lost)
    }

    /// How many stores have the batch.
    pub(super) fn stores_with(&self, facts: &Facts) -> usize {
        let streams = self.streams();
        let known = streams.get(&facts.stream).and_then(|stream| {
            let is_it =
                |batch: &&StoredBatch| batch.seq == facts.seq && batch.digest == facts.digest;
            stream.stored_batches.iter().rev().find(is_it)
        });
        known.map_or(0, |batch| batch.stores)
    }

    /// Notes a batch that only the first `stores` stores have.
    pub(super) fn stored_in_part(&self, facts: &Facts, stores: usize) {
        let mut streams = self.streams();
        let stream = entry(&mut streams, &facts.stream, unix_now());
        stream.remember(facts, stores);
    }

    /// Notes a batch that all stores have; `stores` is their number.
    pub(super) fn stored(&self, facts: Facts, stores: usize) {
        let now = unix_now();
        let mut streams = self.streams();
        let stream = entry(&mut streams, &facts.stream, now);
        stream.remember(&facts, stores);
        stream.last = now;
        stream.lost = facts.told;
        let told = &mut stream.told;
        told.stream_id = facts.stream.1;
        told.identity = facts.stream.0.to_string();
        if is_named(&facts.agent) {
            told.agent = Some(facts.agent);
        }
        told.stored_seq = facts.seq;
        told.stored_unix_ns = clock::nanos(now);
        if facts.window_end_unix_ns != 0 {
            told.window_end_unix_ns = facts.window_end_unix_ns;
            told.report_interval_ns = facts.report_interval_ns;
            told.sample_rate = facts.sample_rate;
        }
        told.batches += 1;
        stream.stored += facts.volume;
        told.stored = Some(stream.stored.into());
        (told.lost_batches, told.lost) = (facts.lost.0, Some(facts.lost.1));
        if facts.account.is_some() {
            told.account = facts.account;
        }
    }

    /// Adds the time that a batch of this stream waited.
    pub(super) fn held_back(&self, stream: &Key, waited: Duration) {
        if let Some(stream) = self.streams().get_mut(stream) {
            stream.told.held_back_ns += clock::nanos(waited);
        }
    }

    /// Adds a waiting time to the sender's most recent stream, for a call that ended before its stream was known.
    pub(super) fn last_was_held_back(&self, sender: &Identity, waited: Duration) {
        let mut streams = self.streams();
        let last = streams.range_mut(of_sender(sender));
        if let Some((_, stream)) = last.max_by_key(|(_, stream)| stream.last) {
            stream.told.held_back_ns += clock::nanos(waited);
        }
    }

    /// Notes a batch that was stored before.
    pub(super) fn repeated(&self, stream: &Key) {
        if let Some(stream) = self.streams().get_mut(stream) {
            stream.told.repeated_batches += 1;
        }
    }

    /// The sums over all streams for `/metrics` and `/readyz`, without copying the streams.
    pub(super) fn sums(&self) -> StreamSums {
        let mut sums = StreamSums::default();
        for stream in self.streams().values() {
            sums.add(&stream.told, stream.calls > 0);
        }
        sums
    }

    pub(super) fn status(&self) -> Vec<CollectedStream> {
        let streams = self.streams();
        let mut all: Vec<_> = streams
            .values()
            .map(|stream| CollectedStream {
                connected: stream.calls > 0,
                ..stream.told.clone()
            })
            .collect();
        drop(streams);
        all.sort_by_cached_key(|stream| {
            let hostname = stream.agent.as_ref().map(|agent| agent.hostname.clone());
            (hostname, stream.identity.clone(), stream.stream_id)
        });
        all
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<Key, Stream>> {
        // Code under this lock does not panic halfway, so the data behind a poisoned lock is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream {
    fn remember(&mut self, facts: &Facts, stores: usize) {
        let is_it =
            |batch: &&mut StoredBatch| batch.seq == facts.seq && batch.digest == facts.digest;
        if let Some(batch) = self.stored_batches.iter_mut().rev().find(is_it) {
            batch.stores = stores;
            return;
        }
        if self.stored_batches.len() == REMEMBERED {
            self.stored_batches.pop_front();
        }
        self.stored_batches.push_back(StoredBatch {
            seq: facts.seq,
            digest: facts.digest,
            stores,
        });
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(stream) = self.streams.streams().get_mut(&self.stream) {
            stream.calls -= 1;
            stream.last = unix_now();
        }
    }
}

/// The stream with this key. Creates it if necessary.
fn entry<'a>(streams: &'a mut BTreeMap<Key, Stream>, key: &Key, now: Duration) -> &'a mut Stream {
    if !streams.contains_key(key) {
        make_room(streams, &key.0, now);
    }
    streams.entry(key.clone()).or_default()
}

/// Makes room for another stream of this sender. Forgets streams that were quiet for a day, the sender's oldest if it
/// has reached its limit, and the oldest of all if the table is full.
fn make_room(streams: &mut BTreeMap<Key, Stream>, sender: &Identity, now: Duration) {
    streams
        .retain(|_, stream| stream.calls > 0 || now.saturating_sub(stream.last) < FORGOTTEN_AFTER);
    let most_of_sender = match sender {
        Identity::Named(_) => MOST_OF_CREDENTIAL,
        Identity::User(_) | Identity::Address(_) => MOST_OF_OTHERS,
    };
    if streams.range(of_sender(sender)).count() >= most_of_sender {
        let oldest = oldest(streams.range(of_sender(sender)));
        oldest.and_then(|oldest| streams.remove(&oldest));
    }
    if streams.len() >= MOST {
        let oldest = oldest(streams.iter());
        oldest.and_then(|oldest| streams.remove(&oldest));
    }
}

/// All streams of a sender, whichever of its addresses it uses.
fn of_sender(sender: &Identity) -> RangeInclusive<Key> {
    let (first, last) = sender.of_host().into_inner();
    (first, 0)..=(last, u64::MAX)
}

/// The stream that has been without a call for longest.
fn oldest<'a>(streams: impl Iterator<Item = (&'a Key, &'a Stream)>) -> Option<Key> {
    let away = streams.filter(|(_, stream)| stream.calls == 0);
    let oldest = away.min_by_key(|(_, stream)| stream.last);
    oldest.map(|(key, _)| key.clone())
}

pub(super) fn unix_now() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

#[cfg(test)]
mod tests;
