//! Delivers every batch as it is to a collector, which says what it has stored. A batch is sent again until then, to this
//! collector or to the next one of the list, so that it arrives at least once and in order. Its stream and its number tell
//! the collector whether it has it already.

use std::{
    future::poll_fn,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use bytes::Bytes;
use futures_util::FutureExt as _;
use prost::Message as _;
use tokio::{
    task::coop::unconstrained,
    time::{Instant, sleep_until, timeout},
};

use super::{
    backoff::Backoff,
    ending::Ending,
    tally::{Tally, sum_of},
    telling::Telling,
    transport::{Answers, Endpoint, Failure, Receipts, StreamingCall},
};
use crate::{
    hub::{OutgoingBatch, Subscription},
    proto::{ExportAck, FlowBatch, RecordSum},
    tls::output::{InForce, followed},
};

mod unacknowledged;

use unacknowledged::Unacknowledged;

const METHOD: &str = "/flow.v1.FlowCollector/Export";
/// How long a collector may take for an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(30);
/// A call that breaks before is followed by a pause, whatever it has brought.
const SHORT: Duration = Duration::from_secs(5);
/// How long to wait for what a collector may have said of a call that broke.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub(super) struct Delivery {
    sender: Sender,
    tls: Option<InForce>,
    ending: Ending,
}

struct Sender {
    subscription: Subscription,
    /// The queue is empty and nothing more will come.
    is_drained: bool,
    unacknowledged: Unacknowledged,
    /// A batch with this agent and nothing else, once there was one.
    agent: Bytes,
    /// Tells this output's numbers from those of another one, before or beside it.
    stream_id: u64,
    patience: Duration,
    collectors: Vec<Endpoint>,
    /// The place of the one that is spoken to.
    at: usize,
    /// The number of the last batch that was handed over as a whole, in this call or before.
    handed_seq: u64,
    /// How many failed one after the other.
    failed: usize,
    /// The call has acknowledged something.
    has_progressed: bool,
    backoff: Backoff,
    ending: Ending,
    telling: Telling,
    tally: Arc<Tally>,
}

impl Delivery {
    /// To the first of these collectors that answers.
    pub(super) fn new(
        name: &str,
        collectors: Vec<Endpoint>,
        tls: Option<InForce>,
        subscription: Subscription,
        tally: Arc<Tally>,
        ending: Ending,
    ) -> Self {
        let sender = Sender {
            subscription,
            is_drained: false,
            unacknowledged: Unacknowledged::default(),
            agent: Bytes::new(),
            stream_id: RandomState::new().hash_one(name),
            patience: PATIENCE,
            collectors,
            at: 0,
            handed_seq: 0,
            failed: 0,
            has_progressed: false,
            backoff: Backoff::default(),
            ending: ending.clone(),
            telling: Telling::of(name, &tally),
            tally,
        };
        Self {
            sender,
            tls,
            ending,
        }
    }

    /// Ends when everything is acknowledged and nothing more will come, or when the time is over.
    pub(super) async fn run(self) {
        let files = followed(self.tls);
        let (mut sender, mut ending) = (self.sender, self.ending);
        let work = async {
            if ending.before(sender.deliver()).await.is_err() {
                sender.give_up();
            }
        };
        tokio::select! {
            () = work => {}
            never = files => match never {},
        }
    }
}

impl Sender {
    async fn deliver(&mut self) {
        let mut asked = None;
        while !self.is_done() {
            let begun = Instant::now();
            self.has_progressed = false;
            let Err(failure) = self.call().await else {
                continue;
            };
            self.telling
                .failed(&self.address(), &failure, RecordSum::default());
            if self.has_progressed {
                self.failed = 0;
                self.backoff.reset();
            }
            self.failed += 1;
            self.at = (self.at + 1) % self.collectors.len();
            let pause = failure.asked_pause().unwrap_or_default();
            // Until the first of them may be asked again.
            asked = Some(asked.map_or(pause, |least: Duration| least.min(pause)));
            // Each is tried once before all of them are left alone. One that works only for a moment is no better.
            let is_round_over = self.failed.is_multiple_of(self.collectors.len());
            if is_round_over {
                self.rest(asked.take()).await;
            } else if self.has_progressed && begun.elapsed() < SHORT {
                self.rest(None).await;
            }
        }
    }

    /// Leaves the collectors alone for a while.
    async fn rest(&mut self, asked: Option<Duration>) {
        let pause = self.backoff.next(asked);
        if let Ok(true) = self.ending.pause(pause).await {
            self.backoff.reset();
        }
    }

    /// Sends to one collector. Returns when all is acknowledged and nothing more will come, or the collector has ended the
    /// call when nothing was left to acknowledge.
    async fn call(&mut self) -> std::result::Result<(), Failure> {
        if self.unacknowledged.is_empty() {
            self.take().await;
        }
        if self.is_done() {
            return Ok(());
        }
        let mut call = StreamingCall::begin(&self.collectors[self.at], METHOD).await?;
        let (outbox, answers) = (&mut call.outbox, &mut call.answers);
        // The number of the last batch that was put into the outbox in this call.
        let mut put_seq = 0;
        let mut has_ended = false;
        let mut deadline = Instant::now() + self.patience;
        while !self.is_done() {
            if outbox.is_empty() {
                self.handed_seq = self.handed_seq.max(put_seq);
                if let Some(batch) = self.unacknowledged.after(put_seq) {
                    put_seq = batch.stream_seq();
                    outbox.put(batch.clone().into_parts());
                } else if self.is_drained && !has_ended {
                    outbox.end()?;
                    has_ended = true;
                }
            }
            let was_empty = self.unacknowledged.is_empty();
            let may_take = !self.is_drained && self.unacknowledged.has_room();
            tokio::select! {
                // What it says comes before what breaks when it has ended the call.
                biased;
                answer = answers.next() => match answer {
                    Ok(answer) => {
                        if self.acknowledge(answer)? {
                            deadline = Instant::now() + self.patience;
                        }
                    }
                    Err(_) if was_empty => return Ok(()),
                    Err(failure) => return Err(failure),
                },
                flushed = outbox.flush(), if !outbox.is_empty() => {
                    if let Err(failure) = flushed {
                        // The collector may have said why.
                        return Err(self.last_words(answers).await?.unwrap_or(failure));
                    }
                }
                () = self.take(), if may_take => {
                    if was_empty {
                        deadline = Instant::now() + self.patience;
                    }
                }
                () = sleep_until(deadline), if !was_empty => {
                    let patience = humantime::format_duration(self.patience);
                    return Err(anyhow!("no acknowledgement within {patience}").into());
                }
            }
        }
        Ok(())
    }

    /// Takes what the collector has said before a call broke off, and why it ended the call.
    async fn last_words(
        &mut self,
        answers: &mut Answers,
    ) -> std::result::Result<Option<Failure>, Failure> {
        loop {
            match timeout(LAST_WORDS, answers.next()).await {
                Ok(Ok(answer)) => {
                    self.acknowledge(answer)?;
                }
                Ok(Err(failure)) => return Ok(Some(failure)),
                Err(_) => return Ok(None),
            }
        }
    }

    /// Puts the next batch of the queue to those that are not acknowledged. Cancel safe.
    async fn take(&mut self) {
        let (subscription, tally) = (&mut self.subscription, &self.tally);
        match poll_fn(|context| tally.takes(|| subscription.poll_next(context))).await {
            Some(batch) => {
                self.tally.doubts(sum_of(batch.volume()));
                let batch = self.signed(batch);
                self.unacknowledged.push(batch);
            }
            None => self.is_drained = true,
        }
    }

    /// The batch with all that names it: its stream, and its agent, which a batch that tells nothing but losses has not.
    fn signed(&mut self, batch: OutgoingBatch) -> OutgoingBatch {
        let signature = FlowBatch {
            stream_id: self.stream_id,
            ..FlowBatch::default()
        };
        let batch = batch.with(&signature);
        if batch.id().is_none() {
            return batch.with_body(self.agent.clone());
        }
        if self.agent.is_empty()
            && let Ok(FlowBatch { agent, .. }) = batch.clone().decode()
        {
            let alone = FlowBatch {
                agent,
                ..FlowBatch::default()
            };
            self.agent = alone.encode_to_vec().into();
        }
        batch
    }

    /// Returns whether batches were acknowledged that were not before.
    fn acknowledge(&mut self, answer: Bytes) -> Result<bool> {
        let ExportAck { last_seq } =
            ExportAck::decode(answer).context("read an acknowledgement")?;
        ensure!(
            last_seq <= self.handed_seq,
            "the collector acknowledges batch {last_seq}, and {} was the last one",
            self.handed_seq
        );
        let Some(arrived) = self.unacknowledged.acknowledge(last_seq) else {
            return Ok(false);
        };
        self.tally.learns(Receipts {
            arrived,
            lost: RecordSum::default(),
        });
        self.has_progressed = true;
        if self.unacknowledged.is_empty() {
            self.telling.works(&self.address());
        }
        Ok(true)
    }

    fn is_done(&self) -> bool {
        self.is_drained && self.unacknowledged.is_empty()
    }

    fn address(&self) -> String {
        self.collectors[self.at].address()
    }

    /// Counts and tells what is left at the end. The collector may have it all the same.
    fn give_up(&mut self) {
        // Else tokio would let the queue seem empty after a while, so that other tasks get their turn.
        while !self.is_drained && unconstrained(self.take()).now_or_never().is_some() {}
        self.tally.loses_doubted();
        self.telling.ended(&self.address());
    }
}

#[cfg(test)]
mod tests;
