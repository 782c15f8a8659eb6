//! The filter rules that the environment sets come in; whether a start can read them goes out.

use std::{ffi::OsStr, path::Path};

use anyhow::{Context as _, Result};

use super::Check;
use crate::filter::{self, Compiled, Fault, Rules};

const RULES: &str = "FLOW_AGENT_FILTER";
const FILE: &str = "FLOW_AGENT_FILTER_FILE";

/// None where no rules are set.
pub(super) fn filters() -> Option<Check> {
    let [rules, file] = [RULES, FILE].map(std::env::var_os);
    set(rules.as_deref(), file.as_deref().map(Path::new))
}

fn set(rules: Option<&OsStr>, file: Option<&Path>) -> Option<Check> {
    let name = match (rules, file) {
        (None, None) => return None,
        (Some(_), None) => RULES.to_owned(),
        (None, Some(_)) => FILE.to_owned(),
        (Some(_), Some(_)) => format!("{RULES} and {FILE}"),
    };
    Some(match count(rules, file) {
        Ok(count) => Check::ok("filters", format!("{name}: {count} rules")),
        Err(error) => Check::missing(
            "filters",
            format!("{error:#}"),
            format!("correct or unset {name}"),
        ),
    })
}

fn count(rules: Option<&OsStr>, file: Option<&Path>) -> Result<usize> {
    let mut arguments = Vec::new();
    if let Some(rules) = rules {
        let text = rules.to_str().context("FLOW_AGENT_FILTER is not UTF-8")?;
        let parsed = text.parse::<Rules>();
        arguments.push(parsed.map_err(|fault: Fault| fault.at(RULES))?);
    }
    let rules = filter::read(&arguments, file)?;
    Compiled::new(&rules, &[])?;
    Ok(rules.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::{Status, line};

    #[test]
    fn rules_of_the_environment_that_cannot_be_read_are_missing() {
        assert_eq!(set(None, None), None);
        let good = set(Some("exclude all; include all".as_ref()), None).unwrap();
        assert_eq!(good.status, Status::Ok);
        assert_eq!(good.detail, "FLOW_AGENT_FILTER: 2 rules");

        let bad = set(Some("exclude garbage".as_ref()), None).unwrap();
        assert_eq!(bad.status, Status::Missing);
        assert_eq!(
            line(&bad, 8),
            "missing  filters   FLOW_AGENT_FILTER:9: no term begins so; expected src, dst, net, \
             port, proto, on, ingress, egress or all; correct or unset FLOW_AGENT_FILTER\n                     \
             exclude garbage\n                             ^^^^^^^"
        );

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filters");
        let gone = set(None, Some(&path)).unwrap();
        assert!(gone.detail.contains("No such file"), "{}", gone.detail);
        std::fs::write(&path, "exclude all\nexclude").unwrap();
        let bad = set(Some("include all".as_ref()), Some(&path)).unwrap();
        assert!(
            bad.detail.contains("filters:2:9: expected"),
            "{}",
            bad.detail
        );
        let many = "exclude all;".repeat(1025);
        let many = set(Some(many.as_ref()), None).unwrap();
        assert!(many.detail.contains("at most 1024"), "{}", many.detail);
    }
}
