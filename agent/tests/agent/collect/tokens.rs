//! A collector that takes flows only from agents with one of its tokens.

use std::{path::PathBuf, process::Output};

use lab::certificates::replace;
use proto::{ObserveRequest, flow_agent_client::FlowAgentClient};
use tonic::{Code, Request, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    calls::{batch, call, connect, runtime},
    *,
};

/// Adds a token to a file, and returns it.
pub(super) fn new_token(file: &Path, name: &str, roles: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flow-agent"));
    command.args(["token", "new", name, "--role", roles, "--file"]);
    let output = command.arg(file).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let token = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let known = fs::read_to_string(file).unwrap();
    assert!(!known.contains(&token), "{known}");
    token
}

/// What agents of this machine call their host.
pub(super) fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().to_owned()
}

/// A file with this token.
pub(super) fn token(folder: &TempDir, name: &str, token: &str) -> PathBuf {
    let path = folder.path().join(name);
    replace(&path, &format!("{token}\n")).unwrap();
    path
}

fn to(address: SocketAddr, token: Option<&Path>) -> String {
    let token = token.map(|path| format!(r#", "token_file": "{}""#, path.display()));
    let token = token.unwrap_or_default();
    format!(r#"{{"kind": "collector", "address": "http://{address}"{token}}}"#)
}

fn error_of(agent: &Agent, lab: &Lab) -> String {
    let output = outputs::output(agent, lab, "collector");
    assert_eq!(pair(&output["sent"]), Pair::default(), "{output}");
    output["last_error"].as_str().unwrap().to_owned()
}

fn status_with(host: &Host, address: &str, token: Option<&Path>) -> Output {
    answered(|| {
        let mut command = flow_agent(host);
        command.args(["status", "--output", "json", "--connect", address]);
        if let Some(token) = token {
            command.arg("--token-file").arg(token);
        }
        command
    })
}

/// Asserts that readers need a token, too, except on a Unix socket, which has its own permissions. Returns the output
/// of these two.
fn readers(
    host: &Host,
    collector: &Collector,
    socket: &str,
    [known, other, missing]: [&Path; 3],
) -> [Value; 2] {
    let address = collector.address.to_string();
    for (token, words) in [
        (None, "name a file with one (token_file"),
        (Some(other), "unknown token"),
        (Some(missing), "(--token-file)"),
    ] {
        let refused = status_with(host, &address, token);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        let is_told = !refused.status.success() && stderr.contains(words);
        assert!(is_told, "{stderr}");
    }
    let refused = host.namespace.enter(|| {
        Ok(runtime().block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
            let channel = endpoint.connect().await.unwrap();
            let observe = Request::new(ObserveRequest::default());
            let observed = FlowAgentClient::new(channel.clone()).observe(observe).await;
            let check = HealthCheckRequest::default();
            let checked = HealthClient::new(channel).check(check).await;
            [observed.unwrap_err(), checked.unwrap_err()]
        }))
    });
    for refused in refused.unwrap() {
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    [(&*address, Some(known)), (socket, None)].map(|(address, token)| {
        let asked = status_with(host, address, token);
        serde_json::from_slice(&asked.stdout).unwrap()
    })
}

#[test]
fn over_tcp_only_those_with_a_token_are_served_and_tokens_change_without_a_restart() {
    const TEST: &str =
        "agent::over_tcp_only_those_with_a_token_are_served_and_tokens_change_without_a_restart";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let [folder, stored_in] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let tokens = folder.path().join("tokens");
    let first = new_token(&tokens, &hostname(), "send");
    let reader = new_token(&tokens, "reader", "status,observe");
    // Another token of the same host, which the collector does not have yet.
    let later = folder.path().join("later");
    let second = new_token(&later, &hostname(), "send");
    let texts = [("known", &first), ("other", &second), ("reader", &reader)];
    let [known, other, reads] = texts.map(|(name, text)| token(&folder, name, text));
    let socket = format!("unix:{}", folder.path().join("socket").display());
    let output = jsonl(stored_in.path());
    let settings = [
        "--output",
        &output,
        "--token-file",
        tokens.to_str().unwrap(),
        "--listen",
        &socket,
    ];
    let collector = Collector::start(&lab.agent, 0, &settings);
    let address = collector.address;
    let missing = folder.path().join("missing");
    let start = |token| Agent::start(&lab, &["--output", "json", "--output", &to(address, token)]);
    let [without, lost, stranger, agent] =
        [None, Some(&*missing), Some(&*other), Some(&*known)].map(start);
    let mut sent = send(&lab, 20, 2);
    wait_until_acknowledged(&agent, &lab, sent);
    for (refused, words) in [
        (&without, "name a file with one (token_file"),
        (&lost, "it has no token (token_file): "),
        (&stranger, "unknown token"),
    ] {
        wait_until("it is refused", || error_of(refused, &lab).contains(words));
    }
    // It stays on this host.
    assert!(!agent.stderr().contains("the token is sent unencrypted"));

    let stream_of = |status: &Value| status["streams"].as_array().unwrap().len();
    for status in readers(&lab.agent, &collector, &socket, [&reads, &other, &missing]) {
        assert_eq!(stream_of(&status), 1, "{status}");
        let refused = &status["server"]["refused_tokens"];
        assert!(refused.as_u64() >= Some(4), "{status}");
    }
    runtime().block_on(async {
        let (acks, ended) = call(&mut connect(&socket).await, vec![batch(1, 1)]).await;
        ended.unwrap();
        assert_eq!(acks, [1]);
    });

    // Another token is added: the stranger's.
    let both = [&tokens, &later].map(|path| fs::read_to_string(path).unwrap());
    replace(&tokens, &both.concat()).unwrap();
    collector.wait_until_logged("read the tokens again");
    sent += send(&lab, 20, 1);
    wait_until_acknowledged(&stranger, &lab, sent);
    // An agent reads its token again for each call.
    replace(&missing, &second).unwrap();
    wait_until_acknowledged(&lost, &lab, sent);
    wait_until_acknowledged(&agent, &lab, sent);
    for agent in [agent, stranger, lost, without] {
        let report = agent.stop();
        assert_eq!(report.seen(), sent);
        let is_told = [&first, &second].map(|token| report.log.contains(&**token));
        assert_eq!(is_told, [false; 2], "{}", report.log);
    }
    let log = collector.stop();
    assert!(!log.contains(&first) && !log.contains(&second), "{log}");
    assert!(
        log.contains("it showed no credential of this collector"),
        "{log}"
    );
    let sums: Vec<_> = stored(&[stored_in.path()]).into_values().collect();
    let by_hand = Pair {
        packets: 3,
        bytes: 300,
    };
    assert_eq!(
        sums.iter().filter(|sum| **sum == sent).count(),
        3,
        "{sums:?}"
    );
    assert_eq!(
        sums.iter().filter(|sum| **sum == by_hand).count(),
        1,
        "{sums:?}"
    );
    assert_eq!(sums.len(), 4, "{sums:?}");
}

#[test]
fn a_collector_starts_with_no_file_of_tokens_that_nobody_could_show() {
    let folder = tempfile::tempdir().unwrap();
    let short = token(&folder, "short", "secret");
    let output = jsonl(folder.path());
    for (path, words) in [
        (short, "line 1 of "),
        (folder.path().join("missing"), "No such file"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flow-agent"));
        command
            .args(["collect", "--output", &output, "--token-file"])
            .arg(path);
        let stderr = folder.path().join("stderr");
        command.stderr(File::create(&stderr).unwrap());
        let mut process = Process::spawn(&mut command).unwrap();
        let status = process.wait(patience()).unwrap();
        let stderr = fs::read_to_string(stderr).unwrap();
        let is_told = stderr.contains("--token-file") && stderr.contains(words);
        assert!(!status.success() && is_told, "{stderr}");
        assert!(!stderr.contains("secret"), "{stderr}");
    }
}
