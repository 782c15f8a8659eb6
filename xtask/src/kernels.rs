//! The tests that need a kernel, on other kernels: Debian releases come in, a line for each goes out,
//! and the count as the last line.

#![expect(
    clippy::print_stdout,
    reason = "the table and the count are what this task is for"
)]

mod archive;
mod guest;
mod modules;
mod packages;
mod programs;

use std::{process::ExitCode, sync::Mutex, thread};

use anyhow::{Context as _, Result, bail};

use crate::{
    count::Count,
    setup::{Purpose, setup},
    workspace::target_dir,
};
use archive::Archive;
use guest::{MARK, Outcome, Test};
use modules::Modules;
use packages::KernelPackage;

/// Debian's releases by name, with the kernel that each has.
const SUITES: &[(&str, &str)] = &[
    // The oldest that the agent supports: the first with everything that the programs need.
    ("bullseye", "5.10"),
    // The last without TCX.
    ("bookworm", "6.1"),
    ("trixie", "6.12"),
];

/// What the tests need of a kernel that comes in modules, and every device that they make. Each of
/// [`SUITES`] has them all, so a test that misses one has failed.
const MODULES: &[&str] = &[
    "veth",
    "tun",
    "sch_ingress",
    "cls_bpf",
    "act_bpf",
    "dummy",
    "8021q",
    "bonding",
    "ip_gre",
    "ip6_gre",
    "geneve",
    "vxlan",
    "wireguard",
    "ipip",
    "sit",
    "ip6_tunnel",
];

#[derive(clap::Args)]
pub struct Arguments {
    /// Debian releases, or kernel versions [default: all; 5.10, 6.1, 6.12]
    kernels: Vec<String>,
    /// Fetch the releases' current kernels, also where there are some in the cache
    #[arg(long)]
    renew: bool,
    /// Test programs to run, such as `devices` [default: all that make sense there]
    #[arg(long = "test", value_name = "NAME")]
    tests: Vec<String>,
    /// Arguments of the test programs, such as a part of the names of the tests to run
    #[arg(last = true)]
    filter: Vec<String>,
}

/// One kernel's result.
struct Row {
    suite: &'static str,
    release: String,
    seconds: u64,
    count: Count,
}

/// Runs every kernel to its end, whatever fails.
pub fn test(arguments: &Arguments) -> Result<ExitCode> {
    let suites = suites(&arguments.kernels)?;
    if !cfg!(target_arch = "x86_64") {
        bail!("the virtual machines are x86-64 PCs, and this machine builds for another kind");
    }
    setup(Purpose::Kernels)?;
    let (tests, archive) = programs::build(&arguments.tests)?;
    // One after the other, since apt locks its lists.
    let kernels: Vec<_> = suites
        .into_iter()
        .map(|suite| (suite, packages::kernel(suite.0, arguments.renew)))
        .collect();
    let waiting = Mutex::new(kernels.into_iter());
    let rows = Mutex::new(Vec::new());
    // Each guest keeps one CPU busy.
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("nobody panics with it").next();
                    let Some((suite, kernel)) = next else { break };
                    let row = run(suite, kernel, arguments, &tests, &archive);
                    rows.lock().expect("nobody panics with it").push(row);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("nobody panics with it");
    Ok(report(rows))
}

/// The releases that were asked for by name or by version; all where none was.
fn suites(asked: &[String]) -> Result<Vec<&'static (&'static str, &'static str)>> {
    if asked.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    asked
        .iter()
        .map(|asked| {
            let found = SUITES
                .iter()
                .find(|(name, version)| asked == name || asked == version);
            found.with_context(|| format!("{asked} is none of {SUITES:?}"))
        })
        .collect()
}

/// A kernel that cannot be had is skipped; one that does not come to its end has failed.
fn run(
    &(suite, version): &'static (&'static str, &'static str),
    kernel: Result<KernelPackage>,
    arguments: &Arguments,
    tests: &[Test],
    archive: &Archive,
) -> Row {
    let mut row = Row {
        suite,
        release: version.to_owned(),
        seconds: 0,
        count: Count::default(),
    };
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(error) => {
            row.count
                .skipped
                .push(format!("kernel {version}: {error:#}"));
            return row;
        }
    };
    row.release.clone_from(&kernel.release);
    eprintln!("test: {} in a virtual machine", kernel.release);
    let outcome = (|| {
        let modules = Modules::under(&kernel.modules)?.with_dependencies(MODULES)?;
        let logs = target_dir()?.join("kernels").join(version);
        guest::run(
            &kernel,
            modules,
            archive.clone(),
            tests,
            &arguments.filter,
            &logs,
        )
    })();
    match outcome {
        Ok(outcome) => {
            row.seconds = outcome.took.as_secs();
            judge(&outcome, tests.len(), &kernel.release, &mut row.count);
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            row.count.failed += 1;
        }
    }
    row
}

/// In the reason of a skipped test of `agent/tests/devices`.
const NO_DEVICE: &str = "this kernel has no ";

/// Adds a guest's lines up; where something failed, passes them on.
fn judge(outcome: &Outcome, programs: usize, release: &str, count: &mut Count) {
    let mut stopped = 0;
    for line in &outcome.lines {
        count.add_result(line);
        if let Some(skipped) = line.strip_prefix("@@ skipped ") {
            count.passed = count.passed.saturating_sub(1);
            if skipped.contains(NO_DEVICE) {
                eprintln!("error: {release}: {skipped}");
                count.failed += 1;
            } else {
                count.skipped.push(format!("kernel {release}: {skipped}"));
            }
        } else if let Some(module) = line.strip_prefix("@@ module ") {
            eprintln!("error: {release}: {module} cannot be loaded");
            count.failed += 1;
        } else if let Some(stop) = line.strip_prefix("@@ stop ") {
            stopped += 1;
            let mut words = stop.split_whitespace();
            let (name, status) = (words.next().unwrap_or_default(), words.next());
            let mut uptime = || words.next()?.parse::<f64>().ok();
            let took = uptime()
                .zip(uptime())
                .map_or(0.0, |(start, stop)| stop - start);
            eprintln!("test: {release}: {name} took {took:.1} s");
            // A libtest program that counted its failures ends with 101.
            if !matches!(status, Some("0" | "101")) {
                eprintln!(
                    "error: {release}: {name} ended with {}",
                    status.unwrap_or("?")
                );
                count.failed += 1;
            }
        }
    }
    let at_end = outcome.lines.iter().any(|line| line == guest::END);
    if !at_end || stopped < programs {
        count.failed += 1;
    }
    if count.failed > 0 {
        for line in outcome.lines.iter().filter(|line| !line.starts_with(MARK)) {
            println!("{release}: {line}");
        }
        let end = if at_end {
            ""
        } else {
            " did not come to its end;"
        };
        println!("{release}:{end} logs in {}", outcome.logs.display());
    }
}

fn report(mut rows: Vec<Row>) -> ExitCode {
    rows.sort_by_key(|row| SUITES.iter().position(|(suite, _)| *suite == row.suite));
    println!(
        "{:<10} {:<28} {:>7} {:>6} {:>6} {:>7}",
        "release", "kernel", "seconds", "passed", "failed", "skipped"
    );
    let mut total = Count::default();
    for row in rows {
        println!(
            "{:<10} {:<28} {:>7} {:>6} {:>6} {:>7}",
            row.suite,
            row.release,
            row.seconds,
            row.count.passed,
            row.count.failed,
            row.count.skipped.len()
        );
        total.passed += row.count.passed;
        total.failed += row.count.failed;
        total.skipped.extend(row.count.skipped);
    }
    total.report()
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use super::*;

    fn judged(lines: &[&str]) -> (usize, usize, usize) {
        let outcome = Outcome {
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
            took: Duration::ZERO,
            logs: PathBuf::new(),
        };
        let mut count = Count::default();
        judge(&outcome, 1, "6.1", &mut count);
        (count.passed, count.failed, count.skipped.len())
    }

    const RESULT: &str = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured";
    const STOP: &str = "@@ stop devices 0 1.0 2.0";

    #[test]
    fn a_device_that_the_kernel_lacks_and_a_module_that_does_not_load_have_failed() {
        let old = "@@ skipped a::test: before 5.14 packets arrive with the tunnel's headers";
        assert_eq!(judged(&[RESULT, STOP, old, guest::END]), (2, 0, 1));
        let lacks = "@@ skipped a::test: this kernel has no gre device";
        assert_eq!(judged(&[RESULT, STOP, lacks, guest::END]), (2, 1, 0));
        let module = "@@ module /modules/003-ip_gre.ko";
        assert_eq!(judged(&[module, RESULT, STOP, guest::END]), (3, 1, 0));
    }

    #[test]
    fn a_guest_that_does_not_come_to_its_end_has_failed() {
        assert_eq!(judged(&[RESULT, STOP, guest::END]), (3, 0, 0));
        assert_eq!(judged(&[RESULT, STOP]), (3, 1, 0));
        assert_eq!(judged(&[guest::END]), (0, 1, 0));
    }
}
