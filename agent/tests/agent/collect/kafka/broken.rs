//! Brokers that are killed, hang, move their partitions to others, or are absent.

use std::time::Duration;

use super::*;

/// The packets that the collector has acknowledged to the agent.
fn acknowledged(agent: &Agent, kafka: &Kafka) -> Pair {
    pair(&outputs::output(agent, &kafka.lab, "collector")["sent"])
}

#[test]
fn what_is_acknowledged_is_in_the_topic_and_all_else_comes_when_the_broker_is_back() {
    const TEST: &str =
        "agent::what_is_acknowledged_is_in_the_topic_and_all_else_comes_when_the_broker_is_back";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let lab = &kafka.lab;
    let mut broker = kafka.broker(&BrokerOptions::default());
    let output = setting(&broker.address(), r#", "create_topic": true"#);
    let (collector, _) = kafka.collector(&output);
    let to = collector.setting();
    let agent = Agent::start(lab, &["--output", "json", "--output", &to]);
    let mut sent = send(lab, 300, 1);
    wait_until_acknowledged(&agent, lab, sent);

    // Killed, and away for longer than a collector waits.
    broker.kill().unwrap();
    let before = sent;
    sent += send(lab, 300, 2);
    wait_until("it says that it fails", || {
        store(&collector, &kafka)["failing"] == true
    });
    let failing = store(&collector, &kafka);
    let error = failing["last_error"].as_str().unwrap();
    assert!(error.contains("cannot reach broker"), "{error}");
    assert_eq!(acknowledged(&agent, &kafka), before);
    sent += send(lab, 100, 1);
    broker.start_again().unwrap();
    wait_until_acknowledged(&agent, lab, sent);
    assert_eq!(store(&collector, &kafka)["failing"], false);
    let lines = |text: &str| collector.log().matches(text).count();
    wait_until("the log says that it stores again", || {
        lines("storing flows again") > 0
    });
    // One line for each further reason: the broker is gone, a partition has no leader yet, it is slow.
    assert!((1..=4).contains(&lines("cannot store flows")));

    // It hangs: its connections stay, and nobody answers.
    broker.signal(libc::SIGSTOP).unwrap();
    let before = sent;
    sent += send(lab, 300, 1);
    wait_until("it says that it fails", || {
        store(&collector, &kafka)["failing"] == true
    });
    assert_eq!(acknowledged(&agent, &kafka), before);
    broker.signal(libc::SIGCONT).unwrap();
    wait_until_acknowledged(&agent, lab, sent);

    // Killed again, while batches arrive.
    for flows in [50, 100, 150] {
        sent += send(lab, flows, 1);
    }
    broker.kill().unwrap();
    let known = acknowledged(&agent, &kafka);
    sent += send(lab, 200, 1);
    broker.start_again().unwrap();
    let there: Pair = sums(&kafka.messages(&broker)).into_values().sum();
    assert!(there.packets >= known.packets, "{there:?} {known:?}");
    wait_until_acknowledged(&agent, lab, sent);
    assert_eq!(agent.stop().seen(), sent);
    collector.stop();
    let sums: Vec<_> = sums(&kafka.messages(&broker)).into_values().collect();
    assert_eq!(sums, [sent]);
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_batch_is_acknowledged_when_all_replicas_have_it_and_another_leader_is_found() {
    const TEST: &str =
        "agent::a_batch_is_acknowledged_when_all_replicas_have_it_and_another_leader_is_found";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let mut replicated = BrokerOptions::default();
    for (name, value) in [
        ("default.replication.factor", "2"),
        // Others count as gone soon.
        ("replica.lag.time.max.ms", "2000"),
        ("broker.session.timeout.ms", "3000"),
    ] {
        replicated
            .settings
            .push((name.to_owned(), value.to_owned()));
    }
    let first = kafka.broker(&replicated);
    let mut second = kafka.broker(&BrokerOptions {
        node: 2,
        ..replicated
    });
    let [address, other] = [first.address(), second.address()];
    let more = format!(r#", "create_topic": true, "failover": "{other}""#);
    let (collector, socket) = kafka.collector(&setting(&address, &more));
    let names: Vec<_> = (0..6).map(|number| format!("agent-{number}")).collect();
    let mut seq = 0;
    let mut store_one_of_each = |count: u64| {
        seq += count;
        let numbers = seq + 1 - count..=seq;
        let (socket, names) = (&socket, &names);
        runtime().block_on(async move {
            let mut client = connect(socket).await;
            let mut all = Vec::new();
            for (name, stream_id) in names.iter().zip(1..) {
                let batches = numbers.clone().map(|seq| of_agent(name, stream_id, seq));
                all.push(call(&mut client, batches.collect()).await);
            }
            all
        })
    };
    for (acks, ended) in store_one_of_each(1) {
        assert_eq!(acks, [1], "{ended:?}");
    }

    // Both of the two replicas must be in sync. The second broker led some of the partitions.
    let altered = ["--alter", "--entity-type", "topics", "--entity-name", TOPIC];
    let both = ["--add-config", "min.insync.replicas=2"];
    first.configure(&[&altered[..], &both].concat()).unwrap();
    second.kill().unwrap();
    wait_until("too few replicas are in sync", || {
        let told = store_one_of_each(1);
        let refused = |told: &(Vec<u64>, Result<(), tonic::Status>)| {
            let said = told.1.as_ref().err();
            told.0.is_empty()
                && said.is_some_and(|said| {
                    said.code() == Code::Unavailable
                        && said.message().contains("min.insync.replicas")
                })
        };
        told.iter().all(refused)
    });
    let one = ["--add-config", "min.insync.replicas=1"];
    first.configure(&[&altered[..], &one].concat()).unwrap();
    wait_until("the first broker leads all partitions", || {
        store_one_of_each(1).iter().all(|(acks, _)| acks.len() == 1)
    });

    // And back again, to the other one alone.
    second.start_again().unwrap();
    wait_until("all is stored", || {
        store_one_of_each(1).iter().all(|(acks, _)| acks.len() == 1)
    });
    let log = collector.stop();
    assert!(log.contains("storing flows again"), "{log}");
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_partition_without_a_leader_holds_up_its_own_agents_and_refuses_no_others() {
    const TEST: &str =
        "agent::a_partition_without_a_leader_holds_up_its_own_agents_and_refuses_no_others";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let options = BrokerOptions {
        // Others count as gone soon.
        settings: vec![("broker.session.timeout.ms".into(), "3000".into())],
        ..BrokerOptions::default()
    };
    let first = kafka.broker(&options);
    let mut second = kafka.broker(&BrokerOptions { node: 2, ..options });
    let address = first.address();
    // Each of the brokers leads one, and nobody else has it. Three of the agents belong to each.
    kafka.client(&address, &["create", TOPIC, "2"]);
    let (collector, socket) = kafka.collector(&setting(&address, ""));
    let names: Vec<_> = (3..9).map(|number| format!("agent-{number}")).collect();
    let runtime = runtime();
    let one_of = |place: usize, seq: u64| {
        let (name, socket) = (names[place].clone(), socket.clone());
        async move {
            let mut client = connect(&socket).await;
            call(&mut client, vec![of_agent(&name, place as u64 + 1, seq)]).await
        }
    };
    runtime.block_on(async {
        for place in 0..names.len() {
            let (acks, ended) = one_of(place, 1).await;
            assert_eq!(acks, [1], "{ended:?}");
        }
    });
    second.kill().unwrap();
    // Not before they have waited for the leader.
    let mut without = Vec::new();
    wait_until("the partition has no leader", || {
        let told = runtime.block_on(futures_util::future::join_all(
            (0..names.len()).map(|place| one_of(place, 2)),
        ));
        let refused = |told: &(Vec<u64>, Result<(), tonic::Status>)| {
            let said = told.1.as_ref().err();
            said.is_some_and(|said| said.message().contains("has no leader"))
        };
        without = told.iter().map(refused).collect();
        without.contains(&true)
    });
    assert!(without.contains(&false), "{without:?}");
    runtime.block_on(async {
        let (mut healthy, mut refused) = (0, 0);
        for seq in 3..23 {
            let all = (0..names.len()).map(|place| one_of(place, seq));
            let told = futures_util::future::join_all(all).await;
            for ((acks, ended), without) in told.into_iter().zip(&without) {
                if *without {
                    assert!(ended.unwrap_err().message().contains("has no leader"));
                    refused += 1;
                } else {
                    assert_eq!(acks, [seq], "{ended:?}");
                    healthy += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(healthy > 0 && refused > 0);
    });
    second.start_again().unwrap();
    wait_until("all is stored", || {
        (0..names.len()).all(|place| {
            let (acks, _) = runtime.block_on(one_of(place, 23));
            acks == [23]
        })
    });
    let log = collector.stop();
    assert!(log.contains("storing flows again"), "{log}");
}

#[test]
fn without_a_broker_agents_keep_their_batches_and_a_collector_ends_when_it_is_told() {
    const TEST: &str =
        "agent::without_a_broker_agents_keep_their_batches_and_a_collector_ends_when_it_is_told";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("socket").display());
    // Nobody listens at the first address, and the second one is a name that does not resolve.
    let away = setting("127.0.0.1:9092", r#", "failover": "nowhere.invalid:9092""#);
    let settings = ["--output", &away, "--listen", &socket];
    let collector = Collector::start(&lab.agent, 0, &settings);
    collector.wait_until_logged("cannot store flows");
    let log = collector.log();
    for part in [
        "cannot reach broker 127.0.0.1:9092",
        "cannot reach broker nowhere.invalid:9092",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let status = collector.status(&lab.agent);
    assert_eq!(status["stores"][0]["failing"], true);
    let to = collector.setting();
    let agent = Agent::start(&lab, &["--output", "json", "--output", &to]);
    let sent = send(&lab, 100, 1);
    wait_until("it is refused", || {
        let output = outputs::output(&agent, &lab, "collector");
        let error = output["last_error"].as_str().unwrap();
        error.contains("cannot store flows") && error.contains("cannot reach broker 127.0.0.1:9092")
    });
    let output = outputs::output(&agent, &lab, "collector");
    assert_eq!(pair(&output["sent"]), Pair::default());
    wait_until("it keeps them", || {
        let output = outputs::output(&agent, &lab, "collector");
        pair(&output["queued"]).packets == sent.packets
    });
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        let (acks, ended) = call(&mut client, vec![batch(1, 1)]).await;
        assert!(acks.is_empty());
        assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    });
    // Its agent has batches in it.
    let log = collector.stop();
    // Another line for each other reason, since a resolver may be slow.
    let lines = log.matches("cannot store flows").count();
    assert!((1..=2).contains(&lines), "{log}");
    agent.kill();
}
