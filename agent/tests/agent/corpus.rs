//! Runs each loaded program on each frame of the corpus (`BPF_PROG_TEST_RUN`). The page and the account must
//! have what the entry says.

pub mod programs;
mod reassembly;
mod twin;

use std::{cell::RefCell, collections::BTreeMap};

use corpus::{RawFrame, check, entries, mutation};
use lab::privilege::is_root_or_skip;
use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseError, TestRunner},
};

use programs::{LONGEST_BUFFER, NotRun, PAGE, PROGRAMS, Programs};
use twin::{compare, run_and_compare};

#[test]
fn every_frame_counts_in_the_kernel_as_its_entry_says() {
    if !is_root_or_skip("agent::every_frame_counts_in_the_kernel_as_its_entry_says") {
        return;
    }
    let mut programs = [false, true].map(Programs::load);
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
        let programs = &mut programs[usize::from(entry.frame.decapsulate)];
        for &(name, hook, link_type) in PROGRAMS {
            if link_type != entry.frame.link_type {
                continue;
            }
            match run_and_compare(programs, (name, hook), &entry.frame, &entry.expected) {
                Ok(None) => runs += 1,
                Ok(Some(reason)) => {
                    *not_run.entry(reason).or_default() += 1;
                    if !matches!(reason, NotRun::TooShort | NotRun::TooLong) {
                        continue;
                    }
                    let segments = u32::from(entry.frame.is_super_frame);
                    match programs.run(name, hook, &entry.frame, segments) {
                        // Before 6.1 the kernel runs XDP programs on any length.
                        Ok(counted) => {
                            if let Err(error) = compare(&entry.expected, &entry.frame, &counted) {
                                wrong.push(format!("{name}: {error}\n{entry}"));
                            }
                        }
                        Err(error) => assert_eq!(
                            error.raw_os_error(),
                            Some(libc::EINVAL),
                            "{name} on {}",
                            entry.name
                        ),
                    }
                }
                Err(error) => wrong.push(format!("{error}\n{entry}")),
            }
        }
    }
    eprintln!("{runs} runs; not run: {not_run:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes the same frames in every run. Our parser on the host is the judge; the corpus crate compares it with
/// a second one.
#[test]
fn mutated_frames_count_in_the_kernel_as_the_host_parses_them() {
    if !is_root_or_skip("agent::mutated_frames_count_in_the_kernel_as_the_host_parses_them") {
        return;
    }
    let programs = RefCell::new([false, true].map(Programs::load));
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
            let programs = &mut programs[usize::from(frame.decapsulate)];
            let ran = run_and_compare(programs, (name, hook), &frame, &parsed);
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
