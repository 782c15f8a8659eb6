//! Tracks which flows on a TCP connection the receiver's kernel has acknowledged.

use std::collections::VecDeque;

use proto::RecordSum;
use rustix::{
    fd::AsFd,
    io::Result,
    ioctl::{Getter, Opcode, ioctl},
};

/// Most messages tracked separately; further ones are merged with the last. The kernel's send buffer of 4 MiB (unless
/// `tcp_wmem` allows more) holds fewer, even of messages with a single flow.
const MOST_MESSAGES: usize = 1 << 16;

/// The outcome of flows that were written to a connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipts {
    pub(crate) arrived: RecordSum,
    /// Unacknowledged when the connection ended.
    pub(crate) lost: RecordSum,
}

/// Unacknowledged data of one connection.
#[derive(Default)]
pub(super) struct Underway {
    written_bytes: u64,
    /// For each message with flows: its end as a byte offset on the connection, and its flows.
    messages: VecDeque<(u64, RecordSum)>,
}

impl Underway {
    pub(super) fn writes(&mut self, len_bytes: usize) {
        self.written_bytes += len_bytes as u64;
    }

    /// Ends a message with these flows at the last byte written.
    pub(super) fn ends_message(&mut self, flows: RecordSum) {
        if flows.records == 0 {
            return;
        }
        let is_full = self.messages.len() >= MOST_MESSAGES;
        match self.messages.back_mut() {
            Some((end, sum)) if is_full => {
                *end = self.written_bytes;
                *sum += flows;
            }
            Some(_) | None => self.messages.push_back((self.written_bytes, flows)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Removes fully acknowledged messages and returns their flows.
    pub(super) fn arrived(&mut self, unacknowledged_bytes: u64) -> RecordSum {
        let acknowledged = self.written_bytes.saturating_sub(unacknowledged_bytes);
        let mut sum = RecordSum::default();
        while let Some((_, flows)) = self.messages.pop_front_if(|(end, _)| *end <= acknowledged) {
            sum += flows;
        }
        sum
    }

    /// Removes all messages and returns their flows.
    pub(super) fn rest(&mut self) -> RecordSum {
        let mut sum = RecordSum::default();
        for (_, flows) in self.messages.drain(..) {
            sum += flows;
        }
        sum
    }
}

/// How many bytes the peer has not acknowledged; the FIN counts as one. This works after a reset too: `tcp_ioctl`
/// (SIOCOUTQ) returns `write_seq - snd_una`, and `tcp_reset` changes neither.
pub(super) fn unacknowledged_bytes(stream: impl AsFd) -> Result<u64> {
    const SIOCOUTQ: Opcode = libc::TIOCOUTQ as Opcode;
    // SAFETY: for this opcode `tcp_ioctl` writes an int (tcp(7)) and nothing else.
    let getter = unsafe { Getter::<SIOCOUTQ, i32>::new() };
    // SAFETY: the getter's output type is the type that the kernel writes.
    let bytes = unsafe { ioctl(stream, getter) }?;
    // A negative value means more than fits an int.
    Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(records: u64) -> RecordSum {
        RecordSum {
            records,
            packets: 10 * records,
            bytes: 100 * records,
        }
    }

    #[test]
    fn a_message_has_arrived_when_its_last_byte_is_acknowledged() {
        let mut underway = Underway::default();
        for (len_bytes, records) in [(100, 1), (50, 0), (100, 2)] {
            underway.writes(len_bytes);
            underway.ends_message(flows(records));
        }
        // Part of the next message.
        underway.writes(7);
        assert_eq!(underway.arrived(257), flows(0));
        assert_eq!(underway.arrived(158), flows(0));
        assert_eq!(underway.arrived(157), flows(1));
        assert_eq!(underway.arrived(8), flows(0));
        assert!(!underway.is_empty());
        assert_eq!(underway.arrived(7), flows(2));
        assert!(underway.is_empty());
        assert_eq!(underway.rest(), flows(0));
    }

    #[test]
    fn however_many_messages_wait_their_sum_is_exact() {
        let mut underway = Underway::default();
        for _ in 0..MOST_MESSAGES + 10 {
            underway.writes(1);
            underway.ends_message(flows(1));
        }
        assert_eq!(underway.messages.len(), MOST_MESSAGES);
        let most = MOST_MESSAGES as u64;
        assert_eq!(underway.arrived(1), flows(most - 1));
        assert_eq!(underway.rest(), flows(11));
    }
}
