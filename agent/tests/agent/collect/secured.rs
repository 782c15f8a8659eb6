//! A collector that speaks TLS, and takes flows from those alone who have a certificate.

use serde_json::json;

use super::*;
use crate::tls::{Certificates, texts, trusting, with};

/// An output that may show a certificate.
fn output(address: SocketAddr, certificates: &Certificates, has_own: bool) -> String {
    let mut setting = json!({
        "kind": "collector",
        "address": format!("https://{address}"),
        "tls_ca": certificates.ca.file(),
    });
    if has_own {
        setting["tls_client_certificate"] = json!(certificates.client.certificate);
        setting["tls_client_key"] = json!(certificates.client.key);
    }
    setting.to_string()
}

#[test]
fn only_agents_with_a_certificate_are_served_where_it_is_asked_for() {
    const TEST: &str = "agent::only_agents_with_a_certificate_are_served_where_it_is_asked_for";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::new();
    let stores = jsonl(folder.path());
    // The address is chosen by the collector.
    let mutual = certificates.mutual();
    let mutual = texts(&mutual);
    let tls = mutual.iter().filter(|one| !one.starts_with("--listen"));
    let mut settings = vec!["--output", &stores];
    settings.extend(tls);
    let collector = Collector::start(&lab.agent, 0, &settings);
    let start = |has_own| {
        let to = output(collector.address, &certificates, has_own);
        Agent::start(&lab, &["--output", "json", "--output", &to])
    };
    let (stranger, known) = (start(false), start(true));
    let sent = send(&lab, 50, 2);
    wait_until_acknowledged(&known, &lab, sent);
    wait_until("the stranger is refused", || {
        let output = outputs::output(&stranger, &lab, "collector");
        let error = output["last_error"].as_str().unwrap().to_lowercase();
        error.contains("certificate")
    });
    assert_eq!(
        pair(&outputs::output(&stranger, &lab, "collector")["sent"]).packets,
        0
    );
    let target = format!("https://{}", collector.address);
    let options = with(trusting(&certificates.ca), &certificates.client);
    let asked = answered(|| {
        let mut command = flow_agent(&lab.agent);
        command.args(["status", "--output", "json", "--connect", &target]);
        command.args(&options);
        command
    });
    let status: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(status["streams"].as_array().unwrap().len(), 1);
    let listener = &status["server"]["listeners"][0];
    assert_eq!(listener["tls"]["client_certificates"], true);
    known.stop();
    stranger.stop();
    collector.stop();
    let sums: Vec<_> = stored(&[folder.path()]).into_values().collect();
    assert_eq!(sums, [sent]);
}
