//! A stream of constant rate over several scans: in each collector, the bytes of each record divided by its duration
//! must match the rate, and a flow that ended while quiet must not appear as a flow without packets.

use std::{thread, time::Instant};

use super::*;

/// The length of the stream, which spans some eight scans.
const PACKETS: u32 = 400;
const GAP: Duration = Duration::from_millis(10);
/// How exactly the agent knows when the last packet of a scan came: one tick of the slowest kernel.
const TICK_NS: u64 = 10_000_000;
/// How much later than another packet a packet sent with it may be seen.
const LATE_NS: u64 = 20_000_000;
/// The rate of shorter records says little.
const LONG_NS: u64 = 300_000_000;

/// One record as a collector has it.
#[derive(Clone, Copy, Debug)]
struct Part {
    start_ns: u64,
    end_ns: u64,
    packets: u64,
    bytes: u64,
}

/// What was sent, and when each of its packets was, from the first one on.
struct Stream {
    sent: Sums,
    at_ns: Vec<u64>,
    report: Report,
}

impl Stream {
    /// How many records have packets.
    fn records(&self) -> usize {
        let is_empty = |flow: &&Value| flow["packets"] == 0 && flow["reverse_packets"] == 0;
        assert_eq!(self.report.flows.iter().filter(is_empty).count(), 1);
        self.report.flows.len() - 1
    }
}

/// Sends the stream and waits until its flow has ended while it was quiet.
fn stream(lab: &Lab, output: &str) -> Stream {
    let settings = ["--scan-interval", "500ms", "--idle-timeout", "1s"];
    let outputs = ["--output", "json", "--output", output];
    let agent = Agent::start(lab, &[settings, outputs].concat());
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.udp(7, 53, &[0; 958]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let begun = Instant::now();
    let at_ns = (0..PACKETS).map(|packet| {
        thread::sleep((begun + GAP * packet).saturating_duration_since(Instant::now()));
        socket.send(&frame).unwrap();
        u64::try_from(begun.elapsed().as_nanos()).unwrap()
    });
    let at_ns = at_ns.collect();
    wait_for_packets(&lab.agent, before, PACKETS.into());
    wait_until("the flow has ended", || {
        let lines = agent.flows(&lab.agent);
        lines.iter().all(|line| line["type"] != "flow")
    });
    let mut sent = Sums::default();
    sent.add(PACKETS.into(), &frame, 14);
    Stream {
        sent,
        at_ns,
        report: agent.stop(),
    }
}

/// Nanoseconds, from seconds with some digits behind the point.
fn nanos(text: &str) -> u64 {
    let (seconds, fraction) = text.split_once('.').unwrap();
    let fraction = format!("{fraction:0<9}");
    seconds.parse::<u64>().unwrap() * 1_000_000_000 + fraction.parse::<u64>().unwrap()
}

/// Whether the parts, in any order, add up to the stream, each at the stream's rate.
fn have_the_rate(mut parts: Vec<Part>, stream: &Stream) {
    let sent = stream.sent;
    assert!(parts.iter().all(|part| part.packets != 0), "{parts:#?}");
    assert_eq!(parts.len(), stream.records(), "{parts:#?}");
    assert!(parts.len() > 3, "{parts:#?}");
    parts.sort_unstable_by_key(|part| part.end_ns);
    let sum = |of: fn(&Part) -> u64| parts.iter().map(of).sum::<u64>();
    assert_eq!(
        (sum(|part| part.packets), sum(|part| part.bytes)),
        (sent.packets, sent.octets)
    );
    for both in parts.windows(2) {
        assert!(both[0].end_ns <= both[1].start_ns + TICK_NS, "{parts:#?}");
    }
    let mut at_ns = &stream.at_ns[..];
    let mut compared = 0;
    for part in &parts {
        let (of_part, rest) = at_ns.split_at(part.packets as usize);
        at_ns = rest;
        let sent_ns = of_part[of_part.len() - 1] - of_part[0];
        if sent_ns < LONG_NS {
            continue;
        }
        compared += 1;
        let rate = |took_ns: u64| part.bytes as f64 * 8e9 / took_ns as f64;
        let lasted_ns = part.end_ns - part.start_ns;
        let least = rate(sent_ns + TICK_NS + LATE_NS);
        let most = rate(sent_ns - TICK_NS - LATE_NS);
        assert!(
            (least..=most).contains(&rate(lasted_ns)),
            "{} bit/s and not {} in {part:?} of {parts:#?}",
            rate(lasted_ns),
            rate(sent_ns),
        );
    }
    // Where the sender had to wait, there are fewer.
    assert!(compared > 2, "{parts:#?}");
}

#[test]
fn nfdump_shows_a_constant_rate_as_constant() {
    const TEST: &str = "agent::nfdump_shows_a_constant_rate_as_constant";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some([nfcapd, nfdump]) = install::nfdump_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (mut nfcapd, files) = start_nfcapd(&nfcapd, &lab, folder.path());
    let stream = stream(&lab, &udp(""));
    wait_until_read(&lab);
    nfcapd.terminate(patience()).unwrap();
    let read = Command::new(nfdump)
        .arg("-R")
        .arg(files)
        .args(["-q", "-N", "-o", "fmt:%tsr %td %pkt %byt %bps"])
        .output()
        .unwrap();
    let text = String::from_utf8(read.stdout).unwrap();
    let parts = text.lines().filter(|line| !line.trim().is_empty());
    let parts = parts.map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        // Its `%ter` lacks a digit.
        let [start, took, packets, bytes, bps] = columns[..] else {
            panic!("{line}");
        };
        let [packets, bytes, bps] = [packets, bytes, bps].map(|text| text.parse::<u64>().unwrap());
        let (start_ns, lasted_ns) = (nanos(start), nanos(took));
        // So compare the rate that it shows. It divides by this time, in milliseconds.
        let millis = lasted_ns / 1_000_000;
        if let Some(expected) = (bytes * 8 * 1_000).checked_div(millis) {
            assert!(bps.abs_diff(expected) <= expected / 50, "{line}");
        }
        Part {
            start_ns,
            end_ns: start_ns + lasted_ns,
            packets,
            bytes,
        }
    });
    have_the_rate(parts.collect(), &stream);
}

#[test]
fn nfacctd_has_the_times_of_what_a_record_counts() {
    const TEST: &str = "agent::nfacctd_has_the_times_of_what_a_record_counts";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(nfacctd) = install::nfacctd_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let more = "timestamps_since_epoch: true\naggregate: src_host, timestamp_start, timestamp_end, flows\n";
    let (nfacctd, file) = start_nfacctd(&nfacctd, &lab, folder.path(), more);
    let stream = stream(&lab, &udp(r#", "uniflow": true"#));
    wait_until_read(&lab);
    wait_until("nfacctd has written every packet", || {
        sum(&lines(&file), "packets") == stream.sent.packets
    });
    drop(nfacctd);
    let parts = lines(&file).into_iter().map(|flow| {
        assert_eq!(flow["flows"], 1);
        let time = |name: &str| nanos(flow[name].as_str().unwrap());
        Part {
            start_ns: time("timestamp_start"),
            end_ns: time("timestamp_end"),
            packets: flow["packets"].as_u64().unwrap(),
            bytes: flow["bytes"].as_u64().unwrap(),
        }
    });
    have_the_rate(parts.collect(), &stream);
}

#[test]
fn goflow2_has_the_times_of_what_a_record_counts() {
    const TEST: &str = "agent::goflow2_has_the_times_of_what_a_record_counts";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(goflow2) = install::goflow2_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (goflow2, file) = start_goflow2(&goflow2, &lab, folder.path());
    let stream = stream(&lab, &udp(r#", "uniflow": true"#));
    wait_until_written(&lab, &file, stream.records());
    drop(goflow2);
    let parts = lines(&file).into_iter().map(|flow| {
        let number = |name: &str| flow[name].as_u64().unwrap();
        Part {
            start_ns: number("time_flow_start_ns"),
            end_ns: number("time_flow_end_ns"),
            packets: number("packets"),
            bytes: number("bytes"),
        }
    });
    have_the_rate(parts.collect(), &stream);
}
