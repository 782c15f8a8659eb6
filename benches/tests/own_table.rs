//! The prototype of a flow table of our own: when two CPUs count at once, every packet is in a slot or counted as
//! without one.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

use std::{thread, time::Duration};

use agent_common::Pair;
use benches::own_table::{Size, TablePrograms};
use lab::{Counters, Lab, Variety, privilege::is_root_or_skip};

const EACH: u32 = 500_000;

/// Entries, their sum, what found no slot, and what the interface received.
struct Outcome {
    entries: u64,
    placed: Pair,
    unplaced: Pair,
    received: Counters,
}

impl Outcome {
    fn is_exact(&self) -> bool {
        let counted = self.placed + self.unplaced;
        self.received.rx_packets > u64::from(EACH) && counted.packets == self.received.rx_packets
    }
}

fn count(variety: Variety, window_starts: u32) -> Outcome {
    let lab = Lab::quiet().unwrap();
    lab.agent.set_offloads(&["gro"], true).unwrap();
    let mut programs = TablePrograms::load(Size {
        hash_map_flows: 1,
        window_starts,
        windows: 2,
    })
    .unwrap();
    programs.attach("own", &lab.agent).unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.udp(1000, 53, &[0; 18]).unwrap();
    let generator = lab.peer.generator_of(variety).unwrap();
    let cpus = thread::available_parallelism().unwrap().get().min(2);
    thread::scope(|scope| {
        for cpu in 0..cpus {
            let (generator, frame) = (&generator, &frame);
            scope.spawn(move || generator.send(frame, EACH, Some(cpu)).unwrap());
        }
    });
    let received = settled(&lab);
    let (entries, placed) = programs.slots().unwrap().drain_sum();
    let unplaced = programs.unplaced().unwrap();
    assert_eq!(placed.bytes, placed.packets * frame.len() as u64);
    assert_eq!(unplaced.bytes, unplaced.packets * frame.len() as u64);
    Outcome {
        entries,
        placed,
        unplaced,
        received,
    }
}

/// The frames in the ring have passed the hook when the counter stands still.
fn settled(lab: &Lab) -> Counters {
    let mut last = lab.agent.counters().unwrap();
    loop {
        thread::sleep(Duration::from_millis(50));
        let counters = lab.agent.counters().unwrap();
        if counters == last {
            return counters;
        }
        last = counters;
    }
}

#[test]
fn two_cpus_in_one_flow_lose_no_packet() {
    if !is_root_or_skip("benches::two_cpus_in_one_flow_lose_no_packet") {
        return;
    }
    let outcome = count(Variety::Same, 1000);
    assert!(outcome.is_exact());
    assert_eq!(outcome.unplaced, Pair::default());
    // Both CPUs may have come first.
    assert!((1..=2).contains(&outcome.entries));
}

#[test]
fn two_cpus_in_many_flows_lose_no_packet() {
    if !is_root_or_skip("benches::two_cpus_in_many_flows_lose_no_packet") {
        return;
    }
    let flows = 10_000;
    let outcome = count(Variety::Sources(flows), 4 * flows);
    assert!(outcome.is_exact());
    let few_twice = flows + flows / 100;
    assert!((flows..=few_twice).contains(&u32::try_from(outcome.entries).unwrap()));
}

#[test]
fn packets_without_a_slot_are_counted() {
    if !is_root_or_skip("benches::packets_without_a_slot_are_counted") {
        return;
    }
    let outcome = count(Variety::Sources(10_000), 1000);
    assert!(outcome.is_exact());
    assert!(outcome.unplaced.packets > outcome.placed.packets);
    assert!(outcome.entries <= 1007);
}
