//! Outputs: send the flows of every batch to programs that do not ask for them over our gRPC.
//!
//! Each output is a task with a queue of its own at the hub, so neither a scan nor another output waits for it. Its flows go one
//! way: [`wanted`] leaves out what its settings do not want, an [`encoder`] makes messages of its format, and a
//! [`transport`] hands them over. [`worker`] does it, tries again what failed, and counts what became of each flow. For a
//! collector of our own interface [`delivery`] does all of this with the batches as they are.
//!
//! May depend on: `formats`, `hub`, `tls`, `rules`, `proto`, `sys`. Knows nothing about the server.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hub::{DEFAULT_DRAIN_TIMEOUT, Hub};
use proto::{DepartedOutputs, OutputStatus, OutputTlsStatus};
use sys::clock;
use tls::output::InForce;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

mod backoff;
pub mod clickhouse;
pub mod delivery;
pub mod encoder;
mod ending;
pub mod files;
pub mod ipfix;
mod jsonl;
pub mod kafka;
pub mod otlp;
pub mod parquet;
mod password;
pub mod pbflow;
mod relief;
pub mod settings;
mod spell;
mod tally;
mod telling;
mod transport;
mod wanted;
mod worker;

use delivery::Delivery;
use ending::Ending;
use relief::AskedByAll;
pub use relief::Relief;
use settings::Parts;
pub use settings::{Output, Prepared};
use tally::Tally;
use worker::Worker;

/// The outputs that run. Clones share them.
#[derive(Clone)]
pub struct Outputs {
    hub: Hub,
    /// Where the agent listens.
    listeners: Arc<str>,
    asked: AskedByAll,
    all: Arc<Mutex<All>>,
}

#[derive(Default)]
struct All {
    running: Vec<Running>,
    /// Those that send what is left.
    leaving: Vec<Running>,
    /// The sums of those that have left.
    departed: DepartedOutputs,
}

struct Running {
    output: Output,
    name: String,
    tally: Arc<Tally>,
    tls: Option<InForce>,
    /// Until when it may send what is left, once it is to end.
    deadline: watch::Sender<Option<Instant>>,
    task: JoinHandle<()>,
}

impl Outputs {
    /// Starts these outputs, which send every batch that is published from now on.
    pub fn start(hub: &Hub, outputs: Vec<Prepared>) -> Self {
        Self::start_beside(hub, &[], outputs)
    }

    /// The same of an agent that listens there, where no other agent of this host does.
    pub fn start_beside(hub: &Hub, listeners: &[String], outputs: Vec<Prepared>) -> Self {
        let started = Self {
            hub: hub.clone(),
            listeners: listeners.join(" ").into(),
            asked: AskedByAll::default(),
            all: Arc::default(),
        };
        started.replace(outputs);
        started
    }

    /// Starts those of `outputs` that do not run and ends those that are not among them. Those that stay lose nothing and
    /// keep their names. They take over what was read from their files of TLS.
    pub fn replace(&self, outputs: Vec<Prepared>) {
        self.replace_within(outputs, DEFAULT_DRAIN_TIMEOUT);
    }

    /// Those that end have this time for what they hold.
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
                    if let (Some(in_force), Some(read)) = (&stays.tls, prepared.tls) {
                        in_force.replace(read.named(&stays.name));
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
                "the settings do not name this output any more"
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
        let tally = Arc::new(Tally::new(subscription.backlog()));
        let (deadline, until) = watch::channel(None);
        let ending = Ending::new(until);
        tracing::info!(
            output = name,
            kind = output.kind().name(),
            address = output.address(),
            "flows go to this output"
        );
        let tls = tls.map(|read| InForce::new(read.named(&name)));
        let place = format!("{} {name}", self.listeners);
        let parts = output.parts(&self.hub, &place, tls.clone());
        let (files, fates) = (tls.clone(), Arc::clone(&tally));
        let task = match parts {
            Parts::Messages(encoder, transport) => {
                let parts = (encoder, transport);
                let worker = Worker::new(&name, &output, parts, files, subscription, fates, ending);
                tokio::spawn(worker.run())
            }
            Parts::Batches(collectors) => {
                let asked = self.asked.of_output(collectors.most_asked);
                let delivery = Delivery::new(
                    &name,
                    collectors,
                    (files, asked),
                    subscription,
                    fates,
                    ending,
                );
                tokio::spawn(delivery.run())
            }
        };
        Running {
            output,
            name,
            tally,
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
            ..one.tally.status()
        });
        statuses.collect()
    }

    /// What the collectors among them ask for.
    pub fn asked(&self) -> Relief {
        self.asked.most()
    }

    /// The sums of those that the settings do not name any more.
    pub fn departed(&self) -> DepartedOutputs {
        let mut all = self.all();
        all.forget_finished();
        let mut departed = all.departed;
        for leaving in &all.leaving {
            departed += leaving.tally.status();
        }
        departed
    }

    /// Waits, once the hub is closed, until everything is sent or the time is over. What is not sent by then is counted
    /// and told.
    pub async fn end(self, within: Duration) {
        let All {
            running, leaving, ..
        } = std::mem::take(&mut *self.all());
        for output in &running {
            output.end_within(within);
        }
        for output in running.into_iter().chain(leaving) {
            if let Err(error) = output.task.await {
                tracing::error!(output = output.name, %error, "the task of an output failed: please report this");
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        // Each change of the lists is whole even if a later step panics.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tls_status(tls: &InForce) -> OutputTlsStatus {
    let told = tls.told();
    let [not_before, not_after] = match told.validity {
        Some(validity) => [validity.not_before, validity.not_after].map(clock::nanos),
        None => [0; 2],
    };
    OutputTlsStatus {
        client_certificate: told.validity.is_some(),
        not_before_unix_ns: not_before,
        not_after_unix_ns: not_after,
        reload_error: told.fault.unwrap_or_default(),
    }
}

impl All {
    /// Keeps the sums of outputs that have left, and nothing else of them.
    fn forget_finished(&mut self) {
        let finished = |output: &mut Running| output.task.is_finished();
        for output in self.leaving.extract_if(.., finished) {
            self.departed += output.tally.status();
        }
    }
}

impl Running {
    fn end_within(&self, time: Duration) {
        self.tally.closes();
        self.deadline.send_replace(Some(Instant::now() + time));
    }
}

#[cfg(test)]
mod tests;
