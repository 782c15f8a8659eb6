//! The options of `flow-agent run`, and the [`Config`] built from them.

use std::{fmt, path::PathBuf, time::Duration};

use agent_common::sample;
use anyhow::Result;
use clap::ArgAction;
use enrich::{Enrichment, dns};
use exporters::settings::{Kind, OutputArg, OutputArgs};
use flows::replica::ReplicaSettings;
use kernel::{
    attach::{AttachSettings, Directions, IngressHook, TcAttach, TcxOrder, XdpMode},
    load,
    netns::Netns,
};
use rules::{PacketRules, pattern::Patterns};
use server::{
    DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_CONSUMERS, DEFAULT_MAX_STREAMS, Limits, ListenAddr,
    metrics::MetricsAddress,
};

use super::{
    super::{number, time},
    conflicts,
};
use crate::{agent::Config, log_filter::LogFilter};

// The headings of `--help`.
const SETTINGS: &str = "Settings";
const WATCH: &str = "What to watch";
const COUNT: &str = "What to count";
const TABLE: &str = "The table";
const CONSUMERS: &str = "Consumers";
const OUTPUT: &str = "Output";
const LOGS: &str = "Logs";

/// Count the flows of interfaces and stream them.
#[derive(Clone, Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub struct Args {
    /// A file of settings, each under its option's name with underscores. Variables and options come
    /// before it [default: /etc/flow-agent/config.toml, if it exists].
    #[arg(long, value_name = "PATH", env = "FLOW_AGENT_CONFIG", help_heading = SETTINGS)]
    pub config: Option<PathBuf>,

    /// Interfaces to count on: names, globs, or /regular expressions/; repeatable. Interfaces that appear later are
    /// counted on, too [default: those that carry a default route].
    #[arg(short = 'i', long, value_name = "PATTERN", env = "FLOW_AGENT_INTERFACE", help_heading = WATCH)]
    pub interface: Vec<Patterns>,

    /// Interfaces to leave out, named in the same ways.
    #[arg(long, value_name = "PATTERN", env = "FLOW_AGENT_EXCLUDE_INTERFACE", help_heading = WATCH)]
    pub exclude_interface: Vec<Patterns>,

    /// Network namespaces to count in: names as in `ip netns list`, paths, processes as pid:N, or self for the
    /// agent's own; repeatable. Interfaces are selected in each of them. All but the agent's own need root, or
    /// the service's drop-in, and stay until the agent ends [default: self].
    #[arg(long, value_name = "NETNS", env = "FLOW_AGENT_NETNS", value_delimiter = ',', help_heading = WATCH)]
    pub netns: Vec<Netns>,

    /// Which packets are counted.
    #[arg(long, env = "FLOW_AGENT_DIRECTION", value_enum, default_value = "both", help_heading = WATCH)]
    pub direction: Directions,

    /// Where arriving packets are counted. TC sees them after GRO has merged some; XDP sees each frame. Bonds, devices
    /// with a virtual function, tun and tap are always counted at TC.
    #[arg(
        long,
        env = "FLOW_AGENT_INGRESS_HOOK",
        value_enum,
        default_value = "tc", help_heading = WATCH)]
    pub ingress_hook: IngressHook,

    /// How XDP programs are attached. auto attaches native XDP, and counts at TC if the driver has none or another
    /// program is attached. Attaching native XDP may reset a NIC.
    #[arg(long, env = "FLOW_AGENT_XDP_MODE", value_enum, default_value = "auto", help_heading = WATCH)]
    pub xdp_mode: XdpMode,

    /// Count at XDP even where the driver keeps VLAN tags beside the frames, out of its sight. Flows of
    /// different VLANs may then become one, and the account says "tags unknown". Without this option such
    /// an interface is counted at XDP if its driver tells tags to XDP programs (from kernel 6.8), else at TC.
    #[arg(long, value_name = "BOOL", env = "FLOW_AGENT_XDP_WITHOUT_TAGS", action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_possible_values = true, help_heading = WATCH)]
    pub xdp_without_tags: bool,

    /// How TC programs are attached: by links that end with the process, or as filters on clsact, which is better for
    /// thousands of interfaces, since each link takes the kernel some 16 ms.
    #[arg(long, env = "FLOW_AGENT_TC_ATTACH", value_enum, default_value = "auto", help_heading = WATCH)]
    pub tc_attach: TcAttach,

    /// Where TCX puts the programs among those of others: first is next to the wire, last is next to the host. Arriving
    /// packets that a program before them drops or redirects are not counted.
    #[arg(long, env = "FLOW_AGENT_TCX_ORDER", value_enum, default_value = "first", help_heading = WATCH)]
    pub tcx_order: TcxOrder,

    /// Interfaces that can be watched at the same time. Each takes 2.4 KB of kernel memory, and 128 bytes for
    /// each CPU. 0 makes room for twice as many as are selected at the start, at least 64; with patterns, for 512
    /// (fewer on more than 256 CPUs).
    #[arg(long, value_name = "INTERFACES", env = "FLOW_AGENT_MAX_INTERFACES", default_value_t = 0,
          value_parser = number(0..=100_000), help_heading = WATCH)]
    pub max_interfaces: u32,

    /// Which packets are counted, as in 'port https' for only these, or 'exclude net 10.0.0.0/8': include, exclude or
    /// neither, then [src|dst] net, host or port, proto, on INTERFACE, ingress or egress. The first rule that matches
    /// decides. Separated by semicolons; repeatable.
    #[arg(
        long,
        value_name = "RULES",
        env = "FLOW_AGENT_FILTER",
        long_help = rules::HELP, help_heading = COUNT)]
    pub filter: Vec<PacketRules>,

    /// A file with more rules, which follow those of --filter; one rule a line, and # begins a comment.
    #[arg(long, value_name = "PATH", env = "FLOW_AGENT_FILTER_FILE", help_heading = COUNT)]
    pub filter_file: Option<PathBuf>,

    /// Count one flow in this many, with all of its packets; 1 counts every flow. A hash of endpoints and
    /// protocol decides, so every agent samples the same flows.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_SAMPLE", default_value_t = 1,
          value_parser = number(1..=sample::MOST_RATE), help_heading = COUNT)]
    pub sample: u32,

    /// Count the flows inside tunnels (VXLAN, Geneve, GRE, IP in IP), up to two tunnels deep. Without this
    /// option a flow is the tunnel itself.
    #[arg(long, value_name = "BOOL", env = "FLOW_AGENT_DECAPSULATE", action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_possible_values = true, help_heading = COUNT)]
    pub decapsulate: bool,

    /// What to find out about flows beyond their packets; repeatable. unit: the systemd unit and the container whose sockets
    /// send the packets. process: the process that made these sockets. tcp: round trips and retransmissions, as
    /// measured by this host's TCP. Packets that this host forwards for others have no socket. unit and process each
    /// take 44 more bytes of kernel memory for each of --max-flows, and tcp takes three times that. rtt: how long the
    /// ends of TCP connections take to answer, measured from their packets, forwarded ones too; it takes 44 bytes as
    /// well. dns: names of addresses, from DNS answers that pass the interfaces (UDP, port 53: the agent reads these
    /// messages) and from /etc/hosts. dns-exchanges: the same, and each query with its answer, in JSON Lines and over
    /// gRPC. icmp: what ICMP errors report as unreachable (the agent reads these errors). drops: packets that the
    /// host's kernel drops, by its own reasons in status and metrics, and by flow. nat: the addresses and ports on the
    /// other side of this host's address translation.
    #[arg(long, value_name = "WHAT", env = "FLOW_AGENT_ENRICH", value_enum, value_delimiter = ',', help_heading = COUNT)]
    pub enrich: Vec<Enrichment>,

    /// Names of addresses to keep with --enrich dns, at some 350 bytes each. When there are more, the ones learned
    /// first are forgotten.
    #[arg(long, value_name = "NAMES", env = "FLOW_AGENT_DNS_NAMES", default_value_t = dns::DEFAULT_NAMES,
          value_parser = number(1024..=1_000_000), help_heading = COUNT)]
    pub dns_names: u32,

    /// DNS messages to read per second with --enrich dns. Further ones are counted, but nothing is learned from them.
    #[arg(long, value_name = "MESSAGES", env = "FLOW_AGENT_DNS_RATE",
          default_value_t = dns::DEFAULT_MESSAGES_PER_SECOND, value_parser = number(1..=1_000_000), help_heading = COUNT)]
    pub dns_rate: u32,

    /// The most flows to which each of the two pages of the kernel's table grows. A page at its full size takes 200
    /// bytes of kernel memory for each of these flows.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_MAX_FLOWS", default_value_t = 500_000,
          value_parser = number(1..=100_000_000), help_heading = TABLE)]
    pub max_flows: u32,

    /// Flows that a page always has room for: it shrinks to this when few flows come; at most --max-flows. Until a page
    /// grows, it takes a quarter of --max-flows more, but at most 65,536. Raise this where more new flows than that may
    /// come while the agent gets no CPU.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_MIN_FLOWS", default_value_t = DEFAULT_MIN_FLOWS,
          value_parser = number(1..=100_000_000), help_heading = TABLE)]
    pub min_flows: u32,

    /// Flows kept in userspace. When there are more, the flow that would end first is ended early.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_MAX_TRACKED_FLOWS", default_value_t = 1_000_000,
          value_parser = number(1..=1_000_000_000), help_heading = TABLE)]
    pub max_tracked_flows: u32,

    /// Fragmented datagrams whose ports are remembered for their later fragments, at some 150 bytes of
    /// kernel memory each. When there are more, the one that was quiet the longest is forgotten.
    #[arg(long, value_name = "DATAGRAMS", env = "FLOW_AGENT_MAX_FRAGMENTS", default_value_t = 16_384,
          value_parser = number(1..=16_777_216), help_heading = TABLE)]
    pub max_fragments: u32,

    /// How often the table is drained.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_SCAN_INTERVAL", default_value = "10s",
          value_parser = interval, help_heading = TABLE)]
    pub scan_interval: Duration,

    /// How full a page may get before it is drained early, in percent of its room. 0 always waits for the interval, with
    /// pages at their full size.
    #[arg(long, value_name = "PERCENT", env = "FLOW_AGENT_EARLY_SCAN", default_value_t = 50,
          value_parser = number(0..=99), help_heading = TABLE)]
    pub early_scan: u32,

    /// The shortest time between two reports of a continuing flow. Its next record, or the one at its end, has the
    /// counts of the whole time, so long flows make fewer records, and early scans make no more. A whole number of scan
    /// intervals is best; 0s reports with every scan. auto is 60s if every output is IPFIX, whose collectors expect an
    /// active timeout, and 0s otherwise. It applies to all who connect, too.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_REPORT_INTERVAL", default_value = "auto",
          value_parser = ReportInterval::parse, help_heading = TABLE)]
    pub report_interval: ReportInterval,

    /// A flow ends after this time without a packet.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_IDLE_TIMEOUT", default_value = "60s",
          value_parser = time, help_heading = TABLE)]
    pub idle_timeout: Duration,

    /// How long a flow closed by FIN or RST waits for late packets, counted from its last packet. Without
    /// the wait a late packet would become a flow of its own.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_LINGER", default_value = "5s",
          value_parser = time, help_heading = TABLE)]
    pub linger: Duration,

    /// Where consumers connect: unix:PATH (mode 0660), or an IP address with a port; repeatable. The only name accepted
    /// is localhost (127.0.0.1).
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "FLOW_AGENT_LISTEN",
        value_delimiter = ',',
        default_value = "unix:/run/flow-agent/flow-agent.sock", help_heading = CONSUMERS)]
    pub listen: Vec<ListenAddr>,

    /// A certificate in PEM, followed by its chain to the CA. TCP listeners then speak TLS. This file, --tls-key and
    /// --tls-client-ca are read again when they change.
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_TLS_CERTIFICATE", help_heading = CONSUMERS)]
    pub tls_certificate: Option<PathBuf>,

    /// The certificate's key in PEM, without a passphrase.
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_TLS_KEY", help_heading = CONSUMERS)]
    pub tls_key: Option<PathBuf>,

    /// CAs in PEM. Over TCP, only clients with a certificate from one of them are served (mutual TLS).
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_TLS_CLIENT_CA", help_heading = CONSUMERS)]
    pub tls_client_ca: Option<PathBuf>,

    /// Also listen without TLS on TCP addresses that other hosts can reach: anyone who reaches one can read all flows.
    #[arg(long, value_name = "BOOL", env = "FLOW_AGENT_INSECURE_LISTEN", action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_possible_values = true, help_heading = CONSUMERS)]
    pub insecure_listen: bool,

    /// Consumers that may observe flows at the same time. Root has four more places on a Unix socket, and
    /// four more connections.
    #[arg(long, value_name = "CONSUMERS", env = "FLOW_AGENT_MAX_CONSUMERS", default_value_t = DEFAULT_MAX_CONSUMERS,
          value_parser = number(1..=10_000), help_heading = CONSUMERS)]
    pub max_consumers: u32,

    /// Connections that each listener takes.
    #[arg(long, value_name = "CONNECTIONS", env = "FLOW_AGENT_MAX_CONNECTIONS", default_value_t = DEFAULT_MAX_CONNECTIONS,
          value_parser = number(1..=100_000), help_heading = CONSUMERS)]
    pub max_connections: u32,

    /// Requests that may be open on one connection, including those of consumers.
    #[arg(long, value_name = "STREAMS", env = "FLOW_AGENT_MAX_STREAMS", default_value_t = DEFAULT_MAX_STREAMS,
          value_parser = number(1..=10_000), help_heading = CONSUMERS)]
    pub max_streams: u32,

    /// Metrics for Prometheus at /metrics, with /healthz and /readyz for probes, over HTTP: an IP address with a
    /// port, or a port of 127.0.0.1. Whoever reaches the address can read them.
    #[arg(long, value_name = "ADDRESS", env = "FLOW_AGENT_METRICS", default_value = "none", help_heading = OUTPUT)]
    pub metrics: MetricsAddress,

    /// Where else flows go: table or json on stdout, or KIND=ADDRESS, such as ipfix=udp://HOST:PORT,
    /// otlp=http://HOST:PORT, pbflow=http://HOST:PORT, collector=http://HOST:PORT (these also by https://), jsonl=PATH
    /// or parquet=FOLDER; repeatable. In a file of settings, a table can set more for an output, such as which flows it
    /// gets.
    #[arg(short = 'o', long, value_name = "OUTPUT", env = "FLOW_AGENT_OUTPUT", default_value = "none", help_heading = OUTPUT)]
    pub output: Vec<OutputArgs>,

    /// Leave the programs counting while the agent restarts or after it was killed, so that no packet goes uncounted.
    /// Needs systemd with room in the unit's store (`FileDescriptorStoreMax`), or `flow-agent keep`.
    #[arg(long, value_name = "BOOL", env = "FLOW_AGENT_CARRY_OVER", action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_possible_values = true, help_heading = OUTPUT)]
    pub carry_over: bool,

    /// How long the kernel programs count after a scan was due. If no agent comes any more, they then only let packets
    /// pass. 0s lets them count forever.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_LEASE", default_value = "10m",
          value_parser = lease, help_heading = OUTPUT)]
    pub lease: Duration,

    /// Stop after counting for this time, such as 10s or 2m.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_DURATION", value_parser = time, help_heading = OUTPUT)]
    pub duration: Option<Duration>,

    /// The log level: error, warn, info, debug or trace; levels of modules may follow, as in warn,agent=debug. The
    /// HTTP/2 library logs only if it is named, as in info,h2=debug.
    #[arg(long, value_name = "FILTER", env = "FLOW_AGENT_LOG", default_value = "info", help_heading = LOGS)]
    pub log: LogFilter,

    /// What the kernel programs log about single packets. It costs nothing while it is off.
    #[arg(
        long,
        value_name = "LEVEL",
        env = "FLOW_AGENT_BPF_LOG_LEVEL",
        value_enum,
        default_value = "off", help_heading = LOGS)]
    pub bpf_log_level: BpfLogLevel,

    /// Not an option: tests load other programs here, which pause.
    #[arg(skip)]
    pub object: Object,
}

/// The object that is loaded into the kernel.
#[derive(Clone, Copy)]
pub struct Object(pub &'static [u8]);

impl Default for Object {
    fn default() -> Self {
        Self(load::OBJECT)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// aya-log's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BpfLogLevel {
    Off = 0,
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
    Trace = 5,
}

pub(super) const DEFAULT_MIN_FLOWS: u32 = 6144;
/// A flip alone takes some milliseconds.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(10);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = time(text)?;
    if interval < MIN_SCAN_INTERVAL {
        return Err(format!(
            "at least {}",
            humantime::format_duration(MIN_SCAN_INTERVAL)
        ));
    }
    Ok(interval)
}

/// When a continuing flow is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportInterval {
    /// As the outputs need it.
    Auto,
    Every(Duration),
}

/// The usual active timeout of IPFIX exporters.
const IPFIX_REPORT_INTERVAL: Duration = Duration::from_mins(1);

impl ReportInterval {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            time_text => match time(time_text) {
                Ok(interval) => Ok(Self::Every(interval)),
                Err(error) => Err(format!("{error}, or auto")),
            },
        }
    }

    fn for_outputs(self, outputs: &[OutputArgs], scan_interval: Duration) -> Duration {
        let args = outputs.iter().flat_map(|args| &args.0);
        let mut used = args.filter(|arg| **arg != OutputArg::Nothing).peekable();
        let is_ipfix = |arg: &OutputArg| matches!(arg, OutputArg::Output(output) if output.kind() == Kind::Ipfix);
        match self {
            Self::Every(interval) => interval,
            Self::Auto if used.peek().is_some() && used.all(is_ipfix) => {
                IPFIX_REPORT_INTERVAL.max(scan_interval)
            }
            Self::Auto => Duration::ZERO,
        }
    }
}

/// Shorter, it might end when a scan is late.
const MIN_LEASE: Duration = Duration::from_secs(1);

fn lease(text: &str) -> Result<Duration, String> {
    let lease = time(text)?;
    if !lease.is_zero() && lease < MIN_LEASE {
        return Err(format!(
            "0s, or at least {}",
            humantime::format_duration(MIN_LEASE)
        ));
    }
    Ok(lease)
}

impl Args {
    /// Builds the agent's configuration. Fails if no agent can start with these options on any machine.
    pub fn config(self) -> Result<Config> {
        conflicts::refuse_contradictions(&self)?;
        conflicts::refuse_excluded_names(&self)?;
        conflicts::refuse_too_many_names(&self)?;
        Ok(Config {
            object: self.object.0,
            rules: conflicts::rules(&self)?,
            tls: conflicts::tls(&self)?,
            selection: conflicts::selection(&self),
            netns: self.netns,
            max_interfaces: self.max_interfaces,
            attach: AttachSettings {
                ingress_hook: self.ingress_hook,
                xdp_mode: self.xdp_mode,
                xdp_without_tags: self.xdp_without_tags,
                directions: self.direction,
                tc_attach: self.tc_attach,
                tcx_order: self.tcx_order,
            },
            min_flows: self.min_flows,
            max_flows: self.max_flows,
            max_fragments: self.max_fragments,
            decapsulate: self.decapsulate,
            enrich: enrich::Settings {
                kinds: self.enrich.into_iter().collect(),
                dns_names: self.dns_names,
                dns_rate: self.dns_rate,
                namespaces: Vec::new(),
            },
            early_scan_percent: self.early_scan,
            scan_interval: self.scan_interval,
            lease: self.lease,
            replica: ReplicaSettings {
                max_flows: self.max_tracked_flows as usize,
                idle_timeout: self.idle_timeout,
                linger: self.linger,
                report_interval: self
                    .report_interval
                    .for_outputs(&self.output, self.scan_interval),
            },
            sample_rate: sample::rate(self.sample),
            limits: Limits {
                max_consumers: self.max_consumers,
                max_connections: self.max_connections,
                max_streams: self.max_streams,
            },
            insecure_listen: self.insecure_listen,
            listen: self.listen,
            metrics: self.metrics.0,
            stdout: conflicts::stdout(&self.output)?,
            outputs: conflicts::outputs(&self.output)?,
            carry_over: self.carry_over,
            duration: self.duration,
            bpf_log_level: self.bpf_log_level as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn config(arguments: &str) -> Config {
        let all = std::iter::once("run").chain(arguments.split_whitespace());
        let matches = options().get_matches_from(all);
        let args = Args::from_arg_matches(&matches).unwrap();
        args.config().expect(arguments)
    }

    #[test]
    fn a_rate_of_one_is_no_sampling() {
        for (arguments, rate) in [("", 0), ("--sample 1", 0), ("--sample 100", 100)] {
            assert_eq!(config(arguments).sample_rate, rate, "{arguments}");
        }
    }

    #[test]
    fn ipfix_alone_is_reported_once_a_minute() {
        const IPFIX: &str = "--output ipfix=udp://127.0.0.1:4739";
        for (outputs, seconds) in [
            (String::new(), 0),
            ("--output none".to_owned(), 0),
            (format!("{IPFIX} --output none"), 60),
            (format!("{IPFIX} --output ipfix=tcp://127.0.0.1:4739"), 60),
            (format!("{IPFIX} --scan-interval 2m"), 120),
            (format!("{IPFIX} --output json"), 0),
            (format!("{IPFIX} --output pbflow=http://127.0.0.1:1"), 0),
            (format!("{IPFIX} --report-interval 0s"), 0),
            ("--report-interval 30s".to_owned(), 30),
        ] {
            let interval = config(&outputs).replica.report_interval;
            assert_eq!(interval, Duration::from_secs(seconds), "{outputs}");
        }
    }

    fn options() -> Command {
        Args::augment_args(Command::new("run"))
    }

    #[test]
    fn every_option_is_also_a_variable_and_has_a_heading() {
        for option in options().get_arguments() {
            assert!(option.get_help_heading().is_some(), "{option}");
            let name = option.get_long().expect("options have long names");
            let variable = format!("FLOW_AGENT_{}", name.to_uppercase().replace('-', "_"));
            assert_eq!(option.get_env(), Some(variable.as_ref()), "--{name}");
        }
    }

    #[test]
    fn what_a_file_switches_on_an_option_can_switch_off() {
        let is_bool = |option: &&clap::Arg| {
            option.get_value_parser().type_id() == std::any::TypeId::of::<bool>()
        };
        for option in options().get_arguments().filter(is_bool) {
            let (id, name) = (option.get_id().as_str(), option.get_long().unwrap());
            for (argument, expected) in [
                (format!("--{name}"), true),
                (format!("--{name}=true"), true),
                (format!("--{name}=false"), false),
            ] {
                let on = options().mut_arg(id, |option| option.default_value("true"));
                let matches = on.get_matches_from(["run", &argument]);
                assert_eq!(matches.get_one(id), Some(&expected), "{argument}");
            }
        }
    }
}
