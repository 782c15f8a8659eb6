//! Receivers that take little or nothing while the agent sends more than the queues hold.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use hub::DEFAULT_QUEUED_BYTES;
use socket2::SockRef;

use super::{
    super::{
        messages::Messages,
        otlp::receiver::{Answer, Receiver},
    },
    grpc::{Manner, Server},
    *,
};
use crate::admission::memory::{MIB, Memory, reset_peak};

/// Each flow has a packet in every round, so each scan reports all of them.
const FLOWS: u16 = 50_000;
/// Once all lose.
const FURTHER_ROUNDS: u32 = 3;
/// The memory of outputs besides their queues, and of the agent besides its outputs.
const BESIDE_QUEUES_BYTES: u64 = 64 * MIB;
/// Far less than the agent sends, so little that the kernel's buffers stay full for long, but not nothing.
const SLOW_READ_BYTES: usize = 4096;
const SLOW_PAUSE: Duration = Duration::from_millis(60);

/// Takes connections and never reads.
fn silent(lab: &Lab) -> SocketAddr {
    let listener = listener(lab);
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let connections: Vec<_> = listener.incoming().collect();
        drop(connections);
    });
    address
}

fn listener(lab: &Lab) -> TcpListener {
    let bind = || Ok(TcpListener::bind("127.0.0.1:0")?);
    lab.agent.namespace.enter(bind).unwrap()
}

/// Reads IPFIX slowly until the test changes that.
struct Slow {
    address: SocketAddr,
    is_quick: Arc<AtomicBool>,
    read: Arc<Mutex<Messages>>,
}

impl Slow {
    fn start(lab: &Lab) -> Self {
        let listener = listener(lab);
        let socket = SockRef::from(&listener);
        socket.set_recv_buffer_size(16 * SLOW_READ_BYTES).unwrap();
        let slow = Self {
            address: listener.local_addr().unwrap(),
            is_quick: Arc::default(),
            read: Arc::default(),
        };
        let (is_quick, read) = (Arc::clone(&slow.is_quick), Arc::clone(&slow.read));
        thread::spawn(move || {
            // Its only one: it takes something all the time.
            let (mut connection, _) = listener.accept().unwrap();
            let mut bytes = vec![0; SLOW_READ_BYTES];
            while let Ok(len) = connection.read(&mut bytes)
                && len > 0
            {
                read.lock().unwrap().take(&bytes[..len]);
                if !is_quick.load(Relaxed) {
                    thread::sleep(SLOW_PAUSE);
                }
            }
        });
        slow
    }
}

/// The fates of an output's flows, at a moment when no flow moves from one sum to another.
fn fates_of(agent: &Agent, lab: &Lab, name: &str, counted: Pair) -> BTreeMap<&'static str, Pair> {
    let mut found = Value::Null;
    wait_until("nothing is in no sum", || {
        found = output(agent, lab, name);
        let fates = ["sent", "refused", "lost", "left_out", "queued"];
        fates
            .map(|fate| pair(&found[fate]))
            .into_iter()
            .sum::<Pair>()
            == counted
    });
    fates(&found, counted)
}

#[test]
fn receivers_that_hang_hold_up_neither_scans_nor_another_output_and_what_they_lose_is_counted() {
    if !is_root_or_skip(
        "agent::receivers_that_hang_hold_up_neither_scans_nor_another_output_and_what_they_lose_is_counted",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [pbflow, otlp_grpc] = [(); 2].map(|()| Server::start(&lab, Manner::Hangs));
    let otlp_http = Receiver::start(&lab, |_, _| Answer::Hang);
    let slow = Slow::start(&lab);
    let silent = silent(&lab);
    let table = |name: &str, rest: &str| format!(r#"{{"name": "{name}", {rest}}}"#);
    let ipfix = |address| format!(r#""kind": "ipfix", "address": "tcp://{address}""#);
    let otlp = |port: u16, protocol: &str| {
        format!(r#""kind": "otlp", "address": "http://127.0.0.1:{port}", "protocol": "{protocol}""#)
    };
    let outputs = [
        table("silent", &ipfix(silent)),
        table("slow", &ipfix(slow.address)),
        table(
            "pbflow",
            &format!(
                r#""kind": "pbflow", "address": "http://{}""#,
                pbflow.address
            ),
        ),
        table("otlp-http", &otlp(otlp_http.port, "http")),
        table("otlp-grpc", &otlp(otlp_grpc.address.port(), "grpc")),
        // One line for each flow, with all of its packets.
        table(
            "file",
            &format!(
                r#""kind": "jsonl", "address": "{}", "compression": "none", "only_ended": true"#,
                folder.path().join("flows.jsonl").display()
            ),
        ),
    ];
    let never_answering = ["pbflow", "otlp-http", "otlp-grpc"];
    let hanging = [&["silent", "slow"], &never_answering[..]].concat();
    // A table that does not grow, so what it takes is the same all the time.
    let mut settings = vec!["--max-flows", "65536", "--min-flows", "65536"];
    settings.extend(outputs.iter().flat_map(|output| ["--output", output]));
    let mut agent = Agent::start(&lab, &settings);
    let pid = agent.pid();
    reset_peak(pid);
    let before = Memory::of(pid).resident + kernel_map_bytes(&agent, &lab);

    // Of IPv6, which has longer records.
    let to_agent = lab.peer.frame_v6(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| to_agent.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    let socket = lab.peer.frame_socket().unwrap();
    let mut sent = Pair::default();
    let mut round = || {
        socket.send_many(&frames).unwrap();
        sent += count(FLOWS.into(), &frames[0]);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("the file has them", || {
            let file = output(&agent, &lab, "file");
            assert_eq!(pair(&file["lost"]), Pair::default(), "{file}");
            pair(&file["queued"]) == Pair::default()
        });
        let peak = Memory::of(pid).peak;
        let bound = before + DEFAULT_QUEUED_BYTES + BESIDE_QUEUES_BYTES;
        assert!(peak < bound, "{before} before, {peak} at most");
        sent
    };
    loop {
        let sent = round();
        let lost = |name: &&str| fates_of(&agent, &lab, name, sent)["lost"];
        if hanging.iter().all(|name| lost(name).packets > 0) {
            break;
        }
    }
    for _ in 0..FURTHER_ROUNDS {
        round();
    }
    agent.wait_for_scans(&lab.agent, 5);

    for name in hanging {
        let fates = fates_of(&agent, &lab, name, sent);
        assert!(fates["queued"].packets > 0, "{name}: {fates:?}");
        assert_eq!(fates["refused"], Pair::default(), "{name}");
        // The kernel takes some of what nobody reads.
        let has_sent = fates["sent"] != Pair::default();
        assert_eq!(has_sent, !never_answering.contains(&name), "{name}");
    }

    assert_eq!(output(&agent, &lab, "slow")["failures"], 0);

    // The flows that the slow receiver read and the lost ones are all flows.
    slow.is_quick.store(true, Relaxed);
    wait_until("it has what waited", || {
        fates_of(&agent, &lab, "slow", sent)["queued"] == Pair::default()
    });
    let fates = fates_of(&agent, &lab, "slow", sent);
    wait_until("it has read it", || {
        let read = slow.read.lock().unwrap();
        (read.flows, read.not_sent) == (fates["sent"], fates["lost"])
    });

    let log = agent.stop_silent();
    // They have not got a single flow.
    let all = format!("lost_packets={} lost_bytes={}", sent.packets, sent.bytes);
    assert_eq!(log.matches(&all).count(), never_answering.len(), "{log}");
    // On a busy machine the end comes before the file has all flows.
    let (lost_records, lost) = lost_at_the_end(&log, "file");
    let lines = lines(folder.path());
    assert_eq!(sum(&lines) + lost, sent);
    let flows = lines.iter().filter(|line| line["type"] == "flow");
    assert_eq!(flows.count() as u64 + lost_records, u64::from(FLOWS));
}

/// The losses that the log reports for an output at shutdown: records and their sums.
fn lost_at_the_end(log: &str, output: &str) -> (u64, Pair) {
    let output = format!("output=\"{output}\"");
    let mut lines = log.lines().filter(|line| line.contains("before shutdown"));
    let Some(line) = lines.find(|line| line.contains(&output)) else {
        return (0, Pair::default());
    };
    let number = |name: &str| {
        let mut words = line.split_whitespace();
        let number = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        number.unwrap().parse().unwrap()
    };
    let lost = Pair {
        packets: number("lost_packets"),
        bytes: number("lost_bytes"),
    };
    (number("lost_records"), lost)
}
