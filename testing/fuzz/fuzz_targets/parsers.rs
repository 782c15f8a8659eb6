//! Any frame through our parser and through the second one: neither panics, and they agree or differ
//! for a reason that is stated.

#![no_main]

mod traced;

use std::hint::black_box;

use corpus::{check, seed};
use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(init: traced::write_seeds(), |input: &[u8]| -> Corpus {
    let Some(frame) = seed::frame(input) else {
        return Corpus::Reject;
    };
    // For its coverage; the compiler shall not leave out what nobody asks for.
    let _parsed = black_box(traced::traced(&frame));
    match check::check(&frame) {
        Ok(_) => Corpus::Keep,
        Err(error) => traced::fail(&error),
    }
});
