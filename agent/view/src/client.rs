//! The client side: asks an agent for its status and filter rules, and observes its batches across restarts of the
//! agent.

use std::{collections::VecDeque, error::Error as StdError, fmt, io, str::FromStr, time::Duration};

use anyhow::Chain;
use prost::Message as _;
use proto::{
    AgentStatus, CollectorStatus, Filters, FlowBatch, GetCollectorStatusRequest, GetFiltersRequest,
    GetSettingsRequest, GetStatusRequest, ListFlowsRequest, ObserveRequest, ScanNowRequest,
    SetFiltersRequest, SettingsInForce, flow_agent_client::FlowAgentClient,
    flow_collector_control_client::FlowCollectorControlClient,
    flow_control_client::FlowControlClient, limits,
};
use rules::bounds::MAX_MESSAGE_BYTES;
use thiserror::Error;
use tls::{
    ALPN_H2,
    client::{BrokenOff, ClientFiles, ConnectError, Connector, LastWords},
    pem::FileFault,
    token::{TokenFault, TokenFile},
};
use tonic::{Code, Response, Status, Streaming, transport::Endpoint};

mod channel;

use channel::AgentChannel;

/// Where the agent listens by default.
pub const DEFAULT_TARGET: &str = "unix:/run/flow-agent/flow-agent.sock";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A large table takes seconds to scan, and scans on request are spaced out.
const LIST_TIMEOUT: Duration = Duration::from_mins(2);
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// Generous: compiling a million networks takes seconds of CPU on a thread that yields to all others.
const CONTROL_TIMEOUT: Duration = Duration::from_mins(5);
/// How often to ping a silent agent, and how long it may take to reply.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

/// A few thousand streams take a few kilobytes each.
const MAX_STATUS_BYTES: usize = 128 << 20;

/// How much the agent may send ahead of the consumer: a few full batches.
const WINDOW_BYTES: u32 = 2 << 20;

/// `unix:PATH`, `HOST:PORT` or `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Unix(String),
    Tcp {
        address: String,
        /// The token to show to a collector.
        token: Option<TokenFile>,
    },
    /// The files are read again for each connection.
    Tls {
        address: String,
        files: Box<ClientFiles>,
        token: Option<TokenFile>,
    },
}

impl Target {
    fn token(&self) -> Option<&TokenFile> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp { token, .. } | Self::Tls { token, .. } => token.as_ref(),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err("the path after `unix:` is missing".to_owned());
            }
            return Ok(Self::Unix(path.to_owned()));
        }
        let secured = text.strip_prefix("https://");
        let address = secured.or(text.strip_prefix("http://")).unwrap_or(text);
        let port = address
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            return Err("neither unix:PATH nor HOST:PORT nor https://HOST:PORT".to_owned());
        }
        if secured.is_some() {
            return Ok(Self::Tls {
                address: address.to_owned(),
                files: Box::default(),
                token: None,
            });
        }
        Ok(Self::Tcp {
            address: address.to_owned(),
            token: None,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{path}"),
            Self::Tcp { address, .. } => formatter.write_str(address),
            Self::Tls { address, .. } => write!(formatter, "https://{address}"),
        }
    }
}

#[derive(Debug, Error)]
pub enum ClientError {
    #[error(
        "no agent listens on {target}: start one (`flow-agent run` or `systemctl start \
         flow-agent`), or give the address of the one that is meant"
    )]
    NobodyListens { target: Target },
    #[error(
        "no permission to connect to {target}: its owner and group may; use sudo, or join the \
         socket's group"
    )]
    NoPermission { target: Target },
    #[error(
        "the server on {target} does not know flow.v1.{call}: it is an older agent, or no flow agent at all; update \
         it, or give another address"
    )]
    TooOld { target: Target, call: &'static str },
    #[error("the agent at {target} refused: {message}")]
    Refused { target: Target, message: String },
    #[error("the agent at {target} has no room: {message}")]
    NoRoom { target: Target, message: String },
    #[error(
        "the server on {target} closed the connection before it got the request: an agent without room \
         (--max-connections), one that is stopping, or no flow agent at all"
    )]
    Unheard { target: Target },
    #[error(
        "the filter rules are larger than the {} MiB that gRPC takes; give them to \
         `flow-agent run --filter-file`", MAX_MESSAGE_BYTES >> 20
    )]
    TooLarge,
    #[error("the server on {target} does not speak gRPC like a flow agent")]
    NotAnAgent {
        target: Target,
        source: Box<dyn StdError + Send + Sync>,
    },
    #[error(
        "the connection to the agent at {target} broke off: the agent was killed, or the network failed"
    )]
    BrokenOff { target: Target },
    #[error("the connection to the agent at {target} failed")]
    Broken {
        target: Target,
        source: Box<dyn StdError + Send + Sync>,
    },
    #[error(
        "the server on {target} did not answer within {}: the agent may be stopped (SIGSTOP), or out of CPU or \
         memory", humantime::format_duration(*after)
    )]
    NoAnswer { target: Target, after: Duration },
    #[error("{target} is not an address to connect to")]
    BadTarget {
        target: Target,
        source: tonic::transport::Error,
    },
    #[error(
        "the certificate of {target} is not from a CA that is trusted here: name the file of its CA (--tls-ca)"
    )]
    Untrusted { target: Target },
    #[error("no secure connection to {target}: {why}")]
    Insecure { target: Target, why: String },
    #[error("no secure connection to {target}")]
    File { target: Target, source: FileFault },
    #[error("no token for {target} (--token-file)")]
    Token { target: Target, source: TokenFault },
}

impl ClientError {
    /// Whether retrying may help, for example because the agent is restarting.
    fn may_pass(&self) -> bool {
        match self {
            Self::NobodyListens { .. }
            | Self::NoPermission { .. }
            | Self::NoRoom { .. }
            | Self::Unheard { .. }
            | Self::NotAnAgent { .. }
            | Self::BrokenOff { .. }
            | Self::NoAnswer { .. }
            | Self::Untrusted { .. }
            | Self::Insecure { .. }
            | Self::File { .. }
            | Self::Token { .. }
            | Self::Broken { .. } => true,
            Self::TooOld { .. }
            | Self::Refused { .. }
            | Self::TooLarge
            | Self::BadTarget { .. } => false,
        }
    }

    fn from_connect(target: &Target, source: tonic::transport::Error) -> Self {
        let target = target.clone();
        let mut causes = Chain::new(&source);
        match causes.find_map(|cause| cause.downcast_ref()) {
            Some(ConnectError::Untrusted) => return Self::Untrusted { target },
            Some(ConnectError::Handshake(why)) => {
                let why = why.clone();
                return Self::Insecure { target, why };
            }
            Some(ConnectError::Ended) => return Self::Unheard { target },
            Some(ConnectError::Tcp(_) | ConnectError::NoHost(_) | ConnectError::BadName { .. })
            | None => {}
        }
        match io_error_kind(&source) {
            Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Self::NobodyListens { target }
            }
            Some(io::ErrorKind::PermissionDenied) => Self::NoPermission { target },
            _ => Self::Broken {
                target,
                source: source.into(),
            },
        }
    }

    fn from_status(target: &Target, call: &'static str, status: &Status) -> Self {
        let target = target.clone();
        let code = status.code();
        if let Some(BrokenOff(why)) = broken_off(status) {
            let why = why.clone();
            return Self::Insecure { target, why };
        }
        if code == Code::Unimplemented {
            Self::TooOld { target, call }
        } else if matches!(
            code,
            Code::InvalidArgument
                | Code::FailedPrecondition
                | Code::PermissionDenied
                | Code::Unauthenticated
        ) {
            Self::Refused {
                target,
                message: status.message().to_owned(),
            }
        } else if code == Code::ResourceExhausted {
            Self::NoRoom {
                target,
                message: no_room(status),
            }
        } else if code == Code::OutOfRange {
            Self::TooLarge
        } else if has_fallen_silent(status) {
            Self::NoAnswer {
                target,
                after: KEEPALIVE_TIMEOUT,
            }
        } else if code == Code::Cancelled {
            // If the connection ends first, hyper drops the request together with the reason for the end.
            Self::Unheard { target }
        } else if has_broken_off(status) {
            Self::BrokenOff { target }
        } else if matches!(code, Code::Internal | Code::Unknown) && io_error_kind(status).is_none()
        {
            Self::NotAnAgent {
                target,
                source: cause(status).into(),
            }
        } else {
            Self::Broken {
                target,
                source: cause(status).into(),
            }
        }
    }
}

/// The agent's message. If the connection was turned away, it is in the last cause; if the call was refused, in the
/// status.
fn no_room(status: &Status) -> String {
    let last = Chain::new(status).skip(1).last();
    last.map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// The reason alone. A status as a whole shows the inside of its causes.
fn cause(status: &Status) -> String {
    let last = Chain::new(status).skip(1).last().map(ToString::to_string);
    let told = || Some(status.message().to_owned());
    let known = last.or_else(told).filter(|text| !text.is_empty());
    known.unwrap_or_else(|| status.code().to_string())
}

/// Whether the connection ended under an open call, without the farewell of HTTP/2 (GOAWAY).
fn has_broken_off(status: &Status) -> bool {
    let mut errors = Chain::new(status).filter_map(|cause| cause.downcast_ref::<h2::Error>());
    errors.any(h2::Error::is_io)
}

/// Whether the connection ended because a ping was not answered.
fn has_fallen_silent(status: &Status) -> bool {
    let mut errors = Chain::new(status).filter_map(|cause| cause.downcast_ref::<hyper::Error>());
    errors.any(hyper::Error::is_timeout)
}

fn broken_off(status: &Status) -> Option<&BrokenOff> {
    let causes = Chain::new(status).filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes
        .filter_map(io::Error::get_ref)
        .find_map(|inner| inner.downcast_ref())
}

fn io_error_kind(error: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    Chain::new(error)
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind)
}

async fn connect(target: &Target) -> Result<FlowAgentClient<AgentChannel>, ClientError> {
    channel(target).await.map(FlowAgentClient::new)
}

async fn channel(target: &Target) -> Result<AgentChannel, ClientError> {
    let uri = match target {
        Target::Unix(path) => format!("unix:{path}"),
        Target::Tcp { address, .. } => format!("http://{address}"),
        Target::Tls { address, .. } => format!("https://{address}"),
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|source| ClientError::BadTarget {
            target: target.clone(),
            source,
        })?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES);
    let shown = match target.token() {
        None => None,
        Some(file) => Some(file.header().await.map_err(|source| ClientError::Token {
            target: target.clone(),
            source,
        })?),
    };
    let mut last_words = LastWords::default();
    let connected = match target {
        Target::Unix(_) | Target::Tcp { .. } => endpoint.connect().await,
        Target::Tls { files, .. } => {
            let config = files.read(&[ALPN_H2]).map_err(|source| ClientError::File {
                target: target.clone(),
                source,
            })?;
            let connector = Connector::new(config);
            last_words = connector.last_words();
            endpoint.connect_with_connector(connector).await
        }
    };
    connected
        .map(|channel| AgentChannel::new(channel, last_words, shown))
        .map_err(|error| ClientError::from_connect(target, error))
}

/// Fails if the agent takes longer than `timeout`. The kernel accepts connections even for a stopped process, so
/// connecting proves nothing.
async fn within<T>(
    after: Duration,
    target: &Target,
    ask: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let answered = tokio::time::timeout(after, heard(ask)).await;
    answered.unwrap_or_else(|_| {
        Err(ClientError::NoAnswer {
            target: target.clone(),
            after,
        })
    })
}

/// Retries if the connection ended before it answered: hyper drops a request that it has not sent yet, together with
/// the message of an agent that turned the connection away. It is not certain that the request was not sent, so use
/// this only for idempotent calls: reading, and replacing all rules with the same set.
async fn heard<T>(ask: impl AsyncFn() -> Result<T, ClientError>) -> Result<T, ClientError> {
    const ATTEMPTS: usize = 5;
    const PAUSE: Duration = Duration::from_millis(50);
    for _ in 1..ATTEMPTS {
        match ask().await {
            Err(ClientError::Unheard { .. }) => tokio::time::sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
    ask().await
}

/// Asks an agent once.
pub async fn status(target: &Target) -> Result<AgentStatus, ClientError> {
    within(STATUS_TIMEOUT, target, async || {
        let mut client = connect(target).await?;
        let response = client.get_status(GetStatusRequest {}).await;
        let response = response
            .map_err(|status| ClientError::from_status(target, "FlowAgent/GetStatus", &status))?;
        Ok(response.into_inner())
    })
    .await
}

/// Whether a collector listens there, even if it does not show its status to this caller.
pub async fn is_collector(target: &Target) -> bool {
    matches!(
        collector_status(target).await,
        Ok(_) | Err(ClientError::Refused { .. })
    )
}

/// Asks a collector once.
pub async fn collector_status(target: &Target) -> Result<CollectorStatus, ClientError> {
    const CALL: &str = "FlowCollectorControl/GetCollectorStatus";
    within(STATUS_TIMEOUT, target, async || {
        let client = FlowCollectorControlClient::new(channel(target).await?);
        let mut client = client.max_decoding_message_size(MAX_STATUS_BYTES);
        let response = client
            .get_collector_status(GetCollectorStatusRequest {})
            .await;
        let response =
            response.map_err(|status| ClientError::from_status(target, CALL, &status))?;
        Ok(response.into_inner())
    })
    .await
}

/// The flows that the agent tracks, in batches.
pub async fn list_flows(
    target: &Target,
    request: ListFlowsRequest,
) -> Result<Vec<FlowBatch>, ClientError> {
    within(LIST_TIMEOUT, target, async || {
        let failed =
            |status: Status| ClientError::from_status(target, "FlowAgent/ListFlows", &status);
        let mut client = connect(target).await?;
        let response = client.list_flows(request.clone()).await;
        let mut stream = response.map_err(failed)?.into_inner();
        let mut batches = Vec::new();
        while let Some(batch) = stream.message().await.map_err(failed)? {
            batches.push(batch);
        }
        Ok(batches)
    })
    .await
}

/// Requests a scan before the interval is over. Returns its number.
pub async fn scan_now(target: &Target) -> Result<u64, ClientError> {
    let ask = async |mut control: Control| control.scan_now(ScanNowRequest {}).await;
    let answer = controlled(LIST_TIMEOUT, target, "FlowControl/ScanNow", ask);
    Ok(answer.await?.scan_id)
}

/// The filter rules in force.
pub async fn filters(target: &Target) -> Result<Filters, ClientError> {
    let ask = async |mut control: Control| control.get_filters(GetFiltersRequest {}).await;
    controlled(STATUS_TIMEOUT, target, "FlowControl/GetFilters", ask).await
}

/// The settings in force.
pub async fn settings(target: &Target) -> Result<SettingsInForce, ClientError> {
    let ask = async |mut control: Control| control.get_settings(GetSettingsRequest {}).await;
    controlled(STATUS_TIMEOUT, target, "FlowControl/GetSettings", ask).await
}

/// Replaces the filter rules. Returns the rules in force afterwards. An empty list removes all rules.
pub async fn set_filters(target: &Target, rules: Vec<String>) -> Result<Filters, ClientError> {
    let request = SetFiltersRequest { rules };
    if request.encoded_len() > MAX_MESSAGE_BYTES {
        return Err(ClientError::TooLarge);
    }
    let ask = async |mut control: Control| control.set_filters(request.clone()).await;
    controlled(CONTROL_TIMEOUT, target, "FlowControl/SetFilters", ask).await
}

type Control = FlowControlClient<AgentChannel>;

/// Makes a call on its own connection.
async fn controlled<T>(
    after: Duration,
    target: &Target,
    call: &'static str,
    ask: impl AsyncFn(Control) -> Result<Response<T>, Status>,
) -> Result<T, ClientError> {
    within(after, target, async || {
        let response = ask(control(target).await?).await;
        let response =
            response.map_err(|status| ClientError::from_status(target, call, &status))?;
        Ok(response.into_inner())
    })
    .await
}

async fn control(target: &Target) -> Result<Control, ClientError> {
    let client = FlowControlClient::new(channel(target).await?);
    Ok(client
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES))
}

/// An event on a stream that continues across restarts of the agent.
#[derive(Debug)]
pub enum Event {
    Batch(Box<FlowBatch>),
    /// Batches are missing on the stream, although the agent did not count them as lost.
    Gap {
        batches: u64,
    },
    /// The stream ended; the observer keeps retrying.
    Disconnected {
        reason: String,
    },
    Reconnected(Reconnected),
}

/// Who answers after a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnected {
    /// The same process.
    ToTheSame { missed_scans: u64 },
    /// Another process, so totals and scan numbers start over.
    ToAnother,
    /// A collector. What agents sent it meanwhile is not on the stream.
    ToACollector,
}

/// The stream adds a few numbers to a batch.
const MOST_BATCH_BYTES: usize = limits::MAX_BATCH_BYTES + (1 << 20);

/// A stream of batches.
pub struct Observer {
    target: Target,
    request: ObserveRequest,
    stream: Option<Streaming<FlowBatch>>,
    /// The position of the last batch, across all streams.
    last: Option<Position>,
    /// This stream's number for its last batch; 0 before the first.
    stream_seq: u64,
    reconnecting: bool,
    pending: VecDeque<Event>,
}

struct Position {
    instance_id: String,
    scan_id: u64,
}

impl Observer {
    /// Fails if no agent can be reached. Retries start only after a stream has begun.
    pub async fn connect(target: Target, consumer: &str) -> Result<Self, ClientError> {
        let request = ObserveRequest {
            consumer: consumer.to_owned(),
            ..ObserveRequest::default()
        };
        Self::connect_with(target, request).await
    }

    /// The same with this request, which is also used after a reconnection.
    pub async fn connect_with(
        target: Target,
        request: ObserveRequest,
    ) -> Result<Self, ClientError> {
        let mut observer = Self {
            target,
            request,
            stream: None,
            last: None,
            stream_seq: 0,
            reconnecting: false,
            pending: VecDeque::new(),
        };
        observer.stream = Some(observer.open().await?);
        Ok(observer)
    }

    /// The next event. The stream never ends by itself; fails only if retrying cannot help.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            let Some(stream) = &mut self.stream else {
                self.reopen().await?;
                continue;
            };
            let reason = match stream.message().await {
                Ok(Some(batch)) => {
                    self.accept(batch);
                    continue;
                }
                Ok(None) => "the agent stopped".to_owned(),
                Err(status) => {
                    let error =
                        ClientError::from_status(&self.target, "FlowAgent/Observe", &status);
                    if !error.may_pass() {
                        return Err(error);
                    }
                    describe(&error)
                }
            };
            self.stream = None;
            return Ok(Event::Disconnected { reason });
        }
    }

    async fn open(&self) -> Result<Streaming<FlowBatch>, ClientError> {
        let client = connect(&self.target).await?;
        let mut client = client.max_decoding_message_size(MOST_BATCH_BYTES);
        let response = client.observe(self.request.clone()).await;
        let response = response.map_err(|status| {
            ClientError::from_status(&self.target, "FlowAgent/Observe", &status)
        })?;
        Ok(response.into_inner())
    }

    async fn reopen(&mut self) -> Result<(), ClientError> {
        let mut backoff = BACKOFF_FIRST;
        loop {
            tokio::time::sleep(backoff).await;
            match self.open().await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    self.stream_seq = 0;
                    self.reconnecting = true;
                    return Ok(());
                }
                Err(error) if error.may_pass() => backoff = (backoff * 2).min(BACKOFF_MOST),
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues the batch, preceded by the events that it implies.
    fn accept(&mut self, batch: FlowBatch) {
        let instance_id = batch.agent.as_ref().map(|agent| agent.instance_id.clone());
        if std::mem::take(&mut self.reconnecting) {
            let same = self
                .last
                .as_ref()
                .filter(|last| Some(&last.instance_id) == instance_id.as_ref());
            let reconnected = match same {
                _ if batch.stream_id != 0 => Reconnected::ToACollector,
                Some(last) => Reconnected::ToTheSame {
                    missed_scans: batch.scan_id.saturating_sub(last.scan_id + 1),
                },
                None => Reconnected::ToAnother,
            };
            self.pending.push_back(Event::Reconnected(reconnected));
        }
        let expected = self.stream_seq + 1;
        if batch.stream_seq > expected {
            self.pending.push_back(Event::Gap {
                batches: batch.stream_seq - expected,
            });
        }
        self.stream_seq = batch.stream_seq;
        if let Some(instance_id) = instance_id {
            self.last = Some(Position {
                instance_id,
                scan_id: batch.scan_id,
            });
        }
        self.pending.push_back(Event::Batch(Box::new(batch)));
    }
}

/// An error with its causes, on one line.
fn describe(error: &(dyn StdError + 'static)) -> String {
    let causes: Vec<String> = Chain::new(error).map(ToString::to_string).collect();
    causes.join(": ")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn rules_that_no_agent_takes_are_not_sent() {
        let nowhere = "unix:/nowhere7/x.sock".parse().unwrap();
        let rule = "exclude port 1024-65535,".repeat(3_000_000);
        let error = set_filters(&nowhere, vec![rule]).await.unwrap_err();
        assert!(
            error.to_string().contains("larger than the 48 MiB"),
            "{error}"
        );
    }

    #[test]
    fn a_set_that_is_too_large_is_no_broken_connection() {
        let target = "unix:/nowhere7/x.sock".parse().unwrap();
        let status = Status::out_of_range("decoded message length too large");
        let error = ClientError::from_status(&target, "FlowControl/GetFilters", &status);
        assert!(matches!(error, ClientError::TooLarge), "{error}");
    }

    #[tokio::test]
    async fn a_request_that_was_not_heard_is_asked_again_and_no_other() {
        let unheard = || ClientError::Unheard {
            target: "here:1".parse().unwrap(),
        };
        for (unheard_times, attempts) in [(0, 1), (3, 4), (4, 5), (9, 5)] {
            let asked = Cell::new(0);
            let outcome = heard(async || {
                asked.set(asked.get() + 1);
                if asked.get() <= unheard_times {
                    return Err(unheard());
                }
                Err::<(), _>(ClientError::TooLarge)
            })
            .await;
            assert_eq!(asked.get(), attempts);
            let is_told = matches!(outcome, Err(ClientError::TooLarge));
            assert_eq!(is_told, unheard_times < 5, "{unheard_times}");
        }
    }
}
