//! Takes in DNS messages one by one: matches answers to queries and learns names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent_common::{FlowKey, dns::DnsMessage};
use proto::{DnsStatus, dns_codes};

use super::{
    exchanges::{Answered, Exchange, Exchanges},
    message::{self, Answer, Message, Unread},
    names::{Names, Realm},
    queries::{Asked, Queries, Query, QueryId},
};

/// Stands for EDNS codes, and for all codes without a name at IANA.
const OTHER_CODE: &str = "other";

pub struct Learned {
    pub names: Names,
    queries: Queries,
    /// `None` if exchanges are not reported.
    pub exchanges: Option<Exchanges>,
    stats: DnsStatus,
}

impl Learned {
    /// Keeps at most `most_names` names. The hosts file applies to the network namespace `home`.
    pub fn new(most_names: usize, home: u32, tells: bool) -> Self {
        Self {
            names: Names::at_most(most_names, home),
            queries: Queries::default(),
            exchanges: tells.then(Exchanges::default),
            stats: DnsStatus::default(),
        }
    }

    /// The counts, except for messages lost before they got here.
    pub fn stats(&self) -> DnsStatus {
        DnsStatus {
            names: self.names.len() as u64,
            names_capacity: self.names.capacity() as u64,
            forgotten_names: self.names.forgotten(),
            waiting: self.queries.len() as u64,
            lost_exchanges: self.exchanges.as_ref().map_or(0, |all| all.lost),
            ..self.stats.clone()
        }
    }

    pub fn note(&mut self, from: &DnsMessage) {
        self.give_up(from.seen_ns);
        let kept = (from.kept_bytes as usize).min(from.payload.len());
        let is_whole = from.is_part == 0 && from.kept_bytes == from.len_bytes;
        let taken = message::read(&from.payload[..kept], is_whole).and_then(|message| {
            if message.is_answer {
                self.take_answer(from, &message)
            } else {
                self.take_query(from, message);
                Ok(())
            }
        });
        match taken {
            Ok(()) => {}
            Err(Unread::Malformed) => self.stats.malformed += 1,
            Err(Unread::OfAnotherKind) => self.stats.of_another_kind += 1,
        }
    }

    fn take_query(&mut self, from: &DnsMessage, message: Message<'_>) {
        self.stats.queries += 1;
        let id = QueryId::new(&from.key, from.direction, message.id);
        let query = Query {
            question: message.question,
            asked_ns: from.seen_ns,
        };
        match self.queries.ask(id, query) {
            Asked::Anew => {}
            Asked::Again => self.stats.repeated += 1,
            Asked::InPlaceOf(_) => self.stats.not_followed += 1,
        }
    }

    fn take_answer(&mut self, from: &DnsMessage, message: &Message<'_>) -> Result<(), Unread> {
        let direction = 1 - from.direction.min(1);
        let id = QueryId::new(&from.key, direction, message.id);
        if !self.queries.is_asked(&id, &message.question) {
            self.stats.answers += 1;
            self.stats.unasked += 1;
            return Ok(());
        }
        let answer = message.answer()?;
        let Some(query) = self.queries.answer(&id, &message.question) else {
            return Ok(());
        };
        self.stats.answers += 1;
        let code = dns_codes::code(answer.code).unwrap_or_else(|| OTHER_CODE.to_owned());
        *self.stats.answers_by_code.entry(code).or_default() += 1;
        self.stats.waited_ns += from.seen_ns.saturating_sub(query.asked_ns);
        let name = query.question.name.to_ascii_lowercase();
        if answer.code == message::NO_ERROR && !name.is_empty() {
            let client = addresses(&from.key)[direction as usize];
            let client = (Realm::of(&from.key), client);
            self.names
                .learn(&name, client, &answer.addresses, from.seen_ns);
        }
        self.tell(id, query, Some((&answer, from.seen_ns)));
        Ok(())
    }

    pub fn give_up(&mut self, now_ns: u64) {
        let given_up = self.queries.give_up(now_ns);
        let count = given_up.queries.len() as u64;
        if given_up.is_over {
            self.stats.unanswered += count;
            for (id, query) in given_up.queries {
                self.tell(id, query, None);
            }
        } else {
            self.stats.not_followed += count;
        }
    }

    fn tell(&mut self, id: QueryId, query: Query, answer: Option<(&Answer, u64)>) {
        if let Some(exchanges) = &mut self.exchanges {
            let answer = answer.map(|(answer, at_ns)| Answered::new(answer, at_ns));
            exchanges.note(Exchange { id, query, answer });
        }
    }
}

/// The addresses of the ends a and b.
pub fn addresses(key: &FlowKey) -> [IpAddr; 2] {
    [&key.addr_a, &key.addr_b].map(|bytes| {
        if key.ip_version == 4 {
            let [a, b, c, d, ..] = *bytes;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        } else {
            IpAddr::V6(Ipv6Addr::from(*bytes))
        }
    })
}

#[cfg(test)]
mod tests;
