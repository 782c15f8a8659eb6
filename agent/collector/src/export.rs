//! One call of `FlowCollector.Export`: an agent's batches, and acknowledgements of stored batches.
//!
//! A [`Reader`] takes one batch after the other from the call to the writer's queue. [`Call::run`] runs it, and sends
//! acknowledgements meanwhile and until every batch it has taken is stored.

use std::{
    mem::take,
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use formats::LostSoFar;
use proto::{
    ExportAck,
    batch::{Batch, validity::Origin},
};
use server::{Peer, counted::CountedPlace};
use sys::clock;
use tls::{
    identity::{Grant, Identity},
    source::Source,
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use tonic::Status;

use super::{
    Intake,
    claims::Claim,
    incoming::Incoming,
    messages::{Message, Messages},
    pairs::Sightings,
    senders::{Held, Sender},
    streams::{Facts, Key, OpenCall, Streams},
    writer::{CallEnd, Entry, Outcome, record_bytes},
};

/// How long a call may take to send its first batch. An agent calls only when it has a batch.
const FIRST_BATCH: Duration = Duration::from_secs(30);
/// The time from the header of a message to its last byte.
const WHOLE_BATCH: Duration = Duration::from_secs(30);
/// How long the last acknowledgement of a call waits to be read.
const LAST_ACK: Duration = Duration::from_secs(30);

/// Open calls of one credential. An agent has one, and another while it reconnects. Relays, which bring the batches of
/// many hosts, are exempt, and so are callers without a credential: many hosts may share an address, which has its own
/// limit.
const MOST_CALLS: u32 = 16;
/// The least that a batch is charged while it waits for the writer, to cover the data kept beside its records.
const LEAST_BYTES: usize = 64 << 10;

/// A call that was admitted.
pub(crate) struct Call {
    reader: Reader,
    end: CallEnd,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    _place: OwnedSemaphorePermit,
}

/// The places that a call holds until its answer is read or given up.
pub(crate) struct CallPlaces {
    _of_credential: Option<CountedPlace<Identity>>,
    _of_address: Option<CountedPlace<Source>>,
}

/// Takes the batches of a call to the writer's queue.
struct Reader {
    intake: Arc<Intake>,
    peer: String,
    caller: Grant,
    sender: Arc<Sender>,
    /// The bytes that the last batch took in the queue.
    last_bytes: usize,
    stream: Option<Stream>,
    /// The name of the agent, once it was checked.
    claimed: Claimed,
    held_back: HeldBack,
}

/// The host name and the machine, as a batch gives them.
#[derive(Default)]
struct Claimed {
    hostname: String,
    agent_id: String,
    _claim: Option<Claim>,
}

/// The stream that the call belongs to.
struct Stream {
    key: Key,
    /// The number of the last batch received.
    last_seq: u64,
    told: LostSoFar,
    _open: OpenCall,
}

/// How long batches of a call have waited for `--max-agent-records`, for the status.
struct HeldBack {
    streams: Streams,
    sender: Identity,
    /// `None` until the first batch is decoded.
    stream: Option<Key>,
    /// Since when the current batch waits.
    since: Option<Instant>,
    /// Waiting time that is not reported yet.
    waited: Duration,
}

impl Intake {
    /// Admits a call. Fails with `RESOURCE_EXHAUSTED` if a limit is reached.
    pub(crate) fn call(
        self: &Arc<Self>,
        peer: &Peer,
        caller: Grant,
    ) -> Result<(Call, CallPlaces), Status> {
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
        let of_address = match peer {
            Peer::Tcp(address) => {
                let place = self.of_addresses.place(Source::of_ip(address.ip()), most);
                Some(place.ok_or_else(|| {
                    Status::resource_exhausted(format!(
                        "{most} agents send from this address, and --max-agents-per-address of the collector allows no more"
                    ))
                })?)
            }
            Peer::Unix { .. } | Peer::Unknown => None,
        };
        let of_credential = if caller.has_share() {
            let identity = &caller.identity;
            let place = self.of_credentials.place(identity.clone(), MOST_CALLS);
            Some(place.ok_or_else(|| {
                Status::resource_exhausted(format!(
                    "{identity} has {MOST_CALLS} open calls, the most allowed: a host needs one"
                ))
            })?)
        } else {
            None
        };
        let (told, outcomes) = mpsc::unbounded_channel();
        let held_back = HeldBack {
            streams: self.streams.clone(),
            sender: caller.identity.clone(),
            stream: None,
            since: None,
            waited: Duration::ZERO,
        };
        let call = Call {
            reader: Reader {
                intake: Arc::clone(self),
                peer: peer.to_string(),
                sender: self.senders.sender(&caller),
                caller,
                last_bytes: LEAST_BYTES,
                stream: None,
                claimed: Claimed::default(),
                held_back,
            },
            end: CallEnd {
                outcomes: told,
                is_broken: AtomicBool::new(false),
            },
            outcomes,
            _place: place,
        };
        let places = CallPlaces {
            _of_credential: of_credential,
            _of_address: of_address,
        };
        Ok((call, places))
    }
}

impl Call {
    /// Stores the batches of the call. Returns when the agent has ended the call and every batch is acknowledged, or
    /// the reason the call cannot go on. The agent reads from `acks`.
    pub(crate) async fn run(
        self,
        messages: Messages,
        acks: &mpsc::Sender<ExportAck>,
    ) -> Result<(), Status> {
        let Self {
            mut reader,
            end,
            mut outcomes,
            _place,
        } = self;
        let wanted = reader.intake.throttle;
        let mut stopping = reader.intake.stopping.clone();
        // Dropped as soon as reading ends, with everything it holds of the call. The outcomes channel closes once the
        // writer has no batch of this call.
        let mut reading = Some(Box::pin(reader.read(messages, Arc::new(end))));
        let mut ended = Ok(());
        let mut has_outcomes = true;
        let mut stored_seq = None;
        let mut unread = pin!(sleep(LAST_ACK));
        while reading.is_some() || has_outcomes || stored_seq.is_some() {
            let is_reading = reading.is_some();
            let read = async {
                match &mut reading {
                    Some(reading) => reading.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = acks.closed() => return Err(gone()),
                outcome = outcomes.recv(), if has_outcomes => {
                    match outcome {
                        Some(Outcome::Stored(seq)) => stored_seq = Some(seq),
                        Some(Outcome::Failed(why)) => {
                            // No later batch of this call is stored or acknowledged.
                            has_outcomes = false;
                            reading = None;
                            let why = format!("the collector cannot store flows: {why}");
                            ended = Err(Status::unavailable(why));
                        }
                        None => has_outcomes = false,
                    }
                    unread.as_mut().reset(Instant::now() + LAST_ACK);
                }
                place = acks.reserve(), if stored_seq.is_some() => {
                    if let (Ok(place), Some(last_seq)) = (place, stored_seq.take()) {
                        place.send(ExportAck {
                            last_seq,
                            report_interval_ns: clock::nanos(wanted.report_interval),
                            sample_rate: wanted.sample_rate,
                        });
                    }
                }
                // However the call ends, batches already taken are stored and acknowledged first.
                _ = stopping.changed(), if is_reading => {
                    reading = None;
                    ended = Err(stops());
                    unread.as_mut().reset(Instant::now() + LAST_ACK);
                }
                outcome = read, if is_reading => {
                    reading = None;
                    ended = outcome;
                    unread.as_mut().reset(Instant::now() + LAST_ACK);
                }
                () = &mut unread, if !is_reading && stored_seq.is_some() => return Err(late("the last acknowledgement was not read", LAST_ACK)),
            }
        }
        ended
    }
}

impl Reader {
    /// Returns when the agent has ended the call, or the reason the call cannot go on.
    async fn read(&mut self, mut messages: Messages, end: Arc<CallEnd>) -> Result<(), Status> {
        let first = timeout(FIRST_BATCH, messages.header()).await;
        let mut header = first.map_err(|_| late("no batch came", FIRST_BATCH))??;
        while let Some(next) = header {
            self.wait_for_its_rate().await;
            let received = self.receive(next.len_bytes).await;
            let message = timeout(WHOLE_BATCH, messages.message(next)).await;
            let message =
                message.map_err(|_| late("a batch arrived incomplete", WHOLE_BATCH))??;
            let entry = self.entry(message, &end).await?;
            drop(received);
            // The queue is closed if the collector ends.
            let queue = self.intake.queue.upgrade().ok_or_else(stops)?;
            queue.send(entry).await.map_err(|_| stops())?;
            header = messages.header().await?;
        }
        Ok(())
    }

    /// A relay has no limit: other collectors have already admitted its records.
    fn records_limit(&self) -> Option<u32> {
        let limit = self.intake.limits.records_per_second;
        limit.filter(|_| !self.caller.is_relay())
    }

    async fn wait_for_its_rate(&mut self) {
        if self.sender.is_in_debt() {
            self.held_back.begin();
            self.sender.wait_until_paid().await;
            self.held_back.end();
        }
    }

    async fn receive(&self, bytes: usize) -> Held {
        self.intake.senders.receive(&self.sender, bytes).await
    }

    /// Decodes a message into an entry for the writer.
    async fn entry(&mut self, message: Message, end: &Arc<CallEnd>) -> Result<Entry, Status> {
        let intake = Arc::clone(&self.intake);
        let own = self.sender.own_turn().await;
        // Another call of the sender may have used up the rate meanwhile.
        self.wait_for_its_rate().await;
        let turn = intake.senders.turn(own, self.last_bytes).await;
        let caller = self.caller.clone();
        // The thread continues after the call is dropped, so it must hold the turn itself.
        let (incoming, turn) = blocking(move || {
            let incoming = Incoming::read(&message.batch()?, &caller);
            let incoming = incoming
                .and_then(Incoming::checked)
                .map_err(|error| refused(&error))?;
            Ok((incoming, turn))
        })
        .await?;
        if let Some(records_per_second) = self.records_limit() {
            let records = incoming.batch.records.len() as u64;
            self.sender.charge(records, records_per_second);
        }
        self.claim(&incoming)?;
        let told = self.follow(&incoming)?;
        let (forms, digests) = (intake.forms.clone(), intake.digests.clone());
        let is_observed = intake.hub.has_consumers();
        let is_compared = intake.pairs.is_some();
        let with_details = intake.makes_conversations;
        let (made, turn) = blocking(move || {
            let pieces = forms.iter().map(|form| form.piece(&incoming, told));
            let pieces = pieces.collect::<Result<Vec<_>, _>>();
            let facts = Facts::of(&incoming, incoming.digest(&digests), told);
            let made = Made {
                pieces: pieces.map_err(|error| refused(&error))?,
                shared: is_observed.then(|| shared(&incoming, &facts)),
                sightings: is_compared.then(|| Sightings::of(&incoming, with_details)),
                facts,
            };
            Ok((made, turn))
        })
        .await?;
        if let Some(stream) = &mut self.stream {
            stream.told = made.facts.told();
        }
        self.last_bytes = made.bytes();
        let room = intake.senders.queue(turn, self.last_bytes).await;
        Ok(made.into_entry(end, room))
    }

    /// Checks that the sender may use this agent's name. The name may change within a call: a spool may hold batches
    /// from before the host was reinstalled. Batches from another collector were checked there, and its topic may have
    /// every name the host ever had.
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
        // Drop the earlier claim first, so that it does not rule out the next one.
        *claimed = Claimed::default();
        let claim = self.intake.claims.claim(&incoming.sender, agent);
        *claimed = Claimed {
            hostname: agent.hostname.clone(),
            agent_id: agent.agent_id.clone(),
            _claim: claim.map_err(|refused| Status::permission_denied(refused.to_string()))?,
        };
        Ok(())
    }

    /// Checks that the batch follows those before it. Returns the losses reported on its stream so far.
    fn follow(&mut self, incoming: &Incoming) -> Result<LostSoFar, Status> {
        let seq = incoming.batch.stream_seq;
        let Some(stream) = &mut self.stream else {
            let (open, told) = self.intake.streams.begin(incoming, &self.peer);
            let key = incoming.stream();
            self.held_back.add_to(key.clone());
            self.stream = Some(Stream {
                key,
                last_seq: seq,
                told,
                _open: open,
            });
            return Ok(told);
        };
        if stream.key != incoming.stream() {
            return Err(Status::invalid_argument(
                "stream_id: a call has batches of one stream",
            ));
        }
        if seq <= stream.last_seq {
            return Err(Status::invalid_argument(format!(
                "batch {seq} follows batch {}: numbers must rise within a call",
                stream.last_seq
            )));
        }
        stream.last_seq = seq;
        Ok(stream.told)
    }
}

/// The parts of a batch that the writer needs.
struct Made {
    facts: Facts,
    pieces: Vec<Bytes>,
    shared: Option<Batch>,
    sightings: Option<Sightings>,
}

impl Made {
    /// The memory it takes until it is stored.
    fn bytes(&self) -> usize {
        let pieces = self.pieces.iter().map(Bytes::len).sum::<usize>();
        let shared = self.shared.as_ref().map_or(0, |batch| batch.body.len());
        let sightings = self.sightings.as_ref().map_or(0, Sightings::bytes);
        let least = LEAST_BYTES.max(record_bytes(&self.facts));
        (pieces + shared + sightings).max(least)
    }

    fn into_entry(self, end: &Arc<CallEnd>, room: Held) -> Entry {
        Entry {
            facts: self.facts,
            pieces: self.pieces,
            shared: self.shared,
            sightings: self.sightings,
            call: Arc::clone(end),
            _room: room,
        }
    }
}

impl HeldBack {
    /// A batch begins to wait.
    fn begin(&mut self) {
        self.since = Some(Instant::now());
    }

    /// The batch stops waiting.
    fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
        self.report();
    }

    /// Reports under this stream from here on.
    fn add_to(&mut self, stream: Key) {
        self.stream = Some(stream);
        self.report();
    }

    fn report(&mut self) {
        if let Some(stream) = &self.stream {
            self.streams.held_back(stream, take(&mut self.waited));
        }
    }
}

impl Drop for HeldBack {
    /// The call may end while a batch waits.
    fn drop(&mut self) {
        self.end();
        if self.stream.is_none() {
            self.streams.last_was_held_back(&self.sender, self.waited);
        }
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| Status::internal(error.to_string()))?
}

fn refused(error: &anyhow::Error) -> Status {
    Status::invalid_argument(format!("{error:#}"))
}

fn late(what: &str, after: Duration) -> Status {
    Status::deadline_exceeded(format!("{what} within {} s", after.as_secs()))
}

fn stops() -> Status {
    Status::unavailable("the collector stops")
}

fn gone() -> Status {
    Status::cancelled("the agent has ended the call")
}

/// The batch for observers. The writer numbers it.
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
