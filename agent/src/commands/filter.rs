//! `flow-agent filter`: shows or replaces the rules in force, one per line, as in a rules file.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, anyhow};
use formats::harmless;
use proto::Filters;
use rules::PacketRules;
use view::client;

use super::{answer, connect::Connect, notice, of_an_agent, patiently, refused};

/// Show or change the filter rules of a running agent.
///
/// Only its Unix socket answers: over TCP the rules can be neither read nor changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the rules in force, in the form of a file of rules.
    Show,
    /// Replace all rules by these, until the agent finds other rules in its settings (SIGHUP) or ends. No packet
    /// passes unfiltered in between. If a rule cannot be read, all rules stay as they were. A set has at most 1,024
    /// rules and 1,000,000 networks, each of which takes up to 1 KB of kernel memory.
    Set {
        /// Separated by semicolons, as `flow-agent run --filter` takes them.
        #[arg(value_name = "RULES")]
        rules: Vec<PacketRules>,

        /// Rules to add after those, one per line.
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
    /// Remove all rules: every packet is counted.
    Clear,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let connect = &args.connect.target()?;
    let answered = match args.command {
        Command::Show => patiently(connect, client::filters(connect)).await,
        Command::Set { rules, file } => {
            let rules = rules::read(&rules, file.as_deref())?;
            if rules.is_empty() {
                return Err(refused(anyhow!(
                    "there are no rules to set; `flow-agent filter clear` removes those in force"
                )));
            }
            let rules = rules.iter().map(ToString::to_string).collect();
            patiently(connect, client::set_filters(connect, rules)).await
        }
        Command::Clear => patiently(connect, client::set_filters(connect, Vec::new())).await,
    };
    let instead = "filter rules are those of agents; give the address of one";
    let filters = of_an_agent(connect, answered, instead).await?;
    for warning in &filters.warnings {
        // The rules are in force even if nobody reads this.
        notice(&format!("warning: {warning}"));
    }
    answer::show(text(&filters)).await?;
    Ok(ExitCode::SUCCESS)
}

fn text(filters: &Filters) -> String {
    let rules = match filters.rules.len() {
        0 => "no rules: every packet is counted".to_owned(),
        1 => "1 rule".to_owned(),
        count => format!("{count} rules"),
    };
    let last = format!("# {rules}; set {} of this agent", filters.generation);
    harmless::lines(filters.rules.iter().chain([&last]))
}
