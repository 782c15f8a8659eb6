//! `flow-agent run`: settings come in, flow records go to gRPC consumers and to stdout until the
//! end is asked for; then everything is detached, drained and sent.

use std::{collections::BTreeSet, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
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
        links::{LinkSocket, netns_inode, tags::TagWatch},
        load::Kernel,
        real_time,
    },
    limits,
    output::Format,
    replica::{Replica, ReplicaSettings},
    scan::{Interfaces, Scanner, ScannerParts},
    server::{self, DEFAULT_DRAIN_TIMEOUT, Listeners},
    status::{self, StatusSettings},
};

mod args;
mod printing;
mod publish;
mod reload;
mod rules;
mod scanning;
mod wakes;

use args::BpfLogLevel;
pub use args::{Args, Object, Output};
use printing::Printing;
use publish::{Publisher, QdiscDrops};
use rules::Switch;
use scanning::Scanning;
use wakes::Wakes;

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
    let qdiscs = QdiscDrops::open()?;
    let mut interfaces = Interfaces::open(&selected, netns)?;
    interfaces.read_before_flip()?;
    interfaces.read_after_flip(&BTreeSet::new())?;
    let settings = AttachSettings {
        ingress_hook: args.ingress_hook,
        xdp_mode: args.xdp_mode,
        xdp_without_tags: args.xdp_without_tags,
        direction: args.direction,
        tc_attach: args.tc_attach,
    };
    let (attachments, attached) = Attachments::start(&mut kernel, selected, settings)?;
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
        tags: TagWatch::start()?,
    });
    let switches = rules::start(filters, changes);
    let counting = Counting {
        scanner,
        filled,
        qdiscs,
        attached,
    };
    // The scanner holds accounts: too much for the caller's stack.
    let control = (control, switches);
    Box::pin(serve(
        args, identity, hub, listeners, counting, stop, control,
    ))
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// What counts, or is about to.
struct Counting {
    scanner: Scanner,
    filled: FilledPages,
    qdiscs: QdiscDrops,
    /// Hears when every hook is attached, or which one failed.
    attached: oneshot::Receiver<Result<()>>,
}

/// The running agent: printer, server and scan loop; ends when all three have ended.
async fn serve(
    args: Args,
    identity: Arc<Identity>,
    hub: Hub,
    listeners: Listeners,
    counting: Counting,
    stop: impl Future<Output = ()>,
    (control, switches): (Control, mpsc::Receiver<Switch>),
) -> Result<()> {
    let Counting {
        scanner,
        filled,
        qdiscs,
        attached,
    } = counting;
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
    let (publisher, statuses) = Publisher::start(status::of(&settings, &scanner, 0), qdiscs);
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
        statuses.clone(),
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
    let (max_flows, scan_interval) = (args.max_flows, args.scan_interval);
    let tell = |hooks: usize| {
        let mut statuses = statuses.clone();
        // Whoever reads the line finds the hooks in the status.
        tokio::spawn(async move {
            let _ = statuses
                .wait_for(|status| status.hooks.len() >= hooks)
                .await;
            tracing::info!(max_flows, ?scan_interval, "counting");
        });
    };
    let ended = Scanning {
        switches,
        wakes,
        attached,
    }
    .run(stop, scanner, publish_status, tell)
    .await;
    // The receiver is gone where the server ended early, with an error that is told below.
    let _ = end_server.send(());
    let outcome = server.await.context("the server task")?;
    if let Some(printer) = printer {
        printer.end().await?;
    }
    ended?;
    outcome.context("serve gRPC consumers")
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
