//! Delivery with a spool.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    iter,
    ops::RangeInclusive,
    path::Path,
};

use super::*;

/// Sends far more than fits in memory.
#[tokio::test]
async fn what_no_collector_took_survives_the_agent_in_order() {
    const BATCHES: u64 = 3000;
    const LONG: usize = 2 << 20;
    let folder = tempfile::tempdir().unwrap();
    let spooling = || {
        let folder = folder.path().join("spool");
        Some(Spooling {
            folder,
            most_bytes: 1 << 30,
        })
    };
    let nobody = host("127.0.0.1:1".parse().unwrap());
    let mut sent = 0;
    for run in 0..3 {
        let output = Output::spooled(roomy_hub(), vec![nobody.clone()], spooling());
        for scan_id in 1..BATCHES {
            output.hub.publish(&batch(scan_id, 2));
        }
        output.hub.publish(&long(BATCHES, 2, LONG));
        sent += 2 * BATCHES;
        output
            .wait_until("all is on disk", |status| {
                // The other batches take less than this together.
                let least = (run + 1) * LONG as u64;
                status.spool.is_some_and(|spool| spool.bytes > least)
            })
            .await;
        assert_eq!(output.fates(), [0, 0, sent], "run {run}");
        if run == 0 {
            // As if the agent was killed.
            output.task.abort();
            let _ = output.task.await;
        } else {
            output.hub.close();
            output.deadline.send_replace(Some(Instant::now()));
            let counters = Arc::clone(&output.counters);
            output.task.await.unwrap();
            let status = counters.status();
            assert_eq!(status.lost.unwrap().records, 0);
            // The next run counts them.
            assert_eq!(status.queued.unwrap().records, 0);
        }
    }
    let store = Store::with(&[Script {
        stores: 1000,
        acknowledges: 500,
        ..WELL
    }]);
    let (collector, _task) = listen(&store);
    let output = Output::spooled(roomy_hub(), vec![collector], spooling());
    output.hub.publish(&batch(1, 1));
    output.wait_until_sent(sent + 1).await;
    output.end().await;
    assert_eq!(store.sum(), sum_of_records(sent + 1));
    let batches = store.batches.lock().unwrap();
    let streams: BTreeSet<_> = batches.keys().map(|(stream, _)| stream).collect();
    assert_eq!((streams.len(), batches.len() as u64), (1, 3 * BATCHES + 1));
    assert!(batches.values().all(|batch| batch.lost_records == 0));
}

/// A batch of a scan, with one record, by an agent process.
fn batch_by(instance_id: &str, scan_id: u64) -> Batch {
    let mut batch = batch(scan_id, 1);
    let more = FlowBatch {
        agent: Some(AgentIdentity {
            instance_id: instance_id.to_owned(),
            ..AgentIdentity::default()
        }),
        ..FlowBatch::default()
    };
    batch.body = [&batch.body[..], &more.encode_to_vec()].concat().into();
    batch
}

/// How many batches the files of a spool have.
fn stored_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let segments = files.filter(|file| spool::is_segment(&file.path()));
    let batches = segments.map(|segment| {
        let file = File::open(segment.path()).unwrap();
        let mut stored = spool::Stored::in_file(file, spool::Acknowledged::default()).unwrap();
        iter::from_fn(|| stored.next_batch().unwrap()).count() as u64
    });
    batches.sum()
}

/// A process sends again what the last one may not have delivered, and its own batches after that.
#[tokio::test]
async fn what_a_killed_process_has_put_there_is_delivered_once() {
    let folder = tempfile::tempdir().unwrap();
    let spooling = || {
        Some(Spooling {
            folder: folder.path().join("spool"),
            most_bytes: 1 << 30,
        })
    };
    let nobody = host("127.0.0.1:1".parse().unwrap());
    let run = async |batches: &[(&str, u64)], stored: u64| {
        let output = Output::spooled(roomy_hub(), vec![nobody.clone()], spooling());
        for &(instance, scan_id) in batches {
            output.hub.publish(&batch_by(instance, scan_id));
        }
        let is_stored = |status: OutputStatus| {
            let queued = status.queued.unwrap_or_default();
            queued.records == stored && stored_in(&folder.path().join("spool")) == stored
        };
        output.wait_until("all is stored", is_stored).await;
        output.task.abort();
        let _ = output.task.await;
    };
    let scans = |instance, scans: RangeInclusive<u64>| {
        scans.map(|scan_id| (instance, scan_id)).collect::<Vec<_>>()
    };
    run(&scans("a", 1..=5), 5).await;
    // The first process had not got as far as storing its sixth one.
    run(&[scans("a", 3..=6), scans("b", 1..=2)].concat(), 8).await;
    run(
        &[scans("a", 5..=6), scans("b", 1..=3), scans("c", 1..=1)].concat(),
        10,
    )
    .await;

    let store = Store::default();
    let (collector, _task) = listen(&store);
    let output = Output::spooled(roomy_hub(), vec![collector], spooling());
    output.hub.publish(&batch_by("c", 1));
    output.hub.publish(&batch_by("d", 1));
    output.wait_until_sent(11).await;
    output.end().await;
    let batches = store.batches.lock().unwrap();
    let stored = batches.values().map(|batch| {
        let agent = batch.agent.as_ref().unwrap();
        (agent.instance_id.clone(), batch.scan_id)
    });
    let mut stored: Vec<_> = stored.collect();
    stored.sort();
    let expected = [
        scans("a", 1..=6),
        scans("b", 1..=3),
        scans("c", 1..=1),
        scans("d", 1..=1),
    ];
    let expected = expected.concat().into_iter();
    let expected: Vec<_> = expected.map(|(of, scan)| (of.to_owned(), scan)).collect();
    assert_eq!(stored, expected);
}

#[tokio::test]
async fn a_spool_that_is_full_loses_the_oldest_and_says_so() {
    const BATCHES: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let spooling = Some(Spooling {
        folder,
        most_bytes: 16 << 20,
    });
    let store = Store::default();
    let (free, address) = free_port();
    let output = Output::spooled(roomy_hub(), vec![address], spooling);
    for scan_id in 1..=BATCHES {
        output.hub.publish(&long(scan_id, 1, 256 << 10));
        tokio::task::yield_now().await;
    }
    let fate = |sum: Option<RecordSum>| sum.unwrap().records;
    output
        .wait_until("some are lost", |status| fate(status.lost) > BATCHES / 4)
        .await;
    let (_, _task) = listen_on(&store, free);
    output
        .wait_until("all have their fate", |status| {
            fate(status.sent) + fate(status.lost) == BATCHES
        })
        .await;
    let lost = output.fates()[1];
    output.hub.publish(&batch(BATCHES + 1, 1));
    output.wait_until_sent(BATCHES - lost + 1).await;
    output.end().await;
    assert_eq!(store.sum(), sum_of_records(BATCHES - lost + 1));
    let newest = store.batches.lock().unwrap().values().last().cloned();
    let newest = newest.unwrap();
    let told = (newest.lost_batches, newest.lost_records);
    assert_eq!(told, (lost, lost));
    let of_lost = sum_of_records(lost);
    let told = (newest.lost_packets, newest.lost_bytes);
    assert_eq!(told, (of_lost.packets, of_lost.bytes));
}

#[tokio::test]
async fn a_batch_that_no_collector_takes_is_refused_told_and_in_the_way_of_no_other() {
    for has_spool in [false, true] {
        let store = Store {
            invalid_scan: Some(2),
            ..Store::default()
        };
        let (hosts, _tasks): (Vec<_>, Vec<_>) =
            [(); 2].map(|()| listen(&store)).into_iter().unzip();
        let folder = tempfile::tempdir().unwrap();
        let spooling = has_spool.then(|| Spooling {
            folder: folder.path().to_owned(),
            most_bytes: 32 << 20,
        });
        let hub = roomy_hub();
        let output = Output::spooled(hub.clone(), hosts, spooling);
        for scan_id in 1..=4 {
            hub.publish(&batch(scan_id, scan_id as u32));
        }
        output.wait_until_sent(1 + 3 + 4).await;
        hub.publish(&batch(5, 5));
        output.wait_until_sent(1 + 3 + 4 + 5).await;
        let status = output.counters.status();
        assert_eq!(status.refused.unwrap().records, 2);
        assert_eq!(output.fates()[1..], [0, 0]);
        // The store reports the loss.
        assert_eq!(store.lost().last(), Some(&2));
        output.end().await;
    }
}

/// A single collector may have a wrong clock.
#[tokio::test]
async fn a_batch_that_one_collector_refuses_waits_for_another_that_is_away() {
    let refusing = Store {
        invalid_scan: Some(2),
        ..Store::default()
    };
    let (first, _task) = listen(&refusing);
    let (socket, second) = free_port();
    let hub = roomy_hub();
    let output = Output::spooled(hub.clone(), vec![first, second], None);
    for scan_id in 1..=3 {
        hub.publish(&batch(scan_id, scan_id as u32));
    }
    // One call more than it would take if both collectors refused the batch.
    let calls = async {
        while refusing.calls().len() <= TRIES * 2 + 1 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let patience = Duration::from_mins(2);
    timeout(patience, calls).await.expect("calls");
    let taking = Store::default();
    let (_, _task) = listen_on(&taking, socket);
    output.wait_until_sent(1 + 2 + 3).await;
    assert_eq!(output.counters.status().refused.unwrap().records, 0);
    assert!(taking.calls().iter().any(|call| call.contains(&2)));
    output.end().await;
}
