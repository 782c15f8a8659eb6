//! Queries that wait for their answers.

use std::{collections::HashMap, mem};

use agent_common::FlowKey;

use super::message::Question;

/// The most queries in each half: recent ones, and ones that have waited for longer.
pub const MOST: usize = 8192;
/// The first interface of each network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
/// Queries are given up after one to two times this. Resolvers give up after 5 s (resolv.conf(5)).
const PATIENCE_NS: u64 = 5_000_000_000;

/// Identifies the query of an answer: the flow, its direction, and its number.
///
/// Query and answer are seen on opposite sides of an interface, so both have the same flow key. If both arrive at the
/// same side, an outsider may have sent both, so they do not match. At the loopback interface all packets arrive, and
/// no outsider can send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueryId {
    pub flow: FlowKey,
    pub direction: u32,
    id: u16,
}

impl QueryId {
    /// `direction` is the client's.
    pub fn new(key: &FlowKey, direction: u32, id: u16) -> Self {
        Self {
            flow: if key.ifindex == LOOPBACK {
                key.with_side(0)
            } else {
                *key
            },
            direction,
            id,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Query {
    pub question: Question,
    /// When the query was first seen, since boot.
    pub asked_ns: u64,
}

/// The result of noting a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Anew,
    /// The same query is already waiting.
    Again,
    /// Another query had the same number. It is dropped.
    InPlaceOf(Query),
}

/// Waiting queries in two halves, by how long they have waited.
#[derive(Default)]
pub struct Queries {
    newer: HashMap<QueryId, Query>,
    older: HashMap<QueryId, Query>,
    /// When the newer half began, since boot.
    since_ns: u64,
}

impl Queries {
    /// Notes a query. Call [`Self::give_up`] first.
    pub fn ask(&mut self, id: QueryId, query: Query) -> Asked {
        if self.is_asked(&id, &query.question) {
            return Asked::Again;
        }
        let before = self.older.remove(&id);
        match self.newer.insert(id, query).or(before) {
            Some(before) => Asked::InPlaceOf(before),
            None => Asked::Anew,
        }
    }

    pub fn is_asked(&self, id: &QueryId, question: &Question) -> bool {
        let known = [&self.newer, &self.older].map(|half| half.get(id));
        let mut known = known.into_iter().flatten();
        known.any(|known| known.question == *question)
    }

    /// Takes the query that this answers. `None` if it was already answered, or never asked.
    pub fn answer(&mut self, id: &QueryId, question: &Question) -> Option<Query> {
        for half in [&mut self.newer, &mut self.older] {
            if half
                .get(id)
                .is_some_and(|query| query.question == *question)
            {
                return half.remove(id);
            }
        }
        None
    }

    /// How many queries are waiting.
    pub fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }

    /// Gives up the older half if it is time to, or if there is no room for more.
    pub fn give_up(&mut self, now_ns: u64) -> GivenUp {
        let is_over = now_ns.saturating_sub(self.since_ns) >= PATIENCE_NS;
        if !is_over && self.newer.len() < MOST {
            return GivenUp::default();
        }
        self.since_ns = now_ns;
        let newer = mem::take(&mut self.newer);
        GivenUp {
            queries: mem::replace(&mut self.older, newer),
            is_over,
        }
    }
}

#[derive(Default)]
pub struct GivenUp {
    pub queries: HashMap<QueryId, Query>,
    /// These queries have waited for at least five seconds. Otherwise they were dropped to make room.
    pub is_over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str) -> Question {
        Question {
            name: name.into(),
            record_type: 1,
        }
    }

    fn query(name: &str, asked_ns: u64) -> Query {
        Query {
            question: question(name),
            asked_ns,
        }
    }

    fn id(id: u16) -> QueryId {
        QueryId::new(&FlowKey::default(), 0, id)
    }

    #[test]
    fn an_answer_is_to_the_query_with_its_number_and_question_and_only_once() {
        let mut queries = Queries::default();
        assert_eq!(queries.ask(id(1), query("a", 5)), Asked::Anew);
        assert_eq!(queries.ask(id(1), query("a", 9)), Asked::Again);
        assert_eq!(queries.answer(&id(2), &question("a")), None);
        assert_eq!(queries.answer(&id(1), &question("b")), None);
        assert_eq!(queries.answer(&id(1), &question("A")), None);
        let other_way = QueryId::new(&FlowKey::default(), 1, 1);
        assert_eq!(queries.answer(&other_way, &question("a")), None);
        assert_eq!(queries.len(), 1);
        assert_eq!(queries.answer(&id(1), &question("a")), Some(query("a", 5)));
        assert_eq!(queries.answer(&id(1), &question("a")), None);
    }

    #[test]
    fn two_that_arrive_at_an_interface_are_no_query_and_answer_but_on_loopback() {
        for (ifindex, expected) in [(2, false), (LOOPBACK, true)] {
            let key = FlowKey {
                ifindex,
                ..FlowKey::default()
            };
            let mut queries = Queries::default();
            queries.ask(QueryId::new(&key.with_side(0), 0, 1), query("a", 5));
            let answer = QueryId::new(&key.with_side(1), 0, 1);
            assert_eq!(queries.is_asked(&answer, &question("a")), expected);
        }
    }

    #[test]
    fn a_number_that_is_used_again_is_of_the_last_question() {
        let mut queries = Queries::default();
        queries.ask(id(1), query("a", 1));
        queries.give_up(PATIENCE_NS);
        assert_eq!(
            queries.ask(id(1), query("b", 2)),
            Asked::InPlaceOf(query("a", 1))
        );
        assert_eq!(
            queries.ask(id(1), query("c", 3)),
            Asked::InPlaceOf(query("b", 2))
        );
        assert_eq!(queries.answer(&id(1), &question("b")), None);
        assert_eq!(queries.answer(&id(1), &question("c")), Some(query("c", 3)));
    }

    #[test]
    fn what_waits_for_too_long_is_given_up_once() {
        let mut queries = Queries::default();
        let given_up = |queries: &mut Queries, now_ns: u64| {
            let GivenUp { queries, is_over } = queries.give_up(now_ns);
            assert!(is_over || queries.is_empty());
            queries.len()
        };
        queries.give_up(PATIENCE_NS);
        queries.ask(id(1), query("a", 0));
        queries.ask(id(2), query("a", 0));
        assert_eq!(given_up(&mut queries, 2 * PATIENCE_NS - 1), 0);
        assert_eq!(given_up(&mut queries, 2 * PATIENCE_NS), 0);
        assert!(queries.answer(&id(1), &question("a")).is_some());
        assert_eq!(given_up(&mut queries, 3 * PATIENCE_NS), 1);
        assert_eq!(queries.answer(&id(2), &question("a")), None);
        assert_eq!(given_up(&mut queries, 4 * PATIENCE_NS), 0);
    }

    #[test]
    fn where_too_many_wait_the_last_ones_are_followed() {
        let mut queries = Queries::default();
        queries.give_up(PATIENCE_NS);
        let mut made_room = 0;
        for number in 0..5 * MOST as u64 {
            let given_up = queries.give_up(PATIENCE_NS);
            assert!(!given_up.is_over);
            made_room += given_up.queries.len();
            let key = FlowKey {
                netns: number as u32,
                ..FlowKey::default()
            };
            queries.ask(QueryId::new(&key, 0, 1), query("a", 0));
            assert!(queries.len() <= 2 * MOST);
            assert!(queries.is_asked(&QueryId::new(&key, 0, 1), &question("a")));
        }
        assert_eq!(made_room, 3 * MOST);
    }
}
