//! All queues together are bounded in bytes. A consumer that keeps up within the bound loses nothing.

use proto::Interface;

use super::*;

fn lost(hub: &Hub) -> Vec<u64> {
    let status = hub.status().into_iter();
    status.map(|consumer| consumer.lost_batches).collect()
}

/// Batches of different lengths with different sums, so that each sum shows which batches were lost.
fn varied(scan_id: u64) -> Batch {
    let batch = batch(scan_id, 1 + (scan_id % 7) as u32);
    let mut body = batch.body.to_vec();
    let padding = FlowBatch {
        interfaces: vec![Interface::default(); (scan_id % 30) as usize],
        ..FlowBatch::default()
    };
    padding.encode(&mut body).unwrap();
    Batch {
        body: body.into(),
        ..batch
    }
}

/// The volume of the batches with these numbers.
fn volume_of(scan_ids: impl IntoIterator<Item = u64>) -> Volume {
    let mut volume = Volume::default();
    for scan_id in scan_ids {
        volume += Volume::from(&varied(scan_id));
    }
    volume
}

/// Takes the next batch. Returns its number and the losses so far, which must account for all batches since `last`.
fn take_after(subscription: &mut Subscription, last: u64, lost_before: Volume) -> (u64, Volume) {
    let message = waiting(subscription).unwrap().decode().unwrap();
    let told = Volume {
        batches: message.lost_batches,
        records: message.lost_records,
        packets: message.lost_packets,
        bytes: message.lost_bytes,
    };
    let mut expected = lost_before;
    expected += volume_of(last + 1..message.scan_id);
    assert_eq!(told, expected, "{} after {last}", message.scan_id);
    (message.scan_id, told)
}

/// A consumer that takes some batches and then stops.
struct Stalled {
    subscription: Subscription,
    /// The batch before its first one, and the last one that it took.
    first: u64,
    last: u64,
    stalls_after: u64,
}

impl Stalled {
    fn take_until_it_stalls(&mut self) {
        while self.last < self.stalls_after && self.subscription.backlog().fate().queued.batches > 0
        {
            self.last = take_after(&mut self.subscription, self.last, Volume::default()).0;
        }
    }

    /// Its delivered, lost and queued batches add up to the published ones.
    fn assert_sums(&self, published: u64) {
        let fate = self.subscription.backlog().fate();
        let still_queued = published - self.last - fate.lost.batches;
        assert_eq!(fate.delivered, volume_of(self.first + 1..=self.last));
        assert_eq!(fate.queued.batches, still_queued);
        assert_eq!(
            fate.lost,
            volume_of(self.last + 1..=published - still_queued)
        );
        assert_eq!(
            fate.queued,
            volume_of(published - still_queued + 1..=published)
        );
    }
}

#[test]
fn who_takes_each_burst_loses_nothing_while_others_stall_one_after_another() {
    const BURST: u64 = 60;
    const BURSTS: u64 = 40;
    let of_burst = |burst: u64| 1 + burst * BURST..=(burst + 1) * BURST;
    // The lengths repeat with each burst.
    let bytes: u64 = of_burst(9).map(|id| varied(id).body.len() as u64).sum();
    let limit = 5 * bytes;
    let hub = Hub::new(10_000, limit);
    let mut quick = hub.subscribe_output("quick", "test");
    let mut stalled: Vec<Stalled> = Vec::new();
    let mut published = 0;
    let mut is_full = false;
    for burst in 0..BURSTS {
        if burst % 3 == 0 {
            stalled.push(Stalled {
                subscription: hub.subscribe("stalled", "test"),
                first: published,
                last: published,
                // Stalls at once, or later in the middle of a burst.
                stalls_after: published + burst % 5 * 47,
            });
        }
        for scan_id in of_burst(burst) {
            hub.publish(&varied(scan_id));
            let held = hub.held_bytes();
            assert!(held <= limit, "{held} bytes after {scan_id}");
            is_full |= held + bytes / BURST * 3 > limit;
            assert!(
                !is_full || held + bytes / 10 > limit,
                "{held} bytes alone are kept"
            );
        }
        for _ in of_burst(burst) {
            published = take_after(&mut quick, published, Volume::default()).0;
        }
        for one in &mut stalled {
            one.take_until_it_stalls();
            one.assert_sums(published);
        }
    }
    assert!(is_full && stalled.len() >= 10);
    // The next batch of each consumer reports the losses so far, and no batch is missing after it.
    for mut one in stalled {
        let mut lost = Volume::default();
        while one.last < BURST * BURSTS {
            (one.last, lost) = take_after(&mut one.subscription, one.last, lost);
        }
        assert_eq!(one.subscription.backlog().fate().lost, lost);
    }
    assert_eq!(hub.held_bytes(), 0);
}

#[test]
fn a_batch_for_which_two_wait_counts_once_and_is_lost_to_both() {
    let one = batch(1, 1).body.len() as u64;
    let hub = Hub::new(1000, 3 * one);
    let mut early = hub.subscribe("early", "test");
    hub.publish(&batch(1, 1));
    let mut both = [hub.subscribe("", "test"), hub.subscribe("", "test")];
    hub.publish(&batch(2, 5));
    hub.publish(&batch(3, 7));
    assert_eq!((hub.held_bytes(), lost(&hub)), (3 * one, vec![0, 0, 0]));
    // It replaces the oldest batch, which only one consumer had.
    hub.publish(&batch(4, 1));
    assert_eq!((hub.held_bytes(), lost(&hub)), (3 * one, vec![1, 0, 0]));
    hub.publish(&batch(5, 1));
    assert_eq!((hub.held_bytes(), lost(&hub)), (3 * one, vec![2, 1, 1]));
    for one in &mut both {
        assert_eq!(next(one), Some((1, 3, 1, 5)));
    }
    assert_eq!(next(&mut early), Some((1, 3, 2, 6)));
    // The third batch is in no queue any longer.
    assert_eq!(hub.held_bytes(), 2 * one);
    drop(both);
    drop(early);
    assert_eq!(hub.held_bytes(), 0);
}

/// Others are still published to while it reads its queue.
#[test]
fn what_is_lost_after_the_last_batch_is_told_at_the_end() {
    let one = batch(1, 1).body.len() as u64;
    let hub = Hub::new(1000, 3 * one);
    let mut leaving = hub.subscribe("leaving", "test");
    let _staying = hub.subscribe("staying", "test");
    for scan_id in 1..=3 {
        hub.publish(&batch(scan_id, 1));
    }
    assert_eq!(next(&mut leaving), Some((1, 1, 0, 0)));
    leaving.backlog().leave();
    // The transport has dropped the first batch, but `staying` still has it queued.
    for scan_id in 4..=6 {
        hub.publish(&batch(scan_id, 1));
    }
    assert_eq!(hub.fate().lost.batches, 2 + 3);
    assert_eq!(next(&mut leaving), Some((2, 0, 2, 2)));
    assert_eq!(next(&mut leaving), None);
    assert_eq!(next(&mut leaving), None);
}

#[test]
fn a_batch_longer_than_the_bound_is_held_alone() {
    let one = batch(1, 1).body.len() as u64;
    let hub = Hub::new(1000, 1);
    let mut quick = hub.subscribe("", "test");
    hub.publish(&batch(1, 1));
    assert_eq!(lost(&hub), [0]);
    let _late = hub.subscribe("", "test");
    hub.publish(&batch(2, 1));
    assert_eq!((hub.held_bytes(), lost(&hub)), (one, vec![1, 0]));
    assert_eq!(next(&mut quick), Some((1, 2, 1, 1)));
    hub.publish(&batch(3, 1));
    assert_eq!((hub.held_bytes(), lost(&hub)), (one, vec![1, 1]));
}

#[test]
fn what_a_transport_holds_counts_and_is_not_taken_back() {
    let one = batch(1, 1).body.len() as u64;
    let hub = Hub::new(1000, 2 * one);
    let mut consumers = [hub.subscribe("", "test"), hub.subscribe("", "test")];
    let mut in_transport = Vec::new();
    for scan_id in 1..=2 {
        hub.publish(&batch(scan_id, 1));
        for consumer in &mut consumers {
            in_transport.push(waiting(consumer).unwrap());
        }
        assert_eq!(hub.held_bytes(), scan_id * one, "they share it");
    }
    // No queued batch is older, so this one itself is lost.
    hub.publish(&batch(3, 7));
    assert_eq!((hub.held_bytes(), lost(&hub)), (2 * one, vec![1, 1]));
    assert!(consumers[0].next().now_or_never().is_none());
    // The first of the two batches is free.
    in_transport.drain(..2);
    assert_eq!(hub.held_bytes(), one);
    hub.publish(&batch(4, 1));
    hub.publish(&batch(5, 1));
    assert_eq!((hub.held_bytes(), lost(&hub)), (2 * one, vec![2, 2]));
    let [first, second] = &mut consumers;
    assert_eq!(next(first), Some((3, 5, 2, 8)));
    drop(in_transport);
    assert_eq!(hub.held_bytes(), one);
    assert_eq!(next(second), Some((3, 5, 2, 8)));
    assert_eq!(hub.held_bytes(), 0);
}

#[test]
fn what_is_reserved_for_copies_is_no_room_for_batches() {
    let bytes = COPIES_BYTES;
    let hub = Hub::new(1000, 10 * bytes);
    let mut consumer = hub.subscribe("", "test");
    let long = |scan_id| Batch {
        body: vec![0; COPIES_BYTES as usize].into(),
        ..batch(scan_id, 1)
    };
    let publish = |scan_ids: std::ops::RangeInclusive<u64>| {
        for scan_id in scan_ids {
            hub.publish(&long(scan_id));
        }
    };
    publish(1..=12);
    assert_eq!((hub.held_bytes(), lost(&hub)), (10 * bytes, vec![2]));
    // Reserving drops batches at once, and five shares are half of the bound.
    let shares: Vec<CopyRoom> = (0..5).map_while(|_| hub.room_for_copies(0)).collect();
    assert_eq!((shares.len(), hub.held_bytes()), (5, 5 * bytes));
    assert!(hub.room_for_copies(0).is_none());
    publish(13..=14);
    assert_eq!((hub.held_bytes(), lost(&hub)), (5 * bytes, vec![9]));
    drop(shares);
    publish(15..=16);
    assert_eq!((hub.held_bytes(), lost(&hub)), (7 * bytes, vec![9]));

    // The bytes in the transport cannot be taken back.
    let taken: Vec<_> = (0..7)
        .map(|_| waiting(&mut consumer).unwrap().into_parts())
        .collect();
    publish(17..=18);
    let shares: Vec<CopyRoom> = (0..4).map_while(|_| hub.room_for_copies(0)).collect();
    assert_eq!((shares.len(), hub.held_bytes()), (3, 7 * bytes));
    drop(taken);
    assert!(hub.room_for_copies(0).is_some());
}
