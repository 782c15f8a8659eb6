//! The agent as a whole. [`Agent::start`] builds its parts from a [`Config`] and loads the programs. [`Agent::run`]
//! attaches them and scans until it is stopped. Then it detaches, drains, and sends the remaining records.
//!
//! While it runs, [`scanning`] owns the scanner and does one thing at a time with it, [`wakes`] decides when to scan,
//! and [`pending_requests`] keeps the requests for flows or a scan. [`publish`] completes and publishes a status after each
//! scan, [`printing`] is the agent's own consumer on stdout, and the server serves batches and status to all other consumers.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use enrich::kind::Kind;
use exporters::{Outputs, Prepared};
use flows::{
    encoder::BatchEncoder,
    names::Names,
    replica::{Replica, ReplicaSettings},
};
use formats::Format;
use hub::{DEFAULT_DRAIN_TIMEOUT, DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES, Hub};
use kernel::{
    account::possible_cpus,
    attach::{self, AttachSettings, Attachments, NameInterface, Slots},
    bpf::Runs,
    devices::{self, across},
    filled::FilledPages,
    interfaces::{Selection, everywhere::Everywhere},
    limits,
    links::{self, Link, tags::TagWatch},
    load::{Kernel, LoadSettings},
    netns::{Namespace, Netns},
    real_time,
    rule_maps::Networks,
    run_times::RunTimes,
};
use proto::{AgentStatus, ListenerStatus, SettingsInForce, batch::Identity};
use rules::Rule;
use server::{
    Limits, ListenAddr, Listeners, PassedSockets, Server, Stored,
    active_rules::ReplaceError,
    listen::Listening,
    metrics::{self, MetricsListener, TimePrograms},
    scanner_requests::ScannerClient,
};
use sys::{clock, process_memory};
use tls::server::{ReloadableServerTls, ServerTls};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet, spawn_blocking},
};

use crate::{
    carry::{Carrying, Checkpoints},
    changes::{Changes, Request, Times},
    memory_limit::Needs,
    rules::RunningRules,
    scan::{Interfaces, Scanner, ScannerParts},
    service_manager::ServiceManager,
    status::{StatusSettings, agent_status},
    terminal,
};

mod pending_requests;
mod printing;
mod publish;
mod scanning;
mod wakes;

pub use pending_requests::BETWEEN_SCANS;
use printing::Printing;
use publish::{NetlinkReadings, Publisher};
use scanning::{Scanning, ThrottleLog};
use wakes::Wakes;

/// How often the programs' log is copied to the agent's log, if it is enabled.
const LOG_FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// How long shutdown may take before the log names the reason.
const SILENCE: Duration = Duration::from_millis(300);

/// The agent's configuration, resolved from options, variables and the file.
#[derive(Debug)]
pub struct Config {
    /// The programs to load: [`kernel::load::OBJECT`], or a build of them for tests.
    pub object: &'static [u8],
    /// Network namespaces to count in. If empty, only the agent's own.
    pub netns: Vec<Netns>,
    /// Interfaces to count on.
    pub selection: Selection,
    /// How many interfaces at the same time; 0 leaves room for more than exist at the start.
    pub max_interfaces: u32,
    pub attach: AttachSettings,
    /// Flows that each page of the kernel's table always has room for, and up to which it grows.
    pub min_flows: u32,
    pub max_flows: u32,
    pub max_fragments: u32,
    pub decapsulate: bool,
    /// What to find out about flows beyond their packets.
    pub enrich: enrich::Settings,
    /// How full a page may get, in percent, before it is drained early. 0 always waits for the interval.
    pub early_scan_percent: u32,
    pub scan_interval: Duration,
    /// How long the programs count after a scan was due; zero never ends.
    pub lease: Duration,
    pub replica: ReplicaSettings,
    pub rules: Vec<Rule>,
    /// Counts one in this many flows; 0 counts every flow.
    pub sample_rate: u32,
    pub listen: Vec<ListenAddr>,
    /// TLS for TCP listeners. `None` listens without.
    pub tls: Option<ServerTls>,
    /// Allows TCP listeners without TLS on addresses that other hosts reach.
    pub insecure_listen: bool,
    pub limits: Limits,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// Format of the flows on stdout.
    pub stdout: Option<Format>,
    /// Other outputs.
    pub outputs: Vec<Prepared>,
    /// Leave the programs counting for the next process, and take over the counts of the one before.
    pub carry_over: bool,
    /// How long to count. `None` counts until the agent is stopped.
    pub duration: Option<Duration>,
    /// Log level of the programs: 0 is off, 1 to 5 are error to trace (aya-log's levels).
    pub bpf_log_level: u8,
}

impl Config {
    /// Oddities in the TLS files that may be intended but deserve a look.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        let listeners = self.tls.iter().flat_map(|tls| &tls.warnings);
        listeners.chain(self.outputs.iter().flat_map(Prepared::warnings))
    }

    /// The times that can change while the agent runs.
    pub fn times(&self) -> Times {
        Times {
            scan_interval: self.scan_interval,
            idle_timeout: self.replica.idle_timeout,
            linger: self.replica.linger,
            report_interval: self.replica.report_interval,
            lease: self.lease,
        }
    }
}

/// An agent whose programs are loaded and whose listeners are open, before anything is attached.
pub struct Agent {
    config: Config,
    identity: Arc<Identity>,
    hub: Hub,
    outputs: Outputs,
    listeners: Listeners,
    tls: Option<ReloadableServerTls>,
    metrics: Option<(MetricsListener, TimePrograms)>,
    kernel: Kernel,
    selected: Vec<(Namespace, Vec<Link>)>,
    slots: Slots,
    max_interfaces: u32,
    needs: Needs,
    enrichment: Vec<Box<dyn Kind>>,
    filled: FilledPages,
    rules: RunningRules,
    changes: Changes,
    requests: mpsc::Receiver<Request>,
    limits: watch::Sender<Limits>,
    carrying: Carrying,
    checkpoints: Option<Checkpoints>,
}

impl Agent {
    /// Chooses the interfaces, loads the programs, applies the rules, and opens the listeners in addition to the
    /// `passed` sockets. "The agent's own network namespace" in the configuration is that of the calling thread.
    pub async fn start(
        mut config: Config,
        passed: PassedSockets,
        stored: Vec<Stored>,
    ) -> Result<Self> {
        process_memory::in_small_pages();
        let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
        let identity = Arc::new(identity()?);
        let carrying = Carrying::begin(config.carry_over, stored, &identity.instance_id).await;
        let listens_at: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
        let outputs = Outputs::start_beside(&hub, &listens_at, Vec::new());
        outputs.refuse_unwritable(&config.outputs).await?;
        let namespaces = Namespace::open_all(&config.netns)?;
        config.enrich.namespaces.clone_from(&namespaces);
        let selected = Everywhere::look(&namespaces)?.select(&config.selection)?;
        let selected = attach::with_hooks(selected, &config.selection, config.attach)?;
        for (namespace, chosen) in &selected {
            namespace.enter(|| {
                devices::warn_of_twice(&links::links()?, chosen);
                Ok(())
            })?;
        }
        across::warn_of_across(&selected)?;
        real_time::warn_if(real_time::may_interleave());
        let links: usize = selected.iter().map(|(_, links)| links.len()).sum();
        let hooks = links * config.attach.directions.count();
        let asks_drivers = config.attach.may_ask_drivers();
        limits::raise_open_files(hooks, namespaces.len(), asks_drivers)?;
        let cpus = possible_cpus()?;
        let max_interfaces = match config.max_interfaces {
            0 => room_for_interfaces(links, config.selection.has_patterns(), cpus),
            most => most,
        };
        let needs = Needs::of(&config, max_interfaces, cpus);
        needs.warn_if_limit_is_low();
        let slots = attach::first_slots(max_interfaces, &selected)?;
        let settings = LoadSettings {
            min_flows: config.min_flows,
            max_flows: config.max_flows,
            max_fragments: config.max_fragments,
            early_scan_flows: early_scan_flows(config.max_flows, config.early_scan_percent),
            decapsulate: config.decapsulate,
            max_interfaces,
            sample_rate: config.sample_rate,
            asks_drivers,
            log_level: config.bpf_log_level,
            ..LoadSettings::smallest(namespaces.iter().map(Namespace::number).collect())
        };
        let (mut kernel, enrichment) = config.enrich.load(config.object, &settings)?;
        let filled = kernel.filled.take().context("the ring of filled pages")?;
        let filled = FilledPages::listen(filled)?;
        // Before anything is attached, so that a port in use leaves no programs behind.
        let tls = config.tls.clone().map(ReloadableServerTls::new);
        let listeners = Listeners::bind(&config.listen, passed).await?;
        let listeners = listeners.with_tls(tls.clone());
        let metrics = bind_metrics(config.metrics, &kernel).await?;
        let all = selected.iter().enumerate();
        let all = all.flat_map(|(netns, (_, links))| links.iter().map(move |link| (netns, link)));
        for (slot, (netns, link)) in (0..).zip(all) {
            kernel.register(netns, link.ifindex, link.names(), slot)?;
        }
        let mut maps = kernel.take_rule_maps()?;
        let staged = maps.stage(&config.rules, Networks::of(&config.rules)?)?;
        for warning in staged.warnings() {
            tracing::warn!("{warning}");
        }
        kernel.follow(staged.rules())?;
        maps.settle(staged);
        let limits = watch::Sender::new(config.limits);
        let (changes, requests) = Changes::channel();
        let rules = RunningRules::new(&config.rules, maps, changes.clone());
        if config.bpf_log_level != 0 {
            forward_logs(&mut kernel)?;
        }
        let now = clock::at(kernel.clocks()?, 0);
        kernel
            .pages
            .set_lease(config.times().lease().end_jiffies(now))?;
        let checkpoints = carrying.start(&mut kernel, &identity, config.sample_rate)?;
        // Before the first scan, so that the outputs get every batch.
        outputs.replace(config.outputs.clone());
        Ok(Self {
            config,
            identity,
            hub,
            outputs,
            listeners,
            tls,
            metrics,
            kernel,
            selected,
            slots,
            max_interfaces,
            needs,
            enrichment,
            filled,
            rules,
            changes,
            requests,
            limits,
            carrying,
            checkpoints,
        })
    }

    /// The network namespaces that the agent counts in.
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.selected
            .iter()
            .map(|(netns, _)| netns.clone())
            .collect()
    }

    /// Reads and replaces the filter rules. Works while the agent runs.
    pub fn rules(&self) -> RunningRules {
        self.rules.clone()
    }

    /// Changes other settings while the agent runs.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Changes where flows go while the agent runs.
    pub fn outputs(&self) -> Outputs {
        self.outputs.clone()
    }

    /// Changes how many consumers and connections there may be while the agent runs.
    pub fn limits(&self) -> watch::Sender<Limits> {
        self.limits.clone()
    }

    /// The figures that its memory depends on.
    pub(crate) fn needs(&self) -> Needs {
        self.needs
    }

    /// Changes the certificate of TCP listeners while the agent runs.
    pub fn tls(&self) -> Option<ReloadableServerTls> {
        self.tls.clone()
    }

    /// Counts until `stop`, until the configured duration is over, or until attaching a hook or following the
    /// interfaces fails. Returns once everything is detached, drained and sent. Clients that may read the rules may
    /// also ask for the settings in force.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        manager: ServiceManager,
        settings_in_force: watch::Receiver<SettingsInForce>,
    ) -> Result<()> {
        let namespaces = self.namespaces();
        let Self {
            config,
            identity,
            hub,
            outputs,
            listeners,
            metrics,
            mut kernel,
            selected,
            slots,
            max_interfaces,
            enrichment,
            filled,
            rules,
            requests,
            limits,
            carrying,
            checkpoints,
            ..
        } = self;
        let qdiscs = NetlinkReadings::open(&namespaces)?;
        let scan_wanted = slots.scan_wanted();
        let to_watch = to_watch(selected, slots, &config, &rules);
        let (links, earlier) = carrying.open();
        let (attachments, reports) =
            Attachments::start(&mut kernel, to_watch, links, config.attach)?;
        let (replica, names) = supplied(&enrichment, config.replica);
        let scanner = Scanner::new(ScannerParts {
            kernel,
            attachments,
            replica,
            encoder: encoder(&identity, &config, names),
            lease: config.times().lease(),
            enrichment,
            hub: hub.clone(),
            checkpoints,
            interfaces: Interfaces::open(&namespaces)?,
            tags: tag_watches(&namespaces)?,
        })?;

        let settings = status_settings(&config, max_interfaces, identity);
        let first = agent_status(&settings, config.times(), &scanner, 0);
        let (publisher, statuses) = Publisher::start(first, qdiscs);
        let (printer, stdout_is_gone) = print(&hub, config.stdout).unzip();
        let (counts, counting) = watch::channel(false);
        let (end_server, server_end) = oneshot::channel::<()>();
        let (scanner_client, scanner_requests) = ScannerClient::channel();
        let services = Server {
            hub: hub.clone(),
            outputs: outputs.clone(),
            scanner: scanner_client.clone(),
            status: statuses.clone(),
            rules: Arc::new(rules),
            settings: settings_in_force,
            limits: limits.subscribe(),
            drain_timeout: DEFAULT_DRAIN_TIMEOUT,
            metrics,
            counting: counting.clone(),
        };
        let connect = connect_to(&listeners);
        let server = tokio::spawn(services.run(listeners, ended(server_end)));

        let scanning = Scanning {
            requests,
            scanner_requests,
            snapshot_bytes: scanner_client.bytes.clone(),
            hub: hub.clone(),
            times: config.times(),
            outputs: outputs.clone(),
            throttle_log: ThrottleLog::default(),
            wakes: Wakes::new(config.scan_interval, filled, scan_wanted),
            reports,
            watchdog: manager.watchdog(),
            earlier,
            selecting: JoinSet::new(),
        };
        tokio::spawn(manager.clone().show(statuses.clone()));
        let stop = async {
            let gone = printing::was_the_only_output(stdout_is_gone, &outputs);
            stopped(stop, config.duration, counting, gone).await;
            manager.stopping();
        };
        let publish_status = |scanner: &Scanner, times, late, is_final| {
            publisher.publish(agent_status(&settings, times, scanner, late), is_final);
        };
        let tell = |scanner: &Scanner| {
            let told = (manager.clone(), counts.clone(), connect.clone());
            tell_that_it_counts(scanner, statuses.clone(), &config, told);
        };
        // Dropping the scanner detaches the programs that are still attached. That runs on its own thread, so that no
        // consumer waits for it to get the last records.
        let mut detaching = None;
        let end = |scanner: Scanner, leaves| {
            detaching = Some(spawn_blocking(move || scanner.end_hooks(leaves)));
        };
        // The scanner holds accounts, which are too large for the caller's stack.
        let ended = Box::pin(scanning.run(stop, scanner, publish_status, tell, end)).await;
        // The receiver is gone if the server ended early. Its error is reported below.
        let _ = end_server.send(());
        let given_away = give_away(server, outputs, printer).await;
        detached(detaching).await?;
        ended?;
        given_away
    }
}

fn to_watch(
    selected: Vec<(Namespace, Vec<Link>)>,
    slots: Slots,
    config: &Config,
    rules: &RunningRules,
) -> attach::Interfaces {
    attach::Interfaces {
        selected,
        slots,
        selection: config.selection.clone(),
        name_interface: name_interface(rules.clone()),
    }
}

/// Waits until one of the reasons to stop is there.
async fn stopped(
    stop: impl Future<Output = ()>,
    duration: Option<Duration>,
    counting: watch::Receiver<bool>,
    stdout_is_gone: impl Future<Output = ()>,
) {
    tokio::select! {
        () = stop => {}
        () = counted_for(duration, counting) => {}
        () = stdout_is_gone => {}
    }
}

async fn bind_metrics(
    address: Option<SocketAddr>,
    kernel: &Kernel,
) -> Result<Option<(MetricsListener, TimePrograms)>> {
    let Some(address) = address else {
        return Ok(None);
    };
    let listener = MetricsListener::bind(address).await?;
    Ok(Some((listener, time_programs(kernel.run_times.clone()))))
}

async fn detached(detaching: Option<JoinHandle<()>>) -> Result<()> {
    match detaching {
        Some(detaching) => detaching.await.context("the task that detaches"),
        // A task of the scanner has panicked.
        None => Ok(()),
    }
}

/// A flow cache with all kinds of enrichment, and the names that they look up.
fn supplied(enrichment: &[Box<dyn Kind>], settings: ReplicaSettings) -> (Replica, Names) {
    let (mut replica, mut names) = (Replica::new(settings), Names::default());
    for kind in enrichment {
        kind.supply(&mut replica, &mut names);
    }
    (replica, names)
}

/// Waits until consumers, outputs and stdout have taken the remaining batches, or have timed out.
async fn give_away(
    server: JoinHandle<Result<()>>,
    outputs: Outputs,
    printer: Option<Printing>,
) -> Result<()> {
    let server = aloud("consumers", server);
    let (outcome, ()) = tokio::join!(server, outputs.end(DEFAULT_DRAIN_TIMEOUT));
    if let Some(printer) = printer {
        aloud("stdout", printer.end()).await?;
    }
    outcome
        .context("the server task")?
        .context("serve gRPC consumers")
}

/// Logs why the agent has not ended yet, unless it ends soon.
async fn aloud<T>(who: &str, takes_the_rest: impl Future<Output = T>) -> T {
    tokio::pin!(takes_the_rest);
    tokio::select! {
        taken = &mut takes_the_rest => return taken,
        () = tokio::time::sleep(SILENCE) => {
            tracing::info!(at_most = ?DEFAULT_DRAIN_TIMEOUT, "waiting for {who} to take the remaining records");
        }
    }
    takes_the_rest.await
}

fn print(hub: &Hub, format: Option<Format>) -> Option<(Printing, oneshot::Receiver<()>)> {
    format.map(|format| Printing::start(hub.subscribe("stdout", "this process"), format))
}

/// The number of flows at which a page is drained early: at least one if the setting is not 0.
fn early_scan_flows(max_flows: u32, percent: u32) -> u32 {
    let flows = u64::from(max_flows) * u64::from(percent) / 100;
    u32::try_from(flows).map_or(u32::MAX, |flows| flows.max(u32::from(percent != 0)))
}

/// The number of slots if the setting is 0. A container host boots with few interfaces and gets hundreds later.
pub(crate) fn room_for_interfaces(selected: usize, have_patterns: bool, cpus: u32) -> u32 {
    const AT_LEAST: usize = 64;
    const FOR_PATTERNS: usize = 512;
    /// The counters that every packet updates take 128 bytes per slot and CPU, so this many take 16 MiB.
    const SLOTS_BY_CPUS: usize = 128 * 1024;
    let at_least = if have_patterns {
        let most = SLOTS_BY_CPUS / cpus.max(1) as usize;
        FOR_PATTERNS.min(most).max(AT_LEAST)
    } else {
        AT_LEAST
    };
    u32::try_from((selected * 2).max(at_least)).unwrap_or(u32::MAX)
}

/// Times the programs for the metrics.
fn time_programs(run_times: RunTimes) -> TimePrograms {
    Arc::new(move |length| {
        let window = run_times.window(length)?;
        Ok(window.map(|window| {
            let by_hook = window.by_hook.into_iter();
            let runs = |runs: Runs| metrics::Runs {
                count: runs.count,
                time: runs.time,
            };
            metrics::Window {
                length: window.length,
                by_hook: by_hook
                    .map(|(hook, of_hook)| (hook, runs(of_hook)))
                    .collect(),
            }
        }))
    })
}

/// Waits until the programs apply the rules to an interface by name, or until the agent stops.
fn name_interface(rules: RunningRules) -> NameInterface {
    Arc::new(move |slot, names| match rules.name_interface(slot, names) {
        Ok(()) | Err(ReplaceError::Stopping(_)) => Ok(()),
        Err(error @ ReplaceError::Refused(_)) => {
            Err(error).with_context(|| format!("apply the filter rules to {}", names.name))
        }
    })
}

fn encoder(identity: &Arc<Identity>, config: &Config, names: Names) -> BatchEncoder {
    BatchEncoder::new(Arc::clone(identity))
        .sampling(config.sample_rate)
        .reporting(config.replica.report_interval)
        .naming(names)
}

/// Resolves on the end signal. An error means that the sender is gone, so the agent is ending as well.
async fn ended(end: oneshot::Receiver<()>) {
    let _ = end.await;
}

fn status_settings(
    config: &Config,
    max_interfaces: u32,
    identity: Arc<Identity>,
) -> StatusSettings {
    StatusSettings {
        identity,
        max_interfaces,
        max_tracked_flows: config.replica.max_flows as u64,
        early_scan_percent: config.early_scan_percent,
    }
}

/// Resolves after counting for `duration`; never if there is none.
async fn counted_for(duration: Option<Duration>, mut counting: watch::Receiver<bool>) {
    if let Some(duration) = duration
        && counting.wait_for(|counts| *counts).await.is_ok()
    {
        tokio::time::sleep(duration).await;
    } else {
        std::future::pending::<()>().await;
    }
}

/// Logs "counting" and informs the service manager and the probes, but only once the status lists all hooks, so that
/// anyone who reads the status then finds them.
fn tell_that_it_counts(
    scanner: &Scanner,
    mut statuses: watch::Receiver<Arc<AgentStatus>>,
    config: &Config,
    (manager, counts, connect): (ServiceManager, watch::Sender<bool>, Option<String>),
) {
    let (max_flows, scan_interval) = (config.max_flows, config.scan_interval);
    let (hooks, scans) = (scanner.attached_hooks(), scanner.stats.count);
    tokio::spawn(async move {
        // Later statuses may have fewer hooks, since interfaces leave.
        let has_all = |status: &Arc<AgentStatus>| {
            let later = status.scans.as_ref();
            status.hooks.len() >= hooks || later.is_some_and(|later| later.count > scans)
        };
        // An error means that the agent is ending; then the line is not needed.
        let status = statuses.wait_for(has_all).await;
        let status = status.map(|status| Arc::clone(&status));
        match status {
            Ok(status) if terminal::is_read() => {
                terminal::greet(&status, scan_interval, connect.as_deref());
            }
            _ => tracing::info!(max_flows, ?scan_interval, "counting"),
        }
        counts.send_replace(true);
        manager.ready().await;
    });
}

/// Where a person at this machine reaches the agent: best at a Unix socket, where nobody needs a certificate.
fn connect_to(listeners: &Listeners) -> Option<String> {
    let all: Vec<_> = listeners
        .listening()
        .iter()
        .map(Listening::status)
        .collect();
    let is_unix = |one: &&ListenerStatus| one.address.starts_with("unix:");
    let best = all.iter().find(is_unix).or_else(|| all.first())?;
    Some(match best.tls {
        Some(_) => format!("https://{}", best.address),
        None => best.address.clone(),
    })
}

/// Identifies this agent: machine, boot and process.
fn identity() -> Result<Identity> {
    let line = |path: &str| -> Result<String> {
        Ok(std::fs::read_to_string(path)
            .with_context(|| format!("read {path}"))?
            .trim()
            .to_owned())
    };
    let hostname = line("/proc/sys/kernel/hostname")?;
    Ok(Identity {
        agent_id: line("/etc/machine-id").unwrap_or_else(|_| hostname.clone()),
        hostname,
        boot_id: line("/proc/sys/kernel/random/boot_id")?,
        instance_id: line("/proc/sys/kernel/random/uuid")?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // A collector fills this in.
        identity: String::new(),
    })
}

/// Keyed by the number of the network namespace.
fn tag_watches(namespaces: &[Namespace]) -> Result<BTreeMap<u32, TagWatch>> {
    let start = |namespace: &Namespace| {
        let watch = namespace.enter(TagWatch::start)?;
        Ok((namespace.number(), watch))
    };
    namespaces.iter().map(start).collect()
}

/// Copies the programs' log to our own for as long as the process runs.
fn forward_logs(kernel: &mut Kernel) -> Result<()> {
    let sets = kernel.sets.iter_mut();
    let loggers = sets.map(|set| aya_log::EbpfLogger::init(&mut set.programs));
    let loggers: Result<Vec<_>, _> = loggers.collect();
    let mut loggers = loggers.context("read the programs' log")?;
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(LOG_FLUSH_INTERVAL);
        loop {
            ticks.tick().await;
            for logger in &mut loggers {
                logger.flush();
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_leave_room_for_interfaces_that_come_and_no_machine_pays_much_for_it() {
        for (selected, have_patterns, cpus, room) in [
            (1, false, 4, 64),
            (0, true, 4, 512),
            (0, true, 256, 512),
            (0, true, 512, 256),
            (0, true, 8192, 64),
            (300, true, 128, 600),
            (300, false, 4, 600),
        ] {
            let found = room_for_interfaces(selected, have_patterns, cpus);
            assert_eq!(found, room, "{selected} {have_patterns} {cpus}");
        }
    }

    #[test]
    fn the_mark_is_a_part_of_the_table_and_at_least_one_flow() {
        assert_eq!(early_scan_flows(500_000, 50), 250_000);
        assert_eq!(early_scan_flows(100_000_000, 99), 99_000_000);
        assert_eq!(early_scan_flows(1, 50), 1);
        assert_eq!(early_scan_flows(500_000, 0), 0);
    }
}
