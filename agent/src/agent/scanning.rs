//! The agent's main loop. It owns the scanner and handles requests one at a time.

use std::time::Duration;

use agent_common::Reason;
use anyhow::{Context as _, Result};
use exporters::{Outputs, Throttle};
use hub::Hub;
use kernel::attach::Reports;
use server::scanner_requests::{ScannerRequest, SnapshotBytes};
use sys::{log_limit::LogLimit, process_memory};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinSet, spawn_blocking},
    time::{Instant, timeout},
};

use super::{
    pending_requests::{PendingRequests, STEP},
    wakes::{Wake, Wakes},
};
use crate::{
    carry::Earlier,
    changes::{Change, Request, Times},
    scan::Scanner,
    service_manager::{self, Watchdog},
    terminal,
};

/// How long a client that changes the selection waits until the change is complete. Another process may hold the lock
/// that each attachment takes.
const SELECTION_PATIENCE: Duration = Duration::from_mins(1);

/// The main loop's inputs.
pub(super) struct Scanning {
    pub requests: mpsc::Receiver<Request>,
    pub scanner_requests: mpsc::Receiver<ScannerRequest>,
    pub snapshot_bytes: SnapshotBytes,
    pub hub: Hub,
    /// The times in the settings.
    pub times: Times,
    /// Collectors behind these may ask for fewer reports or a lower sample rate.
    pub outputs: Outputs,
    pub throttle_log: ThrottleLog,
    pub wakes: Wakes,
    pub reports: Reports,
    /// Fed between requests, so a scan that hangs starves it.
    pub watchdog: Watchdog,
    /// What earlier processes have counted, until all hooks are attached.
    pub earlier: Earlier,
    /// Selection changes in progress, each with the client that waits for it.
    pub selecting: JoinSet<oneshot::Sender<Result<()>>>,
}

/// A change that succeeded or was refused.
struct Made {
    done: oneshot::Sender<Result<()>>,
    outcome: Result<()>,
}

impl Made {
    fn send_outcome(self) {
        // The client may be gone.
        let _ = self.done.send(self.outcome);
    }
}

/// Logs when collectors start or stop asking for other values than the settings have.
#[derive(Default)]
pub(super) struct ThrottleLog {
    /// The values last logged, beyond the settings.
    told: Throttle,
    intervals: LogLimit,
    rates: LogLimit,
}

/// How many changes to log, including this one; `None` if the limit holds the line back.
fn changes(log: &mut LogLimit, is_change: bool) -> Option<u64> {
    if is_change { log.event() } else { log.rest() }
}

impl ThrottleLog {
    fn log_change(&mut self, own: Throttle, in_force: Throttle) {
        let beyond = in_force.beyond(own);
        let before = std::mem::replace(&mut self.told, beyond);
        if let Some(changes) = changes(
            &mut self.intervals,
            before.report_interval != beyond.report_interval,
        ) {
            let report_interval = in_force.report_interval;
            if beyond.report_interval.is_zero() {
                tracing::info!(
                    ?report_interval,
                    changes,
                    "no collector asks for fewer reports anymore: back to the settings"
                );
            } else {
                tracing::info!(
                    ?report_interval,
                    of_the_settings = ?own.report_interval,
                    changes,
                    "a collector asks for fewer reports of continuing flows"
                );
            }
        }
        if let Some(changes) = changes(&mut self.rates, before.sample_rate != beyond.sample_rate) {
            let one_flow_in = in_force.sample_rate.max(1);
            if beyond.sample_rate == 0 {
                tracing::info!(
                    one_flow_in,
                    changes,
                    "no collector asks to count fewer flows anymore: back to the settings"
                );
            } else {
                tracing::warn!(
                    one_flow_in,
                    of_the_settings = own.sample_rate.max(1),
                    changes,
                    "a collector asks to count only some flows; the rest is left out (sampled_out)"
                );
            }
        }
    }
}

/// Scans that took longer than the interval.
#[derive(Default)]
struct LateScans {
    count: u64,
    log: LogLimit,
}

impl LateScans {
    fn note(&mut self, took: Duration, interval: Duration) {
        if took <= interval {
            return;
        }
        self.count += 1;
        if let Some(scans) = self.log.event() {
            tracing::warn!(
                ?took,
                ?interval,
                scans,
                "a scan took longer than the scan interval; the next ones are skipped, not piled up"
            );
        }
    }
}

/// Waits until a selection is in force, [`SELECTION_PATIENCE`] at most. Returns the client that waits for it.
async fn in_force(
    patience: Duration,
    selecting: impl Future<Output = ()>,
    done: oneshot::Sender<Result<()>>,
) -> oneshot::Sender<Result<()>> {
    if timeout(patience, selecting).await.is_err() {
        tracing::warn!(
            after = ?patience,
            "interfaces are still being attached to or detached from; `flow-agent status` shows those that count"
        );
    }
    done
}

impl Scanning {
    /// Scans at every interval, and earlier if a page fills up, until `shutdown`, or until attaching a hook or
    /// following the interfaces fails. Then scans once more with the programs off. Calls `tell` when all initial hooks
    /// are attached, and `end` with the scanner once everything it found is published, and whether its programs go on
    /// counting.
    pub(super) async fn run(
        mut self,
        shutdown: impl Future<Output = ()>,
        mut scanner: Scanner,
        publish_status: impl Fn(&Scanner, Times, u64, bool),
        tell: impl Fn(&Scanner),
        end: impl FnOnce(Scanner, bool),
    ) -> Result<()> {
        let mut late = LateScans::default();
        let (mut is_attaching, mut failed) = (true, None);
        let mut selected_anew = Vec::new();
        let mut pending = PendingRequests::new();
        let mut times = self.times;
        tokio::pin!(shutdown);
        loop {
            let wake = tokio::select! {
                Some(request) = self.requests.recv() => {
                    let made;
                    (scanner, made) = self.make(request, scanner).await?;
                    times = self.apply_throttle(&mut scanner);
                    publish_status(&scanner, times, late.count, false);
                    if let Some(made) = made {
                        made.send_outcome();
                    }
                    continue;
                }
                Some(request) = self.scanner_requests.recv() => {
                    pending.add(request, &self.hub);
                    continue;
                }
                () = pending.flows_due() => {
                    scanner = self.take_flows(&mut pending, scanner).await?;
                    continue;
                }
                () = pending.scan_due() => Wake::Asked,
                Some(selected) = self.selecting.join_next() => {
                    let done = selected.context("the task that waits for a selection")?;
                    selected_anew.push(Made { done, outcome: Ok(()) });
                    // The status has to show the hooks of the new selection and no others.
                    Wake::Departed
                }
                outcome = &mut self.reports.attached, if is_attaching => {
                    is_attaching = false;
                    match outcome.context("the thread that attaches").flatten() {
                        Ok(()) => {
                            // The attaching threads have loaded their programs.
                            process_memory::give_back();
                            scanner = Box::pin(self.carry_over(scanner)).await?;
                            publish_status(&scanner, times, late.count, false);
                            tell(&scanner);
                            continue;
                        }
                        Err(error) => {
                            failed = Some(error);
                            Wake::End
                        }
                    }
                }
                Some(error) = self.reports.failed.recv() => {
                    failed = Some(error);
                    Wake::End
                }
                wake = self.wakes.next(scanner.active_page()) => match wake {
                    Ok(wake) => wake,
                    Err(error) => {
                        failed = Some(error);
                        Wake::End
                    }
                },
                () = self.watchdog.due() => {
                    self.watchdog.feed();
                    continue;
                }
                () = &mut shutdown => Wake::End,
            };
            let is_final = wake == Wake::End;
            if is_final {
                tracing::info!("counting has stopped; sending the last records");
                self.refuse_changes().await;
            } else {
                // At a scan and not sooner, however often collectors change what they ask for.
                times = self.apply_throttle(&mut scanner);
            }
            let (can_leave, has_failed) = (scanner.can_leave(), failed.is_some());
            let leaves = is_final && self.leaves(can_leave, has_failed).await;
            let started = Instant::now();
            let outcome;
            (scanner, outcome) = scan(scanner, wake, leaves).await?;
            if outcome.is_err() {
                self.refuse_changes().await;
                let leaves = scanner.can_leave();
                end(scanner, leaves);
                return outcome;
            }
            // If scans follow each other without a pause, select picks a branch above at random, so the watchdog is fed
            // here too.
            self.watchdog.feed();
            pending.step(Duration::ZERO, scanner.completed_snapshot());
            pending.scanned(scanner.stats.count, started.elapsed());
            if !is_final {
                late.note(started.elapsed(), self.times.scan_interval);
            }
            publish_status(&scanner, times, late.count, is_final);
            selected_anew.drain(..).for_each(Made::send_outcome);
            if is_final {
                log_final(&scanner);
                end(scanner, leaves);
                return failed.map_or(Ok(()), Err);
            }
        }
    }

    /// All hooks are attached: takes in what earlier processes have counted, since none of their programs runs any more.
    async fn carry_over(&mut self, mut scanner: Scanner) -> Result<Scanner> {
        scanner.note_progress();
        if let Err(error) = scanner.note_lapse_of(&self.earlier.heritages) {
            tracing::warn!(%error, "it is not known whether the programs of the earlier process counted until now");
        }
        for heritage in self.earlier.heritages.drain(..) {
            let (instance, keep) = (heritage.instance.clone(), self.earlier.keep.clone());
            let outcome;
            (scanner, outcome) = spawn_blocking(move || {
                let outcome = scanner.carry_over(heritage, &keep);
                (scanner, outcome)
            })
            .await
            .context("the task that carries over")?;
            if let Err(error) = outcome {
                tracing::error!(
                    instance,
                    "cannot carry over the counts of an earlier process: {error:#}"
                );
            }
            self.watchdog.feed();
        }
        Ok(scanner)
    }

    /// Whether this process leaves its programs to a successor.
    async fn leaves(&mut self, can_leave: bool, has_failed: bool) -> bool {
        let has_store = can_leave || !self.earlier.heritages.is_empty();
        // systemd closes what is stored if it does not start the service again after a failure.
        if has_failed || has_store && service_manager::is_restarting().await {
            // The successor finds in the store what this process has not carried over.
            return can_leave;
        }
        for heritage in self.earlier.heritages.drain(..) {
            let unreported = heritage.unreported();
            tracing::warn!(
                instance = heritage.instance,
                packets = unreported.packets,
                bytes = unreported.bytes,
                "the agent stops before it has taken over what an earlier process had counted: these packets are in no record"
            );
        }
        false
    }

    /// Encodes flows for a snapshot for a short while.
    async fn take_flows(
        &self,
        pending: &mut PendingRequests,
        mut scanner: Scanner,
    ) -> Result<Scanner> {
        pending.begin_step(&self.hub);
        let bytes = self.snapshot_bytes.clone();
        let (scanner, took, taken) = spawn_blocking(move || {
            let started = std::time::Instant::now();
            let taken = scanner.snapshot(&bytes, started + STEP);
            (scanner, started.elapsed(), taken)
        })
        .await
        .context("the task that takes flows")?;
        pending.step(took, taken);
        Ok(scanner)
    }

    /// Makes a change between two scans. Returns the scanner, and the change once it is done. A new selection is done
    /// later: attaching and detaching go on while scans run.
    async fn make(
        &mut self,
        Request { change, done }: Request,
        mut scanner: Scanner,
    ) -> Result<(Scanner, Option<Made>)> {
        let outcome;
        match change {
            Change::Rules(rules) => {
                (scanner, outcome) = spawn_blocking(move || {
                    let outcome = scanner.follow(rules);
                    (scanner, outcome)
                })
                .await
                .context("the task that switches the filter rules")?;
            }
            Change::Times(times) => {
                self.times = times;
                self.wakes.set_interval(times.scan_interval);
                scanner.keep_flows_for(times.idle_timeout, times.linger);
                outcome = scanner.set_lease(times.lease());
            }
            Change::Selection(selection) => {
                self.selecting.spawn(in_force(
                    SELECTION_PATIENCE,
                    scanner.select(&selection),
                    done,
                ));
                return Ok((scanner, None));
            }
        }
        Ok((scanner, Some(Made { done, outcome })))
    }

    /// Applies the report interval and the sample rate of the settings or of a collector, whichever mean fewer records.
    /// Returns the times in force.
    fn apply_throttle(&mut self, scanner: &mut Scanner) -> Times {
        let own = Throttle {
            report_interval: self.times.report_interval,
            sample_rate: scanner.sample_rates().own,
        };
        let in_force = own.max(self.outputs.throttle());
        let Throttle {
            report_interval,
            sample_rate,
        } = in_force;
        scanner.report_every(report_interval, report_interval != own.report_interval);
        scanner.sample(sample_rate);
        self.throttle_log.log_change(own, in_force);
        Times {
            report_interval,
            ..self.times
        }
    }

    /// Closes the queue of changes and refuses what is in it. The end waits for the attaching thread, which may itself
    /// wait for rules that name an interface.
    async fn refuse_changes(&mut self) {
        self.requests.close();
        // `recv` also waits for senders that hold a permit.
        while let Some(request) = self.requests.recv().await {
            drop(request);
        }
    }
}

/// Scans on a thread of its own.
async fn scan(mut scanner: Scanner, wake: Wake, leaves: bool) -> Result<(Scanner, Result<()>)> {
    let task = spawn_blocking(move || {
        let outcome = match wake {
            Wake::Interval(due) => scanner.scan(due.into_std()),
            Wake::Filled | Wake::Departed | Wake::Asked => scanner.scan_early(),
            Wake::End if leaves => scanner.hand_over(),
            Wake::End => scanner.finish(),
        };
        (scanner, outcome)
    });
    task.await.context("the scan task")
}

fn log_final(scanner: &Scanner) {
    let missing = scanner.account.missing().packets;
    let seen = scanner.account.get(Reason::Seen).packets;
    let counted = scanner.account.get(Reason::Flows);
    let flows = scanner.replica().begun();
    if terminal::is_read() {
        terminal::part(flows, counted.packets, seen, missing);
    } else {
        tracing::info!(
            flows,
            packets = counted.packets,
            bytes = counted.bytes,
            seen,
            missing,
            "final account"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn whoever_selects_waits_until_it_is_done_but_not_for_ever() {
        let (done, mut told) = oneshot::channel();
        let done = in_force(Duration::MAX, ready(()), done).await;
        let done = in_force(Duration::from_millis(1), pending(), done).await;
        assert!(told.try_recv().is_err());
        Made {
            done,
            outcome: Ok(()),
        }
        .send_outcome();
        assert!(told.await.unwrap().is_ok());
    }
}
