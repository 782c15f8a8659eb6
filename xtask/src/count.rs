//! Counts tests from the lines that test programs print.

#![expect(clippy::print_stdout, reason = "the count is what these tasks are for")]

use std::process::ExitCode;

#[derive(Default)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    /// With reasons.
    pub skipped: Vec<String>,
}

impl Count {
    /// Prints the skipped tests and, in the last line, the numbers. Returns the exit status that follows.
    pub fn report(&self) -> ExitCode {
        for skipped in &self.skipped {
            println!("skipped: {skipped}");
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

    /// Reads what [`Count::report`] prints last. The reasons of skipped tests are on the lines before.
    pub fn from_last_line(line: &str) -> Option<Self> {
        let mut numbers = line.split(", ").map(|part| part.split_once(' '));
        let mut number = |what: &str| {
            let (number, found) = numbers.next()??;
            (found == what).then(|| number.parse().ok()).flatten()
        };
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
            skipped: Vec::new(),
        })
    }

    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
    }

    /// Adds a line such as `test result: ok. 14 passed; 0 failed; 1 ignored; …`.
    pub fn add_result(&mut self, line: &str) {
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
        assert_eq!(
            (count.passed, count.failed, count.skipped.len()),
            (16, 3, 1)
        );
    }
}
