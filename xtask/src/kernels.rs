//! Runs the tests that need a kernel on the kernels of other Debian releases. Prints a line per kernel, and the count
//! as the last line.

#![expect(
    clippy::print_stdout,
    reason = "the table and the count are what this task is for"
)]

mod archive;
mod guest;
mod judge;
mod modules;
pub mod packages;
mod programs;

use std::{cmp::Reverse, fs, process::ExitCode, sync::Mutex, thread};

use anyhow::{Context as _, Result, bail};

use crate::{
    count::Count,
    setup::{Purpose, setup},
    workspace::target_dir,
};
use archive::Archive;
use guest::Test;
use judge::judge;
use modules::Modules;
use packages::KernelPackage;

/// Debian's releases by name, with the version of each kernel.
const SUITES: &[(&str, &str)] = &[
    // The oldest supported kernel, and the last one without TCX.
    FLOOR,
    ("trixie", "6.12"),
    // Debian's backports follow the newest kernel. The table in the output shows which version that is.
    ("trixie-backports", "newest"),
];

const FLOOR: (&str, &str) = ("bookworm", "6.1");

/// What `cargo xtask test` runs on the oldest kernel: modules of the agent's tests, and parts of test names in them.
const FLOOR_MODULES: [&str; 3] = ["exact", "devices", "lockdown"];
const FLOOR_TESTS: [&str; 9] = [
    // Loads every program with and without decapsulation.
    "every_program",
    "both_directions_are_one_flow",
    "an_elephant_from_two_cpus",
    "a_clock_that_is_set",
    "a_bond_is_counted_at_tc",
    "on_a_bonds_lower_device",
    "a_packet_over_a_bond",
    "a_packet_over_a_vlan_device",
    "on_a_kernel_that_is_locked_down",
];

/// The kernel modules that the tests need, including one for each kind of device. Every kernel of [`SUITES`] has all of
/// them, so a test that skips itself for lack of a module counts as failed.
const MODULES: &[&str] = &[
    "veth",
    "tun",
    "sch_ingress",
    "cls_bpf",
    "act_bpf",
    "cls_u32",
    "act_mirred",
    "dummy",
    "8021q",
    "bridge",
    "macvlan",
    "bonding",
    "ip_gre",
    "ip6_gre",
    "geneve",
    "vxlan",
    "wireguard",
    "ipip",
    "sit",
    "ip6_tunnel",
    "vrf",
    "esp4",
    "xfrm_user",
    "authenc",
    "crypto_null",
    "nft_ct",
    "nft_flow_offload",
    "nf_flow_table_inet",
];

#[derive(clap::Args)]
#[command(after_help = programs::left_out())]
pub struct Arguments {
    /// Debian releases, or kernel versions [default: all; 6.1, 6.12, newest]
    kernels: Vec<String>,
    /// Fetch the releases' current kernels, also where there are some in the cache
    #[arg(long)]
    renew: bool,
    /// Run all tests of every module in which something depends on the kernel
    #[arg(long)]
    all: bool,
    /// Modules of the agent's tests, such as `devices`, with all of their tests [default: what is not left out, see below]
    #[arg(long = "test", value_name = "NAME")]
    tests: Vec<String>,
    /// Kernel parameters, such as `lockdown=confidentiality`
    #[arg(long = "parameter", value_name = "PARAMETER")]
    parameters: Vec<String>,
    /// Arguments of the test program, such as a part of the names of the tests to run
    #[arg(last = true)]
    filter: Vec<String>,
}

/// The input of every guest.
struct Load<'a> {
    tests: Vec<Test>,
    archive: Archive,
    modules: &'a [&'a str],
    parameters: &'a [String],
    filter: &'a [String],
}

/// The result of one guest, or of all guests on one kernel.
struct Row {
    suite: &'static str,
    release: String,
    seconds: u64,
    count: Count,
}

/// Tests every kernel to the end, even after a failure.
pub fn test(arguments: &Arguments) -> Result<ExitCode> {
    let suites = suites(&arguments.kernels)?;
    if !cfg!(target_arch = "x86_64") {
        bail!("the virtual machines are x86-64 PCs, and this machine builds for another kind");
    }
    setup(Purpose::Kernels)?;
    let (tests, archive) = programs::build(
        arguments.all,
        &arguments.tests,
        &arguments.filter,
        programs::COMMANDS,
    )?;
    let load = Load {
        tests,
        archive,
        modules: MODULES,
        parameters: &arguments.parameters,
        filter: &arguments.filter,
    };
    let at_once = at_once();
    let shares = shares(&load.tests, at_once);
    // One after the other, since apt locks its lists.
    let kernels: Vec<_> = suites
        .into_iter()
        .map(|suite| (suite, packages::kernel(suite.0, arguments.renew)))
        .collect();
    let guests = kernels.iter().flat_map(|(suite, kernel)| {
        // A kernel that could not be fetched counts as one failure.
        let guests = if kernel.is_ok() { shares.len() } else { 1 };
        let numbered = (1..).zip(&shares).take(guests);
        numbered.map(move |(number, tests)| (*suite, kernel, number, tests))
    });
    let waiting = Mutex::new(guests);
    let rows = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("nobody panics with it").next();
                    let Some((suite, kernel, number, tests)) = next else {
                        break;
                    };
                    let place = format!("{}/{number}", suite.1);
                    let row = run(suite, kernel, tests, &place, &load);
                    rows.lock().expect("nobody panics with it").push(row);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("nobody panics with it");
    Ok(report(rows))
}

/// Splits the tests into at most `most` shares with similar numbers of tests, so that all CPUs finish at about the same
/// time. Keeps their order within a share.
fn shares(tests: &[Test], most: usize) -> Vec<Vec<Test>> {
    let mut shares = vec![(0, Vec::new()); most.min(tests.len())];
    let mut longest_first: Vec<_> = tests.iter().enumerate().collect();
    longest_first.sort_by_key(|(_, test)| Reverse(test.names.len()));
    for (place, test) in longest_first {
        let least = shares.iter_mut().min_by_key(|(number, _)| *number);
        let (number, share) = least.expect("there is a test, and so a share");
        *number += test.names.len();
        share.push((place, test));
    }
    let in_order = |(_, mut share): (usize, Vec<(usize, &Test)>)| {
        share.sort_by_key(|(place, _)| *place);
        share.into_iter().map(|(_, test)| test.clone()).collect()
    };
    shares.into_iter().map(in_order).collect()
}

/// The number of guests to run in parallel, limited by CPUs and by memory: each guest keeps one CPU busy.
fn at_once() -> usize {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?
            .split_whitespace()
            .next()
    });
    let available_kib = available.and_then(|kib| kib.parse::<u64>().ok());
    let fitting = available_kib.map_or(1, |kib| kib / guest::MEMORY_KIB);
    cpus.min(usize::try_from(fitting).unwrap_or(cpus)).max(1)
}

/// Checks, for `cargo xtask test`, that the oldest kernel loads every program and that counting is exact at TC, at XDP
/// and on devices that a CI machine's kernel often lacks. Adds the results to `count`.
pub fn on_the_floor(count: &mut Count) {
    let (_, version) = FLOOR;
    if !cfg!(target_arch = "x86_64") {
        let skipped = format!("kernel {version}: the virtual machine is an x86-64 PC");
        return count.skipped.push(skipped);
    }
    let kernel = packages::kernel(FLOOR.0, false);
    let filter = FLOOR_TESTS.map(str::to_owned);
    let modules = FLOOR_MODULES.map(str::to_owned);
    match programs::build(true, &modules, &filter, &["ip", "tc", "ethtool", "ping"]) {
        Ok((tests, archive)) => {
            let load = Load {
                tests,
                archive,
                modules: &[
                    "veth",
                    "sch_ingress",
                    "cls_bpf",
                    "act_bpf",
                    "8021q",
                    "bonding",
                ],
                parameters: &[],
                filter: &filter,
            };
            let row = run(&FLOOR, &kernel, &load.tests, version, &load);
            eprintln!("test: {} took {} s", row.release, row.seconds);
            count.add(row.count);
        }
        Err(error) => {
            count.fail(error);
        }
    }
}

/// The releases requested by name or version, or all of them.
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

/// Runs these tests on one kernel. It is a failure if the kernel cannot be fetched or the guest does not finish.
/// `place` is the folder for the guest's output.
fn run(
    &(suite, version): &'static (&'static str, &'static str),
    kernel: &Result<KernelPackage>,
    tests: &[Test],
    place: &str,
    load: &Load<'_>,
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
            row.count.fail(format!("kernel {version}: {error:#}"));
            return row;
        }
    };
    row.release.clone_from(&kernel.release);
    let names: Vec<&str> = tests.iter().map(|test| test.module).collect();
    eprintln!(
        "test: {} in a virtual machine: {}",
        kernel.release,
        names.join(", ")
    );
    let outcome = (|| {
        let modules = Modules::under(&kernel.modules)?.with_dependencies(load.modules)?;
        let logs = target_dir()?.join("kernels").join(place);
        let work = guest::Work {
            tests,
            arguments: load.filter,
            parameters: load.parameters,
        };
        guest::run(kernel, modules, load.archive.clone(), &work, &logs)
    })();
    match outcome {
        Ok(outcome) => {
            row.seconds = outcome.took.as_secs();
            judge(&outcome, &names, &kernel.release, &mut row.count);
        }
        Err(error) => {
            row.count.fail(error);
        }
    }
    row
}

fn report(guests: Vec<Row>) -> ExitCode {
    let mut rows: Vec<Row> = Vec::new();
    for guest in guests {
        match rows.iter_mut().find(|row| row.suite == guest.suite) {
            Some(row) => {
                row.seconds += guest.seconds;
                row.count.add(guest.count);
            }
            None => rows.push(guest),
        }
    }
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
        total.add(row.count);
    }
    total.report()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::workspace::root;

    #[test]
    fn guests_share_the_tests_and_none_is_left_out() {
        let test = |(module, number)| Test {
            module,
            program: "/tests".into(),
            names: vec![String::new(); number],
            timeout: Duration::from_mins(15),
        };
        let modules = [("a", 45), ("b", 15), ("c", 45), ("d", 30), ("e", 15)];
        let tests = modules.map(test);
        let named = |most| {
            let shares = shares(&tests, most);
            let names = |share: Vec<Test>| share.iter().map(|test| test.module).collect::<String>();
            shares.into_iter().map(names).collect::<Vec<_>>()
        };
        assert_eq!(named(2), ["ad", "bce"]);
        assert_eq!(named(1), ["abcde"]);
        assert_eq!(named(9).concat().len(), 5);
        assert!(named(9).iter().all(|share| share.len() == 1));
    }

    #[test]
    fn every_test_on_the_floor_is_in_the_sources() {
        let folder = root().join("agent/tests/agent");
        let mut sources = String::new();
        for module in FLOOR_MODULES {
            sources += &fs::read_to_string(folder.join(module).with_extension("rs")).unwrap();
            for file in fs::read_dir(folder.join(module)).into_iter().flatten() {
                sources += &fs::read_to_string(file.unwrap().path()).unwrap();
            }
        }
        let functions: Vec<&str> = sources.split("#[test]\nfn ").skip(1).collect();
        for name in FLOOR_TESTS {
            let is_part = |function: &&str| {
                function
                    .split('(')
                    .next()
                    .is_some_and(|all| all.contains(name))
            };
            assert!(functions.iter().any(is_part), "{name}");
        }
    }
}
