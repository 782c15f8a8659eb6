//! What one sender may use of the collector at a time: open calls, memory for batches on their way in and on their way to the
//! stores, a turn to decode, and records a second.
//!
//! A sender is a credential. Without one, it is a user of this host or an address; all of an IPv6 /64 are one address. Each sender
//! waits for its own share first and then queues for the memory that all share, so a sender that uses up its share delays nobody
//! but itself.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::rate::Debt;
use crate::{
    identity::{Grant, Identity},
    source::Source,
};

/// Batches that are still being received, in KiB: of all senders, and of one.
const RECEIVED_KIB: Shared = Shared {
    all: 96 << 10,
    each: 8 << 10,
};
/// Batches that wait for the writer, in KiB as they are held: of all senders, and of one. A single batch may be larger than the
/// share of one sender.
const QUEUED_KIB: Shared = Shared {
    all: 64 << 10,
    each: 8 << 10,
};
/// Batches that are decoded at a time, which takes many times their size: of all senders, and of one.
const DECODED: Shared = Shared { all: 2, each: 1 };

/// Open calls of one credential. An agent has one, and another while it reconnects. A relay brings the batches of many hosts. Without
/// a credential there may be many hosts behind an address, which has its own limit.
const MOST_CALLS: u32 = 16;

/// Senders beyond this are forgotten unless they are in use.
const MOST_IDLE: usize = 1024;

#[derive(Clone, Copy)]
struct Shared {
    all: u32,
    each: u32,
}

/// Everyone who sends.
pub(super) struct Senders {
    known: Mutex<Known>,
    receiving: Pool,
    queued: Pool,
    decoding: Pool,
}

struct Known {
    senders: HashMap<Identity, Arc<Sender>>,
    /// Forget idle ones at this many.
    sweep_at: usize,
}

/// What all senders share.
struct Pool {
    size: Shared,
    units: Arc<Semaphore>,
}

/// One who sends.
pub(super) struct Sender {
    calls: Arc<Semaphore>,
    /// How many calls it may have open.
    pub most_calls: u32,
    receiving: Arc<Semaphore>,
    queued: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
    debt: Mutex<Debt>,
}

/// Part of a pool, until this is dropped.
pub(super) struct Held {
    /// It keeps the sender from being forgotten, and starting over with a whole share.
    _sender: Arc<Sender>,
    _of_sender: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Senders {
    fn default() -> Self {
        Self {
            known: Mutex::new(Known {
                senders: HashMap::new(),
                sweep_at: MOST_IDLE,
            }),
            receiving: Pool::new(RECEIVED_KIB),
            queued: Pool::new(QUEUED_KIB),
            decoding: Pool::new(DECODED),
        }
    }
}

impl Senders {
    /// The sender behind a caller.
    pub(super) fn sender(&self, caller: &Grant) -> Arc<Sender> {
        let most_calls = match &caller.identity {
            Identity::Named(_) if !caller.is_relay() => MOST_CALLS,
            _ => u32::MAX,
        };
        let mut known = self.known();
        if known.senders.len() >= known.sweep_at {
            known
                .senders
                .retain(|_, sender| Arc::strong_count(sender) > 1 || sender.owes());
            known.sweep_at = (2 * known.senders.len()).max(MOST_IDLE);
        }
        let sender = known.senders.entry(whole_host(&caller.identity));
        Arc::clone(sender.or_insert_with(|| Arc::new(Sender::new(most_calls))))
    }

    /// Waits for memory to receive a message of this many bytes.
    pub(super) async fn receive(&self, sender: &Arc<Sender>, bytes: usize) -> Held {
        let pool = &self.receiving;
        pool.hold(sender, &sender.receiving, kib(bytes)).await
    }

    /// Waits for memory to queue this many bytes.
    pub(super) async fn queue(&self, sender: &Arc<Sender>, bytes: usize) -> Held {
        let pool = &self.queued;
        pool.hold(sender, &sender.queued, kib(bytes)).await
    }

    /// Waits for a turn to decode a batch.
    pub(super) async fn decode(&self, sender: &Arc<Sender>) -> Held {
        self.decoding.hold(sender, &sender.decoding, 1).await
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing under the lock can fail halfway.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn new(size: Shared) -> Self {
        Self {
            size,
            units: Arc::new(Semaphore::new(size.all as usize)),
        }
    }

    /// Both semaphores serve in order of arrival.
    async fn hold(&self, sender: &Arc<Sender>, own: &Arc<Semaphore>, units: u32) -> Held {
        let Shared { all, each } = self.size;
        let never_closed = "these semaphores are never closed";
        let of_sender = Arc::clone(own).acquire_many_owned(units.min(each));
        let of_sender = of_sender.await.expect(never_closed);
        let of_all = Arc::clone(&self.units).acquire_many_owned(units.min(all));
        Held {
            _sender: Arc::clone(sender),
            _of_sender: of_sender,
            _of_all: of_all.await.expect(never_closed),
        }
    }
}

impl Sender {
    fn new(most_calls: u32) -> Self {
        let units = |count: u32| Arc::new(Semaphore::new(count as usize));
        Self {
            calls: units(most_calls),
            most_calls,
            receiving: units(RECEIVED_KIB.each),
            queued: units(QUEUED_KIB.each),
            decoding: units(DECODED.each),
            debt: Mutex::default(),
        }
    }

    /// A place for a call, if it may have another one.
    pub(super) fn call(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// Waits until it has paid for the records it has sent, whichever call brought them.
    pub(super) async fn paid(&self) {
        loop {
            let Some(until) = self.debt().owes_until(Instant::now()) else {
                return;
            };
            sleep_until(until).await;
        }
    }

    /// Charges it for a batch.
    pub(super) fn charge(&self, records: u64, records_per_second: u32) {
        self.debt().add(records, records_per_second, Instant::now());
    }

    /// Whether its next batch has to wait.
    pub(super) fn owes(&self) -> bool {
        self.debt().owes_until(Instant::now()).is_some()
    }

    fn debt(&self) -> MutexGuard<'_, Debt> {
        // Nothing under the lock can fail halfway.
        self.debt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A host may use every address of its IPv6 network.
fn whole_host(identity: &Identity) -> Identity {
    let Identity::Address(address) = identity else {
        return identity.clone();
    };
    match Source::of_ip(*address) {
        Source::Ip(address) => Identity::Address(address),
        Source::User(_) | Source::Unknown => Identity::Address(IpAddr::from([0; 4])),
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).map_or(u32::MAX, |kib| kib.max(1))
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use futures_util::FutureExt as _;

    use super::*;
    use crate::identity::Roles;

    const MIB: usize = 1 << 20;

    fn grant(name: &str) -> Grant {
        let identity = Identity::read(name).unwrap();
        let roles = Roles::read("send").unwrap();
        Grant { identity, roles }
    }

    fn named(senders: &Senders, name: &str) -> Arc<Sender> {
        senders.sender(&grant(name))
    }

    #[tokio::test]
    async fn a_sender_with_its_whole_share_waits_and_others_do_not() {
        let senders = Senders::default();
        let [one, other] = ["one", "other"].map(|name| named(&senders, name));
        let held = [
            senders.receive(&one, 4 * MIB).await,
            senders.receive(&one, 4 * MIB).await,
        ];
        let queued = senders.queue(&one, 8 * MIB).await;
        let decoded = senders.decode(&one).await;
        let mut waits = [
            senders.receive(&one, 1).boxed(),
            senders.queue(&one, 1).boxed(),
            senders.decode(&one).boxed(),
        ];
        for wait in &mut waits {
            assert!(wait.now_or_never().is_none());
        }
        // The same credential on another call is the same sender.
        assert!(
            senders
                .receive(&named(&senders, "one"), 1)
                .now_or_never()
                .is_none()
        );
        assert!(senders.receive(&other, 8 * MIB).now_or_never().is_some());
        assert!(senders.queue(&other, 8 * MIB).now_or_never().is_some());
        assert!(senders.decode(&other).now_or_never().is_some());
        drop((held, queued, decoded));
        for wait in waits {
            wait.await;
        }
    }

    #[tokio::test]
    async fn the_pool_is_shared_in_order_of_arrival_and_a_batch_may_be_larger_than_a_share() {
        let senders = Senders::default();
        let names: Vec<_> = (0..8).map(|number| format!("h{number}")).collect();
        let mut held = Vec::new();
        for name in &names[..6] {
            held.push(senders.queue(&named(&senders, name), 10 * MIB).await);
        }
        // 4 MiB are left.
        let (large, small) = (named(&senders, "h6"), named(&senders, "h7"));
        let mut large = pin!(senders.queue(&large, 10 * MIB));
        let mut small = pin!(senders.queue(&small, MIB));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(small.as_mut().now_or_never().is_none());
        held.pop();
        assert!(large.now_or_never().is_some());
        assert!(small.now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_gives_back_its_place_in_the_order() {
        let senders = Senders::default();
        let [one, two, three] = ["one", "two", "three"].map(|name| named(&senders, name));
        let held = [senders.decode(&one).await, senders.decode(&two).await];
        let mut gives_up = Box::pin(senders.decode(&three));
        assert!(gives_up.as_mut().now_or_never().is_none());
        drop(gives_up);
        drop(held);
        let again = [
            senders.decode(&three).now_or_never(),
            senders.decode(&one).now_or_never(),
        ];
        assert!(again.iter().all(Option::is_some));
    }

    #[test]
    fn a_credential_has_a_few_calls_and_a_relay_and_callers_without_one_any() {
        let senders = Senders::default();
        let count = |caller: &Grant| {
            let sender = senders.sender(caller);
            let calls = std::iter::from_fn(|| sender.call()).take(100);
            calls.collect::<Vec<_>>().len()
        };
        assert_eq!(count(&grant("one")), MOST_CALLS as usize);
        let relay = Grant {
            roles: Roles::read("relay").unwrap(),
            ..grant("relay")
        };
        for any in [grant("uid:7"), grant("ip:192.0.2.1"), relay] {
            assert_eq!(count(&any), 100);
        }
    }

    #[test]
    fn addresses_of_an_ipv6_network_are_one_sender() {
        let senders = Senders::default();
        let sender = |address: &str| senders.sender(&grant(address));
        let one = sender("ip:2001:db8::1");
        assert!(Arc::ptr_eq(&one, &sender("ip:2001:db8::2")));
        assert!(!Arc::ptr_eq(&one, &sender("ip:2001:db8:0:1::1")));
    }

    #[tokio::test]
    async fn senders_are_forgotten_unless_they_hold_or_owe_something() {
        let senders = Senders::default();
        let name = |number: usize| format!("h{number}");
        let held = senders.decode(&named(&senders, "holds")).await;
        named(&senders, "owes").charge(1_000_000, 1);
        for number in 0..3 * MOST_IDLE {
            named(&senders, &name(number));
        }
        let known = senders.known();
        assert!(known.senders.len() <= MOST_IDLE);
        for name in ["holds", "owes"] {
            assert!(known.senders.contains_key(&Identity::named(name).unwrap()));
        }
        drop((known, held));
        let owes = named(&senders, "owes");
        let paid = tokio::time::timeout(Duration::from_millis(1), owes.paid());
        assert!(paid.await.is_err());
    }
}
