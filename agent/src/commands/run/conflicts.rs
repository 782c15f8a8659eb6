//! Settings that no agent can start with, although each value is valid on its own: they contradict each other, or
//! exceed a limit together.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Result;
use exporters::{
    Output, Prepared,
    settings::{OutputArg, OutputArgs},
};
use formats::Format;
use kernel::{
    attach::{Directions, IngressHook, TcAttach, TcxOrder, XdpMode},
    interfaces::Selection,
};
use rules::{
    Compiled, Rule,
    fault::Fault,
    pattern::{self, Pattern},
};
use server::ListenAddr;
use thiserror::Error;
use tls::{
    pem::Use,
    server::{ServerFiles, ServerTls},
};

use super::{
    Args,
    args::{DEFAULT_MIN_FLOWS, ReportInterval},
};

/// Why settings are refused. `settings` has the names, as in a file, of the ones to look at.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct SettingsConflict {
    message: String,
    pub settings: &'static [&'static str],
}

fn refuse(
    is_one: bool,
    message: impl Into<String>,
    settings: &'static [&'static str],
) -> Result<(), SettingsConflict> {
    if is_one {
        let message = message.into();
        return Err(SettingsConflict { message, settings });
    }
    Ok(())
}

pub(super) fn selection(args: &Args) -> Selection {
    Selection {
        include: pattern::all(&args.interface),
        exclude: pattern::all(&args.exclude_interface),
        // A service waits for absent interfaces; a start by hand fails instead. `Reload::config` sets this for a
        // service.
        waits: false,
    }
}

/// Fails if an option would have no effect because of another one, so that nobody relies on it.
pub(super) fn refuse_contradictions(args: &Args) -> Result<(), SettingsConflict> {
    let is_xdp = args.ingress_hook == IngressHook::Xdp;
    refuse(
        is_xdp && args.direction == Directions::Egress,
        "--ingress-hook xdp does nothing with --direction egress, since XDP sees what arrives: \
         remove one of them",
        &["ingress_hook", "direction"],
    )?;
    refuse(
        !is_xdp && args.xdp_mode != XdpMode::Auto,
        "--xdp-mode does nothing with --ingress-hook tc: choose --ingress-hook xdp, or remove \
         --xdp-mode",
        &["xdp_mode", "ingress_hook"],
    )?;
    refuse(
        !is_xdp && args.xdp_without_tags,
        "--xdp-without-tags does nothing with --ingress-hook tc: choose --ingress-hook xdp, or \
         remove --xdp-without-tags",
        &["xdp_without_tags", "ingress_hook"],
    )?;
    refuse(
        args.tc_attach == TcAttach::Clsact && args.tcx_order != TcxOrder::First,
        "--tcx-order does nothing with --tc-attach clsact: remove one of them",
        &["tcx_order", "tc_attach"],
    )?;
    refuse(
        args.early_scan == 0 && args.min_flows != DEFAULT_MIN_FLOWS,
        "--min-flows does nothing with --early-scan 0, with which pages have their full size from the start: remove one \
         of them",
        &["min_flows", "early_scan"],
    )?;
    refuse(
        matches!(args.report_interval, ReportInterval::Every(interval)
            if !interval.is_zero() && interval < args.scan_interval),
        "--report-interval is shorter than --scan-interval, and flows are reported with scans: raise it, or lower \
         --scan-interval",
        &["report_interval", "scan_interval"],
    )?;
    for address in &args.listen {
        let serves_metrics = |tcp: &SocketAddr| args.metrics.0 == Some(*tcp);
        refuse(
            !address.is_any_port()
                && matches!(address, ListenAddr::Tcp(tcp) if serves_metrics(tcp)),
            format!(
                "--metrics and --listen are both {address}: choose another port for one of them"
            ),
            &["metrics", "listen"],
        )?;
    }
    listening(args).refuse_contradictions()
}

/// TLS for TCP listeners, if it is configured.
pub(super) fn tls(args: &Args) -> Result<Option<ServerTls>, SettingsConflict> {
    listening(args).tls()
}

fn listening(args: &Args) -> Listening<'_> {
    Listening {
        addresses: &args.listen,
        certificate: args.tls_certificate.as_ref(),
        key: args.tls_key.as_ref(),
        client_ca: args.tls_client_ca.as_ref(),
        is_insecure: args.insecure_listen,
    }
}

/// The addresses to listen on, and their TLS settings.
pub(in crate::commands) struct Listening<'a> {
    pub addresses: &'a [ListenAddr],
    pub certificate: Option<&'a PathBuf>,
    pub key: Option<&'a PathBuf>,
    pub client_ca: Option<&'a PathBuf>,
    pub is_insecure: bool,
}

impl Listening<'_> {
    /// Fails if an address is given twice, if its TLS settings are incomplete, or if other hosts could read flows
    /// although nobody allowed that.
    pub(in crate::commands) fn refuse_contradictions(&self) -> Result<(), SettingsConflict> {
        let Self {
            addresses,
            certificate,
            key,
            client_ca: ca,
            is_insecure,
        } = *self;
        for (index, address) in addresses.iter().enumerate() {
            refuse(
                !address.is_any_port() && addresses[..index].contains(address),
                format!("--listen {address} is given twice: remove one of them"),
                &["listen"],
            )?;
        }
        refuse(
            certificate.is_some() != key.is_some(),
            "--tls-certificate and --tls-key go together: give both, or neither",
            &["tls_certificate", "tls_key"],
        )?;
        refuse(
            ca.is_some() && certificate.is_none(),
            "--tls-client-ca does nothing without TLS: give --tls-certificate and --tls-key, too",
            &["tls_client_ca", "tls_certificate"],
        )?;
        refuse(
            is_insecure && certificate.is_some(),
            "--insecure-listen does nothing with --tls-certificate, with which every TCP listener speaks TLS: remove one \
         of them",
            &["insecure_listen", "tls_certificate"],
        )?;
        if certificate.is_some() || is_insecure {
            return Ok(());
        }
        for address in addresses {
            address.refuse_open().map_err(|error| SettingsConflict {
                message: error.to_string(),
                settings: &["listen"],
            })?;
        }
        Ok(())
    }

    /// TLS for TCP listeners, if it is configured.
    pub(in crate::commands) fn tls(&self) -> Result<Option<ServerTls>, SettingsConflict> {
        let (Some(certificate), Some(key)) = (self.certificate, self.key) else {
            return Ok(None);
        };
        let files = ServerFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: self.client_ca.cloned(),
        };
        let read = files.read().map_err(|fault| SettingsConflict {
            settings: match fault.of {
                Use::Certificate => &["tls_certificate"],
                Use::Key => &["tls_key"],
                Use::Ca => &["tls_client_ca"],
            },
            message: fault.to_string(),
        })?;
        Ok(Some(read))
    }
}

/// Fails if interfaces are both named and left out. The matches of patterns are known only at the start.
pub(super) fn refuse_excluded_names(args: &Args) -> Result<(), SettingsConflict> {
    const SETTINGS: &[&str] = &["interface", "exclude_interface"];
    let selection = selection(args);
    let named = |patterns: &[Pattern], name: &str| {
        let is_it = |pattern: &Pattern| matches!(pattern, Pattern::Name(known) if known == name);
        patterns.iter().any(is_it)
    };
    for pattern in &selection.include {
        let name = pattern.to_string();
        refuse(
            named(&selection.include, &name) && named(&selection.exclude, &name),
            format!(
                "{name} is named both by --interface and by --exclude-interface: remove one of them"
            ),
            SETTINGS,
        )?;
    }
    refuse(
        !selection.follows_default_routes()
            && !selection.has_patterns()
            && selection.exact_names().is_empty(),
        "--exclude-interface leaves out all that --interface names: remove one of them",
        SETTINGS,
    )
}

/// Fails if more interfaces are named than may be watched. How many match a pattern is known only at the start.
pub(super) fn refuse_too_many_names(args: &Args) -> Result<(), SettingsConflict> {
    let selection = selection(args);
    let (count, most) = (selection.exact_names().len(), args.max_interfaces);
    refuse(
        most != 0 && count > most as usize,
        format!(
            "{count} interfaces are named, and --max-interfaces is {most}: raise it, or name fewer"
        ),
        &["interface", "max_interfaces"],
    )
}

/// The format of flows on stdout. Fails if two are given: mixed, they could not be read.
pub(super) fn stdout(args: &[OutputArgs]) -> Result<Option<Format>, SettingsConflict> {
    let mut forms = args.iter().flat_map(|args| &args.0);
    let mut form = None;
    let is_twice = forms.any(|arg| match arg {
        OutputArg::Stdout(another) => form.replace(*another).is_some(),
        OutputArg::Nothing | OutputArg::Output(_) => false,
    });
    let message = "--output has two forms for stdout, which takes one: remove table or json";
    refuse(is_twice, message, &["output"])?;
    Ok(form)
}

/// The outputs, with their TLS files loaded. Fails if two have the same destination, or if a file cannot be used.
pub(super) fn outputs(args: &[OutputArgs]) -> Result<Vec<Prepared>, SettingsConflict> {
    let outputs = named(args)?;
    let alone = |output: &&Output| output.is_for_a_collector_alone();
    if let Some(output) = outputs.iter().find(alone) {
        let (kind, address) = (output.kind().name(), output.address());
        let message = format!(
            "--output {kind}={address} is only for `flow-agent collect`: give it to a collector, and send to that with \
             --output collector=http://HOST:PORT"
        );
        refuse(true, message, &["output"])?;
    }
    outputs.into_iter().map(prepared).collect()
}

/// The outputs of a collector. Fails if one of them cannot confirm that it stored the flows, or if two are the same.
pub(in crate::commands) fn stores(args: &[OutputArgs]) -> Result<Vec<Prepared>, SettingsConflict> {
    let mut all = args.iter().flat_map(|args| &args.0);
    refuse(
        !all.all(|arg| matches!(arg, OutputArg::Output(_))),
        "a collector stores flows: say --output jsonl=PATH, parquet=FOLDER, kafka=tcp://HOST:PORT/TOPIC or \
         clickhouse=http://HOST:PORT/DATABASE/TABLE, and see them with \
         `flow-agent watch`",
        &["output"],
    )?;
    named(args)?.into_iter().map(prepared).collect()
}

fn named(args: &[OutputArgs]) -> Result<Vec<Output>, SettingsConflict> {
    let mut outputs: Vec<Output> = Vec::new();
    for arg in args.iter().flat_map(|args| &args.0) {
        let OutputArg::Output(output) = arg else {
            continue;
        };
        let (kind, address) = (output.kind(), output.address());
        let is_same = |other: &Output| (other.kind(), other.address()) == (kind, address.clone());
        refuse(
            outputs.iter().any(is_same),
            format!(
                "--output {}={address} is given twice: remove one of them",
                kind.name()
            ),
            &["output"],
        )?;
        outputs.push(output.clone());
    }
    Ok(outputs)
}

fn prepared(output: Output) -> Result<Prepared, SettingsConflict> {
    let (kind, address) = (output.kind().name(), output.address());
    output.prepare().map_err(|fault| {
        let setting = match fault.of {
            Use::Certificate => "tls_client_certificate",
            Use::Key => "tls_client_key",
            Use::Ca => "tls_ca",
        };
        SettingsConflict {
            message: format!("{setting} of --output {kind}={address}: {fault}"),
            settings: &["output"],
        }
    })
}

/// The rules from options and file. Fails on a fault in a rule, or if the rules do not fit into a set.
pub(super) fn rules(args: &Args) -> Result<Vec<Rule>> {
    let conflict = |message, settings| SettingsConflict { message, settings };
    let read = rules::read(&args.filter, args.filter_file.as_deref());
    let rules = read.map_err(|error| {
        // A fault reports its own place.
        if error.is::<Fault>() {
            return error;
        }
        conflict(format!("{error:#}"), &["filter_file"]).into()
    })?;
    Compiled::check(&rules).map_err(|error| {
        let settings: &[_] = match (args.filter.is_empty(), &args.filter_file) {
            (_, None) => &["filter"],
            (true, Some(_)) => &["filter_file"],
            (false, Some(_)) => &["filter", "filter_file"],
        };
        conflict(error.to_string(), settings)
    })?;
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn args(arguments: &str) -> Args {
        let all = std::iter::once("run").chain(arguments.split_whitespace());
        let matches = Args::augment_args(Command::new("run")).get_matches_from(all);
        Args::from_arg_matches(&matches).unwrap()
    }

    fn contradiction(arguments: &str) -> Option<String> {
        let refused = refuse_contradictions(&args(arguments)).err();
        refused.map(|error| error.to_string())
    }

    #[test]
    fn settings_that_do_nothing_beside_others_are_refused_by_name() {
        for (arguments, named) in [
            (
                "--ingress-hook xdp --direction egress",
                ["--ingress-hook xdp", "--direction egress"],
            ),
            ("--xdp-mode native", ["--xdp-mode", "--ingress-hook tc"]),
            (
                "--xdp-without-tags",
                ["--xdp-without-tags", "--ingress-hook tc"],
            ),
            (
                "--xdp-mode generic --ingress-hook tc",
                ["--xdp-mode", "--ingress-hook tc"],
            ),
            (
                "--listen unix:/a,127.0.0.1:1 --listen unix:/a",
                ["--listen unix:/a", "twice"],
            ),
            (
                "--report-interval 5s",
                ["--report-interval", "--scan-interval"],
            ),
            (
                "--listen 127.0.0.1:1,127.0.0.1:1",
                ["--listen 127.0.0.1:1", "twice"],
            ),
            (
                "--early-scan 0 --min-flows 10",
                ["--min-flows", "--early-scan 0"],
            ),
            ("--tls-certificate a", ["--tls-certificate", "--tls-key"]),
            ("--tls-key a", ["--tls-certificate", "--tls-key"]),
            ("--tls-client-ca a", ["--tls-client-ca", "--tls-key"]),
            (
                "--insecure-listen --tls-certificate a --tls-key b",
                ["--insecure-listen", "--tls-certificate"],
            ),
            (
                "--listen 127.0.0.1:1,192.0.2.1:1",
                ["192.0.2.1:1", "--insecure-listen"],
            ),
            ("--listen 0.0.0.0:1", ["0.0.0.0:1", "--tls-certificate"]),
            ("--listen [::]:1", ["[::]:1", "--tls-key"]),
            (
                "--metrics 1 --listen 127.0.0.1:1",
                ["--metrics", "--listen are both 127.0.0.1:1"],
            ),
        ] {
            let error = contradiction(arguments).expect(arguments);
            assert!(named.iter().all(|part| error.contains(part)), "{error}");
        }
        for arguments in [
            "",
            "--ingress-hook xdp --direction ingress --xdp-mode generic",
            "--xdp-mode auto",
            "--report-interval 0s",
            "--early-scan 0",
            "--early-scan 1 --min-flows 10",
            "--report-interval 5s --scan-interval 5s",
            "--listen 127.0.0.1:0,127.0.0.1:0,unix:/a,unix:/b",
            "--listen 127.9.9.9:1,[::1]:1,[::ffff:127.0.0.1]:1,localhost:1",
            "--listen 192.0.2.1:1,[::]:1 --insecure-listen",
            "--listen 192.0.2.1:1 --tls-certificate a --tls-key b",
            "--tls-certificate a --tls-key b --tls-client-ca c",
            "--listen 127.0.0.1:0,[::1]:1 --metrics 127.0.0.1:0",
            "--listen 127.0.0.1:1 --metrics [::1]:1",
        ] {
            assert_eq!(contradiction(arguments), None, "{arguments}");
        }
    }

    #[test]
    fn what_a_collector_alone_can_store_in_is_no_output_of_an_agent() {
        for store in ["kafka=tcp://a:1/t", "clickhouse=http://a:1/d/t"] {
            let args = args(&format!("--output table --output {store}")).output;
            let refused = outputs(&args).unwrap_err();
            assert!(refused.message.contains("flow-agent collect"), "{refused}");
            assert_eq!(refused.settings, ["output"]);
        }
    }

    #[test]
    fn no_interface_is_both_named_and_left_out() {
        let refused = |arguments: &str| {
            let refused = refuse_excluded_names(&args(arguments)).err();
            refused.map(|error| error.to_string())
        };
        for (arguments, expected) in [
            ("a --exclude-interface a", "a is named both"),
            ("a,b --exclude-interface c,b", "b is named both"),
            ("a*,b --exclude-interface b", "b is named both"),
            ("a1,a2 --exclude-interface a*", "leaves out all"),
        ] {
            let error = refused(&format!("--interface {arguments}")).expect(arguments);
            assert!(error.contains(expected), "{arguments}: {error}");
        }
        for arguments in [
            "",
            "--exclude-interface a",
            "--interface a,b --exclude-interface c",
            "--interface a,b1 --exclude-interface b*",
            "--interface a*,b1 --exclude-interface b*",
            "--interface a* --exclude-interface a*",
        ] {
            assert_eq!(refused(arguments), None, "{arguments}");
        }
    }

    #[test]
    fn no_more_interfaces_are_named_than_may_be_watched() {
        let refused = |arguments: &str| refuse_too_many_names(&args(arguments)).err();
        let names = "--interface a,b --interface c,d,a";
        let error = refused(&format!("{names} --max-interfaces 3")).unwrap();
        assert!(
            error
                .message
                .starts_with("4 interfaces are named, and --max-interfaces is 3"),
            "{error}"
        );
        for arguments in [
            names.to_owned(),
            format!("{names} --max-interfaces 4"),
            format!("{names} --max-interfaces 3 --exclude-interface d"),
            "--interface a,b*,c* --max-interfaces 1".to_owned(),
        ] {
            assert!(refused(&arguments).is_none(), "{arguments}");
        }
    }
}
