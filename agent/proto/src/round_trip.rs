//! How long the ends of a connection take to acknowledge a segment, as reported in records.

use agent_common::Sample;

use crate::FlowRecord;

/// The time from the interface to one end and back, in microseconds; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    pub handshake_us: u32,
    /// The most recent sample.
    pub ack_us: u32,
}

impl RoundTrip {
    /// Adds a later sample. A connection has one handshake; of several connections with the same ports, the
    /// last one counts.
    pub fn note(&mut self, sample: Sample) {
        if let Some(us) = sample.handshake_us() {
            self.handshake_us = us;
        }
        if let Some(us) = sample.took_us() {
            self.ack_us = us;
        }
    }

    /// Returns the times to the source and to the destination.
    pub fn both(record: &FlowRecord) -> [Self; 2] {
        let us = |field: Option<u32>| field.unwrap_or_default();
        [
            Self {
                handshake_us: us(record.src_handshake_rtt_us),
                ack_us: us(record.src_ack_rtt_us),
            },
            Self {
                handshake_us: us(record.dst_handshake_rtt_us),
                ack_us: us(record.dst_ack_rtt_us),
            },
        ]
    }
}
