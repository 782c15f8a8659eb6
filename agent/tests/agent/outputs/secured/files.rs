//! Files that cannot be used at the start, and settings that contradict each other: nothing starts, and the error has
//! the place.

use std::{os::unix::fs::PermissionsExt as _, process::Command};

use super::*;

/// The error of `config check` about an output's table.
fn refused(folder: &Path, output: &str) -> String {
    let checked = checked(folder, output);
    let stderr = String::from_utf8(checked.stderr).unwrap();
    assert!(!checked.status.success(), "{output}: {stderr}");
    stderr
}

fn checked(folder: &Path, output: &str) -> std::process::Output {
    let file = folder.join("config.toml");
    fs::write(&file, format!("[[output]]\n{output}\n")).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["config", "check", "--config"]).arg(&file);
    command.output().unwrap()
}

#[test]
fn a_file_that_cannot_be_used_is_named_and_nothing_starts() {
    let folder = TempDir::new().unwrap();
    let ca = Ca::new().unwrap();
    let [own, other] = ["a", "b"].map(|name| ca.issue(name, "an agent").unwrap());
    let shown = |path: &Path| path.display().to_string();
    let (gone, key) = (shown(&ca.path("gone.pem")), shown(&own.key));
    let of = |ca: &str, certificate: &str, key: &str| {
        format!(
            "kind = 'pbflow'\naddress = 'https://127.0.0.1:1'\ntls_ca = '{ca}'\n\
             tls_client_certificate = '{certificate}'\ntls_client_key = '{key}'"
        )
    };
    let (good_ca, certificate) = (shown(&ca.file()), shown(&own.certificate));
    for (ca, certificate, key, setting, why) in [
        (
            &gone,
            &certificate,
            &key,
            "tls_ca",
            "gone.pem: No such file",
        ),
        (&key, &certificate, &key, "tls_ca", "has no certificate"),
        (
            &good_ca,
            &gone,
            &key,
            "tls_client_certificate",
            "gone.pem: No such file",
        ),
        (
            &good_ca,
            &certificate,
            &shown(&other.key),
            "tls_client_key",
            "is not the key of the certificate in",
        ),
    ] {
        let error = refused(folder.path(), &of(ca, certificate, key));
        let words = format!("{setting} of --output pbflow=https://127.0.0.1:1: ");
        assert!(error.contains(&words) && error.contains(why), "{error}");
        assert!(
            error.contains("(output: ") && error.contains("config.toml:1:3)"),
            "{error}"
        );
    }
    let good = of(&good_ca, &certificate, &key);
    let output = checked(folder.path(), &good);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(&own.key, open).unwrap();
    let output = checked(folder.path(), &good);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("every user can read this key"), "{stderr}");
}

#[test]
fn settings_of_tls_that_do_nothing_are_refused_at_their_place() {
    let folder = TempDir::new().unwrap();
    for kind in ["collector", "otlp", "pbflow"] {
        let of = |scheme: &str, more: &str| {
            format!("kind = '{kind}'\naddress = '{scheme}://127.0.0.1:1'\n{more}")
        };
        for (scheme, more, place, why) in [
            (
                "http",
                "tls_ca = '/a'",
                "config.toml:4:10: ",
                "use https://127.0.0.1:1",
            ),
            (
                "https",
                "tls_client_certificate = '/a'",
                "config.toml:4:26: ",
                "go together",
            ),
            (
                "https",
                "tls_client_key = '/a'",
                "config.toml:4:18: ",
                "go together",
            ),
            (
                "https",
                "tls_ca = 5",
                "config.toml:4:10: ",
                "a text in quotes",
            ),
            (
                "https",
                "tls_certificate = '/a'",
                "config.toml:4:1: ",
                "no such setting",
            ),
        ] {
            let error = refused(folder.path(), &of(scheme, more));
            assert!(error.contains(place) && error.contains(why), "{error}");
        }
    }
}

/// Without a file of CAs it is those of the system, which do not have that of a test; a variable names others.
#[test]
fn the_cas_of_the_system_are_trusted_where_no_file_is_named() {
    if !is_root_or_skip("agent::the_cas_of_the_system_are_trusted_where_no_file_is_named") {
        return;
    }
    let ca = Ca::new().unwrap();
    let issued = ca.issue("receiver", "localhost").unwrap();
    let lab = Lab::quiet().unwrap();
    let receiver = Receiver::start(&lab, identity(&issued, None));
    let system = TempDir::new().unwrap();
    let file = system.path().join("cas.pem");
    let stranger = Ca::new().unwrap();
    fs::copy(stranger.file(), &file).unwrap();
    let output = format!("pbflow=https://localhost:{}", receiver.port);
    let mut command = flow_agent(&lab.agent);
    command
        .env("SSL_CERT_FILE", &file)
        .env_remove("SSL_CERT_DIR");
    let settings = ["--output", "json", "--output", &output];
    let agent = Agent::start_by(command, &lab.agent.interface, &settings);
    let sent = send(&lab, 20, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    let way = Way::Pbflow;
    wait_until("it is not trusted", || {
        let output = way.status(&agent, &lab);
        assert_eq!(fates(&output, sent)["queued"], sent, "{output}");
        let error = output["last_error"].as_str().unwrap();
        error.contains("not from a CA that is trusted here")
    });
    // The system comes to trust it.
    replace(&file, &fs::read_to_string(ca.file()).unwrap()).unwrap();
    way.wait_until_sent(&agent, &lab, sent);
    agent.stop();
    assert_eq!(way.got(&receiver), sent);
}
