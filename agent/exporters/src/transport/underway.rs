//! Knows which flows on a TCP connection the receiver's kernel has acknowledged.

use std::collections::VecDeque;

use proto::RecordSum;
use rustix::{
    fd::AsFd,
    io::Result,
    ioctl::{Getter, Opcode, ioctl},
};

/// So many messages are kept apart; further ones are acknowledged together with the last of them. The kernel's buffer of
/// 4 MiB, unless `tcp_wmem` allows more, holds fewer even of those with a single flow.
const MOST_MESSAGES: usize = 1 << 16;

/// What became of flows that were written to a connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipts {
    pub(crate) arrived: RecordSum,
    /// The connection broke before they were acknowledged.
    pub(crate) lost: RecordSum,
}

/// What was written to one connection and not acknowledged.
#[derive(Default)]
pub(super) struct Underway {
    written_bytes: u64,
    /// Where a message ends in the bytes of the connection, and its flows. Messages without flows are left out.
    messages: VecDeque<(u64, RecordSum)>,
}

impl Underway {
    pub(super) fn writes(&mut self, len_bytes: usize) {
        self.written_bytes += len_bytes as u64;
    }

    /// A message with these flows ends with what was written last.
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

    /// Takes out the flows of messages that are acknowledged to their end.
    pub(super) fn arrived(&mut self, unacknowledged_bytes: u64) -> RecordSum {
        let acknowledged = self.written_bytes.saturating_sub(unacknowledged_bytes);
        let mut sum = RecordSum::default();
        while let Some((_, flows)) = self.messages.pop_front_if(|(end, _)| *end <= acknowledged) {
            sum += flows;
        }
        sum
    }

    /// Takes out all flows.
    pub(super) fn rest(&mut self) -> RecordSum {
        let mut sum = RecordSum::default();
        for (_, flows) in self.messages.drain(..) {
            sum += flows;
        }
        sum
    }
}

/// How many bytes the other side has not acknowledged; the end of the stream counts as one. The kernel knows that of a
/// connection that was reset, too: `tcp_ioctl` (SIOCOUTQ) returns `write_seq - snd_una`, and `tcp_reset` changes neither.
pub(super) fn unacknowledged_bytes(stream: impl AsFd) -> Result<u64> {
    const SIOCOUTQ: Opcode = libc::TIOCOUTQ as Opcode;
    // SAFETY: `tcp_ioctl` writes an int for this number (tcp(7)), and nothing else.
    let getter = unsafe { Getter::<SIOCOUTQ, i32>::new() };
    // SAFETY: the getter has the type of what is written.
    let bytes = unsafe { ioctl(stream, getter) }?;
    // It may be more than fits.
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
        // A part of the next message.
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
