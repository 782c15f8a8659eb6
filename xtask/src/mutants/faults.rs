//! The table of faults: each is one replacement in one file, with the test that must catch it.

mod admission;
mod carry;
mod collector;
mod conversations;
mod delivery;
mod files;
mod kernel;
mod nat;
mod outputs;
mod pairs;
mod query;
mod stores;
mod top;
mod userspace;

use std::fmt;

use anyhow::{Result, ensure};

/// A test, as `cargo test` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub package: &'static str,
    pub binary: Binary,
    pub test: &'static str,
}

/// The test program of a package that contains the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// The library's unit tests.
    Lib,
    /// The program of this name in `tests/`.
    Test(&'static str),
}

impl Binary {
    /// The arguments for `cargo test`.
    pub fn arguments(self) -> Vec<&'static str> {
        match self {
            Self::Lib => vec!["--lib"],
            Self::Test(name) => vec!["--test", name],
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = self.binary.arguments().join(" ");
        write!(f, "{} {binary} {}", self.package, self.test)
    }
}

pub struct Fault {
    pub name: &'static str,
    pub file: &'static str,
    /// The text to replace. It must occur exactly once in the file.
    pub from: &'static str,
    pub to: &'static str,
    pub target: Target,
}

impl Fault {
    /// The file's text with the fault inserted.
    pub fn put_into(&self, text: &str) -> Result<String> {
        let times = text.matches(self.from).count();
        ensure!(
            times == 1,
            "fault {}: `{}` stands {times} times in {}: the table has to follow the sources",
            self.name,
            self.from,
            self.file
        );
        Ok(text.replacen(self.from, self.to, 1))
    }
}

const fn races(test: &'static str) -> Target {
    Target {
        package: "races",
        binary: Binary::Test("races"),
        test,
    }
}

const fn corpus(test: &'static str) -> Target {
    Target {
        package: "corpus",
        binary: Binary::Test("host"),
        test,
    }
}

const fn agent(test: &'static str) -> Target {
    Target {
        package: "agent",
        binary: Binary::Test("agent"),
        test,
    }
}

const fn unit(package: &'static str, test: &'static str) -> Target {
    Target {
        package,
        binary: Binary::Lib,
        test,
    }
}

const SHARED: Target = agent("accounts::cpus_that_share_counters_lose_nothing");
const FLIPS: Target = races("every_account_closes_while_programs_are_on_their_way_at_each_flip");

pub fn faults() -> impl Iterator<Item = &'static Fault> {
    let tables = [
        kernel::FAULTS,
        userspace::FAULTS,
        collector::FAULTS,
        conversations::FAULTS,
        files::FAULTS,
        nat::FAULTS,
        pairs::FAULTS,
        stores::FAULTS,
        query::FAULTS,
        delivery::FAULTS,
        outputs::FAULTS,
        admission::FAULTS,
        carry::FAULTS,
        top::FAULTS,
    ];
    tables.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::PathBuf};

    use super::*;
    use crate::workspace::{package_folder, root};

    #[test]
    fn every_fault_is_in_the_sources_and_has_its_name_alone() {
        let mut names = BTreeSet::new();
        for fault in faults() {
            assert!(names.insert(fault.name), "two are called {}", fault.name);
            let text = fs::read_to_string(root().join(fault.file)).unwrap();
            assert_ne!(fault.put_into(&text).unwrap(), text, "{}", fault.name);
        }
    }

    /// The file that contains a target's test.
    fn file(target: &Target) -> PathBuf {
        let package = package_folder(target.package);
        let module = target.test.rsplit_once("::").map(|(module, _)| module);
        let folder = match target.binary {
            Binary::Lib => package.join("src"),
            Binary::Test(name) => package.join("tests").join(name),
        };
        match module {
            Some(module) => {
                let file = folder.join(module.replace("::", "/")).with_extension("rs");
                // A library's unit tests may be in the file that they test.
                match module.strip_suffix("::tests") {
                    Some(tested) if !file.is_file() => {
                        folder.join(tested.replace("::", "/")).with_extension("rs")
                    }
                    _ => file,
                }
            }
            None if folder.is_dir() => folder.join("main.rs"),
            None => folder.with_extension("rs"),
        }
    }

    #[test]
    fn every_test_that_must_catch_a_fault_is_in_the_sources() {
        for &Fault { name, target, .. } in faults() {
            let file = file(&target);
            let source = fs::read_to_string(&file).unwrap();
            let test = target.test.rsplit("::").next().unwrap();
            assert_eq!(
                runs(&source, test),
                1,
                "{name}: {target} in {}",
                file.display()
            );
        }
    }

    /// The number of tests with this name in the source that are not ignored.
    fn runs(source: &str, name: &str) -> usize {
        let heads = ["", "async "].map(|kind| format!("{kind}fn {name}()"));
        // A long function signature has its brace on the next line.
        let lines = source
            .lines()
            .map(|line| line.trim().trim_end_matches(" {"));
        let lines: Vec<&str> = lines.collect();
        let places =
            (0..lines.len()).filter(|&place| heads.iter().any(|head| head == lines[place]));
        let are_run = places.filter(|&place| {
            let above = lines[..place].iter().rev();
            let above = above.take_while(|line| line.starts_with("#[") || line.starts_with("///"));
            let has = |attribute: &str| above.clone().any(|line| line.starts_with(attribute));
            (has("#[test]") || has("#[tokio::test")) && !has("#[ignore")
        });
        are_run.count()
    }

    #[test]
    fn a_function_that_is_no_test_or_is_ignored_catches_no_fault() {
        for (above, times) in [
            ("#[test]\n", 1),
            ("/// Why.\n#[test]\n#[should_panic]\n", 1),
            ("#[tokio::test(flavor = \"multi_thread\")]\nasync ", 1),
            ("", 0),
            ("#[test]\nfn another() {\n}\n\n", 0),
            ("#[test]\n#[ignore = \"slow\"]\n", 0),
            ("#[ignore]\n/// Why.\n#[test]\n", 0),
        ] {
            let source = format!("use super::*;\n\n{above}fn it_holds() {{\n}}\n");
            assert_eq!(runs(&source, "it_holds"), times, "{source}");
        }
        let long = "#[test]\nfn it_holds()\n{\n}\n";
        assert_eq!(runs(long, "it_holds"), 1);
    }
}
