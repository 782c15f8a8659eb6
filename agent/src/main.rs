//! The command line: parses the arguments, runs one subcommand, and prints an error with its causes on stderr.

use std::{
    ffi::OsString,
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::Mutex,
    thread,
};

use agent::{
    commands::{
        self, hyphens,
        run::RefusedSettings,
        settings::{Layers, Settings},
    },
    journal::{Journal, JournalFormat},
    log_filter::{LogControl, LogFilter},
    log_queue::{LOG_FLUSH_TIMEOUT, LogQueue},
    terminal::{self, TerminalFormat},
};
use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use formats::harmless::harmless;
use rules::fault::{self, Fault};
use server::{PassedSockets, Stored};
use tokio::runtime::Builder;
use tracing_subscriber::{
    Layer as _, filter::filter_fn, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

mod manual;
mod variables;

/// Worker threads of tokio.
const WORKERS: usize = 2;
/// Other threads that `run` starts: for rules, reloads, links, network namespaces, the log, and blocking work.
const OTHER_THREADS: usize = 9;

/// The widest line of a help text.
const WIDTH: usize = 80;

/// Keeps the network flow table inside the kernel and streams exact flow records over gRPC.
#[derive(Parser)]
#[command(
    name = "flow-agent",
    version,
    about,
    propagate_version = true,
    max_term_width = WIDTH,
    after_help = commands::exit_statuses()
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    // Each command's help text is on its own `Args`.
    Run(Box<commands::run::Args>),
    Keep(commands::keep::Args),
    Collect(commands::collect::Args),
    Watch(commands::watch::Args),
    Flows(commands::flows::Args),
    Top(commands::top::Args),
    Query(commands::query::Args),
    Status(commands::status::Args),
    Audit(commands::audit::Args),
    Filter(commands::filter::Args),
    Token(commands::token::Args),
    Config(commands::config::Args),
    Check(commands::check::Args),
    /// Write the manual pages, one for each command, into a directory such as /usr/local/share/man/man1. It is
    /// made if it does not exist.
    Man {
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
    /// Write what a shell needs to complete commands and options on stdout.
    Completions {
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
}

fn main() -> ExitCode {
    variables::forget_empty();
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = parse(&arguments).unwrap_or_else(|error| explain(error).exit());
    // Before the log starts its thread.
    if matches!(cli.command, Command::Run(_))
        && let Err(error) = commands::keep::end_with_keeper()
    {
        let _ = writeln!(std::io::stderr(), "flow-agent: {error:#}");
        return ExitCode::FAILURE;
    }
    let passed = if matches!(cli.command, Command::Run(_)) {
        PassedSockets::take()
    } else {
        Ok(Default::default())
    };
    let (log, is_journal) = match start_log() {
        Ok(log) => log,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "flow-agent: start the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Before the log starts, since these settings configure it.
    let settings = matches!(cli.command, Command::Run(_)).then(|| Layers::of_this_process().read());
    let (filter, refused) = match &settings {
        Some(Ok(settings)) => (settings.args.log.clone(), None),
        Some(Err(_)) | None => log_filter(),
    };
    let (filter, handle) = reload::Layer::new(filter.for_the_log());
    let log_control =
        LogControl::new(move |filter| handle.reload(filter).context("change what is logged"));
    let is_terminal = std::io::stderr().is_terminal();
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(is_terminal && std::env::var_os("NO_COLOR").is_none())
        .with_writer(log.clone())
        .fmt_fields(formats::log::fields())
        // Otherwise a failed write to stderr would be reported on stderr, and would panic if that fails as well.
        .log_internal_errors(false);
    let layer = if is_journal {
        layer.event_format(JournalFormat).boxed()
    } else if is_terminal {
        let layer = layer.event_format(TerminalFormat);
        layer.with_filter(filter_fn(terminal::shows)).boxed()
    } else {
        layer.boxed()
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .init();
    if let Some(error) = refused {
        tracing::warn!("FLOW_AGENT_LOG is not a log filter, so info is used: {error}");
    }
    let code = execute(cli.command, settings, passed, log_control).unwrap_or_else(|error| {
        let (error, code) = match error.downcast() {
            Ok(RefusedSettings(error)) => (error, RefusedSettings::EXIT_STATUS.into()),
            Err(error) => (error, ExitCode::FAILURE),
        };
        // If nobody reads stderr, the exit status still reports the failure.
        log.text(format!("flow-agent: {}\n", shown(&error)));
        code
    });
    LogQueue::flush(&log, LOG_FLUSH_TIMEOUT);
    code
}

/// The log goes to systemd's journal if stderr does.
fn start_log() -> std::io::Result<(LogQueue, bool)> {
    match Journal::behind_stderr() {
        Some(Ok(journal)) => Ok((LogQueue::start(journal)?, true)),
        Some(Err(error)) => {
            let log = LogQueue::start(std::io::stderr())?;
            log.text(format!(
                "flow-agent: the log has no fields, since the journal's own socket cannot be used: {error}\n"
            ));
            Ok((log, false))
        }
        None => Ok((LogQueue::start(std::io::stderr())?, false)),
    }
}

/// Parses the arguments; the first is the program's name.
fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let command = command();
    hyphens::refuse_options_as_values(&command, arguments.get(1..).unwrap_or_default())?;
    Cli::from_arg_matches(&command.try_get_matches_from(arguments)?)
}

fn explain(error: clap::Error) -> clap::Error {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    variables::name_in(error, &command(), &arguments, |variable| {
        std::env::var_os(variable).is_some()
    })
}

/// The command in the form that clap needs to show arguments in errors.
fn command() -> clap::Command {
    let mut command = hyphens::taken_by(Cli::command());
    command.build();
    command
}

/// The log filter of all commands but `run`: `FLOW_AGENT_LOG`. If that is unset or cannot be parsed, `info`, and in the
/// latter case the reason.
fn log_filter() -> (LogFilter, Option<String>) {
    match std::env::var("FLOW_AGENT_LOG").as_deref().map(str::parse) {
        Ok(Ok(filter)) => (filter, None),
        Ok(Err(error)) => (LogFilter::default(), Some(error)),
        Err(_) => (LogFilter::default(), None),
    }
}

/// The error on one line. A fault in a rule or in a settings file takes more lines, since it points at its place on a
/// line of its own.
fn shown(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Fault>() {
        Some(fault) => fault.to_string(),
        None => harmless(&fault::in_one_line(error)).into_owned(),
    }
}

/// Runs a command. `settings` and `passed` (what the service manager passed) are for `run`.
fn execute(
    command: Command,
    settings: Option<anyhow::Result<Settings>>,
    passed: anyhow::Result<(PassedSockets, Vec<Stored>)>,
    log: LogControl,
) -> anyhow::Result<ExitCode> {
    if let Command::Man { directory } = command {
        manual::write(Cli::command(), &directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Completions { shell } = command {
        std::io::stdout()
            .write_all(&completions(shell))
            .context("write to stdout")?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Check(args) = command {
        return commands::check::run(args);
    }
    if let Command::Token(args) = &command {
        return commands::token::run(args);
    }
    if let Command::Config(args) = command {
        return commands::config::run(args);
    }
    if let Command::Query(args) = command {
        return commands::query::run(&args);
    }
    let settings = settings.transpose().map_err(RefusedSettings)?;
    let passed = passed.map_err(RefusedSettings)?;
    if matches!(command, Command::Run(_)) {
        try_threads(WORKERS + OTHER_THREADS)?;
    } else {
        try_threads(WORKERS)?;
    }
    let mut runtime = if matches!(command, Command::Run(_) | Command::Collect(_)) {
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(WORKERS);
        runtime
    } else {
        // With several threads, one thread may queue a request while another one ends its connection. The request then
        // stays in tokio's queue for as long as tonic holds that connection's sender, and is never answered. A single
        // thread does one after the other.
        Builder::new_current_thread()
    };
    let runtime = runtime.enable_all().build()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Run(_) => {
                let settings = settings.context("the settings were not read")?;
                let layers = Layers::of_this_process();
                Box::pin(commands::run::run(layers, settings, passed, log)).await
            }
            Command::Keep(args) => commands::keep::run(args).await,
            Command::Collect(args) => commands::collect::run(args).await,
            Command::Top(args) => commands::top::run(args).await,
            Command::Watch(args) => commands::watch::run(args).await,
            Command::Flows(args) => commands::flows::run(args).await,
            Command::Status(args) => commands::status::run(args).await,
            Command::Audit(args) => commands::audit::run(args).await,
            Command::Filter(args) => commands::filter::run(args).await,
            Command::Check(_)
            | Command::Token(_)
            | Command::Config(_)
            | Command::Query(_)
            | Command::Man { .. }
            | Command::Completions { .. } => {
                unreachable!("these need no runtime")
            }
        }
    });
    // Do not wait: a thread may hang in a write to a stdout that nobody reads.
    runtime.shutdown_background();
    outcome
}

/// Tries to start this many threads, since tokio panics if it cannot start its own.
fn try_threads(number: usize) -> anyhow::Result<()> {
    let hold = Mutex::new(());
    thread::scope(|scope| {
        let _held = hold.lock();
        for _ in 0..number {
            let thread = thread::Builder::new().spawn_scoped(scope, || drop(hold.lock()));
            thread.context(
                "the system gives this process too few threads: raise the limit of tasks (TasksMax= of a service, \
                 pids.max of a control group) or of the user's processes (ulimit -u)",
            )?;
        }
        Ok(())
    })
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut written = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "flow-agent", &mut written);
    written
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use agent::commands::settings::variables::OF_OTHERS;
    use clap::error::ErrorKind;

    use super::*;

    fn refused(arguments: &str) -> clap::Error {
        let all = std::iter::once("flow-agent").chain(arguments.split(' '));
        let refused = parse(&all.map(OsString::from).collect::<Vec<_>>()).err();
        refused.unwrap_or_else(|| panic!("{arguments} is taken"))
    }

    #[test]
    fn a_value_that_begins_with_a_hyphen_is_told_from_an_option() {
        for (arguments, option) in [
            ("run --duration -1s", "--duration <TIME>"),
            ("run --scan-interval -10ms", "--scan-interval <TIME>"),
            ("run --idle-timeout -1m", "--idle-timeout <TIME>"),
            ("run --linger -1s", "--linger <TIME>"),
            ("run --max-flows -5", "--max-flows <FLOWS>"),
            ("run --early-scan -1", "--early-scan <PERCENT>"),
            ("watch --duration -1s", "--duration <TIME>"),
            ("watch --limit -1", "--limit <ROWS>"),
            ("flows --limit -1", "--limit <FLOWS>"),
        ] {
            let error = refused(arguments).to_string();
            let value = arguments.rsplit(' ').next().unwrap();
            let expected = format!("error: invalid value '{value}' for '{option}': ");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    /// All options of a command and its subcommands that take a value, each with its command's path.
    fn options(command: &clap::Command, path: &str) -> Vec<(String, clap::Arg)> {
        let own = command.get_arguments().filter(|arg| {
            let takes = arg.get_action().takes_values();
            takes && arg.get_long().is_some()
        });
        let mut all: Vec<_> = own.map(|arg| (path.to_owned(), arg.clone())).collect();
        for subcommand in command.get_subcommands() {
            let name = subcommand.get_name();
            all.extend(options(subcommand, &format!("{path}{name} ")));
        }
        all
    }

    #[test]
    fn every_option_takes_a_value_with_a_hyphen_or_says_what_is_wrong_with_it() {
        let options = options(&command(), "");
        assert!(options.len() > 50, "{}", options.len());
        let mut told = 0;
        for (path, option) in options {
            let name = option.get_long().unwrap();
            let may_lack_one = option
                .get_num_args()
                .is_some_and(|count| count.min_values() == 0);
            let between = if option.is_require_equals_set() || may_lack_one {
                '='
            } else {
                ' '
            };
            let line = format!("flow-agent {path}--{name}{between}-1s");
            let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
            let Err(error) = parse(&arguments) else {
                continue;
            };
            let text = error.to_string();
            // clap took the value and complains about a missing subcommand or option instead.
            let is_taken = [
                ErrorKind::MissingSubcommand,
                ErrorKind::MissingRequiredArgument,
            ];
            if is_taken.contains(&error.kind()) {
                continue;
            }
            let expected = format!("error: invalid value '-1s' for '{option}'");
            assert!(text.starts_with(&expected), "{line}: {text}");
            told += 1;
        }
        assert!(told > 30, "{told}");
    }

    #[test]
    fn an_option_is_no_value_of_the_one_before_it() {
        for (arguments, option) in [
            ("run --interface --decapsulate", "--interface <PATTERN>"),
            ("run --config --max-flows=5", "--config <PATH>"),
            ("run --max-flows --interface eth0", "--max-flows <FLOWS>"),
            ("run --interface a --netns -h", "--netns <NETNS>"),
            ("run --tls-key --", "--tls-key <FILE>"),
            ("run -i --decapsulate", "--interface <PATTERN>"),
            ("run -i -o json", "--interface <PATTERN>"),
            ("run --max-flows -i eth0", "--max-flows <FLOWS>"),
            ("filter set --file --connect unix:/a", "--file <PATH>"),
            ("filter --tls-ca --connect unix:/a show", "--tls-ca <FILE>"),
            ("status --connect --help", "--connect <ADDRESS>"),
        ] {
            let error = refused(arguments).to_string();
            let expected =
                format!("error: a value is required for '{option}' but none was supplied");
            assert!(error.starts_with(&expected), "{arguments}: {error}");
        }
        // Users who mean such a value can write it with an equals sign.
        let arguments = "flow-agent run --interface=--decapsulate --exclude-interface --no-option";
        let arguments: Vec<_> = arguments.split(' ').map(OsString::from).collect();
        let Command::Run(args) = parse(&arguments).ok().unwrap().command else {
            panic!("another command");
        };
        assert_eq!((args.interface.len(), args.decapsulate), (1, false));
    }

    #[test]
    fn a_bad_variable_is_named_and_an_option_wins_over_it() {
        // clap's message is the same for a value from an option and for one from a variable.
        let of_variable = |arguments: &str, variable: &str| {
            let error = refused("run --duration soon");
            let arguments: Vec<_> = arguments.split(' ').map(OsString::from).collect();
            let is_set = |name: &OsStr| name == variable;
            variables::name_in(error, &command(), &arguments, is_set).to_string()
        };
        let named = of_variable("run --sample 2", "FLOW_AGENT_DURATION");
        assert!(named.contains("for 'FLOW_AGENT_DURATION': "), "{named}");
        let (arguments, variable) = ("flows -n soon", "FLOW_AGENT_FLOWS_LIMIT");
        let given: Vec<_> = arguments.split(' ').map(OsString::from).collect();
        let is_set = |name: &OsStr| name == variable;
        let option = variables::name_in(refused(arguments), &command(), &given, is_set);
        let option = option.to_string();
        assert!(option.contains("for '--limit <FLOWS>': "), "{option}");
        for (arguments, variable) in [
            ("run --duration soon", "FLOW_AGENT_DURATION"),
            ("run --duration=soon", "FLOW_AGENT_DURATION"),
            ("run --sample 2", "FLOW_AGENT_SAMPLE"),
        ] {
            let option = of_variable(arguments, variable);
            assert!(option.contains("for '--duration <TIME>': "), "{option}");
        }
    }

    #[test]
    fn variables_of_all_commands_are_known_to_be_no_misspelt_settings() {
        let run = command().find_subcommand("run").unwrap().clone();
        let run: Vec<_> = run.get_arguments().filter_map(clap::Arg::get_env).collect();
        for command in command().get_subcommands() {
            for variable in command.get_arguments().filter_map(clap::Arg::get_env) {
                let rest = variable.to_str().unwrap().strip_prefix("FLOW_AGENT_");
                assert!(
                    run.contains(&variable) || rest.is_some_and(|rest| OF_OTHERS.contains(&rest)),
                    "{variable:?} of {command}"
                );
            }
        }
    }

    /// The command, its subcommands, and theirs.
    fn all_commands(command: &clap::Command) -> Vec<clap::Command> {
        let below = command.get_subcommands().flat_map(all_commands);
        std::iter::once(command.clone()).chain(below).collect()
    }

    #[test]
    fn help_of_every_command_fits_80_columns() {
        let commands = all_commands(&command());
        assert!(commands.len() > 20, "{}", commands.len());
        for mut command in commands {
            let short = command.render_help().to_string();
            let long = command.render_long_help().to_string();
            for line in short.lines().chain(long.lines()) {
                assert!(line.chars().count() <= WIDTH, "{command}: {line:?}");
            }
        }
    }

    /// A text is wrapped to the reader's width. Lines that begin with two spaces are not: the manual has 64 columns for
    /// those of an option.
    #[test]
    fn no_help_text_has_line_breaks_of_its_own() {
        for command in all_commands(&command()) {
            let mut texts = vec![command.get_about(), command.get_long_about()];
            for arg in command.get_arguments() {
                texts.extend([arg.get_help(), arg.get_long_help()]);
            }
            for text in texts.into_iter().flatten() {
                let text = text.to_string();
                let mut is_text = false;
                for line in text.lines() {
                    let is_kept = line.starts_with("  ");
                    assert!(!is_kept || line.chars().count() <= 64, "{command}: {line}");
                    let goes_on = is_text && !line.is_empty();
                    assert!(!goes_on, "{command}: {line:?} follows a line of text");
                    is_text = !is_kept && !line.is_empty();
                }
            }
        }
    }

    #[test]
    fn shells_can_complete_every_command_and_its_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(completions(shell)).unwrap();
            for word in ["status", "audit", "scan-interval", "max-tracked-flows"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn the_manual_has_a_page_for_each_command_with_its_options_under_their_headings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("man1");
        execute(
            Command::Man {
                directory: path.clone(),
            },
            None,
            Ok(Default::default()),
            LogControl::fixed(),
        )
        .unwrap();
        for command in [
            "run",
            "collect",
            "watch",
            "flows",
            "status",
            "audit",
            "filter",
            "check",
            "config",
            "config-show",
        ] {
            let page = path.join(format!("flow-agent-{command}.1"));
            assert!(page.exists(), "{command}");
        }
        let top = std::fs::read_to_string(path.join("flow-agent-top.1")).unwrap();
        let line = top.split(".SH").find(|part| part.starts_with(" SYNOPSIS"));
        for part in [
            "[\\-\\-connect <ADDRESS>]",
            "[\\-\\-filter <RULES>]...",
            "[\\-h|\\-\\-help]",
            "[\\-\\- [RUN ARGUMENTS]...]",
        ] {
            assert!(line.unwrap().contains(part), "{part}: {line:?}");
        }
        let filter = std::fs::read_to_string(path.join("flow-agent-filter.1")).unwrap();
        assert!(filter.contains(" <COMMAND>\n"), "{filter}");
        let run = std::fs::read_to_string(path.join("flow-agent-run.1")).unwrap();
        let example = "\n.EX\n  [include|exclude] TERM...\n.EE\n";
        assert!(run.contains(example), "{run}");
        let heading = run.find("WHAT TO COUNT").expect("the heading");
        let option = run.rfind("\\-\\-decapsulate").expect("the option");
        assert!(heading < option);
    }
}
