//! Address translations (NAT): the other form of the flows that the host translates, from the kernel's connection tracking.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use agent_common::translation::Translation;
use anyhow::{Context as _, ensure};
use flows::replica::TranslationCounts;
use kernel::{
    conntrack::{Conntrack, News, Waiter},
    netns::Namespace,
};
use proto::NatStatus;
use sys::log_limit::LogLimit;

use crate::kind::{
    AgentStatus, Check, Kernel, Kind, Layout, LoadSettings, Names, Replica, Result, Scanned,
    Settings, Tables,
};

/// The most translated connections that are kept.
const MOST_CONNECTIONS: usize = 1 << 17;
/// Events that wait for the next scan. If there are more, all connections are listed again.
const MOST_NEWS: usize = 1 << 18;
/// Both forms of a connection, while the table grows.
const BYTES_PER_CONNECTION: u64 = 2 * 3 * 120;
const BYTES_PER_NEWS: u64 = size_of::<Item>() as u64;
/// Both forms of a connection that has ended, for three scans.
const BYTES_PER_ENDED: u64 = 2 * 3 * 52;
const BYTES_PER_TRACKED_FLOW: u64 = 80;
/// The socket's buffer, which the kernel doubles.
const SOCKET_BYTES: u64 = 16 << 20;

/// How long the thread that reads waits before it looks whether it is still needed, or a list is due.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Datagrams that are read without letting others have the lock.
const AT_ONCE: usize = 1024;
/// Datagrams that a scan reads. If there are more, it does not wait for the rest.
const MOST_PER_SCAN: usize = 1 << 16;
/// The times between two lists of all connections, which find what no event told: from the first to the longest. A list takes
/// at most a hundredth of the time.
const FIRST_LIST: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const PAUSE_PER_LIST: u32 = 100;

const WITHOUT: &str = "records lack address translations";

pub struct Nat {
    sources: Vec<Source>,
    missed: u64,
    /// Connections that lists had no room for.
    not_listed: u64,
    log: LogLimit,
}

/// The events of one network namespace.
struct Source {
    netns: u32,
    shared: Arc<Mutex<Incoming>>,
    /// How many events were passed on.
    passed: u64,
    /// Events are missing, and no later list has come.
    is_stale: bool,
}

/// Queued in the order of arrival.
enum Item {
    News(News),
    List {
        connections: Vec<Translation>,
        /// How many events came before the list was begun.
        events: u64,
    },
}

struct Incoming {
    conntrack: Conntrack,
    items: Vec<Item>,
    /// Some events are in no item.
    has_missed: bool,
    /// How many events have come.
    events: u64,
    is_list_wanted: bool,
    /// A list waits, and another one would take more memory.
    has_list: bool,
    beyond: u64,
}

impl Incoming {
    /// Reads up to `most` datagrams. Returns whether the socket is empty.
    fn read(&mut self, most: usize) -> Result<bool> {
        let Self {
            conntrack,
            items,
            has_missed,
            events,
            ..
        } = self;
        let mut is_full = false;
        let is_all = conntrack.read(most, has_missed, &mut |one| {
            if items.len() < MOST_NEWS {
                items.push(Item::News(one));
                *events += 1;
            } else {
                is_full = true;
            }
        });
        *has_missed |= is_full;
        is_all
    }
}

/// Reads all that has come, and lets others have the lock in between.
fn read_all(incoming: &Mutex<Incoming>) -> Result<()> {
    while !lock(incoming).read(AT_ONCE)? {}
    Ok(())
}

fn lock(shared: &Mutex<Incoming>) -> MutexGuard<'_, Incoming> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source {
    fn open(namespace: &Namespace) -> Result<Self> {
        let conntrack = Conntrack::open(namespace)?;
        let waiter = conntrack.waiter()?;
        // After the socket is open, so that no connection is missed.
        let (connections, beyond) = Conntrack::list(namespace, MOST_CONNECTIONS)?;
        let events = 0;
        let list = Item::List {
            connections,
            events,
        };
        let shared = Arc::new(Mutex::new(Incoming {
            conntrack,
            items: vec![list],
            has_missed: false,
            events,
            is_list_wanted: false,
            has_list: true,
            beyond,
        }));
        let reader = Reader {
            namespace: namespace.clone(),
            waiter,
            incoming: Arc::downgrade(&shared),
            log: LogLimit::default(),
        };
        let thread = thread::Builder::new().name("conntrack".to_owned());
        thread
            .spawn(move || reader.run())
            .context("start the thread that reads connections")?;
        Ok(Self {
            netns: namespace.number(),
            shared,
            passed: 0,
            is_stale: false,
        })
    }

    /// Passes on the events since the last scan. Returns whether some were missed, and how many connections a list had no
    /// room for.
    fn drain(&mut self, replica: &mut Replica) -> Result<(bool, u64)> {
        let (items, has_missed, beyond, read) = {
            let mut incoming = lock(&self.shared);
            let read = incoming.read(MOST_PER_SCAN);
            if !matches!(read, Ok(true)) {
                incoming.has_missed = true;
            }
            let has_missed = std::mem::take(&mut incoming.has_missed);
            incoming.is_list_wanted |= has_missed;
            let beyond = std::mem::take(&mut incoming.beyond);
            incoming.has_list = false;
            let items = std::mem::take(&mut incoming.items);
            (items, has_missed, beyond, read)
        };
        for item in &items {
            match item {
                Item::News(news) => {
                    self.passed += 1;
                    let (netns, event) = (self.netns, self.passed);
                    match news {
                        News::Begun(connection) => {
                            replica.note_translation(netns, connection, event);
                        }
                        News::Ended(connection) => {
                            replica.end_translation(netns, connection, event);
                        }
                    }
                }
                Item::List {
                    connections,
                    events,
                } => {
                    replica.list_translations(self.netns, connections, *events);
                    self.is_stale = false;
                }
            }
        }
        // A list in these items may be older than what is missing.
        self.is_stale |= has_missed;
        if self.is_stale {
            replica.note_missed_translations();
        }
        read.map(|_| (has_missed, beyond))
    }
}

/// Reads on a thread of its own: the kernel's buffer has room for some 20,000 events.
struct Reader {
    namespace: Namespace,
    waiter: Waiter,
    incoming: Weak<Mutex<Incoming>>,
    log: LogLimit,
}

impl Reader {
    /// Reads while somebody takes the events.
    fn run(mut self) {
        let mut pause = FIRST_LIST;
        let mut listed = Instant::now();
        loop {
            let waited = self.waiter.wait(BETWEEN_LOOKS);
            let Some(incoming) = self.incoming.upgrade() else {
                return;
            };
            let read = waited.and_then(|()| read_all(&incoming));
            self.warn_of(read);
            {
                let mut incoming = lock(&incoming);
                let is_due = incoming.is_list_wanted || listed.elapsed() >= pause;
                if !is_due || incoming.has_list {
                    continue;
                }
                incoming.is_list_wanted = false;
            }
            let begun = Instant::now();
            let outcome = self.list(&incoming);
            self.warn_of(outcome);
            listed = Instant::now();
            pause = LONGEST_PAUSE
                .min(pause * 2)
                .max((listed - begun) * PAUSE_PER_LIST);
        }
    }

    /// Queues a list of all connections.
    fn list(&self, incoming: &Mutex<Incoming>) -> Result<()> {
        // The kernel stops telling everybody about new connections once the last listener of any namespace leaves
        // (`nfnetlink_unbind`, 6.18). Another listener here makes it go on.
        let listener = Conntrack::open(&self.namespace);
        let events = lock(incoming).events;
        // This may take seconds, and no scan waits for it.
        let (connections, beyond) = Conntrack::list(&self.namespace, MOST_CONNECTIONS)?;
        let mut incoming = lock(incoming);
        incoming.items.push(Item::List {
            connections,
            events,
        });
        incoming.has_list = true;
        incoming.beyond += beyond;
        drop(listener?);
        Ok(())
    }

    fn warn_of(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            if let Some(times) = self.log.event() {
                tracing::warn!(times, "{WITHOUT}: {error:#}");
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }
}

/// Fails if the kernel would tell nothing.
fn ensure_told(namespace: &Namespace) -> Result<()> {
    const EVENTS: &str = "net.netfilter.nf_conntrack_events";
    let value = namespace.enter(|| {
        let path = format!("/proc/sys/{}", EVENTS.replace('.', "/"));
        Ok(fs::read_to_string(path))
    })?;
    // Without the file, the module is not loaded yet, and its default is to tell whoever listens.
    let is_off = value.is_ok_and(|value| value.trim() == "0");
    ensure!(!is_off, "{EVENTS} is 0: set it to 1");
    Ok(())
}

impl Kind for Nat {
    fn start(settings: &Settings, _: &LoadSettings, _: &mut Kernel) -> Result<Self> {
        let open = |namespace: &Namespace| {
            ensure_told(namespace)?;
            Source::open(namespace).map_err(|error| namespace.locate(error))
        };
        let sources = settings.namespaces.iter().map(open);
        Ok(Self {
            sources: sources.collect::<Result<_>>().context(WITHOUT)?,
            missed: 0,
            not_listed: 0,
            log: LogLimit::default(),
        })
    }

    fn most_bytes(settings: &Settings, tables: &Tables) -> u64 {
        let connections = MOST_CONNECTIONS as u64;
        // Two lists may wait.
        let of_namespace = SOCKET_BYTES
            + MOST_NEWS as u64 * BYTES_PER_NEWS
            + 2 * connections * size_of::<Translation>() as u64;
        connections * BYTES_PER_CONNECTION
            + MOST_NEWS as u64 * BYTES_PER_ENDED
            + settings.namespaces.len().max(1) as u64 * of_namespace
            + tables.tracked(BYTES_PER_TRACKED_FLOW)
    }

    fn check(_: LoadSettings, _: &Layout) -> Option<Check> {
        let opened = Namespace::own().and_then(|namespace| {
            ensure_told(&namespace)?;
            Conntrack::open(&namespace)?;
            Conntrack::list(&namespace, 1)
        });
        Some(Check {
            name: "nat",
            outcome: opened.map(|_| "and with --enrich nat".to_owned()),
            remedy: "run without --enrich nat: records then lack address translations",
        })
    }

    fn supply(&self, replica: &mut Replica, _: &mut Names) {
        replica.follow_translations(MOST_CONNECTIONS);
    }

    fn drain(&mut self, _: u32, _: &mut Kernel, replica: &mut Replica) -> Result<()> {
        for source in &mut self.sources {
            match source.drain(replica) {
                Ok((has_missed, beyond)) => {
                    self.missed += u64::from(has_missed);
                    self.not_listed += beyond;
                }
                Err(error) => {
                    self.missed += 1;
                    if let Some(times) = self.log.event() {
                        tracing::warn!(times, "{WITHOUT}: {error:#}");
                    }
                }
            }
        }
        Ok(())
    }

    fn report(&self, scanned: &Scanned<'_>, status: &mut AgentStatus) {
        let TranslationCounts {
            connections,
            not_kept,
            ambiguous,
        } = scanned.replica.translation_counts();
        status.nat = Some(NatStatus {
            connections,
            not_kept: not_kept + self.not_listed,
            missed: self.missed,
            ambiguous_flows: ambiguous,
        });
    }
}
