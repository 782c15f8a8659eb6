//! Identifies the peer of a connection, and tracks whether the connection is idle.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Context,
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tls::identity::{Grant, Identity};
use tokio::time::Instant;
use tonic::Status;

use super::{
    idle::Idle,
    limits::{AdmissionControl, Place, Refusal, Share, SharePlace},
    local_user,
    peer::Peer,
};
use crate::silent::Seat;

/// How long a connection keeps its place until its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it keeps its place without an open request after that.
const IDLE_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a peer may take to read an answer. Lists of flows have a shorter limit.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(90);

/// The caller of a connection. Every request of the connection carries it.
#[derive(Clone)]
pub struct Caller {
    pub peer: Peer,
    /// The name in the client certificate, if there is one. Known after the handshake.
    pub certificate: CertificateName,
    ends: Ends,
    connection: Arc<State>,
}

/// State shared by all requests of a connection.
struct State {
    activity: Mutex<Activity>,
    has_given_way: AtomicBool,
    /// The waker of the connection's task.
    task: AtomicWaker,
}

/// Set once the handshake is done.
pub type CertificateName = Arc<OnceLock<Identity>>;

/// Both ends of a TCP connection, and the local user of the peer, looked up on demand.
#[derive(Clone, Default)]
struct Ends {
    own: Option<SocketAddr>,
    local_user: Arc<OnceLock<Option<u32>>>,
}

struct Activity {
    open: u32,
    /// The connection's place at its listener, until the connection ends or gives way.
    place: Option<Place>,
    /// The connection's place in the share of its credential.
    of_credential: Option<SharePlace>,
    /// The idle connections of its listener, if this one can give way.
    idle: Option<Arc<Idle>>,
    /// The connection's seat among them, while no request is open.
    seat: Option<Seat>,
    has_asked: bool,
    /// When the connection loses its place if no request is open.
    ends_at: Instant,
    /// Deadlines for reading answers, by the answer's number.
    unread: BTreeMap<u64, Instant>,
    /// The number of the next answer.
    number: u64,
}

impl Caller {
    pub fn new(peer: Peer) -> Self {
        Self::silent_until(peer, Instant::now() + FIRST_REQUEST_TIMEOUT)
    }

    /// A caller whose connection loses its place at `ends_at` unless a request arrives.
    pub fn silent_until(peer: Peer, ends_at: Instant) -> Self {
        let activity = Activity {
            open: 0,
            place: None,
            of_credential: None,
            idle: None,
            seat: None,
            has_asked: false,
            ends_at,
            unread: BTreeMap::new(),
            number: 0,
        };
        Self {
            peer,
            certificate: CertificateName::default(),
            ends: Ends::default(),
            connection: Arc::new(State {
                activity: Mutex::new(activity),
                has_given_way: AtomicBool::new(false),
                task: AtomicWaker::new(),
            }),
        }
    }

    /// Sets the address that accepted the connection, and the certificate name that its handshake will find.
    #[must_use]
    pub fn accepted(self, own: Option<SocketAddr>, certificate: CertificateName) -> Self {
        Self {
            certificate,
            ends: Ends {
                own,
                ..Ends::default()
            },
            ..self
        }
    }

    /// The local user that owns the other end of a TCP connection, if that end is on this host.
    pub fn local_user(&self) -> Option<u32> {
        let Peer::Tcp(peer) = &self.peer else {
            return None;
        };
        let own = self.ends.own?;
        let known = self
            .ends
            .local_user
            .get_or_init(|| local_user::lookup(*peer, own));
        *known
    }

    /// Gives the connection its place, which it may lose to another connection while no request is open. Users that run
    /// the agent never lose theirs.
    pub fn hold(&self, place: Place, idle: &Arc<Idle>) {
        let mut activity = self.activity();
        activity.place = Some(place);
        if !self.peer.runs_the_agent() {
            let enter = idle.silent.enter(self.peer.source(), |_| self.clone());
            activity.seat = Some(enter);
            activity.idle = Some(Arc::clone(idle));
        }
    }

    /// Gives up the place for another connection, and counts that. Fails if a request is open.
    pub fn give_way(&self, admission: &AdmissionControl) -> bool {
        let mut activity = self.activity();
        if activity.open > 0 || activity.place.take().is_none() {
            return false;
        }
        drop(activity);
        // Counted before the peer can see the connection end.
        admission.refuse(Refusal::GaveWay, &self.peer);
        self.connection.has_given_way.store(true, Relaxed);
        self.connection.task.wake();
        true
    }

    /// Whether the connection has lost its place. If not, wakes `context` when that happens.
    pub fn has_given_way(&self, context: &Context<'_>) -> bool {
        self.connection.task.register(context.waker());
        self.connection.has_given_way.load(Relaxed)
    }

    /// Frees the connection's places at its end.
    pub fn end(&self) {
        let mut activity = self.activity();
        activity.rise();
        activity.idle = None;
        activity.place = None;
        activity.of_credential = None;
    }

    /// Opens a request, which counts as open until it is dropped.
    pub fn open(&self, admission: &AdmissionControl) -> Result<OpenRequest, Status> {
        let most = admission.limits().max_streams;
        let mut activity = self.activity();
        if activity.open < most {
            activity.open += 1;
            activity.rise();
            activity.has_asked = true;
            return Ok(OpenRequest(self.clone()));
        }
        drop(activity);
        admission.refuse(Refusal::Stream, &self.peer);
        Err(Status::resource_exhausted(format!(
            "{most} requests are open on this connection, and --max-streams allows no more: use \
             another connection"
        )))
    }

    /// A place for an answer, which the peer has to read within [`UNREAD_TIMEOUT`].
    pub async fn answer(&self, admission: &AdmissionControl) -> Result<Unread, Status> {
        let place = admission.answer(&self.peer).await?;
        Ok(self.unread(Some(place), Instant::now() + UNREAD_TIMEOUT))
    }

    /// Takes a place in the share of the first credential shown on this connection, unless the connection has one.
    pub async fn belongs_to(
        &self,
        grant: &Grant,
        admission: &AdmissionControl,
    ) -> Result<(), Status> {
        if self.activity().of_credential.is_none() {
            let place = admission.share(Share::Connections, Some(grant), &self.peer);
            let place = place.await?;
            self.activity().of_credential = place;
        }
        Ok(())
    }

    /// Registers an answer that has to be read by `until`. `place` is freed with it.
    pub fn unread(&self, place: Option<Place>, until: Instant) -> Unread {
        let mut activity = self.activity();
        let number = activity.number;
        activity.number += 1;
        activity.unread.insert(number, until);
        Unread {
            caller: self.clone(),
            number,
            _place: place,
        }
    }

    /// The earliest time at which the connection ends because of an unread answer.
    pub fn unread_until(&self) -> Option<Instant> {
        let activity = self.activity();
        activity.unread.values().min().copied()
    }

    /// When the connection loses its place unless a request arrives; `None` while it is not idle.
    pub fn ends_at(&self) -> Option<Instant> {
        let activity = self.activity();
        (activity.open == 0).then_some(activity.ends_at)
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        // No operation under the lock can fail halfway, so the state is sound even after a panic.
        let activity = self.connection.activity.lock();
        activity.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Activity {
    /// Leaves the idle connections.
    fn rise(&mut self) {
        if let (Some(idle), Some(seat)) = (&self.idle, self.seat.take()) {
            let idle = if self.has_asked {
                &idle.rested
            } else {
                &idle.silent
            };
            drop(idle.leave(seat));
        }
    }
}

pub struct OpenRequest(Caller);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        activity.open -= 1;
        activity.ends_at = Instant::now() + IDLE_TIMEOUT;
        if activity.open == 0
            && let Some(idle) = &activity.idle
        {
            let source = self.0.peer.source();
            activity.seat = Some(idle.rested.enter(source, |_| self.0.clone()));
        }
    }
}

/// An answer that its peer has not read yet. Holds its place until it is dropped.
pub struct Unread {
    caller: Caller,
    number: u64,
    _place: Option<Place>,
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.caller.activity().unread.remove(&self.number);
    }
}

/// The longest time between two checks of a connection.
pub const NEXT_LOOK: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::{
        super::limits::{Limits, Places},
        *,
    };

    #[test]
    fn a_connection_has_as_many_open_requests_as_it_may_and_no_more() {
        let limits = Limits {
            max_streams: 2,
            ..Limits::default()
        };
        let admission = AdmissionControl::new(limits.fixed());
        let caller = Caller::new(Peer::Unknown);
        let _open = [
            caller.open(&admission).unwrap(),
            caller.open(&admission).unwrap(),
        ];
        let refused = caller.open(&admission).err().unwrap();
        assert!(refused.message().contains("2 requests are open"));
        assert_eq!(admission.status().refused_streams, 1);
    }

    #[test]
    fn a_connection_gives_way_unless_something_is_open_and_the_one_that_never_asked_is_first() {
        let admission = AdmissionControl::new(Limits::default().fixed());
        let idle = Arc::<Idle>::default();
        let places = Places::new(3);
        let [asks, rests, is_silent] = [1, 2, 3].map(|host| {
            let caller = Caller::new(Peer::Tcp(([192, 0, 2, host], 80).into()));
            caller.hold(places.take(&caller.peer).unwrap(), &idle);
            caller
        });
        let open = asks.open(&admission).unwrap();
        drop(rests.open(&admission).unwrap());
        let has_given_way = |caller: &Caller| caller.connection.has_given_way.load(Relaxed);
        for (caller, is_next) in [(&is_silent, &rests), (&rests, &asks)] {
            assert!(idle.make_room(&admission));
            assert!(has_given_way(caller) && !has_given_way(is_next));
            let place = places.take(&Peer::Unknown);
            place.expect("it is free").forget();
        }
        assert!(!idle.make_room(&admission));
        drop(open);
        asks.end();
        assert!(!idle.make_room(&admission), "it is gone");
        assert_eq!(admission.status().silent_connections, 2);
    }

    #[test]
    fn a_peer_is_named_by_what_is_known_of_it() {
        let unix = |pid| Peer::Unix { pid, uid: 7 };
        let tcp = Peer::Tcp(([127, 0, 0, 1], 80).into());
        let shown = [unix(Some(3)), unix(None), tcp, Peer::Unknown].map(|peer| peer.to_string());
        assert_eq!(
            shown,
            ["unix pid=3 uid=7", "unix uid=7", "127.0.0.1:80", "unknown"]
        );
    }

    #[tokio::test]
    async fn an_answer_has_to_be_read_in_time_until_it_is() {
        let admission = AdmissionControl::new(Limits::default().fixed());
        let caller = Caller::new(Peer::Unknown);
        assert_eq!(caller.unread_until(), None);
        let first = caller.answer(&admission).await.unwrap();
        let until = caller.unread_until().unwrap();
        let second = caller.answer(&admission).await.unwrap();
        assert_eq!(caller.unread_until(), Some(until));
        drop(first);
        assert!(caller.unread_until().unwrap() >= until);
        drop(second);
        assert_eq!(caller.unread_until(), None);
    }

    #[test]
    fn a_connection_ends_where_nothing_is_open_and_soonest_before_its_first_request() {
        let admission = AdmissionControl::new(Limits::default().fixed());
        let caller = Caller::new(Peer::Unknown);
        let at_first = caller.ends_at().unwrap();
        let open = [
            caller.open(&admission).unwrap(),
            caller.open(&admission).unwrap(),
        ];
        assert_eq!(caller.ends_at(), None);
        let [one, other] = open;
        drop(one);
        assert_eq!(caller.ends_at(), None);
        drop(other);
        let later = caller.ends_at().unwrap();
        assert!(later > at_first + IDLE_TIMEOUT / 2);
    }
}
