//! Shutdown of the agent while flows still wait to be sent.

use super::*;

#[tokio::test]
async fn what_no_collector_took_before_the_end_is_lost_to_the_record() {
    let silent = Script {
        stores: 2,
        acknowledges: 1,
        ..WELL
    };
    let store = Store::with(&[silent; 100]);
    let (collector, task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    output.hub.publish(&batch(1, 5));
    output.wait_until_sent(5).await;
    task.abort();
    let _ = task.await;
    for scan_id in 2..=10 {
        output.hub.publish(&batch(scan_id, 7));
    }
    output.hub.close();
    output.deadline.send_replace(Some(Instant::now()));
    let fates = {
        output.task.await.unwrap();
        let status = output.counters.status();
        [status.sent, status.lost, status.queued].map(|fate| fate.unwrap().records)
    };
    assert_eq!(fates, [5, 9 * 7, 0]);
}

/// That includes batches still in the queue, here because the output is pausing.
#[tokio::test]
async fn what_nobody_took_from_the_queue_before_the_end_is_lost_to_the_record() {
    let (_free, address) = free_port();
    let output = Output::start_with(roomy_hub(), vec![address], |sender| {
        while sender.backoff.next(None) < Duration::from_secs(15) {}
    });
    output.hub.publish(&batch(1, 5));
    output.wait_until_failing().await;
    for scan_id in 2..=10 {
        output.hub.publish(&batch(scan_id, 7));
    }
    assert_eq!(output.fates(), [0, 0, 5 + 9 * 7]);
    // The deadline passes before the last call begins.
    output
        .deadline
        .send_replace(Some(Instant::now() - Duration::from_secs(1)));
    output.hub.close();
    let counters = Arc::clone(&output.counters);
    output.task.await.unwrap();
    let status = counters.status();
    let fates = [status.sent, status.lost, status.queued].map(|fate| fate.unwrap().records);
    assert_eq!(fates, [0, 5 + 9 * 7, 0]);
}

/// A collector that came back during a pause gets the rest, even if the pause would outlast the shutdown.
#[tokio::test]
async fn the_end_cuts_a_pause_short() {
    let (free, address) = free_port();
    let output = Output::start_with(roomy_hub(), vec![address], |sender| {
        while sender.backoff.next(None) < Duration::from_secs(15) {}
    });
    output.hub.publish(&batch(1, 5));
    output.wait_until_failing().await;
    let store = Store::default();
    let (_, _task) = listen_on(&store, free);
    output.hub.close();
    let soon = Instant::now() + Duration::from_secs(10);
    output.deadline.send_replace(Some(soon));
    let counters = Arc::clone(&output.counters);
    output.task.await.unwrap();
    assert_eq!(counters.status().sent.unwrap().records, 5);
    assert_eq!(store.calls(), [[1]]);
}

/// A pause that a collector asked for holds at shutdown, too.
#[tokio::test]
async fn the_end_does_not_cut_a_pause_that_a_collector_asked_for() {
    let store = Store {
        asks: true,
        ..Store::default()
    };
    let (collector, _task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    output.hub.publish(&batch(1, 5));
    output.wait_until_failing().await;
    output.hub.close();
    let soon = Instant::now() + Duration::from_millis(300);
    output.deadline.send_replace(Some(soon));
    let counters = Arc::clone(&output.counters);
    output.task.await.unwrap();
    assert_eq!(counters.status().lost.unwrap().records, 5);
    assert_eq!(store.calls(), [[0; 0]]);
}
