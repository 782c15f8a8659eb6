//! Values that begin with a hyphen: an option takes them and reports what is wrong with them, as with `--max-flows
//! -1s`. An argument that is itself an option is never taken as a value.

use std::ffi::OsString;

use clap::{
    Arg, Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Lets every option of the command and its subcommands take such values.
pub fn taken_by(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_taken = takes_the_next(&arg);
        arg.allow_hyphen_values(is_taken)
    });
    command.mut_subcommands(taken_by)
}

/// Fails if an option stands where a value is expected. `command` must be built, so that it has all options.
pub fn refuse_options_as_values(command: &Command, arguments: &[OsString]) -> Result<(), Error> {
    let mut command = command;
    let mut arguments = arguments.iter().map(|argument| argument.to_string_lossy());
    while let Some(argument) = arguments.next() {
        let argument = &*argument;
        if argument == "--" {
            break;
        }
        if let Some(subcommand) = command.find_subcommand(argument) {
            command = subcommand;
            continue;
        }
        let option = command
            .get_arguments()
            .find(|arg| takes_the_next(arg) && names(arg).any(|name| name == argument));
        if let Some(option) = option
            && let Some(value) = arguments.next()
            && is_option(command, &value)
        {
            let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
            let option = ContextValue::String(option.to_string());
            error.insert(ContextKind::InvalidArg, option);
            // clap's own form of a missing value.
            error.insert(
                ContextKind::InvalidValue,
                ContextValue::String(String::new()),
            );
            return Err(error);
        }
    }
    Ok(())
}

/// `--interface` and `-i`.
fn names(arg: &Arg) -> impl Iterator<Item = String> {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    long.into_iter().chain(short)
}

/// Whether the argument after this option is its value.
fn takes_the_next(arg: &Arg) -> bool {
    let is_optional = arg
        .get_num_args()
        .is_some_and(|count| count.min_values() == 0);
    arg.get_long().is_some()
        && arg.get_action().takes_values()
        && !arg.is_require_equals_set()
        && !is_optional
}

fn is_option(command: &Command, argument: &str) -> bool {
    let long = argument.strip_prefix("--");
    let long = long.map(|long| long.split_once('=').map_or(long, |(name, _)| name));
    let mut letters = argument.strip_prefix('-').unwrap_or_default().chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    let mut all = command.get_arguments();
    long == Some("")
        || all.any(|arg| {
            long.is_some() && arg.get_long() == long || short.is_some() && arg.get_short() == short
        })
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use super::*;

    #[test]
    fn an_option_may_follow_one_that_needs_no_value() {
        let mut command = Command::new("flow-agent")
            .arg(Arg::new("connect").long("connect").num_args(0..=1))
            .arg(Arg::new("output").long("output"));
        command.build();
        let arguments = ["--connect", "--output", "json"].map(OsString::from);
        assert!(refuse_options_as_values(&command, &arguments).is_ok());
    }

    #[test]
    fn a_path_may_be_of_any_bytes() {
        let mut command = Command::new("flow-agent")
            .arg(Arg::new("config").long("config"))
            .arg(Arg::new("max-flows").long("max-flows"));
        command.build();
        let refused = |arguments: [&[u8]; 4]| {
            let arguments = arguments.map(|argument| OsStr::from_bytes(argument).to_owned());
            refuse_options_as_values(&command, &arguments).is_err()
        };
        assert!(!refused([
            b"--config",
            b"/etc/f\xff.toml",
            b"--max-flows",
            b"5"
        ]));
        assert!(refused([b"--max-flows", b"5", b"--config", b"--max-flows"]));
    }
}
