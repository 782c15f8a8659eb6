//! Guards against gross regressions. `flow-bench` measures the figures themselves.

use std::{collections::BTreeSet, time::Duration};

use agent_common::{Reason, Senders, senders::Kinds};
use benches::{
    heap::{CountingAllocator, heap},
    kernel_table::KernelTable,
    profile::{PROBECTL, PROFILES, Profile, TCP},
    stage::Cost,
    user_space::{Source as _, UserSpace},
};
use flows::replica::{Replica, ReplicaSettings};
use formats::{
    encoder::Encoder as _,
    ipfix::{Domains, Ipfix, Settings},
    pbflow::Pbflow,
};
use prost::Message as _;
use proto::{Endpoint, FlowBatch, FlowRecord};
use sys::clock::ScanClock;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// 5 % of the rate measured on two virtual cores of an EPYC 9005.
const FLOOR_FLOWS_PER_SECOND: f64 = if cfg!(debug_assertions) {
    40_000.0
} else {
    700_000.0
};

/// The fields at the start of every batch of a scan, and the account without its reasons. A map with more than eleven
/// reasons has three nodes.
const ALLOCATIONS_PER_SCAN: u64 = 18;
/// The reason's name in the account.
const ALLOCATIONS_PER_REASON: u64 = 1;
/// A buffer and its reference count.
const ALLOCATIONS_PER_BATCH: u64 = 2;
/// The copy; the buffer itself is reused.
const ALLOCATIONS_PER_SHORT_BATCH: u64 = 1;

#[test]
fn a_full_cycle_stays_above_its_floor() {
    let pages = PROBECTL.pages();
    let mut user_space = UserSpace::default();
    let mut scans = |count: usize| {
        for scan in 0..count {
            user_space.cycle(&pages[scan % 2]).unwrap();
        }
        Ok(())
    };
    scans(10).unwrap();
    let (cost, ()) = Cost::of(|| scans(100)).unwrap();
    // CPU time, because other tests share the machine.
    let rate = f64::from(PROBECTL.flows) * 100.0 / cost.cpu_ns * 1e9;
    eprintln!("{rate:.0} flows/s");
    assert!(
        rate >= FLOOR_FLOWS_PER_SECOND,
        "{rate:.0} flows/s are below {FLOOR_FLOWS_PER_SECOND}"
    );
}

#[test]
fn updates_of_known_flows_and_the_end_of_a_scan_allocate_nothing() {
    for profile in [PROBECTL, PROFILES[1]] {
        let pages = profile.pages();
        let mut user_space = UserSpace::default();
        // The replica keeps the order of the flows of two scans.
        user_space.update(&pages[0]);
        user_space.update(&pages[1]);
        let before = heap().allocations;
        user_space.update(&pages[0]);
        user_space.update(&pages[1]);
        assert_eq!(heap().allocations - before, 0, "{}", profile.name);
    }
}

#[test]
fn a_scan_allocates_by_the_batch_and_never_by_the_flow() {
    let reasons = Reason::UNPARSED.len() + Reason::NOT_INSERTED.len() + Reason::BESIDE.len();
    for profile in [PROBECTL, PROFILES[1], PROFILES[2]] {
        let pages = profile.pages();
        let mut user_space = UserSpace::default();
        for page in [0, 1, 0] {
            user_space.cycle(&pages[page]).unwrap();
        }
        user_space.take_delivered();
        let before = heap().allocations;
        user_space.cycle(&pages[1]).unwrap();
        let allocations = heap().allocations - before;
        let delivered = user_space.take_delivered();
        let (batches, short) = (delivered.batches, delivered.short_batches);
        assert_eq!(
            allocations,
            ALLOCATIONS_PER_SCAN
                + ALLOCATIONS_PER_REASON * reasons as u64
                + ALLOCATIONS_PER_BATCH * (batches - short)
                + ALLOCATIONS_PER_SHORT_BATCH * short,
            "{}: {batches} batches, {short} of them short",
            profile.name
        );
    }
}

/// Flows for an output to send.
fn udp_flows() -> Vec<FlowRecord> {
    vec![
        FlowRecord {
            src: Some(Endpoint {
                addr: vec![192, 0, 2, 1].into(),
                port: Some(1000),
                delta_packets: 1,
                delta_bytes: 100,
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                addr: vec![192, 0, 2, 2].into(),
                port: Some(53),
                ..Endpoint::default()
            }),
            protocol: 17,
            ip_version: 4,
            ..FlowRecord::default()
        };
        1_000
    ]
}

#[test]
fn a_flow_goes_out_as_ipfix_without_an_allocation() {
    let flows = udp_flows();
    let batch = FlowBatch::default();
    let mut ipfix = Ipfix::new(Settings::datagrams(), |_| Domains {
        flows: 1,
        process: 2,
    });
    let mut send = || {
        let (mut rest, mut messages) = (&flows[..], 0);
        while !rest.is_empty() {
            let message = ipfix.message(&batch, rest);
            ipfix.sent();
            rest = &rest[message.flows..];
            messages += 1;
        }
        messages
    };
    // The first send includes the templates.
    send();
    let before = heap().allocations;
    let messages = send();
    let allocations = heap().allocations - before;
    // About a dozen flows each. The buffer may be a fresh one, with a reference count.
    assert!((80..100).contains(&messages), "{messages}");
    assert!(
        allocations <= 2 * messages,
        "{allocations} for {messages} messages"
    );
}

#[test]
fn a_flow_takes_at_most_200_bytes_and_none_for_those_that_left() {
    /// A little more than seven eighths of a power of two: a hash map has just grown and needs the most memory per
    /// flow.
    const FLOWS: u32 = 120_000;
    let before = heap().live_bytes;
    let mut replica = Replica::new(ReplicaSettings {
        max_flows: FLOWS as usize,
        idle_timeout: Duration::from_mins(1),
        linger: Duration::from_secs(5),
        report_interval: Duration::ZERO,
    });
    let mut turn_over = |from: u32| {
        replica.begin_scan(ScanClock::default());
        for number in from..from + FLOWS {
            let (key, mut counters) = Profile::entry(number);
            counters.first_seen_ns = number.into();
            counters.last_seen_jiffies = 0;
            replica.update(&[key], &[counters], &mut |_| {});
        }
        replica.end_scan(&BTreeSet::new(), &mut |_| {});
        assert_eq!(replica.len(), FLOWS as usize);
        heap().live_bytes - before
    };
    turn_over(0);
    let after_churn = turn_over(FLOWS);
    assert_eq!(turn_over(2 * FLOWS), after_churn);
    let bytes_per_flow = after_churn / i64::from(FLOWS);
    assert!((100..=200).contains(&bytes_per_flow), "{bytes_per_flow}");
}

#[test]
fn the_kernels_table_drains_to_what_was_put_in() {
    if !lab::privilege::is_root_or_skip("the_kernels_table_drains_to_what_was_put_in") {
        return;
    }
    for kinds in [Kinds::NONE, Kinds::ALL] {
        let has_senders = kinds != Kinds::NONE;
        let mut table = KernelTable::load(PROBECTL.flows, kinds).unwrap();
        for _ in 0..3 {
            table.fill(PROBECTL).unwrap();
            let mut drained = Vec::new();
            let page = table.flip().unwrap();
            page.drain(|keys, counters, senders| {
                assert_eq!(senders.len(), if has_senders { keys.len() } else { 0 });
                let mut senders = senders.iter().copied();
                for (key, counters) in keys.iter().zip(counters) {
                    drained.push((*key, *counters, senders.next()));
                }
            })
            .unwrap();
            let put_in = |number| {
                if has_senders {
                    let (key, counters, senders) = Profile::enriched_entry(number);
                    return (key, counters, Some(senders));
                }
                let (key, counters) = Profile::entry(number);
                (key, counters, None)
            };
            let mut expected: Vec<_> = (0..PROBECTL.flows).map(put_in).collect();
            for entries in [&mut drained, &mut expected] {
                entries.sort_unstable_by_key(|&(key, ..)| key);
            }
            assert!(drained == expected);
            let told = |entry: &&(_, _, Option<Senders>)| {
                entry.2.is_some_and(|one| one != Senders::default())
            };
            assert_eq!(drained.iter().filter(told).count() > 300, has_senders);
        }
    }
}

/// If this failed, the bench would measure less than it claims.
#[test]
fn all_that_is_known_of_flows_is_in_the_batches() {
    if !lab::privilege::is_root_or_skip("all_that_is_known_of_flows_is_in_the_batches") {
        return;
    }
    let mut table = KernelTable::load(PROBECTL.flows, Kinds::ALL).unwrap();
    table.fill(PROBECTL).unwrap();
    let mut user_space = UserSpace::default().naming(PROBECTL);
    user_space.cycle(table.flip().unwrap()).unwrap();
    let batch = FlowBatch::decode(user_space.last_batch().unwrap().body.clone()).unwrap();
    assert_eq!(batch.records.len() as u32, PROBECTL.flows);
    for flow in &batch.records {
        assert_ne!(flow.ends().map(|end| end.cgroup_id), [None; 2]);
        assert_ne!(flow.ends().map(|end| end.process_key), [None; 2]);
        assert_ne!(flow.ends().map(|end| end.host_id), [None; 2]);
        if flow.protocol == u32::from(TCP) {
            assert_ne!([flow.src().tcp_rtt_us, flow.dst().tcp_rtt_us], [None; 2]);
            assert!(flow.src().ack_rtt_us.is_some() && flow.dst().ack_rtt_us.is_some());
        }
    }
    assert_eq!(batch.cgroups.len(), 50);
    assert!(
        batch
            .cgroups
            .iter()
            .all(|one| one.unit.ends_with(".service"))
    );
    assert!(batch.processes.len() > 100);
    assert!(batch.processes.iter().all(|one| one.name == "worker"));
    assert_eq!(batch.hosts.len() as u32, PROBECTL.flows / 8);
}

#[test]
fn a_flow_goes_out_as_pbflow_without_an_allocation() {
    let flows = udp_flows();
    let batch = FlowBatch::default();
    let mut pbflow = Pbflow::new(|| None);
    let mut send = || {
        let message = pbflow.message(&batch, &flows);
        assert_eq!(message.flows, flows.len());
        assert!(message.bytes.len() > 30 * flows.len());
    };
    send();
    let before = heap().allocations;
    send();
    let allocations = heap().allocations - before;
    // The buffer may be a fresh one, with a reference count, and the tails of the interface's records are rebuilt.
    assert!(allocations < 20, "{allocations} for {} flows", flows.len());
}
