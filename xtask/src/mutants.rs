//! Tests the tests: inserts faults into the sources, one at a time, and expects a test to fail.
//!
//! cargo-mutants generates the faults that can be tested on the host. A table ([`mod@faults`]) keeps faults in the
//! kernel programs and faults that only a race reveals, each with the test that must catch it.

#![expect(
    clippy::print_stdout,
    reason = "a line for each fault and the count are what this task is for"
)]

mod faults;
mod parts;
mod tree;

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};
use faults::{Fault, Target, faults};
use parts::{FILES, PARTS, part_of};
use tree::Tree;

use crate::{
    count::Count,
    setup::{Purpose, setup},
    workspace::{cargo, run, target_dir, tool},
};

const VERSION: &str = "27.1.0";

#[derive(clap::Args)]
pub struct Arguments {
    /// Try the kept table of faults instead: in the kernel's programs, the scan, the collector, its stores
    #[arg(long)]
    faults: bool,
    /// With --faults, how often each test has to catch its fault: one that catches it by chance misses it some day
    #[arg(long, default_value_t = 1, requires = "faults", value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// With --faults, those whose names contain this; else files for cargo-mutants [default: all]
    only: Vec<String>,
    /// Further arguments of cargo-mutants, such as `--list` or `--shard 1/8`
    #[arg(last = true, conflicts_with = "faults")]
    cargo_mutants: Vec<String>,
}

pub fn mutants(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Test)?;
    if arguments.faults {
        kept_faults(&arguments.only, arguments.times)
    } else {
        made_faults(arguments)
    }
}

/// Runs cargo-mutants over the files of the parts. A fault that survives for a reason belongs in `.cargo/mutants.toml`.
fn made_faults(arguments: &Arguments) -> Result<ExitCode> {
    let program = tool("mutants", VERSION, "puts faults into the sources")?;
    let wanted: Vec<&str> = match arguments.only.as_slice() {
        [] => FILES.to_vec(),
        only => only.iter().map(String::as_str).collect(),
    };
    for file in &wanted {
        ensure!(
            part_of(file).is_some(),
            "{file}: add this file to a part in xtask/src/mutants/parts.rs, which names the tests that must notice its faults"
        );
    }
    let folder = target_dir()?.join("mutants");
    // A copy protects the user's sources. cargo-mutants changes it in place, so that each fault only costs rebuilding
    // the changed code.
    let tree = Tree::copy(&folder.join("tree"))?;
    let mut survived = false;
    for part in PARTS {
        let mut files = wanted.clone();
        files.retain(|file| part_of(file) == Some(part.name));
        if files.is_empty() {
            continue;
        }
        if part.needs_root && !lab::privilege::is_root() {
            eprintln!("skipped: {}: its tests need root", files.join(" "));
            continue;
        }
        let mut command = Command::new(&program);
        command
            .args(["mutants", "--in-place", "--package", part.package])
            .args(part.arguments)
            .current_dir(tree.root())
            .env("CARGO_TARGET_DIR", folder.join("target"))
            // It is enough that a test fails, so do not shrink the frame.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .arg("--output")
            .arg(folder.join(part.name));
        for binaries in part.binaries {
            command.arg(format!("--cargo-arg={binaries}"));
        }
        for package in part.tests_of {
            command.args(["--test-package", package]);
        }
        for file in files {
            command.args(["--file", file]);
        }
        command.args(&arguments.cargo_mutants);
        if !part.tests.is_empty() {
            command.args(["--", "--"]).args(part.tests);
        }
        let status = command.status().context("start cargo-mutants")?;
        survived |= !status.success();
    }
    Ok(if survived {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Tries each fault of the table whose name contains one of the words, or every fault if there are no words. Its test
/// must fail `times` times in a row.
fn kept_faults(words: &[String], times: u32) -> Result<ExitCode> {
    let wanted = |fault: &&Fault| {
        words.is_empty() || words.iter().any(|word| fault.name.contains(word.as_str()))
    };
    let faults: Vec<&Fault> = faults().filter(wanted).collect();
    ensure!(!faults.is_empty(), "no fault has such a name");
    let folder = target_dir()?.join("mutants");
    let tree = Tree::copy(&folder.join("tree"))?;
    let bench = Bench {
        tree: &tree,
        target: folder.join("target"),
        skipped: folder.join("skipped"),
    };
    let of_times = |time: u32| match times {
        1 => String::new(),
        _ => format!(" {time} times of {times}"),
    };
    let mut count = Count::default();
    let mut sound: Vec<Target> = Vec::new();
    for fault in faults {
        // The test must pass without the fault first. Otherwise its failure would prove nothing.
        let verdict = if sound.contains(&fault.target) {
            Ok(Verdict::Passed)
        } else {
            bench.run(&fault.target)
        };
        let mut caught = 0;
        let verdict = match verdict? {
            Verdict::Passed => {
                sound.push(fault.target);
                let _put_back = tree.replace(fault)?;
                let mut verdict = Verdict::Failed;
                while caught < times && matches!(verdict, Verdict::Failed) {
                    verdict = bench.run(&fault.target)?;
                    caught += u32::from(matches!(verdict, Verdict::Failed));
                }
                verdict
            }
            Verdict::Failed => {
                println!("BROKEN  {}: {} fails without it", fault.name, fault.target);
                count.failed += 1;
                continue;
            }
            skipped @ Verdict::Skipped(_) => skipped,
        };
        match verdict {
            Verdict::Failed => {
                let often = of_times(caught);
                println!("caught  {}{often}: {}", fault.name, fault.target);
                count.passed += 1;
            }
            Verdict::Passed => {
                let before = match caught {
                    0 => String::new(),
                    _ => format!(", caught{} before", of_times(caught)),
                };
                println!(
                    "MISSED  {}: {} passes with it{before}",
                    fault.name, fault.target
                );
                count.failed += 1;
            }
            Verdict::Skipped(reason) => count.skipped.push(format!("{}: {reason}", fault.name)),
        }
    }
    Ok(count.report())
}

enum Verdict {
    Passed,
    Failed,
    Skipped(String),
}

/// Runs tests on the copied tree.
struct Bench<'a> {
    tree: &'a Tree,
    target: PathBuf,
    /// The file where tests record that they were skipped.
    skipped: PathBuf,
}

impl Bench<'_> {
    /// Fails if the tree does not compile, since then nothing was tested.
    fn run(&self, target: &Target) -> Result<Verdict> {
        drop(std::fs::remove_file(&self.skipped));
        let cargo = || {
            let mut test = cargo(&["test", "--quiet", "--package", target.package]);
            test.args(target.binary.arguments())
                .current_dir(self.tree.root())
                .env("CARGO_TARGET_DIR", &self.target)
                .env(lab::privilege::SKIP_LOG, &self.skipped);
            test
        };
        run(cargo().arg("--no-run")).context("the code under test does not compile")?;
        let output = cargo()
            .args(["--", "--exact", target.test])
            .output()
            .context("start cargo test")?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        if let Ok(skipped) = std::fs::read_to_string(&self.skipped) {
            return Ok(Verdict::Skipped(skipped.trim().to_owned()));
        }
        if !stdout.contains("running 1 test") {
            bail!("there is no test {target}");
        }
        Ok(if output.status.success() {
            Verdict::Passed
        } else {
            Verdict::Failed
        })
    }
}
