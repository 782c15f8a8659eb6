//! How long the ends of a connection take to acknowledge a segment.

use agent_common::Sample;

/// The time from the interface to one end and back, in microseconds; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    pub handshake_us: u32,
    /// The most recent sample.
    pub ack_us: u32,
}

impl RoundTrip {
    /// Adds a later sample. A connection has one handshake; of several connections with the same ports, the last one
    /// counts.
    pub fn note(&mut self, sample: Sample) {
        if let Some(us) = sample.handshake_us() {
            self.handshake_us = us;
        }
        if let Some(us) = sample.took_us() {
            self.ack_us = us;
        }
    }
}
