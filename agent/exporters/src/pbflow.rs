//! Flows as netobserv's agent sends them: `pbflow.Collector/Send` with records of one direction each, for
//! flowlogs-pipeline and what follows it.

use std::net::{IpAddr, UdpSocket};

use bytes::{BufMut as _, BytesMut};
use proto::{Direction, FlowBatch, FlowRecord, known_interfaces::KnownInterfaces};

use super::encoder::{Call, Encoder, Message};
use record::{Head, Tail};

mod record;

#[cfg(test)]
mod tests;

/// The method of gRPC.
const METHOD: &str = "/pbflow.Collector/Send";

/// Their records have less than 300 bytes each, so a message is well below the 4 MiB that receivers take.
const FLOWS_IN_A_MESSAGE: usize = 4_096;
/// What the records of one flow usually take.
const USUAL_LEN_BYTES: usize = 192;
/// `Records.entries`.
const ENTRY_TAG: u8 = 1 << 3 | 2;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What `agent_ip` of the records has; by default the address with which this host sends to others.
    pub agent_ip: Option<IpAddr>,
}

pub struct Pbflow {
    settings: Settings,
    agent_ip: Option<IpAddr>,
    buffer: BytesMut,
    interfaces: KnownInterfaces,
    tails: Tails,
}

/// What ends the records of one interface, which most flows have in common with the one before them.
#[derive(Default)]
struct Tails {
    /// Network namespace and index.
    of: Option<(u32, u32)>,
    ingress: Tail,
    egress: Tail,
}

impl Pbflow {
    pub fn new(settings: Settings) -> Self {
        let mut pbflow = Self {
            settings,
            agent_ip: None,
            buffer: BytesMut::new(),
            interfaces: KnownInterfaces::default(),
            tails: Tails::default(),
        };
        pbflow.restart();
        pbflow
    }

    /// Writes those of a flow's directions that have packets.
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
        let packets = [flow.delta_packets, flow.delta_reverse_packets];
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
    /// Without bytes if no flow has packets: that a flow ended while it was quiet cannot be said.
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message {
        self.interfaces.note_all(batch);
        // An interface may have another name, and the sampling another rate.
        self.tails.of = None;
        let now = &flows[..flows.len().min(FLOWS_IN_A_MESSAGE)];
        // Room for most, in one piece, which is the last message's if that was sent.
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

    /// A message stands for itself.
    fn sent(&mut self) {}

    /// The host may have got another address.
    fn restart(&mut self) {
        self.agent_ip = self.settings.agent_ip.or_else(own_address);
    }

    /// gRPC takes messages of any length.
    fn limit(&mut self, _: usize) -> bool {
        true
    }
}

/// The address that the kernel would send from over the default route. To connect a socket for datagrams sends none.
fn own_address() -> Option<IpAddr> {
    // Addresses that nobody has (RFC 5737, RFC 3849).
    let ways = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    ways.into_iter().find_map(|(from, to)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}
