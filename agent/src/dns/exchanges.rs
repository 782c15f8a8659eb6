//! Queries with their answers, until the next scan sends them.

use std::{mem, net::IpAddr};

use super::{
    addresses,
    message::Answer,
    queries::{Query, QueryId},
};
use crate::{clock::ScanClock, proto::DnsExchange};

/// Some 15 MB.
const MOST: usize = 50_000;

/// A query that was answered, or given up.
pub struct Exchange {
    pub id: QueryId,
    pub query: Query,
    pub answer: Option<Answered>,
}

pub struct Answered {
    pub answer: Answer,
    /// Time since boot.
    pub at_ns: u64,
}

#[derive(Default)]
pub struct Exchanges {
    kept: Vec<Exchange>,
    pub lost: u64,
}

impl Exchanges {
    pub fn note(&mut self, exchange: Exchange) {
        if self.kept.len() == MOST {
            self.lost += 1;
        } else {
            self.kept.push(exchange);
        }
    }

    pub fn take(&mut self) -> Vec<Exchange> {
        mem::take(&mut self.kept)
    }
}

impl Exchange {
    /// With the time as it is at a scan.
    pub fn told(self, clock: ScanClock) -> DnsExchange {
        let Self { id, query, answer } = self;
        let ends = addresses(&id.flow);
        let ports = [id.flow.port_a, id.flow.port_b];
        let client = id.direction as usize & 1;
        let waited_ns = answer
            .as_ref()
            .map(|answered| answered.at_ns.saturating_sub(query.asked_ns));
        let answer = answer.map(|answered| answered.answer);
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
            addrs: found.map(|one| bytes(one.address)).collect(),
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
    }
}
