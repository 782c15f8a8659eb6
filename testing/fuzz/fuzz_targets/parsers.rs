//! Fuzzes our parser and the second one: for any frame, neither panics, and they agree or differ for a known reason.

#![no_main]

mod traced;

use std::hint::black_box;

use corpus::{check, seed};
use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(init: traced::write_seeds(), |input: &[u8]| -> Corpus {
    let Some(frame) = seed::frame(input) else {
        return Corpus::Reject;
    };
    // Run only for its coverage. `black_box` keeps the compiler from removing the unused result.
    let _parsed = black_box(traced::traced(&frame));
    match check::check(&frame) {
        Ok(_) => Corpus::Keep,
        Err(error) => traced::fail(&error),
    }
});
