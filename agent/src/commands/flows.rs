//! `flow-agent flows`: lists the flows that an agent tracks, once.

use std::{io, process::ExitCode};

use anyhow::{Context as _, Result};
use formats::{Format, Printer};
use proto::{FlowOrder, ListFlowsRequest};
use rules::Rules;
use tokio::task::spawn_blocking;
use view::client;

use super::{connect::Connect, of_an_agent, patiently, scan_first, unless_nothing_matches};

/// Rows of a table without `--limit`.
const ROWS: u32 = 50;

/// List the flows that a running agent tracks, with all of their packets so far.
///
/// On its Unix socket the agent scans first, so the list is current. Over TCP the list is that of its last scan. The
/// total at the end of a table includes flows that are not shown.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub connect: Connect,

    /// How to print the flows.
    #[arg(
        short = 'o',
        long,
        value_name = "FORMAT",
        env = "FLOW_AGENT_FLOWS_OUTPUT",
        value_enum,
        default_value = "table"
    )]
    pub output: Format,

    /// List only these flows, as in 'port https', 'host example.com' or 'exclude net 10.0.0.0/8'; repeatable, or separated
    /// by semicolons. --help has the language.
    #[arg(long, value_name = "RULES", env = "FLOW_AGENT_FLOWS_FILTER", long_help = rules::HELP_FOR_FLOWS)]
    pub filter: Vec<Rules>,

    /// The sort order.
    #[arg(
        long,
        value_name = "ORDER",
        env = "FLOW_AGENT_FLOWS_SORT",
        value_enum,
        default_value = "bytes"
    )]
    pub sort: Sort,

    /// The most flows to list; 0 lists all [default: 50 in a table, all in JSON].
    #[arg(
        short = 'n',
        long,
        value_name = "FLOWS",
        env = "FLOW_AGENT_FLOWS_LIMIT"
    )]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// The most bytes in both directions.
    Bytes,
    /// The most packets in both directions.
    Packets,
    /// The latest last packet.
    LastSeen,
    /// The latest first packet.
    FirstSeen,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let target = &args.connect.target()?;
    let limit = args.limit.unwrap_or(match args.output {
        Format::Table => ROWS,
        Format::Json => 0,
    });
    let is_filtered = !args.filter.is_empty();
    // The agent does not tell those beyond a limit from those that do not pass the filter, and the total needs them.
    let needs_all = is_filtered && args.output == Format::Table;
    let request = ListFlowsRequest {
        filter: rules::text(&args.filter),
        order: match args.sort {
            Sort::Bytes => FlowOrder::Bytes,
            Sort::Packets => FlowOrder::Packets,
            Sort::LastSeen => FlowOrder::LastSeen,
            Sort::FirstSeen => FlowOrder::FirstSeen,
        }
        .into(),
        limit: if needs_all { 0 } else { limit },
    };
    // Clients that may not request a scan get the flows of the last one.
    scan_first(target).await?;
    let listed = patiently(target, client::list_flows(target, request)).await;
    let instead = format!(
        "it keeps no flows to list; watch incoming flows with `flow-agent watch --output json --connect {target}`, \
         add up the stored ones with `flow-agent query`, or give the address of an agent"
    );
    let batches = of_an_agent(target, listed, &instead).await?;
    let rows = if limit == 0 {
        usize::MAX
    } else {
        limit as usize
    };
    let found = batches.iter().map(|batch| batch.records.len()).sum();
    let print = move || {
        let mut printer = Printer::once(args.output, rows, is_filtered);
        for batch in &batches {
            match printer.batch(batch) {
                Err(error) if formats::is_broken_pipe(&error) => break,
                written => written?,
            }
        }
        Ok(())
    };
    // The connection closes meanwhile: the reader of stdout may be slow.
    let printed: io::Result<()> = spawn_blocking(print).await.context("write to stdout")?;
    printed.context("write to stdout")?;
    Ok(unless_nothing_matches(is_filtered, found))
}
