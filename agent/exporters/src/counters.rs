//! Counts what happened to an output's flows. Others may read the counts at any time.

use std::{
    mem::take,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
};

use agent_common::Pair;
use hub::{Backlog, OutgoingBatch};
use proto::{FlowRecord, OutputSpoolStatus, OutputStatus, RecordSum};
use sys::clock;

use super::{Throttle, transport::Receipts};

/// Counters and state of one output.
pub(super) struct Counters {
    backlog: Backlog,
    fates: Mutex<Fates>,
    health: Mutex<Health>,
    spool: Mutex<Option<OutputSpoolStatus>>,
    asked_report_interval_ns: AtomicU64,
    asked_sample_rate: AtomicU32,
}

/// Behind one lock, which is also held while a batch leaves the queue: at every moment a flow is in exactly one sum.
#[derive(Default)]
struct Fates {
    /// Taken from the queue, not sent yet.
    in_hand: RecordSum,
    /// Handed over, but not acknowledged.
    unacknowledged: RecordSum,
    sent: RecordSum,
    refused: RecordSum,
    lost: RecordSum,
    left_out: RecordSum,
}

/// Whether messages arrive.
#[derive(Default)]
struct Health {
    state: State,
    /// A failure to deliver was logged, or a refusal.
    told_failing: bool,
    told_refused: bool,
    failures: u64,
    last_error: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Working,
    /// The last message did not arrive.
    Failing,
    /// Flows were refused, and no message with flows was accepted as a whole since.
    Refusing,
}

impl Counters {
    pub(super) fn new(backlog: Backlog) -> Self {
        Self {
            backlog,
            fates: Mutex::default(),
            health: Mutex::default(),
            spool: Mutex::default(),
            asked_report_interval_ns: AtomicU64::default(),
            asked_sample_rate: AtomicU32::default(),
        }
    }

    /// Closes the queue: no batch can be added.
    pub(super) fn close_queue(&self) {
        self.backlog.leave();
    }

    /// Takes a batch from the queue by calling `poll`, and counts it as being sent.
    pub(super) fn take_from_queue(
        &self,
        poll: impl FnOnce() -> Poll<Option<OutgoingBatch>>,
    ) -> Poll<Option<OutgoingBatch>> {
        let mut fates = self.fates();
        let polled = poll();
        if let Poll::Ready(Some(batch)) = &polled {
            fates.in_hand = RecordSum::from(batch.volume());
        }
        polled
    }

    /// Splits the batch in hand into selected and left-out flows. Returns the total ever left out.
    pub(super) fn leave_out_unselected(
        &self,
        selected: RecordSum,
        left_out: RecordSum,
    ) -> RecordSum {
        let mut fates = self.fates();
        fates.in_hand = selected;
        fates.left_out += left_out;
        fates.left_out
    }

    pub(super) fn sent(&self, flows: RecordSum) {
        let mut fates = self.fates();
        fates.in_hand -= flows;
        fates.sent += flows;
    }

    /// Leaves out flows that the format has no message for.
    pub(super) fn leave_out(&self, flows: RecordSum) {
        let mut fates = self.fates();
        fates.in_hand -= flows;
        fates.left_out += flows;
    }

    /// Forgets a batch in hand that is counted already.
    pub(super) fn skip(&self) {
        self.fates().in_hand = RecordSum::default();
    }

    /// Counts flows as handed over, until their outcome is known.
    pub(super) fn handed_over(&self, flows: RecordSum) {
        let mut fates = self.fates();
        fates.in_hand -= flows;
        fates.unacknowledged += flows;
    }

    /// Counts flows found on disk, until their outcome is known.
    pub(super) fn found_on_disk(&self, flows: RecordSum) {
        self.fates().unacknowledged += flows;
    }

    /// Leaves the flows on disk to the next start.
    pub(super) fn leave_on_disk(&self) {
        self.fates().unacknowledged = RecordSum::default();
    }

    /// Sets the state of the spool.
    pub(super) fn set_spool(&self, bytes: u64, oldest_unix_ns: u64, error: &str) {
        *self.spool() = Some(OutputSpoolStatus {
            bytes,
            oldest_unix_ns,
            error: error.to_owned(),
        });
    }

    /// Sets what the collector asks for.
    pub(super) fn set_throttle(&self, asked: Throttle) {
        let interval_ns = clock::nanos(asked.report_interval);
        self.asked_report_interval_ns.store(interval_ns, Relaxed);
        self.asked_sample_rate.store(asked.sample_rate, Relaxed);
    }

    /// Counts receipts of flows that were handed over.
    pub(super) fn receipts(&self, Receipts { arrived, lost }: Receipts) {
        let mut fates = self.fates();
        fates.sent += arrived;
        fates.lost += lost;
        for known in [arrived, lost] {
            // A batch already counted as lost may become readable after all.
            let unacknowledged = &mut fates.unacknowledged;
            unacknowledged.records = unacknowledged.records.saturating_sub(known.records);
            unacknowledged.packets = unacknowledged.packets.saturating_sub(known.packets);
            unacknowledged.bytes = unacknowledged.bytes.saturating_sub(known.bytes);
        }
    }

    /// Counts everything handed over as sent.
    pub(super) fn assume_sent(&self) {
        let fates = &mut *self.fates();
        fates.sent += take(&mut fates.unacknowledged);
    }

    pub(super) fn lose_unacknowledged(&self) {
        let fates = &mut *self.fates();
        fates.lost += take(&mut fates.unacknowledged);
    }

    pub(super) fn refuse_unacknowledged(&self) {
        let fates = &mut *self.fates();
        fates.refused += take(&mut fates.unacknowledged);
    }

    /// Lost in this output, in addition to losses in the queue.
    pub(super) fn lost_behind_the_queue(&self) -> RecordSum {
        self.fates().lost
    }

    /// Counts the batch in hand as lost.
    pub(super) fn lose_in_hand(&self) {
        let fates = &mut *self.fates();
        fates.lost += take(&mut fates.in_hand);
    }

    /// Records a failure. Returns whether to log it: once until the next success.
    pub(super) fn failed(&self, error: &str) -> bool {
        let mut health = self.health();
        health.fails(error);
        !std::mem::replace(&mut health.told_failing, true)
    }

    /// Records that the receiver refused these flows. Returns whether to log it: once until the next success.
    pub(super) fn refuse(&self, flows: RecordSum, error: &str) -> bool {
        self.refuse_some(flows, error);
        !std::mem::replace(&mut self.health().told_refused, true)
    }

    /// Records that no receiver takes these flows, which were handed over before.
    pub(super) fn refuse_handed_over(&self, flows: RecordSum, error: &str) {
        self.receipts(Receipts {
            arrived: RecordSum::default(),
            lost: flows,
        });
        let mut fates = self.fates();
        fates.lost -= flows;
        fates.refused += flows;
        drop(fates);
        self.health().fails(error);
    }

    /// Records that the receiver accepted a message but refused these flows of it.
    pub(super) fn refuse_some(&self, flows: RecordSum, error: &str) {
        let mut fates = self.fates();
        fates.in_hand -= flows;
        fates.refused += flows;
        drop(fates);
        let mut health = self.health();
        health.fails(error);
        health.state = State::Refusing;
    }

    /// Whether the receiver refused flows and has not accepted a whole message of flows since. Then an accepted message
    /// without flows does not count as recovery.
    pub(super) fn is_refusing(&self) -> bool {
        self.health().state == State::Refusing
    }

    /// Records a success. Returns whether it ends a failure that was logged.
    pub(super) fn succeeded(&self) -> bool {
        let mut health = self.health();
        health.state = State::Working;
        let was_told = health.told_failing || health.told_refused;
        (health.told_failing, health.told_refused) = (false, false);
        was_told
    }

    /// The status without name, kind and address, which come from the settings.
    pub(super) fn status(&self) -> OutputStatus {
        let fates = self.fates();
        let backlog = self.backlog.fate();
        let mut queued = RecordSum::from(backlog.queued);
        queued += fates.in_hand;
        queued += fates.unacknowledged;
        let mut lost = RecordSum::from(backlog.lost);
        lost += fates.lost;
        let (sent, refused, left_out) = (fates.sent, fates.refused, fates.left_out);
        drop(fates);
        let health = self.health();
        OutputStatus {
            failing: health.state != State::Working,
            failures: health.failures,
            last_error: health.last_error.clone(),
            queued: Some(queued),
            sent: Some(sent),
            refused: Some(refused),
            lost: Some(lost),
            left_out: Some(left_out),
            spool: self.spool().clone(),
            asked_report_interval_ns: self.asked_report_interval_ns.load(Relaxed),
            asked_sample_rate: self.asked_sample_rate.load(Relaxed),
            ..OutputStatus::default()
        }
    }

    fn fates(&self) -> MutexGuard<'_, Fates> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spool(&self) -> MutexGuard<'_, Option<OutputSpoolStatus>> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Health {
    fn fails(&mut self, error: &str) {
        error.clone_into(&mut self.last_error);
        if self.state == State::Working {
            self.failures += 1;
            self.state = State::Failing;
        }
    }
}

/// The total of these records.
pub(super) fn sum<'a>(records: impl IntoIterator<Item = &'a FlowRecord>) -> RecordSum {
    let mut sum = RecordSum::default();
    for record in records {
        let Pair { packets, bytes } = record.delta();
        sum += RecordSum {
            records: 1,
            packets,
            bytes,
        };
    }
    sum
}

/// The share of this many records if all report the same: rounded down, at most the whole.
pub(super) fn share(sum: RecordSum, records: u64) -> RecordSum {
    let records = records.min(sum.records);
    let part = |whole: u64| {
        let share = u128::from(whole) * u128::from(records) / u128::from(sum.records.max(1));
        u64::try_from(share).expect("a part is no more than the whole")
    };
    RecordSum {
        records,
        packets: part(sum.packets),
        bytes: part(sum.bytes),
    }
}

#[cfg(test)]
mod tests {
    use hub::Hub;

    use super::*;

    /// A sum of this many records, each of one packet with 100 bytes.
    fn flows(records: u64) -> RecordSum {
        RecordSum {
            records,
            packets: records,
            bytes: 100 * records,
        }
    }

    #[test]
    fn what_was_handed_over_has_one_fate_in_the_end() {
        let hub = Hub::new(1, u64::MAX);
        let subscription = hub.subscribe("an output", "this process");
        let counters = || {
            let counters = Counters::new(subscription.backlog());
            counters.leave_out_unselected(flows(7), flows(2));
            counters.handed_over(flows(4));
            counters
        };
        let fates = |counters: &Counters| {
            let status = counters.status();
            let fates = [status.queued, status.sent, status.refused, status.lost];
            fates.map(|fate| fate.unwrap().records)
        };
        assert_eq!(fates(&counters()), [7, 0, 0, 0]);
        let refused = counters();
        refused.refuse_unacknowledged();
        assert_eq!(fates(&refused), [3, 0, 4, 0]);
        refused.refuse_unacknowledged();
        assert_eq!(fates(&refused), [3, 0, 4, 0], "they are refused once");
        let trusted = counters();
        trusted.assume_sent();
        assert_eq!(fates(&trusted), [3, 4, 0, 0]);
        let learned = counters();
        learned.receipts(Receipts {
            arrived: flows(3),
            lost: flows(1),
        });
        assert_eq!(fates(&learned), [3, 3, 0, 1]);
        assert_eq!(learned.status().left_out, Some(flows(2)));
    }

    #[test]
    fn a_share_and_the_rest_are_the_whole() {
        let all = RecordSum {
            records: 3,
            packets: 10,
            bytes: u64::MAX,
        };
        assert_eq!(share(all, 0), RecordSum::default());
        for more in [3, 4, u64::MAX] {
            assert_eq!(share(all, more), all);
        }
        let two = share(all, 2);
        assert_eq!((two.records, two.packets), (2, 6));
        assert_eq!(two.bytes, u64::MAX / 3 * 2);
        let none = RecordSum::default();
        assert_eq!(share(none, 7), none);
    }
}
