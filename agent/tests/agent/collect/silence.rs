//! Connections to a collector without an admitted request keep no agent out.

use std::{
    collections::VecDeque,
    io::Write as _,
    net::{Ipv4Addr, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use tokio::net::TcpSocket;

use super::{
    calls::runtime,
    tokens::{hostname, new_token, token},
    *,
};
use crate::tls::{
    Certificates,
    silence::{BEGUN, raise_open_files},
    texts, trusting,
};

/// Where they connect from.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// More than a collector has places for, with so few agents.
const FEW: [&str; 4] = ["--max-agents", "10", "--max-consumers", "1"];
const SILENT: usize = 300;
/// The last ones are kept open.
const OPEN: usize = 2000;
const TRIES: usize = 30;

/// An HTTP/2 connection begins with this and with settings, here none.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Makes silent connections until `over`, and counts them.
fn connect_silently(host: &Host, to: SocketAddr, over: &AtomicBool, made: &AtomicUsize) {
    let connect = async {
        let mut open = VecDeque::<TcpStream>::new();
        while !over.load(Relaxed) {
            let socket = TcpSocket::new_v4()?;
            socket.bind((ELSEWHERE, 0).into())?;
            let mut stream = socket.connect(to).await?.into_std()?;
            let begun: &[u8] = [&b""[..], &BEGUN, PREFACE][open.len() % 3];
            // It may have been closed.
            drop(stream.write_all(begun));
            open.push_back(stream);
            if open.len() > OPEN {
                open.pop_front();
            }
            made.fetch_add(1, Relaxed);
            // More than the 185 per second that once kept agents out.
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    host.namespace
        .enter(|| runtime().block_on(connect))
        .unwrap();
}

/// Runs `tries` while others connect silently. `client` has the address and the options of an admitted client.
fn during_the_attack(
    lab: &Lab,
    collector: &Collector,
    client: (&str, &[&str]),
    tries: impl FnOnce(),
) {
    raise_open_files();
    let (over, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let connects =
            scope.spawn(|| connect_silently(&lab.agent, collector.address, &over, &made));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until("all places are taken", || made.load(Relaxed) >= SILENT);
            for _ in 0..TRIES {
                status(&lab.agent, client);
            }
            tries();
        }));
        over.store(true, Relaxed);
        connects.join().unwrap();
        outcome.unwrap();
    });
    let server = &status(&lab.agent, client)["server"];
    assert!(server["silent_connections"].as_u64() > Some(0), "{server}");
    assert_eq!(server["refused_connections"], 0, "{server}");
}

/// Fails if the client does not get in at once.
fn status(host: &Host, (address, options): (&str, &[&str])) -> Value {
    let mut command = flow_agent(host);
    command.args(["status", "--output", "json", "--connect", address]);
    let output = command.args(options).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_agent_gets_in_while_others_connect_and_show_no_token() {
    const TEST: &str = "agent::every_agent_gets_in_while_others_connect_and_show_no_token";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let own = new_token(&tokens, &hostname(), "send");
    let [own, reads] = [own, new_token(&tokens, "ops", "status")];
    let [own, reads] = [("own", own), ("reads", reads)]
        .map(|(name, shown)| token(&folder, name, &shown).display().to_string());
    let (output, tokens) = (jsonl(folder.path()), tokens.to_str().unwrap());
    let settings = [&["--output", &output, "--token-file", tokens][..], &FEW].concat();
    let collector = Collector::start(&lab.agent, 0, &settings);
    let address = collector.address.to_string();
    let setting =
        format!(r#"{{"kind": "collector", "address": "http://{address}", "token_file": "{own}"}}"#);
    let client = (&*address, &["--token-file", &*reads][..]);
    during_the_attack(&lab, &collector, client, || {
        let agent = Agent::start(&lab, &["--output", "json", "--output", &setting]);
        let sent = send(&lab, 20, 2);
        wait_until_acknowledged(&agent, &lab, sent);
        let output = outputs::output(&agent, &lab, "collector");
        assert_eq!(output["last_error"], "", "{output}");
        assert_eq!(agent.stop().seen(), sent);
    });
    collector.stop();
}

#[test]
fn every_client_gets_in_while_others_begin_handshakes_and_do_not_finish_them() {
    const TEST: &str =
        "agent::every_client_gets_in_while_others_begin_handshakes_and_do_not_finish_them";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::new();
    let tls = certificates.settings();
    let tls = texts(&tls);
    let tls = tls.iter().filter(|one| !one.starts_with("--listen"));
    let output = jsonl(folder.path());
    let mut settings = vec!["--output", &output];
    settings.extend(FEW.iter().chain(tls));
    let collector = Collector::start(&lab.agent, 0, &settings);
    let address = format!("https://{}", collector.address);
    let options = trusting(&certificates.ca);
    let client = (&*address, &texts(&options)[..]);
    during_the_attack(&lab, &collector, client, || {});
    collector.stop();
}
