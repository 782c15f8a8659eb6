//! Compiles the parser a second time, as part of the fuzz target, for its coverage.
//!
//! Only the target's own crate is instrumented, so that the tests and the fuzzer share all other crates. The parser is
//! generic over the frame, so a frame type that exists only in the target makes the compiler build the parser here.

use std::{env, fs, path::PathBuf};

use agent_common::Frame;
use corpus::{Parsed, RawFrame, seed};

/// The argument with the folder to which to write the corpus as seeds. libFuzzer ignores arguments that begin with two
/// dashes.
const SEEDS: &str = "--seeds=";

struct Traced<'a>(&'a RawFrame);

impl Frame for Traced<'_> {
    type Header<const N: usize> = [u8; N];

    #[inline]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<[u8; N]> {
        self.0
            .bytes
            .get(offset_bytes as usize..)?
            .first_chunk::<N>()
            .copied()
    }

    #[inline]
    fn len_bytes(&self) -> u32 {
        self.0.bytes.len() as u32
    }

    #[inline]
    fn is_super_frame(&self) -> bool {
        self.0.is_super_frame
    }
}

/// The result of our parser, with coverage.
pub fn traced(frame: &RawFrame) -> Parsed {
    frame.parse_by(&Traced(frame))
}

/// Writes the corpus to the folder from which the fuzzer reads its seeds.
pub fn write_seeds() {
    let folder = env::args().find_map(|argument| Some(argument.strip_prefix(SEEDS)?.into()));
    let Some(folder): Option<PathBuf> = folder else {
        return;
    };
    fs::create_dir_all(&folder).expect("the folder for seeds can be made");
    for entry in corpus::entries().expect("the corpus can be read") {
        let file = folder.join(&entry.name);
        fs::write(&file, seed::seed(&entry.frame)).expect("a seed can be written");
    }
}

/// Ends the run by a panic, so that libFuzzer keeps the input.
pub fn fail(error: &str) -> ! {
    panic!(
        "{error}\n\nThis frame belongs in testing/corpus/frames/, with a name, a reason, and what the RFC \
         says it should give: testing/corpus/README.md"
    )
}
