//! Counts a guest's tests from its output. If a program was killed, the tests that had passed still count, and the test
//! that hung is reported as failed.

#![expect(
    clippy::print_stdout,
    reason = "the output of what failed is what this task is for"
)]

use std::collections::{BTreeMap, BTreeSet};

use super::guest::{END, MARK, Outcome};
use crate::count::Count;

/// The prefix of the skip reason of a test in `agent/tests/agent/devices` whose device the kernel lacks.
const NO_DEVICE: &str = "this kernel has no ";

/// Adds up a guest's results, and prints its output after a failure. `modules` are the ones that should have run.
pub fn judge(outcome: &Outcome, modules: &[&str], release: &str, count: &mut Count) {
    let failed_before = count.failed;
    let mut run: Option<Run> = None;
    let mut begun = BTreeSet::new();
    for line in &outcome.lines {
        if let Some(skipped) = line.strip_prefix("@@ skipped ") {
            count.passed = count.passed.saturating_sub(1);
            if skipped.contains(NO_DEVICE) {
                count.fail(format_args!("{release}: {skipped}"));
            } else {
                count.skipped.push(format!("kernel {release}: {skipped}"));
            }
        } else if let Some(module) = line.strip_prefix("@@ module ") {
            count.fail(format_args!("{release}: {module} cannot be loaded"));
        } else if let Some(name) = line.strip_prefix("@@ start ") {
            if let Some(before) = run.replace(Run::of(name)) {
                before.end(None, release, count);
            }
            begun.insert(name);
        } else if let Some(stop) = line.strip_prefix("@@ stop ") {
            if let Some(run) = run.take() {
                run.end(Some(stop), release, count);
            }
        } else if let Some(run) = &mut run {
            run.read(line);
        }
    }
    if let Some(run) = run {
        run.end(None, release, count);
    }
    let mut is_whole = outcome.lines.iter().any(|line| line == END);
    let at_end = is_whole;
    for module in modules.iter().filter(|module| !begun.contains(*module)) {
        is_whole = false;
        let reason = "the guest ended before its turn";
        count
            .skipped
            .push(format!("kernel {release}: {module}: {reason}"));
    }
    if !is_whole && count.failed == failed_before {
        count.fail(format_args!(
            "kernel {release}: the guest did not come to its end"
        ));
    }
    if count.failed > failed_before {
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

/// The output of one module's tests.
struct Run<'a> {
    name: &'a str,
    /// Every test of the module with its result, in the order of their start.
    results: BTreeMap<&'a str, Option<&'a str>>,
    /// The tests that libtest reported as slow.
    slow: Vec<&'a str>,
    /// libtest's line of totals.
    total: Option<&'a str>,
}

impl<'a> Run<'a> {
    fn of(name: &'a str) -> Self {
        Self {
            name,
            results: BTreeMap::new(),
            slow: Vec::new(),
            total: None,
        }
    }

    fn read(&mut self, line: &'a str) {
        if let Some(test) = line.strip_prefix("@@ test ") {
            self.results.insert(test, None);
        } else if line.starts_with("test result: ") {
            self.total = Some(line);
        } else if let Some(said) = line.strip_prefix("test ") {
            if let Some((test, result)) = said.rsplit_once(" ... ") {
                self.results.insert(test, Some(result));
            } else if let Some((test, _)) = said.split_once(" has been running for over ") {
                self.slow.push(test);
            }
        }
    }

    /// `stop` has the program's exit status and its start and end times, or is `None` if the program did not finish.
    fn end(self, stop: Option<&str>, release: &str, count: &mut Count) {
        let name = self.name;
        let mut words = stop.unwrap_or_default().split_whitespace().skip(1);
        let status = words.next();
        let mut uptime = || words.next()?.parse::<f64>().ok();
        if let Some((start, stop)) = uptime().zip(uptime()) {
            eprintln!("test: {release}: {name} took {:.1} s", stop - start);
        }
        let ended = match status {
            Some(status) => format!("ended with {status}"),
            None => "had not ended when the guest did".to_owned(),
        };
        let failed = || {
            let results = self.results.iter();
            let failed = results.filter(|(_, result)| **result == Some("FAILED"));
            failed.map(|(test, _)| *test)
        };
        let named = failed().map(|test| format!("kernel {release}: {test}"));
        count.failures.extend(named);
        if let Some(total) = self.total {
            count.add_result(total);
            // libtest exits with 101 if tests failed.
            if !matches!(status, Some("0" | "101")) {
                count.fail(format_args!("{release}: {name} {ended}"));
            }
            return;
        }
        eprintln!("error: {release}: {name} {ended}");
        let unfinished: Vec<&str> = self
            .results
            .iter()
            .filter_map(|(test, result)| result.is_none().then_some(*test))
            .collect();
        let is_slow = |test: &&&str| self.slow.contains(*test);
        let mut hung: Vec<&str> = unfinished.iter().filter(is_slow).copied().collect();
        if hung.is_empty() {
            hung.extend(unfinished.first());
        }
        for test in &hung {
            let hung = format!("{release}: {name}: {test} did not come to its end");
            eprintln!("error: {hung}");
            count.failures.push(hung);
        }
        // Count at least one failure, even if the program died before it had listed its tests.
        count.failed += (hung.len() + failed().count()).max(1);
        let passed = self
            .results
            .values()
            .filter(|result| result.is_some_and(|result| result == "ok"));
        count.passed += passed.count();
        for test in unfinished.iter().filter(|test| !hung.contains(test)) {
            let reason = format!("{name} was stopped before it");
            count
                .skipped
                .push(format!("kernel {release}: {test}: {reason}"));
        }
    }
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
        judge(&outcome, &["devices"], "6.1", &mut count);
        (count.passed, count.failed, count.skipped.len())
    }

    const START: &str = "@@ start devices";
    const RESULT: &str = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured";
    const STOP: &str = "@@ stop devices 0 1.0 2.0";

    #[test]
    fn a_device_that_the_kernel_lacks_and_a_module_that_does_not_load_have_failed() {
        let old = "@@ skipped a::test: the kernel sends live frames from 5.18";
        assert_eq!(judged(&[START, RESULT, STOP, old, END]), (2, 0, 1));
        let lacks = "@@ skipped a::test: this kernel has no gre device";
        assert_eq!(judged(&[START, RESULT, STOP, lacks, END]), (2, 1, 0));
        let module = "@@ module /modules/003-ip_gre.ko";
        assert_eq!(judged(&[module, START, RESULT, STOP, END]), (3, 1, 0));
    }

    #[test]
    fn a_guest_that_does_not_come_to_its_end_has_failed() {
        assert_eq!(judged(&[START, RESULT, STOP, END]), (3, 0, 0));
        assert_eq!(judged(&[START, RESULT, STOP]), (3, 1, 0));
        // A program that never ran is reported too.
        assert_eq!(judged(&[END]), (0, 1, 1));
        assert_eq!(judged(&[]), (0, 1, 1));
        assert_eq!(judged(&[START, END]), (0, 1, 0));
        let crash = "@@ stop devices 139 1.0 2.0";
        assert_eq!(judged(&[START, RESULT, crash, END]), (3, 1, 0));
    }

    #[test]
    fn a_killed_program_counts_by_its_tests() {
        let listed = ["@@ test a", "@@ test b", "@@ test c", "@@ test d"];
        let killed = "@@ stop devices 137 1.0 301.0";
        let judged =
            |said: &[&str], stop: &[&str]| judged(&[&[START], &listed[..], said, stop].concat());
        let said = ["test b ... ok", "test a ... ok"];
        // `c` was next, and nothing is known about `d`.
        assert_eq!(judged(&said, &[killed, END]), (2, 1, 1));
        // The guest itself was killed.
        assert_eq!(judged(&said, &[]), (2, 1, 1));
        let slow = "test d has been running for over 60 seconds";
        let said = ["test a ... ok", "test b ... FAILED", slow];
        assert_eq!(judged(&said, &[killed, END]), (1, 2, 1));
        let both = [slow, "test c has been running for over 60 seconds"];
        assert_eq!(judged(&both, &[killed, END]), (0, 2, 2));
    }
}
