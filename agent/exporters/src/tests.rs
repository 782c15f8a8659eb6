use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    pin::pin,
    sync::mpsc,
};

use agent_common::Pair;
use futures_util::poll;
use hub::{DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES};
use prost::Message as _;
use proto::{EndReason, Endpoint, FlowBatch, FlowRecord, RecordSum, batch::Batch};
use settings::{OutputArg, OutputArgs};
use tokio::{net::UdpSocket, task::spawn_blocking};

use super::*;

/// A file that cannot be created.
const NOWHERE: &str = "jsonl=/proc/none/flows.jsonl";

fn output(text: &str) -> Prepared {
    let OutputArgs(args) = text.parse().unwrap();
    let [OutputArg::Output(output)] = &args[..] else {
        panic!("{text}: {args:?}");
    };
    output.clone().prepare().unwrap()
}

#[test]
fn a_secret_that_everybody_can_read_is_worth_a_look() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "0123456789abcdef\n").unwrap();
    let (path, only_group, everybody) = (file.display(), 0o640, 0o644);
    for (settings, what) in [
        (
            r#""kind": "collector", "address": "http://127.0.0.1:1", "token_file""#,
            "the token",
        ),
        (
            r#""kind": "kafka", "address": "tcp://127.0.0.1:1/t", "sasl": "scram-sha-512", "user": "me", "password_file""#,
            "this password",
        ),
        (
            r#""kind": "clickhouse", "address": "http://127.0.0.1:1/d/t", "user": "me", "password_file""#,
            "this password",
        ),
    ] {
        let warnings = |mode| -> Vec<String> {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let prepared = output(&format!(r#"{{{settings}: "{path}"}}"#));
            prepared.warnings().cloned().collect()
        };
        assert_eq!(warnings(only_group), [""; 0], "{settings}");
        let expected = format!("{path}: every user can read {what}: chmod o= {path}");
        assert_eq!(warnings(everybody), [expected]);
    }
}

/// A batch of one record with three packets and 300 bytes.
fn batch(scan_id: u64) -> Batch {
    batch_of(scan_id, FlowRecord::default())
}

/// The same for this flow.
fn batch_of(scan_id: u64, flow: FlowRecord) -> Batch {
    let record = FlowRecord {
        src: Some(Endpoint {
            delta_packets: 3,
            delta_bytes: 300,
            ..flow.src().clone()
        }),
        ..flow
    };
    let batch = FlowBatch {
        scan_id,
        last_of_scan: true,
        records: vec![record],
        ..FlowBatch::default()
    };
    Batch {
        body: batch.encode_to_vec().into(),
        records: 1,
        delta: Pair {
            packets: 3,
            bytes: 300,
        },
        scan_id,
        index: 0,
        last_of_scan: true,
    }
}

#[tokio::test]
async fn a_full_queue_of_an_output_that_leaves_is_lost_to_the_packet() {
    // The full queue loses one batch, or two if the worker has taken none yet.
    const BATCHES: u64 = DEFAULT_QUEUE_BATCHES as u64 + 2;
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let outputs = Outputs::start(&hub, vec![output(NOWHERE), output(NOWHERE)]);
    for scan_id in 1..=BATCHES {
        hub.publish(&batch(scan_id));
    }
    assert_eq!(outputs.departed(), DepartedOutputs::default());
    outputs.replace_within(Vec::new(), Duration::ZERO);
    assert!(outputs.status().is_empty());
    let all = RecordSum {
        records: 2 * BATCHES,
        packets: 2 * 3 * BATCHES,
        bytes: 2 * 300 * BATCHES,
    };
    while outputs
        .all()
        .leaving
        .iter()
        .any(|one| !one.task.is_finished())
    {
        tokio::task::yield_now().await;
    }
    let departed = outputs.departed();
    assert_eq!((departed.outputs, departed.lost), (2, Some(all)));
    assert_eq!(departed.queued, Some(RecordSum::default()));
    // Only their sums are left.
    assert!(outputs.all().leaving.is_empty());
    assert_eq!(outputs.departed(), departed);
}

const ONE: RecordSum = RecordSum {
    records: 1,
    packets: 3,
    bytes: 300,
};

/// A batch within a scan: no account precedes its flow.
fn in_the_middle() -> Batch {
    let whole = batch(1);
    let flows = FlowBatch::decode(whole.body.clone()).unwrap();
    let body = FlowBatch {
        last_of_scan: false,
        ..flows
    };
    Batch {
        body: body.encode_to_vec().into(),
        last_of_scan: false,
        ..whole
    }
}

/// Waits for the condition. Returns whether it came true.
async fn comes(is_so: impl Fn() -> bool) -> bool {
    let waits = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), waits)
        .await
        .is_ok()
}

/// The output waits for an ICMP error about its last message.
#[tokio::test]
async fn a_datagram_that_is_refused_at_the_end_is_not_one_that_was_sent() {
    let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let address = format!("ipfix=udp://{}", receiver.local_addr().unwrap());
    let outputs = Outputs::start(&hub, vec![output(&address)]);
    hub.publish(&in_the_middle());
    assert!(comes(|| outputs.status()[0].sent == Some(ONE)).await);
    drop(receiver);
    hub.publish(&in_the_middle());
    outputs.replace(Vec::new());
    assert!(comes(|| outputs.departed().queued == Some(RecordSum::default())).await);
    let departed = outputs.departed();
    assert_eq!((departed.sent, departed.refused), (Some(ONE), Some(ONE)));
}

/// A thread finishes a write that it has begun, even after the deadline, when nobody waits for it.
#[test]
fn the_last_piece_of_a_file_is_sent_if_a_thread_has_begun_with_it_and_lost_if_not() {
    for has_begun in [true, false] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(last_piece(has_begun));
    }
}

async fn last_piece(has_begun: bool) {
    let over = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("flows.jsonl");
    let Prepared { output, .. } = output(&format!("jsonl={}", lines.display()));
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let subscription = hub.subscribe_output("file", &output.address());
    let counters = Arc::new(Counters::new(subscription.backlog()));
    let (deadline, until) = watch::channel(None);
    let mine = Arc::clone(&counters);
    let Parts::Messages(encoder, transport) = output.parts(&hub, "", None) else {
        panic!("a file is one")
    };
    let parts = (encoder, transport);
    let worker = Worker::new(
        "file",
        &output,
        parts,
        None,
        subscription,
        mine,
        Shutdown::new(until),
    );
    let mut run = pin!(worker.run());
    hub.publish(&in_the_middle());
    while counters.status().sent != Some(ONE) {
        assert!(poll!(&mut run).is_pending());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let (free, is_free) = mpsc::channel::<()>();
    // This task occupies the only thread, so the worker's write has to wait.
    spawn_blocking(move || is_free.recv());
    hub.publish(&in_the_middle());
    assert!(poll!(&mut run).is_pending());
    if has_begun {
        free.send(()).unwrap();
        let (tell, told) = mpsc::channel();
        spawn_blocking(move || tell.send(()));
        // This runs after the write. The worker does not run meanwhile, so it meets the deadline before the result.
        told.recv().unwrap();
    }
    deadline.send_replace(Some(over));
    run.await;

    let (mut two, none) = (ONE, RecordSum::default());
    two += ONE;
    let [sent, lost] = if has_begun { [two, none] } else { [ONE, ONE] };
    let status = counters.status();
    assert_eq!(
        [status.sent, status.lost, status.queued],
        [sent, lost, none].map(Some)
    );
    drop(free);
    // On the only thread this runs after any outstanding write.
    spawn_blocking(|| ()).await.unwrap();
    let written = fs::read_to_string(&lines).unwrap();
    assert_eq!(written.lines().count() as u64, sent.records);
}

/// UDP has no acknowledgement that would tell the outcome of a message.
#[tokio::test]
async fn a_datagram_is_sent_when_its_host_is_silent_and_refused_when_it_says_that_nobody_listens() {
    let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let address = format!("ipfix=udp://{}", receiver.local_addr().unwrap());
    let outputs = Outputs::start(&hub, vec![output(&address)]);
    let fates = async |expected: [RecordSum; 3], failing| {
        let are_known = || {
            let status = outputs.status().remove(0);
            let fates = [status.queued, status.sent, status.refused];
            fates.map(Option::unwrap) == expected && status.failing == failing
        };
        assert!(comes(are_known).await, "{:?}", outputs.status());
    };
    let none = RecordSum::default();
    hub.publish(&in_the_middle());
    fates([none, ONE, none], false).await;
    drop(receiver);
    hub.publish(&in_the_middle());
    fates([none, ONE, ONE], true).await;
    hub.publish(&in_the_middle());
    fates([ONE, ONE, ONE], true).await;
}

#[tokio::test]
async fn what_a_format_has_no_record_for_is_left_out_and_not_sent() {
    let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let address = format!("ipfix=udp://{}", receiver.local_addr().unwrap());
    let outputs = Outputs::start(&hub, vec![output(&address)]);
    let one = in_the_middle();
    let mut flows = FlowBatch::decode(one.body.clone()).unwrap();
    // This flow ended without further packets.
    flows.records.push(FlowRecord::default());
    hub.publish(&Batch {
        body: flows.encode_to_vec().into(),
        records: 2,
        ..one
    });
    let settled = || outputs.status()[0].queued == Some(RecordSum::default());
    assert!(comes(settled).await);
    let status = outputs.status().remove(0);
    let quiet = RecordSum {
        records: 1,
        ..RecordSum::default()
    };
    assert_eq!((status.sent, status.left_out), (Some(ONE), Some(quiet)));
}

/// At every moment a flow is in exactly one count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_has_one_fate_or_waits() {
    const BATCHES: u64 = 2_000;
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("flows.jsonl");
    let hub = Hub::new(BATCHES as usize, DEFAULT_QUEUED_BYTES);
    let name = format!("jsonl={}", lines.display());
    let outputs = Outputs::start(&hub, vec![output(&name)]);
    for scan_id in 1..=BATCHES {
        hub.publish(&batch(scan_id));
    }
    let all = RecordSum {
        records: BATCHES,
        packets: 3 * BATCHES,
        bytes: 300 * BATCHES,
    };
    loop {
        let status = outputs.status().remove(0);
        let fates = [
            status.queued,
            status.sent,
            status.refused,
            status.lost,
            status.left_out,
        ];
        let mut sum = RecordSum::default();
        for fate in fates {
            sum += fate.unwrap();
        }
        assert_eq!(sum, all, "{status:?}");
        if status.sent == Some(all) {
            break;
        }
        tokio::task::yield_now().await;
    }
}

/// With `only_ended`, continuing flows do not count as queued.
#[tokio::test]
async fn what_is_not_wanted_yet_does_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("flows.jsonl");
    let settings = format!(
        r#"{{"kind": "jsonl", "address": "{}", "only_ended": true}}"#,
        lines.display()
    );
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let outputs = Outputs::start(&hub, vec![output(&settings)]);
    hub.publish(&batch(1));
    hub.publish(&batch(2));
    let ended = FlowRecord {
        src: Some(Endpoint {
            // More than the queue carried: the output may have started later than the flow.
            total_packets: 1_000,
            total_bytes: 100_000,
            ..Endpoint::default()
        }),
        end_reason: Some(EndReason::IdleTimeout.into()),
        ..FlowRecord::default()
    };
    hub.publish(&batch_of(3, ended));
    let all = RecordSum {
        records: 1,
        packets: 1_000,
        bytes: 100_000,
    };
    let mut status = outputs.status().remove(0);
    while status.sent != Some(all) {
        tokio::task::yield_now().await;
        status = outputs.status().remove(0);
    }
    assert_eq!(status.queued, Some(RecordSum::default()));
}
