//! Tests against a server that accepts, refuses or breaks INSERTs as the test says.

use prost::Message as _;
use proto::FlowRecord;

use super::*;

mod server;

use server::{Deed, Server, Shared, listen, lock};

const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

async fn start(server: Server, patience: Duration) -> (ClickHouse, Shared) {
    let (port, shared) = listen(server).await;
    let settings = Settings {
        to: HostPort {
            host: "127.0.0.1".to_owned(),
            port,
        },
        database: "d".to_owned(),
        table: "t".to_owned(),
        login: Some(Login {
            user: "me".to_owned(),
            password_file: None,
        }),
        insert_every: Duration::from_secs(1),
    };
    let mut clickhouse = ClickHouse::new(settings, None);
    clickhouse.patience = patience;
    (clickhouse, shared)
}

fn batch(seq: u64) -> FlowBatch {
    FlowBatch {
        stream_id: 1,
        stream_seq: seq,
        records: vec![FlowRecord::default(); 2],
        ..FlowBatch::default()
    }
}

fn encoded(batches: impl IntoIterator<Item = FlowBatch>) -> Vec<Bytes> {
    let encoded = batches
        .into_iter()
        .map(|batch| batch.encode_to_vec().into());
    encoded.collect()
}

fn are_stored(fates: &[StoreResult]) -> Vec<bool> {
    fates.iter().map(Result::is_ok).collect()
}

#[tokio::test]
async fn records_come_before_their_batches_and_a_login_in_headers() {
    let (mut clickhouse, server) = start(Server::default(), PATIENCE).await;
    assert_eq!(clickhouse.begin().await.unwrap(), None);
    let idle = FlowBatch {
        records: Vec::new(),
        ..batch(3)
    };
    let fates = clickhouse.store(&encoded([batch(1), batch(2), idle])).await;
    assert_eq!(fates, [Ok(()), Ok(()), Ok(())]);
    let server = lock(&server);
    let expected = [
        (false, vec![]),
        (true, vec![]),
        (false, vec![1, 2]),
        (true, vec![1, 2, 3]),
    ];
    assert_eq!(server.taken, expected);
    for head in &server.heads {
        assert!(
            head.starts_with("POST /?query=INSERT%20INTO%20d.t"),
            "{head}"
        );
        for part in [
            "%29%20FORMAT%20Parquet&",
            "&wait_end_of_query=1&async_insert=0&insert_distributed_sync=1&",
            "x-clickhouse-user: me\r\n",
        ] {
            assert!(head.contains(part), "{head}");
        }
        assert!(!head.contains("x-clickhouse-key"), "{head}");
    }
}

#[tokio::test]
async fn a_password_is_read_for_each_insert() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let (mut clickhouse, server) = start(Server::default(), PATIENCE).await;
    let login = Login {
        user: "me".to_owned(),
        password_file: Some(PasswordFile::new(&file)),
    };
    Arc::get_mut(&mut clickhouse.settings).unwrap().login = Some(login);
    for (seq, password) in [(1, "open"), (2, "sesame")] {
        std::fs::write(&file, password).unwrap();
        assert_eq!(clickhouse.store(&encoded([batch(seq)])).await, [Ok(())]);
    }
    let heads = &lock(&server).heads;
    for (head, password) in heads.iter().zip(["open", "open", "sesame", "sesame"]) {
        let header = format!("x-clickhouse-key: {password}\r\n");
        assert!(head.contains(&header), "{head}");
    }
    assert_eq!(heads.len(), 4);
}

#[tokio::test]
async fn what_passes_is_tried_again_until_it_is_stored() {
    const LATE: &str = "HTTP/1.1 200 OK\r\nx-clickhouse-query-id: 1\r\ncontent-length: 28\r\n\r\nCode: 241. DB::Exception: Too";
    for deed in [
        Deed::Say(
            "HTTP/1.1 500 Oh\r\nx-clickhouse-exception-code: 241\r\ncontent-length: 0\r\n\r\n",
        ),
        Deed::Say(
            "HTTP/1.1 200 OK\r\nx-clickhouse-exception-code: 241\r\ncontent-length: 0\r\n\r\n",
        ),
        Deed::Say("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"),
        Deed::Say(LATE),
        Deed::Say("what is this\r\n\r\n"),
        Deed::SayAndCut(
            "HTTP/1.1 200 OK\r\nx-clickhouse-query-id: 1\r\ncontent-length: 9\r\n\r\nhalf",
        ),
        Deed::Cut,
    ] {
        let deeds = [deed, Deed::Cut, deed].into();
        let server = Server {
            deeds,
            ..Server::default()
        };
        let (mut clickhouse, server) = start(server, PATIENCE).await;
        let fates = clickhouse.store(&encoded([batch(1)])).await;
        assert_eq!(fates, [Ok(())], "{deed:?}");
        let server = lock(&server);
        assert_eq!(server.taken, [(false, vec![1]), (true, vec![1])]);
        assert_eq!(server.heads.len(), 5, "{deed:?}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_and_what_comes_next_is_told_at_once() {
    let server = Server {
        deeds: vec![Deed::Hang; 1].into(),
        ..Server::default()
    };
    let (mut clickhouse, server) = start(server, Duration::from_secs(1)).await;
    let fates = clickhouse.store(&encoded([batch(1), batch(2)])).await;
    for fate in &fates {
        let why = fate.as_ref().unwrap_err();
        assert!(why.contains("has not answered in time"), "{why}");
    }
    // So that the test does not depend on this machine's speed.
    let (failed_at, _) = clickhouse.failed.as_mut().unwrap();
    *failed_at += Duration::from_hours(1);
    assert_eq!(
        are_stored(&clickhouse.store(&encoded([batch(1)])).await),
        [false]
    );
    assert_eq!(lock(&server).heads.len(), 1);
    clickhouse.failed = None;
    assert_eq!(
        are_stored(&clickhouse.store(&encoded([batch(1)])).await),
        [true]
    );
}

#[tokio::test]
async fn batches_that_are_refused_are_refused_alone() {
    let server = Server {
        refused: vec![3, 8],
        ..Server::default()
    };
    let (mut clickhouse, server) = start(server, PATIENCE).await;
    let fates = clickhouse.store(&encoded((1..=10).map(batch))).await;
    let stored: Vec<_> = (1..=10).map(|seq| ![3, 8].contains(&seq)).collect();
    assert_eq!(are_stored(&fates), stored);
    let taken = &lock(&server).taken;
    for is_of_batches in [false, true] {
        let of_it = taken.iter().filter(|one| one.0 == is_of_batches);
        let numbers: Vec<_> = of_it.flat_map(|one| one.1.clone()).collect();
        assert_eq!(numbers, [1, 2, 4, 5, 6, 7, 9, 10]);
    }
}

#[tokio::test]
async fn what_somebody_has_to_change_is_told_at_once_and_nothing_else_is_tried() {
    const NO_TABLE: &str =
        "HTTP/1.1 404 No\r\nx-clickhouse-exception-code: 60\r\ncontent-length: 8\r\n\r\nCode: 60";
    let server = Server {
        deeds: vec![Deed::Say(NO_TABLE); 2].into(),
        ..Server::default()
    };
    let (mut clickhouse, server) = start(server, PATIENCE).await;
    let refusal = clickhouse.begin().await.unwrap_err().to_string();
    assert_eq!(
        refusal,
        "there is no table d.t, create it with flows.sql: ClickHouse says: Code: 60"
    );
    let fates = clickhouse.store(&encoded([batch(1), batch(2)])).await;
    assert_eq!(are_stored(&fates), [false, false]);
    assert_eq!(lock(&server).heads.len(), 2);
}

#[tokio::test]
async fn what_is_not_come_to_is_not_stored() {
    const NO_TABLE: &str =
        "HTTP/1.1 404 No\r\nx-clickhouse-exception-code: 60\r\ncontent-length: 8\r\n\r\nCode: 60";
    let server = Server {
        deeds: [Deed::Take, Deed::Take, Deed::Take, Deed::Say(NO_TABLE)].into(),
        ..Server::default()
    };
    let (mut clickhouse, server) = start(server, PATIENCE).await;
    let days = (1..=150).map(|day| FlowBatch {
        window_end_unix_ns: day * DAY_NS,
        ..batch(day)
    });
    let fates = clickhouse.store(&encoded(days)).await;
    // The second group's records are stored, its batches are not.
    let stored: Vec<_> = (1..=150).map(|day| day <= 50).collect();
    assert_eq!(are_stored(&fates), stored);
    assert_eq!(lock(&server).heads.len(), 4);
}

/// Stores the batches again and again, as agents would, until only `failing` are left. Returns the number of rounds.
async fn keep_until_only(clickhouse: &mut ClickHouse, failing: &[u64], batches: Vec<u64>) -> usize {
    let mut waiting = batches;
    for times in 1..=20 {
        let fates = clickhouse
            .store(&encoded(waiting.iter().copied().map(batch)))
            .await;
        let mut is_stored = are_stored(&fates).into_iter();
        waiting.retain(|_| !is_stored.next().unwrap());
        // Agents wait longer before they retry.
        clickhouse.failed = None;
        if waiting == failing {
            return times;
        }
    }
    panic!("{waiting:?} are not stored");
}

#[tokio::test]
async fn a_batch_that_fails_in_a_view_does_not_keep_others_from_being_stored() {
    // The failing batch's position does not matter.
    for bad in [1, 7, 16] {
        let server = Server {
            thrown: vec![bad],
            ..Server::default()
        };
        let (mut clickhouse, server) = start(server, Duration::from_secs(20)).await;
        let times = keep_until_only(&mut clickhouse, &[bad], (1..=16).collect()).await;
        assert!(times <= 8, "{times}");
        // Its agent gets the error, and other batches are stored.
        let fates = clickhouse.store(&encoded([bad, 17].map(batch))).await;
        assert_eq!(are_stored(&fates), [false, true]);
        assert!(fates[0].as_ref().unwrap_err().contains("Code: 395"));
        lock(&server).thrown.clear();
        let all: Vec<_> = (1..=16).collect();
        while !lock(&server).taken.contains(&(true, all.clone())) {
            keep_until_only(&mut clickhouse, &[], all.clone()).await;
        }
    }
}

#[tokio::test]
async fn a_slow_server_gets_fewer_at_once_and_gets_on() {
    let server = Server {
        slow: Duration::from_millis(200),
        ..Server::default()
    };
    // Half of the batches take longer than the limit.
    let (mut clickhouse, server) = start(server, Duration::from_secs(2)).await;
    let times = keep_until_only(&mut clickhouse, &[], (1..=16).collect()).await;
    assert!(times > 1);
    assert!(clickhouse.most < 16, "{}", clickhouse.most);
    lock(&server).slow = Duration::ZERO;
    while clickhouse.most < 16 {
        keep_until_only(&mut clickhouse, &[], (1..=16).collect()).await;
    }
}
