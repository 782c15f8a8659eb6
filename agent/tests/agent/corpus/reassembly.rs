//! How long a first fragment is remembered, so that a later one joins its flow.

use std::time::{Duration, Instant};

use agent_common::{FlowKey, Reason};
use corpus::entries;
use lab::privilege::is_root_or_skip;

use super::programs::{Hook, Programs};

/// The test does not wait: it makes the remembered first fragment older.
#[test]
fn a_later_fragment_joins_its_flow_for_thirty_seconds() {
    if !is_root_or_skip("agent::a_later_fragment_joins_its_flow_for_thirty_seconds") {
        return;
    }
    let entries = entries().unwrap();
    let frame = |name: &str| {
        let entry = entries.iter().find(|entry| entry.name == name).unwrap();
        &entry.frame.bytes
    };
    let mut programs = Programs::load(false);
    let mut run = |seconds| {
        let (first, ..) = counted(&mut programs, frame("ipv4_first_fragment"));
        make_older(&mut programs, Duration::from_secs(seconds));
        let (last, joined, unmatched) = counted(&mut programs, frame("ipv4_last_fragment"));
        programs.forget_fragments();
        (last == first, joined, unmatched)
    };
    assert_eq!(run(0), (true, 1, 0));
    // Two seconds are left for what is between the two.
    while {
        let begun = Instant::now();
        let joined = run(28);
        let is_in_time = begun.elapsed() < Duration::from_secs(2);
        assert!(!is_in_time || joined == (true, 1, 0), "{joined:?}");
        !is_in_time
    } {}
    assert_eq!(run(31), (false, 0, 1));
}

/// The flow of the frame, the packets that joined a first fragment, and those that did not.
fn counted(programs: &mut Programs, frame: &[u8]) -> (FlowKey, u64, u64) {
    let counted = programs.run_and_remember("tc_ingress", Hook::TcIngress, frame, 0);
    let counted = counted.unwrap();
    let packets = |reason| counted.account.get(reason).packets;
    assert_eq!(packets(Reason::Flows), 1);
    let [(flow, _)] = counted.flows[..] else {
        panic!("one flow each")
    };
    (
        flow,
        packets(Reason::FragmentsJoined),
        packets(Reason::FragmentsUnmatched),
    )
}

/// Makes the only remembered first fragment older.
fn make_older(programs: &mut Programs, by: Duration) {
    let firsts: Vec<_> = programs.fragments.iter().map(Result::unwrap).collect();
    let [(datagram, mut first)] = firsts[..] else {
        panic!("one datagram")
    };
    let seen_ns = u64::from_ne_bytes(*first.first_chunk().unwrap());
    let older_ns = seen_ns.wrapping_sub(by.as_nanos() as u64);
    *first.first_chunk_mut().unwrap() = older_ns.to_ne_bytes();
    programs.fragments.insert(datagram, first, 0).unwrap();
}
