//! Host names of addresses, learned from the DNS answers that pass the watched interfaces.
//!
//! The programs hand over each message (UDP, port 53) of a counted flow ([`kernel::dns`]). [`message`] parses it, and
//! [`learned`] takes it in. [`queries`] wait for their answers, since anyone may send an answer that nobody asked for.
//! [`names`] keeps the learned names and the names in the [`hosts_file`] until a flow begins that needs one.
//! [`exchanges`] keeps each query with its answer, if that is configured.

use std::{
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use agent_common::{FlowKey, dns::DnsMessage};
use anyhow::Context as _;
use flows::names::{Directory, EndName, Hosts};
use kernel::{
    dns::{DnsMessages, Lost, RING_LEN_BYTES},
    links::netns_inode,
};
use proto::{DnsStatus, HostName};
use sys::{clock, log_limit::LogLimit};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::{AbortHandle, yield_now},
    time::sleep,
};

use crate::kind::{
    AgentStatus, Check, Kernel, Kind, Layout, LoadSettings, Names, Replica, Result, Scanned,
    Settings, Tables,
};

mod exchanges;
mod hosts_file;
mod learned;
mod message;
mod names;
mod queries;

pub use exchanges::Exchange;
use exchanges::Exchanges;
use hosts_file::HostsFile;
use learned::{Learned, addresses};
use names::Realm;

pub const DEFAULT_NAMES: u32 = 65_536;
pub const DEFAULT_MESSAGES_PER_SECOND: u32 = 10_000;

/// The most memory of one name of an address, including names that only flows still hold.
const MOST_BYTES_PER_NAME: u64 = 1200;
/// The most memory of waiting queries, all with the longest names.
const MOST_BYTES_OF_QUERIES: u64 = 2 * queries::MOST as u64 * 450;
/// The most memory of exchanges between two scans, if they are reported.
const MOST_BYTES_OF_EXCHANGES: u64 = exchanges::MOST_BYTES as u64;
/// Memory per end of a flow that has a name.
const MOST_BYTES_PER_FLOW_END: u64 = 16;

/// The pause between two reads. Messages that arrive meanwhile are read together, so the kernel need not wake the task
/// for each.
const REST: Duration = Duration::from_millis(200);
/// After this many messages at once, the task skips the pause: the ring could be full before its end.
const MANY: usize = RING_LEN_MESSAGES / 4;
/// Messages that are read under one lock. Others may need the names in between.
const MESSAGES_AT_ONCE: usize = 256;
/// The most messages that can wait.
const RING_LEN_MESSAGES: usize = RING_LEN_BYTES as usize / size_of::<DnsMessage>();

/// Clones share the names. When all are dropped, no task reads messages.
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
    /// `None` in tests and benches, where no programs hand over messages.
    messages: Option<DnsMessages>,
    learned: Learned,
    told_lost: Lost,
    log: LogLimit,
}

impl Dns {
    /// Starts a task that reads the messages. Keeps at most `most_names` names, and the exchanges if `tells`.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    fn follow(messages: DnsMessages, most_names: u32, tells: bool) -> Result<Self> {
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
        // Flows of the first scan may need these names.
        dns.look_at_hosts();
        Ok(dns)
    }

    fn with(messages: Option<DnsMessages>, most_names: u32, tells: bool, home: u32) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                messages,
                learned: Learned::new(most_names as usize, home, tells),
                told_lost: Lost::default(),
                log: LogLimit::default(),
            }),
            hosts_file: Mutex::default(),
            reader: Mutex::default(),
        }))
    }

    /// Knows a fixed set of names: (name, client that asked, address, time since boot). Reads no messages.
    pub fn with_known(netns: u32, known: &[(&str, &str, &str, u64)]) -> Self {
        let dns = Self::with(None, DEFAULT_NAMES, false, netns);
        dns.learn_known(netns, known);
        dns
    }

    /// Adds names in the form of [`with_known`](Self::with_known).
    pub fn learn_known(&self, netns: u32, known: &[(&str, &str, &str, u64)]) {
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

    /// Takes in the messages that the programs have handed over so far. Messages that arrive meanwhile wait, as there
    /// may be many.
    fn catch_up(&self) {
        for _ in 0..RING_LEN_MESSAGES.div_ceil(MESSAGES_AT_ONCE) {
            if !self.state().read(MESSAGES_AT_ONCE) {
                break;
            }
        }
        self.look_at_hosts();
        self.state().look_around();
    }

    /// Reads the hosts file without holding the lock on the names, so a slow disk delays only the caller.
    fn look_at_hosts(&self) {
        let file = &self.0.hosts_file;
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hosts) = file.if_changed(Path::new(hosts_file::PATH)) {
            self.state().learned.names.set_hosts(hosts);
        }
    }
}

impl Kind for Dns {
    fn load(settings: &Settings, load: &mut LoadSettings) -> Result<()> {
        load.dns_per_second = settings.dns_rate;
        Ok(())
    }

    fn start(settings: &Settings, _: &LoadSettings, kernel: &mut Kernel) -> Result<Self> {
        let messages = kernel.take_dns().context("take the ring of DNS messages");
        messages
            .and_then(|them| Self::follow(them, settings.dns_names, settings.has_exchanges()))
            .context("addresses have no names")
    }

    fn most_bytes(settings: &Settings, tables: &Tables) -> u64 {
        u64::from(settings.dns_names) * MOST_BYTES_PER_NAME
            + u64::from(RING_LEN_BYTES)
            + MOST_BYTES_OF_QUERIES
            + MOST_BYTES_OF_EXCHANGES
            + tables.tracked(2 * MOST_BYTES_PER_FLOW_END)
    }

    fn check(mut load: LoadSettings, layout: &Layout) -> Option<Check> {
        (load.dns_per_second, load.icmp_errors) = (1, true);
        let outcome = Kernel::verified(&load, layout);
        Some(Check {
            name: "dns",
            outcome: outcome.map(|_| "and with --enrich dns and icmp".to_owned()),
            remedy: "run without --enrich dns and icmp: addresses then have no names, and unreachable destinations seem not to answer",
        })
    }

    fn supply(&self, replica: &mut Replica, names: &mut Names) {
        let hosts: Arc<dyn Hosts> = Arc::new(self.clone());
        replica.name_hosts(Arc::clone(&hosts));
        names.hosts = Some(hosts);
    }

    /// Reads the answers seen before the flip, so that flows that began after an answer get its names.
    fn drain(&mut self, _: u32, _: &mut Kernel, _: &mut Replica) -> Result<()> {
        self.catch_up();
        Ok(())
    }

    fn end_scan(&mut self, _: u64, _: &mut Replica) -> Vec<Exchange> {
        let exchanges = &mut self.state().learned.exchanges;
        exchanges.as_mut().map(Exchanges::take).unwrap_or_default()
    }

    fn report(&self, _: &Scanned<'_>, status: &mut AgentStatus) {
        let state = self.state();
        status.dns = Some(DnsStatus {
            over_rate: state.told_lost.over_rate,
            no_room: state.told_lost.no_room,
            unreadable: state.told_lost.unreadable,
            ..state.learned.stats()
        });
    }
}

impl Hosts for Dns {
    fn ends(&self, key: &FlowKey, began_ns: u64) -> [Option<EndName>; 2] {
        let [a, b] = addresses(key);
        let realm = Realm::of(key);
        let state = self.state();
        let name = |own, other| state.learned.names.lookup((realm, own), other, began_ns);
        [name(a, b), name(b, a)]
    }
}

impl Directory<HostName> for Dns {
    fn lookup(&self, ids: &[u64], each: &mut dyn FnMut(&HostName)) {
        // A batch may name as many hosts as it has records, so one message is reused.
        let mut host = HostName::default();
        self.state().learned.names.each_name(ids, |id, name| {
            host.id = id;
            host.name.clear();
            host.name.push_str(name);
            each(&host);
        });
    }
}

/// Waits until there are messages, reads them, and pauses.
async fn read_all(ring: AsyncFd<OwnedFd>, shared: Weak<Shared>) {
    loop {
        match ring.readable().await {
            // Clears readiness before the messages are read, so messages that arrive later wake the task again.
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => {
                tracing::warn!("DNS messages are read only at scans: {error}");
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
    /// Takes in at most `most` messages. Returns whether there may be more.
    fn read(&mut self, most: usize) -> bool {
        let Self {
            messages, learned, ..
        } = self;
        let Some(messages) = messages else {
            return false;
        };
        let taken = messages.take(most, |message| learned.note(message));
        let taken = taken.inspect_err(|error| tracing::warn!("{error:#}"));
        taken.is_ok_and(|taken| taken == most)
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
                "DNS messages were not read, so flows may lack names: more came than --dns-rate allows per second \
                 (over_rate), or than the kernel can buffer (no_room)"
            );
        }
    }
}
