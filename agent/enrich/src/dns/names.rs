//! Names of addresses, by the client that asked for them.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use agent_common::FlowKey;
use flows::names::{EndName, HostName};
use foldhash::fast::RandomState;
use proto::NameSource;
use sys::clock;

use super::{MOST_BYTES_PER_FLOW_END, message::Address};

/// The most names per address. The names that expire first are dropped.
const MOST_PER_ADDRESS: usize = 16;
/// The shortest time a name is kept. A client uses the answer a moment later, even with a TTL of 0.
const SHORTEST: Duration = Duration::from_secs(10);
/// The longest time a name is kept. Longer TTLs are common mistakes.
const LONGEST: Duration = Duration::from_hours(24);

const _: () = assert!(size_of::<Option<EndName>>() as u64 == MOST_BYTES_PER_FLOW_END);

/// Where an address is unique: a network namespace and a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Realm {
    pub netns: u32,
    pub encapsulation: u8,
    pub tunnel_id: u32,
}

impl Realm {
    pub fn of(key: &FlowKey) -> Self {
        Self {
            netns: key.netns,
            encapsulation: key.encapsulation,
            tunnel_id: key.tunnel_id,
        }
    }
}

type Place = (Realm, IpAddr);
type ByPlace = HashMap<Place, Vec<Known>>;

struct Known {
    client: IpAddr,
    name: Arc<HostName>,
    /// Time since boot.
    since_ns: u64,
    until_ns: u64,
}

/// Names in two halves. When the newer half is full, the older one is dropped, with all names that were not learned
/// again since the newer half began.
pub struct Names {
    half: usize,
    newer: ByPlace,
    older: ByPlace,
    /// How many names the newer half has.
    in_newer: usize,
    in_older: usize,
    of_hosts: HashMap<IpAddr, Arc<HostName>>,
    /// The realm that the hosts file applies to.
    home: Realm,
    issued: Issued,
    /// Names that were dropped before they expired, or that found no room.
    forgotten: u64,
}

impl Names {
    /// Keeps at most `most` names. The hosts file applies to the network namespace `home`.
    pub fn at_most(most: usize, home: u32) -> Self {
        Self {
            half: most.div_ceil(2).max(1),
            newer: HashMap::new(),
            older: HashMap::new(),
            in_newer: 0,
            in_older: 0,
            of_hosts: HashMap::new(),
            home: Realm {
                netns: home,
                ..Realm::default()
            },
            issued: Issued::at_most(2 * most),
            forgotten: 0,
        }
    }

    /// How many learned names are kept; the hosts file does not count.
    pub fn len(&self) -> usize {
        self.in_newer + self.in_older
    }

    pub fn capacity(&self) -> usize {
        2 * self.half
    }

    /// How many names were dropped before they expired, or found no room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Learns the addresses of a name from an answer to `client`.
    pub fn learn(
        &mut self,
        text: &str,
        (realm, client): Place,
        addresses: &[Address],
        now_ns: u64,
    ) {
        let mut name = None;
        for one in addresses {
            let place = (realm, one.address);
            let until_ns = now_ns.saturating_add(clock::nanos(one.ttl.clamp(SHORTEST, LONGEST)));
            let mut known = self.take(place);
            let last = known.iter_mut().rfind(|known| known.client == client);
            match last {
                // The name has been valid without a break.
                Some(last) if *last.name.text == *text && last.until_ns >= now_ns => {
                    last.until_ns = last.until_ns.max(until_ns);
                    name.get_or_insert_with(|| Arc::clone(&last.name));
                }
                _ => {
                    let same = known.iter().find(|known| *known.name.text == *text);
                    let same = name.clone().or_else(|| Some(Arc::clone(&same?.name)));
                    let of_hosts = self.of_hosts.len();
                    if let Some(issued) = same.or_else(|| self.issued.issue(text, of_hosts)) {
                        name = Some(Arc::clone(&issued));
                        let known_one = Known {
                            client,
                            name: issued,
                            since_ns: now_ns,
                            until_ns,
                        };
                        self.forgotten += u64::from(push(&mut known, known_one));
                    } else {
                        self.forgotten += 1;
                    }
                }
            }
            if !known.is_empty() {
                self.put(place, known, now_ns);
            }
        }
    }

    fn take(&mut self, place: Place) -> Vec<Known> {
        if let Some(known) = self.newer.remove(&place) {
            self.in_newer -= known.len();
            return known;
        }
        let known = self.older.remove(&place).unwrap_or_default();
        self.in_older -= known.len();
        known
    }

    fn put(&mut self, place: Place, known: Vec<Known>, now_ns: u64) {
        if self.in_newer + known.len() > self.half {
            let newer = std::mem::take(&mut self.newer);
            let gone = std::mem::replace(&mut self.older, newer);
            self.in_older = std::mem::take(&mut self.in_newer);
            let held = gone
                .values()
                .flatten()
                .filter(|known| known.until_ns >= now_ns);
            self.forgotten += held.count() as u64;
        }
        self.in_newer += known.len();
        self.newer.insert(place, known);
    }

    /// Replaces the names of the hosts file.
    pub fn set_hosts(&mut self, hosts: HashMap<IpAddr, Box<str>>) {
        let mut before = std::mem::take(&mut self.of_hosts);
        for (address, text) in hosts {
            let same = before.remove(&address).filter(|name| name.text == text);
            let name = same.unwrap_or_else(|| self.issued.issue_beyond(&text));
            self.of_hosts.insert(address, name);
        }
    }

    /// The name of `address` at the time a flow between it and `client` began: the one `client` learned, or else one
    /// of the hosts file or of another client.
    pub fn lookup(
        &self,
        (realm, address): (Realm, IpAddr),
        client: IpAddr,
        at_ns: u64,
    ) -> Option<EndName> {
        let place = (realm, address);
        let known = self.newer.get(&place).or_else(|| self.older.get(&place));
        let last = |of_client: bool| {
            let held = |known: &&Known| known.since_ns <= at_ns && at_ns <= known.until_ns;
            let known = known.into_iter().flatten().filter(held);
            let known = known.filter(|known| (known.client == client) == of_client);
            known.max_by_key(|known| known.since_ns)
        };
        if let Some(known) = last(true) {
            return Some(EndName::new(&known.name, NameSource::Dns));
        }
        if realm == self.home
            && let Some(name) = self.of_hosts.get(&address)
        {
            return Some(EndName::new(name, NameSource::HostsFile));
        }
        last(false).map(|known| EndName::new(&known.name, NameSource::DnsOfAnother))
    }

    /// Calls `each` with the names of these ids, in the same order. All of them must be in use.
    pub fn each_name(&self, ids: &[u64], mut each: impl FnMut(u64, &str)) {
        for &id in ids {
            let name = self.issued.by_id.get(&id).and_then(Weak::upgrade);
            debug_assert!(
                name.is_some(),
                "a record has name {id}, which is not in use"
            );
            if let Some(name) = name {
                each(id, &name.text);
            }
        }
    }
}

/// Adds a name. If the address has too many, drops the one that expires first. Returns whether that one was still
/// valid.
fn push(known: &mut Vec<Known>, one: Known) -> bool {
    if known.is_empty() {
        // Most addresses have one name.
        known.reserve_exact(1);
    }
    let now_ns = one.since_ns;
    let mut has_made_room = false;
    // A flow of this scan window may have begun while the previous entry of this name was valid, but hardly while an
    // older one was.
    let is_before =
        |before: &Known| before.client == one.client && *before.name.text == *one.name.text;
    let mut before = known
        .iter()
        .enumerate()
        .filter(|(_, known)| is_before(known));
    if let (Some((first, _)), Some(_)) = (before.next(), before.next()) {
        known.remove(first);
    }
    if known.len() == MOST_PER_ADDRESS {
        let all = known.iter().enumerate();
        if let Some((first, until_ns)) = all
            .map(|(at, known)| (at, known.until_ns))
            .min_by_key(|&(_, until_ns)| until_ns)
        {
            known.remove(first);
            has_made_room = until_ns >= now_ns;
        }
    }
    known.push(one);
    has_made_room
}

/// All names in use: held by an address or by a flow.
struct Issued {
    most: usize,
    last_id: u64,
    in_use: Arc<AtomicUsize>,
    /// Also holds some names that are out of use.
    by_id: HashMap<u64, Weak<HostName>, RandomState>,
}

impl Issued {
    const FEW: usize = 1024;

    fn at_most(most: usize) -> Self {
        Self {
            most,
            last_id: 0,
            in_use: Arc::default(),
            by_id: HashMap::default(),
        }
    }

    /// Returns `None` if too many names are in use. `others` names of the hosts file do not count.
    fn issue(&mut self, text: &str, others: usize) -> Option<Arc<HostName>> {
        let in_use = self.in_use.load(Relaxed);
        (in_use < self.most.saturating_add(others)).then(|| self.issue_beyond(text))
    }

    fn issue_beyond(&mut self, text: &str) -> Arc<HostName> {
        let in_use = self.in_use.load(Relaxed);
        if self.by_id.len() > 2 * in_use + Self::FEW {
            self.by_id.retain(|_, name| name.strong_count() != 0);
        }
        self.last_id += 1;
        let name = Arc::new(HostName::new(self.last_id, text, &self.in_use));
        self.by_id.insert(name.id, Arc::downgrade(&name));
        name
    }
}

#[cfg(test)]
mod tests;
