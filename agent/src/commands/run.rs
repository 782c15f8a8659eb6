//! `flow-agent run`: settings come in, flow records go to gRPC consumers and to stdout until the
//! end is asked for; then everything is detached, drained and sent.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
    time::Instant,
};

use crate::{
    batch::{BatchEncoder, Identity},
    control::{self, Changes, Control},
    filter::{self, Rules},
    hub::{DEFAULT_QUEUE_BATCHES, Hub},
    interfaces::{self, Patterns},
    kernel::{
        attach::{AttachSettings, Attachments, Direction, IngressHook, TcAttach, XdpMode},
        filled::FilledPages,
        links::{Link, LinkSocket, netns_inode, presence::Presence},
        load::{Kernel, LoadSettings},
    },
    log_limit::LogLimit,
    output::Format,
    replica::{Replica, ReplicaSettings},
    scan::{HookState, Scanner, ScannerParts},
    server::{self, DEFAULT_DRAIN_TIMEOUT, ListenAddr, Listeners},
    status::{self, StatusSettings},
    wire,
};

mod printing;
mod reload;
mod wakes;

use printing::Printing;
use wakes::{Wake, Wakes};

/// Count the flows of interfaces and stream them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interfaces by name, glob, or /regular expression/; repeatable [default: those that carry a
    /// default route].
    #[arg(long, value_name = "PATTERN", env = "FLOW_AGENT_INTERFACE")]
    pub interface: Vec<Patterns>,

    /// Interfaces to leave out, likewise.
    #[arg(long, value_name = "PATTERN", env = "FLOW_AGENT_EXCLUDE_INTERFACE")]
    pub exclude_interface: Vec<Patterns>,

    /// Where arriving packets are counted: tc sees what GRO made of them, xdp each frame.
    #[arg(
        long,
        env = "FLOW_AGENT_INGRESS_HOOK",
        value_enum,
        default_value = "tc"
    )]
    pub ingress_hook: IngressHook,

    /// How XDP is attached; native may reset a NIC.
    #[arg(long, env = "FLOW_AGENT_XDP_MODE", value_enum, default_value = "auto")]
    pub xdp_mode: XdpMode,

    /// How TC programs are attached: links that end with the process, or filters on clsact.
    #[arg(long, env = "FLOW_AGENT_TC_ATTACH", value_enum, default_value = "auto")]
    pub tc_attach: TcAttach,

    /// Which packets are counted.
    #[arg(long, env = "FLOW_AGENT_DIRECTION", value_enum, default_value = "both")]
    pub direction: Direction,

    /// Flows in each of the two pages of the kernel's table, some 190 bytes of kernel memory each.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_MAX_FLOWS", default_value_t = 500_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub max_flows: u32,

    /// Flows kept in userspace; beyond it the one that was quiet the longest leaves.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_MAX_TRACKED_FLOWS", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub max_tracked_flows: u32,

    /// Count what tunnels carry (VXLAN, Geneve, GRE, IP in IP) in flows of its own addresses and ports,
    /// up to two tunnels deep; otherwise a flow is the tunnel's.
    #[arg(long, env = "FLOW_AGENT_DECAPSULATE")]
    pub decapsulate: bool,

    /// Fragmented datagrams whose ports are remembered for their later fragments, some 150 bytes of
    /// kernel memory each; beyond it the one that was quiet the longest leaves.
    #[arg(long, value_name = "DATAGRAMS", env = "FLOW_AGENT_MAX_FRAGMENTS", default_value_t = 16_384,
          value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub max_fragments: u32,

    /// How often the table is drained.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_SCAN_INTERVAL", default_value = "10s",
          value_parser = interval)]
    pub scan_interval: Duration,

    /// How full a page is, in percent of --max-flows, when it is drained before the interval is over;
    /// 0 always waits.
    #[arg(long, value_name = "PERCENT", env = "FLOW_AGENT_EARLY_SCAN", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(0..=99))]
    pub early_scan: u32,

    /// After this time without a packet a flow ends.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_IDLE_TIMEOUT", default_value = "60s",
          value_parser = humantime::parse_duration)]
    pub idle_timeout: Duration,

    /// Where consumers connect: unix:PATH (mode 0660) or a TCP address; repeatable.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "FLOW_AGENT_LISTEN",
        value_delimiter = ',',
        default_value = "unix:/run/flow-agent/flow-agent.sock"
    )]
    pub listen: Vec<ListenAddr>,

    /// Flows on stdout as well: a table for people, JSON Lines for programs.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "FLOW_AGENT_OUTPUT",
        value_enum,
        default_value = "none"
    )]
    pub output: Output,

    /// Rules that leave packets out before they reach the table: include or exclude, then [src|dst]
    /// net, [src|dst] port, proto, on INTERFACE, ingress or egress. The first that matches decides;
    /// what none matches is counted. Separated by semicolons; repeatable.
    #[arg(
        long,
        value_name = "RULES",
        env = "FLOW_AGENT_FILTER",
        long_help = filter::HELP
    )]
    pub filter: Vec<Rules>,

    /// Rules behind those of --filter, one a line; # begins a comment.
    #[arg(long, value_name = "PATH", env = "FLOW_AGENT_FILTER_FILE")]
    pub filter_file: Option<PathBuf>,

    /// Count one flow in so many, and all packets of that one; 1 counts every flow. The choice falls by
    /// a hash of endpoints and protocol: the same flows at every agent.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_SAMPLE", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: u32,

    /// Stop after this time, as in 10s or 2m.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_DURATION", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,

    /// What the kernel programs log about single packets; costs nothing while off.
    #[arg(
        long,
        value_name = "LEVEL",
        env = "FLOW_AGENT_BPF_LOG_LEVEL",
        value_enum,
        default_value = "off"
    )]
    pub bpf_log_level: BpfLogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    None,
    Table,
    Json,
}

/// aya-log's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BpfLogLevel {
    Off = 0,
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
    Trace = 5,
}

/// Where the setting is not 0, at least one flow.
fn early_scan_flows(max_flows: u32, percent: u32) -> u32 {
    let flows = u64::from(max_flows) * u64::from(percent) / 100;
    u32::try_from(flows).map_or(u32::MAX, |flows| flows.max(u32::from(percent != 0)))
}

/// A flip alone waits for some milliseconds.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(10);

/// How often the programs' log is carried over, where it is on.
const LOG_FLUSH_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < MIN_SCAN_INTERVAL {
        return Err(format!(
            "at least {}",
            humantime::format_duration(MIN_SCAN_INTERVAL)
        ));
    }
    Ok(interval)
}

impl Args {
    fn load_settings(&self, selected: &[Link], netns: u32) -> LoadSettings {
        LoadSettings {
            max_flows: self.max_flows,
            max_fragments: self.max_fragments,
            early_scan_flows: early_scan_flows(self.max_flows, self.early_scan),
            decapsulate: self.decapsulate,
            netns,
            max_ifindex: selected.iter().map(|link| link.ifindex).max().unwrap_or(0),
            interfaces: selected.len() as u32,
            sample_rate: self.sample,
            log_level: self.bpf_log_level as u8,
        }
    }
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let rules = filter::read(&args.filter, args.filter_file.as_deref())?;
    let (control, changes) = control::channel(&rules);
    reload::at_hangup(&args, control.clone())?;
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES);
    let identity = Arc::new(identity()?);
    let mut links = LinkSocket::open()?;
    let selected = interfaces::select(
        &links.links()?,
        &interfaces::all(&args.interface),
        &interfaces::all(&args.exclude_interface),
        &links.default_route_ifindexes()?,
    )?;
    let netns = netns_inode()?;
    let mut kernel = Kernel::load(&args.load_settings(&selected, netns))?;
    let filled = FilledPages::of(&mut kernel)?;
    // Before anything is attached, so that a port in use leaves nothing behind.
    let listeners = Listeners::bind(&args.listen).await?;
    for (slot, link) in selected.iter().enumerate() {
        kernel.register(link.ifindex, &link.name, slot as u32)?;
    }
    kernel.set_filters(&rules)?;
    if args.bpf_log_level != BpfLogLevel::Off {
        forward_logs(&mut kernel)?;
    }

    // A signal from here on ends in a final scan.
    let stop = shutdown(args.duration)?;
    let mut before = Vec::new();
    for link in &selected {
        before.push((link.ifindex, links.counters(link.ifindex)?));
    }
    let qdisc_drops = links.qdisc_drops().unwrap_or_default();
    let attachments = Attachments::attach(
        &mut kernel.ebpf,
        &selected,
        AttachSettings {
            ingress_hook: args.ingress_hook,
            xdp_mode: args.xdp_mode,
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
            before_flip: after_attach,
            after_flip: after_attach,
            qdisc_drops_before_attach: qdisc_drops.get(&hook.ifindex).copied(),
            qdisc_drops_after_flip: None,
        });
    }
    let scanner = Scanner::new(ScannerParts {
        kernel,
        attachments,
        links,
        replica: Replica::new(ReplicaSettings {
            max_flows: args.max_tracked_flows as usize,
            idle_timeout: args.idle_timeout,
        }),
        encoder: BatchEncoder::new(Arc::clone(&identity)).sampling(args.sample),
        hub: hub.clone(),
        interfaces: on_the_wire(&selected, netns),
        hooks,
    });
    tracing::info!(max_flows = args.max_flows, scan_interval = ?args.scan_interval, "counting");
    let (counting, control) = ((scanner, filled), (control, changes));
    // The scanner holds accounts: too much for the caller's stack.
    Box::pin(serve(
        args, identity, hub, listeners, counting, stop, control,
    ))
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// The interfaces as batches name them.
fn on_the_wire(selected: &[Link], netns: u32) -> Arc<[wire::Interface]> {
    let interface = |link: &Link| wire::Interface {
        ifindex: link.ifindex,
        name: link.name.clone(),
        netns,
    };
    selected.iter().map(interface).collect()
}

/// The running agent: printer, server and scan loop; ends when all three have ended.
async fn serve(
    args: Args,
    identity: Arc<Identity>,
    hub: Hub,
    listeners: Listeners,
    (scanner, filled): (Scanner, FilledPages),
    stop: impl Future<Output = ()>,
    (control, changes): (Control, Changes),
) -> Result<()> {
    let settings = StatusSettings {
        identity,
        started_unix_ns: crate::clock::unix_now_ns(),
        max_tracked_flows: u64::from(args.max_tracked_flows),
        scan_interval: args.scan_interval,
        early_scan_percent: args.early_scan,
        idle_timeout: args.idle_timeout,
        sample_rate: if args.sample < 2 { 0 } else { args.sample },
    };
    let presence = Presence::open()?;
    let (status_sender, status_receiver) =
        watch::channel(Arc::new(status::of(&settings, &scanner, &presence, 0)));
    let printer = match args.output {
        Output::None => None,
        Output::Table => Some(Format::Table),
        Output::Json => Some(Format::Json),
    }
    .map(|format| Printing::start(hub.subscribe("stdout", "this process"), format));
    let (end_server, server_end) = oneshot::channel::<()>();
    let server = tokio::spawn(server::run(
        listeners,
        hub.clone(),
        status_receiver,
        control,
        DEFAULT_DRAIN_TIMEOUT,
        async move {
            // An error means that the sender is gone, which is an end as well.
            let _ = server_end.await;
        },
    ));

    let publish_status = |scanner: &Scanner, presence: &Presence, late| {
        let status = status::of(&settings, scanner, presence, late);
        status_sender.send_replace(Arc::new(status));
    };
    let wakes = Wakes::new(args.scan_interval, filled);
    let ended = scan_until(stop, changes, wakes, scanner, presence, publish_status).await;
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
    mut changes: Changes,
    mut wakes: Wakes,
    mut scanner: Scanner,
    mut presence: Presence,
    publish_status: impl Fn(&Scanner, &Presence, u64),
) -> Result<()> {
    let interval = wakes.interval;
    let (mut late, mut late_log) = (0, LogLimit::default());
    tokio::pin!(shutdown);
    loop {
        let wake = tokio::select! {
            change = changes.next() => {
                let (back, change, outcome) = tokio::task::spawn_blocking(move || {
                    let outcome = scanner.set_filters(&change.rules);
                    (scanner, change, outcome)
                })
                .await
                .context("the task that changes the filter rules")?;
                scanner = back;
                changes.end(change, &outcome);
                continue;
            }
            wake = wakes.next(scanner.active_page()) => wake?,
            () = &mut shutdown => Wake::End,
        };
        let is_final = wake == Wake::End;
        let started = Instant::now();
        (scanner, presence) = tokio::task::spawn_blocking(move || -> Result<_> {
            match wake {
                Wake::Interval => scanner.scan()?,
                Wake::Filled => scanner.scan_early()?,
                Wake::End => scanner.finish()?,
            }
            for state in &scanner.hooks {
                presence.look(state.hook.ifindex, &state.hook.interface);
            }
            Ok((scanner, presence))
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
        publish_status(&scanner, &presence, late);
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

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::*;

    #[test]
    fn the_mark_is_a_part_of_the_table_and_at_least_one_flow() {
        assert_eq!(early_scan_flows(500_000, 50), 250_000);
        assert_eq!(early_scan_flows(100_000_000, 99), 99_000_000);
        assert_eq!(early_scan_flows(1, 50), 1);
        assert_eq!(early_scan_flows(500_000, 0), 0);
    }

    fn options() -> Command {
        Args::augment_args(Command::new("run"))
    }

    #[test]
    fn every_option_is_also_a_variable() {
        for option in options().get_arguments() {
            let name = option.get_long().expect("options have long names");
            let variable = format!("FLOW_AGENT_{}", name.to_uppercase().replace('-', "_"));
            assert_eq!(option.get_env(), Some(variable.as_ref()), "--{name}");
        }
    }

    #[test]
    fn the_services_settings_are_options_with_their_defaults() {
        let settings = include_str!("../../../deploy/flow-agent.env");
        let command = options();
        let mut named = Vec::new();
        for line in settings.lines() {
            let Some((variable, value)) = line
                .strip_prefix('#')
                .and_then(|line| line.split_once('='))
                .filter(|(variable, _)| variable.starts_with("FLOW_AGENT_"))
            else {
                continue;
            };
            let option = command
                .get_arguments()
                .find(|option| option.get_env() == Some(variable.as_ref()))
                .unwrap_or_else(|| panic!("{variable} is no option"));
            if let [default] = option.get_default_values() {
                assert_eq!(default, value, "{variable}");
            }
            named.push(variable);
        }
        // A service has no end that is set.
        let all = command.get_arguments().count();
        assert_eq!(named.len(), all - 1, "{named:?}");
    }
}
