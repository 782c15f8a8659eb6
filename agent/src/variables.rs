//! Settings from environment variables. An empty variable counts as unset. An error in a variable's value names the
//! variable, since nobody typed the option.

use std::ffi::{OsStr, OsString};

use agent::commands::settings::variables::PREFIX;
use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue},
};

/// `FLOW_AGENT_X=` in an environment file means that X is not set.
pub fn forget_empty() {
    for (name, value) in std::env::vars_os() {
        let is_ours = name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
        if value.is_empty() && is_ours {
            // SAFETY: the process has no other thread yet.
            unsafe { std::env::remove_var(name) };
        }
    }
}

/// The error, with the variable's name in place of the option if the value came from the variable.
pub fn name_in(
    mut error: clap::Error,
    command: &Command,
    arguments: &[OsString],
    is_set: impl Fn(&OsStr) -> bool,
) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if let Some(argument) = find(command, arguments, option)
        && !is_given(argument, arguments)
        && let Some(variable) = argument.get_env().filter(|variable| is_set(variable))
    {
        let variable = variable.to_string_lossy().into_owned();
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// The argument of the subcommand that clap shows as `shown`.
fn find<'a>(command: &'a Command, arguments: &[OsString], shown: &str) -> Option<&'a Arg> {
    let mut command = command;
    for argument in arguments {
        if let Some(subcommand) = argument
            .to_str()
            .and_then(|name| command.find_subcommand(name))
        {
            if let Some(found) = shown_as(command, shown) {
                return Some(found);
            }
            command = subcommand;
        }
    }
    shown_as(command, shown)
}

fn shown_as<'a>(command: &'a Command, shown: &str) -> Option<&'a Arg> {
    command
        .get_arguments()
        .find(|argument| argument.to_string() == shown)
}

/// Whether the option is on the command line, where it takes precedence over its variable.
fn is_given(argument: &Arg, arguments: &[OsString]) -> bool {
    let is_long = |given: &str| {
        let rest = given
            .strip_prefix("--")?
            .strip_prefix(argument.get_long()?)?;
        Some(rest.is_empty() || rest.starts_with('='))
    };
    // Its value may follow at once.
    let is_short = |given: &str| Some(given.strip_prefix('-')?.starts_with(argument.get_short()?));
    arguments
        .iter()
        .filter_map(|given| given.to_str())
        .any(|given| is_long(given).unwrap_or_default() || is_short(given).unwrap_or_default())
}
