//! What addresses are called: learned from the answers of the DNS that pass the watched interfaces.
//!
//! The programs hand over each message (UDP, port 53) of a flow that is counted ([`crate::kernel::dns`]). [`message`] reads it;
//! [`queries`] wait for their answers, since what nobody asked for may come from anybody; [`names`] keeps what was learned, with the
//! names of the [`hosts_file`], until a flow begins that has a use for it; [`exchanges`] are told of themselves, if that is asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use agent_common::{FlowKey, dns::DnsMessage};
use anyhow::{Context as _, Result};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::{AbortHandle, yield_now},
    time::sleep,
};

use crate::{
    clock,
    kernel::{
        dns::{DnsMessages, Lost, RING_LEN_BYTES},
        links::netns_inode,
    },
    log_limit::LogLimit,
    proto,
};

mod exchanges;
mod hosts_file;
mod message;
mod names;
mod queries;
mod told;

use exchanges::{Answered, Exchange, Exchanges};
use hosts_file::HostsFile;
use message::{Answer, Message, Unread};
pub use message::{MOST_ANSWERS, MOST_NAME_BYTES, code, record_type};
pub use names::{EndName, HostName, Source};
use names::{Names, Realm};
use queries::{Asked, Queries, Query, QueryId};
pub use told::Host;

pub const DEFAULT_NAMES: u32 = 65_536;
pub const DEFAULT_MESSAGES_PER_SECOND: u32 = 10_000;

/// Stands for all codes that IANA gives no name, and for those of EDNS.
const OTHER_CODE: &str = "other";

/// What a name of an address takes at most, with what flows hold of such as have no address any more.
pub const MOST_BYTES_PER_NAME: u64 = 1200;
/// The queries that wait, with names as long as can be.
pub const MOST_BYTES_OF_QUERIES: u64 = 2 * queries::MOST as u64 * 450;
/// What exchanges take until a scan, if they are told of.
pub const MOST_BYTES_OF_EXCHANGES: u64 = exchanges::MOST_BYTES as u64;
/// With each end of a flow that has one.
pub const MOST_BYTES_PER_FLOW_END: u64 = 16;

/// What comes meanwhile is read at once: so the kernel need not wake anybody for each message.
const REST: Duration = Duration::from_millis(200);
/// Where so many came at once, the ring would be full before the rest is over.
const MANY: usize = RING_LEN_MESSAGES / 4;
/// Others may have a use for the names in between.
const MESSAGES_AT_ONCE: usize = 256;
/// The most that can wait.
const RING_LEN_MESSAGES: usize = RING_LEN_BYTES as usize / size_of::<DnsMessage>();

/// Clones share it. When all are dropped, nobody reads messages any more.
#[derive(Clone)]
pub struct Dns(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    hosts_file: Mutex<HostsFile>,
    reader: Mutex<Option<AbortHandle>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let reader = self
            .reader
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = reader.take() {
            reader.abort();
        }
    }
}

struct State {
    /// In tests there are none.
    messages: Option<DnsMessages>,
    learned: Learned,
    told_lost: Lost,
    log: LogLimit,
}

/// What was made of the messages so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Those that were read, in queries and answers. A packet that is seen at two interfaces is read twice.
    pub queries: u64,
    pub answers: u64,
    /// Answers to queries that were seen, by what IANA calls their code.
    pub by_code: BTreeMap<String, u64>,
    /// How long the answers to these took, together.
    pub waited_ns: u64,
    /// Queries that were asked again.
    pub repeated: u64,
    /// Queries without an answer for five seconds at least.
    pub unanswered: u64,
    /// Answers to no query that was seen. Nothing is learned from them.
    pub unasked: u64,
    /// Queries that were followed no longer, since too many waited, or since another one has their number.
    pub not_followed: u64,
    /// Queries that wait.
    pub waiting: u64,
    /// What does not have the format of a message.
    pub malformed: u64,
    /// Messages of which nothing is read, such as updates.
    pub of_another_kind: u64,
    pub lost: Lost,
    /// Names that had to make room before their time was over, or found none.
    pub forgotten_names: u64,
    /// Names of addresses that are kept, and how many can be.
    pub names: u64,
    pub names_capacity: u64,
    /// Exchanges that were not kept, since there were too many.
    pub lost_exchanges: u64,
}

impl From<Stats> for proto::DnsStatus {
    fn from(stats: Stats) -> Self {
        Self {
            queries: stats.queries,
            answers: stats.answers,
            answers_by_code: stats.by_code,
            waited_ns: stats.waited_ns,
            repeated: stats.repeated,
            unanswered: stats.unanswered,
            waiting: stats.waiting,
            forgotten_names: stats.forgotten_names,
            unasked: stats.unasked,
            not_followed: stats.not_followed,
            malformed: stats.malformed,
            of_another_kind: stats.of_another_kind,
            over_rate: stats.lost.over_rate,
            no_room: stats.lost.no_room,
            unreadable: stats.lost.unreadable,
            names: stats.names,
            names_capacity: stats.names_capacity,
            lost_exchanges: stats.lost_exchanges,
        }
    }
}

struct Learned {
    names: Names,
    queries: Queries,
    /// If they are told of.
    exchanges: Option<Exchanges>,
    stats: Stats,
}

impl Dns {
    /// Reads the messages from now on. Keeps the names of so many addresses, and the exchanges if they are to be told of.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn follow(messages: DnsMessages, most_names: u32, tells: bool) -> Result<Self> {
        let ring = messages
            .try_clone()
            .context("duplicate a ring's descriptor")?;
        let dns = Self::with(Some(messages), most_names, tells, netns_inode()?);
        // SAFETY: the descriptor stays open and the same for its life.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        let ring = ring
            .map_err(|error| error.into_parts().1)
            .context("listen for messages of the DNS")?;
        let reader = tokio::spawn(read_all(ring, Arc::downgrade(&dns.0)));
        let mut place = dns.0.reader.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(reader.abort_handle());
        drop(place);
        // Flows of the first scan may have a use for it.
        dns.look_at_hosts();
        Ok(dns)
    }

    fn with(messages: Option<DnsMessages>, most_names: u32, tells: bool, home: u32) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                messages,
                learned: Learned {
                    names: Names::at_most(most_names as usize, home),
                    queries: Queries::default(),
                    exchanges: tells.then(Exchanges::default),
                    stats: Stats::default(),
                },
                told_lost: Lost::default(),
                log: LogLimit::default(),
            }),
            hosts_file: Mutex::default(),
            reader: Mutex::default(),
        }))
    }

    /// Which knows these addresses, by the client that asked for them, and when that was.
    #[cfg(test)]
    pub fn of_these(netns: u32, known: &[(&str, &str, &str, u64)]) -> Self {
        Self::of_these_at_most(DEFAULT_NAMES, netns, known)
    }

    #[cfg(test)]
    pub fn of_these_at_most(most: u32, netns: u32, known: &[(&str, &str, &str, u64)]) -> Self {
        let dns = Self::with(None, most, false, netns);
        dns.learn_these(netns, known);
        dns
    }

    #[cfg(test)]
    pub fn names_in_use(&self) -> usize {
        self.state().learned.names.in_use()
    }

    #[cfg(test)]
    pub fn learn_these(&self, netns: u32, known: &[(&str, &str, &str, u64)]) {
        for (name, client, address, at_ns) in known {
            let address = message::Address {
                address: address.parse().expect("an address"),
                ttl: Duration::from_mins(1),
            };
            let client = client.parse().expect("an address");
            let names = &mut self.state().learned.names;
            let realm = Realm {
                netns,
                ..Realm::default()
            };
            names.learn(name, (realm, client), &[address], *at_ns);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the messages that the programs have handed over until now. Not those that come meanwhile, which may be many.
    pub fn catch_up(&self) {
        for _ in 0..RING_LEN_MESSAGES.div_ceil(MESSAGES_AT_ONCE) {
            if !self.state().read(MESSAGES_AT_ONCE) {
                break;
            }
        }
        self.look_at_hosts();
        self.state().look_around();
    }

    /// A file on a slow disk holds up nobody but the caller.
    fn look_at_hosts(&self) {
        let file = &self.0.hosts_file;
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hosts) = file.if_changed(Path::new(hosts_file::PATH)) {
            self.state().learned.names.set_hosts(hosts);
        }
    }

    /// What the ends of a flow were called when it began: a, b.
    pub fn of(&self, key: &FlowKey, began_ns: u64) -> [Option<EndName>; 2] {
        let [a, b] = addresses(key);
        let realm = Realm::of(key);
        let state = self.state();
        let name = |own, other| state.learned.names.of((realm, own), other, began_ns);
        [name(a, b), name(b, a)]
    }

    /// The exchanges that were complete, or given up, since the last call.
    pub fn take_exchanges(&self) -> Vec<Exchange> {
        let exchanges = &mut self.state().learned.exchanges;
        exchanges.as_mut().map(Exchanges::take).unwrap_or_default()
    }

    /// What is sent of these, in their order.
    pub fn told(&self, ids: BTreeSet<u64>) -> Vec<proto::HostName> {
        self.state().learned.names.told(ids)
    }

    pub fn stats(&self) -> Stats {
        let state = self.state();
        Stats {
            lost: state.told_lost,
            names: state.learned.names.len() as u64,
            names_capacity: state.learned.names.capacity() as u64,
            forgotten_names: state.learned.names.forgotten(),
            waiting: state.learned.queries.len() as u64,
            lost_exchanges: state.learned.exchanges.as_ref().map_or(0, |all| all.lost),
            ..state.learned.stats.clone()
        }
    }
}

/// Waits until there are messages, reads them, and rests.
async fn read_all(ring: AsyncFd<OwnedFd>, shared: Weak<Shared>) {
    loop {
        match ring.readable().await {
            // Before the messages are read: what comes then is heard again.
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => {
                tracing::warn!("messages of the DNS are read at scans only: {error}");
                return;
            }
        }
        let mut times = 0;
        loop {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if !Dns(shared).state().read(MESSAGES_AT_ONCE) {
                break;
            }
            times += 1;
            yield_now().await;
        }
        if times * MESSAGES_AT_ONCE < MANY {
            sleep(REST).await;
        }
    }
}

impl State {
    /// Takes in so many messages at most. Returns whether there may be more.
    fn read(&mut self, most: usize) -> bool {
        let Self {
            messages, learned, ..
        } = self;
        let Some(messages) = messages else {
            return false;
        };
        messages.take(most, |message| learned.note(message)) == most
    }

    fn look_around(&mut self) {
        self.learned.give_up(clock::boot_now_ns());
        let lost = self.messages.as_ref().map(DnsMessages::lost);
        match lost.transpose() {
            Ok(lost) => self.tell_lost(lost.unwrap_or_default()),
            Err(error) => tracing::warn!("{error:#}"),
        }
    }

    fn tell_lost(&mut self, lost: Lost) {
        let Lost {
            no_room, over_rate, ..
        } = self.told_lost;
        self.told_lost = lost;
        if (lost.no_room, lost.over_rate) != (no_room, over_rate) && self.log.event().is_some() {
            tracing::warn!(
                lost.no_room,
                lost.over_rate,
                "messages of the DNS were not read, so flows may have no name: there were more than --dns-rate allows in a second \
                 (over_rate), or than the kernel keeps until they are read (no_room)"
            );
        }
    }
}

impl Learned {
    fn note(&mut self, from: &DnsMessage) {
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
        let code = code(answer.code).unwrap_or_else(|| OTHER_CODE.to_owned());
        *self.stats.by_code.entry(code).or_default() += 1;
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

    fn give_up(&mut self, now_ns: u64) {
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

/// Those of the ends a and b.
fn addresses(key: &FlowKey) -> [IpAddr; 2] {
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
