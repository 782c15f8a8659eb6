//! One scan: flips the page, drains the idle page and its account into the replica, and publishes the records and the
//! account to the hub as batches.
//!
//! A scan blocks (on a grace period and on system calls), so it runs on its own thread; see [`crate::agent`]. It never
//! waits for another process: anything that needs the RTNL lock, such as netlink, is done elsewhere. The final scan
//! waits for detaching, [`DETACH_PATIENCE`] at most.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_common::{HookAccount, InterfaceId, Pair, Reason};
use anyhow::{Context as _, Result};
use enrich::kind::{Kind, Scanned};
use flows::{
    encoder::{BatchEncoder, Sampling, ScanHeader, ScanTrailer},
    replica::{Replica, came_through_a_tunnel},
};
use hub::Hub;
use kernel::{
    attach::{Absent, Attachments, Left, NotCounted, TakenOver},
    interfaces::Selection,
    links::tags::TagWatch,
    load::Kernel,
    rule_maps::PlacedRules,
};
use proto::{
    AgentStatus,
    accounts::{self, AccountOfHook, Accounts, Series},
    batch::Batch,
    record::Record,
};
use server::scanner_requests::{RequestError, Snapshot};
use sys::{
    clock::{self, ScanClock, Sleep},
    log_limit::LogLimit,
};

use crate::carry::{Checkpoint, Checkpoints, LastScan, MOST_UNREPORTED_FLOWS};

mod carried;
mod durations;
mod hooks;
mod interfaces;
mod lease;
mod snapshot;
mod traffic;

pub use carried::CarriedOver;
pub use durations::Durations;
pub use hooks::HookState;
pub use interfaces::{Interfaces, Watched};
pub use lease::Lease;
use snapshot::Taking;
pub use traffic::ByProtocol;
use traffic::Drained;

/// Statistics of all scans so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanStats {
    pub count: u64,
    /// How many of `count` started early because a page was filling up.
    pub early: u64,
    pub last_duration_ns: u64,
    pub last_flip_wait_ns: u64,
    pub cpu_ns: u64,
    /// Flows on the page that the last scan drained.
    pub occupancy: u64,
    /// The most flows that a page held at a scan.
    pub high_water: u64,
    pub durations: Durations,
    pub flip_waits: Durations,
    /// How late the scans that the interval triggered began.
    pub lateness: Durations,
    /// For how long the programs have counted nothing, since their lease was over.
    pub lapsed_ns: u64,
}

/// Interfaces that have left. Their hooks are not in [`Scanner::hooks`].
#[derive(Clone, Default)]
pub struct Departed {
    pub interfaces: u64,
    /// The sum of their accounts.
    pub account: HookAccount,
}

/// Sampling rates: a rate of N counts one flow in N; 0 counts every flow.
#[derive(Clone, Copy)]
pub struct SampleRates {
    /// The rate in the settings.
    pub own: u32,
    /// The rate of the packets that the last scan drained.
    pub scanned: u32,
    /// The rate that the programs apply.
    pub current: u32,
    /// The rate that the programs apply from the next scan on.
    next: u32,
}

impl SampleRates {
    fn all(rate: u32) -> Self {
        Self {
            own: rate,
            scanned: rate,
            current: rate,
            next: rate,
        }
    }
}

/// How long the final scan waits for the programs to be detached. Other processes may hold the locks that detaching
/// needs for any length of time, and until the scan goes on, packets arrive and nothing is drained.
pub const DETACH_PATIENCE: Duration = Duration::from_secs(2);

/// Owns the kernel side and the replica. One task at a time owns the scanner.
pub struct Scanner {
    kernel: Kernel,
    attachments: Attachments,
    /// Keyed by network namespace.
    tags: BTreeMap<u32, TagWatch>,
    replica: Replica,
    enrichment: Vec<Box<dyn Kind>>,
    /// A snapshot in progress; below it, one that a scan had to complete.
    taking: Option<Taking>,
    completed: Option<Result<Snapshot, RequestError>>,
    encoder: BatchEncoder,
    lease: Lease,
    sample_rates: SampleRates,
    out: Out,
    interfaces: Interfaces,
    pub hooks: Vec<HookState>,
    pub departed: Departed,
    /// The sum over all hooks, including those of departed interfaces. Its `flows` counts what was drained, not what
    /// the programs report.
    pub account: HookAccount,
    /// Packets drained from all interfaces, departed ones included: ingress, then egress.
    pub traffic: [ByProtocol; 2],
    drained: Drained,
    pub stats: ScanStats,
    pub carried_over: CarriedOver,
    /// For departed interfaces, and for interfaces that are not watched.
    series: [Series; 2],
    window_start_unix_ns: u64,
    sleep: Sleep,
    last_clock: ScanClock,
    refusals: LogLimit,
    unknown_interfaces: LogLimit,
    hidden_tags: LogLimit,
}

/// The parts of a [`Scanner`].
pub struct ScannerParts {
    pub kernel: Kernel,
    pub attachments: Attachments,
    pub replica: Replica,
    /// Created with the sample rate of the settings.
    pub encoder: BatchEncoder,
    /// The programs have it.
    pub lease: Lease,
    pub hub: Hub,
    pub interfaces: Interfaces,
    /// Keyed by network namespace.
    pub tags: BTreeMap<u32, TagWatch>,
    /// Has supplied the replica and the encoder.
    pub enrichment: Vec<Box<dyn Kind>>,
    /// Set if a successor may continue.
    pub checkpoints: Option<Checkpoints>,
}

/// Where batches go.
struct Out {
    hub: Hub,
    checkpoints: Option<Checkpoints>,
}

impl Out {
    /// Publishes a batch, or holds it back until the scan is committed.
    fn publish(&mut self, batch: &Batch) {
        match &mut self.checkpoints {
            Some(checkpoints) => checkpoints.hold(batch),
            None => self.hub.publish(batch),
        }
    }
}

/// What a scan is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Scan,
    /// The last one of this process. The programs go on counting for the next one.
    HandOver,
    /// The last one, with the programs detached.
    End,
}

impl Scanner {
    pub fn new(mut parts: ScannerParts) -> Result<Self> {
        parts.replica.follow_rules(parts.kernel.rules.divide_flows);
        let clock = clock::at(parts.kernel.clocks()?, 0);
        Ok(Self {
            kernel: parts.kernel,
            attachments: parts.attachments,
            tags: parts.tags,
            replica: parts.replica,
            enrichment: parts.enrichment,
            taking: None,
            completed: None,
            sample_rates: SampleRates::all(parts.encoder.sample_rate()),
            encoder: parts.encoder,
            lease: parts.lease,
            out: Out {
                hub: parts.hub,
                checkpoints: parts.checkpoints,
            },
            carried_over: CarriedOver::default(),
            interfaces: parts.interfaces,
            hooks: Vec::new(),
            departed: Departed::default(),
            account: HookAccount::default(),
            traffic: [ByProtocol::default(); 2],
            drained: Drained::default(),
            stats: ScanStats::default(),
            series: [Series::beginning(clock::unix_ns(clock)); 2],
            window_start_unix_ns: clock::unix_ns(clock),
            sleep: Sleep::so_far(),
            last_clock: clock,
            refusals: LogLimit::default(),
            unknown_interfaces: LogLimit::default(),
            hidden_tags: LogLimit::default(),
        })
    }

    /// Drains what the programs counted since the last scan. `due` is when the interval ended.
    pub fn scan(&mut self, due: Instant) -> Result<()> {
        self.stats.lateness.note(due.elapsed());
        self.run(Purpose::Scan)
    }

    /// Scans before the interval is over.
    pub fn scan_early(&mut self) -> Result<()> {
        self.stats.early += 1;
        self.run(Purpose::Scan)
    }

    /// Detaches the programs. If that takes longer than [`DETACH_PATIENCE`], switches them off first; dropping the
    /// scanner then detaches them. Drains both pages and ends every flow.
    pub fn finish(&mut self) -> Result<()> {
        self.run(Purpose::End)
    }

    /// Whether the programs can go on counting for a successor.
    pub fn can_leave(&self) -> bool {
        self.out.checkpoints.is_some() && self.attachments.can_leave()
    }

    /// Scans a last time and ends every flow, but leaves the programs counting: see [`leave`](Self::leave).
    pub fn hand_over(&mut self) -> Result<()> {
        self.run(Purpose::HandOver)
    }

    /// Ends counting, or leaves it to a successor.
    pub fn end_hooks(self, leaves: bool) {
        if leaves {
            self.leave();
        } else {
            self.detach();
        }
    }

    /// Ends without detaching anything, after [`hand_over`](Self::hand_over). The successor drains what is counted from
    /// then on.
    fn leave(self) {
        /// Longer than the outputs may take.
        const PATIENCE: Duration = Duration::from_secs(6);
        let is_left = self.attachments.leave();
        if let Some(checkpoints) = &self.out.checkpoints {
            checkpoints.wait_for_delivery(PATIENCE);
        }
        if !is_left {
            tracing::warn!(
                "the programs could not be left attached: packets between now and the next start are not counted"
            );
        }
    }

    /// Detaches everything, and removes what a successor would take over.
    fn detach(self) {
        drop(self.attachments);
        if let Some(checkpoints) = self.out.checkpoints {
            checkpoints.end();
        }
    }

    fn run(&mut self, purpose: Purpose) -> Result<()> {
        let is_last = purpose != Purpose::Scan;
        let is_final = purpose == Purpose::End;
        let started = Instant::now();
        let cpu_started = clock::thread_cpu();
        let (scan_clock, set_by_ns) = self.clock()?;
        self.renew_lease(scan_clock, purpose);

        // The programs have already forgotten these interfaces, so everything counted there is on the pages that this
        // scan drains.
        let left = self.attachments.left();
        for state in &mut self.hooks {
            state.is_scanned = state.after_attach.is_some();
        }
        self.interfaces.read_before_flip()?;
        let idle = if is_final {
            if !self.attachments.detach_few(DETACH_PATIENCE) {
                tracing::warn!(
                    after = ?DETACH_PATIENCE,
                    "the kernel has not detached the programs yet: they are switched off first"
                );
            }
            // Once this returns, any program that was running while it was detached has finished with its page.
            self.kernel.pages.stop()?.to_vec()
        } else if is_last {
            vec![self.kernel.pages.flip()?]
        } else {
            vec![self.kernel.pages.flip_sampling(self.sample_rates.next)?]
        };
        let flip_wait = started.elapsed();
        self.stats.last_flip_wait_ns = clock::nanos(flip_wait);
        self.stats.flip_waits.note(flip_wait);
        self.begin(scan_clock, set_by_ns);
        self.note_sampling(is_last);
        self.note_progress();
        let left_ids = left.iter().map(|left| left.id).collect();
        self.interfaces.read_after_flip(&left_ids)?;
        self.look_for_hidden_tags(&left);
        let mut refused = false;
        for &page in &idle {
            refused |= self.take_account(page)?;
        }
        if refused {
            self.replica.note_gap();
        }
        let window_end_unix_ns = clock::unix_ns(scan_clock);
        let window_unix_ns = self.window_start_unix_ns..window_end_unix_ns;
        let interfaces = Arc::clone(self.interfaces.messages());
        let encode = self.begin_batches(window_unix_ns, refused, interfaces);

        // Draining a page may resize it.
        let has_grown = self.kernel.pages.room_flows() >= self.kernel.pages.capacity();
        let mut occupancy = 0;
        for &page in &idle {
            occupancy += self.read(page, encode)?;
        }
        self.drained.merge_into(&mut self.traffic, &mut self.hooks);
        if refused && let Some(windows) = self.refusals.event() {
            tracing::warn!(
                scan = self.stats.count,
                windows,
                "the flow table refused packets in this window: raise {}, or lower --scan-interval \
                 or --early-scan",
                if has_grown {
                    "--max-flows"
                } else {
                    "--min-flows, since the page had not grown yet"
                }
            );
        }
        self.bound_waiting();
        let out = &self.out;
        out.hub.set_accounts(|| self.accounts(window_end_unix_ns));
        self.end(purpose, encode, occupancy, &left_ids);
        self.commit(&idle, window_end_unix_ns);
        for page in idle {
            self.kernel.pages.clear(page)?;
        }
        if let Some(checkpoints) = &self.out.checkpoints {
            checkpoints.cleared()?;
        }
        self.forget(&left, &left_ids)?;
        self.window_start_unix_ns = window_end_unix_ns;
        self.stats.occupancy = occupancy;
        self.stats.high_water = self.stats.high_water.max(occupancy);
        let duration = started.elapsed();
        self.stats.last_duration_ns = clock::nanos(duration);
        self.stats.durations.note(duration);
        self.stats.cpu_ns += clock::nanos(clock::thread_cpu().saturating_sub(cpu_started));
        let missing = self.account.missing();
        if missing != Pair::default() {
            tracing::error!(?missing, "the account does not close: please report this");
        }
        Ok(())
    }

    fn begin(&mut self, scan_clock: ScanClock, set_by_ns: i64) {
        if self.taking.is_some() {
            self.complete_snapshot();
        }
        // Only after the snapshot: it carries the times of the scan that it shows.
        self.follow_set_clock(set_by_ns);
        self.replica.begin_scan(scan_clock);
    }

    /// Numbers the scan. Returns whether anybody wants its batches.
    fn begin_batches(
        &mut self,
        window_unix_ns: Range<u64>,
        refused_in_window: bool,
        interfaces: Arc<[proto::Interface]>,
    ) -> bool {
        self.stats.count += 1;
        let encode = self.out.hub.has_consumers();
        if encode {
            self.encoder.begin(&ScanHeader {
                scan_id: self.stats.count,
                window_start_unix_ns: window_unix_ns.start,
                window_end_unix_ns: window_unix_ns.end,
                capacity: u64::from(self.kernel.pages.capacity()),
                refused_in_window,
                interfaces,
            });
        }
        encode
    }

    /// Everything that this scan drains was counted at one rate, which applies to all of its records. If the next scan
    /// has another rate, every pending report goes out with this one.
    fn note_sampling(&mut self, is_last: bool) {
        let rates = &mut self.sample_rates;
        rates.scanned = rates.current;
        if !is_last {
            rates.current = rates.next;
        }
        self.encoder.sample(Sampling {
            rate: rates.scanned,
            is_asked: rates.scanned != rates.own,
        });
        if rates.current != rates.scanned {
            self.replica.report_all();
            self.replica.note_gap();
        }
    }

    /// Reads the clocks. Also returns by how much Unix time was set since the last scan, in nanoseconds.
    fn clock(&mut self) -> Result<(ScanClock, i64)> {
        let sleep = Sleep::so_far();
        let slept_ns = self.sleep.until(sleep);
        self.sleep = sleep;
        let scan_clock = clock::at(self.kernel.clocks()?, slept_ns);
        let last_clock = mem::replace(&mut self.last_clock, scan_clock);
        Ok((scan_clock, clock::set_by_ns(last_clock, scan_clock)))
    }

    /// Shifts the start of the window by what Unix time was set, so that the window keeps its true length.
    fn follow_set_clock(&mut self, by_ns: i64) {
        if by_ns == 0 {
            return;
        }
        self.window_start_unix_ns = self.window_start_unix_ns.saturating_add_signed(by_ns);
        self.replica.follow_set_clock(by_ns);
        let window_start = self.window_start_unix_ns;
        let sums = [self.departed.account, self.others()];
        for (series, sum) in self.series.iter_mut().zip(&sums) {
            series.follow_set_clock(window_start, sum);
        }
        for state in &mut self.hooks {
            state.series.follow_set_clock(window_start, &state.account);
        }
        tracing::warn!(
            seconds = by_ns as f64 / 1e9,
            "the system's clock was set: records have the new time from here on, also for the beginning of flows \
             that records had before"
        );
    }

    /// Reports all that waits if the ledger would become too long.
    fn bound_waiting(&mut self) {
        let is_too_long = self.replica.waiting_flows() > MOST_UNREPORTED_FLOWS;
        if is_too_long && self.out.checkpoints.is_some() {
            self.replica.report_all();
        }
    }

    /// Writes to the ledger what this scan read, and publishes its batches. `pages` are those that were read.
    fn commit(&mut self, pages: &[u32], window_end_unix_ns: u64) {
        let Self {
            kernel,
            out: Out {
                hub, checkpoints, ..
            },
            interfaces,
            hooks,
            sample_rates,
            replica,
            encoder,
            stats,
            account,
            last_clock,
            ..
        } = self;
        if let Some(checkpoints) = checkpoints {
            let checkpoint = Checkpoint {
                pages,
                is_inexact: hooks.iter().any(|state| state.hook.is_inexact()),
                are_tags_unknown: hooks.iter().any(|state| state.hook.tags_unknown),
                window_end_unix_ns,
                sample_rate: sample_rates.current,
                interfaces: interfaces.messages(),
                lease_jiffies: kernel.pages.lease_jiffies(),
                last_scan: LastScan::new(
                    stats.count,
                    kernel.pages.capacity().into(),
                    encoder.report_interval(),
                    last_clock.boot_to_unix_ns,
                    replica.waiting(),
                    account,
                ),
                replica: Some(replica),
            };
            checkpoints.commit(kernel, &checkpoint, hub);
        }
    }

    fn read(&mut self, page: u32, encode: bool) -> Result<u64> {
        let Self {
            kernel,
            replica,
            encoder,
            out,
            account,
            drained,
            enrichment,
            ..
        } = self;
        let mut sum = Pair::default();
        let mut sink = sink(encoder, out, encode);
        for kind in enrichment {
            // The flows count even without it.
            if let Err(error) = kind.drain(page, kernel, replica) {
                tracing::warn!("{error:#}");
            }
        }
        let Kernel { pages, outers, .. } = kernel;
        let count = pages
            .read(page, |keys, counters, senders| {
                sum += drained.add(keys, counters);
                if outers.are_kept() {
                    for (key, counters) in keys.iter().zip(counters) {
                        if came_through_a_tunnel(key) {
                            replica.note_outer(key, counters, || outers.get(key));
                        }
                    }
                }
                replica.update_with(keys, counters, senders, &mut sink);
            })
            .context("read the flow table")?;
        account.add(Reason::Flows, sum.packets, sum.bytes);
        Ok(count)
    }

    /// Ends flows that have timed out and flows of interfaces that have left.
    fn end(
        &mut self,
        purpose: Purpose,
        encode: bool,
        occupancy: u64,
        left: &BTreeSet<InterfaceId>,
    ) {
        let Self {
            replica,
            encoder,
            out,
            account,
            enrichment,
            last_clock,
            ..
        } = self;
        {
            let mut sink = sink(encoder, out, encode);
            match purpose {
                Purpose::Scan => replica.end_scan(left, &mut sink),
                Purpose::HandOver | Purpose::End => replica.finish(&mut sink),
            }
        }
        for kind in enrichment {
            for exchange in kind.end_scan(last_clock.boot_ns, replica) {
                if encode {
                    let exchange = exchange.into_message(*last_clock);
                    encoder.push_exchange(exchange, &mut |batch| out.publish(&batch));
                }
            }
        }
        if encode {
            let trailer = ScanTrailer {
                occupancy,
                tracked: replica.len() as u64,
                account,
                is_final: purpose == Purpose::End,
            };
            encoder.finish(&trailer, &mut |batch| out.publish(&batch));
        }
    }

    /// Accounts by interface and direction.
    fn accounts(&self, until_unix_ns: u64) -> Accounts {
        let hooks = self.hooks.iter().filter_map(|state| {
            let watched = self.interfaces.watched(state.hook.slot())?;
            Some(AccountOfHook {
                interface: self.interfaces.message(watched),
                direction: state.hook.direction,
                since_unix_ns: state.series.since_unix_ns,
                account: state.series.growth(&state.account),
            })
        });
        let [departed, others] = &self.series;
        Accounts {
            since_unix_ns: departed.since_unix_ns,
            window_start_unix_ns: self.window_start_unix_ns,
            until_unix_ns,
            hooks: hooks.collect(),
            departed: departed.growth(&self.departed.account),
            others: others.growth(&self.others()),
        }
    }

    /// What our programs saw on interfaces that are not watched.
    fn others(&self) -> HookAccount {
        let hooks = self.hooks.iter().map(|state| &state.account);
        accounts::others(&self.account, &self.departed.account, hooks)
    }

    /// Forgets interfaces that have been drained completely.
    fn forget(&mut self, left: &[Left], left_ids: &BTreeSet<InterfaceId>) -> Result<()> {
        if !left.is_empty() {
            self.kernel.fragments.forget(left_ids)?;
        }
        for &Left { slot, why, .. } in left {
            let is_of_it = |state: &mut HookState| state.hook.slot() == slot as usize;
            for state in self.hooks.extract_if(.., is_of_it) {
                self.departed.account.merge(&state.account);
            }
            self.departed.interfaces += u64::from(self.interfaces.watched(slot as usize).is_some());
            self.interfaces.forget(slot as usize, why);
        }
        self.attachments.settle(left);
        Ok(())
    }

    /// Starts to change the counted interfaces to this selection. Scans go on meanwhile. The future resolves when the
    /// change is complete, and never if the agent ends first.
    pub fn select(&self, selection: &Selection) -> impl Future<Output = ()> + Send + use<> {
        self.attachments.select(selection)
    }

    /// Selected interfaces that are not counted.
    pub fn not_counted(&self) -> NotCounted {
        self.attachments.not_counted()
    }

    /// Selected names that match no interface.
    pub fn absent(&self) -> Absent {
        self.attachments.absent()
    }

    /// Switches the programs to a set of filter rules. On failure the previous set stays.
    pub fn follow(&mut self, rules: PlacedRules) -> Result<()> {
        self.kernel.follow(rules)?;
        self.replica.follow_rules(rules.divide_flows);
        Ok(())
    }

    /// Changes when flows end, from the next scan on.
    pub fn keep_flows_for(&mut self, idle_timeout: Duration, linger: Duration) {
        self.replica.keep_flows_for(idle_timeout, linger);
    }

    /// Changes how often a living flow is reported. `is_asked` if the interval does not come from the settings.
    pub fn report_every(&mut self, interval: Duration, is_asked: bool) {
        self.replica.report_every(interval);
        self.encoder.report_every(interval, is_asked);
    }

    /// Counts one flow in `rate` from the next scan on; 0 is every flow.
    pub fn sample(&mut self, rate: u32) {
        self.sample_rates.next = rate;
    }

    pub fn sample_rates(&self) -> SampleRates {
        self.sample_rates
    }

    pub fn filter_rules(&self) -> u32 {
        self.kernel.rules.rules
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Adds what the kinds of enrichment have to say.
    pub fn report_enrichment(&self, status: &mut AgentStatus) {
        let scanned = Scanned {
            kernel: &self.kernel,
            replica: &self.replica,
            encoder: &self.encoder,
        };
        for kind in &self.enrichment {
            kind.report(&scanned, status);
        }
    }

    /// The links that were taken over from earlier processes.
    pub fn taken_over_links(&self) -> TakenOver {
        self.attachments.taken_over()
    }

    pub fn interfaces(&self) -> &Interfaces {
        &self.interfaces
    }

    pub fn capacity(&self) -> u32 {
        self.kernel.pages.capacity()
    }

    /// How many flows a page holds at its current size.
    pub fn table_room_flows(&self) -> u32 {
        self.kernel.pages.room_flows()
    }

    /// How many flows have gone to the maps behind the pages.
    pub fn behind_flows(&self) -> u64 {
        self.kernel.pages.behind_flows()
    }

    /// The number of the page that the programs fill.
    pub fn active_page(&self) -> u32 {
        self.kernel.pages.active_number()
    }

    pub fn kernel_memory_bytes(&self) -> u64 {
        self.kernel.kernel_memory_bytes()
    }
}

fn sink<'a>(
    encoder: &'a mut BatchEncoder,
    out: &'a mut Out,
    encode: bool,
) -> impl FnMut(&Record) + 'a {
    move |record| {
        if encode {
            encoder.push(record, &mut |batch| out.publish(&batch));
        }
    }
}
