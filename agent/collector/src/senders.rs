//! Limits what one sender may use of the collector at a time: memory for batches being received and for batches on
//! their way to the stores, a turn to decode, and records per second.
//!
//! A sender is a credential. Without one, it is a user of this host or an address; an IPv6 /64 counts as one address.
//! Each sender waits for its own share first and then queues for the shared part, so a sender that uses up its share
//! delays only itself. Shares are always taken in this order: memory to receive, the sender's turn to decode, its part
//! of the queue, the shared turn, the shared queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tls::identity::{Grant, Identity};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::rate::Debt;

/// Batches that are being received, in KiB.
const RECEIVED_KIB: Shared = Shared {
    all: 96 << 10,
    of_host: 8 << 10,
    of_relay: 48 << 10,
};
/// Batches that wait for the writer, in KiB of memory held. A single batch may be larger than its sender's share.
const QUEUED_KIB: Shared = Shared {
    all: 64 << 10,
    of_host: 8 << 10,
    of_relay: 32 << 10,
};
/// Batches decoded at a time. Decoding takes many times their size.
const DECODED: Shared = Shared {
    all: 2,
    of_host: 1,
    of_relay: 1,
};

/// Beyond this many, senders that are not in use are forgotten.
const MOST_IDLE: usize = 1024;

/// The total amount of a resource, and the share of one sender. A relay brings the batches of many hosts.
#[derive(Clone, Copy)]
struct Shared {
    all: u32,
    of_host: u32,
    of_relay: u32,
}

/// All senders, and the resources they share.
pub(super) struct Senders {
    known: Mutex<Known>,
    receiving: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
    queued: Arc<Semaphore>,
}

struct Known {
    /// By identity and whether it relays. A name may have a token to send and one to relay.
    senders: HashMap<(Identity, bool), Arc<Sender>>,
    /// Forget idle senders once there are this many.
    sweep_at: usize,
}

/// One sender and its shares.
pub(super) struct Sender {
    receiving: Own,
    decoding: Own,
    queued: Own,
    debt: Mutex<Debt>,
}

/// The share of one sender.
struct Own {
    most: u32,
    units: Arc<Semaphore>,
}

/// Part of a shared resource, held until this is dropped.
pub(super) struct Held {
    /// Keeps the sender from being forgotten, which would give it a whole share again.
    _sender: Arc<Sender>,
    _of_sender: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// The turn of a batch within its sender.
pub(super) struct OwnTurn {
    sender: Arc<Sender>,
    _of_sender: OwnedSemaphorePermit,
}

/// The turn of a batch among all senders, to be decoded and queued.
pub(super) struct Turn {
    own: OwnTurn,
    /// The reserved part of the sender's share of the queue.
    reserved: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Senders {
    fn default() -> Self {
        let all = |size: Shared| Arc::new(Semaphore::new(size.all as usize));
        Self {
            known: Mutex::new(Known {
                senders: HashMap::new(),
                sweep_at: MOST_IDLE,
            }),
            receiving: all(RECEIVED_KIB),
            decoding: all(DECODED),
            queued: all(QUEUED_KIB),
        }
    }
}

impl Senders {
    /// The sender of a caller.
    pub(super) fn sender(&self, caller: &Grant) -> Arc<Sender> {
        let mut known = self.known();
        if known.senders.len() >= known.sweep_at {
            known
                .senders
                .retain(|_, sender| Arc::strong_count(sender) > 1 || sender.is_in_debt());
            known.sweep_at = (2 * known.senders.len()).max(MOST_IDLE);
        }
        let is_relay = caller.is_relay();
        let sender = known
            .senders
            .entry((caller.identity.of_host().start().clone(), is_relay));
        Arc::clone(sender.or_insert_with(|| Arc::new(Sender::new(is_relay))))
    }

    /// Waits for memory to receive a message of this many bytes.
    pub(super) async fn receive(&self, sender: &Arc<Sender>, bytes: usize) -> Held {
        let of_sender = sender.receiving.wait(kib(bytes)).await;
        Held {
            _sender: Arc::clone(sender),
            _of_sender: of_sender,
            _of_all: wait(&self.receiving, kib(bytes).min(RECEIVED_KIB.all)).await,
        }
    }

    /// Waits for a turn to decode a batch. `bytes` estimates the room it will take in the queue.
    pub(super) async fn turn(&self, own: OwnTurn, bytes: usize) -> Turn {
        let reserved = own.sender.queued.wait(kib(bytes)).await;
        Turn {
            own,
            reserved,
            _of_all: wait(&self.decoding, 1).await,
        }
    }

    /// Ends a turn: waits for memory to queue this many bytes.
    pub(super) async fn queue(&self, mut turn: Turn, bytes: usize) -> Held {
        let of_all = wait(&self.queued, kib(bytes).min(QUEUED_KIB.all)).await;
        let queued = &turn.own.sender.queued;
        queued.adjust(&mut turn.reserved, kib(bytes));
        Held {
            _sender: turn.own.sender,
            _of_sender: turn.reserved,
            _of_all: of_all,
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Code under this lock does not panic halfway, so the data behind a poisoned lock is consistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    /// Waits for the turn of a batch within this sender.
    pub(super) async fn own_turn(self: &Arc<Self>) -> OwnTurn {
        OwnTurn {
            sender: Arc::clone(self),
            _of_sender: self.decoding.wait(1).await,
        }
    }

    fn new(is_relay: bool) -> Self {
        let own = |size: Shared| {
            let most = if is_relay {
                size.of_relay
            } else {
                size.of_host
            };
            Own {
                most,
                units: Arc::new(Semaphore::new(most as usize)),
            }
        };
        Self {
            receiving: own(RECEIVED_KIB),
            decoding: own(DECODED),
            queued: own(QUEUED_KIB),
            debt: Mutex::default(),
        }
    }

    /// Waits until the sender has paid for its records, whichever call brought them.
    pub(super) async fn wait_until_paid(&self) {
        loop {
            let Some(until) = self.debt().owes_until(Instant::now()) else {
                return;
            };
            sleep_until(until).await;
        }
    }

    /// Charges the sender for a batch.
    pub(super) fn charge(&self, records: u64, records_per_second: u32) {
        self.debt().add(records, records_per_second, Instant::now());
    }

    /// Whether the sender's next batch has to wait.
    pub(super) fn is_in_debt(&self) -> bool {
        self.debt().owes_until(Instant::now()).is_some()
    }

    fn debt(&self) -> MutexGuard<'_, Debt> {
        // Code under this lock does not panic halfway, so the data behind a poisoned lock is consistent.
        self.debt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Own {
    async fn wait(&self, units: u32) -> OwnedSemaphorePermit {
        wait(&self.units, units.min(self.most)).await
    }

    /// Adjusts a reserved part to its real size, as far as the share goes.
    fn adjust(&self, taken: &mut OwnedSemaphorePermit, units: u32) {
        let (units, had) = (units.min(self.most) as usize, taken.num_permits());
        if units < had {
            drop(taken.split(had - units));
            return;
        }
        let more = (units - had).min(self.units.available_permits());
        let more = u32::try_from(more).unwrap_or(0);
        if let Ok(more) = Arc::clone(&self.units).try_acquire_many_owned(more) {
            taken.merge(more);
        }
    }
}

/// Waits in order of arrival.
async fn wait(units: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    let permit = Arc::clone(units).acquire_many_owned(count).await;
    permit.expect("these semaphores are never closed")
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).map_or(u32::MAX, |kib| kib.max(1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tls::identity::Roles;

    use super::*;

    const MIB: usize = 1 << 20;

    fn grant(name: &str) -> Grant {
        let identity = Identity::read(name).unwrap();
        let roles = Roles::read("send").unwrap();
        Grant { identity, roles }
    }

    fn named(senders: &Senders, name: &str) -> Arc<Sender> {
        senders.sender(&grant(name))
    }

    async fn turn(senders: &Senders, sender: &Arc<Sender>, bytes: usize) -> Turn {
        senders.turn(sender.own_turn().await, bytes).await
    }

    async fn queue(senders: &Senders, sender: &Arc<Sender>, bytes: usize) -> Held {
        let turn = turn(senders, sender, bytes).await;
        senders.queue(turn, bytes).await
    }

    #[tokio::test]
    async fn a_sender_with_its_whole_share_waits_and_others_do_not() {
        let senders = Senders::default();
        let [one, other] = ["one", "other"].map(|name| named(&senders, name));
        let received = [
            senders.receive(&one, 4 * MIB).await,
            senders.receive(&one, 4 * MIB).await,
        ];
        // The same credential on another call is the same sender.
        let again = named(&senders, "one");
        let mut waits = senders.receive(&again, 1).boxed();
        assert!((&mut waits).now_or_never().is_none());
        let queued = queue(&senders, &one, 8 * MIB).await;
        // It waits for its part of the queue before it takes a shared turn.
        let mut next = turn(&senders, &one, 1).boxed();
        assert!((&mut next).now_or_never().is_none());
        let of_others = ["two", "three"].map(|name| named(&senders, name));
        let turns = of_others.each_ref().map(|it| turn(&senders, it, 1));
        let turns = turns.map(|one| one.now_or_never().expect("it is free"));
        drop(turns);
        assert!(senders.receive(&other, 8 * MIB).now_or_never().is_some());
        assert!(queue(&senders, &other, 8 * MIB).now_or_never().is_some());
        drop(queued);
        let next = next.await;
        // It cannot have two turns either.
        assert!(turn(&senders, &again, 1).now_or_never().is_none());
        drop(next);
        assert!(turn(&senders, &again, 1).now_or_never().is_some());
        drop(received);
        waits.await;
    }

    #[tokio::test]
    async fn the_pool_is_shared_in_order_of_arrival_and_a_batch_may_be_larger_than_a_share() {
        let senders = Senders::default();
        let mut held = Vec::new();
        for number in 0..6 {
            let sender = named(&senders, &format!("h{number}"));
            held.push(queue(&senders, &sender, 10 * MIB).await);
        }
        // 4 MiB are left.
        let (large, small) = (named(&senders, "large"), named(&senders, "small"));
        let mut large = Box::pin(queue(&senders, &large, 10 * MIB));
        let mut small = Box::pin(queue(&senders, &small, MIB));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(small.as_mut().now_or_never().is_none());
        held.pop();
        assert!(large.now_or_never().is_some());
        assert!(small.now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_a_batch_takes_of_the_share_follows_its_size() {
        let senders = Senders::default();
        let one = named(&senders, "one");
        for (expected, actual) in [(8 * MIB, MIB), (MIB, 8 * MIB), (4 * MIB, 40 * MIB)] {
            let next = turn(&senders, &one, expected).await;
            let held = senders.queue(next, actual).await;
            let free = one.queued.units.available_permits();
            assert_eq!(free, (8 * MIB).saturating_sub(actual) >> 10);
            drop(held);
            assert_eq!(one.queued.units.available_permits(), (8 * MIB) >> 10);
        }
    }

    #[tokio::test]
    async fn who_gives_up_waiting_gives_back_its_place_in_the_order() {
        let senders = Senders::default();
        let [one, two, three] = ["one", "two", "three"].map(|name| named(&senders, name));
        let turns = [turn(&senders, &one, 1).await, turn(&senders, &two, 1).await];
        let mut gives_up = Box::pin(turn(&senders, &three, 1));
        assert!(gives_up.as_mut().now_or_never().is_none());
        drop((gives_up, turns));
        let again = [&three, &one].map(|it| turn(&senders, it, 1).now_or_never());
        assert!(again.iter().all(Option::is_some));
    }

    #[tokio::test]
    async fn a_relay_has_more_and_shares_nothing_with_a_sender_of_its_name() {
        let senders = Senders::default();
        let relay = Grant {
            roles: Roles::read("relay").unwrap(),
            ..grant("one")
        };
        let relay = senders.sender(&relay);
        assert!(!Arc::ptr_eq(&relay, &named(&senders, "one")));
        let held = queue(&senders, &relay, 31 * MIB).await;
        assert!(queue(&senders, &relay, MIB).now_or_never().is_some());
        drop(held);
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
        let held = senders.receive(&named(&senders, "holds"), 1).await;
        named(&senders, "owes").charge(1_000_000, 1);
        for number in 0..3 * MOST_IDLE {
            named(&senders, &name(number));
        }
        let is_known = |name: &str| {
            let name = Identity::named(name).unwrap();
            senders.known().senders.contains_key(&(name, false))
        };
        assert!(senders.known().senders.len() <= MOST_IDLE);
        assert!(is_known("holds") && is_known("owes"));
        drop(held);
        let owes = named(&senders, "owes");
        let paid = tokio::time::timeout(Duration::from_millis(1), owes.wait_until_paid());
        assert!(paid.await.is_err());
    }
}
