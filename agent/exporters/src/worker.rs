//! Runs one output: takes batches from its queue and tracks each flow until it is sent, refused or, at shutdown, lost.

use std::{future::poll_fn, sync::Arc, time::Duration};

use formats::encoder::{Answer, Encoder, Without};
use futures_util::FutureExt as _;
use hub::{OutgoingBatch, Subscription};
use proto::{FlowBatch, FlowRecord, RecordSum};
use tls::{output::ReloadableOutputTls, reload::watch_files};
use tokio::{
    task::coop::unconstrained,
    time::{sleep, timeout},
};

use super::{
    backoff::Backoff,
    counters::{self, Counters},
    log_once::LogOnce,
    output_log::OutputLog,
    selection::Selector,
    settings::Output,
    shutdown::{DeadlinePassed, Shutdown},
    transport::{Failure, Transport},
};

/// See [`LogOnce`].
const ONCE: &str = "logged once while this lasts";
/// How often to poll for acknowledgements while there is nothing to send.
const RECEIPTS: Duration = Duration::from_millis(100);
/// How long a file's last write may take after the deadline. Then it counts as lost, though it may still succeed.
const LAST_WRITE: Duration = Duration::from_secs(1);
const REFUSED: &str = "refused records are counted and not sent again";

pub(super) struct Worker {
    name: String,
    subscription: Subscription,
    selector: Selector,
    encoder: Box<dyn Encoder>,
    transport: Transport,
    tls: Option<ReloadableOutputTls>,
    backoff: Backoff,
    /// Pause before the next message, after the receiver refused one.
    pause: Option<Duration>,
    complaints: Complaints,
    log: OutputLog,
    counters: Arc<Counters>,
    shutdown: Shutdown,
}

/// Logs each kind of the receiver's complaints once.
#[derive(Default)]
struct Complaints {
    /// It refuses some flows of messages that it accepts.
    refuses_some: LogOnce,
    /// It refuses messages without flows.
    refuses_rest: LogOnce,
    /// It accepts flows, or messages without flows, but sends a warning.
    warns: LogOnce,
    warns_of_rest: LogOnce,
}

/// The outcome of one message.
struct Done {
    flows: usize,
    /// See [`Message::more`](formats::encoder::Message::more).
    more: bool,
}

impl Worker {
    pub(super) fn new(
        name: &str,
        output: &Output,
        (encoder, transport): (Box<dyn Encoder>, Transport),
        tls: Option<ReloadableOutputTls>,
        subscription: Subscription,
        counters: Arc<Counters>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            name: name.to_owned(),
            subscription,
            selector: Selector::new(output.selection.clone()),
            encoder,
            transport,
            tls,
            backoff: Backoff::default(),
            pause: None,
            complaints: Complaints::default(),
            log: OutputLog::new(name, &counters),
            counters,
            shutdown,
        }
    }

    /// Returns when everything is sent and the queue is closed, or at the deadline.
    pub(super) async fn run(self) {
        let files = watch_files(self.tls.clone());
        tokio::select! {
            () = self.work() => {}
            never = files => match never {},
        }
    }

    async fn work(mut self) {
        while let Some(batch) = self.next().await {
            let batch = match batch.decode() {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::error!(output = self.name, %error, "cannot read our own batch: please report this");
                    self.counters.lose_in_hand();
                    continue;
                }
            };
            if self.send(batch).await.is_err() {
                self.give_up();
                break;
            }
        }
        self.learn_last().await;
        let closed = self.shutdown.before_deadline(self.transport.close()).await;
        self.transport.abandon();
        self.settle_at_end();
        match closed {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => self.tell_unfinished(&failure.to_string()),
            Err(DeadlinePassed) => self.tell_unfinished("there was no time"),
        }
    }

    async fn next(&mut self) -> Option<OutgoingBatch> {
        loop {
            let next = poll_fn(|context| {
                self.counters
                    .take_from_queue(|| self.subscription.poll_next(context))
            });
            tokio::select! {
                biased;
                batch = next => return batch,
                () = sleep(RECEIPTS), if self.transport.is_underway() => self.notice(),
            }
        }
    }

    /// Counts receipts for flows handed over earlier. Returns the lost ones.
    fn settle(&mut self) -> RecordSum {
        let receipts = self.transport.receipts();
        let lost = receipts.lost;
        self.counters.receipts(receipts);
        lost
    }

    /// Counts receipts while there is nothing to send: no next send would report a failure.
    fn notice(&mut self) {
        match self.transport.notice() {
            Ok(()) => {
                self.settle();
                if self.transport.is_blind() && !self.transport.is_underway() {
                    self.counters.assume_sent();
                }
            }
            Err(failure) => {
                if matches!(failure, Failure::LastRefused { .. }) {
                    self.counters.refuse_unacknowledged();
                }
                self.failed(&failure);
            }
        }
    }

    /// Waits for ICMP errors about the last message if the protocol has no acknowledgements.
    async fn learn_last(&mut self) {
        while self.transport.is_blind() && self.transport.is_underway() {
            let waited = self.shutdown.before_deadline(sleep(RECEIPTS)).await;
            self.notice();
            if waited.is_err() {
                return;
            }
        }
    }

    /// Counts the last receipts at shutdown.
    fn settle_at_end(&mut self) {
        let lost = self.settle();
        self.counters.assume_sent();
        if lost != RecordSum::default() {
            tracing::warn!(
                output = self.name,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows sent to {} were not acknowledged before shutdown",
                self.transport.address()
            );
        }
    }

    fn tell_unfinished(&self, error: &str) {
        tracing::warn!(
            output = self.name,
            "cannot complete what was sent to {} before shutdown: {error}",
            self.transport.address()
        );
    }

    /// Sends the flows of a batch that the settings select.
    async fn send(&mut self, mut batch: FlowBatch) -> Result<(), DeadlinePassed> {
        let (flows, left_out) = self.selector.select(&mut batch);
        let sum = counters::sum(&flows);
        // The batch reports the records that were left out, as it does over gRPC.
        batch.set_left_out(self.counters.leave_out_unselected(sum, left_out));
        batch.add_lost(self.counters.lost_behind_the_queue());
        let mut rest = &flows[..];
        let mut more = batch.last_of_scan || batch.scan_id == 0;
        while !rest.is_empty() || more {
            let Ok(done) = self.hand_over(&batch, rest).await else {
                self.counters.lose_in_hand();
                return Err(DeadlinePassed);
            };
            rest = &rest[done.flows..];
            more = done.more;
        }
        Ok(())
    }

    /// Sends one message with the first flows, and retries until it is sent or refused.
    async fn hand_over(
        &mut self,
        batch: &FlowBatch,
        flows: &[FlowRecord],
    ) -> Result<Done, DeadlinePassed> {
        if let Some(pause) = self.pause.take() {
            self.shutdown.before_deadline(sleep(pause)).await?;
        }
        loop {
            let message = self.encoder.message(batch, flows);
            let mut sum = counters::sum(&flows[..message.flows]);
            let skipped = RecordSum {
                records: message.skipped as u64,
                ..RecordSum::default()
            };
            sum -= skipped;
            let done = Done {
                flows: message.flows,
                more: message.more,
            };
            if message.bytes.is_empty() {
                self.counters.leave_out(sum);
                self.counters.leave_out(skipped);
                return Ok(done);
            }
            let sending = self.transport.send(&message);
            let Ok(sent) = self.shutdown.before_deadline(sending).await else {
                self.counters.leave_out(skipped);
                match timeout(LAST_WRITE, self.transport.has_taken()).await {
                    Ok(Ok(true)) => self.counters.sent(sum),
                    Ok(Ok(false)) => {}
                    Ok(Err(failure)) => self.tell_unfinished(&failure.to_string()),
                    Err(_) => self.tell_unfinished("a write has not ended in time"),
                }
                return Err(DeadlinePassed);
            };
            let answered = sent.and_then(|answer| Ok(self.encoder.answered(&answer)?));
            let failure = match answered {
                Ok(answer) => {
                    self.counters.leave_out(skipped);
                    self.taken(sum, &answer);
                    return Ok(done);
                }
                Err(failure) => failure,
            };
            let after = match failure {
                Failure::Anew => {
                    self.encoder.restart();
                    continue;
                }
                Failure::TooLong { most_bytes } => {
                    if self.encoder.limit(most_bytes) {
                        continue;
                    }
                    None
                }
                Failure::LastRefused { .. } => {
                    self.counters.refuse_unacknowledged();
                    None
                }
                Failure::Refused {
                    ref why,
                    is_unknown,
                    ..
                } => {
                    self.counters.leave_out(skipped);
                    if is_unknown && let Some(without) = self.encoder.unknown() {
                        self.does_without(without, why);
                    } else if sum.records == 0 {
                        self.refused_beside(why);
                    } else {
                        self.refused(sum, why);
                    }
                    return Ok(done);
                }
                Failure::Again { after, .. } => after,
            };
            self.failed(&failure);
            let wait = self.backoff.next(after);
            if after.is_some() {
                // The receiver asked for this pause.
                self.shutdown.before_deadline(sleep(wait)).await?;
            } else if self.shutdown.pause(wait).await? {
                self.backoff.reset();
            }
        }
    }

    /// Continues after an accepted message. If the receiver refused some flows, it is unknown which. They count with
    /// their average share of the message.
    fn taken(&mut self, sum: RecordSum, answer: &Answer) {
        self.encoder.sent();
        let refused = counters::share(sum, answer.refused);
        if self.transport.is_blind() {
            // No error came back for the message before this one.
            self.counters.assume_sent();
        }
        if self.transport.took(sum) {
            self.counters.handed_over(sum);
            self.settle();
        } else {
            let mut sent = sum;
            sent -= refused;
            self.counters.sent(sent);
        }
        if let Some(warning) = &answer.warning {
            self.warns(sum, warning);
        }
        if refused.records != 0 {
            self.backoff.reset();
            self.refuses_some(refused, &answer.why);
        } else if sum.records != 0 || !self.counters.is_refusing() {
            self.worked();
        }
    }

    fn does_without(&mut self, Without { what, pause }: Without, why: &str) {
        self.backoff.reset();
        tracing::warn!(
            output = self.name,
            "{} takes no {what}: {why}; sending it only flows, and trying {what} again in {}: set {what} = false for \
             this output to stop that",
            self.transport.address(),
            humantime::format_duration(pause)
        );
    }

    /// Logs a receiver's warning about an accepted message once.
    fn warns(&mut self, sum: RecordSum, warning: &str) {
        let (complaint, what) = if sum.records == 0 {
            (&mut self.complaints.warns_of_rest, "messages without flows")
        } else {
            (&mut self.complaints.warns, "flows")
        };
        if complaint.event() {
            tracing::warn!(
                output = self.name,
                "{} takes {what}, but warns: {warning}; {ONCE}",
                self.transport.address()
            );
        }
    }

    /// Continues after a refused message, since sending it again would fail again. The receiver may refuse everything
    /// because it is the wrong one, so pause as after other failures. Flows queue up meanwhile, and they are not
    /// refused if an operator fixes the problem.
    fn refused(&mut self, flows: RecordSum, why: &str) {
        self.encoder.sent();
        self.pause = Some(self.backoff.next(None));
        self.refuses(flows, why);
    }

    /// Continues after a refused message without flows, and logs it once.
    fn refused_beside(&mut self, why: &str) {
        self.encoder.sent();
        if self.complaints.refuses_rest.event() {
            tracing::warn!(
                output = self.name,
                "{} refuses messages without flows, such as the account: {why}; {ONCE}",
                self.transport.address()
            );
        }
    }

    /// Counts the refused flows of an accepted message, and logs it once. Messages accepted as a whole may come in
    /// between.
    fn refuses_some(&mut self, flows: RecordSum, why: &str) {
        self.counters.refuse_some(flows, why);
        if self.complaints.refuses_some.event() {
            self.tell_refused(flows, &format!("{why}; {REFUSED}; {ONCE}"));
        }
    }

    /// Counts refused flows, and logs it once.
    fn refuses(&self, flows: RecordSum, why: &str) {
        if self.counters.refuse(flows, why) {
            self.tell_refused(flows, &format!("{why}; {REFUSED}"));
        }
    }

    fn tell_refused(&self, flows: RecordSum, what: &str) {
        tracing::warn!(
            output = self.name,
            refused_records = flows.records,
            refused_packets = flows.packets,
            refused_bytes = flows.bytes,
            "{} refuses flows: {what}",
            self.transport.address()
        );
    }

    /// Restarts the encoder for the next connection, and logs the failure once.
    fn failed(&mut self, failure: &Failure) {
        self.encoder.restart();
        let lost = self.settle();
        self.log.failed(&self.transport.address(), failure, lost);
    }

    /// Logs recovery once.
    fn worked(&mut self) {
        self.backoff.reset();
        self.log.recovered(&self.transport.address());
    }

    /// Counts everything left at shutdown as lost, and logs it.
    fn give_up(&mut self) {
        // `unconstrained`, because tokio's cooperative budget would otherwise make a long queue look empty.
        while let Some(Some(batch)) = unconstrained(self.next()).now_or_never() {
            if let Ok(mut batch) = batch.decode() {
                let (flows, left_out) = self.selector.select(&mut batch);
                self.counters
                    .leave_out_unselected(counters::sum(&flows), left_out);
            }
            self.counters.lose_in_hand();
        }
        self.transport.abandon();
        self.settle();
        self.log.ended(&self.transport.address());
    }
}
