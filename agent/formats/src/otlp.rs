//! OTLP, the protocol of OpenTelemetry: one log record per flow report, with the agent's account and the output's
//! losses as metrics.

use std::{
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::ExportLogsServiceResponse,
        metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse},
    },
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
};
use prost::Message as _;
use proto::{
    AgentIdentity, FlowBatch, FlowRecord, accounts::Accounts, known_interfaces::KnownInterfaces,
};

use super::{
    encoder::{Answer, Call, Encoder, Message, Without},
    harmless::one_line,
};
use metrics::{Losses, ScanMetrics};

mod metrics;
mod record;
mod wire;

#[cfg(test)]
mod tests;

/// Length of a request before compression: some 1,200 records. gRPC receivers accept 4 MiB.
const REQUEST_LEN_BYTES: usize = 1 << 20;
/// Room for what precedes the records: names of the host and the agent, which take less.
const HEAD_LEN_BYTES: usize = 2 << 10;
/// How long to send no metrics to a receiver that does not know the method. It may be upgraded or reconfigured.
const UNKNOWN_PAUSE: Duration = Duration::from_hours(1);
const NO_ANSWER: &str = "what answers is no receiver of OTLP";
const NO_REASON: &str = "it does not say why";
/// Room for the record that exceeds the limit.
const SLACK_LEN_BYTES: usize = 4 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub protocol: Protocol,
    pub gzip: bool,
    /// Send the account and the losses as metrics.
    pub metrics: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            protocol: Protocol::Grpc,
            gzip: true,
            metrics: true,
        }
    }
}

/// Encodes requests for logs and metrics.
pub struct Otlp {
    settings: Settings,
    /// Returns the accounts of the latest scan.
    accounts: Box<dyn Fn() -> Arc<Accounts> + Send>,
    identity: Option<AgentIdentity>,
    head: Head,
    interfaces: KnownInterfaces,
    buffer: Vec<u8>,
    /// The scan and batch whose metrics were sent last.
    sent_metrics: Option<(u64, u32)>,
    metrics: Option<ScanMetrics>,
    lost: Losses,
    /// The content of the last message.
    last: About,
    /// Send no metrics before this moment.
    metrics_not_before: Option<Instant>,
    unknown_pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Flows,
    Metrics,
}

/// What all requests share, encoded with field tag and length.
#[derive(Default)]
struct Head {
    /// The resource of `ResourceLogs` and `ResourceMetrics`.
    resource: Vec<u8>,
    /// The scope of `ScopeLogs` and `ScopeMetrics`.
    scope: Vec<u8>,
}

impl Head {
    fn of(identity: &AgentIdentity) -> Self {
        let field = |message: Vec<u8>| {
            let mut field = vec![1 << 3 | 2];
            wire::varint(&mut field, message.len() as u64);
            field.extend(message);
            field
        };
        Self {
            resource: field(resource(identity).encode_to_vec()),
            scope: field(scope(identity).encode_to_vec()),
        }
    }
}

fn resource(identity: &AgentIdentity) -> Resource {
    let attributes = [
        ("service.name", "flow-agent"),
        ("service.version", &identity.version),
        ("service.instance.id", &identity.instance_id),
        ("host.name", &identity.hostname),
        ("host.id", &identity.agent_id),
        ("flow.boot_id", &identity.boot_id),
    ];
    Resource {
        attributes: attributes
            .into_iter()
            .map(|(key, value)| text(key, record::short(value)))
            .collect(),
        ..Resource::default()
    }
}

fn scope(identity: &AgentIdentity) -> InstrumentationScope {
    InstrumentationScope {
        name: "flow-agent".to_owned(),
        version: record::short(&identity.version).to_owned(),
        ..InstrumentationScope::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// The protocol under OTLP. Each one has its own method names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Http,
}

impl Protocol {
    fn method(self, about: About) -> &'static str {
        match (self, about) {
            (Self::Grpc, About::Flows) => {
                "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
            }
            (Self::Grpc, About::Metrics) => {
                "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
            }
            (Self::Http, About::Flows) => "/v1/logs",
            (Self::Http, About::Metrics) => "/v1/metrics",
        }
    }
}

impl Otlp {
    /// `accounts` returns the accounts of the latest scan.
    pub fn new(settings: Settings, accounts: impl Fn() -> Arc<Accounts> + Send + 'static) -> Self {
        Self {
            settings,
            accounts: Box::new(accounts),
            identity: None,
            head: Head::default(),
            interfaces: KnownInterfaces::default(),
            buffer: Vec::new(),
            sent_metrics: None,
            metrics: None,
            lost: Losses::default(),
            last: About::Flows,
            metrics_not_before: None,
            unknown_pause: UNKNOWN_PAUSE,
        }
    }

    fn know(&mut self, batch: &FlowBatch) {
        if let Some(identity) = &batch.agent
            && self.identity.as_ref() != Some(identity)
        {
            self.head = Head::of(identity);
            self.identity = Some(identity.clone());
        }
        self.interfaces.note_all(batch);
    }

    /// Encodes as many flows as fit. Returns where they begin in the buffer, and their number.
    fn flows(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> (usize, usize) {
        let out = &mut self.buffer;
        out.clear();
        out.reserve(REQUEST_LEN_BYTES + SLACK_LEN_BYTES);
        out.resize(HEAD_LEN_BYTES, 0);
        let mut taken = 0;
        // Flows of one interface often follow each other.
        let mut interface: Option<((u32, u32), Vec<u8>)> = None;
        for flow in flows {
            if out.len() > REQUEST_LEN_BYTES {
                break;
            }
            let place = (flow.ifindex, flow.netns);
            let attributes = match &mut interface {
                Some((known, attributes)) if *known == place => &*attributes,
                other => {
                    let known = self.interfaces.of(flow);
                    let attributes = record::of_interface(flow.ifindex, flow.netns, known);
                    &other.insert((place, attributes)).1
                }
            };
            record::write(out, batch, flow, attributes);
            taken += 1;
        }
        let start = record::put_head(out, HEAD_LEN_BYTES, &self.head);
        (start, taken)
    }

    /// Whether metrics are due: at the end of a scan, or for a batch without a scan.
    fn is_due(&self, batch: &FlowBatch) -> bool {
        let closes = batch.last_of_scan || batch.scan_id == 0;
        let this = Some((batch.scan_id, batch.batch_index));
        let is_known = self
            .metrics_not_before
            .is_none_or(|moment| moment <= Instant::now());
        self.settings.metrics && is_known && closes && self.sent_metrics != this
    }

    /// The next part of the account; the last part includes the losses.
    fn metrics(&mut self, batch: &FlowBatch) -> ExportMetricsServiceRequest {
        let identity = self.identity.clone().unwrap_or_default();
        let place = (batch.scan_id, batch.batch_index);
        self.metrics.take_if(|metrics| metrics.place() != place);
        let metrics = self.metrics.get_or_insert_with(|| {
            let accounts = (self.accounts)();
            ScanMetrics::new(accounts, self.lost, batch)
        });
        self.lost = metrics.lost();
        metrics.request(resource(&identity), scope(&identity))
    }

    fn pack(&mut self, message: &[u8], flows: usize, more: bool) -> Message {
        let bytes = if self.settings.gzip {
            gzipped(message)
        } else {
            Bytes::copy_from_slice(message)
        };
        Message {
            more,
            call: Call {
                method: self.settings.protocol.method(self.last),
                is_gzip: self.settings.gzip,
            },
            ..Message::new(bytes, flows)
        }
    }
}

/// Better compression takes several times as long.
fn gzipped(message: &[u8]) -> Bytes {
    let out = Vec::with_capacity(message.len() / 4);
    let mut gzip = GzEncoder::new(out, Compression::fast());
    let written = gzip.write_all(message).and_then(|()| gzip.finish());
    written.expect("memory takes every byte").into()
}

/// The message of a receiver that accepted a request.
fn said(error_message: &str) -> Option<String> {
    Some(one_line(error_message)).filter(|said| !said.is_empty())
}

impl Encoder for Otlp {
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message {
        self.know(batch);
        let is_due = self.is_due(batch);
        if !flows.is_empty() {
            self.last = About::Flows;
            let (start, taken) = self.flows(batch, flows);
            let buffer = std::mem::take(&mut self.buffer);
            let message = self.pack(&buffer[start..], taken, is_due);
            self.buffer = buffer;
            return message;
        }
        if !is_due {
            return Message::new(Bytes::new(), 0);
        }
        self.last = About::Metrics;
        let request = self.metrics(batch);
        let more = self.metrics.as_ref().is_some_and(ScanMetrics::has_more);
        self.pack(&request.encode_to_vec(), 0, more)
    }

    fn sent(&mut self) {
        if self.last == About::Metrics
            && let Some(metrics) = &mut self.metrics
            && metrics.mark_sent()
        {
            self.sent_metrics = Some(metrics.place());
            self.metrics = None;
        }
    }

    fn answered(&mut self, answer: &[u8]) -> Result<Answer> {
        match self.last {
            About::Flows => {
                let answer = ExportLogsServiceResponse::decode(answer).context(NO_ANSWER)?;
                let partial = answer.partial_success.unwrap_or_default();
                let said = said(&partial.error_message);
                let refused = u64::try_from(partial.rejected_log_records).unwrap_or_default();
                Ok(Answer {
                    refused,
                    warning: said.clone().filter(|_| refused == 0),
                    why: said.unwrap_or_else(|| NO_REASON.to_owned()),
                })
            }
            About::Metrics => {
                let answer = ExportMetricsServiceResponse::decode(answer).context(NO_ANSWER)?;
                let partial = answer.partial_success.unwrap_or_default();
                let said = said(&partial.error_message);
                let warning = match partial.rejected_data_points {
                    ..=0 => said,
                    points => {
                        let why = said.unwrap_or_else(|| NO_REASON.to_owned());
                        Some(format!("it refuses {points} points: {why}"))
                    }
                };
                Ok(Answer {
                    warning,
                    ..Answer::default()
                })
            }
        }
    }

    fn unknown(&mut self) -> Option<Without> {
        if self.last == About::Flows {
            return None;
        }
        let pause = self.unknown_pause;
        self.metrics_not_before = Some(Instant::now() + pause);
        self.metrics = None;
        Some(Without {
            what: "metrics",
            pause,
        })
    }

    /// Requests do not depend on each other.
    fn restart(&mut self) {}

    /// Connections accept requests of any length.
    fn limit(&mut self, _: usize) -> bool {
        true
    }
}
