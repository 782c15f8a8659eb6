//! TLS and logins, with the real broker.

use std::os::unix::fs::PermissionsExt as _;

use lab::certificates::Ca;

use super::*;

fn pem(path: &Path) -> String {
    // As a file of properties takes lines.
    fs::read_to_string(path).unwrap().replace('\n', "\\n")
}

fn options(ca: &Ca) -> BrokerOptions {
    let issued = ca.issue("broker", "127.0.0.1").unwrap();
    let of_client = |name: &str| format!("listener.name.client.{name}");
    let plain =
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_me=\"secret\";";
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let settings = [
        (
            "listener.security.protocol.map".to_owned(),
            "CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
        ),
        (of_client("ssl.keystore.type"), "PEM".to_owned()),
        (
            of_client("ssl.keystore.certificate.chain"),
            pem(&issued.certificate),
        ),
        (of_client("ssl.keystore.key"), pem(&issued.key)),
        (
            of_client("sasl.enabled.mechanisms"),
            "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512".to_owned(),
        ),
        (of_client("plain.sasl.jaas.config"), plain.to_owned()),
        (
            of_client("scram-sha-256.sasl.jaas.config"),
            scram.to_owned(),
        ),
        (
            of_client("scram-sha-512.sasl.jaas.config"),
            scram.to_owned(),
        ),
    ];
    let scram = ["SCRAM-SHA-256", "SCRAM-SHA-512"];
    BrokerOptions {
        settings: settings.into(),
        scram: scram
            .map(|mechanism| format!("{mechanism}=[name=me,password=secret]"))
            .into(),
        ..BrokerOptions::default()
    }
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn only_who_is_trusted_and_known_gets_messages_and_stores_them() {
    const TEST: &str = "agent::only_who_is_trusted_and_known_gets_messages_and_stores_them";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let [ca, stranger] = [(); 2].map(|()| Ca::new().unwrap());
    let broker = kafka.broker(&options(&ca));
    let address = broker.address();
    kafka.client(&broker.plain_address(), &["create", TOPIC, "1"]);
    let password = kafka.folder.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    // A password file that every user can read causes a warning.
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let output = |scheme: &str, mechanism: &str, ca: Option<&Ca>| {
        let mut output = serde_json::json!({
            "kind": "kafka",
            "address": format!("{scheme}://{address}/{TOPIC}"),
        });
        if let Some(ca) = ca {
            output["tls_ca"] = ca.file().to_str().unwrap().into();
        }
        if !mechanism.is_empty() {
            output["sasl"] = mechanism.into();
            output["user"] = "me".into();
            output["password_file"] = password.to_str().unwrap().into();
        }
        output.to_string()
    };
    for (mechanism, stream_id) in ["plain", "scram-sha-256", "scram-sha-512"]
        .into_iter()
        .zip(1..)
    {
        let (collector, socket) = kafka.collector(&output("tls", mechanism, Some(&ca)));
        runtime().block_on(async {
            let mut client = connect(&socket).await;
            let (acks, ended) = call(&mut client, vec![of_agent("a", stream_id, 1)]).await;
            assert_eq!(acks, [1], "{ended:?}");
        });
        let log = collector.stop();
        assert!(
            warns_of_slowness_alone(&log) && !log.contains("secret"),
            "{log}"
        );
    }
    assert_eq!(kafka.messages(&broker).len(), 3);

    // A fault that an operator must fix fails the start.
    for mechanism in ["plain", "scram-sha-256", "scram-sha-512"] {
        fs::write(&password, "wrong\n").unwrap();
        let refusal = kafka.refusal(&output("tls", mechanism, Some(&ca)));
        let told = format!("refuses user me by sasl {mechanism}");
        assert!(refusal.contains(&told), "{refusal}");
        assert!(!refusal.contains("wrong"), "{refusal}");
    }
    fs::write(&password, "\n").unwrap();
    let refusal = kafka.refusal(&output("tls", "plain", Some(&ca)));
    assert!(refusal.contains("has no password"), "{refusal}");
    fs::remove_file(&password).unwrap();
    let refusal = kafka.refusal(&output("tls", "plain", Some(&ca)));
    assert!(refusal.contains("password_file"), "{refusal}");
    fs::write(&password, "secret\n").unwrap();

    // A fault that may pass is logged and retried, since a broker may be being reconfigured.
    for (output, told) in [
        (output("tls", "plain", Some(&stranger)), "tls_ca"),
        (output("tls", "", Some(&ca)), "a login (sasl)"),
        (output("tcp", "", None), "use tls://"),
    ] {
        // A slow broker may not give the reason.
        wait_until(told, || {
            let (collector, _) = kafka.collector(&output);
            let log = collector.stop();
            assert!(log.contains("cannot store flows"), "{log}");
            log.contains(told)
        });
    }
}
