//! Encodes the records of a scan as `FlowBatch` messages, in bytes that all consumers share.
//!
//! Fields that differ between consumers are left out. Protobuf merges concatenated messages, so the crate `hub` puts
//! those fields in front. Records are encoded without prost, so a flow costs no allocation. prost encodes everything else once a scan.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use agent_common::{HookAccount, Pair};
use bytes::{BufMut as _, Bytes, BytesMut};
use foldhash::fast::RandomState;
use prost::{Message as _, encoding::message};
use proto::{
    Account, Cgroup, DnsExchange, FlowBatch, Interface,
    batch::{
        Batch, Identity, MOST_HOSTS, RecordBuffer,
        fields::{CGROUPS, HOSTS, PROCESSES},
    },
    record::Record,
};
use serde::{Deserialize, Serialize};
use sys::clock;

use crate::names::Names;

/// The encoder closes a batch before its records exceed this size. The scan's own fields and the names of cgroups and
/// processes come on top: at most 33 bytes per interface, about 300 bytes per cgroup (at most 1.6 KB, see
/// [`MAX_CGROUP_PATH_BYTES`](proto::limits::MAX_CGROUP_PATH_BYTES)), and at most 80 bytes per process, two processes per
/// record. This stays far below [`MAX_BATCH_BYTES`](proto::limits::MAX_BATCH_BYTES).
const BATCH_LEN_BYTES: usize = 256 << 10;
/// The encoder also closes a batch once its records name this many cgroups. The last record may add one more.
const MOST_CGROUPS: usize = 500;
/// Room for the account, which closes the last batch of a scan.
const TRAILER_LEN_BYTES: usize = 4 << 10;

/// The length of a record takes at most two bytes.
const _: () = assert!(RecordBuffer::LEN_BYTES < 1 << 14);

/// Scan data that is known before the page is drained.
#[derive(Debug, Clone)]
pub struct ScanHeader {
    /// Counts from 1.
    pub scan_id: u64,
    pub window_start_unix_ns: u64,
    pub window_end_unix_ns: u64,
    /// Flows that a page can hold.
    pub capacity: u64,
    /// The kernel refused at least one flow in this window.
    pub refused_in_window: bool,
    /// The interfaces that records can name.
    pub interfaces: Arc<[Interface]>,
}

/// Scan data that is known once the page is drained.
#[derive(Debug, Clone, Copy)]
pub struct ScanTrailer<'a> {
    /// Flows that the page held.
    pub occupancy: u64,
    /// Flows in the replica after this scan.
    pub tracked: u64,
    /// The account of all hooks since the agent started.
    pub account: &'a HookAccount,
    /// The agent has detached and drained both pages.
    pub is_final: bool,
}

/// The values of `FlowBatch.report_interval_ns` and `FlowBatch.report_interval_asked`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct ReportInterval {
    ns: u64,
    is_asked: bool,
}

/// The values of `FlowBatch.sample_rate` and `FlowBatch.sample_rate_asked`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    pub rate: u32,
    pub is_asked: bool,
}

/// Encodes one scan after another: `begin`, `push` for each record, `finish`.
pub struct BatchEncoder {
    identity: Arc<Identity>,
    sampling: Sampling,
    reports: ReportInterval,
    /// The longest interval since the last scan. A packet that has waited this long is reported by the next scan.
    longest: ReportInterval,
    /// Names of the cgroups, processes and hosts in the records.
    names: Names,
    open: OpenBatch,
    record: RecordBuffer,
}

impl BatchEncoder {
    pub fn new(identity: Arc<Identity>) -> Self {
        Self {
            identity,
            sampling: Sampling::default(),
            reports: ReportInterval::default(),
            longest: ReportInterval::default(),
            names: Names::default(),
            open: OpenBatch::default(),
            record: RecordBuffer::default(),
        }
    }

    /// Sets the sampling rate that batches report: one flow in `rate` is counted; 0 means every flow.
    #[must_use]
    pub fn sampling(mut self, rate: u32) -> Self {
        self.sampling.rate = rate;
        self
    }

    pub fn sample_rate(&self) -> u32 {
        self.sampling.rate
    }

    /// Changes the sampling that batches report, from the next scan on.
    pub fn sample(&mut self, sampling: Sampling) {
        self.sampling = sampling;
    }

    /// Sets the report interval that batches report: the longest delay before a packet is reported.
    #[must_use]
    pub fn reporting(mut self, interval: Duration) -> Self {
        self.report_every(interval, false);
        self
    }

    /// How many ends of flows were first reported with only the id of their cgroup, without a name.
    pub fn nameless_ends(&self) -> u64 {
        self.open.nameless_ends
    }

    /// Adds the names of cgroups, processes and hosts to the batches.
    #[must_use]
    pub fn naming(self, names: Names) -> Self {
        Self { names, ..self }
    }

    /// Changes the report interval in every batch from the next scan on. `is_asked` says whether a collector asked for
    /// it. If the interval gets shorter, the next scan still reports the longer one.
    pub fn report_every(&mut self, interval: Duration, is_asked: bool) {
        self.reports = ReportInterval {
            ns: clock::nanos(interval),
            is_asked,
        };
        if self.reports.ns >= self.longest.ns {
            self.longest = self.reports;
        }
    }

    /// The report interval that the next scan reports.
    pub fn report_interval(&self) -> ReportInterval {
        self.longest
    }

    /// An encoder for another agent that had these settings.
    pub fn of_another(identity: Identity, sampling: Sampling, reports: ReportInterval) -> Self {
        let mut encoder = Self::new(Arc::new(identity));
        encoder.sampling = sampling;
        (encoder.reports, encoder.longest) = (reports, reports);
        encoder
    }

    /// Another encoder for the same agent, with the same settings.
    #[must_use]
    pub fn another(&self) -> Self {
        let mut another = Self::new(Arc::clone(&self.identity));
        another.sampling = self.sampling;
        (another.reports, another.longest) = (self.reports, self.longest);
        another.names.clone_from(&self.names);
        another
    }

    /// Starts a snapshot after this scan. A snapshot takes the place of a scan.
    pub fn begin_snapshot(&mut self, header: &ScanHeader) {
        self.start(header, true);
    }

    /// Starts a scan. Records pushed without a `finish` are discarded.
    pub fn begin(&mut self, header: &ScanHeader) {
        self.start(header, false);
    }

    fn start(&mut self, header: &ScanHeader, snapshot: bool) {
        let reports = self.longest;
        if !snapshot {
            self.longest = self.reports;
        }
        let head = FlowBatch {
            agent: Some((*self.identity).clone()),
            scan_id: header.scan_id,
            window_start_unix_ns: header.window_start_unix_ns,
            window_end_unix_ns: header.window_end_unix_ns,
            table_capacity: header.capacity,
            refused_in_window: header.refused_in_window,
            interfaces: header.interfaces.to_vec(),
            sample_rate: self.sampling.rate,
            sample_rate_asked: self.sampling.is_asked,
            report_interval_ns: reports.ns,
            report_interval_asked: reports.is_asked,
            snapshot,
            ..FlowBatch::default()
        };
        self.open.new_ends.in_snapshot = snapshot;
        self.open.head = head.encode_to_vec();
        self.open.scan_id = header.scan_id;
        self.open.start(0);
    }

    /// Appends a record. If the batch is full, sends it to `sink` first.
    #[inline]
    pub fn push(&mut self, record: &Record, sink: &mut impl FnMut(Batch)) {
        let encoded = self.record.write(record);
        self.open.make_room(encoded.len(), &self.names, sink);
        self.open.append(encoded);
        let ends = record.ends();
        let cgroups = ends.map(|end| end.cgroup_id.unwrap_or_default());
        if cgroups != [0; 2] {
            self.open.cgroups.add(cgroups);
            if record.delta() == record.total() {
                self.open.new_ends.add(cgroups);
            }
        }
        let processes = ends.map(|end| end.process_key.unwrap_or_default());
        if processes != [0; 2] {
            self.open.processes.add(processes);
        }
        let hosts = ends.map(|end| end.host_id.unwrap_or_default());
        if hosts != [0; 2] {
            self.open.hosts.add(hosts);
        }
        for delta in record.delta() {
            self.open.count(delta.pair());
        }
    }

    /// Appends a DNS exchange. If the batch is full, sends it to `sink` first. An exchange does not count as a record.
    pub fn push_exchange(&mut self, exchange: DnsExchange, sink: &mut impl FnMut(Batch)) {
        let field = FlowBatch {
            dns_exchanges: vec![exchange],
            ..FlowBatch::default()
        };
        let encoded = field.encode_to_vec();
        self.open.make_room(encoded.len(), &self.names, sink);
        self.open.body.put_slice(&encoded);
    }

    /// Ends the scan. Its last batch carries the account and goes to `sink` even if it has no records.
    pub fn finish(&mut self, trailer: &ScanTrailer<'_>, sink: &mut impl FnMut(Batch)) {
        let fields = FlowBatch {
            last_of_scan: true,
            table_occupancy: Some(trailer.occupancy),
            tracked_flows: Some(trailer.tracked),
            account: Some(Account {
                sample_rate: self.sampling.rate,
                ..Account::from_hook(trailer.account, trailer.is_final)
            }),
            ..FlowBatch::default()
        };
        self.open.append_names(&self.names);
        self.open.append_fields(&fields);
        sink(self.open.take(true));
        self.open.body.clear();
    }
}

/// The ids of one kind that the records of a batch name.
#[derive(Default)]
struct Named {
    all: HashSet<u64, RandomState>,
    last: [u64; 2],
}

impl Named {
    /// Adds the ids that a record names; 0 means none.
    fn add(&mut self, both: [u64; 2]) {
        // Consecutive records often name the same ids.
        if self.last != both {
            self.last = both;
            self.all.extend(both.into_iter().filter(|&one| one != 0));
        }
    }

    /// Takes the ids, sorted.
    fn take(&mut self) -> Vec<u64> {
        let mut all: Vec<_> = self.all.drain().collect();
        all.sort_unstable();
        all
    }

    fn clear(&mut self) {
        self.all.clear();
        self.last = [0; 2];
    }
}

/// Counts, per cgroup, the ends of flows that begin in this batch.
#[derive(Default)]
struct NewFlowEnds {
    ends: HashMap<u64, u64, RandomState>,
    last: [u64; 2],
    /// Flows with the ids in `last` that are not yet added to `ends`.
    flows: u64,
    /// A snapshot repeats flows whose ends were counted when they were first reported.
    in_snapshot: bool,
}

impl NewFlowEnds {
    fn add(&mut self, both: [u64; 2]) {
        if self.last != both {
            self.settle();
            self.last = both;
        }
        self.flows += 1;
    }

    fn settle(&mut self) {
        let flows = std::mem::take(&mut self.flows);
        if flows > 0 && !self.in_snapshot {
            for one in self.last.into_iter().filter(|&one| one != 0) {
                *self.ends.entry(one).or_default() += flows;
            }
        }
    }

    /// How many ends of flows began in this cgroup.
    fn ends_of(&self, id: u64) -> u64 {
        self.ends.get(&id).copied().unwrap_or_default()
    }

    fn clear(&mut self) {
        self.ends.clear();
        (self.last, self.flows) = ([0; 2], 0);
    }
}

/// Whether more than the id is known.
fn is_named(cgroup: &Cgroup) -> bool {
    !cgroup.path.is_empty() || !cgroup.unit.is_empty() || !cgroup.container_id.is_empty()
}

/// The batch that is being written.
#[derive(Default)]
struct OpenBatch {
    scan_id: u64,
    /// The fields that start every batch of this scan.
    head: Vec<u8>,
    index: u32,
    body: BytesMut,
    records: u32,
    delta: Pair,
    /// The cgroups that its records name.
    cgroups: Named,
    new_ends: NewFlowEnds,
    /// Of all batches so far.
    nameless_ends: u64,
    processes: Named,
    hosts: Named,
}

impl OpenBatch {
    fn start(&mut self, index: u32) {
        self.index = index;
        self.records = 0;
        self.delta = Pair::default();
        self.cgroups.clear();
        self.new_ends.clear();
        self.processes.clear();
        self.hosts.clear();
        self.body.clear();
        self.body
            .reserve(self.head.len() + BATCH_LEN_BYTES + TRAILER_LEN_BYTES);
        self.body.put_slice(&self.head);
        let index = FlowBatch {
            batch_index: index,
            ..FlowBatch::default()
        };
        self.append_fields(&index);
    }

    fn append_fields(&mut self, fields: &FlowBatch) {
        fields
            .encode(&mut self.body)
            .expect("the buffer grows as it is written");
    }

    /// Wraps like the kernel's counters.
    #[inline]
    fn count(&mut self, delta: Pair) {
        self.delta.packets = self.delta.packets.wrapping_add(delta.packets);
        self.delta.bytes = self.delta.bytes.wrapping_add(delta.bytes);
    }

    fn append_names(&mut self, known: &Names) {
        let body = &mut self.body;
        let ids = self.cgroups.take();
        self.new_ends.settle();
        if let Some(known) = &known.cgroups {
            known.lookup(&ids, &mut |cgroup| {
                if !is_named(cgroup) {
                    self.nameless_ends += self.new_ends.ends_of(cgroup.id);
                }
                message::encode(CGROUPS, cgroup, body);
            });
        }
        let keys = self.processes.take();
        if let Some(known) = &known.processes {
            known.lookup(&keys, &mut |process| {
                message::encode(PROCESSES, process, body);
            });
        }
        let ids = self.hosts.take();
        if let Some(known) = &known.hosts {
            known.lookup(&ids, &mut |host| message::encode(HOSTS, host, body));
        }
    }

    /// Closes the batch if it has no room for `len` more bytes.
    #[inline]
    fn make_room(&mut self, len: usize, names: &Names, sink: &mut impl FnMut(Batch)) {
        if !self.has_room(len) {
            self.append_names(names);
            sink(self.take(false));
            self.start(self.index + 1);
        }
    }

    fn has_room(&self, record_len: usize) -> bool {
        self.body.len() - self.head.len() + record_len <= BATCH_LEN_BYTES
            && self.cgroups.all.len() < MOST_CGROUPS
            && self.hosts.all.len() < MOST_HOSTS
    }

    #[inline]
    fn append(&mut self, record: &[u8]) {
        self.body.put_slice(record);
        self.records += 1;
    }

    /// Takes the batch. Copies a small one, so that a queue of small batches does not hold a large buffer for each.
    fn take(&mut self, last_of_scan: bool) -> Batch {
        let body = if self.body.len() < BATCH_LEN_BYTES / 2 {
            Bytes::copy_from_slice(&self.body)
        } else {
            self.body.split().freeze()
        };
        Batch {
            body,
            records: self.records,
            delta: self.delta,
            scan_id: self.scan_id,
            index: self.index,
            last_of_scan,
        }
    }
}

#[cfg(test)]
mod tests;
