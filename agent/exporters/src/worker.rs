//! Runs one output: takes batches from its queue and does not let go of a flow until it is sent, refused or, at the
//! end, lost.

use std::{future::poll_fn, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use hub::{OutgoingBatch, Subscription};
use proto::{FlowBatch, FlowRecord, RecordSum};
use tls::{in_force::followed, output::InForce};
use tokio::{
    task::coop::unconstrained,
    time::{sleep, timeout},
};

use super::{
    backoff::Backoff,
    encoder::{Answer, Encoder, Without},
    ending::{Ending, Over},
    settings::Output,
    spell::Spell,
    tally::{self, Tally},
    telling::Telling,
    transport::{Failure, Transport},
    wanted::Sieve,
};

/// See [`Spell`].
const ONCE: &str = "this is not told again while it goes on";
/// How often to ask what has arrived while there is nothing to send.
const RECEIPTS: Duration = Duration::from_millis(100);
/// How long a file may take for what it writes when the time is over. Then it counts as lost, though it may still get there.
const LAST_WRITE: Duration = Duration::from_secs(1);
const REFUSED: &str = "what it refuses is counted and not sent again";

pub(super) struct Worker {
    name: String,
    subscription: Subscription,
    sieve: Sieve,
    encoder: Box<dyn Encoder>,
    transport: Transport,
    tls: Option<InForce>,
    backoff: Backoff,
    /// How long to leave the receiver alone before the next message, after it refused one.
    pause: Option<Duration>,
    told: Told,
    telling: Telling,
    tally: Arc<Tally>,
    ending: Ending,
}

/// What the log has of what a receiver may say again with each message.
#[derive(Default)]
struct Told {
    /// It refuses flows of messages that it takes.
    refuses_some: Spell,
    /// It refuses what goes out beside the flows.
    refuses_rest: Spell,
    /// It takes flows, or what goes out beside them, and has something to say.
    warns: Spell,
    warns_of_rest: Spell,
}

/// What became of one message.
struct Done {
    flows: usize,
    /// See [`Message::more`](super::encoder::Message::more).
    more: bool,
}

impl Worker {
    pub(super) fn new(
        name: &str,
        output: &Output,
        (encoder, transport): (Box<dyn Encoder>, Transport),
        tls: Option<InForce>,
        subscription: Subscription,
        tally: Arc<Tally>,
        ending: Ending,
    ) -> Self {
        Self {
            name: name.to_owned(),
            subscription,
            sieve: Sieve::new(output.wanted.clone()),
            encoder,
            transport,
            tls,
            backoff: Backoff::default(),
            pause: None,
            told: Told::default(),
            telling: Telling::of(name, &tally),
            tally,
            ending,
        }
    }

    /// Ends when everything is sent and nothing more will come, or when the time is over.
    pub(super) async fn run(self) {
        let files = followed(self.tls.clone());
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
                    self.tally.loses();
                    continue;
                }
            };
            if self.send(batch).await.is_err() {
                self.give_up();
                break;
            }
        }
        self.learn_last().await;
        let closed = self.ending.before(self.transport.close()).await;
        self.transport.abandon();
        self.settle_at_end();
        match closed {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => self.tell_unfinished(&failure.to_string()),
            Err(Over) => self.tell_unfinished("there was no time"),
        }
    }

    async fn next(&mut self) -> Option<OutgoingBatch> {
        loop {
            let next = poll_fn(|context| self.tally.takes(|| self.subscription.poll_next(context)));
            tokio::select! {
                biased;
                batch = next => return batch,
                () = sleep(RECEIPTS), if self.transport.is_underway() => self.notice(),
            }
        }
    }

    /// Counts what became known of flows that were handed over. Returns what of them is lost.
    fn settle(&mut self) -> RecordSum {
        let receipts = self.transport.receipts();
        let lost = receipts.lost;
        self.tally.learns(receipts);
        lost
    }

    /// The same while there is nothing to send, which would tell that what was handed over has failed.
    fn notice(&mut self) {
        match self.transport.notice() {
            Ok(()) => {
                self.settle();
                if self.transport.is_blind() && !self.transport.is_underway() {
                    self.tally.trusts();
                }
            }
            Err(failure) => {
                if matches!(failure, Failure::LastRefused { .. }) {
                    self.tally.refuses_doubted();
                }
                self.failed(&failure);
            }
        }
    }

    /// Waits for what the hosts say of the last message where nobody acknowledges any.
    async fn learn_last(&mut self) {
        while self.transport.is_blind() && self.transport.is_underway() {
            let waited = self.ending.before(sleep(RECEIPTS)).await;
            self.notice();
            if waited.is_err() {
                return;
            }
        }
    }

    /// The same at the end, when nothing more will become known.
    fn settle_at_end(&mut self) {
        let lost = self.settle();
        self.tally.trusts();
        if lost != RecordSum::default() {
            tracing::warn!(
                output = self.name,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows on the way to {} were not acknowledged before the end",
                self.transport.address()
            );
        }
    }

    fn tell_unfinished(&self, error: &str) {
        tracing::warn!(
            output = self.name,
            "what was sent to {} could not be completed before the end: {error}",
            self.transport.address()
        );
    }

    /// Sends what is wanted of a batch.
    async fn send(&mut self, mut batch: FlowBatch) -> Result<(), Over> {
        let (flows, left_out) = self.sieve.take(&mut batch);
        let sum = tally::sum(&flows);
        // The stream tells what its reader does not get, as those over gRPC do.
        let left_out = self.tally.wants(sum, left_out);
        batch.left_out_records = left_out.records;
        batch.left_out_packets = left_out.packets;
        batch.left_out_bytes = left_out.bytes;
        let lost = self.tally.lost_behind_the_queue();
        batch.lost_records += lost.records;
        batch.lost_packets += lost.packets;
        batch.lost_bytes += lost.bytes;
        let mut rest = &flows[..];
        let mut more = batch.last_of_scan || batch.scan_id == 0;
        while !rest.is_empty() || more {
            let Ok(done) = self.hand_over(&batch, rest).await else {
                self.tally.loses();
                return Err(Over);
            };
            rest = &rest[done.flows..];
            more = done.more;
        }
        Ok(())
    }

    /// Sends one message with flows from the front, and tries again until it is sent or refused.
    async fn hand_over(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Result<Done, Over> {
        if let Some(pause) = self.pause.take() {
            self.ending.before(sleep(pause)).await?;
        }
        loop {
            let message = self.encoder.message(batch, flows);
            let mut sum = tally::sum(&flows[..message.flows]);
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
                self.tally.leaves_out(sum);
                self.tally.leaves_out(skipped);
                return Ok(done);
            }
            let sending = self.transport.send(&message);
            let Ok(sent) = self.ending.before(sending).await else {
                self.tally.leaves_out(skipped);
                match timeout(LAST_WRITE, self.transport.has_taken()).await {
                    Ok(Ok(true)) => self.tally.sends(sum),
                    Ok(Ok(false)) => {}
                    Ok(Err(failure)) => self.tell_unfinished(&failure.to_string()),
                    Err(_) => self.tell_unfinished("a write has not ended in time"),
                }
                return Err(Over);
            };
            let answered = sent.and_then(|answer| Ok(self.encoder.answered(&answer)?));
            let failure = match answered {
                Ok(answer) => {
                    self.tally.leaves_out(skipped);
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
                    self.tally.refuses_doubted();
                    None
                }
                Failure::Refused {
                    ref why,
                    is_unknown,
                    ..
                } => {
                    self.tally.leaves_out(skipped);
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
                // The receiver knows when it is ready.
                self.ending.before(sleep(wait)).await?;
            } else if self.ending.pause(wait).await? {
                self.backoff.reset();
            }
        }
    }

    /// Goes on with the next message. Which of its flows the receiver does not take is not known, so they count with their
    /// share of what all of them report.
    fn taken(&mut self, sum: RecordSum, answer: &Answer) {
        self.encoder.sent();
        let refused = tally::share(sum, answer.refused);
        if self.transport.is_blind() {
            // The message before was not refused.
            self.tally.trusts();
        }
        if self.transport.took(sum) {
            self.tally.doubts(sum);
            self.settle();
        } else {
            let mut sent = sum;
            sent -= refused;
            self.tally.sends(sent);
        }
        if let Some(warning) = &answer.warning {
            self.warns(sum, warning);
        }
        if refused.records != 0 {
            self.backoff.reset();
            self.refuses_some(refused, &answer.why);
        } else if sum.records != 0 || !self.tally.is_refusing() {
            self.worked();
        }
    }

    fn does_without(&mut self, Without { what, pause }: Without, why: &str) {
        self.backoff.reset();
        tracing::warn!(
            output = self.name,
            "{} takes no {what}: {why}; it gets flows alone, and {what} are tried again in {}: set {what} = false for this \
             output if it is to have none",
            self.transport.address(),
            humantime::format_duration(pause)
        );
    }

    /// Says once what the receiver says although it takes the message.
    fn warns(&mut self, sum: RecordSum, warning: &str) {
        let (spell, what) = if sum.records == 0 {
            (
                &mut self.told.warns_of_rest,
                "what goes out beside the flows",
            )
        } else {
            (&mut self.told.warns, "flows")
        };
        if spell.begins() {
            tracing::warn!(
                output = self.name,
                "{} takes {what}, and says: {warning}; {ONCE}",
                self.transport.address()
            );
        }
    }

    /// Goes on with the next message: the receiver would refuse this one again. It may refuse all of them, because it is not
    /// the one that is meant, so there are pauses as after other failures. Flows wait meanwhile, and those that it has not
    /// seen are not refused when somebody has put things right.
    fn refused(&mut self, flows: RecordSum, why: &str) {
        self.encoder.sent();
        self.pause = Some(self.backoff.next(None));
        self.refuses(flows, why);
    }

    /// Goes on where the receiver refuses what goes out beside the flows, and says so once.
    fn refused_beside(&mut self, why: &str) {
        self.encoder.sent();
        if self.told.refuses_rest.begins() {
            tracing::warn!(
                output = self.name,
                "{} refuses what goes out beside the flows, as the account: {why}; {ONCE}",
                self.transport.address()
            );
        }
    }

    /// Counts flows that are refused of a message that is taken, and says so once. Other messages may be taken as a whole
    /// in between.
    fn refuses_some(&mut self, flows: RecordSum, why: &str) {
        self.tally.refuses_some(flows, why);
        if self.told.refuses_some.begins() {
            self.tell_refused(flows, &format!("{why}; {REFUSED}; {ONCE}"));
        }
    }

    /// Counts flows that are refused, and says so once.
    fn refuses(&self, flows: RecordSum, why: &str) {
        if self.tally.refuses(flows, why) {
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

    /// What comes next begins anew. Says once that it fails.
    fn failed(&mut self, failure: &Failure) {
        self.encoder.restart();
        let lost = self.settle();
        self.telling
            .failed(&self.transport.address(), failure, lost);
    }

    /// Says once that it works again.
    fn worked(&mut self) {
        self.backoff.reset();
        self.telling.works(&self.transport.address());
    }

    /// Counts and tells what is left at the end.
    fn give_up(&mut self) {
        // Else tokio would let the queue seem empty after a while, so that other tasks get their turn.
        while let Some(Some(batch)) = unconstrained(self.next()).now_or_never() {
            if let Ok(mut batch) = batch.decode() {
                let (flows, left_out) = self.sieve.take(&mut batch);
                self.tally.wants(tally::sum(&flows), left_out);
            }
            self.tally.loses();
        }
        self.transport.abandon();
        self.settle();
        self.telling.ended(&self.transport.address());
    }
}
