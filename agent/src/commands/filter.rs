//! `flow-agent filter`: shows or replaces the rules in force, one per line, as in a rules file.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, anyhow};
use formats::harmless;
use proto::Filters;
use rules::PacketRules;
use view::client;

use super::{
    answer, connect::Connect, notice, of_an_agent, patiently, refused, settings::DEFAULT_FILE,
};

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
    /// Replace all rules by these, until the agent finds other rules in its settings (SIGHUP) or ends. To keep them,
    /// put the line that this command prints into the settings. No packet passes unfiltered in between. If a rule cannot be read, all rules stay as they were. A set has at most 1,024
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
    let is_change = !matches!(args.command, Command::Show);
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
    if is_change {
        notice(&how_to_keep(&filters.rules));
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets with more rules or longer ones do better in a file.
const RULES_OF_A_LINE: usize = 16;
const CHARS_OF_A_LINE: usize = 400;

/// How the next start of the agent has the same rules.
fn how_to_keep(rules: &[String]) -> String {
    let line = serde_json::to_string(rules).unwrap_or_default();
    let how = if rules.is_empty() {
        "take filter and filter_file out of them".to_owned()
    } else if rules.len() <= RULES_OF_A_LINE && line.len() <= CHARS_OF_A_LINE {
        format!("write in the file, instead of other filters: filter = {line}")
    } else {
        "save them (`flow-agent filter show > /etc/flow-agent/filters`), and write in the file, instead of other filters: \
         filter_file = \"/etc/flow-agent/filters\""
            .to_owned()
    };
    format!(
        "a restart of the agent forgets this change, since it reads its settings again: --filter if it has that, else \
         FLOW_AGENT_FILTER, else its file ({DEFAULT_FILE}). To keep it, {how}"
    )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::settings::Layers;

    /// The settings that a notice names.
    fn settings_of(notice: &str) -> String {
        let (_, line) = notice.split_once("instead of other filters: ").unwrap();
        line.to_owned()
    }

    #[test]
    fn a_change_comes_with_the_line_of_settings_that_keeps_it() {
        let rules = ["exclude net 10.0.0.0/8", "exclude on a\"b*"].map(str::to_owned);
        let line = settings_of(&how_to_keep(&rules));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), line).unwrap();
        let read = Layers::of_a_file(file.path()).read().unwrap();
        let kept = read.config().unwrap().rules;
        let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
        assert_eq!(kept, rules);

        let many = vec!["exclude all".to_owned(); RULES_OF_A_LINE + 1];
        let long = [format!("exclude port {}", "1,".repeat(CHARS_OF_A_LINE))];
        for rules in [&many[..], &long] {
            let line = settings_of(&how_to_keep(rules));
            assert_eq!(line, "filter_file = \"/etc/flow-agent/filters\"");
        }
        assert!(how_to_keep(&[]).contains("take filter and filter_file out"));
    }
}
