//! Delivers batches unchanged to a collector that acknowledges stored batches. A batch is sent again, to this
//! collector or the next one of the list, until it is acknowledged, so it arrives at least once and in order. The
//! stream and sequence number let the collector recognize duplicates.

use std::{
    future::{Future, pending, poll_fn},
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use bytes::Bytes;
use futures_util::FutureExt as _;
use hub::{OutgoingBatch, Subscription, Volume};
use prost::Message as _;
use proto::{ExportAck, FlowBatch, RecordSum, batch::Head};
use tls::{output::ReloadableOutputTls, reload::watch_files, token::TokenFile};
use tokio::{
    task::{coop::unconstrained, spawn_blocking},
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::codegen::http::HeaderValue;

use super::{
    backoff::Backoff,
    counters::Counters,
    output_log::OutputLog,
    shutdown::Shutdown,
    throttle::{OutputThrottle, Throttle},
    transport::{Answers, Endpoint, Failure, Receipts, StreamingCall},
};

mod backlog;
pub mod spool;
mod waiting;

use backlog::Backlog;
use spool::{InUse, Spool};
use waiting::without;

const METHOD: &str = "/flow.v1.FlowCollector/Export";
/// How long to wait for an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(30);
/// A call that breaks sooner is followed by a pause, even if it made progress.
const SHORT: Duration = Duration::from_secs(5);
/// How often each collector must reject a batch as invalid before the batch is given up.
const TRIES: usize = 2;
/// How long to wait for answers that a collector sent before its call broke.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// At shutdown: how long writing the rest of the queue may take, and then syncing it.
const LAST_WRITE: Duration = Duration::from_secs(1);
const LAST_SYNC: Duration = Duration::from_secs(5);
/// How long scanning the spool may take at startup.
const LONGEST_OPENING: Duration = Duration::from_mins(2);
/// How often to retry a spool that another output has locked, and after how long to warn about it.
const IN_USE_PAUSE: Duration = Duration::from_millis(100);
const IN_USE_IS_TOLD: Duration = Duration::from_secs(10);

pub(super) struct Delivery {
    sender: Sender,
    tls: Option<ReloadableOutputTls>,
    shutdown: Shutdown,
}

struct Sender {
    subscription: Subscription,
    /// The queue is empty and closed.
    is_drained: bool,
    /// Taken from the queue, not yet in the backlog.
    taken: Option<OutgoingBatch>,
    backlog: Backlog,
    spooling: Option<Spooling>,
    /// Losses of the spool that are already counted.
    told_lost: Volume,
    /// An encoded batch with nothing but the agent. Empty until a batch has named it.
    agent: Bytes,
    patience: Duration,
    collectors: Vec<Endpoint>,
    /// The token sent to the collectors.
    token: Option<TokenFile>,
    /// Index of the current collector.
    at: usize,
    /// The last sequence number that a collector may have received, in this call or an earlier one.
    handed_seq: u64,
    /// Consecutive failures.
    failed: usize,
    /// Sequence number of the oldest batch, and how often each collector rejected it as invalid.
    called_invalid: (u64, Vec<usize>),
    /// This call has acknowledged something.
    has_progressed: bool,
    backoff: Backoff,
    /// What the collector asks the agent for.
    throttle: OutputThrottle,
    shutdown: Shutdown,
    log: OutputLog,
    counters: Arc<Counters>,
}

/// The collectors and how to reach them.
pub(super) struct Collectors {
    pub endpoints: Vec<Endpoint>,
    pub spooling: Option<Spooling>,
    /// The strongest throttle that the agent grants a collector.
    pub max_throttle: Throttle,
    pub token: Option<TokenFile>,
}

impl Delivery {
    /// Delivers to the first of these collectors that answers.
    pub(super) fn new(
        name: &str,
        collectors: Collectors,
        (tls, throttle): (Option<ReloadableOutputTls>, OutputThrottle),
        subscription: Subscription,
        counters: Arc<Counters>,
        shutdown: Shutdown,
    ) -> Self {
        let sender = Sender {
            subscription,
            is_drained: false,
            taken: None,
            backlog: Backlog::new(RandomState::new().hash_one(name)),
            spooling: collectors.spooling,
            told_lost: Volume::default(),
            agent: Bytes::new(),
            patience: PATIENCE,
            collectors: collectors.endpoints,
            token: collectors.token,
            at: 0,
            handed_seq: 0,
            failed: 0,
            called_invalid: (0, Vec::new()),
            has_progressed: false,
            backoff: Backoff::default(),
            throttle,
            shutdown: shutdown.clone(),
            log: OutputLog::new(name, &counters),
            counters,
        };
        Self {
            sender,
            tls,
            shutdown,
        }
    }

    /// Returns when everything is acknowledged and the queue is closed, or at the deadline.
    pub(super) async fn run(self) {
        let files = watch_files(self.tls);
        let (mut sender, mut shutdown) = (self.sender, self.shutdown);
        let work = async {
            let _ = shutdown.before_deadline(sender.begin()).await;
            let _ = shutdown.before_deadline(sender.deliver()).await;
            sender.finish().await;
        };
        tokio::select! {
            () = work => {}
            never = files => match never {},
        }
    }
}

/// The spool folder and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spooling {
    pub folder: PathBuf,
    pub most_bytes: u64,
}

impl Sender {
    /// Opens the spool. An output that is shutting down may still hold its lock.
    async fn begin(&mut self) {
        if self.token.is_some() && self.collectors.iter().any(Endpoint::is_read_on_the_way) {
            self.log.plain_token();
        }
        let Some(Spooling { folder, most_bytes }) = self.spooling.clone() else {
            return;
        };
        let fresh_id = self.backlog.stream_id();
        let mut waited = Duration::ZERO;
        let opened = loop {
            let folder = folder.clone();
            let open = move || Spool::open(folder, most_bytes, fresh_id);
            let Ok(opened) = timeout(LONGEST_OPENING, spawn_blocking(open)).await else {
                let time = humantime::format_duration(LONGEST_OPENING);
                break Err(anyhow!("the disk has not answered for {time}"));
            };
            match opened.expect("opening does not panic") {
                Err(error) if error.is::<InUse>() => {
                    let fault = format!("{error:#}; retrying");
                    self.counters.set_spool(0, 0, &fault);
                    if waited == IN_USE_IS_TOLD {
                        self.log.spool_failed(&fault);
                    }
                    sleep(IN_USE_PAUSE).await;
                    waited += IN_USE_PAUSE;
                }
                other => break other,
            }
        };
        match opened {
            Ok((spool, beginning)) => {
                for fault in &beginning.faults {
                    self.log.spool_damaged(fault);
                }
                self.counters.found_on_disk(beginning.waits);
                self.counters.found_on_disk(RecordSum::from(beginning.lost));
                self.log.spool_found(beginning.waits);
                // A collector may have received all batches of the spool.
                self.handed_seq = beginning.last.seq;
                self.told_lost = without(spool.stand().lost, beginning.lost);
                self.backlog.go_on(spool, &beginning);
                self.look();
            }
            Err(error) => {
                let fault = format!("{error:#}; batches wait in memory only");
                self.log.spool_failed(&fault);
                self.counters.set_spool(0, 0, &fault);
            }
        }
    }

    async fn deliver(&mut self) {
        let mut asked = None;
        while !self.is_done() {
            let begun = Instant::now();
            self.has_progressed = false;
            let Err(failure) = self.call().await else {
                continue;
            };
            self.log
                .failed(&self.address(), &failure, RecordSum::default());
            self.judge(&failure).await;
            if self.has_progressed {
                self.failed = 0;
                self.backoff.reset();
            }
            self.failed += 1;
            self.at = (self.at + 1) % self.collectors.len();
            let pause = failure.asked_pause().unwrap_or_default();
            // The shortest pause that a collector of this round asked for.
            asked = Some(asked.map_or(pause, |least: Duration| least.min(pause)));
            // Try each collector once before pausing. One that works only for a moment gets a pause, as a failed one
            // does.
            let is_round_over = self.failed.is_multiple_of(self.collectors.len());
            if is_round_over {
                self.rest(asked.take()).await;
            } else if self.has_progressed && begun.elapsed() < SHORT {
                self.rest(None).await;
            }
        }
    }

    /// Gives up the oldest batch once every collector has rejected it repeatedly as invalid. Otherwise it would block
    /// the stream forever.
    async fn judge(&mut self, failure: &Failure) {
        let Failure::Refused {
            why,
            is_invalid: true,
            ..
        } = failure
        else {
            return;
        };
        // Batches before the oldest one are acknowledged.
        let Some(seq) = self.backlog.after(0).map(|oldest| oldest.seq) else {
            return;
        };
        let (last, times) = &mut self.called_invalid;
        if *last != seq {
            (*last, *times) = (seq, vec![0; self.collectors.len()]);
        }
        times[self.at] += 1;
        if times.iter().any(|&times| times < TRIES) {
            return;
        }
        if let Some((flows, done)) = self.backlog.give_up(seq) {
            self.counters.refuse_handed_over(flows, why);
            self.log.refused_batch(seq, why, flows);
            self.backlog.forget(done).await;
            self.look();
        }
    }

    /// Pauses before the next round of calls.
    async fn rest(&mut self, asked: Option<Duration>) {
        let pause = self.backoff.next(asked);
        if asked.is_some_and(|asked| !asked.is_zero()) {
            // The collector asked for this pause, so it is not cut short.
            self.meanwhile(sleep(pause)).await;
            return;
        }
        let mut shutdown = self.shutdown.clone();
        let paused = self.meanwhile(shutdown.pause(pause)).await;
        self.shutdown = shutdown;
        if let Ok(true) = paused {
            self.backoff.reset();
        }
    }

    /// Moves queued batches to the spool while `work` runs.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let may_take = !self.is_drained && self.backlog.has_spool() && self.backlog.has_room();
            let sync_at = self.backlog.sync_at();
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = at(sync_at), if sync_at.is_some() => self.sync().await,
                () = self.take(), if may_take => {}
            }
            self.keep().await;
        }
    }

    /// Sends to one collector. Returns when everything is acknowledged and the queue is closed, or when the collector
    /// ends the call with nothing left to acknowledge.
    async fn call(&mut self) -> std::result::Result<(), Failure> {
        self.keep().await;
        if self.backlog.is_empty() {
            self.take().await;
            self.keep().await;
        }
        if self.is_done() {
            return Ok(());
        }
        let collector = self.collectors[self.at].clone();
        let token = shown(self.token.clone());
        let token = self.meanwhile(token).await?;
        let call = StreamingCall::begin(&collector, METHOD, token);
        let mut call = self.meanwhile(call).await?;
        let exchanged = self.exchange(&mut call).await;
        self.handed_seq = self.handed_seq.max(call.outbox.sent());
        exchanged
    }

    /// Runs one call: sends batches and reads acknowledgements.
    async fn exchange(&mut self, call: &mut StreamingCall) -> std::result::Result<(), Failure> {
        let StreamingCall {
            outbox, answers, ..
        } = call;
        // Sequence number of the last batch put into the outbox in this call.
        let mut put_seq = 0;
        let mut has_ended = false;
        let mut deadline = Instant::now() + self.patience;
        while !self.is_done() {
            if outbox.is_empty() {
                while outbox.has_room()
                    && let Some(batch) = self.backlog.after(put_seq)
                {
                    put_seq = batch.seq;
                    outbox.put(put_seq, batch.parts.clone());
                }
                if outbox.is_empty() && self.is_all_put(put_seq) && !has_ended {
                    outbox.end()?;
                    has_ended = true;
                }
            }
            let was_empty = self.backlog.is_empty();
            let may_take = !self.is_drained && self.backlog.has_room();
            let sync_at = self.backlog.sync_at();
            tokio::select! {
                // Read answers first: a collector that ends the call may say why before a write fails.
                biased;
                answer = answers.next() => match answer {
                    Ok(answer) => {
                        if self.acknowledge(answer, outbox.sent()).await? {
                            deadline = Instant::now() + self.patience;
                        }
                    }
                    Err(_) if was_empty => return Ok(()),
                    Err(failure) => return Err(failure),
                },
                flushed = outbox.flush(), if !outbox.is_empty() => {
                    if let Err(failure) = flushed {
                        // The collector may have sent a reason.
                        return Err(self.last_words(answers, outbox.sent()).await?.unwrap_or(failure));
                    }
                }
                () = at(sync_at), if sync_at.is_some() => self.sync().await,
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
            self.keep().await;
        }
        Ok(())
    }

    /// Reads what the collector sent before the call broke, and the reason why it ended the call.
    async fn last_words(
        &mut self,
        answers: &mut Answers,
        sent_seq: u64,
    ) -> std::result::Result<Option<Failure>, Failure> {
        loop {
            match timeout(LAST_WORDS, answers.next()).await {
                Ok(Ok(answer)) => {
                    self.acknowledge(answer, sent_seq).await?;
                }
                Ok(Err(failure)) => return Ok(Some(failure)),
                Err(_) => return Ok(None),
            }
        }
    }

    /// Takes the next batch from the queue. Cancel safe.
    async fn take(&mut self) {
        if self.taken.is_some() {
            return;
        }
        let (subscription, counters) = (&mut self.subscription, &self.counters);
        match poll_fn(|context| counters.take_from_queue(|| subscription.poll_next(context))).await
        {
            // It was counted when the earlier process put it into the spool, or when the spool was opened.
            Some(batch) if self.backlog.has_had(&batch) => {
                self.counters.skip();
                self.backlog.skip(&batch);
            }
            Some(batch) => {
                self.counters.handed_over(RecordSum::from(batch.volume()));
                self.taken = Some(batch);
            }
            None => self.is_drained = true,
        }
    }

    /// Moves the taken batch to the backlog and refills memory from the disk. If this is cancelled midway, the batch is
    /// on disk only, so cancel it only at shutdown.
    async fn keep(&mut self) {
        self.keep_taken().await;
        self.backlog.refill().await;
        self.look();
    }

    async fn keep_taken(&mut self) {
        if let Some(batch) = self.taken.take() {
            let batch = self.signed(batch);
            let batch = self.backlog.number(batch);
            self.backlog.keep(batch).await;
        }
    }

    async fn sync(&mut self) {
        self.backlog.sync().await;
        self.look();
    }

    /// Counts the spool's losses and publishes its state.
    fn look(&mut self) {
        let stand = self.backlog.stand();
        let lost = RecordSum::from(without(stand.lost, self.told_lost));
        self.told_lost = stand.lost;
        if lost != RecordSum::default() {
            self.loses(lost);
            self.log.spool_lost(lost);
        }
        let fault = self.backlog.fault();
        if self.backlog.has_spool() || fault.is_some() {
            let fault = fault.unwrap_or_default();
            let oldest = self.backlog.oldest_unix_ns();
            self.counters.set_spool(stand.bytes, oldest, fault);
            self.log.spool_state(fault);
        }
    }

    fn loses(&self, lost: RecordSum) {
        self.counters.receipts(Receipts {
            arrived: RecordSum::default(),
            lost,
        });
    }

    /// Adds the agent to a batch that lacks it: one that only reports losses.
    fn signed(&mut self, batch: OutgoingBatch) -> OutgoingBatch {
        if batch.id().is_none() {
            return batch.with_body(self.agent.clone());
        }
        if self.agent.is_empty()
            && let Some(Head { agent, .. }) = batch.head()
        {
            let alone = FlowBatch {
                agent,
                ..FlowBatch::default()
            };
            self.agent = alone.encode_to_vec().into();
        }
        batch
    }

    /// Returns whether this acknowledges any further batches. An acknowledgement of batches from earlier calls counts
    /// only up to `sent_seq`, the last one that this call has sent.
    async fn acknowledge(&mut self, answer: Bytes, sent_seq: u64) -> Result<bool> {
        let ExportAck {
            last_seq,
            report_interval_ns,
            sample_rate,
        } = ExportAck::decode(answer).context("read an acknowledgement")?;
        self.handed_seq = self.handed_seq.max(sent_seq);
        ensure!(
            last_seq <= self.handed_seq,
            "the collector acknowledges batch {last_seq}, but the last one sent was {}",
            self.handed_seq
        );
        let granted = self.throttle.set(Throttle {
            report_interval: Duration::from_nanos(report_interval_ns),
            sample_rate,
        });
        self.counters.set_throttle(granted);
        let Some((arrived, done)) = self.backlog.acknowledge(last_seq.min(sent_seq)) else {
            return Ok(false);
        };
        self.counters.receipts(Receipts {
            arrived,
            lost: RecordSum::default(),
        });
        self.backlog.forget(done).await;
        self.has_progressed = true;
        if self.backlog.is_empty() {
            self.log.recovered(&self.address());
        }
        Ok(true)
    }

    fn is_done(&self) -> bool {
        self.is_drained && self.taken.is_none() && self.backlog.is_empty()
    }

    /// No batch will follow the one with this sequence number.
    fn is_all_put(&self, seq: u64) -> bool {
        let is_behind = self.backlog.is_behind() || self.backlog.after(seq).is_some();
        self.is_drained && self.taken.is_none() && !is_behind
    }

    fn address(&self) -> String {
        self.collectors[self.at].address()
    }

    /// Leaves the rest in the spool for the next start, or counts it as lost and logs it. The collector may still have
    /// received it.
    async fn finish(&mut self) {
        if self.backlog.has_spool() {
            self.leave().await;
        } else {
            let mut has_left = self.taken.take().is_some();
            while self.takes_now() {
                has_left |= self.taken.take().is_some();
            }
            if !has_left && self.is_done() && !self.backlog.hangs() {
                return;
            }
            self.counters.lose_unacknowledged();
        }
        self.log.ended(&self.address());
    }

    async fn leave(&mut self) {
        let write = async {
            while self.backlog.has_room() && self.takes_now() {
                self.keep_taken().await;
            }
        };
        let _ = timeout(LAST_WRITE, write).await;
        while self.taken.is_some() || self.takes_now() {
            let Some(batch) = self.taken.take() else {
                continue;
            };
            self.backlog.loses_unnumbered(&batch);
            self.loses(RecordSum::from(batch.volume()));
        }
        let only_in_memory = self.backlog.only_in_memory();
        let left = timeout(LAST_SYNC, self.backlog.leave(only_in_memory)).await;
        self.look();
        if left != Ok(true) {
            // It is unknown what the disk holds.
            self.counters.lose_unacknowledged();
            return;
        }
        self.loses(RecordSum::from(only_in_memory));
        let waits = self.counters.status().queued.unwrap_or_default();
        self.log.spool_left(waits);
        self.counters.leave_on_disk();
    }

    /// Takes the next batch if there is one. `unconstrained`, because tokio's cooperative budget would otherwise make a
    /// long queue look empty.
    fn takes_now(&mut self) -> bool {
        !self.is_drained && unconstrained(self.take()).now_or_never().is_some()
    }
}

/// The token for a collector. Its file may be on a disk that does not answer.
async fn shown(file: Option<TokenFile>) -> Result<Option<HeaderValue>> {
    let Some(file) = file else {
        return Ok(None);
    };
    let token = timeout(PATIENCE, file.header()).await;
    let token = token.context("reading its token timed out (token_file)")?;
    Ok(Some(token.context("it has no token (token_file)")?))
}

/// Waits until the given moment, or forever without one.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
