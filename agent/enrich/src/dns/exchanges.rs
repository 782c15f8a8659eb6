//! Queries with their answers, kept until the next scan sends them.

use std::{mem, net::IpAddr};

use proto::DnsExchange;
use sys::clock::ScanClock;

use super::{
    learned::addresses,
    message::Answer,
    queries::{Query, QueryId},
};

const MOST: usize = 50_000;
/// The limit on memory, including the overhead of allocations.
pub const MOST_BYTES: usize = 32 << 20;

/// A query that was answered or given up.
pub struct Exchange {
    pub id: QueryId,
    pub query: Query,
    pub answer: Option<Answered>,
}

pub struct Answered {
    code: u16,
    is_truncated: bool,
    addresses: Box<[IpAddr]>,
    /// Time since boot.
    at_ns: u64,
}

impl Answered {
    pub fn new(answer: &Answer, at_ns: u64) -> Self {
        Self {
            code: answer.code,
            is_truncated: answer.is_truncated,
            addresses: answer.addresses.iter().map(|one| one.address).collect(),
            at_ns,
        }
    }
}

#[derive(Default)]
pub struct Exchanges {
    kept: Vec<Exchange>,
    bytes: usize,
    pub lost: u64,
}

impl Exchanges {
    pub fn note(&mut self, exchange: Exchange) {
        let bytes = exchange.bytes();
        if self.kept.len() == MOST || self.bytes + bytes > MOST_BYTES {
            self.lost += 1;
        } else {
            self.bytes += bytes;
            self.kept.push(exchange);
        }
    }

    pub fn take(&mut self) -> Vec<Exchange> {
        self.bytes = 0;
        mem::take(&mut self.kept)
    }
}

impl Exchange {
    /// The memory it takes in a growing list.
    fn bytes(&self) -> usize {
        const OF_TWO_ALLOCATIONS: usize = 32;
        let addresses = self.answer.as_ref().map_or(0, |one| one.addresses.len());
        2 * size_of::<Self>()
            + self.query.question.name.len()
            + addresses * size_of::<IpAddr>()
            + OF_TWO_ALLOCATIONS
    }

    /// The exchange as a message, with times converted by the clock of a scan.
    pub fn into_message(self, clock: ScanClock) -> DnsExchange {
        let Self { id, query, answer } = self;
        let ends = addresses(&id.flow);
        let ports = [id.flow.port_a, id.flow.port_b];
        let client = id.direction as usize & 1;
        let waited_ns = answer
            .as_ref()
            .map(|answered| answered.at_ns.saturating_sub(query.asked_ns));
        let found = answer.iter().flat_map(|answer| &answer.addresses);
        DnsExchange {
            client_addr: bytes(ends[client]),
            server_addr: bytes(ends[1 - client]),
            client_port: ports[client].into(),
            ifindex: id.flow.ifindex,
            netns: id.flow.netns,
            name: query.question.name.into(),
            record_type: query.question.record_type.into(),
            asked_unix_ns: clock.unix_ns(query.asked_ns),
            waited_ns,
            code: answer.as_ref().map(|answer| answer.code.into()),
            truncated: answer.as_ref().is_some_and(|answer| answer.is_truncated),
            addrs: found.map(|&address| bytes(address)).collect(),
        }
    }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use agent_common::FlowKey;

    use super::*;
    use crate::dns::message::Question;

    fn exchange(id: u16) -> Exchange {
        let question = Question {
            name: "a".into(),
            record_type: 1,
        };
        Exchange {
            id: QueryId::new(&FlowKey::default(), 0, id),
            query: Query {
                question,
                asked_ns: 5,
            },
            answer: None,
        }
    }

    #[test]
    fn there_is_a_bound_and_what_is_beyond_is_counted() {
        let mut exchanges = Exchanges::default();
        for id in 0..=MOST {
            exchanges.note(exchange(id as u16));
        }
        assert_eq!((exchanges.take().len(), exchanges.lost), (MOST, 1));
        exchanges.note(exchange(1));
        assert_eq!((exchanges.take().len(), exchanges.lost), (1, 1));
        // Exchanges with many addresses take more memory.
        let long = |id| Exchange {
            answer: Some(Answered {
                code: 0,
                is_truncated: false,
                addresses: vec![IpAddr::from([10, 0, 0, 1]); 90].into(),
                at_ns: 6,
            }),
            ..exchange(id)
        };
        for id in 0..MOST {
            exchanges.note(long(id as u16));
        }
        let kept = exchanges.take();
        assert!(kept.iter().map(Exchange::bytes).sum::<usize>() <= MOST_BYTES);
        assert_eq!(kept.len() as u64 + exchanges.lost, 1 + MOST as u64);
        assert!(exchanges.lost > 1);
    }
}
