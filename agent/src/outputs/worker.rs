//! Runs one output: takes batches from its queue and does not let go of a flow until it is sent, refused or, at the
//! end, lost.

use std::{
    future::{Future, pending},
    sync::Arc,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    backoff::Backoff,
    encoder::Encoder,
    settings::Output,
    tally::{self, Tally},
    transport::{Failure, Transport},
    wanted::Sieve,
};
use crate::{
    hub::Subscription,
    proto::{FlowBatch, FlowRecord, RecordSum},
};

pub(super) struct Worker {
    name: String,
    subscription: Subscription,
    sieve: Sieve,
    encoder: Box<dyn Encoder>,
    transport: Transport,
    backoff: Backoff,
    /// What the last message that was sent had.
    last_sent: RecordSum,
    tally: Arc<Tally>,
    /// Until when it may send what is left, once it is to end.
    deadline: watch::Receiver<Option<Instant>>,
}

/// The time is over.
struct Over;

impl Worker {
    pub(super) fn new(
        name: &str,
        output: &Output,
        subscription: Subscription,
        tally: Arc<Tally>,
        deadline: watch::Receiver<Option<Instant>>,
    ) -> Self {
        let (encoder, transport) = output.parts();
        Self {
            name: name.to_owned(),
            subscription,
            sieve: Sieve::new(output.wanted.clone()),
            encoder,
            transport,
            backoff: Backoff::default(),
            last_sent: RecordSum::default(),
            tally,
            deadline,
        }
    }

    /// Ends when everything is sent and nothing more will come, or when the time is over.
    pub(super) async fn run(mut self) {
        let mut has_left = false;
        loop {
            let next = tokio::select! {
                next = self.subscription.next() => next,
                () = is_set(&mut self.deadline), if !has_left => {
                    has_left = true;
                    self.subscription.leave();
                    continue;
                }
            };
            let Some(batch) = next else { break };
            let batch = match batch.decode() {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::error!(output = self.name, %error, "cannot read our own batch: please report this");
                    continue;
                }
            };
            if self.send(batch).await.is_err() {
                self.give_up();
                break;
            }
        }
        let closed = before(&mut self.deadline, self.transport.close()).await;
        if let Ok(Err(failure)) = closed {
            self.failed(&failure);
        }
    }

    /// Sends what is wanted of a batch.
    async fn send(&mut self, mut batch: FlowBatch) -> Result<(), Over> {
        let (flows, left_out) = self.sieve.take(&mut batch);
        self.tally.left_out.add(left_out);
        let mut rest = &flows[..];
        let mut closes_scan = batch.last_of_scan || batch.scan_id == 0;
        while !rest.is_empty() || std::mem::take(&mut closes_scan) {
            self.tally.holds(tally::sum(rest));
            let sent = self.hand_over(&batch, rest).await;
            if sent.is_err() {
                self.tally.loses(tally::sum(rest));
            }
            rest = &rest[sent?..];
            closes_scan = false;
        }
        self.tally.holds(RecordSum::default());
        Ok(())
    }

    /// Sends one message with flows from the front, and tries again until it is sent or refused. Returns how many flows
    /// are done with.
    async fn hand_over(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Result<usize, Over> {
        loop {
            let message = self.encoder.message(batch, flows);
            let done = &flows[..message.flows];
            if message.bytes.is_empty() {
                return Ok(message.flows);
            }
            let sending = self.transport.send(&message.bytes);
            let failure = match before(&mut self.deadline, sending).await? {
                Ok(()) => {
                    self.encoder.sent();
                    self.last_sent = tally::sum(done);
                    self.tally.sent.add(self.last_sent);
                    self.worked();
                    return Ok(message.flows);
                }
                Err(failure) => failure,
            };
            let after = match failure {
                Failure::Anew => {
                    self.encoder.restart();
                    continue;
                }
                Failure::TooLong { most_bytes } => {
                    self.encoder.limit(most_bytes);
                    continue;
                }
                Failure::Refused(_) => {
                    self.failed(&failure);
                    self.encoder.sent();
                    self.tally.refused.add(tally::sum(done));
                    return Ok(message.flows);
                }
                Failure::LastRefused => {
                    self.tally.was_refused(std::mem::take(&mut self.last_sent));
                    None
                }
                Failure::Again { after, .. } => after,
            };
            self.failed(&failure);
            self.encoder.restart();
            let wait = self.backoff.next(after);
            before(&mut self.deadline, sleep(wait)).await?;
        }
    }

    /// Says once that it fails.
    fn failed(&self, failure: &Failure) {
        let error = failure.to_string();
        if self.tally.failed(&error) {
            tracing::warn!(
                output = self.name,
                "flows do not get to {}: {error}; it is tried again, and flows wait as long as there is room",
                self.transport.address()
            );
        }
    }

    /// Says once that it works again.
    fn worked(&mut self) {
        self.backoff.reset();
        if self.tally.succeeded() {
            let lost = self.tally.status().lost.unwrap_or_default();
            tracing::info!(
                output = self.name,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows get to {} again",
                self.transport.address()
            );
        }
    }

    /// Counts and tells what is left at the end.
    fn give_up(&mut self) {
        let rest = self.subscription.take_rest();
        self.tally.loses(tally::sum_of(rest));
        let lost = self.tally.status().lost.unwrap_or_default();
        tracing::warn!(
            output = self.name,
            lost_records = lost.records,
            lost_packets = lost.packets,
            lost_bytes = lost.bytes,
            "flows did not get to {} before the end",
            self.transport.address()
        );
    }
}

/// Waits until it is to end.
async fn is_set(deadline: &mut watch::Receiver<Option<Instant>>) {
    if deadline.wait_for(Option::is_some).await.is_err() {
        // Nobody can end it any more but the hub.
        pending::<()>().await;
    }
}

/// The work's result, unless the time is over before.
async fn before<T>(
    deadline: &mut watch::Receiver<Option<Instant>>,
    work: impl Future<Output = T>,
) -> Result<T, Over> {
    let over = async {
        let set = deadline.wait_for(Option::is_some).await.map(|set| *set);
        match set {
            Ok(Some(deadline)) => sleep_until(deadline).await,
            Ok(None) | Err(_) => pending().await,
        }
    };
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = over => Err(Over),
    }
}
