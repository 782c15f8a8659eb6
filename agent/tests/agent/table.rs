//! The flow table: pages that grow and shrink, and flows that find no slot in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    ops::Range,
    path::PathBuf,
};

use ::kernel::{
    load::{Kernel, LoadSettings},
    pages::Size,
};
use agent_common::{
    Counts, FlowCounters, Pair, Reason,
    drops::DropLayout,
    process::TaskLayout,
    senders::Kinds,
    slots::{Hash, SLOTS},
    tcp::TcpLayout,
};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use lab::{Lab, kernel, privilege::is_root_or_skip};
use serde_json::Value;
use view::client;

use crate::{
    corpus::programs::{IFINDEX, netns},
    support::{Agent, count, pair, wait_for_packets, wait_until},
};

/// IPv4 and UDP, and the payload of [`frames`].
const IP_PACKET_LEN: u64 = 20 + 8 + 18;

/// One frame for each of these flows.
fn frames(lab: &Lab, flows: Range<u32>) -> Vec<Vec<u8>> {
    let to = lab.agent.ipv4;
    let frame = |flow| {
        let from = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + flow / 1000);
        let frame = lab.peer.frame_v4(&lab.agent).between(from, to);
        frame.udp((flow % 1000) as u16 + 1, 53, &[0; 18]).unwrap()
    };
    flows.map(frame).collect()
}

/// How many maps of the kernel are mapped into a process.
fn mappings(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.matches("bpf-map").count()
}

/// How many maps of the kernel a process has open.
fn descriptors(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let is_map = |path: PathBuf| path.to_string_lossy().contains("bpf-map");
    let maps = open.filter(|entry| fs::read_link(entry.path()).is_ok_and(is_map));
    maps.count()
}

/// The kernel memory charged for all maps that a process has open.
fn charged(pid: u32) -> u64 {
    let open = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .unwrap()
        .flatten();
    let maps = open.filter_map(|entry| {
        let info = fs::read_to_string(entry.path()).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = info.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        Some((field("map_id:")?, field("memlock:")?))
    });
    // Each once, however often it is open.
    maps.collect::<BTreeMap<_, _>>().into_values().sum()
}

/// The private memory of a process (`RssAnon` in `proc_pid_status(5)`).
fn private_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = field.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

fn number(status: &Value, path: [&str; 2]) -> u64 {
    status[path[0]][path[1]].as_u64().unwrap()
}

/// Each part fits into the smallest page and the map behind it, so nothing is refused if the agent gets no CPU for long.
#[test]
fn pages_grow_with_new_flows_and_shrink_without_them() {
    const LEAST_ROOM: u64 = 6144;
    const MAX_FLOWS: u64 = 200_000;
    const MIB: u64 = 1 << 20;
    if !is_root_or_skip("agent::pages_grow_with_new_flows_and_shrink_without_them") {
        return;
    }
    let part = kernel::packets(20_000, 10_000) as u32;
    let lab = Lab::quiet().unwrap();
    let max_flows = MAX_FLOWS.to_string();
    // Pages shrink after sixteen quiet scans, and an emulator needs seconds to see that they have grown.
    let interval = format!("{}ms", kernel::packets(100, 1000));
    let settings = [
        ["--max-flows", &max_flows],
        ["--idle-timeout", "5m"],
        ["--scan-interval", &interval],
    ];
    let mut agent = Agent::start(&lab, settings.as_flattened());
    let pid = agent.pid();
    let status = || agent.status(&lab.agent);
    let room = || number(&status(), ["table", "room"]);
    assert_eq!(room(), LEAST_ROOM);
    let idle_bytes = number(&status(), ["memory", "kernel_map_bytes"]);
    // Before 6.4 the kernel reports a hash map as if it were full.
    let most = if kernel::is_at_least(6, 4) { 8 } else { 24 } * MIB;
    assert!(idle_bytes <= most, "{idle_bytes} bytes");
    // It has some 4, 9 on 6.12 of Debian, and 17 with what loading the programs took.
    let private = private_bytes(pid);
    assert!(
        private <= 12 * MIB,
        "{private} bytes: {:#?}",
        fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
    );
    let held = || [mappings(pid), descriptors(pid)];
    let idle_held = held();
    // The status has no maps of the programs' own variables.
    let others = charged(pid) - idle_bytes;

    let before = lab.agent.counters().unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let frames = frames(&lab, 0..4 * part);
    let mut sent = 0;
    let mut pass = |frames: &[Vec<u8>]| {
        socket.send_many(frames).unwrap();
        sent += frames.len() as u64;
        wait_for_packets(&lab.agent, before, sent);
        wait_until("all is drained", || {
            pair(&status()["account"]["flows"]).packets == sent
        });
    };
    for frames in frames.chunks(part as usize) {
        pass(frames);
    }
    // A page that had all of a part, or more, has room for twice as many. Where the agent was held up it may have shrunk
    // again since.
    let mut again = frames.chunks(part as usize).cycle();
    wait_until("both pages have grown", || {
        let now = status();
        if number(&now, ["table", "room"]) == LEAST_ROOM {
            pass(again.next().unwrap());
        }
        let now = status();
        let has_more_memory = number(&now, ["memory", "kernel_map_bytes"]) > idle_bytes;
        number(&now, ["table", "room"]) > LEAST_ROOM && has_more_memory
    });
    wait_until("the status has what the kernel charges", || {
        charged(pid) == number(&status(), ["memory", "kernel_map_bytes"]) + others
    });
    wait_until("both pages have shrunk", || room() == LEAST_ROOM);
    wait_until("their memory is given back", || {
        number(&status(), ["memory", "kernel_map_bytes"]) == idle_bytes && held() == idle_held
    });
    for frames in frames.chunks(part as usize) {
        pass(frames);
    }

    let (accounts, sums) = agent.stop_and_sum();
    let last = accounts.last().unwrap();
    assert_eq!(pair(&last["seen"]), count(sent, &frames[0]));
    assert_eq!(pair(&last["flows"]), count(sent, &frames[0]));
    assert_eq!(sums.len(), frames.len());
    // More than two only where parts were sent again, which the account has, too.
    for [forth, back] in sums.into_values() {
        assert_eq!(forth, count(forth.packets, &frames[0]));
        assert!(forth.packets >= 2 && back == Pair::default(), "{forth:?}");
    }
}

/// As if the kernel had no memory.
#[test]
fn pages_that_cannot_grow_keep_their_size_and_grow_once_they_can() {
    const FLOWS: u32 = 5000;
    if !is_root_or_skip("agent::pages_that_cannot_grow_keep_their_size_and_grow_once_they_can") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--max-flows", "100000", "--scan-interval", "100ms"];
    let mut agent = Agent::start(&lab, &settings);
    let pid = agent.pid();
    let room = || number(&agent.status(&lab.agent), ["table", "room"]);
    let least = room();
    let limit_open_files = |files: &str| {
        let mut command = lab.agent.command("prlimit");
        command.args(["--pid", &pid.to_string()]);
        let limited = command.arg(format!("--nofile={files}:4096")).status();
        assert!(limited.unwrap().success());
    };
    limit_open_files("3");
    let before = lab.agent.counters().unwrap();
    let frames = frames(&lab, 0..FLOWS);
    let mut sent = 0;
    let mut send_until = |is_so: &dyn Fn() -> bool| {
        wait_until("the agent says or does it", || {
            lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
            sent += 1;
            is_so()
        });
    };
    send_until(&|| {
        agent
            .stderr()
            .contains("the flow table keeps its size for now")
    });
    limit_open_files("4096");
    assert_eq!(room(), least);
    send_until(&|| room() > least);
    wait_for_packets(&lab.agent, before, sent * u64::from(FLOWS));
    let log = agent.stderr();
    assert!(log.contains("Too many open files"), "{log}");
    // That would be the wrong advice.
    assert!(!log.contains("memory limit"), "{log}");
    let (accounts, sums) = agent.stop_and_sum();
    let seen = pair(&accounts.last().unwrap()["seen"]);
    assert_eq!(seen, count(sent * u64::from(FLOWS), &frames[0]));
    assert_eq!(sums.len(), frames.len());
    let each = [count(sent, &frames[0]), Pair::default()];
    assert!(sums.values().all(|sum| *sum == each));
}

#[tokio::test(flavor = "multi_thread")]
async fn flows_that_find_no_slot_go_behind_the_slots() {
    const MAX_FLOWS: u32 = 256;
    if !is_root_or_skip("agent::flows_that_find_no_slot_go_behind_the_slots") {
        return;
    }
    let slots = Size::with_room_for(MAX_FLOWS).windows * SLOTS;
    let lab = Lab::quiet().unwrap();
    let max_flows = MAX_FLOWS.to_string();
    let settings = ["--max-flows", &max_flows, "--early-scan", "0"];
    let agent = Agent::start(&lab, &[&settings[..], &["--scan-interval", "1h"]].concat());
    let before = lab.agent.counters().unwrap();
    let frames = frames(&lab, 0..slots + 8);
    let socket = lab.peer.frame_socket().unwrap();
    for _ in 0..3 {
        socket.send_many(&frames).unwrap();
    }
    wait_for_packets(&lab.agent, before, 3 * frames.len() as u64);
    let target = agent.address().parse().unwrap();
    assert_eq!(client::scan_now(&target).await.unwrap(), 1);
    let behind = number(&agent.status(&lab.agent), ["table", "behind"]);
    assert!(behind >= 8, "{behind}");
    let report = agent.stop();
    assert_eq!(report.last()["refused_in_window"], false);
    let sums = report.sums();
    assert_eq!(sums.len(), frames.len());
    let thrice = [count(3, &frames[0]), Pair::default()];
    assert!(sums.values().all(|sum| *sum == thrice));
    let ip_octets = |flow: &Value| flow["total_ip_bytes"].as_u64().unwrap();
    let ended = report.flows.iter();
    let ended = ended.filter(|flow| !flow["end_reason"].is_null());
    let octets: Vec<u64> = ended.map(ip_octets).collect();
    assert_eq!(octets, vec![3 * IP_PACKET_LEN; frames.len()]);
}

/// An attacker who knows the hash's factors can choose flows with equal hashes: their windows take some, the map behind
/// them some more, and the others are refused, to the packet.
#[test]
fn flows_of_one_hash_are_all_accounted_for() {
    const FLOWS: u16 = 400;
    const MAX_FLOWS: u32 = 1000;
    if !is_root_or_skip("agent::flows_of_one_hash_are_all_accounted_for") {
        return;
    }
    let mut kernel = Kernel::load(&LoadSettings {
        min_flows: MAX_FLOWS,
        max_flows: MAX_FLOWS,
        max_fragments: 1,
        decapsulate: false,
        senders: Kinds::NONE,
        tasks: TaskLayout::default(),
        tcp: TcpLayout::default(),
        dns_per_second: 0,
        icmp_errors: false,
        drops: DropLayout::UNKNOWN,
        early_scan_flows: 0,
        netns: vec![netns()],
        max_interfaces: 1,
        sample_rate: 0,
        asks_drivers: false,
        log_level: 0,
        // Each word of a key adds the product of its halves: with factors of 0 only the ports of these flows differ, and the
        // other half of their word is 0.
        hash_factors: [0; Hash::FACTORS],
    })
    .unwrap();
    kernel.register(0, IFINDEX, "lo", 0).unwrap();
    let program = kernel.sets[0].programs.program_mut("tc_ingress").unwrap();
    let program: &mut SchedClassifier = program.try_into().unwrap();
    program.load().unwrap();
    let lab = Lab::quiet().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| frame.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    for frame in frames.iter().chain(&frames) {
        let options = TestRunOptions {
            data_in: Some(frame),
            ..TestRunOptions::new()
        };
        program.test_run(options).unwrap();
    }
    let (mut kept, mut windows) = (Vec::new(), BTreeSet::new());
    let taken = kernel.pages.take(0, |keys, counters, _| {
        let hashes = keys.iter().map(|key| Hash::of(key, |_| 0));
        let page = Size::with_room_for(MAX_FLOWS).windows;
        windows.extend(
            hashes.flat_map(|hash| [hash, hash.again()].map(|hash| hash.walk(page).window)),
        );
        let counts = counters.iter().flat_map(FlowCounters::counts);
        kept.extend(counts.filter(|counts| *counts != Counts::default()));
    });
    let taken = taken.unwrap();
    assert!(windows.len() <= 2, "{windows:?}");
    let room = windows.len() as u32 * SLOTS + Size::behind_flows(MAX_FLOWS);
    assert_eq!(taken, u64::from(room));
    let twice = Counts {
        packets: 2,
        bytes: 2 * frames[0].len() as u64,
        ip_bytes: 2 * IP_PACKET_LEN,
    };
    assert_eq!(kept, vec![twice; room as usize]);
    let account = kernel.accounts.of_idle(0).take(0).unwrap();
    let refused = 2 * (u64::from(FLOWS) - u64::from(room));
    assert_eq!(account.get(Reason::TableFull).packets, refused);
    assert_eq!(account.missing(), Pair::default());
}
