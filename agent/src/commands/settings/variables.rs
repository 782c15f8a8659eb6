//! Variables that begin like those of settings. One that nothing reads is refused, since it may be misspelt.

use std::ffi::OsString;

use anyhow::{Result, bail};
use clap::{Arg, Command};
use rules::similar;

/// Prefix of our variables.
pub const PREFIX: &str = "FLOW_AGENT_";

/// Variables with this prefix that are not settings of `run`.
pub const OF_OTHERS: [&str; 52] = [
    // Of `keep`, for the agent that it starts.
    "KEEPER_PID",
    // Other commands.
    "COLLECT_CONVERSATIONS",
    "COLLECT_INSECURE_LISTEN",
    "COLLECT_LISTEN",
    "COLLECT_MAX_AGENTS",
    "COLLECT_MAX_AGENTS_PER_ADDRESS",
    "COLLECT_MAX_AGENT_RECORDS",
    "COLLECT_MAX_CONSUMERS",
    "COLLECT_METRICS",
    "COLLECT_OUTPUT",
    "COLLECT_PAIRS",
    "COLLECT_PAIRS_MAX_FLOWS",
    "COLLECT_PAIRS_SETTLE",
    "COLLECT_REPORT_INTERVAL",
    "COLLECT_SAMPLE",
    "COLLECT_TLS_CERTIFICATE",
    "COLLECT_TLS_CLIENT_CA",
    "COLLECT_TLS_KEY",
    "COLLECT_TOKEN_FILE",
    "CONNECT",
    "FLOWS_FILTER",
    "FLOWS_LIMIT",
    "FLOWS_OUTPUT",
    "FLOWS_SORT",
    "QUERY_BY",
    "QUERY_COMPARE",
    "QUERY_FILTER",
    "QUERY_OUTPUT",
    "QUERY_SINCE",
    "QUERY_SORT",
    "QUERY_TOP",
    "QUERY_UNTIL",
    "TLS_CA",
    "TLS_CLIENT_CERTIFICATE",
    "TLS_CLIENT_KEY",
    "TOKEN_FILE",
    "TOP_EVERY",
    "TOP_FILTER",
    "TOP_LIMIT",
    "TOP_OUTPUT",
    "TOP_SORT",
    "TOP_VIEW",
    "WATCH_DURATION",
    "WATCH_FILTER",
    "WATCH_LIMIT",
    "WATCH_OUTPUT",
    // The build.
    "CACHE",
    "EBPF_RUSTC",
    // Tests.
    "EMULATED",
    "FLOOD_SECONDS",
    "SKIP_LOG",
    "SOAK_SECONDS",
];

/// Fails if one of these variables looks like a setting, but no setting has this name.
pub(super) fn refuse_unknown(
    command: &Command,
    names: impl IntoIterator<Item = OsString>,
) -> Result<()> {
    let is_read = |variable: &str| {
        let mut options = command.get_arguments().filter_map(Arg::get_env);
        options.any(|known| known == variable)
    };
    for name in names {
        let name = name.to_string_lossy();
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if is_read(&name) || OF_OTHERS.contains(&rest) || is_of_kubernetes(rest) {
            continue;
        }
        let Some(nearest) = nearest(command, rest) else {
            bail!("{name}: no setting has this variable; `flow-agent run --help` lists them");
        };
        bail!("{name}: no setting has this variable; did you mean {nearest}?");
    }
    Ok(())
}

/// The variable of the most similar option.
fn nearest(command: &Command, rest: &str) -> Option<String> {
    let rest = rest.to_lowercase().replace('_', "-");
    let options = || command.get_arguments();
    let nearest = similar::nearest(&rest, options().filter_map(Arg::get_long))?;
    let meant = options().find(|option| option.get_long() == Some(nearest))?;
    Some(meant.get_env()?.to_string_lossy().into_owned())
}

/// Kubernetes sets these in each container next to a Service whose name is flow-agent or begins like it.
fn is_of_kubernetes(rest: &str) -> bool {
    let is_of_a_port = |rest: &str| {
        let mut parts = rest.split('_');
        let number = parts.next().unwrap_or_default();
        number.parse::<u16>().is_ok() && matches!(parts.next(), Some("TCP" | "UDP" | "SCTP"))
    };
    let ends_as_one = |marker: &str, is_one: &dyn Fn(&str) -> bool| {
        let marked = rest.strip_prefix(marker);
        let marked = marked.or_else(|| rest.split_once(&format!("_{marker}")).map(|(_, end)| end));
        marked.is_some_and(is_one)
    };
    ends_as_one("SERVICE_HOST", &str::is_empty)
        || ends_as_one("SERVICE_PORT", &|end| {
            end.is_empty() || end.starts_with('_')
        })
        || ends_as_one("PORT", &str::is_empty)
        || ends_as_one("PORT_", &is_of_a_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::settings::command;

    fn refusal(names: &[&str]) -> Option<String> {
        let refused = refuse_unknown(&command(), names.iter().map(OsString::from));
        refused.err().map(|error| error.to_string())
    }

    #[test]
    fn a_misspelt_variable_is_refused_with_the_nearest_one() {
        for (name, nearest) in [
            ("FLOW_AGENT_SCAN_INTERVALL", "FLOW_AGENT_SCAN_INTERVAL"),
            ("FLOW_AGENT_INTERFACES", "FLOW_AGENT_INTERFACE"),
            ("FLOW_AGENT_scan_interval", "FLOW_AGENT_SCAN_INTERVAL"),
            ("FLOW_AGENT_LOGS", "FLOW_AGENT_LOG"),
            ("FLOW_AGENT_DURATIONS", "FLOW_AGENT_DURATION"),
        ] {
            let error = refusal(&["PATH", name]).expect(name);
            let told = format!("{name}: no setting has this variable; did you mean {nearest}?");
            assert_eq!(error, told);
        }
        let error = refusal(&["FLOW_AGENT_"]).unwrap();
        assert!(
            error.ends_with("`flow-agent run --help` lists them"),
            "{error}"
        );
    }

    #[test]
    fn variables_that_something_reads_are_taken() {
        let options = command();
        let variables = options.get_arguments().filter_map(Arg::get_env);
        for variable in variables.map(|name| name.to_str().unwrap()) {
            assert_eq!(refusal(&[variable]), None);
        }
        for rest in OF_OTHERS {
            assert_eq!(refusal(&[&format!("{PREFIX}{rest}")]), None);
        }
        for name in [
            "FLOW_AGENT_PORT_50051_TCP",
            "FLOW_AGENT_PORT_50051_TCP_ADDR",
            "FLOW_AGENT_SERVICE_HOST",
            "FLOW_AGENT_METRICS_SERVICE_HOST",
            "FLOW_AGENT_METRICS_SERVICE_PORT",
            "FLOW_AGENT_METRICS_SERVICE_PORT_HTTP",
            "FLOW_AGENT_METRICS_PORT",
            "FLOW_AGENT_METRICS_PORT_9100_TCP",
            "FLOW_AGENTS",
        ] {
            assert_eq!(refusal(&[name]), None);
        }
    }
}
