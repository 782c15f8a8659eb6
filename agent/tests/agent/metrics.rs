//! Metrics and probes over HTTP, read by hand and by Prometheus.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use agent_common::Pair;
use lab::{Host, Lab, privilege::is_root_or_skip};

use crate::support::{
    Agent, attached::nothing_is_attached, count, flow_agent, patience, wait_until,
};

mod programs;
mod prometheus;
mod traffic;

const SERVED: [&str; 6] = [
    "--metrics",
    "0",
    "--scan-interval",
    "200ms",
    "--filter",
    "exclude port 9",
];
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An answer over HTTP.
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

/// Asks in the host's network namespace.
fn ask(host: &Host, address: &str, request: &str, headers: &str) -> Answer {
    ask_by_name(host, address, "agent", request, headers)
}

fn ask_by_name(host: &Host, address: &str, name: &str, request: &str, headers: &str) -> Answer {
    let answer = host.namespace.enter(|| {
        let mut connection = TcpStream::connect(address)?;
        write!(
            connection,
            "{request} HTTP/1.1\r\nHost: {name}\r\n{headers}\r\n"
        )?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    });
    let answer = answer.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

pub fn get(host: &Host, address: &str, path: &str) -> Answer {
    ask(host, address, &format!("GET {path}"), "")
}

/// The agent's address for metrics.
pub fn address(agent: &Agent) -> String {
    address_in(&agent.stderr())
}

/// The address for metrics that a log tells.
pub fn address_in(log: &str) -> String {
    let (_, url) = log.split_once("serving metrics url=http://").unwrap();
    url.split_once("/metrics").unwrap().0.to_owned()
}

/// The samples of a text, by name and labels.
pub fn samples(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.to_owned())
    };
    lines.map(sample).collect()
}

/// Over all labels.
fn sum(samples: &BTreeMap<String, String>, name: &str) -> u64 {
    let of_name = samples.iter().filter(|(series, _)| {
        let rest = series.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
    });
    let values = of_name.map(|(_, value)| value.trim_end_matches(".0"));
    values.map(|value| value.parse::<u64>().unwrap()).sum()
}

/// Sends a new agent 100 packets of a flow, seven that a rule leaves out, and ten that belong to no flow. Returns once
/// the metrics have them.
fn count_some(lab: &Lab, address: &str) -> Pair {
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, b"metrics").unwrap();
    let left_out = lab
        .peer
        .frame_v4(&lab.agent)
        .udp(1, 9, b"left out")
        .unwrap();
    // Not IP: an EtherType for experiments.
    let other = [&frame[..12], &[0x88, 0xb5], &[0; 46]].concat();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many(std::iter::repeat_n(&frame, 100)).unwrap();
    socket.send_many(std::iter::repeat_n(&left_out, 7)).unwrap();
    socket.send_many(std::iter::repeat_n(&other, 10)).unwrap();
    let sent = count(100, &frame) + count(7, &left_out) + count(10, &other);
    wait_until("the metrics have them", || {
        let samples = samples(&get(&lab.agent, address, "/metrics").body);
        sum(&samples, "flow_agent_seen_packets_total") == sent.packets
    });
    sent
}

/// Like a browser's request for a page whose name was made to resolve to this host (DNS rebinding).
#[test]
fn a_name_that_is_not_this_hosts_is_refused() {
    if !is_root_or_skip("agent::a_name_that_is_not_this_hosts_is_refused") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &SERVED);
    let address = address(&agent);
    let status = |name: &str, path: &str| {
        let request = format!("GET {path}");
        ask_by_name(&lab.agent, &address, name, &request, "").status
    };
    for path in ["/metrics", "/readyz", "/"] {
        assert_eq!(status("evil.example:9100", path), 421, "{path}");
        assert_eq!(status(&address, path), 200, "{path}");
        assert_eq!(status("localhost", path), 200, "{path}");
    }
    agent.stop();
}

#[test]
fn metrics_close_with_what_was_sent() {
    if !is_root_or_skip("agent::metrics_close_with_what_was_sent") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &SERVED);
    let address = address(&agent);
    let sent = count_some(&lab, &address);

    let classic = get(&lab.agent, &address, "/metrics");
    assert_eq!(classic.status, 200);
    assert!(classic.head.contains(CLASSIC), "{}", classic.head);
    let found = samples(&classic.body);
    for (unit, expected) in [("packets", sent.packets), ("bytes", sent.bytes)] {
        let sum = |name: &str| sum(&found, &format!("flow_agent_{name}_{unit}_total"));
        assert_eq!(sum("seen"), expected);
        assert_eq!(sum("hook_seen"), expected);
        let places = ["flow", "left_out", "unparsed", "lost"];
        assert_eq!(places.map(sum).iter().sum::<u64>(), expected);
    }
    assert_eq!(sum(&found, "flow_agent_left_out_packets_total"), 7);
    assert_eq!(sum(&found, "flow_agent_unparsed_packets_total"), 10);
    assert_eq!(sum(&found, "flow_agent_hook_unparsed_packets_total"), 10);
    assert_eq!(sum(&found, "flow_agent_hooks"), 2);
    for (series, value) in &found {
        assert!(value.parse::<f64>().unwrap() >= 0.0, "{series} {value}");
    }
    let resident = sum(&found, "process_resident_memory_bytes");
    assert!(resident > 1 << 20, "{resident}");

    let open = ask(
        &lab.agent,
        &address,
        "GET /metrics",
        &format!("Accept: {OPEN}\r\n"),
    );
    assert!(open.head.contains(OPEN), "{}", open.head);
    assert!(open.body.ends_with("# EOF\n"));
    assert_eq!(
        sum(&samples(&open.body), "flow_agent_seen_packets_total"),
        sent.packets
    );
    agent.stop();
}

#[test]
fn scans_that_come_late_are_told() {
    const INTERVAL: &str = "200ms";
    const STOPPED: Duration = Duration::from_secs(2);
    if !is_root_or_skip("agent::scans_that_come_late_are_told") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = [
        "--metrics",
        "0",
        "--scan-interval",
        INTERVAL,
        "--output",
        "none",
    ];
    let agent = Agent::start(&lab, &settings);
    let address = address(&agent);
    let text = || samples(&get(&lab.agent, &address, "/metrics").body);
    let count = |found: &BTreeMap<String, String>, series: &str| {
        found[&format!("flow_agent_scan_lateness_seconds_{series}")]
            .parse::<f64>()
            .unwrap()
    };
    // The next scan is due within an interval, and begins no earlier than the process continues.
    agent.signal(libc::SIGSTOP);
    thread::sleep(STOPPED);
    agent.signal(libc::SIGCONT);
    wait_until("a late scan", || {
        let found = text();
        count(&found, "count") - count(&found, "bucket{le=\"1.0\"}") >= 1.0
    });
    let found = text();
    assert!(count(&found, "sum") >= 1.0);
    let scans = sum(&found, "flow_agent_scans_total") - sum(&found, "flow_agent_early_scans_total");
    assert_eq!(
        found["flow_agent_scan_lateness_seconds_count"],
        scans.to_string()
    );
    assert_eq!(
        found["flow_agent_scan_duration_seconds_count"],
        found["flow_agent_flip_wait_seconds_count"]
    );
    assert_eq!(
        found["flow_agent_scan_duration_seconds_count"],
        found["flow_agent_scans_total"]
    );
    let duration = found["flow_agent_scan_duration_seconds_sum"]
        .parse::<f64>()
        .unwrap();
    let wait = found["flow_agent_flip_wait_seconds_sum"]
        .parse::<f64>()
        .unwrap();
    assert!(0.0 < wait && wait < duration, "{wait} {duration}");
    agent.stop_silent();
}

#[test]
fn probes_and_strange_requests_are_answered() {
    if !is_root_or_skip("agent::probes_and_strange_requests_are_answered") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &SERVED);
    let address = address(&agent);
    wait_until("it counts", || {
        get(&lab.agent, &address, "/readyz").status == 200
    });
    wait_until("there are scans", || {
        get(&lab.agent, &address, "/healthz")
            .body
            .contains(" scans, the last ")
    });
    assert!(get(&lab.agent, &address, "/").body.contains("/metrics"));
    assert_eq!(get(&lab.agent, &address, "/other").status, 404);
    let posted = ask(
        &lab.agent,
        &address,
        "POST /metrics",
        "Content-Length: 0\r\n",
    );
    assert_eq!(posted.status, 405);
    assert!(posted.head.contains("allow: get, head"), "{}", posted.head);
    let head = ask(&lab.agent, &address, "HEAD /metrics", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(ask(&lab.agent, &address, "nonsense", "").status, 400);

    agent.stop();
}

#[test]
fn silent_connections_give_way_to_probes() {
    if !is_root_or_skip("agent::silent_connections_give_way_to_probes") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &SERVED);
    let address = address(&agent);
    // More connections than are served at a time.
    let silent = lab.agent.namespace.enter(|| {
        let connect = |_| Ok(TcpStream::connect(&address)?);
        (0..40).map(connect).collect::<anyhow::Result<Vec<_>>>()
    });
    let silent = silent.unwrap();
    assert_eq!(get(&lab.agent, &address, "/healthz").status, 200);
    let metrics = get(&lab.agent, &address, "/metrics");
    assert!(metrics.body.contains("flow_agent_seen_packets_total"));
    let mut oldest = &silent[0];
    oldest.set_read_timeout(Some(patience())).unwrap();
    assert_eq!(oldest.read(&mut [0; 1]).unwrap(), 0);
    agent.stop();
}

#[test]
fn an_address_in_use_is_told_and_nothing_is_attached() {
    if !is_root_or_skip("agent::an_address_in_use_is_told_and_nothing_is_attached") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start_on(&lab.agent, "lo", &SERVED);
    let address = address(&agent);
    let mut command = flow_agent(&lab.agent);
    command.args([
        "run",
        "--interface",
        &lab.agent.interface,
        "--max-flows",
        "1000",
    ]);
    command.args(["--listen", "127.0.0.1:0", "--metrics", &address]);
    let refused = command.output().unwrap();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    let told = format!(
        "cannot serve metrics on {address}: stop what listens there, or choose another --metrics"
    );
    assert!(stderr.contains(&told), "{stderr}");
    assert!(nothing_is_attached(&lab.agent));
    agent.stop();
}
