//! Certificates that are replaced while the agent runs.

use std::fs;

use lab::{
    Lab, Process,
    certificates::{Ca, replace},
    privilege::is_root_or_skip,
};
use serde_json::Value;
use tempfile::TempDir;

use super::{ADDRESS, Certificates, is_answered, refused, texts, told, trusting};
use crate::{
    clients,
    support::{Agent, flow_agent, patience, wait_until},
};

/// Issues to the agent by another CA, into the same files.
fn issue_anew(certificates: &Certificates) -> Ca {
    let ca = Ca::new().unwrap();
    let new = ca.issue("agent", "127.0.0.1").unwrap();
    for (new, old) in [
        (&new.key, &certificates.agent.key),
        (&new.certificate, &certificates.agent.certificate),
    ] {
        replace(old, &fs::read_to_string(new).unwrap()).unwrap();
    }
    ca
}

#[test]
fn a_stream_goes_on_while_new_connections_see_new_certificates() {
    if !is_root_or_skip("agent::a_stream_goes_on_while_new_connections_see_new_certificates") {
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let agent = Agent::start(&lab, &texts(&certificates.settings()));
    let host = &lab.agent;
    let (https, first) = (format!("https://{ADDRESS}"), trusting(&certificates.ca));
    let folder = TempDir::new().unwrap();
    let stdout = folder.path().join("stdout");
    let mut watch = flow_agent(host);
    watch
        .args(["watch", "--output", "json", "--connect", &https])
        .args(&first);
    let stderr = folder.path().join("stderr");
    watch.stdout(fs::File::create(&stdout).unwrap());
    watch.stderr(fs::File::create(&stderr).unwrap());
    let mut watch = Process::spawn(&mut watch).unwrap();
    wait_until("it observes", || {
        let status = agent.status(host);
        !status["consumers"].as_array().unwrap().is_empty()
    });

    // Found by looking.
    let second_ca = issue_anew(&certificates);
    let second = trusting(&second_ca);
    wait_until("the new certificate", || is_answered(host, &second));
    refused(host, &https, &first);

    // An unusable file is reported, and changes nothing.
    let key = fs::read_to_string(&certificates.agent.key).unwrap();
    replace(&certificates.agent.key, "no key\n").unwrap();
    let fault = || {
        told(&agent, host)["tls"]["reload_error"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    wait_until("the fault is told", || {
        fault().contains("has no private key")
    });
    assert!(is_answered(host, &second));
    replace(&certificates.agent.key, &key).unwrap();
    wait_until("the fault is over", || fault().is_empty());

    // At SIGHUP at once: nobody has looked twice since then.
    let third_ca = issue_anew(&certificates);
    agent.signal(libc::SIGHUP);
    wait_until("the settings are read", || {
        agent.stderr().contains("read the settings again")
    });
    assert!(is_answered(host, &trusting(&third_ca)));
    refused(host, &https, &second);

    // A fault that SIGHUP finds changes nothing either.
    replace(&certificates.agent.certificate, "no certificate\n").unwrap();
    agent.signal(libc::SIGHUP);
    wait_until("the settings stay", || {
        agent.stderr().contains("keeping the settings: ")
    });
    assert!(is_answered(host, &trusting(&third_ca)));

    // The first connection has all that was sent meanwhile.
    let sent = clients::send(&lab);
    let report = agent.stop();
    assert_eq!(report.sums(), sent);
    let ended = || {
        fs::read_to_string(&stderr)
            .unwrap()
            .contains("waiting for the agent")
    };
    wait_until("the stream ends", ended);
    watch.terminate(patience()).unwrap();
    let lines = fs::read_to_string(&stdout).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let flows: Vec<Value> = lines.filter(|line| line["type"] == "flow").collect();
    let seen = crate::support::Report {
        accounts: Vec::new(),
        flows,
        log: String::new(),
    };
    assert_eq!(seen.sums(), sent);
    let told = report
        .log
        .matches("keeping the certificate as read before")
        .count();
    assert!((1..=2).contains(&told), "{}", report.log);
}
