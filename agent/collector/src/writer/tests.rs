use std::{fs, path::Path};

use exporters::settings::{OutputArg, OutputArgs};
use formats::LostSoFar;
use hub::DEFAULT_QUEUED_BYTES;
use prost::Message as _;
use proto::{AgentIdentity, FlowBatch, FlowRecord};
use tls::identity::{Grant, Identity, Roles};

use super::{
    super::{incoming::Incoming, senders::Senders, store::Form},
    *,
};

#[path = "../../../exporters/src/clickhouse/tests/server.rs"]
#[expect(dead_code, reason = "the tests of the output do more with it")]
mod clickhouse;

/// The port of a server that accepts all batches except those with these numbers.
async fn refuses(seqs: Vec<u64>) -> u16 {
    let server = clickhouse::Server {
        refused: seqs,
        ..clickhouse::Server::default()
    };
    clickhouse::listen(server).await.0
}

/// A writer into folders, which may not exist.
fn writer<const N: usize>(folders: [&Path; N]) -> (Writer, Streams) {
    writer_to(folders.map(|folder| format!("jsonl={}", folder.join("flows.jsonl").display())))
}

/// A writer into stores with these settings.
fn writer_to<const N: usize>(settings: [String; N]) -> (Writer, Streams) {
    let store = |setting: String| {
        let OutputArgs(args) = setting.parse().unwrap();
        let OutputArg::Output(output) = &args[0] else {
            panic!("no output");
        };
        let mut store = Store::of(&output.clone().prepare().unwrap()).unwrap();
        store.is_patient(Duration::from_mins(2));
        store
    };
    let streams = Streams::default();
    let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
    let stores = settings.map(store).into();
    let (_, none) = mpsc::channel(1);
    (
        Writer::new(stores, streams.clone(), hub, None, none),
        streams,
    )
}

fn stored_seq(streams: &Streams) -> u64 {
    streams.status().first().map_or(0, |one| one.stored_seq)
}

type Outcomes = mpsc::UnboundedReceiver<Outcome>;

fn call() -> (Arc<CallEnd>, Outcomes) {
    let (outcomes, told) = mpsc::unbounded_channel();
    let end = CallEnd {
        outcomes,
        is_broken: AtomicBool::new(false),
    };
    (Arc::new(end), told)
}

async fn entry(call: &Arc<CallEnd>, seq: u64) -> Entry {
    entry_as(Form::Jsonl, call, seq).await
}

async fn entry_as(form: Form, call: &Arc<CallEnd>, seq: u64) -> Entry {
    let batch = FlowBatch {
        agent: Some(AgentIdentity::default()),
        stream_id: 7,
        stream_seq: seq,
        records: vec![FlowRecord::default()],
        ..FlowBatch::default()
    };
    let caller = Grant {
        identity: Identity::User(0),
        roles: Roles::all(),
    };
    let incoming = Incoming::read(&batch.encode_to_vec().into(), &caller).unwrap();
    let told = LostSoFar::default();
    let senders = Senders::default();
    let own = senders.sender(&caller).own_turn().await;
    let turn = senders.turn(own, 1).await;
    let room = senders.queue(turn, 1).await;
    Entry {
        facts: Facts::of(&incoming, seq, told),
        pieces: vec![form.piece(&incoming, told).unwrap()],
        shared: None,
        sightings: None,
        call: Arc::clone(call),
        _room: room,
    }
}

/// The entry with a piece for each of two stores.
fn twice(mut entry: Entry) -> Entry {
    entry.pieces.push(entry.pieces[0].clone());
    entry
}

/// The numbers that a call was told are stored; a failure is 0.
fn told(outcomes: &mut Outcomes) -> Vec<u64> {
    std::iter::from_fn(|| outcomes.try_recv().ok())
        .map(|outcome| match outcome {
            Outcome::Stored(seq) => seq,
            Outcome::Failed(_) => 0,
        })
        .collect()
}

#[tokio::test]
async fn nothing_is_stored_behind_a_batch_of_the_same_call_that_was_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later");
    let (mut writer, streams) = writer([&path]);
    let (first, mut first_told) = call();
    writer.store(vec![entry(&first, 1).await]).await;
    fs::create_dir(&path).unwrap();
    // It could be stored by now, but would acknowledge the one before it.
    writer.store(vec![entry(&first, 2).await]).await;
    assert_eq!((told(&mut first_told), stored_seq(&streams)), (vec![0], 0));
    let (next, mut next_told) = call();
    writer
        .store(vec![entry(&next, 1).await, entry(&next, 2).await])
        .await;
    assert_eq!(
        (told(&mut next_told), stored_seq(&streams)),
        (vec![1, 2], 2)
    );
    let lines = fs::read_to_string(path.join("flows.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 2);
}

#[tokio::test]
async fn a_batch_behind_one_that_a_store_refuses_is_stored_and_not_acknowledged() {
    let port = refuses(vec![2]).await;
    let (mut writer, streams) = writer_to([format!("clickhouse=http://127.0.0.1:{port}/d/t")]);
    let ((broken, mut told_broken), (other, mut told_other)) = (call(), call());
    let mut entries = Vec::new();
    for (call, seq) in [(&broken, 1), (&broken, 2), (&broken, 3), (&other, 4)] {
        entries.push(entry_as(Form::Rows, call, seq).await);
    }
    writer.store(entries).await;
    // An acknowledgement of 3 would include 2.
    assert_eq!(told(&mut told_broken), [1, 0]);
    assert_eq!(told(&mut told_other), [4]);
    // Both are stored: 3 is not stored again when it is repeated.
    let status = &streams.status()[0];
    assert_eq!((status.batches, status.repeated_batches), (3, 0));
    let (again, mut told_again) = call();
    let entry = entry_as(Form::Rows, &again, 3).await;
    writer.store(vec![entry]).await;
    assert_eq!(told(&mut told_again), [3]);
    assert_eq!(streams.status()[0].repeated_batches, 1);
}

#[tokio::test]
async fn what_comes_while_a_store_waits_for_more_is_stored_with_it() {
    let port = refuses(Vec::new()).await;
    let (mut writer, _) = writer_to([format!("clickhouse=http://127.0.0.1:{port}/d/t")]);
    let (queue, entries) = mpsc::channel(4);
    writer.entries = entries;
    let (call, _told) = call();
    writer
        .store(vec![entry_as(Form::Rows, &call, 1).await])
        .await;
    for seq in [3, 4] {
        let entry = entry_as(Form::Rows, &call, seq).await;
        assert!(queue.try_send(entry).is_ok());
    }
    let mut waiting = Vec::new();
    writer.gather(&mut waiting).await;
    assert_eq!((waiting.len(), writer.entries.len()), (0, 2));
    waiting.push(entry_as(Form::Rows, &call, 2).await);
    writer.gather(&mut waiting).await;
    let seqs: Vec<_> = waiting.iter().map(|entry| entry.facts.seq).collect();
    assert_eq!(seqs, [2, 3, 4]);
}

#[tokio::test]
async fn what_a_store_did_not_take_those_behind_it_do_not_get_and_nobody_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let (later, here) = (folder.path().join("later"), folder.path().join("here"));
    fs::create_dir(&here).unwrap();
    let (mut writer, streams) = writer([&later, &here]);
    let ((one, mut told_one), (other, mut told_other)) = (call(), call());
    // The other call has the same batch.
    let entries = [&one, &other].map(async |call| twice(entry(call, 1).await));
    let [first, second] = entries;
    writer.store(vec![first.await, second.await]).await;
    assert_eq!(
        (told(&mut told_one), told(&mut told_other)),
        (vec![0], vec![0])
    );
    assert_eq!(stored_seq(&streams), 0);
    assert!(!here.join("flows.jsonl").exists());
    fs::create_dir(&later).unwrap();
    let (call, mut outcomes) = call();
    writer.store(vec![twice(entry(&call, 1).await)]).await;
    assert_eq!((told(&mut outcomes), stored_seq(&streams)), (vec![1], 1));
    for folder in [&later, &here] {
        let lines = fs::read_to_string(folder.join("flows.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 1);
    }
}

#[tokio::test]
async fn a_store_does_not_get_again_what_only_another_one_could_not_take() {
    let folder = tempfile::tempdir().unwrap();
    let (here, later) = (folder.path().join("here"), folder.path().join("later"));
    fs::create_dir(&here).unwrap();
    let (mut writer, _) = writer([&here, &later]);
    for _ in 0..3 {
        let (call, mut outcomes) = call();
        writer.store(vec![twice(entry(&call, 1).await)]).await;
        assert_eq!(told(&mut outcomes), [0]);
    }
    let status = |writer: &Writer| {
        writer
            .stores
            .iter()
            .map(|store| store.status().get())
            .collect::<Vec<_>>()
    };
    assert!(status(&writer)[1].failing && !status(&writer)[0].failing);
    fs::create_dir(&later).unwrap();
    // Writing nothing says nothing about the disk.
    writer.store(Vec::new()).await;
    assert!(status(&writer)[1].failing);
    let (call, mut outcomes) = call();
    writer
        .store(vec![
            twice(entry(&call, 1).await),
            twice(entry(&call, 2).await),
        ])
        .await;
    assert_eq!(told(&mut outcomes), [1, 2]);
    for (folder, status) in [&here, &later].into_iter().zip(status(&writer)) {
        let lines = fs::read_to_string(folder.join("flows.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 2);
        assert_eq!((status.stored.unwrap().records, status.failing), (2, false));
    }
}

#[tokio::test]
async fn at_the_end_what_nobody_waits_for_is_left_to_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut writer, streams) = writer([folder.path()]);
    let ((gone, outcomes), (here, mut told_here)) = (call(), call());
    drop(outcomes);
    // An agent that was killed sends nothing again.
    writer.store(vec![entry(&gone, 1).await]).await;
    assert_eq!(stored_seq(&streams), 1);
    writer.leaves_out_ended().store(true, Relaxed);
    writer.store(vec![entry(&gone, 2).await]).await;
    assert_eq!(stored_seq(&streams), 1);
    writer.store(vec![entry(&here, 2).await]).await;
    assert_eq!((told(&mut told_here), stored_seq(&streams)), (vec![2], 2));
}

#[tokio::test]
async fn another_batch_with_a_number_that_is_known_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (mut writer, _) = writer([folder.path()]);
    let (call, mut outcomes) = call();
    // A sender that uses the highest number on another's stream does not keep that sender's batches from being stored.
    let mut forged = entry(&call, u64::MAX).await;
    forged.facts.digest = 1;
    writer.store(vec![forged]).await;
    let (mut same, mut other) = (entry(&call, 3).await, entry(&call, 3).await);
    (same.facts.digest, other.facts.digest) = (1, 2);
    writer.store(vec![same]).await;
    writer.store(vec![other]).await;
    assert_eq!(told(&mut outcomes), [u64::MAX, 3, 3]);
    let lines = fs::read_to_string(folder.path().join("flows.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 3);
}

#[tokio::test]
async fn of_two_calls_with_the_same_batches_in_the_queue_one_stores_them_and_both_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let (mut writer, streams) = writer([folder.path()]);
    let ((old, mut old_told), (new, mut new_told)) = (call(), call());
    let mut entries = Vec::new();
    for (call, seq) in [(&old, 1), (&old, 2), (&new, 1), (&new, 2), (&new, 3)] {
        entries.push(entry(call, seq).await);
    }
    writer.store(entries).await;
    assert_eq!(told(&mut old_told), [1, 2]);
    assert_eq!(
        (told(&mut new_told), stored_seq(&streams)),
        (vec![1, 2, 3], 3)
    );
    let lines = fs::read_to_string(folder.path().join("flows.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 3);
    assert_eq!(streams.status()[0].repeated_batches, 2);
}

#[tokio::test]
async fn batches_of_several_agents_can_be_told_apart_by_those_who_compress_them_once() {
    let folder = tempfile::tempdir().unwrap();
    let (mut writer, _) = writer([folder.path()]);
    let mut consumer = writer.hub.subscribe("", "");
    let (one, _told) = call();
    for seq in [1, 2] {
        let mut entry = entry(&one, seq).await;
        // Each agent begins with its first scan.
        entry.shared = Some(Batch {
            body: vec![1].into(),
            records: 1,
            delta: agent_common::Pair::default(),
            scan_id: 1,
            index: 0,
            last_of_scan: true,
        });
        writer.store(vec![entry]).await;
    }
    let (first, second) = (consumer.next().await, consumer.next().await);
    assert_ne!(first.unwrap().id(), second.unwrap().id());
}

#[tokio::test]
async fn what_waits_is_brought_to_the_disk_in_pieces_that_are_not_too_long() {
    let (one, _told) = call();
    let mut entries = Vec::new();
    for (seq, bytes) in [(1, 5), (2, 4), (3, 9), (4, 1)] {
        let mut long = entry(&one, seq).await;
        long.pieces = vec![vec![0; bytes << 20].into()];
        entries.push(long);
    }
    let mut numbers = Vec::new();
    while !entries.is_empty() {
        let later = entries.split_off(together(&entries));
        numbers.push(entries.len());
        entries = later;
    }
    assert_eq!(numbers, [1, 1, 1, 1]);
    let mut short = Vec::new();
    for seq in 1..=3 {
        short.push(entry(&one, seq).await);
    }
    assert_eq!(together(&short), 3);
    // Two bytes each.
    for entry in &mut short {
        entry.facts.volume.records = 1 << 14;
    }
    assert_eq!(together(&short), 2);
}
