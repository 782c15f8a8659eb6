//! Limits the number of connections, consumers and unread answers, and counts refusals. Some places are reserved for
//! users that run the agent.

use std::{
    fmt::Display,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use proto::ServerStatus;
use sys::log_limit::LogLimit;
use tls::identity::{Grant, Identity, Role};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep},
};
use tonic::Status;
use tracing::warn;

use super::{farewell, peer::Peer};
use crate::counted::{Counted, CountedPlace};

pub const DEFAULT_MAX_CONSUMERS: u32 = 64;
pub const DEFAULT_MAX_CONNECTIONS: u32 = 128;
pub const DEFAULT_MAX_STREAMS: u32 = 32;

/// Reserved places, beyond those in the settings.
const PLACES_FOR_ROOT: usize = 4;

/// The most unread answers.
const UNREAD_ANSWERS: u32 = 16;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often to retry a place of a share.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Resources that each credential has a share of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// Connections of a listener. Several readers may use the same credential.
    Connections,
    /// Single-message requests, and their unread answers.
    Answers,
    /// Answers about the health of this process, which anyone may ask for.
    HealthAnswers,
    /// Streams, such as `Observe`.
    Streams,
}

impl Share {
    fn most(self, grant: &Grant) -> u32 {
        let reads = grant.roles.has(Role::Observe) || grant.roles.has(Role::Status);
        match self {
            Self::Connections if reads => 64,
            Self::Connections | Self::Streams => 16,
            Self::HealthAnswers => 4,
            Self::Answers => 2,
        }
    }

    fn refusal(self) -> Refusal {
        match self {
            Self::Connections => Refusal::Connection,
            Self::Answers | Self::HealthAnswers => Refusal::Answer,
            Self::Streams => Refusal::Consumer,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Answers | Self::HealthAnswers => "unread answers",
            Self::Streams => "open streams",
        }
    }
}

/// A place in a credential's share.
pub type SharePlace = CountedPlace<(Share, Identity)>;

/// The limits in the settings.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// `Observe` streams over all connections.
    pub max_consumers: u32,
    /// Connections per listener.
    pub max_connections: u32,
    /// Open requests per connection.
    pub max_streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_consumers: DEFAULT_MAX_CONSUMERS,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            max_streams: DEFAULT_MAX_STREAMS,
        }
    }
}

impl Limits {
    /// A receiver for limits that never change.
    pub fn fixed(self) -> watch::Receiver<Self> {
        watch::channel(self).1
    }

    /// How many files this many listeners may open, including those for root and for connections that are being turned
    /// away.
    pub fn files(&self, listeners: usize) -> usize {
        listeners * (self.max_connections as usize + PLACES_FOR_ROOT + farewell::MOST)
    }
}

/// Places for everyone, and a few more for users that run the agent. Dropping a place frees it.
pub struct Places {
    shared: Arc<Semaphore>,
    for_root: Arc<Semaphore>,
    size: Mutex<Size>,
}

struct Size {
    count: usize,
    /// How many places to remove when they are returned, since `count` became smaller.
    surplus: usize,
}

pub type Place = OwnedSemaphorePermit;

impl Places {
    pub fn new(count: u32) -> Self {
        Self {
            shared: Arc::new(Semaphore::new(count as usize)),
            for_root: Arc::new(Semaphore::new(PLACES_FOR_ROOT)),
            size: Mutex::new(Size {
                count: count as usize,
                surplus: 0,
            }),
        }
    }

    /// Takes one of the `count` public places; root may take a reserved one instead. If `count` has become smaller,
    /// places in use stay in use.
    pub fn take_of(&self, count: u32, peer: &Peer) -> Option<Place> {
        self.resize(count as usize);
        self.take(peer)
    }

    fn resize(&self, count: usize) {
        let mut size = self.size();
        if count < size.count {
            size.surplus += size.count - count;
        } else {
            let more = count - size.count;
            let kept = more.min(size.surplus);
            size.surplus -= kept;
            self.shared.add_permits(more - kept);
        }
        size.count = count;
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        // No operation under the lock can fail halfway, so the state is sound even after a panic.
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_shared(&self) -> Option<Place> {
        let mut size = self.size();
        loop {
            let place = Arc::clone(&self.shared).try_acquire_owned().ok()?;
            if size.surplus == 0 {
                return Some(place);
            }
            place.forget();
            size.surplus -= 1;
        }
    }

    pub fn take(&self, peer: &Peer) -> Option<Place> {
        self.take_shared().or_else(|| {
            let for_root = peer
                .runs_the_agent()
                .then(|| Arc::clone(&self.for_root).try_acquire_owned());
            for_root?.ok()
        })
    }
}

/// Refused requests, and why.
#[derive(Debug, Clone, Copy)]
pub enum Refusal {
    Connection,
    Silent,
    Stream,
    Consumer,
    Answer,
    Caller,
    Handshake,
    Token,
    Role,
    Identity,
    Agent,
    Unread,
    Copies,
    GaveWay,
}

impl Refusal {
    const COUNT: usize = 14;

    fn text(self) -> &'static str {
        match self {
            Self::Connection => {
                "a connection was refused: the listener has as many as --max-connections allows"
            }
            Self::Silent => "a connection was closed: no request came on it for too long",
            Self::Stream => {
                "a request was refused: its connection has as many open as --max-streams allows"
            }
            Self::Consumer => "a consumer was refused: there are as many as --max-consumers allows",
            Self::Answer => "a request was refused: too many answers wait to be read",
            Self::Caller => "a caller was refused who may not see or change the filter rules",
            Self::Handshake => "a TLS handshake failed",
            Self::Token => "a call was refused: it showed no credential of this collector",
            Self::Role => "a call was refused: its caller does not have the role for it",
            Self::Identity => "an agent was refused: it sent in the name of another one",
            Self::Agent => {
                "an agent's call was refused: the collector, its address or its credential has as many as it may"
            }
            Self::Unread => "a connection was closed: an answer was not read for too long",
            Self::Copies => {
                "a consumer was refused: others hold the memory for the batches of consumers with filters"
            }
            Self::GaveWay => {
                "a connection without an open request was closed: another one needed its place, since the listener has as many \
                 as --max-connections allows"
            }
        }
    }
}

/// The state shared by all listeners.
pub struct AdmissionControl {
    limits: watch::Receiver<Limits>,
    consumers: Places,
    answers: Places,
    of_credentials: Counted<(Share, Identity)>,
    refusals: [Refused; Refusal::COUNT],
    accept_log: Mutex<LogLimit>,
}

#[derive(Default)]
struct Refused {
    count: AtomicU64,
    log: Mutex<LogLimit>,
}

fn event(log: &Mutex<LogLimit>) -> Option<u64> {
    log.lock().unwrap_or_else(PoisonError::into_inner).event()
}

impl AdmissionControl {
    pub fn new(limits: watch::Receiver<Limits>) -> Self {
        let max_consumers = limits.borrow().max_consumers;
        Self {
            limits,
            consumers: Places::new(max_consumers),
            answers: Places::new(UNREAD_ANSWERS),
            of_credentials: Counted::default(),
            refusals: Default::default(),
            accept_log: Mutex::default(),
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        *self.limits.borrow()
    }

    /// Counts a refusal. Logs at a limited rate.
    pub fn refuse(&self, refusal: Refusal, peer: &Peer) {
        let refused = &self.refusals[refusal as usize];
        refused.count.fetch_add(1, Relaxed);
        if let Some(times) = event(&refused.log) {
            warn!(%peer, times, "{}", refusal.text());
        }
    }

    pub fn handshake_failed(&self, peer: &Peer, error: &dyn Display) {
        self.refuse_because(Refusal::Handshake, peer, error);
    }

    /// Counts a refusal. Logs it with its reason at a limited rate.
    pub fn refuse_because(&self, refusal: Refusal, peer: &Peer, error: &dyn Display) {
        let refused = &self.refusals[refusal as usize];
        refused.count.fetch_add(1, Relaxed);
        if let Some(times) = event(&refused.log) {
            warn!(%peer, times, %error, "{}", refusal.text());
        }
    }

    /// Logs that accepting a connection failed, for example because the process is out of file descriptors.
    pub fn cannot_accept(&self, error: &io::Error) {
        if let Some(times) = event(&self.accept_log) {
            warn!(%error, times, "cannot accept a connection");
        }
    }

    pub fn consumer(&self, peer: &Peer) -> Result<Place, Status> {
        let most = self.limits().max_consumers;
        self.consumers.take_of(most, peer).ok_or_else(|| {
            self.refuse(Refusal::Consumer, peer);
            Status::resource_exhausted(format!(
                "{most} consumers observe this agent, and --max-consumers allows no more"
            ))
        })
    }

    /// Refuses a consumer because there is no memory for its copies.
    pub fn no_copies(&self, peer: &Peer) -> Status {
        self.refuse(Refusal::Copies, peer);
        Status::resource_exhausted(
            "other consumers hold all the memory for the batches of consumers with filters: observe without a filter, \
             or later",
        )
    }

    /// A place for an answer, held until the peer has read it. Waits a little, since peers that read free places
    /// quickly.
    pub async fn answer(&self, peer: &Peer) -> Result<Place, Status> {
        let shared = Arc::clone(&self.answers.shared).acquire_owned();
        if let Ok(Ok(place)) = tokio::time::timeout(ANSWER_TIMEOUT, shared).await {
            return Ok(place);
        }
        self.answers.take(peer).ok_or_else(|| {
            self.refuse(Refusal::Answer, peer);
            Status::resource_exhausted(format!(
                "{UNREAD_ANSWERS} answers of this agent have not been read yet: ask again later"
            ))
        })
    }

    /// A place in the share of the caller's credential. Waits a little. Users that run this process, and callers
    /// without a credential, have no share.
    pub async fn share(
        &self,
        share: Share,
        grant: Option<&Grant>,
        peer: &Peer,
    ) -> Result<Option<SharePlace>, Status> {
        let Some(grant) = grant.filter(|grant| grant.has_share() && !peer.runs_the_agent()) else {
            return Ok(None);
        };
        let most = share.most(grant);
        let give_up_at = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let holder = (share, grant.identity.clone());
            if let Some(place) = self.of_credentials.place(holder, most) {
                return Ok(Some(place));
            }
            if Instant::now() >= give_up_at {
                break;
            }
            sleep(LOOK_AGAIN).await;
        }
        let refused = format!(
            "{} has {most} {}, and may have no more",
            grant.identity,
            share.name()
        );
        self.refuse_because(share.refusal(), peer, &refused);
        Err(Status::resource_exhausted(refused))
    }

    pub fn status(&self) -> ServerStatus {
        let limits = self.limits();
        let count = |refusal: Refusal| self.refusals[refusal as usize].count.load(Relaxed);
        ServerStatus {
            max_consumers: limits.max_consumers,
            max_connections: limits.max_connections,
            max_streams: limits.max_streams,
            refused_connections: count(Refusal::Connection),
            silent_connections: count(Refusal::Silent) + count(Refusal::GaveWay),
            refused_streams: count(Refusal::Stream),
            refused_consumers: count(Refusal::Consumer) + count(Refusal::Copies),
            refused_answers: count(Refusal::Answer),
            refused_callers: count(Refusal::Caller)
                + count(Refusal::Role)
                + count(Refusal::Identity),
            refused_handshakes: count(Refusal::Handshake),
            refused_tokens: count(Refusal::Token),
            refused_agents: count(Refusal::Agent),
            unread_connections: count(Refusal::Unread),
            ..ServerStatus::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use lab::log::logged;

    use super::*;

    const LIMITS: Limits = Limits {
        max_consumers: 1,
        max_connections: 5,
        max_streams: 7,
    };

    #[test]
    fn listeners_open_a_file_for_each_connection_and_for_those_beyond() {
        assert_eq!(LIMITS.files(3), 3 * (5 + PLACES_FOR_ROOT + farewell::MOST));
    }

    #[test]
    fn a_place_is_held_until_it_is_dropped_and_some_are_kept_for_root() {
        let root = Peer::Unix { pid: None, uid: 0 };
        let places = Places::new(1);
        let place = places.take(&Peer::Unknown).unwrap();
        assert!(places.take(&Peer::Unknown).is_none());
        let kept: Vec<Place> = std::iter::from_fn(|| places.take(&root)).collect();
        assert_eq!(kept.len(), PLACES_FOR_ROOT);
        drop(place);
        assert!(places.take(&Peer::Unknown).is_some());
    }

    #[test]
    fn of_less_places_those_that_are_held_stay_and_go_when_they_are_given_back() {
        let places = Places::new(3);
        let take = |count| places.take_of(count, &Peer::Unknown);
        let (first, second) = (take(3).unwrap(), take(3).unwrap());
        assert!(take(1).is_none());
        drop(first);
        assert!(take(1).is_none(), "the second one has the only place");
        drop(second);
        let only = take(1).unwrap();
        assert!(take(1).is_none());
        let more = [take(3).unwrap(), take(3).unwrap()];
        assert!(take(3).is_none());
        drop((only, more));
        let all: Vec<Place> = std::iter::from_fn(|| take(3)).collect();
        assert_eq!(all.len(), 3);
        // The count grows again before the surplus places are returned.
        assert!(take(1).is_none());
        assert!(take(3).is_none());
        drop(all);
        let all: Vec<Place> = std::iter::from_fn(|| take(3)).collect();
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn the_status_has_the_settings_and_each_refusal_in_its_place() {
        let admission = AdmissionControl::new(LIMITS.fixed());
        let refusals = [
            Refusal::Connection,
            Refusal::Silent,
            Refusal::Stream,
            Refusal::Consumer,
            Refusal::Answer,
            Refusal::Caller,
            Refusal::Handshake,
            Refusal::Token,
            Refusal::Agent,
            Refusal::Unread,
            Refusal::Copies,
            Refusal::Role,
            Refusal::Identity,
            Refusal::GaveWay,
        ];
        for (refusal, times) in refusals.into_iter().zip(1..) {
            for _ in 0..times {
                admission.refuse(refusal, &Peer::Unknown);
            }
        }
        let expected = ServerStatus {
            max_consumers: 1,
            max_connections: 5,
            max_streams: 7,
            refused_connections: 1,
            // Some for too long, some because others needed their places.
            silent_connections: 2 + 14,
            refused_streams: 3,
            // Some for lack of places, some for lack of memory for copies.
            refused_consumers: 4 + 11,
            refused_answers: 5,
            refused_callers: 6 + 12 + 13,
            refused_handshakes: 7,
            refused_tokens: 8,
            refused_agents: 9,
            unread_connections: 10,
            ..ServerStatus::default()
        };
        assert_eq!(admission.status(), expected);
        let _place = admission.consumer(&Peer::Unknown).unwrap();
        let refused = admission.consumer(&Peer::Unknown).unwrap_err();
        assert!(refused.message().starts_with("1 consumers observe"));
        assert_eq!(admission.status().refused_consumers, 16);
    }

    #[test]
    fn the_log_says_what_was_refused_and_which_option_allows_no_more() {
        let admission = AdmissionControl::new(LIMITS.fixed());
        for (refusal, words) in [
            (Refusal::Connection, "--max-connections"),
            (Refusal::Silent, "no request came"),
            (Refusal::Stream, "--max-streams"),
            (Refusal::Consumer, "--max-consumers"),
            (Refusal::Answer, "too many answers"),
            (Refusal::Caller, "the filter rules"),
            (Refusal::Token, "no credential of this collector"),
            (Refusal::Role, "the role for it"),
            (Refusal::Identity, "in the name of another"),
            (Refusal::Agent, "as many as it may"),
            (Refusal::Copies, "consumers with filters"),
            (Refusal::GaveWay, "another one needed its place"),
        ] {
            let log = logged(|| admission.refuse(refusal, &Peer::Unknown));
            assert!(log.contains(words) && log.contains("peer=unknown"), "{log}");
        }
        let log = logged(|| admission.handshake_failed(&Peer::Unknown, &"no certificate"));
        let line = "a TLS handshake failed peer=unknown times=1 error=no certificate";
        assert!(log.contains(line), "{log}");
        let error = io::Error::other("no file left");
        let log = logged(|| admission.cannot_accept(&error));
        let line = "cannot accept a connection error=no file left times=1";
        assert!(log.contains(line), "{log}");
    }

    #[test]
    fn of_many_events_the_first_is_told() {
        let log = Mutex::default();
        assert_eq!([event(&log), event(&log)], [Some(1), None]);
    }
}
