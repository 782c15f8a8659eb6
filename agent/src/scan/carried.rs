//! Takes in what earlier processes have counted.

use std::collections::BTreeSet;

use agent_common::{Counts, HookAccount, Pair, Reason};
use anyhow::Result;
use flows::{
    encoder::{BatchEncoder, Sampling, ScanHeader, ScanTrailer},
    replica::read_unreported,
};
use kernel::carry::Keep;
use sys::clock::{self, ScanClock};

use super::{Purpose, Scanner, hooks::mark, sink};
use crate::carry::Heritage;

/// What was taken over from earlier processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CarriedOver {
    pub processes: u64,
    pub flows: u64,
    /// Packets and bytes that these processes had counted and not drained.
    pub seen: Pair,
    /// Batches that were published once more, since it was not certain that all consumers had them.
    pub repeated_batches: u64,
    /// Packets and bytes that waited for their report interval: this process has reported them as the last scan of
    /// theirs.
    pub waiting: Pair,
    /// Processes some of whose flows could not be read.
    pub orphans: u64,
    /// Packets and bytes of these flows, as far as that is known. They are in no record.
    pub orphaned: Pair,
}

impl Scanner {
    /// Takes in what an earlier process has counted and not drained, as a scan of its own. No program of that process
    /// may still run.
    pub fn carry_over(&mut self, mut heritage: Heritage, keep: &Keep) -> Result<()> {
        self.kernel.pages.wait_for_programs()?;
        let has_other_rate = heritage.sample_rate() != self.sample_rates.current;
        if has_other_rate && self.replica.waiting() != Pair::default() {
            // All records of a batch have one rate.
            self.replica.report_all();
            self.run(Purpose::Scan)?;
        }
        let (scan_clock, set_by_ns) = self.clock()?;
        self.begin(scan_clock, set_by_ns);
        self.replica.note_missed_translations();
        for batch in heritage.take_batches() {
            self.out.publish(&batch);
            self.carried_over.repeated_batches += 1;
        }
        self.report_for(&heritage, scan_clock);
        if !heritage.is_readable() {
            self.give_up(&heritage);
        }
        if has_other_rate {
            self.replica.report_all();
        }
        let window_end_unix_ns = clock::unix_ns(scan_clock);
        self.encoder.sample(self.sampling_of(&heritage));
        let account = account_of(&heritage);
        let refused = account.not_inserted().packets != 0;
        let seen = account.get(Reason::Seen);
        self.account.merge(&account);
        self.departed.account.merge(&account);
        let mut interfaces = heritage.interfaces();
        let known = |one: &proto::Interface| {
            let mut own = self.interfaces.messages().iter();
            own.any(|own| (own.netns, own.ifindex) == (one.netns, one.ifindex))
        };
        interfaces.retain(|one| !known(one));
        interfaces.extend_from_slice(self.interfaces.messages());
        let window_unix_ns = heritage.window_end_unix_ns()..window_end_unix_ns;
        let encode = self.begin_batches(window_unix_ns, refused, interfaces.into());
        let (mut flows, mut sum) = (0, Pair::default());
        for page in heritage.undrained() {
            let Self {
                replica,
                encoder,
                out,
                drained,
                ..
            } = self;
            let mut sink = sink(encoder, out, encode);
            flows += heritage.read(page, |keys, counters, senders| {
                sum += drained.add(keys, counters);
                replica.update_with(keys, counters, senders, &mut sink);
            })?;
        }
        self.account.add(Reason::Flows, sum.packets, sum.bytes);
        self.departed
            .account
            .add(Reason::Flows, sum.packets, sum.bytes);
        // Its account is that of departed interfaces, too.
        self.drained.merge_into(&mut self.traffic, &mut []);
        self.bound_waiting();
        let out = &self.out;
        out.hub.set_accounts(|| self.accounts(window_end_unix_ns));
        self.end(Purpose::Scan, encode, flows, &BTreeSet::new());
        if let Some(checkpoints) = &mut self.out.checkpoints {
            checkpoints.drained(&heritage);
        }
        self.commit(&[], window_end_unix_ns);
        keep.forget(&heritage.instance, &heritage.files);
        let carried = &mut self.carried_over;
        carried.processes += u64::from(heritage.is_readable());
        carried.flows += flows;
        carried.seen += seen;
        tracing::info!(
            instance = heritage.instance,
            flows,
            packets = seen.packets,
            bytes = seen.bytes,
            waiting_packets = heritage.waiting().packets,
            repeated_batches = carried.repeated_batches,
            "carried over what an earlier process had counted since its last scan"
        );
        Ok(())
    }

    /// Notes that the tables of an earlier process cannot be read.
    fn give_up(&mut self, heritage: &Heritage) {
        let seen = heritage.seen();
        self.replica.note_gap();
        self.note_orphan(seen.unwrap_or_default());
        tracing::warn!(
            instance = heritage.instance,
            packets = seen.map(|seen| seen.packets),
            bytes = seen.map(|seen| seen.bytes),
            "an earlier process of another version has counted these packets since its last scan, in tables that this version \
             cannot read: they are in no record"
        );
    }

    fn note_orphan(&mut self, packets_and_bytes: Pair) {
        self.carried_over.orphans += 1;
        self.carried_over.orphaned += packets_and_bytes;
    }

    /// Reports the flows that waited for their report interval when their process was killed, as one more scan of that
    /// process, whose account already has them.
    fn report_for(&mut self, heritage: &Heritage, scan_clock: ScanClock) {
        let waiting = heritage.waiting();
        if waiting == Pair::default() {
            return;
        }
        let flows = heritage.unreported_flows().unwrap_or_default();
        let scan_clock = ScanClock {
            boot_to_unix_ns: heritage.last_scan().boot_to_unix_ns,
            ..scan_clock
        };
        let mut readable = Pair::default();
        let is_readable = read_unreported(&flows, scan_clock, &mut |record| {
            let counts = record.delta().map(Counts::pair);
            readable = [readable, counts[0], counts[1]].into_iter().sum();
        });
        let has_consumers = self.out.hub.has_consumers();
        if is_readable.is_err() || readable != waiting || !has_consumers {
            self.note_orphan(waiting);
            tracing::warn!(
                instance = heritage.instance,
                packets = waiting.packets,
                bytes = waiting.bytes,
                has_consumers,
                "an earlier process had counted these packets, but was killed before they were due for a report \
                 (--report-interval), and they cannot be reported now: they are in no record"
            );
            return;
        }
        let last = heritage.last_scan();
        let identity = heritage.identity().clone();
        let sampling = self.sampling_of(heritage);
        let mut encoder = BatchEncoder::of_another(identity, sampling, last.report_interval);
        let window_end_unix_ns = heritage.window_end_unix_ns();
        encoder.begin(&ScanHeader {
            scan_id: last.id + 1,
            window_start_unix_ns: window_end_unix_ns,
            window_end_unix_ns,
            capacity: last.table_capacity,
            refused_in_window: false,
            interfaces: heritage.interfaces().into(),
        });
        {
            let mut sink = sink(&mut encoder, &mut self.out, true);
            read_unreported(&flows, scan_clock, &mut sink).expect("they were read before");
        }
        let trailer = ScanTrailer {
            occupancy: 0,
            tracked: 0,
            account: &last.account(),
            is_final: false,
        };
        encoder.finish(&trailer, &mut |batch| self.out.publish(&batch));
        self.carried_over.waiting += waiting;
    }

    fn sampling_of(&self, heritage: &Heritage) -> Sampling {
        let rate = heritage.sample_rate();
        Sampling {
            rate,
            is_asked: rate != self.sample_rates.own,
        }
    }
}

/// The packets of an account that its process has not drained. None of them is in a flow yet.
fn account_of(heritage: &Heritage) -> HookAccount {
    let mut account = HookAccount::default();
    if heritage.is_readable() {
        for page in [0, 1] {
            account.merge(&heritage.account(page).unwrap_or_default());
        }
    }
    account.counters[Reason::Flows as usize] = Pair::default();
    // Which of its hooks saw a packet is not known here, so all of them have the mark.
    mark(
        &mut account,
        heritage.is_inexact(),
        heritage.are_tags_unknown(),
    );
    account
}
