//! Counts tests from the lines that test programs print.

#![expect(clippy::print_stdout, reason = "the count is what these tasks are for")]

use std::{fmt::Display, process::ExitCode};

const SKIPPED: &str = "skipped: ";
const FAILED: &str = "failed: ";

#[derive(Default)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    /// The skipped tests, with reasons.
    pub skipped: Vec<String>,
    /// The names of failed tests, and errors.
    pub failures: Vec<String>,
}

impl Count {
    /// Counts a failure and prints it at once.
    pub fn fail(&mut self, error: impl Display) {
        let error = format!("{error:#}");
        eprintln!("error: {error}");
        self.failed += 1;
        self.failures.push(error);
    }

    /// Prints the skipped and failed tests, then the totals in the last line. Returns the exit status.
    pub fn report(&self) -> ExitCode {
        for skipped in &self.skipped {
            println!("{SKIPPED}{skipped}");
        }
        for failure in &self.failures {
            println!("{FAILED}{failure}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed,
            self.skipped.len()
        );
        if self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    /// Parses the summary that [`Count::report`] prints at the end of an output.
    pub fn from_report(output: &str) -> Option<Self> {
        let lines = |prefix| {
            let lines = output
                .lines()
                .filter_map(move |line| line.strip_prefix(prefix));
            lines.map(str::to_owned).collect()
        };
        let line = output.lines().next_back()?;
        let mut numbers = line.split(", ").map(|part| part.split_once(' '));
        let mut number = |what: &str| {
            let (number, found) = numbers.next()??;
            (found == what).then(|| number.parse().ok()).flatten()
        };
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
            skipped: lines(SKIPPED),
            failures: lines(FAILED),
        })
    }

    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
    }

    /// Adds the totals from a line such as `test result: ok. 14 passed; 0 failed; 1 ignored; …`, or the failed test's
    /// name from a line such as `test tests::one … FAILED`.
    pub fn add_result(&mut self, line: &str) {
        let named = line.strip_prefix("test ");
        if let Some(name) = named.and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        }
        let Some((_, result)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for part in result.split("; ") {
            match part
                .split_once(' ')
                .map(|(number, what)| (number.parse::<usize>(), what))
            {
                Some((Ok(number), "passed")) => self.passed += number,
                Some((Ok(number), "failed")) => self.failed += number,
                Some((Ok(number), "ignored")) => {
                    self.skipped
                        .extend((0..number).map(|_| "a test that is marked `ignore`".to_owned()));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up_and_other_lines_do_not() {
        let mut count = Count::default();
        count.add_result("test result: ok. 14 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 8.16s");
        count.add_result(
            "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        count.add_result("test frame::tests::passed ... ok");
        count.add_result("test frame::tests::another ... FAILED");
        assert_eq!(
            (count.passed, count.failed, count.skipped.len()),
            (16, 3, 1)
        );
        assert_eq!(count.failures, ["frame::tests::another"]);
    }

    #[test]
    fn what_another_process_reports_is_read_back() {
        let output =
            "failed: one\nskipped: two: why\nfailed: three\n4 passed, 2 failed, 1 skipped\n";
        let count = Count::from_report(output).unwrap();
        assert_eq!((count.passed, count.failed), (4, 2));
        assert_eq!(count.skipped, ["two: why"]);
        assert_eq!(count.failures, ["one", "three"]);
        for other in ["", "4 passed\n", "4 passed, 2 failed, 1 skipped\nmore\n"] {
            assert!(Count::from_report(other).is_none(), "{other}");
        }
    }
}
