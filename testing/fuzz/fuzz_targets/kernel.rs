//! Fuzzes the loaded programs (`BPF_PROG_TEST_RUN`): for any frame, the page and the account must match the result of
//! our parser on the host. Needs root.

#![no_main]
#![expect(
    clippy::unwrap_used,
    reason = "a fuzz target ends by a panic, as a test does"
)]

#[path = "../../../agent/tests/agent/corpus/programs.rs"]
mod programs;
mod traced;
#[path = "../../../agent/tests/agent/corpus/twin.rs"]
mod twin;

use std::cell::RefCell;

use corpus::{RawFrame, check, seed};
use libfuzzer_sys::{Corpus, fuzz_target};
use programs::{LONGEST_BUFFER, PAGE, PROGRAMS, Programs};

thread_local! {
    /// The programs, loaded without and with opening tunnels.
    static LOADED: RefCell<[Programs; 2]> = RefCell::new([false, true].map(Programs::load));
}

fuzz_target!(init: begin(), |input: &[u8]| -> Corpus {
    let Some(frame) = seed::frame(input) else {
        return Corpus::Reject;
    };
    // The call cannot pass a tag, and its handling of buffers of this size depends on the kernel's configuration.
    if frame.tag.is_some() || (LONGEST_BUFFER..PAGE).contains(&frame.bytes.len()) {
        return Corpus::Reject;
    }
    run(&frame);
    Corpus::Keep
});

/// Loads the programs before the first input, because the verifier may take longer than the timeout of one input.
fn begin() {
    traced::write_seeds();
    LOADED.with(|_| ());
}

fn run(frame: &RawFrame) {
    let parsed = traced::traced(frame);
    LOADED.with_borrow_mut(|programs| {
        let programs = &mut programs[usize::from(frame.decapsulate)];
        for &(name, hook, link_type) in PROGRAMS {
            if link_type == frame.link_type
                && let Err(error) = twin::run_and_compare(programs, (name, hook), frame, &parsed)
            {
                let entry = check::found(frame, &parsed);
                traced::fail(&format!("{error}\non the host\n\n{entry}"));
            }
        }
    });
}
