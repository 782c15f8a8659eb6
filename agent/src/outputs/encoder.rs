//! What each format has in common: it makes messages of flows.

use bytes::Bytes;

use crate::proto::{FlowBatch, FlowRecord};

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
}
