//! Trusted receivers, and others.

use super::*;

#[test]
fn receivers_over_tls_have_every_flow() {
    if !is_root_or_skip("agent::receivers_over_tls_have_every_flow") {
        return;
    }
    let ca = Ca::new().unwrap();
    let issued = ca.issue("receiver", "localhost").unwrap();
    by_each_way(|way| {
        let lab = Lab::quiet().unwrap();
        let receiver = Receiver::start(&lab, identity(&issued, None));
        let agent = way.start(&lab, "localhost", &receiver, &Files::trusting(&ca));
        let sent = send(&lab, 40, 3);
        wait_until_counted(&agent, &lab, sent.packets);
        way.wait_until_sent(&agent, &lab, sent);
        let output = way.status(&agent, &lab);
        let address = format!("https://localhost:{}", receiver.port);
        assert_eq!(output["address"], address);
        assert_eq!(output["tls"]["client_certificate"], false, "{output}");
        let shown = agent.asked(&lab.agent, &["status"]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        let lines = format!("to {}={address}\n  TLS\n", way.kind());
        assert!(shown.contains(&lines), "{shown}");
        let report = agent.stop();
        assert_eq!(way.got(&receiver), sent, "{way:?}");
        // On one connection, by the protocol that is spoken inside.
        let [Ok(shaken)] = &receiver.handshakes()[..] else {
            panic!("{way:?}: {:?}", receiver.handshakes())
        };
        assert_eq!((&shaken.alpn[..], &shaken.client), (way.alpn(), &None));
        assert_eq!(
            told(&report, "cannot deliver flows to"),
            0,
            "{}",
            report.log
        );
    });
}

/// Nothing is sent to anyone else: flows wait, to the packet, until the right receiver is there.
#[test]
fn a_receiver_that_is_not_the_one_that_is_meant_gets_nothing() {
    if !is_root_or_skip("agent::a_receiver_that_is_not_the_one_that_is_meant_gets_nothing") {
        return;
    }
    let [ours, theirs] = [Ca::new().unwrap(), Ca::new().unwrap()];
    let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
    let issued = |name: &str, validity| ours.issue_for(name, "localhost", validity).unwrap();
    let good = issued("good", [now - hour, now + hour]);
    let old = issued("old", [now - 2 * hour, now - hour]);
    let young = issued("young", [now + hour, now + 2 * hour]);
    let other_name = ours.issue("other", "other.example").unwrap();
    let stranger = theirs.issue("stranger", "localhost").unwrap();
    for (way, shown, words) in [
        (
            Way::OtlpGrpc,
            &stranger,
            &["not from a CA that is trusted here", "(tls_ca)"][..],
        ),
        (
            Way::OtlpHttp,
            &other_name,
            &["other.example", "connect by a name that it has"],
        ),
        (Way::Pbflow, &old, &["it expired at", "renew it"]),
        (
            Way::Pbflow,
            &young,
            &["it is valid only from", "check the clocks"],
        ),
        (
            Way::OtlpHttp,
            &stranger,
            &["not from a CA that is trusted here"],
        ),
        (Way::Pbflow, &other_name, &["other.example"]),
        (Way::Collector, &old, &["it expired at", "renew it"]),
        (
            Way::Collector,
            &stranger,
            &["not from a CA that is trusted here"],
        ),
    ] {
        let lab = Lab::quiet().unwrap();
        let receiver = Receiver::start(&lab, identity(shown, None));
        let agent = way.start(&lab, "localhost", &receiver, &Files::trusting(&ours));
        let sent = send(&lab, 40, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("it was tried twice", || {
            let output = way.status(&agent, &lab);
            assert_eq!(fates(&output, sent)["queued"], sent, "{way:?}: {output}");
            receiver.handshakes().len() >= 2 && output["failing"] == true
        });
        let output = way.status(&agent, &lab);
        let error = output["last_error"].as_str().unwrap();
        assert!(words.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(output["failures"], 1);
        assert!(receiver.requests().is_empty());
        assert!(receiver.handshakes().iter().all(Result::is_err));

        receiver.becomes(identity(&good, None));
        way.wait_until_sent(&agent, &lab, sent);
        let report = agent.stop();
        assert_eq!(report.seen(), sent);
        assert_eq!(way.got(&receiver), sent, "{way:?}");
        assert_eq!(
            told(&report, "cannot deliver flows to"),
            1,
            "{}",
            report.log
        );
        assert_eq!(told(&report, words[0]), 1, "{}", report.log);
        assert_eq!(told(&report, "delivering flows to"), 1, "{}", report.log);
    }
}

/// Only the CA in the file counts, whatever the system trusts.
#[test]
fn what_was_never_trusted_is_lost_to_the_packet_at_the_end() {
    if !is_root_or_skip("agent::what_was_never_trusted_is_lost_to_the_packet_at_the_end") {
        return;
    }
    let [ours, theirs] = [Ca::new().unwrap(), Ca::new().unwrap()];
    let issued = theirs.issue("receiver", "127.0.0.1").unwrap();
    by_each_way(|way| {
        let lab = Lab::quiet().unwrap();
        let receiver = Receiver::start(&lab, identity(&issued, None));
        let agent = way.start(&lab, "127.0.0.1", &receiver, &Files::trusting(&ours));
        let sent = send(&lab, 20, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("it fails", || way.status(&agent, &lab)["failing"] == true);
        let report = agent.stop();
        assert_eq!(report.seen(), sent);
        let lost = format!("lost_packets={} lost_bytes={}", sent.packets, sent.bytes);
        assert!(report.log.contains(&lost), "{}", report.log);
        assert!(receiver.requests().is_empty());
    });
}

#[test]
fn a_receiver_that_asks_for_a_certificate_gets_flows_from_those_who_have_one() {
    if !is_root_or_skip(
        "agent::a_receiver_that_asks_for_a_certificate_gets_flows_from_those_who_have_one",
    ) {
        return;
    }
    let [ours, theirs] = [Ca::new().unwrap(), Ca::new().unwrap()];
    let issued = ours.issue("receiver", "localhost").unwrap();
    let good = ours.issue("agent", "an agent").unwrap();
    let stranger = theirs.issue("agent", "an agent").unwrap();
    let asks = "it asks for a client's certificate";
    let refuses = "it refuses the client's certificate";
    let by_tls13 = identity(&issued, Some(&ours));
    let by_tls12 = identity_of_tls12(&issued, Some(&ours));
    by_each_way(|way| {
        for (identity, own, words) in [
            (&by_tls13, Some(&good), None),
            (&by_tls12, Some(&good), None),
            (&by_tls13, None, Some(asks)),
            (&by_tls12, None, Some("it ")),
            (&by_tls13, Some(&stranger), Some(refuses)),
            (&by_tls12, Some(&stranger), Some(refuses)),
        ] {
            let lab = Lab::quiet().unwrap();
            let receiver = Receiver::start(&lab, identity.clone());
            let files = match own {
                Some(own) => Files::with(&ours, own),
                None => Files::trusting(&ours),
            };
            let agent = way.start(&lab, "localhost", &receiver, &files);
            let sent = send(&lab, 20, 2);
            wait_until_counted(&agent, &lab, sent.packets);
            let Some(words) = words else {
                way.wait_until_sent(&agent, &lab, sent);
                let output = way.status(&agent, &lab);
                assert_eq!(output["tls"]["client_certificate"], true, "{output}");
                agent.stop();
                assert_eq!(way.got(&receiver), sent, "{way:?}");
                let handshakes = receiver.handshakes();
                let [Ok(shaken)] = &handshakes[..] else {
                    panic!("{way:?}: {handshakes:?}")
                };
                assert_eq!(shaken.client, Some(der(&good)));
                continue;
            };
            wait_until("it is told", || {
                let output = way.status(&agent, &lab);
                assert_eq!(fates(&output, sent)["queued"], sent, "{way:?}: {output}");
                output["failing"] == true
            });
            let report = agent.stop();
            assert_eq!(
                told(&report, "cannot deliver flows to"),
                1,
                "{}",
                report.log
            );
            assert_eq!(told(&report, words).min(1), 1, "{way:?}: {}", report.log);
            let lost = format!("lost_packets={}", sent.packets);
            assert!(report.log.contains(&lost), "{}", report.log);
            assert!(receiver.requests().is_empty());
        }
    });
}
