//! `flow-agent watch`: shows an agent's flows as a table or JSON Lines, across restarts of the agent.

use std::{
    cell::Cell,
    convert::Infallible,
    io,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use formats::{Format, Printer};
use proto::{FlowBatch, ObserveRequest};
use rules::Rules;
use tokio::{task::spawn_blocking, time::timeout};
use view::client::{self, ClientError, Event, Observer, Reconnected, Target};

use super::{connect::Connect, notice, patiently};
use crate::stdout;

/// How long the write of a batch may take after the command was told to end.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// Show the flows that a running agent sees.
///
/// A table begins with the flows that the agent tracks. On its Unix socket the agent also scans at once. JSON Lines
/// begin with the next scan. Each table's total includes flows that are not shown, and the last line has the total of
/// all scans.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub connect: Connect,

    /// How to print the flows of each scan. On a terminal, the table is redrawn in place.
    #[arg(
        short = 'o',
        long,
        value_name = "FORMAT",
        env = "FLOW_AGENT_WATCH_OUTPUT",
        value_enum,
        default_value = "table"
    )]
    pub output: Format,

    /// Show only these flows, as in 'port https', 'host example.com' or 'exclude net 10.0.0.0/8'; repeatable, or separated
    /// by semicolons. The account stays that of all packets. --help has the language.
    #[arg(long, value_name = "RULES", env = "FLOW_AGENT_WATCH_FILTER", long_help = rules::HELP_FOR_FLOWS)]
    pub filter: Vec<Rules>,

    /// Stop after this time, as in 10s or 2m.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_WATCH_DURATION", value_parser = super::time)]
    pub duration: Option<Duration>,

    /// The most rows of a table [default: as many as fit the terminal, otherwise 50].
    #[arg(short = 'n', long, value_name = "ROWS", env = "FLOW_AGENT_WATCH_LIMIT")]
    pub limit: Option<usize>,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let target = args.connect.target()?;
    let end = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let screen = Screen::new(args.output, args.limit);
    let progress = Cell::new(Progress::Connecting);
    tokio::select! {
        watched = watch(&args, &target, &screen, &progress) => watched?,
        () = stdout::closed() => {}
        () = end => say_what_was_missing(&args, target.clone(), progress.get())?,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("wait for SIGINT")?,
    }
    screen.finish().await;
    Ok(ExitCode::SUCCESS)
}

/// How much of its answer the agent has sent.
#[derive(Clone, Copy)]
enum Progress {
    Connecting,
    Observing,
    Showing,
}

/// After the duration, explains an empty stdout, so that nobody takes it for an interface without flows.
fn say_what_was_missing(args: &Args, target: Target, progress: Progress) -> Result<()> {
    let after = args.duration.unwrap_or_default();
    match progress {
        Progress::Connecting => {
            return Err(ClientError::NoAnswer { target, after }.into());
        }
        Progress::Observing => notice(&format!(
            "no scan came within {}: the agent scans less often (`flow-agent status` says how often), or \
             it is stopped",
            humantime::format_duration(after)
        )),
        Progress::Showing => {}
    }
    Ok(())
}

/// Stdout, written by another thread. So the command can end even if the reader of stdout has stopped reading.
struct Screen(Arc<Mutex<Printer<io::BufWriter<io::Stdout>>>>);

impl Screen {
    fn new(format: Format, limit: Option<usize>) -> Self {
        Self(Arc::new(Mutex::new(Printer::on_stdout(format, limit))))
    }

    async fn show(&self, batch: FlowBatch) -> Result<io::Result<()>> {
        let printer = Arc::clone(&self.0);
        spawn_blocking(move || {
            let mut printer = printer.lock().unwrap_or_else(PoisonError::into_inner);
            printer.batch(&batch)
        })
        .await
        .context("write to stdout")
    }

    /// Waits for the batch that is being written, and writes the sum of all, unless stdout is not read.
    async fn finish(self) {
        let last = spawn_blocking(move || {
            let mut printer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever closed stdout does not miss it.
            let _ = printer.finish();
        });
        let _ = timeout(LAST_WRITE, last).await;
    }
}

/// Shows batches until stdout is closed.
async fn watch(
    args: &Args,
    target: &Target,
    screen: &Screen,
    progress: &Cell<Progress>,
) -> Result<()> {
    let consumer = format!("watch pid={}", std::process::id());
    let request = ObserveRequest {
        filter: rules::text(&args.filter),
        consumer,
        snapshot: args.output == Format::Table,
    };
    let observer = Observer::connect_with(target.clone(), request);
    let mut observer = patiently(target, observer).await?;
    progress.set(Progress::Observing);
    let scan = async {
        if args.output == Format::Table {
            // A scan on request: the table starts with the known flows, then shows the packets since the last scan.
            // Clients that may not request one wait for the next scan.
            let _ = client::scan_now(target).await;
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        shown = show_all(target, screen, progress, &mut observer) => shown,
        never = scan => match never {},
    }
}

async fn show_all(
    target: &Target,
    screen: &Screen,
    progress: &Cell<Progress>,
    observer: &mut Observer,
) -> Result<()> {
    loop {
        match observer.next().await? {
            Event::Batch(batch) => {
                progress.set(Progress::Showing);
                match screen.show(*batch).await? {
                    Err(error) if formats::is_broken_pipe(&error) => return Ok(()),
                    written => written.context("write to stdout")?,
                }
            }
            Event::Disconnected { reason } => {
                notice(&format!(
                    "{reason}; waiting for the agent at {target} to come back"
                ));
            }
            Event::Reconnected(Reconnected::ToAnother) => {
                notice("an agent answers again; it is another process, so totals start over");
            }
            Event::Reconnected(Reconnected::ToTheSame { missed_scans }) => {
                notice(&format!(
                    "connected again; {missed_scans} scans were missed"
                ));
            }
            Event::Reconnected(Reconnected::ToACollector) => {
                notice("a collector answers again; flows that it received meanwhile are not shown");
            }
            Event::Gap { batches } => {
                notice(&format!("{batches} batches are missing on the stream"));
            }
        }
    }
}
