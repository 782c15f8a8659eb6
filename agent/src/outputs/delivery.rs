//! Delivers every batch as it is to a collector, which says what it has stored. A batch is sent again until then, to this
//! collector or to the next one of the list, so that it arrives at least once and in order. Its agent, instance and number
//! tell the collector whether it has it already.

use std::{future::poll_fn, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use futures_util::FutureExt as _;
use prost::Message as _;
use tokio::{
    sync::watch,
    task::coop::unconstrained,
    time::{Instant, sleep, sleep_until},
};

use super::{
    backoff::Backoff,
    tally::{Tally, sum_of},
    telling::Telling,
    transport::{Endpoint, Failure, Receipts, StreamingCall},
    worker::{before, followed},
};
use crate::{
    hub::{OutgoingBatch, Subscription},
    proto::{ExportAck, FlowBatch, RecordSum},
    tls::output::InForce,
};

mod unacknowledged;

use unacknowledged::Unacknowledged;

const METHOD: &str = "/flow.v1.FlowCollector/Export";
/// How long a collector may take for an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Delivery {
    sender: Sender,
    tls: Option<InForce>,
    /// Until when it may send what is left, once it is to end.
    deadline: watch::Receiver<Option<Instant>>,
}

struct Sender {
    subscription: Subscription,
    /// The queue is empty and nothing more will come.
    is_drained: bool,
    unacknowledged: Unacknowledged,
    /// A batch with this agent and nothing else, once there was one.
    agent: Bytes,
    patience: Duration,
    collectors: Vec<Endpoint>,
    /// The place of the one that is spoken to.
    at: usize,
    /// How many failed one after the other.
    failed: usize,
    backoff: Backoff,
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
        deadline: watch::Receiver<Option<Instant>>,
    ) -> Self {
        let sender = Sender {
            subscription,
            is_drained: false,
            unacknowledged: Unacknowledged::default(),
            agent: Bytes::new(),
            patience: PATIENCE,
            collectors,
            at: 0,
            failed: 0,
            backoff: Backoff::default(),
            telling: Telling::of(name, &tally),
            tally,
        };
        Self {
            sender,
            tls,
            deadline,
        }
    }

    /// Ends when everything is acknowledged and nothing more will come, or when the time is over.
    pub(super) async fn run(self) {
        let files = followed(self.tls);
        let (mut sender, mut deadline) = (self.sender, self.deadline);
        let work = async {
            if before(&mut deadline, sender.deliver()).await.is_err() {
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
        while let Err(failure) = self.call().await {
            self.telling
                .failed(&self.address(), &failure, RecordSum::default());
            self.failed += 1;
            self.at = (self.at + 1) % self.collectors.len();
            // Each is tried once before all of them are left alone.
            if self.failed.is_multiple_of(self.collectors.len()) {
                sleep(self.backoff.next(failure.asked_pause())).await;
            }
        }
    }

    /// Sends to one collector. Returns when all is acknowledged and nothing more will come.
    async fn call(&mut self) -> std::result::Result<(), Failure> {
        if self.unacknowledged.is_empty() {
            self.take().await;
        }
        if self.is_done() {
            return Ok(());
        }
        let mut call = StreamingCall::begin(&self.collectors[self.at], METHOD).await?;
        for batch in self.unacknowledged.batches() {
            call.send(batch.clone().into_parts())?;
        }
        if self.is_drained {
            call.end()?;
        }
        let mut deadline = Instant::now() + self.patience;
        while !self.is_done() {
            let was_empty = self.unacknowledged.is_empty();
            let may_take = !self.is_drained && self.unacknowledged.has_room();
            tokio::select! {
                answer = call.answer() => {
                    if self.acknowledge(answer?)? {
                        deadline = Instant::now() + self.patience;
                    }
                }
                () = self.take(), if may_take => {
                    if self.is_drained {
                        call.end()?;
                    } else if let Some(batch) = self.unacknowledged.last() {
                        call.send(batch.clone().into_parts())?;
                    }
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

    /// A batch that tells nothing but losses, with its agent, which all others have.
    fn signed(&mut self, batch: OutgoingBatch) -> OutgoingBatch {
        if batch.id().is_none() {
            return batch.with_body(self.agent.clone());
        }
        if self.agent.is_empty()
            && let Ok(FlowBatch { agent, .. }) = batch.clone().decode()
        {
            let signature = FlowBatch {
                agent,
                ..FlowBatch::default()
            };
            self.agent = signature.encode_to_vec().into();
        }
        batch
    }

    /// Returns whether batches were acknowledged that were not before.
    fn acknowledge(&mut self, answer: Bytes) -> Result<bool> {
        let ack = ExportAck::decode(answer).context("read an acknowledgement")?;
        let Some(arrived) = self.unacknowledged.acknowledge(ack.last_seq)? else {
            return Ok(false);
        };
        self.tally.learns(Receipts {
            arrived,
            lost: RecordSum::default(),
        });
        self.failed = 0;
        self.backoff.reset();
        self.telling.works(&self.address());
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
