//! The agent's work after a drain, from the entries of a page to the batches of a consumer, in the order of
//! `agent::scan`.

use std::{collections::BTreeSet, hint::black_box, mem, sync::Arc, time::Duration};

use agent_common::{FlowCounters, FlowKey, HookAccount, Senders};
use anyhow::Result;
use flows::{
    encoder::{BatchEncoder, ScanHeader, ScanTrailer},
    replica::{Replica, ReplicaSettings},
};
use proto::{
    Interface,
    batch::{Batch, Identity},
    record::Record,
};
use sys::clock::ScanClock;

use crate::profile::{Page, Profile, SCAN_BOOT_NS, TICK_NS};

/// The agent's default for `--max-tracked-flows`.
const MAX_TRACKED_FLOWS: usize = 1_000_000;
/// Half of the size at which the agent closes a batch.
const SHORT_BATCH_LEN_BYTES: usize = 128 << 10;
const CLOCK: ScanClock = ScanClock {
    boot_ns: SCAN_BOOT_NS,
    jiffies: SCAN_BOOT_NS / TICK_NS,
    tick_ns: TICK_NS,
    boot_to_unix_ns: 1_700_000_000_000_000_000,
    slept_ns: 0,
};

/// The replica and the encoder with the agent's default settings.
pub struct UserSpace {
    pub replica: Replica,
    encoder: BatchEncoder,
    account: HookAccount,
    interfaces: Arc<[Interface]>,
    consumer: Consumer,
    scans: u64,
}

/// A consumer that is one batch behind, so that the encoder never gets its last buffer back.
#[derive(Default)]
struct Consumer {
    last: Option<Batch>,
    delivered: Delivered,
}

/// A summary of the batches that a consumer received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivered {
    pub batches: u64,
    /// Batches shorter than half a full one, which the encoder copies out of its buffer.
    pub short_batches: u64,
    pub records: u64,
    pub encoded_bytes: u64,
}

impl Consumer {
    fn take(&mut self, batch: Batch) {
        let delivered = &mut self.delivered;
        delivered.batches += 1;
        delivered.short_batches += u64::from(batch.body.len() < SHORT_BATCH_LEN_BYTES);
        delivered.records += u64::from(batch.records);
        delivered.encoded_bytes += batch.body.len() as u64;
        self.last = Some(batch);
    }
}

/// The source of a cycle's entries: prepared ones, or a page of the kernel's table.
pub trait Source {
    /// Passes keys, counters and, if they are kept, senders to `sink`, as parallel slices. Returns the number of
    /// entries.
    fn drain(self, sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders])) -> Result<u64>;
}

impl Source for &Page {
    fn drain(self, mut sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders])) -> Result<u64> {
        sink(&self.keys, &self.counters, &[]);
        Ok(self.keys.len() as u64)
    }
}

impl Default for UserSpace {
    fn default() -> Self {
        let identity = Identity {
            agent_id: "flow-bench".into(),
            hostname: "host".into(),
            boot_id: "8c5d1c2e-5c5e-4c57-9d52-2f6f2a4a1b9e".into(),
            instance_id: "1f0e8a52-6a0b-4f3c-8d43-2f0d8b9a7c11".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..Identity::default()
        };
        Self {
            replica: Replica::new(ReplicaSettings {
                max_flows: MAX_TRACKED_FLOWS,
                idle_timeout: Duration::from_mins(1),
                linger: Duration::from_secs(5),
                report_interval: Duration::ZERO,
            }),
            encoder: BatchEncoder::new(Arc::new(identity)),
            account: HookAccount::default(),
            interfaces: Arc::new([Interface {
                ifindex: 2,
                name: "eth0".into(),
                netns: 4_026_531_840,
                ..Interface::default()
            }]),
            consumer: Consumer::default(),
            scans: 0,
        }
    }
}

impl UserSpace {
    /// Adds names for this profile's flows, and per-cgroup traffic sums.
    #[must_use]
    pub fn naming(mut self, profile: Profile) -> Self {
        let names = profile.names();
        if let Some(hosts) = names.hosts.clone() {
            self.replica.name_hosts(hosts);
        }
        self.replica.add_up_cgroups();
        self.encoder = self.encoder.naming(names);
        self
    }

    /// Inserts drained entries into the replica and ends the scan, without encoding.
    pub fn update(&mut self, page: &Page) {
        self.replica.begin_scan(CLOCK);
        self.replica
            .update(&page.keys, &page.counters, &mut |record| {
                black_box(record);
            });
        self.end_scan();
    }

    pub fn end_scan(&mut self) {
        self.replica.end_scan(&BTreeSet::new(), &mut |record| {
            black_box(record);
        });
    }

    /// The records of one scan of `page`.
    pub fn records(&mut self, page: &Page) -> Vec<Record> {
        let mut records = Vec::with_capacity(page.keys.len());
        let mut sink = |record: &Record| records.push(*record);
        self.replica.begin_scan(CLOCK);
        self.replica.update(&page.keys, &page.counters, &mut sink);
        self.replica.end_scan(&BTreeSet::new(), &mut sink);
        records
    }

    /// Encodes records into batches, and does nothing else.
    pub fn encode(&mut self, records: &[Record]) {
        self.begin();
        let Self {
            encoder, consumer, ..
        } = self;
        for record in records {
            encoder.push(record, &mut |batch| consumer.take(batch));
        }
        self.finish(records.len() as u64);
    }

    /// Everything after the drain: update, encode, end of the scan. Returns the number of entries in the source.
    pub fn cycle(&mut self, source: impl Source) -> Result<u64> {
        self.replica.begin_scan(CLOCK);
        self.begin();
        let Self {
            replica,
            encoder,
            consumer,
            ..
        } = self;
        let mut sink = |record: &Record| encoder.push(record, &mut |batch| consumer.take(batch));
        let occupancy = source.drain(|keys, counters, senders| {
            replica.update_with(keys, counters, senders, &mut sink);
        })?;
        replica.end_scan(&BTreeSet::new(), &mut sink);
        self.finish(occupancy);
        self.replica.take_by_cgroup().for_each(|sum| {
            black_box(sum);
        });
        Ok(occupancy)
    }

    fn begin(&mut self) {
        self.scans += 1;
        self.encoder.begin(&ScanHeader {
            scan_id: self.scans,
            window_start_unix_ns: 1,
            window_end_unix_ns: 2,
            capacity: 500_000,
            refused_in_window: false,
            interfaces: Arc::clone(&self.interfaces),
        });
    }

    fn finish(&mut self, occupancy: u64) {
        let trailer = ScanTrailer {
            occupancy,
            tracked: self.replica.len() as u64,
            account: &self.account,
            is_final: false,
        };
        self.encoder
            .finish(&trailer, &mut |batch| self.consumer.take(batch));
    }

    /// The last batch that the consumer received.
    pub fn last_batch(&self) -> Option<&Batch> {
        self.consumer.last.as_ref()
    }

    /// A summary of the batches received since the last call.
    pub fn take_delivered(&mut self) -> Delivered {
        mem::take(&mut self.consumer.delivered)
    }
}
