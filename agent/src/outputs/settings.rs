//! What an output is to do, as the settings say it: `KIND=ADDRESS`, or a table with more, such as
//! `{ kind = "jsonl", address = "/var/log/flow-agent/flows.jsonl", only_ended = true }`.

use std::{fmt, path::PathBuf, str::FromStr};

use serde_json::{Map, Value};
use thiserror::Error;

use super::{
    clickhouse::ClickHouse,
    delivery::Collectors,
    encoder::Encoder,
    files::{Compression, Rotated, Rotation, whole},
    jsonl::Jsonl,
    kafka::Kafka,
    parquet::{self, Parquet},
    transport::Transport,
    wanted::Wanted,
};
use crate::{
    hub::Hub,
    output::Format,
    similar,
    tls::{
        output::{InForce, OutputTls},
        pem::FileFault,
    },
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

/// The formats that an output can have.
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

    /// As in the settings.
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

    /// What an address of this kind looks like.
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
}

/// One value of `--output`: flows on stdout, or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Stdout(Format),
    Output(Output),
}

/// The values of one argument, of a variable or of a place in a file of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wishes(pub Vec<Wish>);

/// Where flows go, in which form, and which of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// For logs, status and metrics; by default the kind.
    name: Option<String>,
    target: Target,
    pub(super) wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    ClickHouse(Box<clickhouse::Target>),
    Collector(collector::Target),
    Ipfix(ipfix::Target),
    Jsonl { path: PathBuf, rotation: Rotation },
    Kafka(Box<kafka::Target>),
    Otlp(otlp::Target),
    Parquet { folder: PathBuf, rotation: Rotation },
    Pbflow(pbflow::Target),
}

/// What an output consists of, by what it sends.
pub(super) enum Parts {
    /// Flows in another format, message by message.
    Messages(Box<dyn Encoder>, Transport),
    /// Our own batches, to the first of these that answers, and perhaps by way of the disk.
    Batches(Collectors),
}

/// Where a collector stores.
pub(crate) enum Place {
    Lines(Rotated),
    Columns(Rotated),
    Topic(Kafka),
    Tables(ClickHouse),
}

/// An output whose files of TLS have been read.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) output: Output,
    pub(super) tls: Option<OutputTls>,
}

impl Prepared {
    /// As in the settings.
    pub(crate) fn output(&self) -> &Output {
        &self.output
    }

    /// Where a collector stores, if it is of a kind that says when flows are stored.
    pub(crate) fn store(&self) -> Option<Place> {
        match &self.output.target {
            Target::Jsonl { path, rotation } => {
                let rotated = Rotated::new(path.clone(), rotation.clone(), whole::lines);
                Some(Place::Lines(rotated))
            }
            Target::Parquet { folder, rotation } => {
                let made = parquet::MADE_OF_MANY;
                let rotated = Rotated::made(folder.clone(), rotation.clone(), made);
                Some(Place::Columns(rotated))
            }
            Target::Kafka(target) => {
                let kafka = Kafka::new(target.settings().clone(), self.tls_in_force());
                Some(Place::Topic(kafka))
            }
            Target::ClickHouse(target) => {
                let tables = ClickHouse::new(target.settings().clone(), self.tls_in_force());
                Some(Place::Tables(tables))
            }
            Target::Collector(_) | Target::Ipfix(_) | Target::Otlp(_) | Target::Pbflow(_) => None,
        }
    }

    /// Of a store, which is named as its kind.
    fn tls_in_force(&self) -> Option<InForce> {
        let read = self.tls.clone()?;
        Some(InForce::new(read.named(self.output.kind().name())))
    }

    /// What may be meant so, and is worth a look.
    pub fn warnings(&self) -> &[String] {
        self.tls.as_ref().map_or(&[], OutputTls::warnings)
    }
}

/// A host by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl HostPort {
    /// Reads `HOST:PORT`. An IPv6 address stands in brackets.
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

/// Why an output is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Refused {
    /// The key of a table that is wrong; without one it is the output as a whole.
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

    /// As in the settings.
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

    /// Reads the files of TLS, if it speaks TLS.
    pub fn prepare(self) -> Result<Prepared, FileFault> {
        let tls = match &self.target {
            Target::ClickHouse(target) => target.read_tls()?,
            Target::Collector(target) => target.read_tls()?,
            Target::Kafka(target) => target.read_tls()?,
            Target::Otlp(target) => target.read_tls()?,
            Target::Pbflow(target) => target.read_tls()?,
            Target::Ipfix(_) | Target::Jsonl { .. } | Target::Parquet { .. } => None,
        };
        Ok(Prepared { output: self, tls })
    }

    /// What it consists of.
    pub(super) fn parts(&self, hub: &Hub, tls: Option<InForce>) -> Parts {
        let (encoder, transport): (Box<dyn Encoder>, _) = match &self.target {
            Target::Collector(target) => {
                return Parts::Batches(target.collectors(tls.as_ref()));
            }
            Target::Ipfix(target) => target.parts(),
            Target::Jsonl { path, rotation } => (
                Box::new(Jsonl::default()),
                Transport::File(Rotated::new(path.clone(), rotation.clone(), whole::lines)),
            ),
            Target::ClickHouse(_) | Target::Kafka(_) => {
                unreachable!("the settings of an agent refuse it")
            }
            Target::Otlp(target) => target.parts(hub.accounts(), tls),
            Target::Parquet { folder, rotation } => (
                Box::new(Parquet::default()),
                Transport::File(Rotated::made(
                    folder.clone(),
                    rotation.clone(),
                    parquet::MADE,
                )),
            ),
            Target::Pbflow(target) => target.parts(tls),
        };
        Parts::Messages(encoder, transport)
    }

    /// Only a collector stores there: an agent's output has nothing that waits until it is acknowledged.
    pub(crate) fn is_for_a_collector_alone(&self) -> bool {
        matches!(self.target, Target::ClickHouse(_) | Target::Kafka(_))
    }

    /// Whether it is of a kind that says when flows are stored.
    pub(crate) fn is_store(&self) -> bool {
        matches!(
            self.target,
            Target::ClickHouse(_)
                | Target::Jsonl { .. }
                | Target::Kafka(_)
                | Target::Parquet { .. }
        )
    }

    /// Whether it may ask the agent to report less often.
    pub(crate) fn may_ask(&self) -> bool {
        matches!(&self.target, Target::Collector(target) if target.may_ask())
    }

    /// Whether some flows do not get there.
    pub(crate) fn leaves_out(&self) -> bool {
        self.wanted != Wanted::default()
    }

    fn read(table: &Table) -> Result<Self, Refused> {
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
        let target = match kind {
            Kind::ClickHouse => {
                Target::ClickHouse(clickhouse::Target::read(table, &address)?.into())
            }
            Kind::Collector => Target::Collector(collector::Target::read(table, &address)?),
            Kind::Ipfix => Target::Ipfix(ipfix::Target::read(table, &address)?),
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
            wanted: Wanted {
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

/// The name of an output, with a number if it is not free.
pub(super) fn free_name(output: &Output, is_free: impl Fn(&str) -> bool) -> String {
    let base = output.name.clone();
    let base = base.unwrap_or_else(|| output.kind().name().to_owned());
    let numbered = (2u32..).map(|number| format!("{base}-{number}"));
    let mut candidates = std::iter::once(base.clone()).chain(numbered);
    let free = candidates.find(|name| is_free(name));
    free.expect("there are more numbers than outputs")
}

/// The text of a value: `none`, `table`, `json`, `KIND=ADDRESS`, several of them with commas, or a table in JSON.
impl FromStr for Wishes {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        if text.trim_start().starts_with('{') {
            let table: Map<String, Value> = serde_json::from_str(text)
                .map_err(|error| Refused::whole(format!("expected a table in JSON: {error}")))?;
            let output = Output::read(&Table(table))?;
            return Ok(Self(vec![Wish::Output(output)]));
        }
        text.split(',')
            .map(wish)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn wish(text: &str) -> Result<Wish, Refused> {
    match text {
        "none" => return Ok(Wish::Nothing),
        "table" => return Ok(Wish::Stdout(Format::Table)),
        "json" => return Ok(Wish::Stdout(Format::Json)),
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
    Output::read(&Table(table.into_iter().collect())).map(Wish::Output)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::outputs::delivery::Spooling;

    pub(super) fn read(text: &str) -> Result<Vec<Wish>, String> {
        let read: Result<Wishes, _> = text.parse();
        read.map(|wishes| wishes.0).map_err(|refused| {
            let key = refused.key.clone().unwrap_or_default();
            format!("{key}: {refused}")
        })
    }

    #[test]
    fn a_text_has_one_wish_or_several() {
        let read = read("table,jsonl=/a=b,none").unwrap();
        let [
            Wish::Stdout(Format::Table),
            Wish::Output(output),
            Wish::Nothing,
        ] = &read[..]
        else {
            panic!("{read:?}");
        };
        assert_eq!(
            (output.kind(), output.address()),
            (Kind::Jsonl, "/a=b".to_owned())
        );
        assert_eq!(output.wanted, Wanted::default());
    }

    #[test]
    fn a_table_sets_what_its_kind_has() {
        let table = r#"{"kind": "jsonl", "address": "/a", "only_ended": true, "min_bytes": 5,
            "rotate_after": "1h 30m", "rotate_bytes": 7, "keep_files": 2, "keep_bytes": 9,
            "compression": "gzip", "name": "archive", "filter": "include port 443; exclude all"}"#;
        let read = read(table).unwrap();
        let [Wish::Output(output)] = &read[..] else {
            panic!("{read:?}")
        };
        let rotation = Rotation {
            bytes: 7,
            after: Duration::from_mins(90),
            files: 2,
            total_bytes: 9,
            compression: Compression::Gzip,
        };
        let expected = Output {
            name: Some("archive".to_owned()),
            target: Target::Jsonl {
                path: "/a".into(),
                rotation,
            },
            wanted: Wanted {
                filter: "include port 443; exclude all".parse().unwrap(),
                only_ended: true,
                min_bytes: 5,
            },
        };
        assert_eq!(*output, expected);
    }

    #[test]
    fn ipfix_goes_to_a_host_or_into_a_file() {
        for address in [
            "udp://collector:4739",
            "tcp://[2001:db8::1]:4739",
            "/a/flows.ipfix",
        ] {
            let read = read(&format!("ipfix={address}")).unwrap();
            let [Wish::Output(output)] = &read[..] else {
                panic!("{read:?}")
            };
            assert_eq!(
                (output.kind(), output.address().as_str()),
                (Kind::Ipfix, address)
            );
        }
        let other = r#"{"kind": "ipfix", "address": "udp://a:1", "uniflow": true, "octets": "layer2",
            "template_refresh": "5s", "message_bytes": 512, "observation_domain": 7}"#;
        assert_ne!(read(other).unwrap(), read("ipfix=udp://a:1").unwrap());
    }

    #[test]
    fn otlp_has_the_protocol_that_its_address_suggests() {
        for (address, told) in [
            ("http://a", "http://a:4317"),
            ("http://a/", "http://a:4317"),
            ("http://a:4317", "http://a:4317"),
            ("http://[::1]", "http://[::1]:4317"),
            ("http://a:4318", "http://a:4318"),
            ("http://a:4318/", "http://a:4318"),
            ("http://a/otlp/", "http://a:4318/otlp"),
            ("http://a:80/otlp", "http://a:80/otlp"),
        ] {
            let read = read(&format!("otlp={address}")).unwrap();
            let [Wish::Output(output)] = &read[..] else {
                panic!("{read:?}")
            };
            assert_eq!(
                (output.kind(), output.address().as_str()),
                (Kind::Otlp, told)
            );
            let chosen = if told.contains('8') || told.ends_with("otlp") {
                "http"
            } else {
                "grpc"
            };
            for protocol in ["grpc", "http"] {
                let table = format!(
                    r#"{{"kind": "otlp", "address": "{address}", "protocol": "{protocol}"}}"#
                );
                let as_said = self::read(&table);
                assert_eq!(as_said == Ok(read.clone()), protocol == chosen, "{table}");
            }
        }
        let other =
            r#"{"kind": "otlp", "address": "http://a", "metrics": false, "compression": "none"}"#;
        assert_ne!(read(other).unwrap(), read("otlp=http://a").unwrap());
    }

    #[test]
    fn collectors_stand_in_for_each_other() {
        let table = r#"{"kind": "collector", "address": "http://a:1", "failover": "b:2, [::1]:3"}"#;
        for (text, told) in [
            ("collector=http://a:1", "http://a:1"),
            ("collector=https://a:1", "https://a:1"),
            (table, "http://a:1,b:2,[::1]:3"),
        ] {
            let read = read(text).unwrap();
            let [Wish::Output(output)] = &read[..] else {
                panic!("{read:?}")
            };
            assert_eq!(
                (output.kind(), output.address().as_str()),
                (Kind::Collector, told)
            );
        }
    }

    #[test]
    fn a_collector_has_a_spool_of_a_gibibyte_unless_it_says_otherwise() {
        let spooling = |more: &str| {
            let table = format!(r#"{{"kind": "collector", "address": "http://a:1"{more}}}"#);
            let read = read(&table).unwrap();
            let [Wish::Output(output)] = &read[..] else {
                panic!("{read:?}")
            };
            let Target::Collector(target) = &output.target else {
                panic!("{output:?}")
            };
            target.collectors(None).spooling
        };
        assert_eq!(spooling(""), None);
        assert_eq!(spooling(r#", "spool": "" "#), None);
        let expected = |most_bytes| {
            Some(Spooling {
                folder: "/a".into(),
                most_bytes,
            })
        };
        assert_eq!(spooling(r#", "spool": "/a""#), expected(1 << 30));
        let more = r#", "spool": "/a", "spool_bytes": 16777216"#;
        assert_eq!(spooling(more), expected(16 << 20));
    }

    #[test]
    fn parquet_goes_into_a_folder() {
        let table = r#"{"kind": "parquet", "address": "/a", "compression": "none"}"#;
        let read = read(table).unwrap();
        let [Wish::Output(output)] = &read[..] else {
            panic!("{read:?}")
        };
        assert_eq!(output.kind(), Kind::Parquet);
        assert_eq!(output.address(), "/a");
        let Target::Parquet { rotation, .. } = &output.target else {
            panic!("{output:?}")
        };
        assert_eq!(rotation.compression, Compression::None);
    }

    #[test]
    fn what_is_refused_says_where_and_what_may_have_been_meant() {
        for (text, error) in [
            (
                "jsn",
                ": expected none, table, json, or KIND=ADDRESS (did you mean json?); kinds are",
            ),
            (
                "",
                ": expected none, table, json, or KIND=ADDRESS; kinds are",
            ),
            (
                "table,",
                ": expected none, table, json, or KIND=ADDRESS; kinds are",
            ),
            (
                "jsonnl=/a",
                "kind: no kind of output has this name (did you mean jsonl?)",
            ),
            ("jsonl=", "address: expected a path"),
            ("jsonl=/a.jsonl.zst", "address: .zst ends the names"),
            ("{", ": expected a table in JSON"),
            ("parquet=", "address: expected a folder"),
            ("parquet=s3://bucket", "address: expected a folder"),
            (
                r#"{"kind": "parquet", "address": "/a", "compression": "gzip"}"#,
                "compression: expected one of none, zstd",
            ),
            (r#"{"kind": "jsonl"}"#, ": an output needs address"),
            (
                r#"{"kind": "jsonl", "address": 5}"#,
                "address: expected a text in quotes",
            ),
            (
                r#"{"kind": "jsonl", "address": "/a", "filter": "include prot 5"}"#,
                "filter: no term begins like this",
            ),
            (
                r#"{"kind": "jsonl", "address": "/a", "keep_file": 5}"#,
                "keep_file: an output has no such setting (did you mean keep_files?)",
            ),
            ("ipfix=udp://a", "address: expected udp://HOST:PORT, tcp"),
            ("ipfix=udp://:1", "address: expected udp://HOST:PORT, tcp"),
            ("ipfix=tcp://a:0", "address: expected udp://HOST:PORT, tcp"),
            (
                "ipfix=tcp://::1:1",
                "address: expected udp://HOST:PORT, tcp",
            ),
            ("ipfix=http://a:1", "address: expected udp://HOST:PORT, tcp"),
            (
                r#"{"kind": "ipfix", "address": "udp://a:1", "keep_files": 1}"#,
                "keep_files: only files have such a setting",
            ),
            (
                r#"{"kind": "ipfix", "address": "tcp://a:1", "template_refresh": "5s"}"#,
                "template_refresh: only datagrams need templates again",
            ),
            (
                r#"{"kind": "ipfix", "address": "udp://a:1", "template_refresh": "5ms"}"#,
                "template_refresh: expected a time, \"1s\" or longer",
            ),
            (
                r#"{"kind": "ipfix", "address": "udp://a:1", "message_bytes": 511}"#,
                "message_bytes: expected a number, 512 or more",
            ),
            (
                r#"{"kind": "ipfix", "address": "udp://a:1", "octets": "all"}"#,
                "octets: expected one of ip, layer2",
            ),
            ("pbflow=http://a", "address: expected http://HOST:PORT"),
            ("pbflow=/a", "address: expected http://HOST:PORT"),
            ("pbflow=tcp://a:1", "address: expected http://HOST:PORT"),
            (
                r#"{"kind": "pbflow", "address": "http://a:1", "agent_ip": "a"}"#,
                "agent_ip: expected an address, as 192.0.2.1",
            ),
            (
                r#"{"kind": "jsonl", "address": "/a", "keep_files": 0}"#,
                "keep_files: expected a number, 1 or more",
            ),
            (
                r#"{"kind": "jsonl", "address": "/a", "rotate_after": "soon"}"#,
                "rotate_after: expected a time",
            ),
            (
                r#"{"kind": "ipfix", "address": "/a", "rotate_after": "999ms"}"#,
                "rotate_after: expected a time of a second or more",
            ),
            (
                r#"{"kind": "jsonl", "address": "/a", "compression": "xz"}"#,
                "compression: expected one of none, gzip, zstd",
            ),
        ] {
            assert_refused(text, error);
        }
    }

    #[test]
    fn no_address_has_a_host_that_cannot_be_one() {
        for scheme in [
            "ipfix=udp",
            "ipfix=tcp",
            "pbflow=http",
            "otlp=http",
            "collector=http",
        ] {
            for (host, error) in [
                ("a b", "the name of a host cannot have ' '"),
                ("a\tb", "the name of a host cannot have '\\t'"),
                ("a%20b", "the name of a host cannot have '%'"),
                ("a\"b", "the name of a host cannot have '\"'"),
                ("köln", "the name of a host cannot have 'ö'"),
                ("user@a", "outputs send no user and no password: leave out"),
                ("user:@a", "outputs send no user and no password: leave out"),
                ("b:secret@a", "outputs send no user and no password"),
                ("[a:b]", "expected "),
                ("[::1%]", "expected "),
            ] {
                let text = format!("{scheme}://{host}:1");
                assert_refused(&text, &format!("address: {error}"));
            }
            for host in [
                "a",
                "a-b.c_d.example",
                "192.0.2.1",
                "[::1]",
                "[fe80::1%eth0]",
            ] {
                let text = format!("{scheme}://{host}:1");
                assert!(read(&text).is_ok(), "{text}");
            }
        }
        assert_refused("otlp=http://a b", "address: the name of a host");
        assert_refused("otlp=http://user@a/b@c", "address: outputs send no user");
        assert!(read("otlp=http://a/b@c").is_ok());
        // Paths may have what they like.
        assert!(read("jsonl=/a b/c@d").is_ok());
    }

    #[test]
    fn what_is_refused_of_collectors_says_where() {
        for (text, error) in [
            ("collector=http://a", "address: expected http://HOST:PORT"),
            ("collector=a:1", "address: expected http://HOST:PORT"),
            (
                r#"{"kind": "collector", "address": "http://a:1", "failover": "b"}"#,
                "failover: expected HOST:PORT, or several with commas",
            ),
            (
                r#"{"kind": "collector", "address": "http://a:1", "failover": "b:1,"}"#,
                "failover: expected HOST:PORT, or several with commas",
            ),
            (
                r#"{"kind": "collector", "address": "http://a:1", "failover": "b:1, a:1"}"#,
                "failover: a:1 is there twice",
            ),
            (
                r#"{"kind": "collector", "address": "http://a:1", "failover": "b c:1"}"#,
                "failover: the name of a host cannot have ' '",
            ),
            (
                r#"{"kind": "collector", "address": "http://a:1", "spool": "var/spool"}"#,
                "spool: expected the whole path, from /, of a folder, and not var/spool",
            ),
            (
                r#"{"kind": "collector", "address": "http://a:1", "spool_bytes": 20000000}"#,
                "spool_bytes: is for a spool, and there is none: set spool",
            ),
            (
                r#"{"kind": "collector", "address": "http://a:1", "spool": "/a", "spool_bytes": 1}"#,
                "spool_bytes: expected a number, 16777216 or more",
            ),
            (
                r#"{"kind": "jsonl", "address": "/a", "spool": "/b"}"#,
                "spool: jsonl has no such setting",
            ),
            (
                r#"{"kind": "collector", "address": "http://a:1", "only_ended": true}"#,
                "only_ended: collector has no such setting",
            ),
        ] {
            assert_refused(text, error);
        }
    }

    #[test]
    fn what_is_refused_of_otlp_says_where() {
        for (text, error) in [
            ("otlp=a:4317", "address: expected http://HOST"),
            ("otlp=http://", "address: expected http://HOST"),
            ("otlp=http://a:b", "address: expected http://HOST"),
            ("otlp=http://a/b?c", "address: expected http://HOST"),
            ("otlp=https://", "address: expected http://HOST"),
            ("otlp=https://a:b", "address: expected http://HOST"),
            (
                "otlp=http://a:4318/v1/logs",
                "address: leave out /v1/logs: it is added",
            ),
            (
                r#"{"kind": "otlp", "address": "http://a/b", "protocol": "grpc"}"#,
                "address: gRPC has no path",
            ),
            (
                r#"{"kind": "otlp", "address": "http://a", "protocol": "https"}"#,
                "protocol: expected one of grpc, http",
            ),
            (
                r#"{"kind": "otlp", "address": "http://a", "compression": "zstd"}"#,
                "compression: expected one of none, gzip",
            ),
            (
                r#"{"kind": "otlp", "address": "http://a", "keep_files": 1}"#,
                "keep_files: otlp has no such setting",
            ),
        ] {
            assert_refused(text, error);
        }
    }

    fn assert_refused(text: &str, error: &str) {
        let refused = read(text).expect_err(text);
        assert!(refused.starts_with(error), "{text}: {refused}");
    }

    #[test]
    fn outputs_of_one_kind_have_numbers() {
        let output = |text: &str| {
            let mut read = read(text).unwrap();
            let Some(Wish::Output(output)) = read.pop() else {
                panic!("{text}")
            };
            output
        };
        let plain = output("jsonl=/a");
        let taken = ["jsonl", "jsonl-3", "archive"];
        assert_eq!(free_name(&plain, |_| true), "jsonl");
        assert_eq!(free_name(&plain, |name| !taken.contains(&name)), "jsonl-2");
        let named = output(r#"{"kind":"jsonl","address":"/c","name":"archive"}"#);
        assert_eq!(
            free_name(&named, |name| !taken.contains(&name)),
            "archive-2"
        );
    }
}
