//! `flow-agent collect`: stores the flows that agents send, until a signal ends it.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use agent_common::sample;
use anyhow::{Context as _, Result, bail};
use collector::{
    AgentLimits, Collector, Config,
    pairs::{PairFiles, PairOutputs, PairSettings},
    store::Store,
};
use exporters::{
    Throttle,
    settings::{Kind, OutputArg, OutputArgs},
};
use server::{
    DEFAULT_MAX_CONSUMERS, DEFAULT_MAX_STREAMS, Limits, ListenAddr, metrics::MetricsAddress,
};
use tls::token::Known;

use super::{
    number,
    run::{self, Listening, RefusedSettings, conflicts},
    time,
};

const DEFAULT_MAX_AGENTS: u32 = 1000;
const DEFAULT_PAIRS_MAX_FLOWS: u32 = 100_000;
/// For consumers, and for agents that reconnect before their old connection is known to be gone.
const MORE_CONNECTIONS: u32 = 256;

// The headings of `--help`.
const AGENTS: &str = "Agents and consumers";
const STORES: &str = "Stores";

/// The longest time that a flow may wait, here or at an agent.
const MOST_TIME: Duration = Duration::from_hours(1);

/// Parses how long flows wait.
fn waiting_time(text: &str) -> Result<Duration, String> {
    let waiting = time(text)?;
    if waiting > MOST_TIME {
        return Err("at most 1h".to_owned());
    }
    Ok(waiting)
}

/// Store the flows that agents send.
///
/// An agent sends them with `flow-agent run --output collector=ADDRESS`, and keeps each batch until it is stored here. `status`,
/// `top` and `watch --output json` take a collector's address, too.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where flows are stored: jsonl=PATH, parquet=FOLDER, kafka=tcp://HOST:PORT/TOPIC (tls:// with TLS) or
    /// clickhouse=http://HOST:PORT/DATABASE/TABLE (https:// with TLS); repeatable. A table can set more, as in
    /// '{"kind": "jsonl", "address": "/var/lib/flow-agent/flows.jsonl"}'. A batch is acknowledged once all of them have
    /// it.
    #[arg(short = 'o', long, value_name = "OUTPUT", env = "FLOW_AGENT_COLLECT_OUTPUT", required = true, help_heading = STORES)]
    pub output: Vec<OutputArgs>,

    /// Compare agents, and report here the packets lost between two of them: jsonl=PATH. Both must send to the same
    /// collector. A flow is compared once it has been quiet.
    #[arg(long, value_name = "OUTPUT", env = "FLOW_AGENT_COLLECT_PAIRS", help_heading = STORES)]
    pub pairs: Option<OutputArgs>,

    /// Make one record of both ends of each connection, and write it here: jsonl=PATH. The agents need `--enrich unit` or
    /// `process` to prove where the ends are.
    #[arg(long, value_name = "OUTPUT", env = "FLOW_AGENT_COLLECT_CONVERSATIONS", help_heading = STORES)]
    pub conversations: Option<OutputArgs>,

    /// How long a flow has to be quiet before it is compared: longer than the clocks of two hosts differ, plus the time
    /// that packets take.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_COLLECT_PAIRS_SETTLE", default_value = "2s",
          value_parser = waiting_time, help_heading = STORES)]
    pub pairs_settle: Duration,

    /// The most flows to follow at a time to compare agents. One sender gets at most half of them. A thousand take some
    /// 900 kB, and 1,500 kB with --conversations.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_COLLECT_PAIRS_MAX_FLOWS", default_value_t = DEFAULT_PAIRS_MAX_FLOWS,
          value_parser = number(1..=1_000_000), help_heading = STORES)]
    pub pairs_max_flows: u32,

    /// Where agents and consumers connect: an IP address with a port, or unix:PATH (mode 0660); repeatable.
    #[arg(long, value_name = "ADDRESS", env = "FLOW_AGENT_COLLECT_LISTEN", value_delimiter = ',',
          default_value = "127.0.0.1:4500", help_heading = AGENTS)]
    pub listen: Vec<ListenAddr>,

    /// A certificate in PEM, followed by its chain to the CA. TCP listeners then speak TLS. This file, --tls-key and
    /// --tls-client-ca are read again when they change.
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_COLLECT_TLS_CERTIFICATE", help_heading = AGENTS)]
    pub tls_certificate: Option<PathBuf>,

    /// The certificate's key in PEM, without a passphrase.
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_COLLECT_TLS_KEY", help_heading = AGENTS)]
    pub tls_key: Option<PathBuf>,

    /// CAs in PEM. Over TCP, only callers with a certificate from one of them are served (mutual TLS). A certificate
    /// allows sending the flows of the host that it names.
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_COLLECT_TLS_CLIENT_CA", help_heading = AGENTS)]
    pub tls_client_ca: Option<PathBuf>,

    /// Also listen without TLS on TCP addresses that other hosts can reach: anyone who reaches one can send anything,
    /// and anyone on the path can read the flows.
    #[arg(long, env = "FLOW_AGENT_COLLECT_INSECURE_LISTEN", help_heading = AGENTS)]
    pub insecure_listen: bool,

    /// A file of tokens for callers over TCP. `flow-agent token new` adds them, each with its owner and what it allows.
    /// Agents show theirs by `token_file` of their output, and commands by --token-file. The file is read again when it
    /// changes.
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_COLLECT_TOKEN_FILE", help_heading = AGENTS)]
    pub token_file: Option<PathBuf>,

    /// Metrics for Prometheus at /metrics, with /healthz and /readyz for probes, over HTTP: an IP address with a port, a port of
    /// 127.0.0.1, or none.
    #[arg(long, value_name = "ADDRESS", env = "FLOW_AGENT_COLLECT_METRICS", default_value = "none", help_heading = AGENTS)]
    pub metrics: MetricsAddress,

    /// The most agents that may send at the same time. Others are asked to call another collector.
    #[arg(long, value_name = "AGENTS", env = "FLOW_AGENT_COLLECT_MAX_AGENTS", default_value_t = DEFAULT_MAX_AGENTS,
          value_parser = number(1..=100_000), help_heading = AGENTS)]
    pub max_agents: u32,

    /// The same for one address [default: as many as --max-agents].
    #[arg(long, value_name = "AGENTS", env = "FLOW_AGENT_COLLECT_MAX_AGENTS_PER_ADDRESS",
          value_parser = number(1..=100_000), help_heading = AGENTS)]
    pub max_agents_per_address: Option<u32>,

    /// Records a second to accept from each token, certificate, or address without one. An agent that sends more keeps the rest in
    /// its memory or spool until they are accepted [default: no limit].
    #[arg(long, value_name = "RECORDS", env = "FLOW_AGENT_COLLECT_MAX_AGENT_RECORDS",
          value_parser = number(1_000..=u32::MAX), help_heading = AGENTS)]
    pub max_agent_records: Option<u32>,

    /// Ask agents to report a continuing flow at most this often, unless their settings have a longer time: fewer
    /// records, without losing a packet. 0s leaves it to them.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_COLLECT_REPORT_INTERVAL", default_value = "0s",
          value_parser = waiting_time, help_heading = AGENTS)]
    pub report_interval: Duration,

    /// Ask agents to count one flow in this many, with all of its packets, where their settings allow it
    /// (`max_sample_rate` of the output); 1 leaves it to them.
    #[arg(long, value_name = "FLOWS", env = "FLOW_AGENT_COLLECT_SAMPLE", default_value_t = 1,
          value_parser = number(1..=sample::MOST_RATE), help_heading = AGENTS)]
    pub sample: u32,

    /// Consumers that may observe flows at the same time.
    #[arg(long, value_name = "CONSUMERS", env = "FLOW_AGENT_COLLECT_MAX_CONSUMERS", default_value_t = DEFAULT_MAX_CONSUMERS,
          value_parser = number(1..=10_000), help_heading = AGENTS)]
    pub max_consumers: u32,
}

impl Args {
    /// Builds the configuration. Fails if no collector can start with these options on any machine.
    fn config(self) -> Result<Config> {
        let listening = Listening {
            addresses: &self.listen,
            certificate: self.tls_certificate.as_ref(),
            key: self.tls_key.as_ref(),
            client_ca: self.tls_client_ca.as_ref(),
            is_insecure: self.insecure_listen,
        };
        listening.refuse_contradictions()?;
        let tls = listening.tls()?;
        let stores = conflicts::stores(&self.output)?;
        for output in &stores {
            Store::refuse_others(output)?;
        }
        let pairs = self.pair_outputs()?;
        let tokens = self.token_file.map(Known::read).transpose();
        let tokens = tokens.context("--token-file")?;
        Ok(Config {
            tls,
            tokens,
            limits: Limits {
                max_consumers: self.max_consumers,
                max_connections: self.max_agents + self.max_consumers + MORE_CONNECTIONS,
                max_streams: DEFAULT_MAX_STREAMS,
            },
            agents: AgentLimits {
                most: self.max_agents,
                most_per_address: self.max_agents_per_address.unwrap_or(self.max_agents),
                records_per_second: self.max_agent_records,
            },
            throttle: Throttle {
                report_interval: self.report_interval,
                sample_rate: sample::rate(self.sample),
            },
            metrics: self.metrics.0,
            stores,
            pairs,
            listen: self.listen,
        })
    }

    /// `None` if agents are not compared.
    fn pair_outputs(&self) -> Result<Option<PairOutputs>> {
        let mut taken: Vec<_> = self.output.iter().flat_map(places).collect();
        let mut prepared = |output: &Option<OutputArgs>, option| {
            let Some(output) = output else {
                return Ok(None);
            };
            for place in places(output) {
                if taken.contains(&place) {
                    let (kind, address) = place;
                    let kind = kind.name();
                    bail!(
                        "{option} {kind}={address}: another option writes there, choose another path"
                    );
                }
                taken.push(place);
            }
            let [OutputArg::Output(output)] = &output.0[..] else {
                bail!("{option} takes one jsonl=PATH");
            };
            let output = output.clone().prepare()?;
            Store::refuse_others(&output)?;
            Ok(Some(output))
        };
        let outputs = PairOutputs {
            reports: prepared(&self.pairs, "--pairs")?,
            conversations: prepared(&self.conversations, "--conversations")?,
            settings: PairSettings {
                settle: self.pairs_settle,
                max_flows: self.pairs_max_flows as usize,
            },
        };
        PairFiles::of(&outputs)?;
        let is_used = outputs.reports.is_some() || outputs.conversations.is_some();
        Ok(is_used.then_some(outputs))
    }
}

fn places(outputs: &OutputArgs) -> impl Iterator<Item = (Kind, String)> {
    outputs.0.iter().filter_map(|output| match output {
        OutputArg::Output(output) => Some((output.kind(), output.address())),
        OutputArg::Nothing | OutputArg::Stdout(_) => None,
    })
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let config = args.config().map_err(RefusedSettings)?;
    let stop = run::shutdown()?;
    let collector = Collector::start(config).await?;
    collector.run(stop).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn config(arguments: &str) -> Result<Config> {
        let all = std::iter::once("collect").chain(arguments.split_whitespace());
        let matches = Args::augment_args(Command::new("collect")).try_get_matches_from(all)?;
        Args::from_arg_matches(&matches)?.config()
    }

    #[test]
    fn a_collector_stores_all_that_comes_in_files_and_is_not_open_to_all_by_chance() {
        for (arguments, told) in [
            ("", "--output <OUTPUT>"),
            ("--output table", "stores flows"),
            ("--output none", "stores flows"),
            ("--output ipfix=udp://a:1", "jsonl=PATH"),
            ("--output kafka=a:1/t", "tcp://HOST:PORT/TOPIC"),
            (
                "--output kafka=tcp://a:1/t --output kafka=tcp://a:1/t",
                "twice",
            ),
            (
                "--output clickhouse=http://a:1/d",
                "http://HOST:PORT/DATABASE/TABLE",
            ),
            ("--output jsonl=/a --output jsonl=/a", "twice"),
            ("--output jsonl=/a --listen 0.0.0.0:1", "--insecure-listen"),
            ("--output jsonl=/a --listen unix:/a,unix:/a", "twice"),
            ("--output jsonl=/a --tls-key b", "--tls-certificate"),
            ("--output jsonl=/a --max-agents 0", "--max-agents"),
        ] {
            let error = config(arguments).expect_err(arguments).to_string();
            assert!(error.contains(told), "{arguments}: {error}");
        }
        let three =
            "--output jsonl=/a --output parquet=/b --output kafka=tcp://a:1/t --max-agents 5";
        let config = config(three).unwrap();
        assert_eq!((config.stores.len(), config.agents.most), (3, 5));
        assert!(config.limits.max_connections > 5);
    }
}
