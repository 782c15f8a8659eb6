//! Counts what became of an output's flows, while others read the counts.

use std::{
    ops::{AddAssign, SubAssign},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use agent_common::Pair;

use crate::{
    hub::{Backlog, Volume},
    proto::{DepartedOutputs, FlowRecord, OutputStatus, RecordSum},
};

/// What became of an output's flows.
pub(super) struct Tally {
    backlog: Backlog,
    /// Taken from the queue and not sent yet.
    in_hand: Sum,
    /// Sent, and perhaps refused.
    doubted: Sum,
    pub(super) sent: Sum,
    pub(super) refused: Sum,
    lost: Sum,
    pub(super) left_out: Sum,
    health: Mutex<Health>,
}

/// Whether messages get there.
#[derive(Default)]
struct Health {
    state: State,
    /// It has been told that they do not get there, or that they are refused.
    told_failing: bool,
    told_refused: bool,
    failures: u64,
    last_error: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Working,
    /// The last message did not get there.
    Failing,
    /// Flows were refused, and no message of flows was taken as a whole since.
    Refusing,
}

impl Tally {
    pub(super) fn new(backlog: Backlog) -> Self {
        Self {
            backlog,
            in_hand: Sum::default(),
            doubted: Sum::default(),
            sent: Sum::default(),
            refused: Sum::default(),
            lost: Sum::default(),
            left_out: Sum::default(),
            health: Mutex::default(),
        }
    }

    /// Nothing more comes than what is queued.
    pub(super) fn closes(&self) {
        self.backlog.leave();
    }

    /// Says what is in hand.
    pub(super) fn holds(&self, flows: RecordSum) {
        self.in_hand.set(flows);
    }

    /// These were sent, and the next message tells whether they were refused.
    pub(super) fn doubts(&self, flows: RecordSum) {
        self.doubted.set(flows);
    }

    /// What was doubted counts as sent.
    pub(super) fn trusts(&self) {
        self.sent.add(self.doubted.take());
    }

    pub(super) fn refuses_doubted(&self) {
        self.refused.add(self.doubted.take());
    }

    /// What cannot be sent any more. Nothing is in hand then.
    pub(super) fn loses(&self, flows: RecordSum) {
        self.in_hand.set(RecordSum::default());
        self.lost.add(flows);
    }

    /// Notes that a message does not get there. Returns whether that is to be told: once until a success.
    pub(super) fn failed(&self, error: &str) -> bool {
        let mut health = self.health();
        health.fails(error);
        !std::mem::replace(&mut health.told_failing, true)
    }

    /// Notes that the receiver does not take a message with these flows. Returns whether that is to be told: once until a
    /// success.
    pub(super) fn refuses(&self, flows: RecordSum, error: &str) -> bool {
        self.refuses_some(flows, error);
        !std::mem::replace(&mut self.health().told_refused, true)
    }

    /// Notes that the receiver takes a message, but not these flows of it.
    pub(super) fn refuses_some(&self, flows: RecordSum, error: &str) {
        self.refused.add(flows);
        let mut health = self.health();
        health.fails(error);
        health.state = State::Refusing;
    }

    /// The receiver refused flows, and has not taken all of a message since. That it takes something else says nothing then.
    pub(super) fn is_refusing(&self) -> bool {
        self.health().state == State::Refusing
    }

    /// Notes a success. Returns whether it is the first after a failure that was told.
    pub(super) fn succeeded(&self) -> bool {
        let mut health = self.health();
        health.state = State::Working;
        let was_told = health.told_failing || health.told_refused;
        (health.told_failing, health.told_refused) = (false, false);
        was_told
    }

    /// Without what the settings say: name, kind and address.
    pub(super) fn status(&self) -> OutputStatus {
        let mut queued = sum_of(self.backlog.queued());
        queued += self.in_hand.get();
        queued += self.doubted.get();
        let mut lost = sum_of(self.backlog.lost());
        lost += self.lost.get();
        let health = self.health();
        OutputStatus {
            failing: health.state != State::Working,
            failures: health.failures,
            last_error: health.last_error.clone(),
            queued: Some(queued),
            sent: Some(self.sent.get()),
            refused: Some(self.refused.get()),
            lost: Some(lost),
            left_out: Some(self.left_out.get()),
            ..OutputStatus::default()
        }
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

/// A sum that one task counts while others read it.
#[derive(Default)]
pub(super) struct Sum {
    records: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Sum {
    pub(super) fn add(&self, flows: RecordSum) {
        self.records.fetch_add(flows.records, Relaxed);
        self.packets.fetch_add(flows.packets, Relaxed);
        self.bytes.fetch_add(flows.bytes, Relaxed);
    }

    fn take(&self) -> RecordSum {
        let flows = self.get();
        self.set(RecordSum::default());
        flows
    }

    fn set(&self, flows: RecordSum) {
        self.records.store(flows.records, Relaxed);
        self.packets.store(flows.packets, Relaxed);
        self.bytes.store(flows.bytes, Relaxed);
    }

    pub(super) fn get(&self) -> RecordSum {
        RecordSum {
            records: self.records.load(Relaxed),
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

impl AddAssign for RecordSum {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl SubAssign for RecordSum {
    fn sub_assign(&mut self, other: Self) {
        self.records -= other.records;
        self.packets -= other.packets;
        self.bytes -= other.bytes;
    }
}

impl AddAssign<OutputStatus> for DepartedOutputs {
    fn add_assign(&mut self, output: OutputStatus) {
        self.outputs += 1;
        for (sum, more) in [
            (&mut self.queued, output.queued),
            (&mut self.sent, output.sent),
            (&mut self.refused, output.refused),
            (&mut self.lost, output.lost),
            (&mut self.left_out, output.left_out),
        ] {
            *sum.get_or_insert_default() += more.unwrap_or_default();
        }
    }
}

/// What these records report.
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

/// What this many of the records report, if all report the same: rounded down, and no more than there is.
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

fn sum_of(volume: Volume) -> RecordSum {
    RecordSum {
        records: volume.records,
        packets: volume.packets,
        bytes: volume.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
