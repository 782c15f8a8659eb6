//! `flow-agent check`: reports what works with this kernel and this user, what is missing, and how to fix it.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use formats::harmless;
use kernel::{
    attach::{self, AttachSettings, StaleFilters},
    capabilities::Capabilities,
    devices::across::{self, Across},
    flowtables::Offloaded,
    interfaces::{Absent, Selection, everywhere::Everywhere},
    ipsec::Ipsec,
    layout::{self, Layout},
    links::{Link, LinkSocket},
    netns::{Namespace, Netns},
    real_time,
};
use rules::{
    PacketRules, Probe,
    pattern::{self, Patterns},
};
use serde::Serialize;
use tracing::subscriber::NoSubscriber;

use super::{
    answer::{self, Format},
    settings::Layers,
};
use crate::agent::Config;

mod bpf;
mod devices;
mod filters;
mod process;
mod programs;
mod settings;
mod system;
mod xdp;

use devices::{Device, Known};

/// Say what works here and what is missing, for this kernel and this user.
///
/// Shows the tree of devices, too: what stands on what, which of them are counted, at which hooks, and why.
///
/// Exit status 0 if the agent can run as a service with the settings of /etc/flow-agent/config.toml and the
/// environment, 1 if it cannot. With --filter, --filter-file or --flow it explains these rules instead.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Text for people, or JSON Lines.
    #[arg(
        short = 'o',
        long,
        value_name = "FORMAT",
        value_enum,
        default_value = "text"
    )]
    pub output: Format,

    /// The interfaces that the agent is to watch: a name, a 'glob*' or a '/regex/'; repeatable
    /// [default: those of the settings].
    #[arg(short = 'i', long = "interface", value_name = "PATTERN")]
    pub interfaces: Vec<Patterns>,

    /// The interfaces to leave out; repeatable [default: those of the settings].
    #[arg(long = "exclude-interface", value_name = "PATTERN")]
    pub exclude_interfaces: Vec<Patterns>,

    /// Remove the filters that killed agents have left on clsact. Not while the service restarts: its next start takes
    /// them over, with what they have counted.
    #[arg(long, conflicts_with_all = ["filter", "filter_file", "flow"])]
    pub cleanup: bool,

    /// Explain these filter rules, separated by semicolons; repeatable. `flow-agent run --help` has
    /// the language.
    #[arg(long, value_name = "RULES", help_heading = "Filter rules")]
    pub filter: Vec<PacketRules>,

    /// Explain the rules of this file, after those of --filter.
    #[arg(long, value_name = "PATH", help_heading = "Filter rules")]
    pub filter_file: Option<PathBuf>,

    /// Say which rule decides about a packet and its answer: 'SENDER > RECEIVER PROTOCOL [on
    /// INTERFACE] [ingress|egress]', as in '192.0.2.1:1234 > 10.0.0.1:53 udp'; repeatable.
    #[arg(long, value_name = "PACKET", help_heading = "Filter rules")]
    pub flow: Vec<Probe>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// The agent runs, with a loss that the detail names.
    Warn,
    /// The agent cannot run with its defaults.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "check")]
struct Check {
    name: String,
    status: Status,
    detail: String,
    remedy: Option<String>,
}

impl Check {
    fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            status: Status::Ok,
            detail: detail.into(),
            remedy: None,
        }
    }

    fn warn(name: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            status: Status::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(name, detail)
        }
    }

    fn missing(
        name: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Missing,
            ..Self::warn(name, detail, remedy)
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let Args {
        output,
        interfaces,
        exclude_interfaces,
        cleanup,
        filter,
        filter_file,
        flow,
    } = args;
    if !filter.is_empty() || filter_file.is_some() || !flow.is_empty() {
        let rules = rules::read(&filter, filter_file.as_deref())?;
        answer::print(&filters::explain(&rules, &flow, output == Format::Json)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let given = Selection {
        include: pattern::all(&interfaces),
        exclude: pattern::all(&exclude_interfaces),
        // Names given here are checked as for a start by hand, which does not wait for them.
        waits: interfaces.is_empty(),
    };
    let findings = findings(&Layers::of_the_environment(None), given, cleanup)?;
    let text = match output {
        Format::Text => text(&findings),
        Format::Json => json_lines(&findings)?,
    };
    answer::print(&text)?;
    Ok(if missing(&findings.checks) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Everything found on a machine.
#[derive(Default)]
struct Findings {
    checks: Vec<Check>,
    devices: Vec<Device>,
}

/// Patterns from the command line take precedence over the settings.
fn findings(layers: &Layers, given: Selection, cleanup: bool) -> Result<Findings> {
    let release = system::Release::of_this_kernel()?;
    let capabilities = Capabilities::of_this_process()?;
    let settings = settings::read(layers);
    let netns = settings
        .as_ref()
        .map_or(&[][..], |(_, config)| &config.netns);
    let layout = layout::of_this_kernel();
    let mut checks = vec![
        system::kernel(&release),
        bpf::syscall(capabilities),
        system::jit(),
        system::preemption(real_time::may_interleave()),
        system::btf(&layout),
    ];
    checks.extend(process::capabilities(capabilities, netns));
    if capabilities.may_load_programs() {
        super::notice("the kernel verifies the programs, which takes some seconds");
        checks.extend(programs::programs(
            layout.as_ref().unwrap_or(&Layout::UNKNOWN),
        ));
    }
    checks.push(bpf::tcx());
    let mut selection = given;
    if let Ok((_, config)) = &settings {
        let set = &config.selection;
        for (given, set) in [
            (&mut selection.include, &set.include),
            (&mut selection.exclude, &set.exclude),
        ] {
            if given.is_empty() {
                given.clone_from(set);
            }
        }
    }
    let config = settings.as_ref().ok().map(|(_, config)| config);
    let interfaces = interfaces(netns, &selection, config, cleanup);
    checks.extend(interfaces.checks);
    checks.push(settings::check(&settings));
    Ok(Findings {
        checks,
        devices: interfaces.devices,
    })
}

/// Checks the selected interfaces, and builds the trees of all devices.
fn interfaces(
    netns: &[Netns],
    selection: &Selection,
    config: Option<&Config>,
    cleanup: bool,
) -> Findings {
    let missing = |error: &anyhow::Error| {
        let remedy = "select interfaces with --interface and --exclude-interface";
        Check::missing("interfaces", format!("{error:#}"), remedy)
    };
    let mut all = Findings::default();
    let namespaces = match Namespace::open_all(netns) {
        Ok(namespaces) => namespaces,
        Err(error) => {
            all.checks.push(missing(&error));
            return all;
        }
    };
    let room = config.map_or(0, |config| config.max_interfaces);
    match selected_interfaces(&namespaces, selection, room) {
        Ok(checks) if checks.is_empty() => all.checks.push(Check::warn(
            "interfaces",
            "none that is here is selected; the agent waits for one that is",
            "select others with --interface and --exclude-interface",
        )),
        Ok(checks) => all.checks.extend(checks),
        Err(error) => all.checks.push(missing(&error)),
    }
    let attach = config.map(|config| config.attach);
    for namespace in &namespaces {
        match namespace.enter(|| devices_in(namespace, selection, attach)) {
            Ok(found) => {
                all.checks.extend(found.checks);
                all.devices.extend(found.devices);
            }
            Err(error) => all.checks.push(missing(&error)),
        }
        match namespace.enter(|| Ok(leftovers(cleanup))) {
            Ok(left) => {
                let left = left.into_iter().collect();
                all.checks.extend(located(left, namespace));
            }
            Err(error) => all.checks.push(missing(&error)),
        }
    }
    all
}

/// Two checks for each interface, and one for each interface that a service waits for. `room` is the most interfaces
/// allowed; 0 for no limit.
fn selected_interfaces(
    namespaces: &[Namespace],
    selection: &Selection,
    room: u32,
) -> Result<Vec<Check>> {
    let everywhere = Everywhere::look(namespaces)?;
    let absent = everywhere.absent(selection);
    let select = || everywhere.select(selection);
    let selected = if absent.is_empty() {
        select()?
    } else {
        // No log: the checks report the same, and nothing waits here.
        tracing::subscriber::with_default(NoSubscriber::default(), select)?
    };
    if room != 0 {
        attach::first_slots(room, &selected)?;
    }
    let mut checks: Vec<Check> = absent.into_iter().map(awaited).collect();
    checks.extend(across::across(&selected)?.iter().map(twice_across));
    for (namespace, links) in selected {
        checks.extend(namespace.enter(|| {
            let mut xdp = xdp::Asker::default();
            let lines = links
                .iter()
                .flat_map(|link| [interface(link), xdp::mode(&mut xdp, link)]);
            Ok(located(lines.collect(), &namespace))
        })?);
    }
    Ok(checks)
}

fn awaited(Absent { what, fault }: Absent) -> Check {
    let remedy = format!("a service waits for {what}, `flow-agent run` by hand ends");
    Check::warn("interfaces", fault, remedy)
}

fn twice_across(pair: &Across<'_>) -> Check {
    Check::warn(
        format!("twice {} {}", pair.link.name, pair.other.name),
        format!("packets are counted twice: {pair}"),
        pair.remedy(),
    )
}

/// The devices of the calling thread's network namespace.
fn devices_in(
    namespace: &Namespace,
    selection: &Selection,
    attach: Option<AttachSettings>,
) -> Result<Findings> {
    let mut socket = LinkSocket::open()?;
    let known = Known {
        netns: Some(namespace.name()).filter(|name| !name.is_empty()),
        links: &socket.links()?,
        selection,
        carriers: &socket.default_route_ifindexes()?,
        attach,
    };
    let mut checks = known.twice();
    checks.extend(ipsec(namespace));
    checks.extend(match Offloaded::of(namespace) {
        Ok(offloaded) => known.offloaded(&offloaded),
        Err(error) => vec![Check::warn(
            "flowtable",
            format!(
                "whether one takes packets before a device that is counted is unknown: {error:#}"
            ),
            "run the check as root or with CAP_NET_ADMIN",
        )],
    });
    Ok(Findings {
        checks: located(checks, namespace),
        devices: known.tree(&mut xdp::Asker::default()),
    })
}

/// What killed agents have left in the calling thread's network namespace.
fn leftovers(cleanup: bool) -> Option<Check> {
    let name = "leftovers";
    let as_root = "run the check as root or with CAP_NET_ADMIN";
    let found = match StaleFilters::find() {
        Ok(found) => found,
        Err(error) => {
            let detail = format!("whether killed agents have left filters is unknown: {error:#}");
            return Some(Check::warn(name, detail, as_root));
        }
    };
    let count = found.count();
    Some(match (count, cleanup) {
        (0, false) => return None,
        (0, true) => Check::ok(name, "killed agents have left no filter"),
        (_, false) => Check::warn(
            name,
            format!("filters of killed agents on clsact: {count}; they cost CPU time"),
            "the next start of an agent replaces them; if there will be none, run `flow-agent check --cleanup`",
        ),
        (_, true) => match found.remove_all() {
            Ok(()) => Check::ok(
                name,
                format!("removed filters of killed agents from clsact: {count}"),
            ),
            Err(error) => Check::missing(name, format!("some filters stay: {error:#}"), as_root),
        },
    })
}

/// A warning if IPsec terminates tunnels here.
fn ipsec(namespace: &Namespace) -> Option<Check> {
    let remedy = "leave out one of the two, as by the filter rule 'exclude proto esp', or give IPsec a device of its own (ip link \
                  add type xfrm)";
    match Ipsec::of(namespace).has_tunnels() {
        Ok(false) => None,
        Ok(true) => Some(Check::warn(
            "ipsec",
            "packets that arrive in tunnel mode are counted twice: as ESP, and decrypted at the same interface",
            remedy,
        )),
        Err(error) => Some(Check::warn(
            "ipsec",
            format!(
                "whether it opens tunnels, whose packets would be counted twice, is unknown: {error:#}"
            ),
            "run the check as root or with CAP_NET_ADMIN",
        )),
    }
}

/// Names the network namespace, if it has a name.
fn located(mut checks: Vec<Check>, namespace: &Namespace) -> Vec<Check> {
    if !namespace.name().is_empty() {
        for check in &mut checks {
            check.name = format!("{} in {}", check.name, namespace.name());
        }
    }
    checks
}

fn interface(link: &Link) -> Check {
    let name = format!("interface {}", link.name);
    let detail = format!("ifindex {}, MTU {}", link.ifindex, link.mtu_bytes);
    if link.is_up {
        Check::ok(name, format!("{detail}, up"))
    } else {
        let remedy = format!("ip link set {} up", link.name);
        Check::warn(name, format!("{detail}, down: no packets pass"), remedy)
    }
}

fn missing(checks: &[Check]) -> usize {
    let missing = checks
        .iter()
        .filter(|check| check.status == Status::Missing);
    missing.count()
}

fn text(findings: &Findings) -> String {
    let Findings { checks, devices } = findings;
    let width = checks.iter().map(|check| check.name.len()).max();
    let width = width.unwrap_or_default();
    let mut lines: Vec<_> = checks.iter().map(|check| line(check, width)).collect();
    for tree in devices.chunk_by(|one, next| one.netns == next.netns) {
        lines.extend(devices::lines(tree));
    }
    lines.push(match missing(checks) {
        0 => "the agent can run here".to_owned(),
        1 => "the agent cannot run here with its defaults: 1 thing is missing".to_owned(),
        count => {
            format!("the agent cannot run here with its defaults: {count} things are missing")
        }
    });
    // A check may take several lines. Interface names cannot add more, since they contain no line breaks.
    harmless::lines(lines.iter().flat_map(|line| line.lines()))
}

fn line(check: &Check, name_width: usize) -> String {
    let Check {
        name,
        status,
        detail,
        remedy,
    } = check;
    let status = match status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Missing => "missing",
    };
    let remedy = remedy
        .as_ref()
        .map_or_else(String::new, |remedy| format!("; {remedy}"));
    // A fault in a rule draws its place on lines of its own.
    let (detail, drawing) = detail.split_once('\n').unwrap_or((detail, ""));
    let first = format!("{status:<7}  {name:<name_width$}  {detail}{remedy}");
    let indent = " ".repeat(name_width + 11);
    let drawing = drawing.lines().map(|line| format!("\n{indent}{line}"));
    std::iter::once(first).chain(drawing).collect()
}

/// One line for each check and for each device.
fn json_lines(findings: &Findings) -> Result<String> {
    let checks = findings.checks.iter().map(serde_json::to_string);
    // A device on top of several others appears several times in the tree.
    let devices = findings.devices.iter().filter(|device| !device.is_repeated);
    let mut lines = String::new();
    for line in checks.chain(devices.map(serde_json::to_string)) {
        lines += &harmless::json(&line?);
        lines.push('\n');
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Findings {
        Findings {
            checks: vec![
                Check::ok("kernel", "6.1.0"),
                Check::missing("CAP_BPF", "this process lacks it", "run as root"),
            ],
            ..Findings::default()
        }
    }

    #[test]
    fn the_text_aligns_the_lines_and_ends_with_the_verdict() {
        let expected = "\
ok       kernel   6.1.0
missing  CAP_BPF  this process lacks it; run as root
the agent cannot run here with its defaults: 1 thing is missing
";
        assert_eq!(text(&some()), expected);
    }

    #[test]
    fn a_json_line_has_its_type_and_a_remedy_or_null() {
        let lines = json_lines(&some()).unwrap();
        let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!(
            first,
            serde_json::json!({
                "type": "check", "name": "kernel", "status": "ok", "detail": "6.1.0",
                "remedy": null,
            })
        );
        assert_eq!(lines.lines().count(), 2);
    }

    #[test]
    fn every_check_answers_whatever_the_privilege() {
        let layers = Layers::of_a_file("/dev/null".as_ref());
        let selection = Selection {
            include: vec!["lo".parse().unwrap()],
            ..Selection::default()
        };
        let names: Vec<_> = findings(&layers, selection, false)
            .unwrap()
            .checks
            .into_iter()
            .map(|check| check.name)
            .collect();
        for name in [
            "kernel",
            "bpf",
            "CAP_BPF",
            "interface lo",
            "xdp lo",
            "settings",
        ] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
    }
}
