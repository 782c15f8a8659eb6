//! A server that fails, hangs, is cut off, answers nonsense, or is absent.

use super::*;

/// The packets that the collector has acknowledged to the agent.
fn acknowledged(agent: &Agent, clickhouse: &ClickHouse) -> Pair {
    pair(&outputs::output(agent, &clickhouse.lab, "collector")["sent"])
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn nothing_is_acknowledged_before_it_is_stored_and_nothing_is_missing_when_it_works_again() {
    const TEST: &str = "agent::nothing_is_acknowledged_before_it_is_stored_and_nothing_is_missing_when_it_works_again";
    let Some(mut clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    clickhouse.keeps_repetitions();
    let (collector, _) = clickhouse.collector(&output(""));
    let to = collector.setting();
    let agent = Agent::start(&clickhouse.lab, &["--output", "json", "--output", &to]);
    let mut sent = send(&clickhouse.lab, 100, 1);
    wait_until_acknowledged(&agent, &clickhouse.lab, sent);
    for (mode, told) in [
        ("fail", "Memory limit exceeded"),
        ("fail_late", "Memory limit exceeded"),
        ("fail_late_in_headers", "241"),
        ("stranger", "is not ClickHouse"),
        ("proxy", "a server in front of ClickHouse at"),
        ("cut", "cannot be reached"),
        ("store_and_cut", "cannot be reached"),
        ("half", "the answer broke off"),
        ("garbage", "cannot be reached"),
        ("hang", "has not answered in time"),
    ] {
        clickhouse.behaves(mode, -1);
        sent += send(&clickhouse.lab, 100, 1);
        wait_until(mode, || clickhouse.store(&collector)["failing"] == true);
        let error = clickhouse.store(&collector)["last_error"].clone();
        assert!(error.as_str().unwrap().contains(told), "{mode}: {error}");
        // Scans without flows were stored before, but nothing since.
        let known = acknowledged(&agent, &clickhouse);
        assert!(
            known.packets < sent.packets,
            "{mode}: {known:?} of {sent:?}"
        );
        clickhouse.behaves("well", 0);
        wait_until_acknowledged(&agent, &clickhouse.lab, sent);
        let there: Pair = clickhouse.sums().into_values().sum();
        assert_eq!(there, sent, "{mode}");
        if mode == "store_and_cut" {
            // The failure may have hit either of the two tables first.
            let [all, once] = ["", "FINAL"].map(|once| {
                let count = |table| format!("(SELECT count() FROM {table} {once})");
                clickhouse.number(&format!(
                    "SELECT {} + {}",
                    count("flows"),
                    count("flows_batches")
                ))
            });
            assert!(
                all > once,
                "what was stored before the connection was cut came again"
            );
        }
        assert_eq!(clickhouse.store(&collector)["failing"], false);
    }

    // Killed, and away for longer than a collector waits.
    clickhouse.kill();
    sent += send(&clickhouse.lab, 100, 1);
    wait_until("it fails", || {
        clickhouse.store(&collector)["failing"] == true
    });
    let error = clickhouse.store(&collector)["last_error"].clone();
    assert!(
        error.as_str().unwrap().contains("cannot be reached"),
        "{error}"
    );
    assert!(acknowledged(&agent, &clickhouse).packets < sent.packets);
    clickhouse.start();
    wait_until_acknowledged(&agent, &clickhouse.lab, sent);
    assert_eq!(agent.stop().seen(), sent);
    let log = collector.stop();
    assert!(log.contains("storing flows again"), "{log}");
    let sums: Vec<_> = clickhouse.sums().into_values().collect();
    assert_eq!(sums, [sent]);
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_server_that_is_not_there_yet_is_waited_for() {
    const TEST: &str = "agent::a_server_that_is_not_there_yet_is_waited_for";
    let Some(mut clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    clickhouse.kill();
    let (collector, socket) = clickhouse.collector(&output(""));
    collector.wait_until_logged("cannot store flows");
    clickhouse.start();
    let (acks, ended) = export(&socket, batches(1..=2));
    assert_eq!(acks.last(), Some(&2), "{ended:?}");
    assert_eq!(clickhouse.store(&collector)["failing"], false);
    collector.stop();
}
