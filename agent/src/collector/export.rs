//! One call of `FlowCollector.Export`: an agent's batches, and acknowledgements of what is stored.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};
use tonic::{Status, Streaming};

use super::{
    Intake, ROOM_KIB,
    addresses::AddressPlace,
    claims::Claim,
    incoming::Incoming,
    pairs::Sightings,
    streams::{Facts, Key, OpenCall},
    writer::{CallEnd, Entry, Outcome},
};
use crate::{
    batch::{Batch, validity::Origin},
    clock,
    identity::Grant,
    output::LostSoFar,
    proto::ExportAck,
    server::Peer,
};

/// Batches of a call that wait to be stored. What an agent sends beyond them waits at the agent.
const MOST_WAITING: usize = 64;

/// An agent calls when it has a batch.
const FIRST_BATCH: Duration = Duration::from_secs(30);

/// A call that has a place.
pub(crate) struct Call {
    intake: Arc<Intake>,
    peer: String,
    caller: Grant,
    end: Arc<CallEnd>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    stream: Option<Stream>,
    waiting: usize,
    /// Stored, and not acknowledged yet.
    stored_seq: Option<u64>,
    /// The stream that the call is known to be about.
    key: Option<Key>,
    /// What the agent calls itself, once that was found to be true.
    claimed: Claimed,
    /// What has come and was not taken yet.
    next: Option<Next>,
    _place: OwnedSemaphorePermit,
    _place_of_address: Option<AddressPlace>,
}

struct Next {
    raw: Bytes,
    came_at: Instant,
}

/// As a batch says it: the host's name and the machine.
#[derive(Default)]
struct Claimed {
    hostname: String,
    agent_id: String,
    _claim: Option<Claim>,
}

/// The stream that the call is about.
struct Stream {
    /// The number of the last batch that came.
    last_seq: u64,
    told: LostSoFar,
    _open: OpenCall,
}

impl Intake {
    /// A place for a call, if there is one.
    pub(crate) fn call(self: &Arc<Self>, peer: &Peer, caller: Grant) -> Result<Call, Status> {
        if self.stopping.has_changed().is_err() {
            return Err(stops());
        }
        let place = Arc::clone(&self.calls).try_acquire_owned();
        let place = place.map_err(|_| {
            Status::resource_exhausted(format!(
                "{} agents send to this collector, and --max-agents allows no more",
                self.limits.most
            ))
        })?;
        let most = self.limits.most_per_address;
        let place_of_address = match peer {
            Peer::Tcp(address) => {
                let place = self.addresses.place(address.ip(), most);
                Some(place.ok_or_else(|| {
                    Status::resource_exhausted(format!(
                        "{most} agents send from this address, and --max-agents-per-address of the collector allows no more"
                    ))
                })?)
            }
            Peer::Unix { .. } | Peer::Unknown => None,
        };
        let (told, outcomes) = mpsc::unbounded_channel();
        Ok(Call {
            intake: Arc::clone(self),
            peer: peer.to_string(),
            caller,
            end: Arc::new(CallEnd {
                outcomes: told,
                is_broken: AtomicBool::new(false),
            }),
            outcomes,
            stream: None,
            waiting: 0,
            stored_seq: None,
            key: None,
            claimed: Claimed::default(),
            next: None,
            _place: place,
            _place_of_address: place_of_address,
        })
    }
}

impl Call {
    /// Stores what comes. Returns when the agent has ended the call and all is acknowledged, or why it cannot go on. `acks`
    /// is what the agent reads.
    pub(crate) async fn run(
        mut self,
        messages: Streaming<Bytes>,
        acks: &mpsc::Sender<ExportAck>,
    ) -> Result<(), Status> {
        let ended = self.exchange(messages, acks).await;
        if let (Some(next), Some(key)) = (&self.next, &self.key) {
            self.intake.streams.goes(key, next.came_at);
        }
        ended
    }

    async fn exchange(
        &mut self,
        mut messages: Streaming<Bytes>,
        acks: &mpsc::Sender<ExportAck>,
    ) -> Result<(), Status> {
        let mut stopping = self.intake.stopping.clone();
        // What was taken is stored and acknowledged first, however the call ends.
        let mut ended = None;
        let first = sleep(FIRST_BATCH);
        tokio::pin!(first);
        while ended.is_none() || self.waiting > 0 || self.stored_seq.is_some() {
            let held = self.is_held_until();
            tokio::select! {
                biased;
                () = acks.closed() => return Err(gone()),
                outcome = self.outcomes.recv(), if self.waiting > 0 => {
                    if let Err(failure) = self.learn(outcome) {
                        ended = Some(Err(failure));
                    }
                }
                place = acks.reserve(), if self.stored_seq.is_some() => {
                    if let (Ok(place), Some(last_seq)) = (place, self.stored_seq.take()) {
                        let wanted = self.intake.asks;
                        place.send(ExportAck {
                            last_seq,
                            report_interval_ns: clock::nanos(wanted.report_interval),
                            sample_rate: wanted.sample_rate,
                        });
                    }
                }
                _ = stopping.changed(), if ended.is_none() => ended = Some(Err(stops())),
                () = &mut first, if ended.is_none() && self.key.is_none() => {
                    let seconds = FIRST_BATCH.as_secs();
                    let late = format!("no batch came within {seconds} s");
                    ended = Some(Err(Status::deadline_exceeded(late)));
                }
                // It is read before its time comes, so that a call ends when the agent ends it.
                message = messages.message(), if ended.is_none() && self.next.is_none() && self.waiting < MOST_WAITING => {
                    match message {
                        Ok(Some(raw)) => self.next = Some(Next { raw, came_at: Instant::now() }),
                        Ok(None) => ended = Some(Ok(())),
                        Err(status) => ended = Some(Err(status)),
                    }
                }
                () = at(held), if ended.is_none() && self.next.is_some() => {
                    let taken = tokio::select! {
                        biased;
                        () = acks.closed() => return Err(gone()),
                        taken = self.take_next() => taken,
                    };
                    if let Err(failure) = taken {
                        ended = Some(Err(failure));
                    }
                }
            }
        }
        ended.unwrap_or(Ok(()))
    }

    /// When the next batch may be taken, if that is not now.
    fn is_held_until(&self) -> Option<Instant> {
        self.intake.limits.records_per_second?;
        self.intake.streams.is_held_until(self.key.as_ref()?)
    }

    fn learn(&mut self, outcome: Option<Outcome>) -> Result<(), Status> {
        match outcome {
            Some(Outcome::Stored(seq)) => {
                self.waiting -= 1;
                self.stored_seq = Some(seq);
                Ok(())
            }
            Some(Outcome::Failed(why)) => {
                // Of the others of this call none is stored, and nothing is told.
                self.waiting = 0;
                let why = format!("the collector cannot store flows: {why}");
                Err(Status::unavailable(why))
            }
            None => Err(Status::internal("nobody stores flows any more")),
        }
    }

    /// Puts the batch that has come into the writer's queue, unless its stream turns out to have had too much already.
    async fn take_next(&mut self) -> Result<(), Status> {
        let Some(Next { raw, came_at }) = self.next.take() else {
            return Ok(());
        };
        let refused = |error: &anyhow::Error| Status::invalid_argument(format!("{error:#}"));
        let unexpected = |error: &dyn std::error::Error| Status::internal(error.to_string());
        let intake = Arc::clone(&self.intake);
        let decoding = Arc::clone(&intake.decoding).acquire_owned().await;
        let decoding = decoding.map_err(|error| unexpected(&error))?;
        // A thread goes on when the call is gone, so it has the permit.
        let (again, caller) = (raw.clone(), self.caller.clone());
        let read = spawn_blocking(move || {
            let incoming = Incoming::read(&raw, &caller);
            (incoming.and_then(Incoming::checked), decoding)
        })
        .await;
        let (incoming, decoding) = read.map_err(|error| unexpected(&error))?;
        let incoming = incoming.map_err(|error| refused(&error))?;
        let key = incoming.stream();
        if self.key.is_none() {
            self.key = Some(key.clone());
            if self.is_held_until().is_some() {
                // An earlier call has brought too much.
                self.next = Some(Next {
                    raw: again,
                    came_at,
                });
                return Ok(());
            }
        }
        self.claim(&incoming)?;
        let told = self.follow(&incoming)?;
        let (forms, digests) = (intake.forms.clone(), intake.digests.clone());
        let is_observed = intake.hub.has_consumers();
        let is_compared = intake.pairs.is_some();
        let made = spawn_blocking(move || {
            let pieces = forms.iter().map(|form| form.piece(&incoming, told));
            let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
            let facts = Facts::of(&incoming, incoming.digest(&digests), told);
            let shared = is_observed.then(|| shared(&incoming, &facts));
            let sightings = is_compared.then(|| Sightings::of(&incoming));
            anyhow::Ok((facts, pieces, shared, sightings, decoding))
        });
        let made = made.await.map_err(|error| unexpected(&error))?;
        let (facts, pieces, shared, sightings, decoding) = made.map_err(|error| refused(&error))?;
        if let Some(stream) = &mut self.stream {
            stream.told = facts.told();
        }
        if let Some(most) = intake.limits.records_per_second {
            let records = facts.volume.records;
            intake.streams.takes(&key, came_at, records, most);
        }
        let bytes = pieces.iter().map(Bytes::len).sum::<usize>();
        let bytes = bytes + shared.as_ref().map_or(0, |batch| batch.body.len());
        let bytes = bytes + sightings.as_ref().map_or(0, Sightings::bytes);
        let kib = u32::try_from(bytes >> 10).map_or(ROOM_KIB, |kib| (kib + 1).min(ROOM_KIB));
        let room = Arc::clone(&intake.room).acquire_many_owned(kib).await;
        let room = room.map_err(|error| unexpected(&error))?;
        drop(decoding);
        let entry = Entry {
            facts,
            pieces,
            shared,
            sightings,
            call: Arc::clone(&self.end),
            _room: room,
        };
        // It has ended if the collector does.
        let queue = intake.queue.upgrade().ok_or_else(stops)?;
        queue.send(entry).await.map_err(|_| stops())?;
        self.waiting += 1;
        Ok(())
    }

    /// Checks that the sender may have this agent's name. A spool has batches of before the host was installed anew. Where another
    /// collector has checked that, its topic may have all names that the host ever had.
    fn claim(&mut self, incoming: &Incoming) -> Result<(), Status> {
        if incoming.origin == Origin::Collector {
            return Ok(());
        }
        let Some(agent) = incoming.named_agent() else {
            return Ok(());
        };
        let claimed = &mut self.claimed;
        if claimed.hostname == agent.hostname && claimed.agent_id == agent.agent_id {
            return Ok(());
        }
        // What it was before is no reason against what it is.
        *claimed = Claimed::default();
        let claim = self.intake.claims.claim(&incoming.sender, agent);
        *claimed = Claimed {
            hostname: agent.hostname.clone(),
            agent_id: agent.agent_id.clone(),
            _claim: claim.map_err(|refused| Status::permission_denied(refused.to_string()))?,
        };
        Ok(())
    }

    /// Checks that the batch follows those before it. Returns what was told of losses on its stream.
    fn follow(&mut self, incoming: &Incoming) -> Result<LostSoFar, Status> {
        let seq = incoming.batch.stream_seq;
        let Some(stream) = &mut self.stream else {
            let (open, told) = self.intake.streams.begin(incoming, &self.peer);
            self.stream = Some(Stream {
                last_seq: seq,
                told,
                _open: open,
            });
            return Ok(told);
        };
        if self.key.as_ref() != Some(&incoming.stream()) {
            return Err(Status::invalid_argument(
                "stream_id: a call has batches of one stream",
            ));
        }
        if seq <= stream.last_seq {
            return Err(Status::invalid_argument(format!(
                "batch {seq} follows batch {}: within a call numbers rise",
                stream.last_seq
            )));
        }
        stream.last_seq = seq;
        Ok(stream.told)
    }
}

/// Returns at that moment, or now.
async fn at(moment: Option<Instant>) {
    if let Some(moment) = moment {
        sleep_until(moment).await;
    }
}

fn stops() -> Status {
    Status::unavailable("the collector stops")
}

fn gone() -> Status {
    Status::cancelled("the agent has ended the call")
}

/// The batch for those who observe. The writer numbers it.
fn shared(incoming: &Incoming, facts: &Facts) -> Batch {
    Batch {
        body: incoming.shared(),
        records: facts.volume.records as u32,
        delta: agent_common::Pair {
            packets: facts.volume.packets,
            bytes: facts.volume.bytes,
        },
        scan_id: 0,
        index: 0,
        last_of_scan: incoming.batch.last_of_scan,
    }
}
