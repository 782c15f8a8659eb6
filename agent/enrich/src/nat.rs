//! Address translations (NAT): the other form of the flows that the host translates, from the kernel's connection tracking.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use agent_common::translation::Translation;
use anyhow::{Context as _, ensure};
use flows::replica::TranslationCounts;
use kernel::{
    conntrack::{Conntrack, News, Waiter},
    netns::Namespace,
};
use proto::NatStatus;
use sys::background;

use crate::kind::{
    AgentStatus, Check, Kernel, Kind, Layout, LoadSettings, Names, Replica, Result, Scanned,
    Settings, Tables,
};

/// The most translated connections that are kept.
const MOST_CONNECTIONS: usize = 1 << 17;
/// News that wait for the next scan. If there are more, all connections are listed again.
const MOST_NEWS: usize = 1 << 18;
/// Both forms of a connection, while the table grows.
const BYTES_PER_CONNECTION: u64 = 2 * 3 * 120;
const BYTES_PER_NEWS: u64 = size_of::<News>() as u64;
const BYTES_PER_TRACKED_FLOW: u64 = 80;
/// The socket's buffer, which the kernel doubles.
const SOCKET_BYTES: u64 = 16 << 20;

/// How long the thread that reads waits before it looks whether it is still needed.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

const WITHOUT: &str = "records lack address translations";

pub struct Nat {
    sources: Vec<Source>,
    missed: u64,
}

/// The news of one network namespace.
struct Source {
    namespace: Namespace,
    shared: Arc<Mutex<Incoming>>,
    /// The connections at the start, until the first scan.
    listed: Vec<Translation>,
}

struct Incoming {
    conntrack: Conntrack,
    news: Vec<News>,
    has_missed: bool,
}

impl Incoming {
    /// Reads what has come. The kernel's buffer has room for a few seconds at most.
    fn read(&mut self) -> Result<()> {
        let (news, mut is_full) = (&mut self.news, false);
        self.has_missed |= self.conntrack.read(&mut |one| {
            if news.len() < MOST_NEWS {
                news.push(one);
            } else {
                is_full = true;
            }
        })?;
        self.has_missed |= is_full;
        Ok(())
    }
}

fn lock(shared: &Mutex<Incoming>) -> MutexGuard<'_, Incoming> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source {
    fn open(namespace: &Namespace) -> Result<Self> {
        let conntrack = Conntrack::open(namespace)?;
        let waiter = conntrack.waiter()?;
        // After the socket is open, so that no connection is missed.
        let listed = Conntrack::list(namespace, MOST_CONNECTIONS)?;
        let shared = Arc::new(Mutex::new(Incoming {
            conntrack,
            news: Vec::new(),
            has_missed: false,
        }));
        let incoming = Arc::downgrade(&shared);
        background::start("conntrack", move || {
            if let Err(error) = read_on(&waiter, &incoming) {
                tracing::warn!("{WITHOUT} from here on: {error:#}");
            }
        })
        .context("start the thread that reads connections")?;
        Ok(Self {
            namespace: namespace.clone(),
            shared,
            listed,
        })
    }

    /// Passes on the news since the last scan. Returns whether some were missed.
    fn drain(&mut self, replica: &mut Replica) -> Result<bool> {
        let netns = self.namespace.number();
        let (news, has_missed) = {
            let mut incoming = lock(&self.shared);
            incoming.read()?;
            let has_missed = std::mem::take(&mut incoming.has_missed);
            (std::mem::take(&mut incoming.news), has_missed)
        };
        for connection in std::mem::take(&mut self.listed) {
            replica.note_translation(netns, &connection, true);
        }
        if has_missed {
            // What was read before is older than the list.
            let all = Conntrack::list(&self.namespace, MOST_CONNECTIONS)?;
            replica.replace_translations(netns, &all);
            return Ok(true);
        }
        for one in &news {
            match one {
                News::Begun(connection) => replica.note_translation(netns, connection, false),
                News::Ended(connection) => replica.end_translation(netns, connection),
            }
        }
        Ok(false)
    }
}

/// Reads while somebody takes the news.
fn read_on(waiter: &Waiter, incoming: &Weak<Mutex<Incoming>>) -> Result<()> {
    loop {
        waiter.wait(BETWEEN_LOOKS)?;
        let Some(incoming) = incoming.upgrade() else {
            return Ok(());
        };
        lock(&incoming).read()?;
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
        })
    }

    fn most_bytes(_: &Settings, tables: &Tables) -> u64 {
        MOST_CONNECTIONS as u64 * BYTES_PER_CONNECTION
            + MOST_NEWS as u64 * BYTES_PER_NEWS
            + SOCKET_BYTES
            + tables.tracked(BYTES_PER_TRACKED_FLOW)
    }

    fn check(_: LoadSettings, _: &Layout) -> Option<Check> {
        let opened = Namespace::own().and_then(|namespace| {
            ensure_told(&namespace)?;
            Conntrack::open(&namespace)
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
            self.missed += u64::from(source.drain(replica).context(WITHOUT)?);
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
            not_kept,
            missed: self.missed,
            ambiguous_flows: ambiguous,
        });
    }
}
