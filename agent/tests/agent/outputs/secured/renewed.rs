//! Certificates that are replaced while the agent runs.

use super::*;

/// Issues by another CA into the same files.
fn issue_anew(issued: &Issued) -> Ca {
    let ca = Ca::new().unwrap();
    let new = ca.issue("new", "an agent").unwrap();
    for (new, old) in [
        (&new.key, &issued.key),
        (&new.certificate, &issued.certificate),
    ] {
        replace(old, &fs::read_to_string(new).unwrap()).unwrap();
    }
    ca
}

#[test]
fn a_ca_and_a_certificate_that_are_replaced_are_in_force_without_a_restart() {
    if !is_root_or_skip(
        "agent::a_ca_and_a_certificate_that_are_replaced_are_in_force_without_a_restart",
    ) {
        return;
    }
    by_each_way(|way| {
        let (server_ca, client_ca) = (Ca::new().unwrap(), Ca::new().unwrap());
        let own = client_ca.issue("agent", "an agent").unwrap();
        let issued = server_ca.issue("receiver", "localhost").unwrap();
        let lab = Lab::quiet().unwrap();
        let receiver = Receiver::start(&lab, identity(&issued, Some(&client_ca)));
        let files = Files::with(&server_ca, &own);
        let agent = way.start(&lab, "localhost", &receiver, &files);
        let mut sent = send(&lab, 20, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        way.wait_until_sent(&agent, &lab, sent);

        // The receiver has another CA, and so has the agent.
        let other = Ca::new().unwrap();
        let issued = other.issue("receiver", "localhost").unwrap();
        replace(
            &server_ca.file(),
            &fs::read_to_string(other.file()).unwrap(),
        )
        .unwrap();
        receiver.becomes(identity(&issued, Some(&client_ca)));
        sent += send(&lab, 20, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        way.wait_until_sent(&agent, &lab, sent);

        // The agent's certificate is renewed, and the old one is no longer accepted.
        let other_clients = issue_anew(&own);
        receiver.becomes(identity(&issued, Some(&other_clients)));
        sent += send(&lab, 20, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        way.wait_until_sent(&agent, &lab, sent);

        let report = agent.stop();
        assert_eq!(report.seen(), sent);
        assert_eq!(way.got(&receiver), sent, "{way:?}");
        let last = receiver.handshakes().into_iter().rev().find_map(Result::ok);
        assert_eq!(last.unwrap().client, Some(der(&own)));
        let read = told(&report, "read its TLS files again");
        assert_eq!(read, 2, "{}", report.log);
    });
}

#[test]
fn files_that_break_are_told_once_and_what_was_read_before_stays_in_force() {
    if !is_root_or_skip(
        "agent::files_that_break_are_told_once_and_what_was_read_before_stays_in_force",
    ) {
        return;
    }
    let way = Way::OtlpGrpc;
    let ca = Ca::new().unwrap();
    let own = ca.issue("agent", "an agent").unwrap();
    let issued = ca.issue("receiver", "localhost").unwrap();
    let lab = Lab::quiet().unwrap();
    let receiver = Receiver::start(&lab, identity(&issued, Some(&ca)));
    let mut agent = way.start(&lab, "localhost", &receiver, &Files::with(&ca, &own));
    let fault = |agent: &Agent| {
        let status = way.status(agent, &lab);
        status["tls"]["reload_error"].as_str().unwrap().to_owned()
    };
    let before = der(&own);
    let key = fs::read_to_string(&own.key).unwrap();
    replace(&own.key, "no key\n").unwrap();
    wait_until("the fault is told", || {
        fault(&agent).contains("has no private key")
    });
    let shown = agent.asked(&lab.agent, &["status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let line = "  its changed files are not in force: ";
    assert!(shown.contains(line), "{shown}");
    assert!(
        shown.contains("  TLS with a certificate until 20"),
        "{shown}"
    );
    // On a connection that is made after it.
    receiver.becomes(identity(&issued, Some(&ca)));
    let sent = send(&lab, 20, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    way.wait_until_sent(&agent, &lab, sent);
    assert_eq!(way.got(&receiver), sent);
    replace(&own.key, &key).unwrap();
    agent.wait_until_logged("read its TLS files again");
    assert_eq!(fault(&agent), "");

    // An expired certificate does not replace a valid one.
    let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
    ca.issue_for("agent", "an agent", [now - 2 * hour, now - hour])
        .unwrap();
    wait_until("it is told, too", || fault(&agent).contains("expired at"));
    let clients = receiver.handshakes().into_iter().map(|one| one.unwrap());
    assert!(
        clients
            .into_iter()
            .all(|one| one.client == Some(before.clone()))
    );
    let report = agent.stop();
    let kept = told(&report, "keeping its TLS files as read before");
    assert_eq!(kept, 2, "{}", report.log);
}

#[test]
fn a_reload_of_the_settings_reads_the_files_at_once() {
    if !is_root_or_skip("agent::a_reload_of_the_settings_reads_the_files_at_once") {
        return;
    }
    let way = Way::Pbflow;
    let ca = Ca::new().unwrap();
    let own = ca.issue("agent", "an agent").unwrap();
    let issued = ca.issue("receiver", "localhost").unwrap();
    let lab = Lab::quiet().unwrap();
    let receiver = Receiver::start(&lab, identity(&issued, None));
    let mut agent = way.start(&lab, "localhost", &receiver, &Files::with(&ca, &own));
    let not_after = |agent: &Agent| {
        let status = way.status(agent, &lab);
        status["tls"]["not_after_unix_ns"].as_u64().unwrap()
    };
    let first = not_after(&agent);
    let now = SystemTime::now();
    let day = Duration::from_hours(24);
    ca.issue_for("agent", "an agent", [now - day, now + 9 * day])
        .unwrap();
    agent.signal(libc::SIGHUP);
    agent.wait_until_logged("read the settings again");
    assert!(not_after(&agent) > first + 7 * day.as_nanos() as u64);
    // A fault changes nothing.
    replace(&own.certificate, "no certificate\n").unwrap();
    agent.signal(libc::SIGHUP);
    agent.wait_until_logged("keeping the settings: ");
    let sent = send(&lab, 20, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    way.wait_until_sent(&agent, &lab, sent);
    agent.stop();
    assert_eq!(way.got(&receiver), sent);
}
