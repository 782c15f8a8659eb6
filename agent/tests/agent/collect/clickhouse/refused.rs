//! Faults that an operator must fix: tables, columns, logins. And batches that a table does not take.

use std::process::Stdio;

use lab::certificates::Ca;

use super::*;

/// The error of a collector that does not start.
fn refusal(clickhouse: &ClickHouse, setting: &str) -> String {
    let mut command = flow_agent(&clickhouse.lab.agent);
    command
        .args(["collect", "--listen", "127.0.0.1:0", "--output", setting])
        .stdout(Stdio::null());
    let ended = command.output().unwrap();
    assert!(!ended.status.success());
    String::from_utf8(ended.stderr).unwrap()
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_table_or_column_that_is_not_there_is_told_in_one_line_and_may_come() {
    const TEST: &str =
        "agent::a_table_or_column_that_is_not_there_is_told_in_one_line_and_may_come";
    let Some(clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    let other = |name: &str| format!("clickhouse=http://127.0.0.1:{PORT}/{name}");
    for (address, told) in [
        (
            "netflow/others",
            "there is no table netflow.others, create it with flows.sql",
        ),
        (
            "nowhere/flows",
            "there is no table nowhere.flows, create it with flows.sql",
        ),
    ] {
        let refusal = refusal(&clickhouse, &other(address));
        assert!(refusal.contains(told), "{refusal}");
        let of_us = refusal
            .lines()
            .filter(|line| line.starts_with("flow-agent: "));
        assert_eq!(of_us.count(), 1, "{refusal}");
    }
    for (spoil, told, repair) in [
        (
            "ALTER TABLE flows DROP COLUMN dscp",
            "table netflow.flows lacks columns of this version",
            "ALTER TABLE flows ADD COLUMN dscp Nullable(UInt8)",
        ),
        (
            "RENAME TABLE flows_batches TO away",
            "there is no table netflow.flows_batches",
            "RENAME TABLE away TO flows_batches",
        ),
    ] {
        let next = clickhouse.number("SELECT count() FROM flows_batches FINAL") + 1;
        // One collector logs a further fault only after a while.
        let (collector, socket) = clickhouse.collector(&output(""));
        clickhouse.ask(spoil);
        let (acks, ended) = export(&socket, batches(next..=next));
        assert!(acks.is_empty(), "{acks:?}");
        let ended = ended.unwrap_err();
        assert_eq!(ended.code(), Code::Unavailable);
        assert!(ended.message().contains(told), "{ended}");
        let store = clickhouse.store(&collector);
        assert_eq!(store["failing"], true);
        assert!(
            store["last_error"].as_str().unwrap().contains(told),
            "{store}"
        );
        let log = collector.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("cannot store flows"));
        assert_eq!(lines.filter(|line| line.contains(told)).count(), 1, "{log}");
        clickhouse.ask(repair);
        wait_until("it is stored", || {
            export(&socket, batches(next..=next)).0 == [next]
        });
        assert_eq!(clickhouse.store(&collector)["failing"], false);
        collector.stop();
    }
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_batch_that_the_table_does_not_take_is_refused_alone() {
    const TEST: &str = "agent::a_batch_that_the_table_does_not_take_is_refused_alone";
    let Some(clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    clickhouse.ask("ALTER TABLE flows ADD CONSTRAINT small CHECK scan_id < 1000");
    let more = r#", "insert_every": "3s""#;
    let (collector, socket) = clickhouse.collector(&output(more));
    assert_eq!(export(&socket, batches(1..=1)).0, [1]);
    // Those of all calls are gathered for the next insert.
    runtime().block_on(async {
        let calls = (1..=9).map(|stream_id| {
            let socket = socket.clone();
            async move {
                let mut client = connect(&socket).await;
                let is_refused = stream_id == 5;
                let of_it = FlowBatch {
                    stream_id,
                    scan_id: if is_refused { 1000 } else { 1 },
                    ..batch(1, 2)
                };
                let (acks, ended) = call(&mut client, vec![of_it]).await;
                if is_refused {
                    let ended = ended.unwrap_err();
                    assert!(ended.message().contains("does not take a batch"), "{ended}");
                } else {
                    assert_eq!(acks, [1], "{ended:?}");
                }
            }
        });
        futures_util::future::join_all(calls).await;
    });
    // And days of agents with wrong clocks: an insert takes a hundred.
    let today = batch(1, 1).window_end_unix_ns;
    let days = (2..=150).map(|seq| FlowBatch {
        window_start_unix_ns: today - seq * 24 * 3600 * 1_000_000_000,
        window_end_unix_ns: today - seq * 24 * 3600 * 1_000_000_000,
        ..batch(seq, 1)
    });
    let (acks, ended) = export(&socket, days.collect());
    assert_eq!(acks.last(), Some(&150), "{ended:?}");
    collector.stop();
    assert_eq!(clickhouse.number("SELECT count() FROM flows_streams"), 9);
    assert_eq!(
        clickhouse.number("SELECT uniqExact(toDate(window_end)) FROM flows_once"),
        150
    );
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn only_who_is_trusted_gets_a_password_and_only_who_knows_one_stores() {
    const TEST: &str = "agent::only_who_is_trusted_gets_a_password_and_only_who_knows_one_stores";
    let [ca, stranger] = [(); 2].map(|()| Ca::new().unwrap());
    let issued = ca.issue("clickhouse", "127.0.0.1").unwrap();
    let (certificate, key) = (issued.certificate.display(), issued.key.display());
    let tls = format!("8443:{certificate}:{key}");
    let options = ["--user", "me:secret", "--tls", &tls];
    let Some(clickhouse) = ClickHouse::with_or_skip(TEST, &options) else {
        return;
    };
    let password = clickhouse.folder.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    let setting = |ca: &Ca, user: &str| {
        let (ca, password) = (ca.file(), &password);
        serde_json::json!({
            "kind": "clickhouse", "address": format!("https://127.0.0.1:8443/{DATABASE}/flows"),
            "tls_ca": ca, "user": user, "password_file": password,
        })
        .to_string()
    };
    let refused = "check user and password_file";
    for (setting, told) in [(output(""), refused), (setting(&ca, "you"), refused)] {
        let refusal = refusal(&clickhouse, &setting);
        assert!(refusal.contains(told), "{refusal}");
        assert!(!refusal.contains("secret"), "{refusal}");
        let of_us = refusal
            .lines()
            .filter(|line| line.starts_with("flow-agent: "));
        assert_eq!(of_us.count(), 1, "{refusal}");
    }
    // An untrusted server may become a trusted ClickHouse later.
    let (collector, _) = clickhouse.collector(&setting(&stranger, "me"));
    collector.wait_until_logged("name the file of its CA (tls_ca)");
    collector.stop();

    let (collector, socket) = clickhouse.collector(&setting(&ca, "me"));
    assert_eq!(export(&socket, batches(1..=1)).0, [1]);
    // It is read again for each insert.
    fs::write(&password, "wrong\n").unwrap();
    let (acks, ended) = export(&socket, batches(2..=2));
    assert!(acks.is_empty(), "{acks:?}");
    assert!(ended.unwrap_err().message().contains(refused));
    fs::write(&password, "secret\n").unwrap();
    wait_until("it is stored", || export(&socket, batches(2..=2)).0 == [2]);
    let log = collector.stop();
    assert!(!log.contains("secret") && !log.contains("wrong"), "{log}");
}
