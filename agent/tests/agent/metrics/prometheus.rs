//! A real Prometheus scrapes an agent, answers the dashboard's queries, and raises the alerts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use lab::{
    Host, Lab, Process,
    certificates::{Ca, Issued},
    privilege::is_root_or_skip,
};
use serde_json::Value;
use tempfile::TempDir;

use super::{SERVED, address, count_some, get, samples};
use crate::{
    clients::install,
    support::{Agent, wait_until},
};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
const RULES: &str = "flow-agent.rules.yml";
const RULES_TEST: &str = "rules.test.yml";
const SERVER: &str = "127.0.0.1:9090";

fn rules() -> PathBuf {
    Path::new(DEPLOY).join("prometheus").join(RULES)
}

fn dashboard() -> Value {
    let file = Path::new(DEPLOY).join("grafana/flow-agent.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// Panels without the rows between them.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row")
}

/// The queries of a panel, for all agents.
fn queries(panel: &Value) -> Vec<String> {
    let targets = panel["targets"].as_array().unwrap().iter();
    let query = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$instance", ".*");
        let query = query
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1m");
        assert!(!query.contains('$'), "{query}");
        query
    };
    targets.map(query).collect()
}

/// The metrics that a query names.
fn metrics(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("flow_agent_") || word.starts_with("process_"))
}

/// The data of an answer of Prometheus, once it answers.
fn asked(host: &Host, path: &str) -> Option<Value> {
    let answer = host.namespace.enter(|| {
        let mut connection = TcpStream::connect(SERVER)?;
        write!(connection, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    });
    let answer = answer.ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let answer: Value = serde_json::from_str(body).ok()?;
    assert_ne!(answer["status"], "error", "{path}: {answer}");
    Some(answer["data"].clone())
}

/// The samples of a query at this moment.
fn query(host: &Host, query: &str) -> Option<Vec<Value>> {
    let encoded = query.bytes().map(|byte| format!("%{byte:02x}"));
    let path = format!("/api/v1/query?query={}", encoded.collect::<String>());
    asked(host, &path)?["result"].as_array().cloned()
}

/// The value of the first sample.
fn value(host: &Host, asked: &str) -> Option<String> {
    let samples = query(host, asked)?;
    let value = samples.first()?["value"][1].as_str();
    value.map(str::to_owned)
}

fn assert_quiet(command: &mut Command) {
    let checked = command.output().unwrap();
    let told = [checked.stdout, checked.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(checked.status.success(), "{told}");
}

/// Asserts that promtool has no complaints about the metrics.
fn check_metrics(promtool: &Path, text: &str) {
    let mut check = Command::new(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped());
    let check = check.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut check = check.unwrap();
    let mut input = check.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let checked = check.wait_with_output().unwrap();
    let told = [checked.stdout, checked.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(checked.status.success() && told.is_empty(), "{told}");
}

fn start(host: &Host, prometheus: &Path, folder: &Path, scraped: &str) -> Process {
    let config = folder.join("prometheus.yml");
    let settings = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: ['{}']\n\
         scrape_configs: [{{job_name: flow-agent, static_configs: [{{targets: ['{scraped}']}}]}}]\n",
        rules().canonicalize().unwrap().display()
    );
    fs::write(&config, settings).unwrap();
    let mut server = host.command(prometheus);
    server
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            folder.join("data").display()
        ))
        .arg(format!("--web.listen-address={SERVER}"))
        .stderr(fs::File::create(folder.join("log")).unwrap());
    Process::spawn(&mut server).unwrap()
}

/// Fails if the query names a metric that the agent does not have.
fn assert_known(query: &str, known: &BTreeMap<String, String>) {
    for metric in metrics(query) {
        let is_of = |series: &String| series.split('{').next() == Some(metric);
        assert!(known.keys().any(is_of), "{metric} of {query}");
    }
}

fn answer_the_dashboard(host: &Host, known: &BTreeMap<String, String>) {
    for panel in panels(&dashboard()) {
        for shown in queries(panel) {
            assert_known(&shown, known);
            // Panels that may be empty say so.
            let may_be_empty = shown.ends_with(" > 0");
            wait_until(&shown, || {
                query(host, &shown).is_some_and(|samples| may_be_empty || !samples.is_empty())
            });
        }
    }
}

fn answer_the_rules(host: &Host, known: &BTreeMap<String, String>) {
    let mut rules = Vec::new();
    wait_until("all rules were tried", || {
        let groups = asked(host, "/api/v1/rules").unwrap();
        rules.clone_from(groups["groups"][0]["rules"].as_array().unwrap());
        rules.iter().all(|rule| rule["health"] == "ok")
    });
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in rules {
        let asked = rule["query"].as_str().unwrap();
        assert_known(asked, known);
        assert!(query(host, asked).is_some(), "{asked}");
    }
}

/// Settings of a listener and of an output with a long-lived certificate.
fn secured(ca: &Ca) -> [String; 5] {
    let now = SystemTime::now();
    let year = Duration::from_hours(365 * 24);
    let issued = ca.issue_for("agent", "127.0.0.1", [now, now + year]);
    let Issued { certificate, key } = issued.unwrap();
    let [ca, certificate, key] =
        [ca.file(), certificate, key].map(|path| path.display().to_string());
    let output = serde_json::json!({
        "kind": "pbflow",
        "address": "https://127.0.0.1:1",
        "tls_ca": ca,
        "tls_client_certificate": certificate,
        "tls_client_key": key,
    });
    [
        "--listen=127.0.0.1:50051".to_owned(),
        format!("--tls-certificate={certificate}"),
        format!("--tls-key={key}"),
        "--output".to_owned(),
        output.to_string(),
    ]
}

#[test]
fn prometheus_scrapes_what_was_counted_and_answers_the_dashboard_and_the_alerts() {
    const TEST: &str =
        "agent::prometheus_scrapes_what_was_counted_and_answers_the_dashboard_and_the_alerts";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some([prometheus, promtool]) = install::prometheus_or_skip(TEST) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let lab = Lab::quiet().unwrap();
    let ca = Ca::new().unwrap();
    let secured = secured(&ca);
    let written = format!("jsonl={}", folder.path().join("flows.jsonl").display());
    let settings = [
        &SERVED[..],
        &["--max-flows", "100", "--early-scan", "0"],
        // Everything that has metrics.
        &["--enrich", "dns-exchanges,icmp,drops"],
        &[
            "--output",
            &written,
            "--output",
            // Nobody listens there.
            r#"{"kind": "ipfix", "address": "tcp://127.0.0.1:9", "name": "broken"}"#,
        ],
        &secured.each_ref().map(String::as_str),
    ];
    let agent = Agent::start(&lab, &settings.concat());
    let address = address(&agent);
    let sent = count_some(&lab, &address);
    check_metrics(&promtool, &get(&lab.agent, &address, "/metrics").body);

    let server = start(&lab.agent, &prometheus, folder.path(), &address);
    let value = |query: &str| value(&lab.agent, query);
    wait_until("Prometheus has scraped", || {
        value("sum(flow_agent_seen_packets_total)") == Some(sent.packets.to_string())
    });
    // After a scrape that takes longer than its second, all values are missing until the next one.
    let is = |query: &str, expected: &str| {
        let mut found = None;
        wait_until(query, || {
            found = value(query);
            found.is_some()
        });
        assert_eq!(found.as_deref(), Some(expected), "{query}");
    };
    wait_until("it is up", || value("up").as_deref() == Some("1"));
    let closes = "sum(flow_agent_seen_bytes_total)-sum(flow_agent_flow_bytes_total)\
                  -sum(flow_agent_left_out_bytes_total)-sum(flow_agent_unparsed_bytes_total)\
                  -sum(flow_agent_lost_bytes_total)";
    is(closes, "0");
    for by in ["traffic", "interface"] {
        let same = format!("sum(flow_agent_{by}_bytes_total)-sum(flow_agent_flow_bytes_total)");
        is(&same, "0");
    }
    is("flow_agent_build_info", "1");

    // More flows than the table holds, in each window.
    let frames = (0..500).map(|port| {
        let frame = lab.peer.frame_v4(&lab.agent);
        frame.udp(10_000 + port, 1, b"too many").unwrap()
    });
    let frames: Vec<_> = frames.collect();
    let socket = lab.peer.frame_socket().unwrap();
    let mut firing = BTreeSet::new();
    wait_until("an alert fires", || {
        socket.send_many(&frames).unwrap();
        let alerts = asked(&lab.agent, "/api/v1/alerts").unwrap();
        let alerts = alerts["alerts"].as_array().unwrap().iter();
        let alerts = alerts.filter(|alert| alert["state"] == "firing");
        firing = alerts
            .map(|alert| {
                let labels = ["alertname", "reason"].map(|name| alert["labels"][name].as_str());
                labels.map(|label| label.unwrap_or_default().to_owned())
            })
            .collect();
        !firing.is_empty()
    });
    let expected = ["FlowAgentLosesPackets", "table_full"].map(str::to_owned);
    assert_eq!(firing, BTreeSet::from([expected]));

    let known = samples(&get(&lab.agent, &address, "/metrics").body);
    answer_the_dashboard(&lab.agent, &known);
    answer_the_rules(&lab.agent, &known);
    let failing = r#"flow_agent_output_failing{output="broken"} == 1"#;
    wait_until("the output fails", || {
        query(&lab.agent, failing).is_some_and(|found| found.len() == 1)
    });
    drop(server);
    agent.stop_silent();
}

#[test]
fn the_alerts_fire_when_they_are_to_and_not_else() {
    const TEST: &str = "the_alerts_fire_when_they_are_to_and_not_else";
    let Some([_, promtool]) = install::prometheus_or_skip(TEST) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/metrics");
    fs::copy(rules(), folder.path().join(RULES)).unwrap();
    let test = folder.path().join(RULES_TEST);
    fs::copy(Path::new(here).join(RULES_TEST), &test).unwrap();
    assert_quiet(Command::new(&promtool).args(["test", "rules"]).arg(&test));
    assert_quiet(
        Command::new(&promtool)
            .args(["check", "rules"])
            .arg(rules()),
    );
}

#[test]
fn the_dashboard_has_the_shape_that_grafana_loads() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    for text in ["uid", "title"] {
        assert!(!dashboard[text].as_str().unwrap().is_empty());
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables: BTreeMap<_, _> = variables
        .map(|variable| {
            (
                variable["name"].as_str().unwrap(),
                variable["type"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [("datasource", "datasource"), ("instance", "query")];
    assert_eq!(variables, expected.into());

    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{title} lies over another panel");
        }
    }
    for panel in panels(&dashboard) {
        assert!(!queries(panel).is_empty(), "{}", panel["title"]);
        let targets = panel["targets"].as_array().unwrap().iter();
        for source in targets.chain([panel]) {
            assert_eq!(source["datasource"]["uid"], "${datasource}");
            assert_eq!(source["datasource"]["type"], "prometheus");
        }
    }
}
