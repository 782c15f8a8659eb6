//! Flows in the format of netobserv's agent: `pbflow.Collector/Send` with records of one direction each, for
//! flowlogs-pipeline and its consumers.

use std::net::IpAddr;

use bytes::{BufMut as _, BytesMut};
use proto::{Direction, FlowBatch, FlowRecord, known_interfaces::KnownInterfaces};

use super::encoder::{Call, Encoder, Message};
use record::{Head, Tail};

mod record;

#[cfg(test)]
mod tests;

/// The gRPC method.
const METHOD: &str = "/pbflow.Collector/Send";

/// A flow's records take less than 300 bytes each, so a message stays well below the 4 MiB that receivers accept.
const FLOWS_IN_A_MESSAGE: usize = 4_096;
/// Usual length of a flow's records.
const USUAL_LEN_BYTES: usize = 192;
/// `Records.entries`.
const ENTRY_TAG: u8 = 1 << 3 | 2;

pub struct Pbflow {
    /// Returns the agent's address, which may change.
    address: Box<dyn Fn() -> Option<IpAddr> + Send>,
    /// `agent_ip` of the records.
    agent_ip: Option<IpAddr>,
    buffer: BytesMut,
    interfaces: KnownInterfaces,
    tails: Tails,
}

/// The encoded end of the records of one interface. Most flows share it with the flow before them.
#[derive(Default)]
struct Tails {
    /// Network namespace and interface index.
    of: Option<(u32, u32)>,
    ingress: Tail,
    egress: Tail,
}

impl Pbflow {
    /// `address` returns the agent's address. It is called again for each connection.
    pub fn new(address: impl Fn() -> Option<IpAddr> + Send + 'static) -> Self {
        Self {
            agent_ip: address(),
            address: Box::new(address),
            buffer: BytesMut::new(),
            interfaces: KnownInterfaces::default(),
            tails: Tails::default(),
        }
    }

    /// Writes a record for each direction with packets.
    #[inline]
    fn write(&mut self, sample_rate: u32, flow: &FlowRecord) {
        let interface = Some((flow.netns, flow.ifindex));
        if self.tails.of != interface {
            let name = self.interfaces.name(flow);
            let tail = |direction| Tail::new(name, direction, self.agent_ip, sample_rate);
            self.tails = Tails {
                of: interface,
                ingress: tail(Direction::Ingress),
                egress: tail(Direction::Egress),
            };
        }
        let packets = [flow.src().delta_packets, flow.dst().delta_packets];
        for (direction, is_answer) in flow.directions().into_iter().zip([false, true]) {
            if packets[usize::from(is_answer)] == 0 {
                continue;
            }
            let head = Head::of(flow, direction, is_answer);
            let tail = match direction {
                Direction::Egress => self.tails.egress.bytes(),
                Direction::Ingress | Direction::Unspecified => self.tails.ingress.bytes(),
            };
            self.buffer.put_u8(ENTRY_TAG);
            record::put_varint(&mut self.buffer, (head.bytes().len() + tail.len()) as u64);
            self.buffer.put_slice(head.bytes());
            self.buffer.put_slice(tail);
        }
    }
}

impl Encoder for Pbflow {
    /// Returns no bytes if no flow has packets: the format cannot say that a flow ended while it was idle.
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message {
        self.interfaces.note_all(batch);
        // The interface's name or the sampling rate may have changed.
        self.tails.of = None;
        let now = &flows[..flows.len().min(FLOWS_IN_A_MESSAGE)];
        // Reserve once for the usual length. The last message's memory is reused if that was sent.
        self.buffer.clear();
        self.buffer.reserve(now.len() * USUAL_LEN_BYTES);
        for flow in now {
            self.write(batch.sample_rate, flow);
        }
        let is_quiet = |flow: &&FlowRecord| flow.delta().packets == 0;
        Message {
            skipped: now.iter().filter(is_quiet).count(),
            call: Call {
                method: METHOD,
                is_gzip: false,
            },
            ..Message::new(self.buffer.split().freeze(), now.len())
        }
    }

    /// Messages do not depend on each other.
    fn sent(&mut self) {}

    /// The host's address may have changed.
    fn restart(&mut self) {
        self.agent_ip = (self.address)();
    }

    /// gRPC accepts messages of any length.
    fn limit(&mut self, _: usize) -> bool {
        true
    }
}
