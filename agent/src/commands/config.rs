//! `flow-agent config`: shows the settings and checks settings files.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use formats::harmless::harmless;
use proto::SettingsInForce;
use view::client::{self, Target};

use super::{
    answer::{self, Format},
    settings::{DEFAULT_FILE, Layers, Settings, Source, example, schema, show},
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
        #[arg(long, value_name = "PATH", conflicts_with = "connect")]
        config: Option<PathBuf>,

        /// Ask a running agent, by default the service of this machine: what is in force, where it came from, and what
        /// waits for a restart.
        #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = client::DEFAULT_TARGET)]
        connect: Option<Target>,

        /// A file of settings with the sources in comments, or one JSON object.
        #[arg(
            short = 'o',
            long,
            value_name = "FORMAT",
            value_enum,
            default_value = "text"
        )]
        output: Format,
    },
    /// Say whether `run` would accept the settings here, from the file and the environment.
    Check {
        /// The file of settings [default: /etc/flow-agent/config.toml, if it exists].
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
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
            connect,
            output,
        } => {
            let settings = match connect {
                Some(target) => of_an_agent(&target)?,
                None => of_the_environment(config.as_deref())?,
            };
            match output {
                Format::Text => show::text(&settings),
                Format::Json => format!("{:#}\n", show::json(&settings)),
            }
        }
        Command::Check { config } => {
            let settings = Layers::of_the_environment(config.as_deref()).read()?;
            for warning in settings.config()?.warnings() {
                super::notice(warning);
            }
            checked(&settings)
        }
        Command::Schema => format!("{:#}\n", schema::schema()),
        Command::Example => example::example(),
    };
    answer::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The number of settings, and their file.
fn checked(settings: &Settings) -> String {
    let count = |is_one: fn(&Source) -> bool| {
        let sources = settings.values.iter().map(|setting| &setting.source);
        sources.filter(|source| is_one(source)).count()
    };
    let in_file = match &settings.file {
        Some(path) => {
            let path = path.display().to_string();
            let count = count(|source| matches!(source, Source::File { .. }));
            let plural = if count == 1 { "" } else { "s" };
            format!("{}: ok, {count} setting{plural}", harmless(&path))
        }
        None => format!("ok, without a file of settings (there is no {DEFAULT_FILE})"),
    };
    match count(|source| matches!(source, Source::Variable(_))) {
        0 => format!("{in_file}\n"),
        others => format!("{in_file}, and {others} from the environment\n"),
    }
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
    runtime.block_on(async {
        let settings = super::patiently(target, client::settings(target)).await;
        let instead =
            "its settings are the options of `flow-agent collect`; give the address of an agent";
        super::of_an_agent(target, settings, instead).await
    })
}
