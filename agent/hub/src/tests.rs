use agent_common::Pair;
use futures_util::FutureExt as _;
use lab::log::log_of;
use prost::Message as _;
use proto::FlowBatch;

use super::*;

mod room;
mod waking;

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

/// The next queued batch, or the end. Panics if the queue is empty, since waiting would never end.
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
fn a_slow_consumer_loses_the_oldest_of_its_batches_and_is_told_where() {
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

    // The queue holds the latest batches.
    assert_eq!(next(&mut slow), Some((1, 3, 2, 20)));
    hub.publish(&batch(5, 10));
    assert_eq!(next(&mut slow), Some((2, 4, 2, 20)));
    for scan_id in 6..=8 {
        hub.publish(&batch(scan_id, 10));
    }
    assert_eq!(next(&mut slow), Some((3, 7, 4, 40)));
    assert_eq!(next(&mut slow), Some((4, 8, 4, 40)));
}

#[test]
fn closing_delivers_what_is_queued_and_then_ends() {
    let hub = Hub::new(1, DEFAULT_QUEUED_BYTES);
    let mut consumer = hub.subscribe("", "test");
    hub.publish(&batch(1, 7));
    hub.publish(&batch(2, 1));
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
    assert_eq!(next(&mut consumer), Some((1, 2, 1, 7)));
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
    let backlog = late.backlog();
    hub.publish(&batch(1, 1));
    hub.close();
    assert_eq!(hub.undelivered().len(), 1);
    drop(late);
    assert!(hub.registry().draining.is_empty());
    // Even while a backlog still exists.
    assert_eq!((hub.held_bytes(), backlog.fate()), (0, Fate::default()));
}

#[test]
fn falling_behind_and_keeping_up_again_are_told_once_each_and_what_was_left() {
    let log = log_of(|so_far| {
        let told = || {
            let lines = so_far();
            let times = |what: &str| lines.matches(what).count();
            (times("reads too slowly"), times("keeps up again"))
        };
        let hub = Hub::new(2, DEFAULT_QUEUED_BYTES);
        let mut consumer = hub.subscribe("", "test");
        let steps = [(1, (0, 0)), (2, (0, 0)), (3, (1, 0)), (4, (1, 0))];
        for (scan_id, expected) in steps {
            hub.publish(&batch(scan_id, 1));
            assert_eq!(told(), expected);
        }
        waiting(&mut consumer);
        hub.publish(&batch(5, 1));
        assert_eq!(told(), (1, 0), "it has not taken all");
        waiting(&mut consumer);
        waiting(&mut consumer);
        hub.publish(&batch(6, 1));
        assert_eq!(told(), (1, 1));
        waiting(&mut consumer);
        hub.publish(&batch(7, 7));
        assert_eq!(told(), (1, 1));
        // The batch that it did not take is lost.
        drop(consumer);
    });
    assert!(log.contains("unsent_batches=1 unsent_records=7"), "{log}");
}
