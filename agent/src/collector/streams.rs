//! What has come from whom: a table for people, and the last number of each stream, by which a batch is known that comes again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use super::incoming::Incoming;
use crate::{
    clock,
    hub::Volume,
    output::LostSoFar,
    proto::{Account, AgentIdentity, CollectedStream, RecordSum},
};

/// More are kept only while they are connected.
const MOST: usize = 20_000;
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24);

/// Clones share the streams.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<BTreeMap<u64, Stream>>>);

#[derive(Default)]
struct Stream {
    /// Without what only other fields know.
    told: CollectedStream,
    calls: usize,
    stored: Volume,
    /// Unix time. When a call began or ended, or a batch came.
    last: Duration,
    lost: LostSoFar,
}

/// What the table takes of a batch.
pub(super) struct Facts {
    pub stream_id: u64,
    pub seq: u64,
    pub volume: Volume,
    agent: AgentIdentity,
    window_end_unix_ns: u64,
    lost: (u64, RecordSum),
    /// What was told of losses with it.
    told: LostSoFar,
    account: Option<Account>,
}

impl Facts {
    /// `told` is what was told of losses before.
    pub(super) fn of(incoming: &Incoming, mut told: LostSoFar) -> Self {
        let batch = &incoming.batch;
        told.growth(batch);
        Self {
            stream_id: batch.stream_id,
            seq: batch.stream_seq,
            volume: incoming.volume(),
            agent: incoming.agent(),
            window_end_unix_ns: batch.window_end_unix_ns,
            lost: incoming.lost(),
            told,
            account: batch.account.clone(),
        }
    }

    pub(super) fn told(&self) -> LostSoFar {
        self.told
    }
}

/// A call on a stream, which is open until this is dropped.
pub(super) struct OpenCall {
    streams: Streams,
    stream_id: u64,
}

impl Streams {
    /// Notes a call that begins. Also returns what was told of losses on its stream.
    pub(super) fn begin(&self, incoming: &Incoming, peer: &str) -> (OpenCall, LostSoFar) {
        let stream_id = incoming.batch.stream_id;
        let now = unix_now();
        let mut streams = self.streams();
        if !streams.contains_key(&stream_id) {
            forget(&mut streams, now);
        }
        let stream = streams.entry(stream_id).or_default();
        stream.calls += 1;
        stream.last = now;
        stream.told.stream_id = stream_id;
        stream.told.agent = Some(incoming.agent());
        peer.clone_into(&mut stream.told.peer);
        stream.told.since_unix_ns = clock::nanos(now);
        let call = OpenCall {
            streams: self.clone(),
            stream_id,
        };
        (call, stream.lost)
    }

    /// The last number that is stored; 0 if none is.
    pub(super) fn stored_seq(&self, stream_id: u64) -> u64 {
        let streams = self.streams();
        streams.get(&stream_id).map_or(0, |one| one.told.stored_seq)
    }

    /// Notes a batch that is stored.
    pub(super) fn stored(&self, facts: Facts) {
        let now = unix_now();
        let mut streams = self.streams();
        let stream = streams.entry(facts.stream_id).or_default();
        stream.last = now;
        stream.lost = facts.told;
        let told = &mut stream.told;
        told.stream_id = facts.stream_id;
        if facts.agent != AgentIdentity::default() {
            told.agent = Some(facts.agent);
        }
        told.stored_seq = facts.seq;
        told.stored_unix_ns = clock::nanos(now);
        if facts.window_end_unix_ns != 0 {
            told.window_end_unix_ns = facts.window_end_unix_ns;
        }
        told.batches += 1;
        stream.stored += facts.volume;
        told.stored = Some(stream.stored.into());
        (told.lost_batches, told.lost) = (facts.lost.0, Some(facts.lost.1));
        if facts.account.is_some() {
            told.account = facts.account;
        }
    }

    /// Notes a batch that was stored before.
    pub(super) fn repeated(&self, stream_id: u64) {
        if let Some(stream) = self.streams().get_mut(&stream_id) {
            stream.told.repeated_batches += 1;
        }
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
            (hostname, stream.stream_id)
        });
        all
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<u64, Stream>> {
        // Nothing under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(stream) = self.streams.streams().get_mut(&self.stream_id) {
            stream.calls -= 1;
            stream.last = unix_now();
        }
    }
}

/// Makes room for another stream.
fn forget(streams: &mut BTreeMap<u64, Stream>, now: Duration) {
    streams
        .retain(|_, stream| stream.calls > 0 || now.saturating_sub(stream.last) < FORGOTTEN_AFTER);
    if streams.len() < MOST {
        return;
    }
    let away = streams.iter().filter(|(_, stream)| stream.calls == 0);
    let oldest = away.min_by_key(|(_, stream)| stream.last);
    if let Some(oldest) = oldest.map(|(&id, _)| id) {
        streams.remove(&oldest);
    }
}

fn unix_now() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}
