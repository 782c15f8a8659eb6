//! The settings of `flow-agent run`. Options take precedence over environment variables, variables over the file, and
//! the file over the defaults.
//!
//! The options of [`super::run::Args`] are the only declaration. A [`file::File`] replaces clap's defaults, so clap
//! decides which value is in force, and where it came from.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Result, anyhow};
use clap::{
    Arg, ArgMatches, Args as _, Command, FromArgMatches as _, builder::Resettable,
    error::ContextKind, parser::ValueSource,
};
use serde_json::Value;

use super::{
    hyphens,
    run::{Args, SettingsConflict},
};
use crate::agent::Config;

mod declared;
pub mod example;
mod file;
mod patterns;
pub mod schema;
pub mod show;
pub mod variables;

use declared::{Declared, Refusal};
pub use file::File;

/// The file to read if none is named. It need not exist.
pub const DEFAULT_FILE: &str = "/etc/flow-agent/config.toml";

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
    },
    Variable(String),
    CommandLine,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line, column } => {
                write!(formatter, "{}:{line}:{column}", path.display())
            }
            Self::Variable(name) => formatter.write_str(name),
            Self::CommandLine => formatter.write_str("command line"),
        }
    }
}

/// A setting that is in force.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its name in a file.
    pub name: String,
    /// Null if the setting has no value.
    pub value: Value,
    pub source: Source,
}

/// All settings that are in force.
#[derive(Debug)]
pub struct Settings {
    pub args: Args,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// In the order of `--help`.
    pub values: Vec<Setting>,
}

impl Settings {
    /// The agent's configuration. Fails if no agent can start with these settings on any machine.
    pub fn config(&self) -> Result<Config> {
        let made = self.args.clone().config();
        made.map_err(|error| match error.downcast::<SettingsConflict>() {
            Ok(conflict) => anyhow!("{conflict}{}", self.sources(&conflict)),
            Err(error) => error,
        })
    }

    /// The sources of the values that do not fit, unless all are from the command line.
    fn sources(&self, conflict: &SettingsConflict) -> String {
        let named = self.values.iter();
        let named = named.filter(|setting| conflict.settings.contains(&&*setting.name));
        let is_elsewhere =
            |setting: &&Setting| !matches!(setting.source, Source::CommandLine | Source::Default);
        if !named.clone().any(|setting| is_elsewhere(&setting)) {
            return String::new();
        }
        let sources = named.map(|setting| format!("{}: {}", setting.name, setting.source));
        format!(" ({})", sources.collect::<Vec<_>>().join(", "))
    }

    fn read(command: &Command, arguments: &[OsString], file: Option<&File>) -> Result<Self> {
        let layered = match file {
            Some(file) => file.under(command.clone()),
            None => command.clone(),
        };
        let matches = parsed(layered, arguments)?;
        let values = Declared::all(command)
            .map(|setting| in_force(&setting, &matches, file))
            .collect();
        Ok(Self {
            args: Args::from_arg_matches(&matches)?,
            file: file.map(|file| file.path.clone()),
            values,
        })
    }
}

/// Parses options and variables. The program's own command line has already parsed the options, so an error here is
/// about a variable.
fn parsed(mut command: Command, arguments: &[OsString]) -> Result<ArgMatches> {
    command
        .try_get_matches_from_mut(arguments)
        .map_err(|error| {
            let shown = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            let is_shown = |arg: &&Arg| shown.as_ref() == Some(&arg.to_string());
            let arg = command.get_arguments().find(is_shown);
            let Some(variable) = arg.and_then(Arg::get_env) else {
                return error.into();
            };
            let variable = variable.to_string_lossy();
            match Refusal::of(&error) {
                Refusal::Part(fault) => fault.at(&variable).into(),
                Refusal::Value(message) | Refusal::Key(_, message) => {
                    anyhow!("{variable}: {message}")
                }
            }
        })
}

fn in_force(setting: &Declared<'_>, matches: &ArgMatches, file: Option<&File>) -> Setting {
    let texts = matches.get_raw(setting.id()).unwrap_or_default();
    let texts: Vec<String> = texts
        .map(|text| text.to_string_lossy().into_owned())
        .collect();
    let source = match matches.value_source(setting.id()) {
        Some(ValueSource::CommandLine) => Source::CommandLine,
        Some(ValueSource::EnvVariable) => Source::Variable(setting.variable().unwrap_or_default()),
        _ => match file.and_then(|file| Some((file, file.entry(setting)?))) {
            Some((file, entry)) => Source::File {
                path: file.path.clone(),
                line: entry.line,
                column: entry.column,
            },
            None => Source::Default,
        },
    };
    Setting {
        name: setting.name(),
        value: setting.value(&texts),
        source,
    }
}

/// The sources of settings.
pub struct Layers {
    /// The options and their values, without the names of the program and the command.
    arguments: Vec<OsString>,
    command: Command,
    has_variables: bool,
}

impl Layers {
    /// The arguments of this process; the first is `run`.
    pub fn of_this_process() -> Self {
        Self::of(std::env::args_os().skip(2).collect())
    }

    /// The environment and the file that `run` would read. `path` names the file like `--config`.
    pub fn of_the_environment(path: Option<&Path>) -> Self {
        let option = path.map(|path| ["--config".into(), path.into()]);
        Self::of(option.into_iter().flatten().collect())
    }

    /// A file alone, without options and variables.
    pub fn of_a_file(path: &Path) -> Self {
        Self {
            arguments: vec!["--config".into(), path.into()],
            command: command().mut_args(|arg| arg.env(Resettable::Reset)),
            has_variables: false,
        }
    }

    fn of(arguments: Vec<OsString>) -> Self {
        Self {
            arguments,
            command: command(),
            has_variables: true,
        }
    }

    /// Reads the file, if there is one, and resolves the values in force.
    pub fn read(&self) -> Result<Settings> {
        if self.has_variables {
            let names = std::env::vars_os().map(|(name, _)| name);
            variables::refuse_unknown(&self.command, names)?;
        }
        let path = self.named_file()?;
        let file = match &path {
            Some(path) => Some(File::read(path, &self.command)?),
            None => File::read_if_exists(Path::new(DEFAULT_FILE), &self.command)?,
        };
        Settings::read(&self.command, &self.arguments, file.as_ref())
    }

    /// The file named by an option or a variable.
    pub fn named_file(&self) -> Result<Option<PathBuf>> {
        let matches = parsed(self.command.clone(), &self.arguments)?;
        Ok(Args::from_arg_matches(&matches)?.config)
    }
}

/// The options of `run`.
fn command() -> Command {
    let command = Command::new("run").bin_name("flow-agent run");
    hyphens::taken_by(Args::augment_args(command.no_binary_name(true)))
}

#[cfg(test)]
mod tests;
