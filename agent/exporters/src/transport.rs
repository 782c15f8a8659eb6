//! Where messages go: a socket, a file, a server.

use std::time::Duration;

use bytes::Bytes;
use proto::RecordSum;
use thiserror::Error;
use tokio::{task::JoinHandle, time::timeout};

use super::{
    encoder::Message,
    files::{Rotated, Written},
};

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

/// How long to wait for a connection, or for a receiver that takes nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// What servers are told that we are.
pub(super) const USER_AGENT: &str = concat!("flow-agent/", env!("CARGO_PKG_VERSION"));
/// Of a server's answer. Real ones have a few bytes, or a sentence.
const MOST_ANSWER_BYTES: usize = 64 << 10;
/// However long a server asks to be left alone.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// Of what a receiver says.
const MOST_SAID_CHARS: usize = 200;

/// What a receiver says, for a log: in one line, and not for ever.
pub(super) fn one_line(said: &str) -> String {
    let said = said.trim().chars().take(MOST_SAID_CHARS);
    said.map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

/// What ended the task that moves a connection's bytes, if it broke off.
async fn broken_by<E>(task: &mut JoinHandle<Result<(), E>>) -> Option<E> {
    let ended = timeout(PATIENCE, task).await.ok()?;
    ended.ok()?.err()
}

/// Takes one message after another.
pub(super) enum Transport {
    Udp(Udp),
    Tcp(Tcp),
    Grpc(Grpc),
    Http(Http),
    File(Rotated),
}

/// Why a message did not get there.
#[derive(Debug, Error)]
pub(super) enum Failure {
    /// It may work later. A connection is made anew then.
    #[error("{why:#}")]
    Again {
        why: anyhow::Error,
        /// How long the receiver asks to be left alone.
        after: Option<Duration>,
    },
    /// The receiver does not take the message, and would not take it later.
    #[error("{why}")]
    Refused {
        why: String,
        /// The receiver does not know the method.
        is_unknown: bool,
        /// What the message says cannot be.
        is_invalid: bool,
    },
    /// A file or a connection begins, so the message has to be made anew, with what the format begins with.
    #[error("it begins anew")]
    Anew,
    /// The receiver's host, or one on the way, has refused the last message, and not taken the one after it if there is one.
    #[error("{why}")]
    LastRefused { why: String },
    /// A datagram has to be shorter on its way.
    #[error(
        "datagrams of no more than {most_bytes} bytes get there, which is too short: send over TCP"
    )]
    TooLong { most_bytes: usize },
}

impl From<anyhow::Error> for Failure {
    fn from(why: anyhow::Error) -> Self {
        Self::Again { why, after: None }
    }
}

impl Failure {
    /// How long the receiver asks to be left alone.
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
    /// Hands a message over. Dropping the future breaks the connection, if there is one. Returns the answer, which only
    /// servers give; otherwise it is empty.
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

    /// Whether the message was handed over all the same that nobody waits for any more. A file goes on with it, and a
    /// datagram may have left.
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
            // A message that was not answered did not count as sent.
            Self::Udp(_) | Self::Grpc(_) | Self::Http(_) => Ok(()),
            Self::Tcp(tcp) => tcp.close().await.map_err(Failure::from),
            Self::File(file) => file.close().await.map_err(Failure::from),
        }
    }

    /// The message that was handed over last has these flows. Returns whether it becomes known only later what became of
    /// them: by [`Transport::receipts`] or, if it is blind, by [`Transport::notice`].
    pub(super) fn took(&mut self, flows: RecordSum) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.took(flows),
            Self::Udp(udp) => udp.doubts(),
            Self::Grpc(_) | Self::Http(_) | Self::File(_) => return false,
        }
        true
    }

    /// What became of some flows is still to become known.
    pub(super) fn is_underway(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.is_underway(),
            Self::Udp(udp) => udp.is_doubted(),
            Self::Grpc(_) | Self::Http(_) | Self::File(_) => false,
        }
    }

    /// Looks, while there is nothing to send, whether what is under way has failed.
    pub(super) fn notice(&mut self) -> Result<(), Failure> {
        match self {
            Self::Tcp(tcp) => Ok(tcp.notice()?),
            Self::Udp(udp) => udp.notice(),
            Self::Grpc(_) | Self::Http(_) | Self::File(_) => Ok(()),
        }
    }

    /// What became known of flows since the last time.
    pub(super) fn receipts(&mut self) -> Receipts {
        if let Self::Tcp(tcp) = self {
            tcp.receipts()
        } else {
            Receipts::default()
        }
    }

    /// Does without what could not be completed. Receipts tell what became of it.
    pub(super) fn abandon(&mut self) {
        if let Self::Tcp(tcp) = self {
            tcp.end_connection();
        }
    }

    /// Nobody says that a message arrives. If nobody says soon that it was refused, it counts as sent.
    pub(super) fn is_blind(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// For people.
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
