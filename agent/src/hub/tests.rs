use agent_common::Pair;
use futures_util::FutureExt as _;
use prost::Message as _;

use super::*;
use crate::{logged::log_of, proto::FlowBatch};

fn batch(scan_id: u64, records: u32) -> Batch {
    let message = FlowBatch {
        scan_id,
        last_of_scan: true,
        ..FlowBatch::default()
    };
    let body = message.encode_to_vec().into();
    Batch {
        body,
        records,
        delta: Pair {
            packets: u64::from(records) * 2,
            bytes: u64::from(records) * 200,
        },
        scan_id,
        index: 0,
        last_of_scan: true,
    }
}

/// What is queued for the consumer, or the end. Panics if there is nothing, since waiting would never end.
fn waiting(subscription: &mut Subscription) -> Option<OutgoingBatch> {
    let next = subscription.next().now_or_never();
    next.expect("something waits for the consumer")
}

fn next(subscription: &mut Subscription) -> Option<(u64, u64, u64, u64)> {
    let message = waiting(subscription)?.decode().unwrap();
    Some((
        message.stream_seq,
        message.scan_id,
        message.lost_batches,
        message.lost_records,
    ))
}

#[test]
fn a_slow_consumer_loses_its_own_batches_and_is_told_where() {
    let hub = Hub::new(2, DEFAULT_QUEUED_BYTES);
    assert!(!hub.has_consumers());
    let mut slow = hub.subscribe("slow", "test");
    let mut fast = hub.subscribe("fast", "test");
    assert!(hub.has_consumers());
    for scan_id in 1..=4 {
        hub.publish(&batch(scan_id, 10));
        assert_eq!(next(&mut fast), Some((scan_id, scan_id, 0, 0)));
    }
    let status = hub.status();
    assert_eq!((status[0].queued_batches, status[0].lost_batches), (2, 2));
    assert_eq!(
        (status[1].queued_batches, status[1].delivered_records),
        (0, 40)
    );

    assert_eq!(next(&mut slow), Some((1, 1, 0, 0)));
    hub.publish(&batch(5, 10));
    assert_eq!(next(&mut slow), Some((2, 2, 0, 0)));
    assert_eq!(next(&mut slow), Some((3, 5, 2, 20)));
}

#[test]
fn closing_delivers_what_is_queued_and_tells_of_the_last_losses() {
    let hub = Hub::new(1, DEFAULT_QUEUED_BYTES);
    let mut consumer = hub.subscribe("", "test");
    hub.publish(&batch(1, 1));
    hub.publish(&batch(2, 7));
    hub.close();
    hub.publish(&batch(3, 1));
    let volume = Volume {
        batches: 1,
        records: 1,
        packets: 2,
        bytes: 200,
    };
    let undelivered = Undelivered {
        name: String::new(),
        peer: "test".into(),
        volume,
    };
    assert_eq!(hub.undelivered(), [undelivered]);
    assert_eq!(next(&mut consumer), Some((1, 1, 0, 0)));
    assert_eq!(next(&mut consumer), Some((2, 0, 1, 7)));
    assert_eq!(next(&mut consumer), None);
    assert_eq!(hub.undelivered(), []);
    assert_eq!(next(&mut hub.subscribe("", "late")), None);
}

#[test]
fn a_consumer_that_left_is_forgotten_at_once() {
    let hub = Hub::new(1, DEFAULT_QUEUED_BYTES);
    drop(hub.subscribe("", "test"));
    assert!(!hub.has_consumers());
    assert!(hub.registry().entries.is_empty());
    assert_eq!(hub.left(), 1);
    drop(hub.subscribe("", "test"));
    assert_eq!(hub.left(), 2);

    let late = hub.subscribe("", "test");
    hub.publish(&batch(1, 1));
    hub.close();
    assert_eq!(hub.undelivered().len(), 1);
    drop(late);
    assert!(hub.registry().draining.is_empty());
}

/// The consumers stall at different times, so that they hold different batches.
#[test]
fn what_all_queues_hold_is_bounded_and_a_quick_consumer_loses_nothing() {
    const ROUNDS: u64 = 40;
    const CONSUMERS: u64 = 5;
    let one = batch(1, 1).body.len() as u64;
    let hub = Hub::new(1000, 10 * one);
    let mut quick = hub.subscribe("quick", "test");
    let mut stalled = Vec::new();
    for scan_id in 1..=ROUNDS {
        if scan_id % 8 == 1 {
            stalled.push(hub.subscribe("stalled", "test"));
        }
        hub.publish(&batch(scan_id, 1));
        assert_eq!(next(&mut quick), Some((scan_id, scan_id, 0, 0)));
        let held = hub.held_bytes.load(Relaxed);
        assert!(held <= 20 * one, "{held} bytes after {scan_id}");
    }
    assert_eq!(stalled.len() as u64, CONSUMERS);
    let lost = |status: &ConsumerStatus| status.lost_batches;
    assert!(hub.status().iter().map(lost).sum::<u64>() > ROUNDS);
    drop(stalled);
    assert_eq!(hub.held_bytes.load(Relaxed), 0);
    hub.publish(&batch(99, 1));
    assert_eq!(next(&mut quick), Some((ROUNDS + 1, 99, 0, 0)));
}

fn lost(hub: &Hub) -> Vec<u64> {
    let status = hub.status().into_iter();
    status.map(|consumer| consumer.lost_batches).collect()
}

#[test]
fn who_comes_late_has_its_share_until_twice_the_bound_is_held() {
    let one = batch(1, 1).body.len() as u64;
    let hub = Hub::new(1000, 4 * one);
    let mut consumers = Vec::new();
    // In each step a consumer joins: how many batches are published then, and what each consumer has lost.
    let steps: [(u64, &[u64]); 5] = [
        (4, &[0]),
        // The share is two batches, then one and a third, then one.
        (3, &[3, 1]),
        (2, &[5, 3, 1]),
        (1, &[6, 4, 2, 0]),
        // All together hold eight batches, twice the bound.
        (1, &[7, 5, 3, 1, 1]),
    ];
    for (batches, expected) in steps {
        consumers.push(hub.subscribe("", "test"));
        for _ in 0..batches {
            hub.publish(&batch(1, 1));
        }
        assert_eq!(lost(&hub), expected);
    }
    assert_eq!(hub.held_bytes(), 8 * one);
}

#[test]
fn falling_behind_and_keeping_up_again_are_told_once_each_and_what_was_left() {
    let log = log_of(|so_far| {
        let told = || {
            let lines = so_far();
            let times = |what: &str| lines.matches(what).count();
            (times("reads too slowly"), times("keeps up again"))
        };
        let hub = Hub::new(1, DEFAULT_QUEUED_BYTES);
        let mut consumer = hub.subscribe("", "test");
        let steps = [(1, (0, 0)), (2, (1, 0)), (3, (1, 0))];
        for (scan_id, expected) in steps {
            hub.publish(&batch(scan_id, 1));
            assert_eq!(told(), expected);
        }
        waiting(&mut consumer);
        hub.publish(&batch(4, 1));
        assert_eq!(told(), (1, 1));
        waiting(&mut consumer);
        hub.publish(&batch(5, 7));
        assert_eq!(told(), (1, 1));
        // The batch that it has not taken is lost.
        drop(consumer);
    });
    assert!(log.contains("unsent_batches=1 unsent_records=7"), "{log}");
}

#[test]
fn a_batch_longer_than_the_bound_is_held_alone() {
    let hub = Hub::new(1000, 1);
    let mut quick = hub.subscribe("", "test");
    hub.publish(&batch(1, 1));
    assert_eq!(lost(&hub), [0]);
    let _late = hub.subscribe("", "test");
    hub.publish(&batch(2, 1));
    assert_eq!(lost(&hub), [1, 1]);
    assert_eq!(next(&mut quick), Some((1, 1, 0, 0)));
    hub.publish(&batch(3, 1));
    assert_eq!(lost(&hub), [1, 1]);
}

#[test]
fn what_the_transport_has_not_sent_counts_as_held() {
    let one = batch(1, 1).body.len() as u64;
    let hub = Hub::new(1000, 2 * one);
    let mut consumers = [hub.subscribe("", "test"), hub.subscribe("", "test")];
    hub.publish(&batch(1, 1));
    let mut in_transport = Vec::new();
    for consumer in &mut consumers {
        let batch = waiting(consumer).unwrap();
        in_transport.push(batch);
    }
    assert_eq!(hub.held_bytes(), one, "they share it");
    let held_by = |hub: &Hub| hub.registry().entries[0].consumer.held_bytes.load(Relaxed);
    assert_eq!(held_by(&hub), one);

    // A consumer that holds its share gets no more.
    for scan_id in 2..=4 {
        hub.publish(&batch(scan_id, 1));
    }
    assert_eq!(hub.held_bytes(), 2 * one);
    assert_eq!(hub.status()[0].lost_batches, 2);
    drop(in_transport);
    assert_eq!((hub.held_bytes(), held_by(&hub)), (one, one));
    drop(consumers);
    assert_eq!(hub.held_bytes(), 0);
}
