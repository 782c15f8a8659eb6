//! The settings of an output: `KIND=ADDRESS`, or a table with more keys, such as `{ kind = "jsonl", address =
//! "/var/log/flow-agent/flows.jsonl", only_ended = true }`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use ::tls::{
    output::{OutputTls, ReloadableOutputTls},
    pem::FileFault,
};
use formats::{Format, encoder::Encoder, jsonl::Jsonl, parquet::Parquet};
use hub::Hub;
use rules::similar;
use serde_json::{Map, Value};
use thiserror::Error;

use super::{
    clickhouse::ClickHouse,
    delivery::Collectors,
    files::{Compression, Rotated, Rotation, parquet, whole},
    kafka::Kafka,
    selection::Selection,
    transport::Transport,
};

mod clickhouse;
mod collector;
mod host;
mod ipfix;
mod kafka;
mod otlp;
mod pbflow;
mod table;
mod tls;

pub use table::schema;
use table::{FILE_KEYS, Table};

/// The formats of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ClickHouse,
    Collector,
    Ipfix,
    Jsonl,
    Kafka,
    Otlp,
    Parquet,
    Pbflow,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::ClickHouse,
        Self::Collector,
        Self::Ipfix,
        Self::Jsonl,
        Self::Kafka,
        Self::Otlp,
        Self::Parquet,
        Self::Pbflow,
    ];

    /// The name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClickHouse => "clickhouse",
            Self::Collector => "collector",
            Self::Ipfix => "ipfix",
            Self::Jsonl => "jsonl",
            Self::Kafka => "kafka",
            Self::Otlp => "otlp",
            Self::Parquet => "parquet",
            Self::Pbflow => "pbflow",
        }
    }

    /// The form of an address, for error messages.
    fn addresses(self) -> &'static str {
        match self {
            Self::ClickHouse => {
                "http://HOST:PORT/DATABASE/TABLE, or https://HOST:PORT/DATABASE/TABLE"
            }
            Self::Ipfix => {
                "udp://HOST:PORT, tcp://HOST:PORT, or a path, as /var/log/flow-agent/flows.ipfix"
            }
            Self::Jsonl => "a path, as /var/log/flow-agent/flows.jsonl",
            Self::Kafka => "tcp://HOST:PORT/TOPIC, or tls://HOST:PORT/TOPIC",
            Self::Otlp => {
                "http://HOST or https://HOST, with :PORT and, over HTTP, a /PATH if need be"
            }
            Self::Parquet => "a folder, as /var/log/flow-agent",
            Self::Collector | Self::Pbflow => "http://HOST:PORT or https://HOST:PORT",
        }
    }

    fn has_paths(self) -> bool {
        matches!(self, Self::Ipfix | Self::Jsonl | Self::Parquet)
    }

    /// The address that was meant by a host and port alone. `None` for kinds that only write files.
    fn at(self, host: &HostPort) -> Option<String> {
        Some(match self {
            Self::ClickHouse => format!("http://{host}/DATABASE/TABLE"),
            Self::Collector | Self::Otlp | Self::Pbflow => format!("http://{host}"),
            Self::Ipfix => format!("udp://{host}"),
            Self::Kafka => format!("tcp://{host}/TOPIC"),
            Self::Jsonl | Self::Parquet => return None,
        })
    }
}

/// One value of `--output`: nothing, a format on stdout, or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputArg {
    Nothing,
    Stdout(Format),
    Output(Output),
}

/// The values of one argument, one environment variable, or one entry in a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputArgs(pub Vec<OutputArg>);

/// The destination, the format, and which flows to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name in logs, status and metrics; by default the kind.
    name: Option<String>,
    target: Target,
    pub(super) selection: Selection,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    ClickHouse(Box<clickhouse::Target>),
    Collector(collector::Target),
    Ipfix(Box<ipfix::Target>),
    Jsonl { path: PathBuf, rotation: Rotation },
    Kafka(Box<kafka::Target>),
    Otlp(otlp::Target),
    Parquet { folder: PathBuf, rotation: Rotation },
    Pbflow(pbflow::Target),
}

/// The parts of an output, by its kind.
pub(super) enum Parts {
    /// Flows in another format, message by message.
    Messages(Box<dyn Encoder>, Transport),
    /// Our own batches, to the first collector that answers, perhaps through a spool.
    Batches(Collectors),
}

/// A collector's storage.
pub enum Place {
    Lines(Rotated),
    Columns(Rotated),
    Topic(Kafka),
    Tables(ClickHouse),
}

/// An output whose TLS files have been read.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) output: Output,
    pub(super) tls: Option<OutputTls>,
    /// A warning about the password or token file.
    secret: Option<String>,
}

impl Prepared {
    /// The output's settings.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// The collector's storage, if outputs of this kind can tell when flows are stored.
    pub fn store(&self) -> Option<Place> {
        match &self.output.target {
            Target::Jsonl { path, rotation } => Some(Place::Lines(jsonl(path, rotation))),
            Target::Parquet { folder, rotation } => {
                let made = parquet::MADE_OF_MANY;
                let rotated = Rotated::made(folder.clone(), rotation.clone(), made);
                Some(Place::Columns(rotated))
            }
            Target::Kafka(target) => {
                let kafka = Kafka::new(target.settings().clone(), self.reloadable_tls());
                Some(Place::Topic(kafka))
            }
            Target::ClickHouse(target) => {
                let tables = ClickHouse::new(target.settings().clone(), self.reloadable_tls());
                Some(Place::Tables(tables))
            }
            Target::Collector(_) | Target::Ipfix(_) | Target::Otlp(_) | Target::Pbflow(_) => None,
        }
    }

    /// TLS in use for a store, which is named by its kind.
    fn reloadable_tls(&self) -> Option<ReloadableOutputTls> {
        let read = self.tls.clone()?;
        Some(ReloadableOutputTls::new(
            read.named(self.output.kind().name()),
        ))
    }

    /// Warnings about settings that may be intended.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        let of_tls = self.tls.as_ref().map_or(&[][..], OutputTls::warnings);
        of_tls.iter().chain(&self.secret)
    }

    /// Logs a warning about the password or token file. TLS files log theirs when they come into use.
    pub fn tell_of_secret(&self, name: &str) {
        if let Some(warning) = &self.secret {
            tracing::warn!(output = name, "{warning}");
        }
    }
}

/// A host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl HostPort {
    /// Parses `HOST:PORT`. An IPv6 address must be in brackets.
    fn read(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let inside = host.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
        let host = match inside {
            Some(address) => address.filter(|address| host::is_ipv6(address))?,
            None => Some(host).filter(|host| !host.is_empty() && !host.contains([':', '/']))?,
        };
        let port = port.parse().ok().filter(|&port| port != 0)?;
        Some(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// Why an output's settings are rejected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Refused {
    /// The faulty key of the table; `None` for the output as a whole.
    pub key: Option<String>,
    message: String,
}

impl Refused {
    fn whole(message: impl Into<String>) -> Self {
        Self {
            key: None,
            message: message.into(),
        }
    }

    fn at(key: &str, message: impl Into<String>) -> Self {
        Self {
            key: Some(key.to_owned()),
            message: message.into(),
        }
    }
}

impl Output {
    pub fn kind(&self) -> Kind {
        match self.target {
            Target::ClickHouse(_) => Kind::ClickHouse,
            Target::Collector(_) => Kind::Collector,
            Target::Ipfix(_) => Kind::Ipfix,
            Target::Jsonl { .. } => Kind::Jsonl,
            Target::Kafka(_) => Kind::Kafka,
            Target::Otlp(_) => Kind::Otlp,
            Target::Parquet { .. } => Kind::Parquet,
            Target::Pbflow(_) => Kind::Pbflow,
        }
    }

    /// The address in the settings.
    pub fn address(&self) -> String {
        match &self.target {
            Target::ClickHouse(target) => target.address(),
            Target::Collector(target) => target.address(),
            Target::Ipfix(target) => target.address(),
            Target::Jsonl { path, .. } => path.display().to_string(),
            Target::Kafka(target) => target.address(),
            Target::Otlp(target) => target.address(),
            Target::Parquet { folder, .. } => folder.display().to_string(),
            Target::Pbflow(target) => target.address(),
        }
    }

    /// Reads the TLS files, if the output speaks TLS, and checks the password or token file.
    pub fn prepare(self) -> Result<Prepared, FileFault> {
        let tls = match &self.target {
            Target::ClickHouse(target) => target.read_tls()?,
            Target::Collector(target) => target.read_tls()?,
            Target::Kafka(target) => target.read_tls()?,
            Target::Otlp(target) => target.read_tls()?,
            Target::Pbflow(target) => target.read_tls()?,
            Target::Ipfix(_) | Target::Jsonl { .. } | Target::Parquet { .. } => None,
        };
        let secret = match &self.target {
            Target::ClickHouse(target) => {
                let login = target.settings().login.as_ref();
                login.and_then(|login| login.password_file.as_ref()?.warning())
            }
            Target::Collector(target) => target.token_warning(),
            Target::Kafka(target) => {
                let login = target.settings().login.as_ref();
                login.and_then(|login| login.password_file.warning())
            }
            Target::Ipfix(_)
            | Target::Jsonl { .. }
            | Target::Otlp(_)
            | Target::Parquet { .. }
            | Target::Pbflow(_) => None,
        };
        Ok(Prepared {
            output: self,
            tls,
            secret,
        })
    }

    /// Builds the output's parts. `place` distinguishes this output from others, including those of other agents on
    /// this host.
    pub(super) fn parts(&self, hub: &Hub, place: &str, tls: Option<ReloadableOutputTls>) -> Parts {
        let (encoder, transport): (Box<dyn Encoder>, _) = match &self.target {
            Target::Collector(target) => {
                return Parts::Batches(target.collectors(tls.as_ref()));
            }
            Target::Ipfix(target) => target.parts(place),
            Target::Jsonl { path, rotation } => (
                Box::new(Jsonl::default()),
                Transport::File(jsonl(path, rotation)),
            ),
            Target::ClickHouse(_) | Target::Kafka(_) => {
                unreachable!("the settings of an agent refuse it")
            }
            Target::Otlp(target) => target.parts(hub.accounts(), tls),
            Target::Parquet { folder, rotation } => (
                Box::new(Parquet::default()),
                Transport::File(columns(folder, rotation)),
            ),
            Target::Pbflow(target) => target.parts(tls),
        };
        Parts::Messages(encoder, transport)
    }

    /// The files that an agent's output writes, if it writes files.
    pub(super) fn files(&self) -> Option<Rotated> {
        match &self.target {
            Target::Ipfix(target) => target.files(),
            Target::Jsonl { path, rotation } => Some(jsonl(path, rotation)),
            Target::Parquet { folder, rotation } => Some(columns(folder, rotation)),
            Target::ClickHouse(_)
            | Target::Collector(_)
            | Target::Kafka(_)
            | Target::Otlp(_)
            | Target::Pbflow(_) => None,
        }
    }

    /// Whether only a collector can use it. An agent's output has no acknowledgements to hold back.
    pub fn is_for_a_collector_alone(&self) -> bool {
        matches!(self.target, Target::ClickHouse(_) | Target::Kafka(_))
    }

    /// Whether outputs of this kind can tell when flows are stored.
    pub fn is_store(&self) -> bool {
        matches!(
            self.target,
            Target::ClickHouse(_)
                | Target::Jsonl { .. }
                | Target::Kafka(_)
                | Target::Parquet { .. }
        )
    }

    /// Whether its collector may ask the agent to report less often.
    pub fn may_ask(&self) -> bool {
        matches!(&self.target, Target::Collector(target) if target.may_ask())
    }

    /// Whether it leaves some flows out.
    pub fn leaves_out(&self) -> bool {
        self.selection != Selection::default()
    }

    fn read(table: &Table) -> Result<Self, Refused> {
        // First, since a missing setting may be there with a misspelt name.
        table.refuse_unknown()?;
        let kind = table.text("kind")?.ok_or_else(|| missing("kind"))?;
        let kind = Kind::ALL
            .into_iter()
            .find(|known| known.name() == kind)
            .ok_or_else(|| Refused::at("kind", unknown_kind(&kind)))?;
        let address = table.text("address")?.ok_or_else(|| missing("address"))?;
        table.refuse_other_kinds(kind)?;
        let is_path = !address.contains("://");
        let ending = [".gz", ".zst", ".part"]
            .into_iter()
            .find(|ending| address.ends_with(ending));
        if is_path && let Some(ending) = ending {
            let message = format!(
                "{ending} ends the names of files that are complete: leave it out, complete files get it by themselves"
            );
            return Err(Refused::at("address", message));
        }
        if address.is_empty() {
            let message = format!("expected {}", kind.addresses());
            return Err(Refused::at("address", message));
        }
        if let Some(fault) = host::fault(&address) {
            return Err(Refused::at("address", fault));
        }
        if let Some(fault) = host::without_scheme(kind, &address) {
            return Err(Refused::at("address", fault));
        }
        let target = match kind {
            Kind::ClickHouse => {
                Target::ClickHouse(clickhouse::Target::read(table, &address)?.into())
            }
            Kind::Collector => Target::Collector(collector::Target::read(table, &address)?),
            Kind::Ipfix => Target::Ipfix(ipfix::Target::read(table, &address)?.into()),
            Kind::Jsonl => Target::Jsonl {
                path: address.into(),
                rotation: table.rotation()?,
            },
            Kind::Kafka => Target::Kafka(kafka::Target::read(table, &address)?.into()),
            Kind::Otlp => Target::Otlp(otlp::Target::read(table, &address)?),
            Kind::Parquet => Target::parquet(table, &address)?,
            Kind::Pbflow => Target::Pbflow(pbflow::Target::read(table, &address)?),
        };
        Ok(Self {
            name: table.text("name")?,
            target,
            selection: Selection {
                filter: table.filter()?,
                only_ended: table.boolean("only_ended")?.unwrap_or_default(),
                min_bytes: table.integer("min_bytes")?.unwrap_or_default(),
            },
        })
    }
}

impl Target {
    fn parquet(table: &Table, address: &str) -> Result<Self, Refused> {
        if address.contains("://") {
            let message = format!("expected {}", Kind::Parquet.addresses());
            return Err(Refused::at("address", message));
        }
        let rotation = table.rotation()?;
        if rotation.compression == Compression::Gzip {
            let message = "expected one of none, zstd";
            return Err(Refused::at("compression", message));
        }
        Ok(Self::Parquet {
            folder: address.into(),
            rotation,
        })
    }
}

fn jsonl(path: &Path, rotation: &Rotation) -> Rotated {
    Rotated::new(path.to_owned(), rotation.clone(), whole::lines)
}

/// Parquet files of an agent.
fn columns(folder: &Path, rotation: &Rotation) -> Rotated {
    Rotated::made(folder.to_owned(), rotation.clone(), parquet::MADE)
}

fn missing(key: &str) -> Refused {
    Refused::whole(format!("an output needs {key}"))
}

fn unknown_kind(kind: &str) -> String {
    let kinds = Kind::ALL.map(Kind::name);
    let hint = similar::hint(kind, kinds);
    format!(
        "no kind of output has this name{hint}; expected one of {}",
        kinds.join(", ")
    )
}

/// The output's name, with a number appended if it is taken.
pub(super) fn free_name(output: &Output, is_free: impl Fn(&str) -> bool) -> String {
    let base = output.name.clone();
    let base = base.unwrap_or_else(|| output.kind().name().to_owned());
    let numbered = (2u32..).map(|number| format!("{base}-{number}"));
    let mut candidates = std::iter::once(base.clone()).chain(numbered);
    let free = candidates.find(|name| is_free(name));
    free.expect("there are more numbers than outputs")
}

/// Parses one value: `none`, `table`, `json`, `KIND=ADDRESS`, several of these separated by commas, or a table in JSON.
impl FromStr for OutputArgs {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        if text.trim_start().starts_with('{') {
            let table: Map<String, Value> = serde_json::from_str(text)
                .map_err(|error| Refused::whole(format!("expected a table in JSON: {error}")))?;
            let output = Output::read(&Table(table))?;
            return Ok(Self(vec![OutputArg::Output(output)]));
        }
        text.split(',')
            .map(output_arg)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn output_arg(text: &str) -> Result<OutputArg, Refused> {
    match text {
        "none" => return Ok(OutputArg::Nothing),
        "table" => return Ok(OutputArg::Stdout(Format::Table)),
        "json" => return Ok(OutputArg::Stdout(Format::Json)),
        _ => {}
    }
    let Some((kind, address)) = text.split_once('=') else {
        let known = Kind::ALL.map(Kind::name);
        let hint = similar::hint(text, ["none", "table", "json"].into_iter().chain(known));
        return Err(Refused::whole(format!(
            "expected none, table, json, or KIND=ADDRESS{hint}; kinds are {}",
            known.join(", ")
        )));
    };
    let table = [("kind", kind), ("address", address)];
    let table = table.map(|(key, value)| (key.to_owned(), Value::from(value)));
    Output::read(&Table(table.into_iter().collect())).map(OutputArg::Output)
}

#[cfg(test)]
mod tests;
