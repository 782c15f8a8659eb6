//! Outputs: send the flows of every batch to receivers that do not subscribe over our gRPC.
//!
//! Each output is a task with its own queue at the hub, so neither a scan nor another output waits for it. Flows pass
//! through [`selection`], which drops flows by the settings, an [`Encoder`](formats::encoder::Encoder), which makes
//! messages of the output's format, and a [`transport`], which sends them. [`worker`] drives these, retries failures, and
//! counts what happens to each flow. For collectors that speak our own interface, [`delivery`] replaces all of this and
//! sends the batches unchanged.
//!
//! May depend on: `formats`, `hub`, `tls`, `rules`, `proto`, `sys`. Knows nothing about the server.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use hub::{DEFAULT_DRAIN_TIMEOUT, Hub};
use proto::{DepartedOutputs, OutputStatus, OutputTlsStatus};
use sys::clock;
use tls::output::ReloadableOutputTls;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

mod backoff;
pub mod clickhouse;
mod counters;
pub mod delivery;
mod domain;
pub mod files;
pub mod kafka;
mod log_once;
mod output_log;
mod password;
mod selection;
pub mod settings;
mod shutdown;
mod throttle;
mod transport;
mod worker;

use counters::Counters;
use delivery::Delivery;
use settings::Parts;
pub use settings::{Output, Prepared};
use shutdown::Shutdown;
use throttle::AllThrottles;
pub use throttle::Throttle;
use worker::Worker;

/// How long outputs may take to end before the log says that they do.
const SILENCE: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(10);

/// The running outputs. Clones share them.
#[derive(Clone)]
pub struct Outputs {
    hub: Hub,
    /// The addresses where the agent listens.
    listeners: Arc<str>,
    throttles: AllThrottles,
    all: Arc<Mutex<All>>,
}

#[derive(Default)]
struct All {
    running: Vec<Running>,
    /// Outputs that are shutting down.
    leaving: Vec<Running>,
    /// Totals of outputs that have ended.
    departed: DepartedOutputs,
}

struct Running {
    output: Output,
    name: String,
    counters: Arc<Counters>,
    tls: Option<ReloadableOutputTls>,
    /// When to stop sending, once the output is to end.
    deadline: watch::Sender<Option<Instant>>,
    task: JoinHandle<()>,
}

impl Outputs {
    /// Starts these outputs. They send every batch that is published from then on.
    pub fn start(hub: &Hub, outputs: Vec<Prepared>) -> Self {
        Self::start_beside(hub, &[], outputs)
    }

    /// Like [`Self::start`], for an agent that listens at these addresses. No other agent of the host does, so they
    /// identify it.
    pub fn start_beside(hub: &Hub, listeners: &[String], outputs: Vec<Prepared>) -> Self {
        let started = Self {
            hub: hub.clone(),
            listeners: listeners.join(" ").into(),
            throttles: AllThrottles::default(),
            all: Arc::default(),
        };
        started.replace(outputs);
        started
    }

    /// Fails if one of these cannot write its files. Where one that runs or ends writes already, it holds the lock.
    pub async fn refuse_unwritable(&self, outputs: &[Prepared]) -> Result<()> {
        let running: Vec<_> = {
            let all = self.all();
            let files = all.running.iter().chain(&all.leaving);
            let files = files.filter_map(|one| one.output.files());
            files.map(|files| files.lock_path()).collect()
        };
        for output in outputs.iter().map(Prepared::output) {
            if let Some(files) = output.files()
                && !running.contains(&files.lock_path())
            {
                let (kind, address) = (output.kind().name(), output.address());
                let writable = files.refuse_unwritable().await;
                writable.with_context(|| format!("--output {kind}={address}"))?;
            }
        }
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all().running.is_empty()
    }

    /// Starts the outputs that are not running yet and ends the running ones that are missing in `outputs`. Those that
    /// stay lose nothing, keep their names, and use the TLS files as read for `outputs`.
    pub fn replace(&self, outputs: Vec<Prepared>) {
        self.replace_within(outputs, DEFAULT_DRAIN_TIMEOUT);
    }

    /// `time` is how long ending outputs may take to send what they hold.
    fn replace_within(&self, outputs: Vec<Prepared>, time: Duration) {
        let mut all = self.all();
        let mut before = std::mem::take(&mut all.running);
        let mut staying = Vec::new();
        let mut starting = Vec::new();
        for prepared in outputs {
            let is_it = |other: &Running| other.output == prepared.output;
            match before.iter().position(is_it) {
                Some(place) => {
                    let stays = before.swap_remove(place);
                    if let (Some(reloadable), Some(read)) = (&stays.tls, prepared.tls) {
                        reloadable.replace(read.named(&stays.name));
                    }
                    staying.push(stays);
                }
                None => starting.push(prepared),
            }
        }
        all.forget_finished();
        for leaving in before {
            tracing::info!(
                output = leaving.name,
                "the settings no longer name this output"
            );
            leaving.end_within(time);
            all.leaving.push(leaving);
        }
        all.running = staying;
        for prepared in starting {
            let name = settings::free_name(&prepared.output, |name| {
                all.running.iter().all(|other| other.name != name)
            });
            all.running.push(self.run(name, prepared));
        }
    }

    fn run(&self, name: String, prepared: Prepared) -> Running {
        prepared.tell_of_secret(&name);
        let Prepared { output, tls, .. } = prepared;
        let subscription = self.hub.subscribe_output(&name, &output.address());
        let counters = Arc::new(Counters::new(subscription.backlog()));
        let (deadline, until) = watch::channel(None);
        let shutdown = Shutdown::new(until);
        tracing::info!(
            output = name,
            kind = output.kind().name(),
            address = output.address(),
            "flows go to this output"
        );
        let tls = tls.map(|read| ReloadableOutputTls::new(read.named(&name)));
        let place = format!("{} {name}", self.listeners);
        let parts = output.parts(&self.hub, &place, tls.clone());
        let (files, fates) = (tls.clone(), Arc::clone(&counters));
        let task = match parts {
            Parts::Messages(encoder, transport) => {
                let parts = (encoder, transport);
                let worker =
                    Worker::new(&name, &output, parts, files, subscription, fates, shutdown);
                tokio::spawn(worker.run())
            }
            Parts::Batches(collectors) => {
                let throttle = self.throttles.add_output(collectors.max_throttle);
                let delivery = Delivery::new(
                    &name,
                    collectors,
                    (files, throttle),
                    subscription,
                    fates,
                    shutdown,
                );
                tokio::spawn(delivery.run())
            }
        };
        Running {
            output,
            name,
            counters,
            tls,
            deadline,
            task,
        }
    }

    pub fn status(&self) -> Vec<OutputStatus> {
        let all = self.all();
        let statuses = all.running.iter().map(|one| OutputStatus {
            name: one.name.clone(),
            kind: one.output.kind().name().to_owned(),
            address: one.output.address(),
            tls: one.tls.as_ref().map(tls_status),
            ..one.counters.status()
        });
        statuses.collect()
    }

    /// The strongest throttle that collectors ask for, over all outputs.
    pub fn throttle(&self) -> Throttle {
        self.throttles.strongest()
    }

    /// Totals of outputs that the settings no longer name.
    pub fn departed(&self) -> DepartedOutputs {
        let mut all = self.all();
        all.forget_finished();
        let mut departed = all.departed;
        for leaving in &all.leaving {
            departed += leaving.counters.status();
        }
        departed
    }

    /// Waits until everything is sent, or until `within` is over. Call it once the hub is closed. What is not sent by
    /// then is counted as lost and logged.
    pub async fn end(self, within: Duration) {
        let All {
            running, leaving, ..
        } = std::mem::take(&mut *self.all());
        for output in &running {
            output.end_within(within);
        }
        let ending: Vec<_> = running.into_iter().chain(leaving).collect();
        let is_over = || ending.iter().all(|output| output.task.is_finished());
        let silent_until = Instant::now() + SILENCE;
        while !is_over() && Instant::now() < silent_until {
            tokio::time::sleep(LOOK).await;
        }
        for output in ending.iter().filter(|output| !output.task.is_finished()) {
            output.tell_of_wait(within);
        }
        for output in ending {
            if let Err(error) = output.task.await {
                tracing::error!(output = output.name, %error, "the task of an output failed: please report this");
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        // Each change leaves the lists consistent, even if a later step panics.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tls_status(tls: &ReloadableOutputTls) -> OutputTlsStatus {
    let status = tls.status();
    let [not_before, not_after] = match status.validity {
        Some(validity) => [validity.not_before, validity.not_after].map(clock::nanos),
        None => [0; 2],
    };
    OutputTlsStatus {
        client_certificate: status.validity.is_some(),
        not_before_unix_ns: not_before,
        not_after_unix_ns: not_after,
        reload_error: status.fault.unwrap_or_default(),
    }
}

impl All {
    /// Adds up the totals of outputs that have ended, and drops them.
    fn forget_finished(&mut self) {
        let finished = |output: &mut Running| output.task.is_finished();
        for output in self.leaving.extract_if(.., finished) {
            self.departed += output.counters.status();
        }
    }
}

impl Running {
    fn tell_of_wait(&self, at_most: Duration) {
        let status = self.counters.status();
        let queued_records = status.queued.unwrap_or_default().records;
        if status.failing {
            tracing::warn!(
                output = self.name,
                ?at_most,
                queued_records,
                "still trying to send the remaining flows to {}, which fails: {}",
                self.output.address(),
                status.last_error
            );
        } else {
            tracing::info!(
                output = self.name,
                ?at_most,
                queued_records,
                "waiting for {} to take the remaining flows",
                self.output.address()
            );
        }
    }

    fn end_within(&self, time: Duration) {
        self.counters.close_queue();
        self.deadline.send_replace(Some(Instant::now() + time));
    }
}

#[cfg(test)]
mod tests;
