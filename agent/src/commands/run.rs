//! `flow-agent run`: settings come in, flow records go to gRPC consumers and to stdout until the
//! end is asked for; then everything is detached, drained and sent.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{
    batch::{BatchEncoder, Identity},
    control::{self, Control},
    filter,
    hub::{DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES, Hub},
    interfaces,
    kernel::{
        attach::{AttachSettings, Attachments},
        filled::FilledPages,
        links::{LinkSocket, netns_inode},
        load::Kernel,
        real_time,
    },
    limits,
    log_limit::LogLimit,
    output::Format,
    replica::{Replica, ReplicaSettings},
    scan::{HookState, Interfaces, Scanner, ScannerParts},
    server::{self, DEFAULT_DRAIN_TIMEOUT, Listeners},
    status::{self, StatusSettings},
};

mod args;
mod printing;
mod publish;
mod reload;
mod rules;
mod wakes;

use args::BpfLogLevel;
pub use args::{Args, Object, Output};
use printing::Printing;
use publish::{Publisher, QdiscDrops};
use rules::Switch;
use wakes::{Wake, Wakes};

/// How often the programs' log is carried over, where it is on.
const LOG_FLUSH_INTERVAL: Duration = Duration::from_millis(100);

pub async fn run(args: Args) -> Result<ExitCode> {
    args.refuse_contradictions()?;
    let rules = filter::read(&args.filter, args.filter_file.as_deref())?;
    let (control, changes) = control::channel(&rules);
    reload::at_hangup(&args, control.clone())?;
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let identity = Arc::new(identity()?);
    let mut links = LinkSocket::open()?;
    let selected = interfaces::select(
        &links.links()?,
        &interfaces::all(&args.interface),
        &interfaces::all(&args.exclude_interface),
        &links.default_route_ifindexes()?,
    )?;
    if real_time::may_interleave() {
        tracing::warn!("{}", real_time::LOSS);
    }
    let netns = netns_inode()?;
    limits::raise_open_files(selected.len() * args.hooks_an_interface())?;
    let mut kernel = Kernel::load_object(args.object.0, &args.load_settings(&selected, netns))?;
    let filled = FilledPages::of(&mut kernel)?;
    // Before anything is attached, so that a port in use leaves nothing behind.
    let listeners = Listeners::bind(&args.listen).await?;
    for (slot, link) in selected.iter().enumerate() {
        kernel.register(link.ifindex, &link.name, slot as u32)?;
    }
    let mut filters = kernel.take_filters()?;
    let staged = filters.stage(&rules)?;
    kernel.follow(staged.set())?;
    filters.settle(staged);
    if args.bpf_log_level != BpfLogLevel::Off {
        forward_logs(&mut kernel)?;
    }

    // A signal from here on ends in a final scan.
    let stop = shutdown(args.duration)?;
    let mut before = Vec::new();
    for link in &selected {
        before.push((link.ifindex, links.counters(link.ifindex)?));
    }
    let qdiscs = QdiscDrops::open()?;
    let attachments = Attachments::attach(
        &mut kernel.ebpf,
        kernel.interfaces.clone(),
        &selected,
        AttachSettings {
            ingress_hook: args.ingress_hook,
            xdp_mode: args.xdp_mode,
            xdp_without_tags: args.xdp_without_tags,
            direction: args.direction,
            tc_attach: args.tc_attach,
        },
    )?;
    let mut hooks = Vec::new();
    for hook in &attachments.hooks {
        let after_attach = links.counters(hook.ifindex)?;
        let before_attach = before
            .iter()
            .find(|(ifindex, _)| *ifindex == hook.ifindex)
            .map_or(after_attach, |b| b.1);
        tracing::info!(
            interface = hook.interface,
            hook = status::hook_name(hook),
            mode = ?hook.mode,
            "attached"
        );
        hooks.push(HookState {
            hook: hook.clone(),
            account: agent_common::HookAccount::default(),
            before_attach,
            after_attach,
        });
    }
    let mut interfaces = Interfaces::open(&selected, netns)?;
    interfaces.read_before_flip()?;
    interfaces.read_after_flip(&attachments.gone())?;
    let scanner = Scanner::new(ScannerParts {
        kernel,
        attachments,
        replica: Replica::new(ReplicaSettings {
            max_flows: args.max_tracked_flows as usize,
            idle_timeout: args.idle_timeout,
            linger: args.linger,
        }),
        encoder: BatchEncoder::new(Arc::clone(&identity)).sampling(args.sample),
        hub: hub.clone(),
        interfaces,
        hooks,
    });
    tracing::info!(max_flows = args.max_flows, scan_interval = ?args.scan_interval, "counting");
    let switches = rules::start(filters, changes);
    let (counting, control) = ((scanner, filled, qdiscs), (control, switches));
    // The scanner holds accounts: too much for the caller's stack.
    Box::pin(serve(
        args, identity, hub, listeners, counting, stop, control,
    ))
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// The running agent: printer, server and scan loop; ends when all three have ended.
async fn serve(
    args: Args,
    identity: Arc<Identity>,
    hub: Hub,
    listeners: Listeners,
    (scanner, filled, qdiscs): (Scanner, FilledPages, QdiscDrops),
    stop: impl Future<Output = ()>,
    (control, switches): (Control, mpsc::Receiver<Switch>),
) -> Result<()> {
    let settings = StatusSettings {
        identity,
        started_unix_ns: crate::clock::unix_now_ns(),
        max_tracked_flows: u64::from(args.max_tracked_flows),
        scan_interval: args.scan_interval,
        early_scan_percent: args.early_scan,
        idle_timeout: args.idle_timeout,
        linger: args.linger,
        sample_rate: if args.sample < 2 { 0 } else { args.sample },
    };
    let (publisher, status_receiver) = Publisher::start(status::of(&settings, &scanner, 0), qdiscs);
    let printer = match args.output {
        Output::None => None,
        Output::Table => Some(Format::Table),
        Output::Json => Some(Format::Json),
    }
    .map(|format| Printing::start(hub.subscribe("stdout", "this process"), format));
    let (end_server, server_end) = oneshot::channel::<()>();
    let limits = args.limits();
    let server = tokio::spawn(server::run(
        listeners,
        hub.clone(),
        status_receiver,
        control,
        limits,
        DEFAULT_DRAIN_TIMEOUT,
        async move {
            // An error means that the sender is gone, which is an end as well.
            let _ = server_end.await;
        },
    ));

    let publish_status = |scanner: &Scanner, late, is_final| {
        publisher.publish(status::of(&settings, scanner, late), is_final);
    };
    let wakes = Wakes::new(args.scan_interval, filled);
    let ended = scan_until(stop, switches, wakes, scanner, publish_status).await;
    // The receiver is gone where the server ended early, with an error that is told below.
    let _ = end_server.send(());
    let outcome = server.await.context("the server task")?;
    if let Some(printer) = printer {
        printer.end().await?;
    }
    ended?;
    outcome.context("serve gRPC consumers")
}

/// Scans at every interval, and before where a page fills, until `shutdown`; then once more after
/// detaching.
async fn scan_until(
    shutdown: impl Future<Output = ()>,
    mut switches: mpsc::Receiver<Switch>,
    mut wakes: Wakes,
    mut scanner: Scanner,
    publish_status: impl Fn(&Scanner, u64, bool),
) -> Result<()> {
    let interval = wakes.interval;
    let (mut late, mut late_log) = (0, LogLimit::default());
    tokio::pin!(shutdown);
    loop {
        let wake = tokio::select! {
            Some(Switch { set, done }) = switches.recv() => {
                let (back, outcome) = tokio::task::spawn_blocking(move || {
                    let outcome = scanner.follow(set);
                    (scanner, outcome)
                })
                .await
                .context("the task that switches the filter rules")?;
                scanner = back;
                publish_status(&scanner, late, false);
                // Who asked may have left.
                let _ = done.send(outcome);
                continue;
            }
            wake = wakes.next(scanner.active_page()) => wake?,
            () = &mut shutdown => Wake::End,
        };
        let is_final = wake == Wake::End;
        let started = Instant::now();
        scanner = tokio::task::spawn_blocking(move || -> Result<_> {
            match wake {
                Wake::Interval => scanner.scan()?,
                Wake::Filled => scanner.scan_early()?,
                Wake::End => scanner.finish()?,
            }
            Ok(scanner)
        })
        .await
        .context("the scan task")??;
        if started.elapsed() > interval && !is_final {
            late += 1;
            if let Some(scans) = late_log.event() {
                tracing::warn!(
                    took = ?started.elapsed(),
                    ?interval,
                    scans,
                    "a scan took longer than the scan interval; the next ones are skipped, not piled up"
                );
            }
        }
        publish_status(&scanner, late, is_final);
        if is_final {
            let missing = scanner.account.missing();
            tracing::info!(
                seen = scanner.account.get(agent_common::Reason::Seen).packets,
                missing = missing.packets,
                "detached; final account"
            );
            return Ok(());
        }
    }
}

/// Resolves at SIGTERM, SIGINT, or the end of `duration`.
fn shutdown(duration: Option<Duration>) -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    Ok(async move {
        let end = async {
            match duration {
                Some(duration) => tokio::time::sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = end => {}
        }
    })
}

/// Who this agent is: machine, boot and process.
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
    })
}

/// Carries what the programs log to our own log, for as long as the process runs.
fn forward_logs(kernel: &mut Kernel) -> Result<()> {
    let mut logger =
        aya_log::EbpfLogger::init(&mut kernel.ebpf).context("read the programs' log")?;
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(LOG_FLUSH_INTERVAL);
        loop {
            ticks.tick().await;
            logger.flush();
        }
    });
    Ok(())
}
