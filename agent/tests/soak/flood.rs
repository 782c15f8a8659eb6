//! A flood of SYNs from random sources, as fast as the kernel makes them.

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use lab::{
    Lab, Process, Variety,
    privilege::{is_root_or_skip, skip},
};
use serde_json::Value;

use crate::{
    memory::Samples,
    probe, seconds_from,
    support::{Agent, flow_agent, wait_for_silence, wait_until},
};

const SYN: u8 = 0x02;
const MAX_FLOWS: u64 = 65_536;
const MAX_TRACKED_FLOWS: u64 = 200_000;
/// Memory for a flow in both pages of the kernel's table, and for one in the replica with its index: the
/// numbers of docs/memory.md, rounded up.
const BYTES_PER_FLOW: u64 = 2 * 200;
const BYTES_PER_TRACKED_FLOW: u64 = 400;
const REST_BYTES: u64 = 48 << 20;
/// The queue of a consumer that does not read, as docs/memory.md says.
const QUEUED_BYTES: u64 = 256 << 20;
/// The most delay that the agent may add to a host's answers under the same flood. On a machine that is slow by itself
/// this is a multiple of its own delay, but never so long that a user would call it hung.
const RESPONSIVE: Duration = Duration::from_secs(1);
const LATER: u32 = 10;
const HUNG: Duration = Duration::from_secs(5);

fn flood(lab: &Lab, time: Duration) {
    const AT_ONCE: u32 = 100_000;
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.tcp(4000, 80, SYN, &[]).unwrap();
    let generator = lab.peer.generator_of(Variety::Sources(0)).unwrap();
    let start = Instant::now();
    while start.elapsed() < time {
        generator.send(&frame, AT_ONCE, Some(0)).unwrap();
    }
}

#[test]
fn a_syn_flood_leaves_memory_bounded_and_the_host_responsive() {
    const TEST: &str = "agent::a_syn_flood_leaves_memory_bounded_and_the_host_responsive";
    if !is_root_or_skip(TEST) {
        return;
    }
    let time = seconds_from("FLOW_AGENT_FLOOD_SECONDS", 6);
    let lab = Lab::quiet().unwrap();
    // A veth end takes generated frames only where it polls.
    lab.agent.set_offloads(&["gro"], true).unwrap();
    let alone = probe::during(|| flood(&lab, time / 3));

    let (max_flows, max_tracked) = (MAX_FLOWS.to_string(), MAX_TRACKED_FLOWS.to_string());
    let settings = [
        &[
            "--max-flows",
            &max_flows,
            "--max-tracked-flows",
            &max_tracked,
        ][..],
        // Longer than the flood, so that each scan is an early one, however slow the machine floods.
        &["--scan-interval", "1h", "--output", "none"],
    ];
    let agent = Agent::start(&lab, &settings.concat());
    let mut watch = flow_agent(&lab.agent);
    watch.args(["watch", "--output", "json", "--connect", &agent.address()]);
    let stalled = Process::spawn(watch.stdout(Stdio::null())).unwrap();
    wait_until("the consumer is there", || {
        let consumers = agent.status(&lab.agent)["consumers"].clone();
        consumers.as_array().is_some_and(|all| !all.is_empty())
    });
    stalled.signal(libc::SIGSTOP).unwrap();
    let before = lab.agent.counters().unwrap();
    let mut samples = Samples::default();
    samples.add(&agent.status(&lab.agent));
    let counted = probe::during(|| {
        thread::scope(|scope| {
            let flooding = scope.spawn(|| flood(&lab, time));
            while !flooding.is_finished() {
                thread::sleep(Duration::from_millis(500));
                samples.add(&agent.status(&lab.agent));
            }
        });
    });
    let received = (wait_for_silence(&lab.agent) - before).rx_packets;
    let status = agent.status(&lab.agent);
    let number = |of: &Value| of.as_u64().unwrap();
    let early = number(&status["scans"]["early"]);
    let flows = number(&status["account"]["flows"]["packets"]);
    drop(stalled);
    let log = agent.stop_silent();

    println!("{received} SYNs in {time:?}, {early} early scans, {flows} in flows");
    println!(
        "a timer, without the agent: {}; with it: {}",
        alone.late, counted.late
    );
    println!(
        "an echo, without the agent: {}; with it: {}",
        alone.echo, counted.echo
    );
    let (resident, kernel) = (samples.peak_mib(), samples.kernel_mib());
    println!("memory: {resident} MiB resident at most, {kernel} MiB of kernel maps");
    assert!(received > 2 * MAX_FLOWS, "{received} SYNs are no flood");
    assert!(
        log.contains(&format!("seen={received} ")),
        "{received}: {log}"
    );
    assert!(early > 0 && flows > 0, "{early} early scans, {flows} flows");
    let table = MAX_FLOWS * BYTES_PER_FLOW;
    samples.assert_bounded(
        MAX_TRACKED_FLOWS * BYTES_PER_TRACKED_FLOW + QUEUED_BYTES + REST_BYTES + table,
        table + REST_BYTES,
    );
    if [&alone.late, &alone.echo]
        .iter()
        .any(|times| times.percentile(99) > RESPONSIVE)
    {
        return skip(
            TEST,
            "this machine is not responsive beside the flood alone; memory is bounded",
        );
    }
    for (times, alone) in [(&counted.late, &alone.late), (&counted.echo, &alone.echo)] {
        let most = HUNG.min(RESPONSIVE + LATER * alone.percentile(99));
        assert!(
            times.percentile(99) < most,
            "{times}; without the agent {alone}"
        );
    }
}
