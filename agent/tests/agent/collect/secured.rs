//! A collector that speaks TLS and takes flows only from agents with a certificate.

use lab::certificates::Issued;
use serde_json::json;

use super::{tokens::hostname, *};
use crate::tls::{Certificates, texts, trusting, with};

/// An output that may show a certificate.
fn output(address: SocketAddr, certificates: &Certificates, own: Option<&Issued>) -> String {
    let mut setting = json!({
        "kind": "collector",
        "address": format!("https://{address}"),
        "tls_ca": certificates.ca.file(),
    });
    if let Some(own) = own {
        setting["tls_client_certificate"] = json!(own.certificate);
        setting["tls_client_key"] = json!(own.key);
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
    let socket = format!("unix:{}", folder.path().join("socket").display());
    let mut settings = vec!["--output", &stores, "--listen", &socket];
    settings.extend(tls);
    let collector = Collector::start(&lab.agent, 0, &settings);
    let start = |own| {
        let to = output(collector.address, &certificates, own);
        Agent::start(&lab, &["--output", "json", "--output", &to])
    };
    let named = certificates.ca.issue("named", &hostname()).unwrap();
    // That of another host.
    let other = start(Some(&certificates.client));
    let (stranger, known) = (start(None), start(Some(&named)));
    let sent = send(&lab, 50, 2);
    wait_until_acknowledged(&known, &lab, sent);
    wait_until("the stranger is refused", || {
        let output = outputs::output(&stranger, &lab, "collector");
        let error = output["last_error"].as_str().unwrap().to_lowercase();
        error.contains("certificate")
    });
    wait_until("that of another host is refused", || {
        let output = outputs::output(&other, &lab, "collector");
        let error = output["last_error"].as_str().unwrap();
        error.contains("PERMISSION_DENIED")
    });
    for refused in [&stranger, &other] {
        let sent = pair(&outputs::output(refused, &lab, "collector")["sent"]);
        assert_eq!(sent.packets, 0);
    }
    let target = format!("https://{}", collector.address);
    let options = with(trusting(&certificates.ca), &named);
    let ask = |target: &str, options: &[String]| {
        answered(|| {
            let mut command = flow_agent(&lab.agent);
            command.args(["status", "--output", "json", "--connect", target]);
            command.args(options);
            command
        })
    };
    // A host's certificate does not allow reading flows.
    let refused = ask(&target, &options);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    let is_told = !refused.status.success() && stderr.contains("role status");
    assert!(is_told, "{stderr}");
    let asked = ask(&socket, &[]);
    let status: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(status["streams"].as_array().unwrap().len(), 1);
    assert_eq!(status["streams"][0]["identity"], hostname().to_lowercase());
    let listeners = status["server"]["listeners"].as_array().unwrap();
    let asks = |listener: &&Value| listener["tls"]["client_certificates"] == true;
    assert_eq!(listeners.iter().filter(asks).count(), 1);
    known.stop();
    stranger.stop();
    other.stop();
    collector.stop();
    let sums: Vec<_> = stored(&[folder.path()]).into_values().collect();
    assert_eq!(sums, [sent]);
}
