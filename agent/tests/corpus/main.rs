//! The corpus through the loaded programs: the kernel runs each on each frame
//! (`BPF_PROG_TEST_RUN`), and the page and the account have what the entry says.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod programs;

use std::{cell::RefCell, collections::BTreeMap};

use agent_common::{FlowCounters, FlowKey, Pair, Reason};
use corpus::{Parsed, RawFrame, check, entries, mutation};
use lab::privilege::is_root_or_skip;
use programs::{
    Counted, Hook, IFINDEX, LONGEST_BUFFER, NETNS, NotRun, PAGE, PROGRAMS, Programs, is_short_skb,
};
use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseError, TestRunner},
};

/// What is wrong with what the kernel counted for a frame of `len` bytes, if anything.
fn compare(expected: &Parsed, len: usize, counted: &Counted) -> Result<(), String> {
    let one = Pair {
        packets: 1,
        bytes: len as u64,
    };
    let placed = expected.err().unwrap_or(Reason::Flows);
    let sums: BTreeMap<Reason, Pair> = Reason::ALL
        .iter()
        .filter(|reason| !Reason::BESIDE.contains(reason))
        .map(|&reason| (reason, counted.account.get(reason)))
        .filter(|(_, pair)| *pair != Pair::default())
        .collect();
    if sums != BTreeMap::from([(Reason::Seen, one), (placed, one)]) {
        return Err(format!("the account has {sums:?}"));
    }
    let Ok(packet) = expected else {
        return counted
            .flows
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("the page has {:?}", counted.flows));
    };
    let mut key = packet.key;
    (key.netns, key.ifindex) = (NETNS, IFINDEX);
    let direction = usize::from(packet.direction);
    let as_expected = |(found, counters): &(FlowKey, FlowCounters)| {
        let mut both = [Pair::default(); 2];
        both[direction] = one;
        let mut flags = [0; 2];
        flags[direction] = packet.tcp_flags;
        *found == key
            && counters.packets == both.map(|pair| pair.packets)
            && counters.bytes == both.map(|pair| pair.bytes)
            && [0, 1].map(|at: usize| counters.tcp_flags[at].union()) == flags
            && counters.first_direction == packet.initiator
            && counters.dscp == packet.dscp
    };
    match &counted.flows[..] {
        [flow] if as_expected(flow) => Ok(()),
        flows => Err(format!("the page has {flows:?}, not {key:?} of {packet:?}")),
    }
}

/// Runs a program on a frame and compares; the error says what is wrong.
fn run_and_compare(
    programs: &mut Programs,
    (name, hook): (&str, Hook),
    frame: &RawFrame,
    expected: &Parsed,
) -> Result<Option<NotRun>, String> {
    if let Some(reason) = hook.refuses(frame) {
        return Ok(Some(reason));
    }
    match programs.run(name, hook, &frame.bytes) {
        Ok(counted) => compare(expected, frame.bytes.len(), &counted).map(|()| None),
        Err(error)
            if hook.takes_skbs()
                && is_short_skb(&frame.bytes)
                && error.raw_os_error() == Some(libc::EINVAL) =>
        {
            Ok(Some(NotRun::ShortSkb))
        }
        Err(error) => Err(error.to_string()),
    }
    .map_err(|error| format!("{name}: {error}"))
}

#[test]
fn every_frame_counts_in_the_kernel_as_its_entry_says() {
    if !is_root_or_skip("agent::every_frame_counts_in_the_kernel_as_its_entry_says") {
        return;
    }
    let mut programs = Programs::load();
    let mut not_run: BTreeMap<NotRun, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut runs = 0;
    for entry in entries().unwrap() {
        let bytes = &entry.frame.bytes;
        assert!(
            !(LONGEST_BUFFER..PAGE).contains(&bytes.len()),
            "{}: some kernels take it and some do not",
            entry.name
        );
        for &(name, hook, link_type) in PROGRAMS {
            if link_type != entry.frame.link_type {
                continue;
            }
            match run_and_compare(&mut programs, (name, hook), &entry.frame, &entry.expected) {
                Ok(None) => runs += 1,
                Ok(Some(reason)) => {
                    *not_run.entry(reason).or_default() += 1;
                    if matches!(reason, NotRun::TooShort | NotRun::TooLong) {
                        let refusal = programs.run(name, hook, bytes).err();
                        let code = refusal.and_then(|error| error.raw_os_error());
                        assert_eq!(code, Some(libc::EINVAL), "{name} on {}", entry.name);
                    }
                }
                Err(error) => wrong.push(format!("{error}\n{entry}")),
            }
        }
    }
    eprintln!("{runs} runs; not run: {not_run:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same frames at every run, judged by our parser on the host, which the corpus crate holds
/// against a second one.
#[test]
fn mutated_frames_count_in_the_kernel_as_the_host_parses_them() {
    if !is_root_or_skip("agent::mutated_frames_count_in_the_kernel_as_the_host_parses_them") {
        return;
    }
    let programs = RefCell::new(Programs::load());
    let entries = entries().unwrap();
    let mut runner = TestRunner::new(Config {
        cases: 5_000,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Config::default()
    });
    let frames = mutation::mutated(&entries).prop_map(|frame| RawFrame { tag: None, ..frame });
    let result = runner.run(&frames, |frame| {
        let parsed = frame.parse();
        for &(name, hook, link_type) in PROGRAMS {
            if link_type != frame.link_type {
                continue;
            }
            let mut programs = programs.borrow_mut();
            let ran = run_and_compare(&mut programs, (name, hook), &frame, &parsed);
            ran.map_err(|error| {
                let entry = check::found(&frame, &parsed);
                TestCaseError::fail(format!("{error}\non the host\n\n{entry}"))
            })?;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
