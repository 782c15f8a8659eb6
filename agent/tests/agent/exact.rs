//! The real binary on real interfaces: the records and the account must have exactly what was sent.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, TcpListener},
    os::fd::AsFd as _,
    thread,
    time::{Duration, Instant},
};

use ::kernel::{
    attach,
    bound::TaggedPrograms,
    bpf, connections, drops, layout,
    load::{Kernel, LoadSettings},
    processes,
};
use agent_common::{Pair, drops::DropLayout, senders::Kinds};
use aya::programs::Xdp;
use lab::{
    Lab, kernel,
    privilege::{is_root_or_skip, skip},
};

use crate::support::{
    Agent, Both, NATIVE_XDP, count, flow_agent, has_generator_or_skip, name, pair,
    wait_for_packets, wait_until,
};

mod clock;
mod netns;
mod time_namespace;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// With all enrichment, or with none.
fn every_program_is_taken(all: bool) {
    let mut kernel = Kernel::load(&LoadSettings {
        decapsulate: all,
        senders: if all {
            let of_sockets = Kinds::CGROUPS.and(Kinds::PROCESSES).and(Kinds::TCP);
            of_sockets.and(Kinds::ROUND_TRIPS)
        } else {
            Kinds::NONE
        },
        tasks: layout::tasks_of_this_kernel().unwrap(),
        tcp: layout::tcp_of_this_kernel().unwrap(),
        dns_per_second: u32::from(all),
        icmp_errors: all,
        drops: if all {
            layout::drops_of_this_kernel().unwrap()
        } else {
            DropLayout::UNKNOWN
        },
        early_scan_flows: 1,
        sample_rate: 2,
        asks_drivers: true,
        ..LoadSettings::smallest(vec![1])
    })
    .unwrap();
    attach::load_all(&mut kernel.sets[0].programs).unwrap();
    processes::load(&mut kernel.sets[0].programs).unwrap();
    connections::load(&mut kernel.sets[0].programs).unwrap();
    drops::load(&mut kernel.sets[0].programs).unwrap();
    // Programs for kernels without frames of several buffers, although this kernel may have them.
    for name in ["xdp_ingress", "xdp_ingress_ip"] {
        let program = kernel.sets[0].programs.program_mut(name).unwrap();
        let program: &mut Xdp = program.try_into().unwrap();
        // It may be loaded already.
        if program.fd().is_err() {
            program.load().unwrap();
        }
    }
    let set = &mut kernel.sets[0];
    if kernel::is_at_least(6, 8) {
        let lab = Lab::quiet().unwrap();
        let host = &lab.agent;
        let ifindex = host.namespace.ifindex(&host.interface).unwrap();
        let tagged = set.tagged.as_mut().unwrap();
        let load = || Ok(bpf::verified_instructions(tagged.load(ifindex)?.as_fd())?);
        let count = host.namespace.enter(load).unwrap();
        eprintln!("all {all}: {}: {count}", TaggedPrograms::NAME);
    }
    let programs = &set.programs;
    let mut walked: Vec<_> = programs
        .programs()
        .filter_map(|(name, program)| {
            let count = program.info().ok()?.verified_instruction_count()?;
            Some((count, name))
        })
        .collect();
    walked.sort_unstable();
    // The verifier walks at most a million. Before 5.16 the kernel does not give the number.
    eprintln!("all {all}: {walked:?}");
}

#[test]
fn every_program_is_taken_by_the_kernel() {
    if is_root_or_skip("agent::every_program_is_taken_by_the_kernel") {
        every_program_is_taken(false);
    }
}

#[test]
fn every_program_that_opens_tunnels_and_notes_senders_is_taken_by_the_kernel() {
    if is_root_or_skip(
        "agent::every_program_that_opens_tunnels_and_notes_senders_is_taken_by_the_kernel",
    ) {
        every_program_is_taken(true);
    }
}

#[test]
fn an_order_at_tcx_is_said_to_do_nothing_where_there_is_no_tcx() {
    const NAME: &str = "agent::an_order_at_tcx_is_said_to_do_nothing_where_there_is_no_tcx";
    if kernel::has_tcx() {
        skip(NAME, "the kernel has TCX");
        return;
    }
    if !is_root_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--tcx-order", "last"]);
    let said = agent.stderr();
    assert_eq!(
        said.matches("--tcx-order does nothing").count(),
        1,
        "{said}"
    );
    agent.stop();
}

#[test]
fn both_directions_are_one_flow_from_the_sender_of_the_syn() {
    if !is_root_or_skip("agent::both_directions_are_one_flow_from_the_sender_of_the_syn") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let mut expected = BTreeMap::new();
    let cases = [
        (&lab.peer, &lab.agent, 4000, [ACK, RST]),
        (&lab.agent, &lab.peer, 4001, [ACK, RST]),
        (&lab.peer, &lab.agent, 4002, [FIN | ACK, FIN | ACK]),
        (&lab.agent, &lab.peer, 4003, [FIN | ACK, FIN | ACK]),
    ];
    for (client, server, port, [client_ends, server_ends]) in cases {
        let (there, back) = (client.frame_v4(server), server.frame_v4(client));
        let (up, down) = (
            client.frame_socket().unwrap(),
            server.frame_socket().unwrap(),
        );
        let mut sums = [Pair::default(); 2];
        let talk = [
            (0, SYN, 0),
            (1, SYN | ACK, 0),
            (0, ACK, 10),
            (1, ACK, 1000),
            (0, client_ends, 0),
            (1, server_ends, 0),
        ];
        for (side, flags, payload_len) in talk {
            let payload = vec![0; payload_len];
            let (socket, frame) = if side == 0 {
                (&up, there.tcp(port, 443, flags, &payload).unwrap())
            } else {
                (&down, back.tcp(443, port, flags, &payload).unwrap())
            };
            socket.send(&frame).unwrap();
            sums[side] += count(1, &frame);
        }
        let (client, server) = (client.ipv4.to_string(), server.ipv4.to_string());
        expected.insert(name("[]", 6, (&client, port.into()), (&server, 443)), sums);
    }
    // Lets the flows end before the agent does.
    agent.wait_for_scans(&lab.agent, 3);
    let report = agent.stop();
    assert_eq!(report.sums(), expected);
    for flow in expected.keys() {
        assert_eq!(report.end_reason(flow), "end_of_flow", "{flow}");
    }
    let mut accounts = report.accounts.iter();
    assert!(accounts.all(|account| account["refused_in_window"] == false));
}

#[test]
fn an_answer_without_its_question_still_tells_the_initiator() {
    if !is_root_or_skip("agent::an_answer_without_its_question_still_tells_the_initiator") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let (client, server) = (&lab.peer, &lab.agent);
    let (up, down) = (client.frame_v4(server), server.frame_v4(client));
    let talks = [
        // The agent did not see the SYN.
        vec![(1, 4100, SYN | ACK), (0, 4100, ACK)],
        // Neither the SYN nor its answer was seen, so the first sender counts as the initiator: here the server.
        vec![(1, 4101, ACK), (0, 4101, ACK)],
        // Two hooks may see them in the wrong order.
        vec![(1, 4102, SYN | ACK), (0, 4102, SYN)],
    ];
    let (sends_up, sends_down) = (
        client.frame_socket().unwrap(),
        server.frame_socket().unwrap(),
    );
    let mut frame_len_bytes = 0;
    for (side, port, flags) in talks.concat() {
        let (socket, frame) = if side == 0 {
            (&sends_up, up.tcp(port, 443, flags, &[]).unwrap())
        } else {
            (&sends_down, down.tcp(443, port, flags, &[]).unwrap())
        };
        socket.send(&frame).unwrap();
        frame_len_bytes = frame.len() as u64;
    }
    let report = agent.stop();
    let one = Pair {
        packets: 1,
        bytes: frame_len_bytes,
    };
    let (client, server) = (&*client.ipv4.to_string(), &*server.ipv4.to_string());
    let expected = BTreeMap::from([
        (name("[]", 6, (client, 4100), (server, 443)), [one, one]),
        (name("[]", 6, (server, 443), (client, 4101)), [one, one]),
        (name("[]", 6, (client, 4102), (server, 443)), [one, one]),
    ]);
    assert_eq!(report.sums(), expected);
    for flow in expected.keys() {
        assert_eq!(report.end_reason(flow), "forced_end", "{flow}");
    }
}

#[test]
fn a_flow_that_falls_silent_ends_by_the_idle_timeout() {
    if !is_root_or_skip("agent::a_flow_that_falls_silent_ends_by_the_idle_timeout") {
        return;
    }
    let in_time = (0..5).any(|_| falls_silent(Duration::from_secs(10)));
    assert!(in_time, "the test never gets a CPU for five seconds");
}

/// Returns whether the test was fast enough that the other flow did not end, too.
fn falls_silent(idle_timeout: Duration) -> bool {
    let lab = Lab::quiet().unwrap();
    let timeout = humantime::format_duration(idle_timeout).to_string();
    let agent = Agent::start(&lab, &["--idle-timeout", &timeout]);
    let socket = lab.peer.frame_socket().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let silent = frame.udp(1, 53, &[0; 18]).unwrap();
    let alive = frame.udp(2, 53, &[0; 18]).unwrap();
    socket.send(&silent).unwrap();
    let (mut sent, mut longest) = (Instant::now(), Duration::ZERO);
    wait_until("the silent one ends", || {
        longest = longest.max(sent.elapsed());
        socket.send(&alive).unwrap();
        sent = Instant::now();
        agent.stdout().contains("idle_timeout")
    });
    let report = agent.stop();
    if longest.max(sent.elapsed()) > idle_timeout / 2 {
        return false;
    }
    let (src, dst) = (&*lab.peer.ipv4.to_string(), &*lab.agent.ipv4.to_string());
    let (silent, alive) = [1, 2]
        .map(|port| name("[]", 17, (src, port), (dst, 53)))
        .into();
    assert_eq!(report.end_reason(&silent), "idle_timeout");
    assert_eq!(report.end_reason(&alive), "forced_end");
    true
}

#[test]
fn a_full_table_keeps_what_it_has_and_counts_what_it_refuses() {
    const FLOWS: u16 = 10_000;
    if !is_root_or_skip("agent::a_full_table_keeps_what_it_has_and_counts_what_it_refuses") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = [
        "--max-flows",
        "1000",
        "--early-scan",
        "0",
        "--scan-interval",
        "60s",
    ];
    let agent = Agent::start(&lab, &settings);
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| frame.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_for_packets(&lab.agent, before, FLOWS.into());
    let report = agent.stop();

    let sums = report.sums();
    let kept = sums.len() as u64;
    assert!((1000..2000).contains(&kept), "{kept}");
    assert!(
        sums.values()
            .all(|sum| *sum == [count(1, &frames[0]), Pair::default()])
    );
    assert_eq!(report.seen(), count(FLOWS.into(), &frames[0]));
    let refused = pair(&report.last()["not_inserted"]["table_full"]);
    assert_eq!(refused, count(u64::from(FLOWS) - kept, &frames[0]));
    assert_eq!(report.last()["refused_in_window"], true);
    assert_eq!(report.last()["table_occupancy"], kept);
}

#[test]
fn many_flows_are_exact_over_many_scans() {
    const PACKETS: usize = 3;
    if !is_root_or_skip("agent::many_flows_are_exact_over_many_scans") {
        return;
    }
    let flows = kernel::packets(100_000, 10_000) as u32;
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--max-flows", "200000"]);
    let before = lab.agent.counters().unwrap();
    let to = lab.agent.ipv4;
    let frames: Vec<_> = (0..flows)
        .map(|flow| {
            let from = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + flow / 1000);
            let frame = lab.peer.frame_v4(&lab.agent).between(from, to);
            frame.udp((flow % 1000) as u16 + 1, 53, &[0; 18]).unwrap()
        })
        .collect();
    let mut order: Vec<&[u8]> = (0..PACKETS)
        .flat_map(|_| frames.iter().map(Vec::as_slice))
        .collect();
    shuffle(&mut order);
    let socket = lab.peer.frame_socket().unwrap();
    for part in order.chunks(order.len() / 10) {
        socket.send_many(part).unwrap();
        agent.wait_for_scans(&lab.agent, 1);
    }
    wait_for_packets(&lab.agent, before, order.len() as u64);
    let (accounts, sums) = agent.stop_and_sum();

    assert!(accounts.len() > 10);
    let seen = pair(&accounts.last().unwrap()["seen"]);
    assert_eq!(seen, count(order.len() as u64, &frames[0]));
    assert_eq!(sums.len(), frames.len());
    let expected = [count(PACKETS as u64, &frames[0]), Pair::default()];
    let wrong: Vec<_> = sums
        .iter()
        .filter(|(_, sum)| **sum != expected)
        .take(5)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Shuffles, in the same order every time (xorshift, Fisher-Yates).
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for last in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

#[test]
fn nothing_stays_attached_after_an_end_of_any_kind() {
    if !is_root_or_skip("agent::nothing_stays_attached_after_an_end_of_any_kind") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let is_attached = || {
        let mut ip = lab.agent.command("ip");
        let output = ip
            .args(["-d", "-j", "link", "show", &lab.agent.interface])
            .output()
            .unwrap();
        let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        links[0].get("xdp").is_some()
    };
    for is_killed in [true, false, true] {
        let agent = Agent::start(&lab, NATIVE_XDP);
        assert!(is_attached());
        if is_killed {
            assert!(!agent.kill().success());
        } else {
            agent.stop();
        }
        // The kernel frees the link of a process some time after its end.
        wait_until("XDP is detached", || !is_attached());
    }
    // The packet is counted once, so no program of an earlier agent counts into this one's table.
    let agent = Agent::start(&lab, &[]);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    lab.peer.frame_socket().unwrap().send(&frame).unwrap();
    wait_for_packets(&lab.agent, before, 1);
    assert_eq!(agent.stop().seen(), count(1, &frame));
}

/// Runs an agent that cannot start and returns what it wrote to stderr.
fn refusal(lab: &Lab, arguments: &[&str]) -> String {
    let output = flow_agent(&lab.agent)
        .arg("run")
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{stderr}");
    stderr
}

#[test]
fn a_start_that_fails_says_what_is_wrong() {
    if !is_root_or_skip("agent::a_start_that_fails_says_what_is_wrong") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let unknown = refusal(
        &lab,
        &["--interface", "nowhere7", "--listen", "127.0.0.1:0"],
    );
    assert_eq!(unknown.lines().count(), 1, "{unknown}");
    assert!(unknown.contains("nowhere7"), "{unknown}");

    let taken = lab
        .agent
        .namespace
        .enter(|| Ok(TcpListener::bind("127.0.0.1:0")?))
        .unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let in_use = refusal(
        &lab,
        &["--interface", &lab.agent.interface, "--listen", &address],
    );
    assert!(
        in_use.contains(&address) && in_use.contains("in use"),
        "{in_use}"
    );

    let pattern = refusal(&lab, &["--interface", "/[/"]);
    assert!(
        pattern.contains("/[/") && pattern.contains("--interface"),
        "{pattern}"
    );
}

/// Both CPUs send the same frame as fast as they can while scans run, until enough have arrived. The wire
/// drops frames while its ring is full, so the agent must count what arrived. The frames are shorter than Ethernet's
/// shortest, so the rare part of the account counts each, too.
fn an_elephant_is_counted_to_the_packet(settings: &[&str]) {
    const LACKING: usize = 8;
    let enough = kernel::packets(5_000_000, 100_000);
    let at_once = enough as u32 / 10;
    let lab = Lab::quiet().unwrap();
    // A veth end takes generated frames only where it polls.
    lab.agent.set_offloads(&["gro"], true).unwrap();
    let agent = Agent::start(&lab, settings);
    let before = lab.agent.counters().unwrap();
    let frame_of = |port| {
        let frame = lab.peer.frame_v4(&lab.agent);
        frame.udp(port, 53, &[0; 18 - LACKING]).unwrap()
    };
    let frame = frame_of(1000);
    let generator = lab.peer.generator().unwrap();
    let has_arrived = || (lab.agent.counters().unwrap() - before).rx_packets;
    while has_arrived() < enough {
        thread::scope(|scope| {
            for cpu in [0, 1] {
                let (generator, frame) = (&generator, &frame);
                scope.spawn(move || generator.send(frame, at_once, Some(cpu)).unwrap());
            }
        });
    }
    // Each sending CPU has its own ring. Once its last frame has arrived, none is in flight.
    let last = [1001, 1002].map(frame_of);
    for (cpu, frame) in last.iter().enumerate() {
        let told = format!(r#""src_port":{}"#, 1001 + cpu);
        wait_until("the last frame of a CPU is counted", || {
            // Dropped where the ring is full.
            generator.send(frame, 1, Some(cpu)).unwrap();
            agent.stdout().contains(&told)
        });
    }
    let seen = || pair(&agent.status(&lab.agent)["account"]["seen"]).packets;
    wait_until("the agent has what the interface has", || {
        seen() == has_arrived()
    });
    let arrived = has_arrived();
    let report = agent.stop();

    assert!(report.accounts.len() > 2, "{} scans", report.accounts.len());
    assert_eq!(report.seen(), count(arrived, &frame));
    let short = Pair {
        packets: arrived,
        bytes: arrived * LACKING as u64,
    };
    assert_eq!(pair(&report.last()["beside"]["short"]), short);
    let sums = report.sums();
    assert_eq!(sums.len(), 1 + last.len());
    let sums: Both = sums
        .into_values()
        .reduce(|sum, each| [sum[0] + each[0], sum[1] + each[1]])
        .unwrap();
    assert_eq!(sums, [count(arrived, &frame), Pair::default()]);
}

#[test]
fn an_elephant_from_two_cpus_is_counted_to_the_packet_over_xdp() {
    if has_generator_or_skip("agent::an_elephant_from_two_cpus_is_counted_to_the_packet_over_xdp") {
        an_elephant_is_counted_to_the_packet(NATIVE_XDP);
    }
}

#[test]
fn an_elephant_from_two_cpus_is_counted_to_the_packet_over_tc() {
    if has_generator_or_skip("agent::an_elephant_from_two_cpus_is_counted_to_the_packet_over_tc") {
        an_elephant_is_counted_to_the_packet(&[]);
    }
}
