//! The report of a flow between two agents, as a line of JSON.

use std::{net::IpAddr, sync::Arc};

use formats::{harmless, time::UtcTime};
use proto::{AgentIdentity, community_id};
use serde::Serialize;
use tls::identity::Identity;

use super::{
    agents::{Doubt, Index},
    sighting::{Ends, Sum},
};

/// The packets of one end of a flow on their way from one agent to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    /// The sender that is charged for the flow.
    pub(super) sender: Identity,
    pub community_id: [u8; 20],
    pub(super) ends: Ends,
    /// The end that sent the packets.
    pub way: usize,
    pub(super) agents: [Index; 2],
    pub from: Arc<AgentIdentity>,
    pub to: Arc<AgentIdentity>,
    pub since: u64,
    pub until: u64,
    pub(super) sent: Sum,
    pub(super) received: Sum,
    /// `None` if the loss is unknown.
    pub(super) lost: Option<Bounds>,
    /// Why `sent` and `received` may not count the same packets.
    pub(super) why: Option<Doubt>,
}

/// The number of lost packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub min: u64,
    /// `None` if there is no upper bound.
    pub max: Option<u64>,
}

/// The sum of packets up to a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub sum: Sum,
    pub at: u64,
}

impl Bounds {
    pub(super) fn exact(sent: Sum, received: Sum) -> Self {
        let lost = sent.packets.saturating_sub(received.packets);
        Self {
            min: lost,
            max: Some(lost),
        }
    }

    /// The bounds on the loss of packets that had left by the latest moment in `left`. A packet that left at least
    /// `margin_ns` before another moment has arrived by then or is lost.
    pub(super) fn between(
        left: [Option<Moment>; 2],
        arrived: [Option<Moment>; 2],
        margin_ns: u64,
    ) -> Self {
        let later = |one: &Moment, other: &Moment| one.at.saturating_add(margin_ns) <= other.at;
        let difference =
            |left: Moment, arrived: Moment| left.sum.packets.saturating_sub(arrived.sum.packets);
        let [Some(last_left), _] = left else {
            return Self { min: 0, max: None };
        };
        let min = arrived[0].and_then(|arrived| {
            let left = left.into_iter().flatten();
            let mut left = left.filter(|left| later(left, &arrived));
            left.next().map(|left| difference(left, arrived))
        });
        let mut early = arrived
            .into_iter()
            .flatten()
            .filter(|arrived| later(arrived, &last_left));
        Self {
            min: min.unwrap_or(0),
            max: early.next().map(|early| difference(last_left, early)),
        }
    }
}

impl Report {
    /// Packets that arrived without being seen to leave.
    pub(super) fn surplus(&self) -> u64 {
        self.received.packets.saturating_sub(self.sent.packets)
    }

    /// The report as a line, with the newline.
    pub(crate) fn line(&self) -> Vec<u8> {
        let [src, dst] = [self.way, 1 - self.way];
        let exact = self.lost.filter(|_| self.why.is_none());
        let line = Line {
            r#type: "pair",
            community_id: community_id::text(&self.community_id),
            protocol: self.ends.protocol,
            src_addr: self.ends.addr[src],
            src_port: self.ends.port[src],
            dst_addr: self.ends.addr[dst],
            dst_port: self.ends.port[dst],
            from: Name::of(&self.from),
            to: Name::of(&self.to),
            since: UtcTime::new(self.since),
            until: UtcTime::new(self.until),
            sent_packets: self.sent.packets,
            sent_ip_bytes: self.sent.ip_bytes,
            received_packets: self.received.packets,
            received_ip_bytes: self.received.ip_bytes,
            lost_packets: exact.map(|lost| lost.min),
            surplus_packets: exact.map(|_| self.surplus()),
            lost_packets_min: self.lost.map(|lost| lost.min),
            lost_packets_max: self.lost.and_then(|lost| lost.max),
            inexact: self.why,
        };
        text(&line)
    }
}

/// A line of JSON, with the newline.
pub(super) fn text(line: &impl Serialize) -> Vec<u8> {
    let line = serde_json::to_string(line).expect("it has no map");
    let mut line = harmless::json(&line).into_owned().into_bytes();
    line.push(b'\n');
    line
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    community_id: String,
    protocol: u32,
    src_addr: IpAddr,
    src_port: Option<u32>,
    dst_addr: IpAddr,
    dst_port: Option<u32>,
    from: Name<'a>,
    to: Name<'a>,
    since: UtcTime,
    until: UtcTime,
    sent_packets: u64,
    sent_ip_bytes: u64,
    received_packets: u64,
    received_ip_bytes: u64,
    lost_packets: Option<u64>,
    surplus_packets: Option<u64>,
    lost_packets_min: Option<u64>,
    lost_packets_max: Option<u64>,
    inexact: Option<Doubt>,
}

/// An agent in a line.
#[derive(Serialize)]
pub(super) struct Name<'a> {
    identity: &'a str,
    hostname: &'a str,
    agent_id: &'a str,
    instance_id: &'a str,
}

impl<'a> Name<'a> {
    pub(super) fn of(agent: &'a AgentIdentity) -> Self {
        Self {
            identity: &agent.identity,
            hostname: &agent.hostname,
            agent_id: &agent.agent_id,
            instance_id: &agent.instance_id,
        }
    }
}
