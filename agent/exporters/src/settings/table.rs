//! The keys of an output's table, and access to their values.

use std::time::Duration;

use rules::similar;
use serde_json::{Map, Value, json};

use super::{Kind, Refused, ipfix};
use crate::{
    files::{Compression, Rotation},
    selection::Filter,
};

/// A key of an output's table.
struct Key {
    name: &'static str,
    /// The kinds that have this key; empty means all.
    kinds: &'static [Kind],
    value: ValueType,
    help: &'static str,
}

#[derive(Clone, Copy)]
enum ValueType {
    Boolean,
    /// A whole number, `least` or more.
    Integer {
        least: u64,
    },
    Text,
    /// A duration such as "10s".
    Time,
    Choice(&'static [&'static str]),
}

/// A shorter interval would make a file of every message.
const SHORTEST_ROTATION: Duration = Duration::from_secs(1);

const FILES: &[Kind] = &[Kind::Ipfix, Kind::Jsonl, Kind::Parquet];
/// Keys that only file outputs have.
pub(super) const FILE_KEYS: [&str; 5] = [
    "rotate_bytes",
    "rotate_after",
    "keep_files",
    "keep_bytes",
    "compression",
];

const IPFIX: &[Kind] = &[Kind::Ipfix];
const OTLP: &[Kind] = &[Kind::Otlp];
/// Kinds that compress.
const PACKED: &[Kind] = &[
    Kind::Ipfix,
    Kind::Jsonl,
    Kind::Kafka,
    Kind::Otlp,
    Kind::Parquet,
];
const PBFLOW: &[Kind] = &[Kind::Pbflow];
/// Kinds that connect to servers.
const SERVED: &[Kind] = &[
    Kind::ClickHouse,
    Kind::Collector,
    Kind::Kafka,
    Kind::Otlp,
    Kind::Pbflow,
];
const KAFKA: &[Kind] = &[Kind::Kafka];
const CLICKHOUSE: &[Kind] = &[Kind::ClickHouse];
/// Kinds that log in with a user name.
const LOGGING_IN: &[Kind] = &[Kind::ClickHouse, Kind::Kafka];
/// Kinds that can have several servers.
const FAILING_OVER: &[Kind] = &[Kind::Collector, Kind::Kafka];
const COLLECTOR: &[Kind] = &[Kind::Collector];
/// Kinds that can leave flows out.
const CHOOSING: &[Kind] = &[
    Kind::Ipfix,
    Kind::Jsonl,
    Kind::Otlp,
    Kind::Parquet,
    Kind::Pbflow,
];

const KEYS: &[Key] = &[
    Key {
        name: "kind",
        kinds: &[],
        value: ValueType::Choice(&[
            "clickhouse",
            "collector",
            "ipfix",
            "jsonl",
            "kafka",
            "otlp",
            "parquet",
            "pbflow",
        ]),
        help: "The format.",
    },
    Key {
        name: "address",
        kinds: &[],
        value: ValueType::Text,
        help: "Where the flows go.",
    },
    Key {
        name: "name",
        kinds: &[],
        value: ValueType::Text,
        help: "The name in logs, status and metrics; by default the kind.",
    },
    Key {
        name: "filter",
        kinds: CHOOSING,
        value: ValueType::Text,
        help: "Rules in the language of filter: a flow is sent if they let one of its packets pass.",
    },
    Key {
        name: "only_ended",
        kinds: CHOOSING,
        value: ValueType::Boolean,
        help: "Send one record per flow, when it has ended.",
    },
    Key {
        name: "min_bytes",
        kinds: CHOOSING,
        value: ValueType::Integer { least: 0 },
        help: "Leave out flows with fewer bytes than this, both directions together.",
    },
    Key {
        name: "rotate_bytes",
        kinds: FILES,
        value: ValueType::Integer { least: 1 },
        help: "A file is complete when it would be longer than this; by default 100 MiB.",
    },
    Key {
        name: "rotate_after",
        kinds: FILES,
        value: ValueType::Time,
        help: "A file is complete after this time, a second or more; by default an hour.",
    },
    Key {
        name: "keep_files",
        kinds: FILES,
        value: ValueType::Integer { least: 1 },
        help: "How many complete files are kept; by default 168.",
    },
    Key {
        name: "keep_bytes",
        kinds: FILES,
        value: ValueType::Integer { least: 1 },
        help: "How many bytes complete files may have together; by default 10 GiB.",
    },
    Key {
        name: "compression",
        kinds: PACKED,
        value: ValueType::Choice(&["none", "gzip", "zstd"]),
        help: "How complete files and Kafka's messages are compressed, by default zstd; otlp: how requests are, gzip or none, by default gzip.",
    },
    Key {
        name: "uniflow",
        kinds: IPFIX,
        value: ValueType::Boolean,
        help: "One record for each direction, for collectors that ignore the answers in a biflow's record.",
    },
    Key {
        name: "end_records",
        kinds: IPFIX,
        value: ValueType::Boolean,
        help: "Send an end record, without packets, for flows that end while quiet.",
    },
    Key {
        name: "octets",
        kinds: IPFIX,
        value: ValueType::Choice(&["ip", "layer2"]),
        help: "What octetDeltaCount counts; by default ip, from the IP header on.",
    },
    Key {
        name: "template_refresh",
        kinds: IPFIX,
        value: ValueType::Time,
        help: "How often templates and options are sent again over UDP, and the name of the host is looked up; by default a minute.",
    },
    Key {
        name: "message_bytes",
        kinds: IPFIX,
        value: ValueType::Integer {
            least: ipfix::LEAST_MESSAGE_LEN_BYTES,
        },
        help: "The longest message; by default 1400 over UDP, otherwise 16384.",
    },
    Key {
        name: "observation_domain",
        kinds: IPFIX,
        value: ValueType::Integer { least: 1 },
        help: "The number of the flows' observation domain; by default a hash of machine id, host name, --listen and output name.",
    },
    Key {
        name: "enterprise_number",
        kinds: IPFIX,
        value: ValueType::Integer { least: 1 },
        help: "Your private enterprise number: records then have what --enrich finds, in elements of that enterprise.",
    },
    Key {
        name: "protocol",
        kinds: OTLP,
        value: ValueType::Choice(&["grpc", "http"]),
        help: "The protocol of requests; by default http if the address has port 4318 or a path, otherwise grpc.",
    },
    Key {
        name: "metrics",
        kinds: OTLP,
        value: ValueType::Boolean,
        help: "Send the account and the output's losses as metrics; by default true.",
    },
    Key {
        name: "agent_ip",
        kinds: PBFLOW,
        value: ValueType::Text,
        help: "The agent's address in each record; by default this host's source address on its default route.",
    },
    Key {
        name: "failover",
        kinds: FAILING_OVER,
        value: ValueType::Text,
        help: "Further collectors or Kafka brokers, as HOST:PORT, separated by commas, to try if the one before does not answer.",
    },
    Key {
        name: "spool",
        kinds: COLLECTOR,
        value: ValueType::Text,
        help: "A folder for batches that no collector has acknowledged, so that they survive the agent; without one they wait only in memory.",
    },
    Key {
        name: "spool_bytes",
        kinds: COLLECTOR,
        value: ValueType::Integer { least: 16 << 20 },
        help: "How many bytes the spool may have, 16 MiB or more; by default 1 GiB.",
    },
    Key {
        name: "max_report_interval",
        kinds: COLLECTOR,
        value: ValueType::Time,
        help: "The longest report interval that the collector may ask for; 0s ignores such requests; by default 5m.",
    },
    Key {
        name: "max_sample_rate",
        kinds: COLLECTOR,
        value: ValueType::Integer { least: 1 },
        help: "The sparsest sampling that the collector may ask for, as one flow in this many, for all outputs; by default 1, which allows none.",
    },
    Key {
        name: "token_file",
        kinds: COLLECTOR,
        value: ValueType::Text,
        help: "A file whose first token is shown to the collector, read again for each call.",
    },
    Key {
        name: "create_topic",
        kinds: KAFKA,
        value: ValueType::Boolean,
        help: "Create the topic if it does not exist, with the cluster's own number of partitions and replicas.",
    },
    Key {
        name: "sasl",
        kinds: KAFKA,
        value: ValueType::Choice(&["plain", "scram-sha-256", "scram-sha-512"]),
        help: "How to log in to Kafka, with user and password_file; by default not at all.",
    },
    Key {
        name: "user",
        kinds: LOGGING_IN,
        value: ValueType::Text,
        help: "The user name for the login.",
    },
    Key {
        name: "password_file",
        kinds: LOGGING_IN,
        value: ValueType::Text,
        help: "A file with the password in its first line, which is read again for each login.",
    },
    Key {
        name: "insert_every",
        kinds: CLICKHOUSE,
        value: ValueType::Time,
        help: "How long batches are gathered for an INSERT, ten seconds at most; by default a second.",
    },
    Key {
        name: "tls_ca",
        kinds: SERVED,
        value: ValueType::Text,
        help: "For https:// and tls://: a file of CAs in PEM, one of which must have issued the server's certificate; by default those that the system trusts.",
    },
    Key {
        name: "tls_client_certificate",
        kinds: SERVED,
        value: ValueType::Text,
        help: "For https:// and tls://: a certificate in PEM, for a server that asks for one.",
    },
    Key {
        name: "tls_client_key",
        kinds: SERVED,
        value: ValueType::Text,
        help: "Its key in PEM, without a passphrase.",
    },
];

/// The JSON Schema of a table. `time` is the pattern of durations.
pub fn schema(time: &str) -> Value {
    let properties: Map<String, Value> = KEYS
        .iter()
        .map(|key| {
            let mut property = match key.value {
                ValueType::Boolean => json!({ "type": "boolean" }),
                ValueType::Integer { least } => json!({ "type": "integer", "minimum": least }),
                ValueType::Text => json!({ "type": "string", "minLength": 1 }),
                ValueType::Time => json!({ "type": "string", "pattern": time }),
                ValueType::Choice(choices) => json!({ "type": "string", "enum": choices }),
            };
            property["description"] = key.help.into();
            (key.name.to_owned(), property)
        })
        .collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["kind", "address"],
        "properties": properties,
    })
}

/// The values of a table, by key.
pub(super) struct Table(pub(super) Map<String, Value>);

impl Table {
    /// Fails if the table has a key that no kind has.
    pub(super) fn refuse_unknown(&self) -> Result<(), Refused> {
        let known = || KEYS.iter().map(|key| key.name);
        let unknown = |name: &&String| known().all(|known| known != name.as_str());
        let Some(name) = self.0.keys().find(unknown) else {
            return Ok(());
        };
        let hint = similar::hint(name, known());
        let message = format!("an output has no such setting{hint}");
        Err(Refused::at(name, message))
    }

    /// Fails if the table has a key of other kinds alone.
    pub(super) fn refuse_other_kinds(&self, kind: Kind) -> Result<(), Refused> {
        let of_others = |key: &&Key| {
            let is_ours = key.kinds.is_empty() || key.kinds.contains(&kind);
            !is_ours && self.0.contains_key(key.name)
        };
        KEYS.iter().find(of_others).map_or(Ok(()), |key| {
            let message = format!("{} has no such setting", kind.name());
            Err(Refused::at(key.name, message))
        })
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>, Refused> {
        let expected = || Refused::at(key, "expected a text in quotes");
        let value = self.0.get(key);
        let text = value.map(|value| value.as_str().ok_or_else(expected));
        Ok(text.transpose()?.map(str::to_owned))
    }

    /// A text, or `None` if it is missing or empty.
    pub(super) fn given(&self, key: &str) -> Result<Option<String>, Refused> {
        Ok(self.text(key)?.filter(|text| !text.is_empty()))
    }

    pub(super) fn filter(&self) -> Result<Filter, Refused> {
        let text = self.text("filter")?.unwrap_or_default();
        let parsed: Result<Filter, _> = text.parse();
        parsed.map_err(|fault| Refused::at("filter", fault.message()))
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, Refused> {
        let expected = || Refused::at(key, "expected true or false, without quotes");
        let value = self.0.get(key);
        value
            .map(|value| value.as_bool().ok_or_else(expected))
            .transpose()
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<u64>, Refused> {
        let least = KEYS.iter().find_map(|known| match known.value {
            ValueType::Integer { least } if known.name == key => Some(least),
            ValueType::Integer { .. }
            | ValueType::Boolean
            | ValueType::Text
            | ValueType::Time
            | ValueType::Choice(_) => None,
        });
        let least = least.unwrap_or_default();
        let expected = || {
            Refused::at(
                key,
                format!("expected a number, {least} or more, without quotes"),
            )
        };
        let value = self.0.get(key);
        let number = value.map(|value| value.as_u64().filter(|&number| number >= least));
        number.map(|number| number.ok_or_else(expected)).transpose()
    }

    pub(super) fn time(&self, key: &str) -> Result<Option<Duration>, Refused> {
        let time = self.time_or_zero(key)?;
        if time.is_some_and(|time| time.is_zero()) {
            return Err(no_time(key));
        }
        Ok(time)
    }

    pub(super) fn time_or_zero(&self, key: &str) -> Result<Option<Duration>, Refused> {
        let text = self.text(key)?;
        let time = text.map(|text| humantime::parse_duration(&text).map_err(|_| no_time(key)));
        time.transpose()
    }

    pub(super) fn compression(&self) -> Result<Compression, Refused> {
        match self.text("compression")?.as_deref() {
            Some("none") => Ok(Compression::None),
            Some("gzip") => Ok(Compression::Gzip),
            None | Some("zstd") => Ok(Compression::Zstd),
            Some(_) => Err(Refused::at(
                "compression",
                "expected one of none, gzip, zstd",
            )),
        }
    }

    pub(super) fn rotation(&self) -> Result<Rotation, Refused> {
        let compression = self.compression()?;
        let after = self.time("rotate_after")?;
        if after.is_some_and(|after| after < SHORTEST_ROTATION) {
            return Err(Refused::at(
                "rotate_after",
                "expected a time of a second or more, as \"5m\"",
            ));
        }
        let files = self.integer("keep_files")?.unwrap_or(168);
        Ok(Rotation {
            bytes: self.integer("rotate_bytes")?.unwrap_or(100 << 20),
            after: after.unwrap_or(Duration::from_hours(1)),
            files: u32::try_from(files).unwrap_or(u32::MAX),
            total_bytes: self.integer("keep_bytes")?.unwrap_or(10 << 30),
            compression,
        })
    }
}

fn no_time(key: &str) -> Refused {
    Refused::at(key, "expected a time, as \"10s\" or \"1h 30m\"")
}
