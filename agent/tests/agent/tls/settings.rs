//! The agent does not listen where other hosts could read flows, and errors name unusable files.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Output};

use lab::{Lab, privilege::is_root_or_skip};

use super::{Certificates, texts};
use crate::support::{Agent, flow_agent};

#[test]
fn other_hosts_reach_an_agent_only_if_somebody_says_so() {
    if !is_root_or_skip("agent::other_hosts_reach_an_agent_only_if_somebody_says_so") {
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let interface = &lab.agent.interface;
    for address in ["0.0.0.0:50051", "[::]:50051", "192.0.2.1:50051"] {
        let mut command = flow_agent(&lab.agent);
        command.args(["run", "--interface", interface, "--listen", address]);
        command.args(["--max-flows", "1000", "--duration", "10ms"]);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        for words in [address, "--tls-certificate", "--insecure-listen"] {
            assert!(stderr.contains(words), "{stderr}");
        }
    }
    let open = ["--listen", "0.0.0.0:50051", "--insecure-listen"];
    let agent = Agent::start(&lab, &open);
    let status = agent.status(&lab.agent);
    let listeners = status["server"]["listeners"].as_array().unwrap();
    assert_eq!(listeners.len(), 2, "{listeners:?}");
    assert!(listeners.iter().all(|listener| listener["tls"].is_null()));
    agent.stop();

    let mut by_tls = certificates.settings();
    by_tls[0] = "--listen=0.0.0.0:50051".to_owned();
    let agent = Agent::start(&lab, &texts(&by_tls));
    let told = agent.asked(&lab.agent, &["status"]);
    let told = String::from_utf8(told.stdout).unwrap();
    let line = "listener  0.0.0.0:50051, TLS with a certificate until 20";
    assert!(told.contains(line), "{told}");
    agent.stop();
}

#[test]
fn a_check_names_the_file_that_cannot_be_used_and_warns_of_an_open_key() {
    let certificates = Certificates::new();
    let file = certificates.ca.path("config.toml");
    let check = |certificate: &str, key: &str| -> Output {
        let path = |name: &str| certificates.ca.path(name).display().to_string();
        let (certificate, key) = (path(certificate), path(key));
        let text = format!("tls_certificate = '{certificate}'\ntls_key = '{key}'\n");
        fs::write(&file, text).unwrap();
        let mut command = std::process::Command::new(crate::support::BINARY);
        command
            .args(["config", "check", "--config"])
            .arg(&file)
            .output()
            .unwrap()
    };
    let good = check("agent.pem", "agent.key");
    assert!(good.status.success() && good.stderr.is_empty(), "{good:?}");
    for (certificate, key, words) in [
        ("agent.pem", "client.key", "client.key is not the key of"),
        ("gone.pem", "agent.key", "gone.pem: No such file"),
        ("agent.key", "agent.key", "agent.key has no certificate"),
        ("agent.pem", "agent.pem", "agent.pem has no private key"),
    ] {
        let output = check(certificate, key);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && stderr.contains(words),
            "{stderr}"
        );
        assert!(stderr.contains("config.toml:"), "{stderr}");
    }
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(&certificates.agent.key, open).unwrap();
    let output = check("agent.pem", "agent.key");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("every user can read this key"), "{stderr}");
}
