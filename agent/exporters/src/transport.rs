//! Where messages go: a socket, a file or a server.

use std::time::Duration;

use bytes::Bytes;
use formats::encoder::Message;
use proto::RecordSum;
use thiserror::Error;
use tokio::{task::JoinHandle, time::timeout};

use super::files::{Rotated, Written};

mod endpoint;
mod grpc;
mod http;
mod tcp;
mod udp;
mod underway;

pub(super) use endpoint::{Endpoint, Stream};
pub(super) use grpc::{
    Grpc,
    stream::{Answers, StreamingCall},
};
pub(super) use http::{Answer, Http, Requests};
pub(super) use tcp::Tcp;
pub(super) use udp::Udp;
pub(super) use underway::Receipts;

/// How long to wait for a connection, or for a receiver to take data.
const PATIENCE: Duration = Duration::from_secs(10);

/// How we identify ourselves to servers.
pub(super) const USER_AGENT: &str = concat!("flow-agent/", env!("CARGO_PKG_VERSION"));
/// Longest answer of a server. Real ones have a few bytes, or a sentence.
const MOST_ANSWER_BYTES: usize = 64 << 10;
/// Longest pause that a server can impose.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// The error that ended a connection's task, if it failed.
async fn broken_by<E>(task: &mut JoinHandle<Result<(), E>>) -> Option<E> {
    let ended = timeout(PATIENCE, task).await.ok()?;
    ended.ok()?.err()
}

/// Sends one message after another.
pub(super) enum Transport {
    Udp(Udp),
    Tcp(Tcp),
    Grpc(Grpc),
    Http(Http),
    File(Rotated),
}

/// Why a message did not arrive.
#[derive(Debug, Error)]
pub(super) enum Failure {
    /// A retry may work, over a new connection.
    #[error("{why:#}")]
    Again {
        why: anyhow::Error,
        /// How long the receiver asks us to wait.
        after: Option<Duration>,
    },
    /// The receiver rejects the message and would reject it again.
    #[error("{why}")]
    Refused {
        why: String,
        /// The receiver does not know the method.
        is_unknown: bool,
        /// The receiver says that the message is invalid.
        is_invalid: bool,
    },
    /// A new file or connection starts, so encode the message again, with the format's header.
    #[error("it begins anew")]
    Anew,
    /// The receiver's host or a router rejected the previous message. A message handed over meanwhile was not sent.
    #[error("{why}")]
    LastRefused { why: String },
    /// The path allows only shorter datagrams.
    #[error(
        "the path takes datagrams of at most {most_bytes} bytes, which is too short: send over TCP"
    )]
    TooLong { most_bytes: usize },
}

impl From<anyhow::Error> for Failure {
    fn from(why: anyhow::Error) -> Self {
        Self::Again { why, after: None }
    }
}

impl Failure {
    /// How long the receiver asks us to wait.
    pub(super) fn asked_pause(&self) -> Option<Duration> {
        match self {
            Self::Again { after, .. } => *after,
            Self::Refused { .. } | Self::Anew | Self::LastRefused { .. } | Self::TooLong { .. } => {
                None
            }
        }
    }
}

impl Transport {
    /// Sends a message. Dropping the future breaks the connection, if there is one. Returns the answer of a server;
    /// other transports return an empty one.
    pub(super) async fn send(&mut self, message: &Message) -> Result<Bytes, Failure> {
        let Message { bytes, call, .. } = message;
        match self {
            Self::Udp(udp) => udp.send(bytes).await?,
            Self::Tcp(tcp) => tcp.send(bytes).await?,
            Self::Grpc(grpc) => return grpc.send(bytes, *call).await,
            Self::Http(http) => return http.send(bytes, *call).await,
            Self::File(file) => {
                let written = if message.is_preface {
                    file.write_preface(bytes.clone()).await?
                } else {
                    file.write(bytes.clone()).await?
                };
                match written {
                    Written::Yes => {}
                    Written::Anew => return Err(Failure::Anew),
                }
            }
        }
        Ok(Bytes::new())
    }

    /// Whether a message was sent although its future was dropped. A file finishes its write, and a datagram may have
    /// left.
    pub(super) async fn has_taken(&mut self) -> Result<bool, Failure> {
        match self {
            Self::File(file) => Ok(file.has_written().await?),
            Self::Udp(udp) => Ok(udp.has_taken()),
            Self::Tcp(_) | Self::Grpc(_) | Self::Http(_) => Ok(false),
        }
    }

    /// Completes what was sent.
    pub(super) async fn close(&mut self) -> Result<(), Failure> {
        match self {
            // Unanswered messages do not count as sent.
            Self::Udp(_) | Self::Grpc(_) | Self::Http(_) => Ok(()),
            Self::Tcp(tcp) => tcp.close().await.map_err(Failure::from),
            Self::File(file) => file.close().await.map_err(Failure::from),
        }
    }

    /// Assigns these flows to the message sent last. Returns whether their outcome becomes known only later: by
    /// [`Transport::receipts`] or, if it is blind, by [`Transport::notice`].
    pub(super) fn took(&mut self, flows: RecordSum) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.took(flows),
            Self::Udp(udp) => udp.doubts(),
            Self::Grpc(_) | Self::Http(_) | Self::File(_) => return false,
        }
        true
    }

    /// Whether the outcome of some flows is still unknown.
    pub(super) fn is_underway(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.is_underway(),
            Self::Udp(udp) => udp.is_doubted(),
            Self::Grpc(_) | Self::Http(_) | Self::File(_) => false,
        }
    }

    /// Checks for failures while there is nothing to send.
    pub(super) fn notice(&mut self) -> Result<(), Failure> {
        match self {
            Self::Tcp(tcp) => Ok(tcp.notice()?),
            Self::Udp(udp) => udp.notice(),
            Self::Grpc(_) | Self::Http(_) | Self::File(_) => Ok(()),
        }
    }

    /// Receipts since the previous call.
    pub(super) fn receipts(&mut self) -> Receipts {
        if let Self::Tcp(tcp) = self {
            tcp.receipts()
        } else {
            Receipts::default()
        }
    }

    /// Drops what could not be completed. Receipts report it as lost.
    pub(super) fn abandon(&mut self) {
        if let Self::Tcp(tcp) = self {
            tcp.end_connection();
        }
    }

    /// Whether the protocol has no acknowledgements. Messages count as sent unless a rejection comes soon.
    pub(super) fn is_blind(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// The destination, for logs and status.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Udp(udp) => udp.to.to_string(),
            Self::Tcp(tcp) => tcp.to.to_string(),
            Self::Grpc(grpc) => grpc.endpoint.to.to_string(),
            Self::Http(http) => http.address(),
            Self::File(file) => file.address().display().to_string(),
        }
    }
}
