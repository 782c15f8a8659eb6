//! Fuzzes the parser for a given time and prints any frame that breaks a promise.
//!
//! Needs no nightly compiler: LLVM's own pass instruments the target's crate for coverage. Uses no sanitizer, which
//! would find little in safe code.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    setup::{Purpose, setup},
    workspace::{as_root, cargo, root, run, target_dir},
};

/// The section of an instrumented program that counts how often each place was reached.
const COUNTERS: &[u8] = b"__sancov_cntrs";

/// Longer frames reach no further code in the parser.
const LONGEST_INPUT_BYTES: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// Our parser against the second one, on the host.
    Parsers,
    /// The programs in the kernel against our parser; needs root.
    Kernel,
}

pub const TARGETS: [Target; 2] = [Target::Parsers, Target::Kernel];

#[derive(clap::Args)]
pub struct Arguments {
    /// What to fuzz [default: both, one after the other]
    target: Option<Target>,
    /// How long, for both together
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Arguments of libFuzzer, such as a file with one input to run
    #[arg(last = true)]
    libfuzzer: Vec<String>,
}

pub fn fuzz(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Test)?;
    let targets = arguments
        .target
        .map_or(TARGETS.to_vec(), |target| vec![target]);
    let each = arguments.time / targets.len() as u32;
    for target in targets {
        target.build()?.run(each, &arguments.libfuzzer, true)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A built target.
pub struct Fuzzer {
    target: Target,
    program: PathBuf,
}

impl Target {
    pub fn name(self) -> &'static str {
        match self {
            Self::Parsers => "fuzz-parsers",
            Self::Kernel => "fuzz-kernel",
        }
    }

    pub fn needs_root(self) -> bool {
        self == Self::Kernel
    }

    /// Builds the dependencies with the features that the tests of the workspace need (hence a test among the targets), so
    /// that no crate is built twice.
    /// Cargo does not notice that the compiler's wrapper instruments the targets, so without the feature they are no
    /// targets.
    pub fn build(self) -> Result<Fuzzer> {
        run(cargo(&["build", "--workspace", "--test", "host"])
            .args([
                "--features",
                "corpus-fuzz/instrumented",
                "--bin",
                self.name(),
            ])
            .env("RUSTC_WRAPPER", root().join("testing/fuzz/rustc")))?;
        let program = target_dir()?.join("debug").join(self.name());
        let bytes = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
        ensure!(
            bytes.windows(COUNTERS.len()).any(|name| name == COUNTERS),
            "{} was built by another command, and not for coverage: run `cargo clean -p corpus-fuzz` first",
            self.name()
        );
        Ok(Fuzzer {
            target: self,
            program,
        })
    }
}

impl Fuzzer {
    /// Runs the corpus and the inputs that earlier runs found, then new ones. An error names the failed input, whose
    /// frame is already printed.
    pub fn run(&self, time: Duration, arguments: &[String], verbose: bool) -> Result<()> {
        let folder = target_dir()?.join("fuzz").join(self.target.name());
        let (seeds, found) = (folder.join("seeds"), folder.join("found"));
        // Remove old seeds, whose frames may no longer be in the corpus.
        drop(fs::remove_dir_all(&seeds));
        for folder in [&seeds, &found] {
            fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let mut fuzzer = if self.target.needs_root() {
            as_root(&self.program)
        } else {
            Command::new(&self.program)
        };
        fuzzer
            // libFuzzer ignores this option. The target writes the corpus to this folder before libFuzzer reads it.
            .arg(format!("--seeds={}", seeds.display()))
            .arg(format!("-max_total_time={}", time.as_secs().max(1)))
            .arg(format!("-max_len={LONGEST_INPUT_BYTES}"))
            .arg(format!("-artifact_prefix={}/", folder.display()))
            .args(["-timeout=120", "-print_final_stats=1"])
            .args(arguments);
        // With an input given, run only that.
        if !arguments
            .iter()
            .any(|argument| Path::new(argument).is_file())
        {
            fuzzer.args([&found, &seeds]);
        }
        let name = self.target.name();
        let hint = format!(
            "{name} found a frame: it is printed above and kept in {}",
            folder.display()
        );
        if verbose {
            let status = fuzzer.status().with_context(|| format!("start {name}"))?;
            ensure!(status.success(), hint);
            return Ok(());
        }
        let output = fuzzer
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("start {name}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            eprintln!("{text}");
        }
        ensure!(output.status.success(), hint);
        for line in text.lines().filter(|line| is_figure(line)) {
            eprintln!("fuzz: {name}: {line}");
        }
        Ok(())
    }
}

/// Whether the line is one of libFuzzer's final statistics.
fn is_figure(line: &str) -> bool {
    line.starts_with("Done ") || line.starts_with("stat::new_units_added")
}
