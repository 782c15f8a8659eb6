//! Trust on both sides, and the errors of others.

use std::process::{Command, Stdio};

use lab::{
    Host, Lab,
    certificates::{Ca, Issued},
    privilege::{is_root_or_skip, skip},
};
use proto::GetStatusRequest;

use super::{ADDRESS, Certificates, is_answered, refused, status, texts, told, trusting, with};
use crate::{
    admission::client::{Client, GET_STATUS, connect_by_tcp},
    clients::install,
    support::{Agent, flow_agent, wait_until},
};

/// The failed handshakes so far.
fn handshakes(agent: &Agent, host: &Host) -> u64 {
    let status = agent.status(host);
    status["server"]["refused_handshakes"].as_u64().unwrap()
}

/// Waits for these failures, since an agent counts one when the client may have read its answer.
fn wait_for_handshakes(agent: &Agent, host: &Host, failures: u64) -> u64 {
    wait_until("each failure is counted", || {
        handshakes(agent, host) >= failures
    });
    handshakes(agent, host)
}

#[test]
fn an_agent_is_trusted_by_its_ca_and_its_address() {
    if !is_root_or_skip("agent::an_agent_is_trusted_by_its_ca_and_its_address") {
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let agent = Agent::start(&lab, &texts(&certificates.settings()));
    let host = &lab.agent;
    let (https, good) = (format!("https://{ADDRESS}"), trusting(&certificates.ca));
    assert!(is_answered(host, &good));
    // A client may have a certificate that nobody asks for.
    assert!(is_answered(host, &with(good.clone(), &certificates.client)));
    assert_eq!(handshakes(&agent, host), 0);

    let stranger = Ca::new().unwrap();
    for options in [trusting(&stranger), Vec::new()] {
        let error = refused(host, &https, &options);
        let words = format!("the certificate of {https} is not from a CA that is trusted here");
        assert!(
            error.contains(&words) && error.contains("--tls-ca"),
            "{error}"
        );
    }
    // The certificate is for the address, not for the name.
    let error = refused(host, "https://localhost:50051", &good);
    assert!(error.contains("its certificate is refused"), "{error}");
    let by_tls = wait_for_handshakes(&agent, host, 3);

    // Without TLS nobody is answered, and nothing is sent by mistake.
    let error = refused(host, ADDRESS, &good);
    assert!(error.contains("use https://"), "{error}");
    assert_eq!(handshakes(&agent, host), by_tls);
    refused(host, ADDRESS, &[]);
    wait_until("plain HTTP/2 is counted", || {
        handshakes(&agent, host) > by_tls
    });

    // The rules are for those on the Unix socket.
    let mut rules = flow_agent(host);
    let rules = rules
        .args(["filter", "show", "--connect", &https])
        .args(&good);
    let output = rules.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && stderr.contains("refused"),
        "{stderr}"
    );

    let tls = &told(&agent, host)["tls"];
    assert_eq!(tls["client_certificates"], false);
    let log = agent.stop().log;
    assert!(log.contains("a TLS handshake failed"), "{log}");
}

#[test]
fn a_client_without_a_certificate_of_the_ca_is_refused() {
    if !is_root_or_skip("agent::a_client_without_a_certificate_of_the_ca_is_refused") {
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let agent = Agent::start(&lab, &texts(&certificates.mutual()));
    let host = &lab.agent;
    let (https, trusting) = (format!("https://{ADDRESS}"), trusting(&certificates.ca));
    let output = status(host, &https, &with(trusting.clone(), &certificates.client));
    assert!(output.status.success());
    assert_eq!(handshakes(&agent, host), 0);

    let error = refused(host, &https, &trusting);
    assert!(
        error.contains("it asks for a client's certificate"),
        "{error}"
    );
    let stranger = Ca::new().unwrap();
    let of_stranger = stranger.issue("client", "somebody").unwrap();
    let error = refused(host, &https, &with(trusting, &of_stranger));
    assert!(
        error.contains("it refuses the client's certificate"),
        "{error}"
    );
    wait_for_handshakes(&agent, host, 2);
    assert_eq!(told(&agent, host)["tls"]["client_certificates"], true);
    agent.stop();
}

#[test]
fn grpcurl_is_held_to_the_same() {
    let test = "agent::grpcurl_is_held_to_the_same";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(grpcurl) = install::grpcurl_or_skip(test) else {
        return;
    };
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let agent = Agent::start(&lab, &texts(&certificates.mutual()));
    let listed = |ca: &Ca, own: Option<&Issued>| {
        let mut command = lab.agent.command(&grpcurl);
        command.arg("-cacert").arg(ca.file());
        if let Some(Issued { certificate, key }) = own {
            command.arg("-cert").arg(certificate).arg("-key").arg(key);
        }
        let output = command.args([ADDRESS, "list"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("flow.v1.FlowAgent")
    };
    let (ca, stranger) = (&certificates.ca, Ca::new().unwrap());
    assert!(listed(ca, Some(&certificates.client)));
    assert!(!listed(ca, None));
    assert!(!listed(&stranger, Some(&certificates.client)));
    let of_stranger = stranger.issue("client", "somebody").unwrap();
    assert!(!listed(ca, Some(&of_stranger)));
    wait_for_handshakes(&agent, &lab.agent, 3);
    agent.stop();
}

/// The output of `openssl s_client`, and whether the handshake succeeded.
fn openssl(host: &Host, certificates: &Certificates, options: &[&str]) -> (bool, String) {
    let mut command = host.command("openssl");
    command.args(["s_client", "-connect", ADDRESS, "-verify_return_error"]);
    command
        .arg("-CAfile")
        .arg(certificates.ca.file())
        .args(options);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

#[test]
fn versions_and_protocols_are_those_of_today() {
    let test = "agent::versions_and_protocols_are_those_of_today";
    if !is_root_or_skip(test) {
        return;
    }
    if Command::new("openssl").arg("version").output().is_err() {
        skip(test, "no openssl");
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let agent = Agent::start(&lab, &texts(&certificates.settings()));
    for (options, is_taken, words) in [
        (&["-alpn", "h2"][..], true, "ALPN protocol: h2"),
        (&["-alpn", "http/1.1,h2"], true, "ALPN protocol: h2"),
        (&["-alpn", "h2", "-tls1_3"], true, "TLSv1.3"),
        (&["-alpn", "h2", "-tls1_2"], true, "TLSv1.2"),
        (&["-alpn", "h2"], true, "New, TLSv1.3"),
        (
            &["-alpn", "http/1.1"],
            false,
            "alert no application protocol",
        ),
        (
            &["-alpn", "h2", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"],
            false,
            "alert handshake failure",
        ),
    ] {
        let (taken, said) = openssl(&lab.agent, &certificates, options);
        assert_eq!(taken, is_taken, "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
    }
    agent.stop();
}

/// Bytes that are no TLS are answered by an alert.
#[tokio::test(flavor = "multi_thread")]
async fn plain_http2_is_refused_and_counted() {
    if !is_root_or_skip("agent::plain_http2_is_refused_and_counted") {
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let agent = Agent::start(&lab, &texts(&certificates.settings()));
    let stream = connect_by_tcp(&lab.agent, &agent.stderr());
    let called = async {
        let mut client = Client::new(stream, 65_535).await?;
        client.call(GET_STATUS, &GetStatusRequest {}).await
    };
    called.await.unwrap_err();
    assert_eq!(wait_for_handshakes(&agent, &lab.agent, 1), 1);
    // A port scan does no harm.
    drop(connect_by_tcp(&lab.agent, &agent.stderr()));
    assert!(is_answered(&lab.agent, &trusting(&certificates.ca)));
    assert_eq!(handshakes(&agent, &lab.agent), 1);
    agent.stop();
}
