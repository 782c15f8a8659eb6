//! Consumers: many that come and go, and many that do not read.

use agent::wire::ObserveRequest;
use lab::{Lab, privilege::is_root_or_skip};

use crate::{
    client::{Client, OBSERVE, connect_as},
    memory::{MIB, Memory},
    support::{Agent, wait_until},
};

/// Before the mend 3.5 KiB stayed of each until the next scan: 70 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_left_between_two_scans_leave_nothing_behind() {
    const CONSUMERS: u64 = 20_000;
    const CONNECTIONS: u64 = 8;
    if !is_root_or_skip("agent::consumers_that_left_between_two_scans_leave_nothing_behind") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &["--scan-interval", "1h", "--output", "none"]);
    let visits = |address: String, consumers| async move {
        let stream = connect_as(&address, 0).unwrap();
        let mut client = Client::new(stream, 65_535).await.unwrap();
        for _ in 0..consumers {
            let request = ObserveRequest::default();
            let begun = client.begin(OBSERVE, &request).await.unwrap();
            assert_eq!(begun.0.status(), 200);
            assert!(!begun.0.headers().contains_key("grpc-status"));
        }
    };
    // What the first ones take is not given back.
    visits(agent.address(), 100).await;
    let before = Memory::of(agent.pid());
    let all = (0..CONNECTIONS).map(|_| {
        let visits = visits(agent.address(), CONSUMERS / CONNECTIONS);
        tokio::spawn(visits)
    });
    for visits in all.collect::<Vec<_>>() {
        visits.await.unwrap();
    }
    wait_until("the last consumer has left", || {
        agent.status(&lab.agent)["server"]["consumers_left"] == CONSUMERS + 100
    });
    let after = Memory::of(agent.pid());
    assert!(
        after.peak < before.resident + 24 * MIB,
        "{before:?} {after:?}"
    );
    assert_eq!(agent.status(&lab.agent)["consumers"], serde_json::json!([]));
    let log = agent.stop_silent();
    let lines = log.matches("a consumer left").count();
    assert!((1..100).contains(&lines), "{lines} lines");
}
