//! `flow-agent config`: shows the settings and checks files of settings.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;

use super::{
    answer::{self, Format},
    settings::{DEFAULT_FILE, Layers, Setting, Source, example, schema, show},
};
use crate::{
    client::{self, Target},
    output::harmless::harmless,
    proto::SettingsInForce,
};

/// Show the settings, or check a file of settings.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show what `run` would take from the file and the environment here, and where each value comes from; or what
    /// a running agent has in force.
    Show {
        /// The file of settings [default: /etc/flow-agent/config.toml, if it exists].
        #[arg(long, value_name = "PATH", conflicts_with = "running")]
        config: Option<PathBuf>,

        /// Ask a running agent, by default the service of this machine: what is in force, where it came from, and what
        /// waits for a restart.
        #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true,
              default_missing_value = client::DEFAULT_TARGET)]
        running: Option<Target>,

        /// A file of settings with the sources in comments, or one JSON object.
        #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
        output: Format,
    },
    /// Say whether `run` can take a file of settings. Looks at the file alone, without the environment.
    Check {
        /// The file of settings.
        #[arg(value_name = "FILE", env = "FLOW_AGENT_CONFIG", default_value = DEFAULT_FILE)]
        file: PathBuf,
    },
    /// Write a JSON Schema of the file of settings, for editors.
    Schema,
    /// Write a file of settings with every setting in a comment.
    Example,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let text = match args.command {
        Command::Show {
            config,
            running,
            output,
        } => {
            let settings = match running {
                Some(target) => of_an_agent(&target)?,
                None => of_the_environment(config.as_deref())?,
            };
            match output {
                Format::Text => show::text(&settings),
                Format::Json => format!("{:#}\n", show::json(&settings)),
            }
        }
        Command::Check { file } => {
            let settings = Layers::of_a_file(&file).read()?;
            settings.config()?;
            let from_file = |setting: &&Setting| matches!(setting.source, Source::File { .. });
            let count = settings.values.iter().filter(from_file).count();
            let plural = if count == 1 { "" } else { "s" };
            let path = file.display().to_string();
            format!("{}: ok, {count} setting{plural}\n", harmless(&path))
        }
        Command::Schema => format!("{:#}\n", schema::schema()),
        Command::Example => example::example(),
    };
    answer::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn of_the_environment(file: Option<&Path>) -> Result<SettingsInForce> {
    let settings = Layers::of_the_environment(file).read()?;
    settings.config()?;
    Ok(SettingsInForce::from(&settings))
}

fn of_an_agent(target: &Target) -> Result<SettingsInForce> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(super::patiently(target, client::settings(target)))?)
}
