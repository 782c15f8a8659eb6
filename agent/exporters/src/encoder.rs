//! What each format has in common: it makes messages of flows.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use proto::{FlowBatch, FlowRecord};

/// Encodes flows as the messages of one format.
pub trait Encoder: Send {
    /// The next message: as many flows from the front of `flows` as fit, or none if it is about something else. `batch`
    /// has what they have in common: interfaces, account, losses, window. Where the message cannot be sent this is called
    /// again with the same flows, so state that counts what was sent moves on only by [`Encoder::sent`].
    ///
    /// At the end of a scan this is called once without flows if there are none, for what goes out beside them.
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message;

    /// The last message was handed over. What it announced counts from then on.
    fn sent(&mut self);

    /// Reads what a server answers to the last message. Fails if it cannot be an answer, so the message has not got there.
    fn answered(&mut self, _answer: &[u8]) -> Result<Answer> {
        Ok(Answer::default())
    }

    /// The server does not know the method of the last message. Returns what the output does without for a while, if it
    /// can.
    fn unknown(&mut self) -> Option<Without> {
        None
    }

    /// The transport has another connection: whatever the receiver knew is gone.
    fn restart(&mut self);

    /// Messages must not be longer than this. Returns false if they cannot be so short.
    fn limit(&mut self, message_len_bytes: usize) -> bool;
}

/// One message of a format. Without bytes there is nothing to send.
pub struct Message {
    pub bytes: Bytes,
    /// How many of the flows are in it.
    pub flows: usize,
    /// How many of these it says nothing of, since they report no packets and the format has no record for that.
    pub skipped: usize,
    /// Another message follows even if no flow is left.
    pub more: bool,
    /// It has nothing but what every connection and every file begins with.
    pub is_preface: bool,
    pub call: Call,
}

/// How a server is to read a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// A path, as `/package.Service/Method`.
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

/// What a server says of a message that it has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// How many of the flows it does not take, and why.
    pub refused: u64,
    pub why: String,
    /// What it says although it takes all flows, if it says something.
    pub warning: Option<String>,
}

/// What a server is not told, since it does not know the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Without {
    /// Its name, which is that of its setting, too.
    pub what: &'static str,
    /// When it is tried again.
    pub pause: Duration,
}
