//! `flow-agent top`: a live view of an agent's flows at a terminal, or once on stdout.

use std::{
    collections::HashSet,
    convert::Infallible,
    future::poll_fn,
    io::{self, IsTerminal as _},
    process::ExitCode,
    task::Poll,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use formats::Format;
use proto::ObserveRequest;
use rules::Rules;
use sys::clock::{boot_now_ns, unix_of_boot_ns};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use view::{
    client::{self, ClientError, Event, Observer, Target},
    top::{Sort, View, fleet::Fleet, print},
};

use super::{connect::Connect, notice, patiently, refused, unless_nothing_matches};

mod live;
mod own;
mod terminal;

use live::live;
use own::OwnAgent;

/// Rows of `--once` without `--limit`.
const ROWS: usize = 50;
/// How long `--once` waits for the hosts of a collector, at least and at most. The least is more than the default scan interval.
const LEAST_OF_ONCE: Duration = Duration::from_secs(15);
const MOST_OF_ONCE: Duration = Duration::from_mins(2);

/// Show what a host is talking to, live: its flows, peers, processes, units, interfaces, names and services.
///
/// Figures are those of a running agent, or of all agents of a collector (--connect). With `--`, `top` starts an agent of its own, which ends with it. Arguments after `--` go
/// to `flow-agent run`, as in `flow-agent top -- --interface eth0 --enrich process,tcp,dns`. `?` lists the keys.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub connect: Connect,

    /// What a row stands for.
    #[arg(
        long,
        value_name = "VIEW",
        env = "FLOW_AGENT_TOP_VIEW",
        value_enum,
        default_value = "flows"
    )]
    pub view: View,

    /// The sort order.
    #[arg(
        long,
        value_name = "ORDER",
        env = "FLOW_AGENT_TOP_SORT",
        value_enum,
        default_value = "rate"
    )]
    pub sort: Sort,

    /// Show only these flows, as in 'port https', 'host example.com' or 'exclude net 10.0.0.0/8'; repeatable, or separated
    /// by semicolons. --help has the language.
    #[arg(long, value_name = "RULES", env = "FLOW_AGENT_TOP_FILTER", long_help = rules::HELP_FOR_FLOWS)]
    pub filter: Vec<Rules>,

    /// How often to ask the agent for a scan, as in 1s; 0s never asks and shows the agent's own scans. All consumers
    /// get the records of these scans: more records, with less in each. Only an agent's Unix socket takes such
    /// requests; a collector's hosts are shown at their own scans.
    #[arg(
        long,
        value_name = "TIME",
        env = "FLOW_AGENT_TOP_EVERY",
        value_parser = super::time,
        default_value = "2s"
    )]
    pub every: Duration,

    /// Show the figures of one scan on stdout, and end.
    #[arg(long)]
    pub once: bool,

    /// With --once: how to print the rows.
    #[arg(
        short = 'o',
        long,
        value_name = "FORMAT",
        env = "FLOW_AGENT_TOP_OUTPUT",
        value_enum,
        default_value = "table"
    )]
    pub output: Format,

    /// With --once: the most rows; 0 shows all [default: 50].
    #[arg(short = 'n', long, value_name = "ROWS", env = "FLOW_AGENT_TOP_LIMIT")]
    pub limit: Option<usize>,

    /// Show times in UTC rather than in local time.
    #[arg(long)]
    pub utc: bool,

    /// Arguments of `flow-agent run` for an agent that runs as long as this command. It listens on a socket of its own, and
    /// reads no file of settings unless --config names one. `--` alone starts one without arguments.
    #[arg(last = true, value_name = "RUN ARGUMENTS")]
    pub own: Vec<String>,
}

/// Whether to start an agent. clap does not tell `--` with nothing behind it from no `--`, which is no option's value.
fn starts_an_agent(args: &Args) -> bool {
    !args.own.is_empty() || std::env::args_os().any(|argument| argument == "--")
}

/// Fails if options contradict each other, or do not fit where this runs.
fn refuse_contradictions(args: &Args) -> Result<()> {
    ensure!(
        args.view.sorts().contains(&args.sort),
        "--sort {} is nothing that --view {} has: it has {}",
        args.sort.title(),
        args.view.title().to_lowercase(),
        names_of(args.view.sorts()),
    );
    ensure!(
        args.once || io::stdout().is_terminal() && io::stdin().is_terminal(),
        "this is not a terminal: add --once for one table, or use `flow-agent watch` for one with each scan"
    );
    ensure!(
        args.once || args.limit.is_none() && args.output == Format::Table,
        "--limit and --output say what --once prints: add it, or leave them out"
    );
    ensure!(
        !starts_an_agent(args) || args.connect.target()?.to_string() == client::DEFAULT_TARGET,
        "--connect names an agent, but the arguments after -- start another one: leave one of them out"
    );
    Ok(())
}

pub async fn run(args: Args) -> Result<ExitCode> {
    refuse_contradictions(&args).map_err(refused)?;
    let mut own = if starts_an_agent(&args) {
        Some(OwnAgent::start(&args.own)?)
    } else {
        None
    };
    let target = match &own {
        Some(own) => own.target(),
        None => args.connect.target()?,
    };
    let shown = async {
        let Some(own) = &mut own else {
            let shown = show(&args, &target).await;
            return shown.map_err(or_starts_one);
        };
        own.ready().await?;
        tokio::select! {
            shown = show(&args, &target) => shown,
            error = own.ended() => Err(error),
        }
    };
    let shown = tokio::select! {
        shown = shown => shown,
        () = interrupted() => {
            if args.once {
                Err(anyhow!("it was stopped before a scan was over"))
            } else {
                Ok(ExitCode::SUCCESS)
            }
        }
    };
    let stopped = match own {
        Some(own) => own.stop().await,
        None => Ok(()),
    };
    let code = shown?;
    stopped.map(|()| code)
}

/// The error for a user who did not mean a running agent.
fn or_starts_one(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(ClientError::NobodyListens { target })
            if target.to_string() == client::DEFAULT_TARGET =>
        {
            anyhow!(
                "no agent listens on {target}: add `--` for one that ends with this command, as in `flow-agent top -- --enrich \
             unit,process`, start one (`systemctl start flow-agent`), or name a running one (--connect)"
            )
        }
        Some(_) | None => error,
    }
}

async fn show(args: &Args, target: &Target) -> Result<ExitCode> {
    if args.once {
        once(args, target).await
    } else {
        live(args, target).await.map(|()| ExitCode::SUCCESS)
    }
}

fn names_of(sorts: &[Sort]) -> String {
    let names: Vec<_> = sorts.iter().map(|sort| sort.title()).collect();
    names.join(", ")
}

/// Returns on a signal to end, so that the terminal is restored and our own agent is stopped.
async fn interrupted() {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    // If a signal cannot be waited for, the kernel ends the process.
    let mut signals: Vec<_> = kinds
        .into_iter()
        .filter_map(|kind| signal(kind).ok())
        .collect();
    poll_fn(|context| {
        let mut signals = signals.iter_mut();
        if signals.any(|signal| signal.poll_recv(context).is_ready()) {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

/// Observes an agent, beginning with the flows that it tracks, or a collector, which tracks none. Returns whether it is a
/// collector.
async fn observe(target: &Target, filter: String) -> Result<(Observer, bool), ClientError> {
    let request = ObserveRequest {
        filter,
        consumer: format!("top pid={}", std::process::id()),
        snapshot: true,
    };
    match Observer::connect_with(target.clone(), request.clone()).await {
        Err(ClientError::Refused { .. }) if client::is_collector(target).await => {
            let snapshot = false;
            let request = ObserveRequest {
                snapshot,
                ..request
            };
            let observer = Observer::connect_with(target.clone(), request).await?;
            Ok((observer, true))
        }
        observed => Ok((observed?, false)),
    }
}

/// Whether to request scans.
fn asks(target: &Target, every: Duration) -> bool {
    !every.is_zero() && matches!(target, Target::Unix(_))
}

/// Requests scans, one after another. Returns the reason if the agent does not accept such requests.
async fn ask_for_scans(target: &Target, every: Duration, is_collector: bool) -> String {
    if is_collector {
        return "at each agent's own scans".to_owned();
    }
    if !asks(target, every) {
        return "at the agent's own scans".to_owned();
    }
    let mut pace = tokio::time::interval(every);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pace.tick().await;
        // The stream reports all other errors, including the end of the agent.
        let asked = client::scan_now(target).await;
        if let Err(
            error @ (ClientError::Refused { .. }
            | ClientError::TooOld { .. }
            | ClientError::NoRoom { .. }),
        ) = asked
        {
            return format!("at the agent's own scans: {error}");
        }
    }
}

/// The hosts that a collector says are connected, if it tells this caller.
async fn connected_hosts(target: &Target) -> Option<usize> {
    let status = client::collector_status(target).await.ok()?;
    let connected = status.streams.iter().filter(|stream| stream.connected);
    let agents = connected.filter_map(|stream| stream.agent.as_ref());
    let agents: HashSet<_> = agents
        .map(|agent| (&agent.identity, &agent.agent_id, &agent.instance_id))
        .collect();
    Some(agents.len())
}

/// Whether `--once` can print: it has this many windows of an agent, or a scan of each host that is connected to a collector.
fn is_enough(fleet: &Fleet, windows: u64, connected: Option<usize>) -> bool {
    if fleet.is_collector() {
        return connected
            .is_some_and(|connected| connected > 0 && fleet.shown().count() >= connected);
    }
    !fleet.is_partial() && fleet.windows() >= windows
}

/// How long `--once` waits for the hosts of a collector: until each that scans as often as the slowest one has had its turn, and
/// its batches have had time to come.
fn round(fleet: &Fleet) -> Duration {
    match fleet.longest_window() {
        Some(longest) => {
            (longest * 5 / 4 + Duration::from_secs(2)).clamp(LEAST_OF_ONCE, MOST_OF_ONCE)
        }
        None => MOST_OF_ONCE,
    }
}

async fn once(args: &Args, target: &Target) -> Result<ExitCode> {
    let observer = observe(target, rules::text(&args.filter));
    let (mut observer, is_collector) = patiently(target, observer).await?;
    let mut fleet = Fleet::new(args.every, is_collector, Instant::now());
    let connected = if is_collector {
        connected_hosts(target).await
    } else {
        None
    };
    // The first requested scan ends a window that began before the command.
    let windows = if asks(target, args.every) { 2 } else { 1 };
    let started = Instant::now();
    let scan = async {
        let why = ask_for_scans(target, args.every, is_collector).await;
        notice(&format!("waiting for a scan, {why}"));
        std::future::pending::<Infallible>().await
    };
    let first = async {
        while !is_enough(&fleet, windows, connected) {
            let rest = round(&fleet).saturating_sub(started.elapsed());
            let event = tokio::select! {
                event = observer.next() => event?,
                () = sleep(rest), if is_collector => return Ok(()),
            };
            match event {
                Event::Batch(batch) => {
                    fleet.add_batch(*batch, Instant::now());
                }
                Event::Disconnected { reason } => bail!("{reason}"),
                Event::Gap { batches } => fleet.missing.gaps += batches,
                Event::Reconnected(_) => {}
            }
        }
        Ok(())
    };
    tokio::select! {
        got = first => got?,
        never = scan => match never {},
    }
    fleet.tick(Instant::now(), unix_of_boot_ns(boot_now_ns()));
    let most = match args.limit {
        None => ROWS,
        Some(0) => usize::MAX,
        Some(most) => most,
    };
    let stdout = io::stdout();
    let width = terminal_size::terminal_size_of(&stdout).map(|(width, _)| width.0.into());
    let out = formats::buffered(stdout);
    let chosen = (args.view, args.sort);
    let printed = match args.output {
        Format::Table => print::table(out, &fleet, chosen, (most, width.unwrap_or(usize::MAX))),
        Format::Json => print::json(out, &fleet, chosen, most, connected),
    };
    match printed {
        Err(error) if formats::is_broken_pipe(&error) => {}
        printed => printed.context("write to stdout")?,
    }
    let flows = fleet.hosts().map(|host| host.picture.flows().count()).sum();
    let has_filter = !args.filter.is_empty();
    Ok(unless_nothing_matches(has_filter, flows))
}
