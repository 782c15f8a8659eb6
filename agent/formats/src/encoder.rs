//! The interface of all formats: encoding flows as messages.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use proto::{FlowBatch, FlowRecord};

/// Encodes flows as messages of one format.
pub trait Encoder: Send {
    /// Returns the next message: with as many flows from the front of `flows` as fit, or without flows if it is about
    /// something else. `batch` has the context of the flows: interfaces, account, losses, window. If sending fails,
    /// this is called again with the same flows, so state about what was sent must advance only in [`Encoder::sent`].
    ///
    /// At the end of a scan without flows this is called once, for the messages that go out beside them.
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message;

    /// The last message was sent. The receiver knows everything that it announced.
    fn sent(&mut self);

    /// Parses the server's answer to the last message. An error means that the message did not arrive.
    fn answered(&mut self, _answer: &[u8]) -> Result<Answer> {
        Ok(Answer::default())
    }

    /// The server does not know the method of the last message. Returns what the output omits for a while, if it can.
    fn unknown(&mut self) -> Option<Without> {
        None
    }

    /// The transport has another connection: the receiver has forgotten everything.
    fn restart(&mut self);

    /// Limits the message length. Returns false if messages cannot be that short.
    fn limit(&mut self, message_len_bytes: usize) -> bool;
}

/// One message of a format. If `bytes` is empty, there is nothing to send.
pub struct Message {
    pub bytes: Bytes,
    /// How many flows it consumes.
    pub flows: usize,
    /// How many of `flows` it omits: they report no packets, and the format has no record for that.
    pub skipped: usize,
    /// Another message follows even if no flows are left.
    pub more: bool,
    /// It has only what every connection and every file begins with.
    pub is_preface: bool,
    pub call: Call,
}

/// How a server should read a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// A path like `/package.Service/Method`.
    pub method: &'static str,
    pub is_gzip: bool,
}

impl Message {
    pub fn new(bytes: Bytes, flows: usize) -> Self {
        Self {
            bytes,
            flows,
            skipped: 0,
            more: false,
            is_preface: false,
            call: Call::default(),
        }
    }
}

/// A server's answer to a message that it accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// How many flows it rejected, and why.
    pub refused: u64,
    pub why: String,
    /// A warning, although all flows were accepted.
    pub warning: Option<String>,
}

/// Data that is not sent because the server does not know the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Without {
    /// Its name, which is also the name of its setting.
    pub what: &'static str,
    /// When to try again.
    pub pause: Duration,
}
