//! Runs every check and every test, and prints the count as the last line.

#![expect(
    clippy::print_stdout,
    reason = "the tests' output and the count are what this task is for"
)]

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    num::NonZero,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{
    clients,
    count::Count,
    fuzz::TARGETS,
    kernels, service,
    setup::{Purpose, setup},
    workspace::{cargo, has_command, run, test_programs},
};

#[derive(clap::Args)]
pub struct Arguments {
    /// Leave out the format and lint checks
    #[arg(long)]
    quick: bool,
    /// Keep every CPU busy meanwhile: no test may need an idle machine
    #[arg(long)]
    busy: bool,
    /// Arguments of `cargo test`, such as a part of the names of the tests to run
    #[arg(last = true)]
    cargo_test: Vec<String>,
}

/// Runs everything to the end, even after a failure. The exit status tells whether anything failed.
pub fn test(arguments: &Arguments) -> ExitCode {
    let mut outcome = Outcome::default();
    match outcome.part("set-up", |_| setup(Purpose::Test)) {
        Ok(()) => {
            let _busy = arguments.busy.then(Busy::begin);
            let asked: Vec<&str> = arguments.cargo_test.iter().map(String::as_str).collect();
            if arguments.quick {
                outcome.part("clients", |_| clients::set_up());
                outcome.tests("tests", &cargo_test(&[], &asked), THREADS_PER_CPU);
            } else {
                outcome.everything(&asked);
            }
        }
        Err(error) => outcome.count.fail(error),
    }
    outcome.report()
}

/// The counts, and the duration of each part.
#[derive(Default)]
struct Outcome {
    count: Count,
    times: Vec<(&'static str, Duration)>,
}

impl Outcome {
    fn part<T>(&mut self, name: &'static str, work: impl FnOnce(&mut Count) -> T) -> T {
        let begin = Instant::now();
        let result = work(&mut self.count);
        self.times.push((name, begin.elapsed()));
        result
    }

    fn tests(&mut self, name: &'static str, cargo_test: &[&str], threads_per_cpu: usize) {
        let run = |count: &mut Count| tests(cargo_test, threads_per_cpu, count);
        if let Err(error) = self.part(name, run) {
            self.count.fail(error);
        }
    }

    /// Runs the parts in parallel where that saves time. Only the tests need the clients, and downloading them takes
    /// little CPU. Most tests mainly wait, and a virtual machine keeps only one CPU busy, so all of them together take
    /// little longer than one alone.
    fn everything(&mut self, asked: &[&str]) {
        let build = cargo_test(&["--no-run"], asked);
        let (others, result) = beside(
            |outcome| outcome.part("clients", |_| clients::set_up()),
            || {
                self.part("checks", checks);
                self.part("build", |_| run(&mut cargo(&build)))
            },
        );
        self.add(others);
        let test_programs = match result.and_then(|()| test_programs()) {
            Ok(programs) => programs,
            Err(error) => return self.count.fail(error),
        };
        let (others, crates) = beside(
            |outcome| {
                outcome.part("beside them a virtual machine", kernels::on_the_floor);
                outcome.part("the service", service::in_the_suite);
                outcome.part("fuzzers", fuzz_for_a_minute);
            },
            || {
                if selects_targets(asked) {
                    self.tests("tests", &cargo_test(&[], asked), THREADS_PER_CPU);
                    return Self::default();
                }
                self.all_tests(&test_programs, asked)
            },
        );
        self.add(crates);
        self.add(others);
    }

    /// Runs the tests of the agent, and those of the crates beside them. Returns the outcome of the latter.
    fn all_tests(&mut self, programs: &[String], asked: &[&str]) -> Self {
        let (under_load, programs): (Vec<&str>, Vec<&str>) = programs
            .iter()
            .map(String::as_str)
            .filter(|name| *name != AGENT_TESTS)
            .partition(|name| UNDER_LOAD.contains(name));
        let of = |names: &[&'_ str]| -> Vec<String> {
            let options = names.iter().map(|name| format!("--test={name}"));
            options.collect()
        };
        let run = |outcome: &mut Self, name, options: &[String], threads| {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            outcome.tests(name, &cargo_test(&options, asked), threads);
        };
        let (crates, ()) = beside(
            |outcome| {
                let mut chosen = of(&programs);
                chosen.extend(["--lib", "--bins"].map(str::to_owned));
                run(outcome, "the crates' tests", &chosen, 1);
                run(outcome, "examples in docs", &["--doc".to_owned()], 1);
            },
            || run(self, "tests", &of(&[AGENT_TESTS]), THREADS_PER_CPU),
        );
        run(self, "tests under load", &of(&under_load), THREADS_PER_CPU);
        crates
    }

    fn add(&mut self, other: Self) {
        self.count.add(other.count);
        self.times.extend(other.times);
    }

    fn report(&self) -> ExitCode {
        let times = self
            .times
            .iter()
            .map(|(part, time)| format!("{part} {} s", time.as_secs()));
        eprintln!("time: {}", times.collect::<Vec<_>>().join(", "));
        self.count.report()
    }
}

/// Runs two things in parallel. Returns the outcome of the first and the result of the second.
fn beside<T>(first: impl FnOnce(&mut Outcome) + Send, second: impl FnOnce() -> T) -> (Outcome, T) {
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut outcome = Outcome::default();
            first(&mut outcome);
            outcome
        });
        let result = second();
        let outcome = first.join().unwrap_or_else(|_| {
            let mut outcome = Outcome::default();
            outcome.count.fail("a thread beside the tests panicked");
            outcome
        });
        (outcome, result)
    })
}

/// Keeps every CPU busy until dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn begin() -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        eprintln!("test: a busy loop on each of {cpus} CPUs runs beside the tests");
        for _ in 0..cpus {
            let goes_on = Arc::clone(&goes_on);
            thread::spawn(move || while goes_on.load(Ordering::Relaxed) {});
        }
        Self(goes_on)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Checks format and lints of the workspace and of the eBPF crates outside it. Each check counts as a test.
fn checks(count: &mut Count) {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut checks = vec![
        words("fmt --all --check"),
        words(
            "clippy --workspace --all-targets --features corpus-fuzz/instrumented -- -D warnings",
        ),
        words("doc --workspace --no-deps --document-private-items"),
    ];
    for package in ["agent-ebpf", "benches/ebpf"] {
        let manifest = format!("--manifest-path {package}/Cargo.toml");
        checks.push(words(&format!("fmt {manifest} --check")));
        // Check for the host, since clippy needs the compiler that it came with. Use the release profile, since only
        // that aborts on a panic, and a program without `std` cannot unwind.
        checks.push(words(&format!(
            "clippy --release {manifest} --target-dir target/ebpf-checks --bins -- -D warnings"
        )));
    }
    for check in checks {
        let check: Vec<&str> = check.iter().map(String::as_str).collect();
        eprintln!("check: cargo {}", check.join(" "));
        match run(cargo(&check).env("RUSTDOCFLAGS", "-D warnings")) {
            Ok(()) => count.passed += 1,
            Err(error) => {
                count.fail(error);
            }
        }
    }
}

/// Fuzzes from the corpus for a minute. Each target counts as a test.
fn fuzz_for_a_minute(count: &mut Count) {
    const EACH: Duration = Duration::from_secs(60 / TARGETS.len() as u64);
    for target in TARGETS {
        let name = target.name();
        if target.needs_root() && !lab::privilege::is_root() && !has_command("sudo") {
            count.skipped.push(format!("{name}: needs root"));
            continue;
        }
        eprintln!("fuzz: {name} for {} s", EACH.as_secs());
        match target
            .build()
            .and_then(|fuzzer| fuzzer.run(EACH, &[], false))
        {
            Ok(()) => count.passed += 1,
            Err(error) => {
                count.fail(error);
            }
        }
    }
}

/// How many tests run at once: as many as there are CPUs if it is not set.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Most tests mainly wait: for a scan, a timeout, another process.
pub const THREADS_PER_CPU: usize = 2;

/// The tests of the whole agent, which take longer than all others together.
const AGENT_TESTS: &str = "agent";
/// Test programs that keep every CPU busy.
const UNDER_LOAD: [&str; 2] = ["races", "soak"];

/// Whether somebody says which targets or packages to test.
fn selects_targets(asked: &[&str]) -> bool {
    let mut options = asked.iter().take_while(|argument| **argument != "--");
    options.any(|argument| argument.starts_with('-'))
}

/// The arguments of `cargo test` for the targets that `chosen` names, or for all of them. Every call builds the whole
/// workspace alike.
fn cargo_test<'a>(chosen: &[&'a str], asked: &[&'a str]) -> Vec<&'a str> {
    [&["test", "--workspace", "--no-fail-fast"], chosen, asked].concat()
}

/// Runs `cargo test` with these arguments, forwards its output and adds up its results.
pub fn tests(arguments: &[&str], threads_per_cpu: usize, count: &mut Count) -> Result<()> {
    let skip_log = SkipLog::new()?;
    let mut command = cargo(arguments);
    command
        .env(lab::privilege::SKIP_LOG, skip_log.path())
        .stdout(Stdio::piped());
    let threads = env::var(TEST_THREADS).unwrap_or_else(|_| {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        (threads_per_cpu * cpus).to_string()
    });
    command.env(TEST_THREADS, &threads);
    if !lab::privilege::is_root() {
        run_tests_through_sudo(&mut command, &skip_log, &threads)?;
    }
    let mut child = command.spawn().context("start cargo test")?;
    let stdout = child
        .stdout
        .take()
        .context("the output of cargo test is piped")?;
    let failed_before = count.failed;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("read the output of cargo test")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        count.add_result(&line);
    }
    let status = child.wait().context("wait for cargo test")?;
    let skipped = skip_log.read();
    count.passed = count.passed.saturating_sub(skipped.len());
    count.skipped.extend(skipped);
    if !status.success() && count.failed == failed_before {
        count.fail("a test did not compile, or a process died before it could count");
    }
    Ok(())
}

/// Builds the tests as the user and runs them as root. If sudo refuses, the privileged tests skip themselves.
fn run_tests_through_sudo(command: &mut Command, skip_log: &SkipLog, threads: &str) -> Result<()> {
    let allowed = has_command("sudo")
        && Command::new("sudo")
            .arg("-v")
            .status()
            .is_ok_and(|status| status.success());
    if allowed {
        let version = Command::new("rustc")
            .arg("-vV")
            .output()
            .context("start rustc")?;
        let version = String::from_utf8_lossy(&version.stdout);
        let host = version
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .context("rustc names its host")?;
        let host = host.to_uppercase().replace('-', "_");
        let log = format!("{}={}", lab::privilege::SKIP_LOG, skip_log.path().display());
        command.env(
            format!("CARGO_TARGET_{host}_RUNNER"),
            format!("sudo env {log} {TEST_THREADS}={threads}"),
        );
    }
    Ok(())
}

/// The file where tests record that they were skipped. It has its own folder, because in a shared one the kernel
/// denies root access to a user's file (`fs.protected_regular`).
struct SkipLog {
    folder: TempDir,
}

impl SkipLog {
    fn new() -> Result<Self> {
        let folder = TempDir::with_prefix("flow-agent-skipped-")
            .context("make a folder for the names of skipped tests")?;
        Ok(Self { folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("names")
    }

    /// The skipped tests. The file does not exist if no test was skipped.
    fn read(&self) -> Vec<String> {
        fs::read_to_string(self.path())
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}
